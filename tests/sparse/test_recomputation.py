"""What is computed anew where it is read, and what is written once."""

import jax
import jax.numpy as jnp
import pytest

import hotk
from hotk._core import equations
from hotk.sparse._linear_program import CHEAP, recomputation_costs


X = jnp.linspace(0.5, 1.5, 2000)

COUNTED = {
    "a sum and a product": (lambda x: 3 * x + 1, 2),
    "a difference of slices": (lambda x: x[1:] - x[:-1], 3),
    "a square": (lambda x: x**2, 1),
    "inside of a jit": (jax.jit(lambda x: 3 * x + 1), 2),
    "its operand twice": (lambda x: (2 * x) * (2 * x), 3),
}
COSTLY = {
    "a quotient": lambda x: 1 / x,
    "a sine below a sum": lambda x: jnp.sin(x) + 1,
    "a gather": lambda x: x[::-1][jnp.arange(5) ** 2],
    "a sum of all": lambda x: x + jnp.sum(x),
    "a loop": lambda x: jax.lax.fori_loop(0, 3, lambda i, y: y + x, x),
    "a sine inside of a jit": jax.jit(jnp.sin),
    "many products": lambda x: (
        sum(k * x**k for k in (1, 2, 3, 4)) * (x + 1) * (x - 1) * 2
    ),
}


@pytest.mark.parametrize("name", COUNTED)
def test_operations_are_counted(name):
    f, count = COUNTED[name]
    assert recomputation_costs(jax.make_jaxpr(f)(X).jaxpr) == [count]


@pytest.mark.parametrize("name", COSTLY)
def test_what_is_costly_is_known(name):
    [cost] = recomputation_costs(jax.make_jaxpr(COSTLY[name])(X).jaxpr)
    assert cost > CHEAP


def _written(f):
    program = jax.make_jaxpr(lambda x: hotk.sparse_hessian(f, x).values)(X)
    return [e for e in equations(program.jaxpr) if e.primitive.name == "hotk_written"]


def test_costly_residuals_are_written_once_and_cheap_ones_are_not():
    # the entries of a band are computed where they stand in its rows
    cheap = lambda x: jnp.sum((x[1:] - x[:-1] ** 2) ** 2)
    costly = lambda x: jnp.sum((x[1:] - jnp.sin(x[:-1])) ** 2)
    assert not _written(cheap)
    assert _written(costly)


def test_an_array_of_one_known_number_is_that_number():
    # the gradient of a sum holds arrays of ones: none is an argument of the program
    f = lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    [call] = jax.make_jaxpr(lambda x: hotk.sparse_hessian(f, x).values)(X).eqns
    inner = call.params["jaxpr"].jaxpr
    types = {v: v.aval for v in (*inner.constvars, *inner.invars)}
    assert [a.shape for a in types.values() if a.dtype == X.dtype] == [X.shape]
