"""No entry is missing or wrong in random sparse programs."""

import jax
import pytest

from tests.sparse.random_programs import FURTHER, TOGETHER, errors, missing


@pytest.mark.thinned(1)
@pytest.mark.parametrize("group", range(60))
def test_no_entry_is_missing(group):
    assert not missing(group * TOGETHER)


@pytest.mark.exhaustive
@pytest.mark.parametrize("group", range(60, 80))
def test_every_entry_is_that_of_jax(group):
    assert max(errors(group * TOGETHER)) < 1e-12


@pytest.mark.exhaustive
@pytest.mark.thinned(1)
@pytest.mark.parametrize("group", range(20))
def test_further_operations(group):
    first = FURTHER + group * TOGETHER
    # written as users write them, with the promotions of NumPy
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        assert not missing(first)
        assert max(errors(first)) < 1e-10
