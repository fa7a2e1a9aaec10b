"""Random programs: hotk against raw JAX, on the same state and at the same point."""

from tests import compilation


compilation.use()  # here, as the modules below make arrays when they are imported
