"""Random programs: hotk against raw JAX, on the same state and at the same point."""
