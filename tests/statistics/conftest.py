"""optax promotes dtypes implicitly. And compile fast: that takes most of the time."""

import jax
import pytest


@pytest.fixture(autouse=True)
def promotion_as_optax_needs_it(compiled_fast):
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
