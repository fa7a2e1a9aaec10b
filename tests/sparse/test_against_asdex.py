"""Patterns and values against asdex, where it is installed and answers.

It needs numba, so it is in no extra: `pip install asdex`.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.sparse.programs import PROGRAMS, point
from tests.sparse.test_programs import dense


asdex = pytest.importorskip("asdex", exc_type=ImportError)

# asdex 0.5.1 lacks an entry here: an index outside is clipped to the last one.
LACKING = {"read outside"}


def _positions(pattern):
    rows, cols = np.asarray(pattern.rows), np.asarray(pattern.cols)
    return set(zip(rows.tolist(), cols.tolist(), strict=True))


@pytest.mark.thinned(10)
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in LACKING])
def test_no_pattern_is_larger_than_that_of_asdex(name):
    f, x = PROGRAMS[name], point(0)
    try:
        theirs = asdex.hessian_sparsity(f, x)
    except Exception as error:
        pytest.skip(f"asdex raises {type(error).__name__}")
    assert _positions(hotk.sparsity(f, x)) <= _positions(theirs)


def test_values_are_those_of_asdex():
    f = lambda x: jnp.sum((x[1:] - x[:-1] ** 2) ** 2)
    theirs = asdex.hessian(f, point(0), output_format="dense")(point(0))
    assert np.allclose(dense(hotk.sparse_hessian(f, point(0))), theirs)
