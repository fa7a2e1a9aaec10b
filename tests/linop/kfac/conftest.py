"""Models are written as users write them: a bias is added to rows."""

import jax
import pytest


@pytest.fixture(autouse=True)
def ranks_are_promoted():
    with jax.numpy_rank_promotion("allow"):
        yield
