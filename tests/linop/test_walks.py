"""A solver takes one program of its operator, whose function is walked once for all."""

import itertools

import jax
import jax.numpy as jnp
import pytest

import hotk
from hotk._capture import Walk


pytestmark = pytest.mark.usefixtures("as_user")

X = jnp.arange(1.0, 6.0)
B = jnp.array([1.0, -2.0, 0.5, 3.0, 1.0])
DATA = jnp.linspace(1.0, 2.0, 5)

SOLVERS = {
    "eigh": lambda H: H.eigh(2),
    "solve": lambda H: H.solve(B),
    "minres": lambda H: hotk.linop.minres(H, B, x0=X),
    "steihaug": lambda H: hotk.linop.steihaug(H, B, 1.0),
    "matrix": lambda H: H.matrix(),
    "diagonal": lambda H: H.diagonal(),
    "linearize": lambda H: H.linearize("store"),
}


POWERS = itertools.count(3)


def make(power, data=DATA):
    """Make the operator of a function whose code no other power has."""
    code = f"lambda x: jnp.sum(data * x**{power}) + jnp.sum(x) ** 2"
    return hotk.HessianOperator(eval(code, {"jnp": jnp, "data": data}), X)


def make_new():
    return make(next(POWERS))


@pytest.fixture
def walks(monkeypatch):
    """Count the walks that a call takes."""

    def count(ask, H):
        begun = []
        init = Walk.__init__

        def counted(self, *args, **keywords):
            begun.append(self)
            init(self, *args, **keywords)

        with monkeypatch.context() as patch:
            patch.setattr(Walk, "__init__", counted)
            ask(H)
        return len(begun)

    for _ in range(3):  # guards are written, and modules read, in the first calls
        jax.jit(lambda H: H @ B)(make_new())
    return count


@pytest.mark.thinned(5)
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_a_solver_walks_no_more_than_one_traced_product(walks, solver):
    traced = jax.jit(lambda H: H @ B)
    assert 0 < walks(solver, make_new()) <= walks(traced, make_new())


def test_solvers_after_the_first_walk_nothing(walks):
    H = make_new()
    assert walks(SOLVERS["eigh"], H) > 0
    for name, solver in SOLVERS.items():
        assert walks(solver, H) == 0, name


def test_nor_do_those_of_an_operator_over_new_data(walks):
    power = next(POWERS)
    assert walks(SOLVERS["solve"], make(power)) > 0
    for data in (DATA + 1, DATA + 2):
        H = make(power, data)
        assert walks(SOLVERS["eigh"], H) == walks(SOLVERS["solve"], H) == 0
