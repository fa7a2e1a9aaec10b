"""Loops of libraries: run, learn, compile nothing after the second step, and are right.

The oracle is the same step on a plain dict of the arrays (`plain_loops`), and for that
one the dense matrices.
"""

import jax
import jax.numpy as jnp
import pytest

from tests.counting import compiles
from tests.helpers import close
from tests.optim.plain_loops import BATCHES, METHODS, network
from tests.optim.training_loops import LOOPS


@pytest.fixture(autouse=True)
def _promotion():
    """Let the libraries promote dtypes and ranks: they do not work without."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def loops():
    for name, loop in LOOPS.items():
        marks = [pytest.mark.library] if loop.library else []
        yield pytest.param(loop, id=name, marks=marks)


def as_dict(loop, params):
    leaves = [a for a in jax.tree.leaves(params) if hasattr(a, "dtype")]
    return {str(i): a for i, a in enumerate(leaves)}


def loss_of_all(method, loop, p):
    X, y = (jnp.concatenate(a) for a in zip(*BATCHES, strict=True))
    return float(method.loss(network(loop.names, p, X), y)) / len(X)


@pytest.mark.thinned(2, "loop", "name")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("loop", list(loops()))
def test_a_loop_learns_compiles_nothing_and_equals_a_plain_dict(loop, name, compiled):
    method = METHODS[name]
    steps = loop.run(method, compiled)
    found = [next(steps) for _ in range(5)]  # restored after the third
    with compiles() as counted:
        found += list(steps)
    first, *found = [as_dict(loop, params) for params in found]
    known = loop.expected(method, loop.names, first)
    for got, wanted in zip(found, known, strict=True):
        close(got, wanted, rtol=1e-8, atol=1e-9)
    assert loss_of_all(method, loop, found[-1]) < loss_of_all(method, loop, first)
    if compiled or not loop.compiles:
        assert counted() == 0
