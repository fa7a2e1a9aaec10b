"""What one operator accepts of a function says nothing of what another one does."""

import jax.numpy as jnp
import pytest

import hotk


pytestmark = pytest.mark.usefixtures("as_user")

FIRST = ("jvp", "vjp", "jacobian", "value_and_jacobian", "hessian")
SCALAR = ("gradient", "quadratic_form", "hessian_diagonal", "value_and_gradient")
X, U = jnp.ones(4), jnp.ones(2)


def two(x):
    return jnp.stack([jnp.prod(x), jnp.sum(x**2)])


def arguments(name):
    if name == "vjp":
        return (X, U)
    return (X, X) if name in ("jvp", "quadratic_form") else (X,)


@pytest.mark.thinned(18)
@pytest.mark.parametrize("how", ["direct", "prepare"])
@pytest.mark.parametrize("name", SCALAR)
@pytest.mark.parametrize("first", FIRST)
def test_a_value_that_one_takes_is_refused_by_another(first, name, how):
    hotk.clear_cache()
    getattr(hotk, first)(two, *arguments(first))
    operator = getattr(hotk, name)
    call = operator if how == "direct" else operator.prepare
    for _ in range(2):
        with pytest.raises(hotk.OutputError, match="must return one real number"):
            call(two, *arguments(name))


@pytest.mark.parametrize("name", SCALAR)
def test_an_integer_or_complex_value_is_refused_as_well(name):
    for kind in (int, complex):
        f = lambda x, kind=kind: jnp.sum(x).astype(kind)
        hotk.clear_cache()
        if kind is complex:
            hotk.jacobian(f, X)
        with pytest.raises(hotk.OutputError, match="real floating-point number"):
            getattr(hotk, name)(f, *arguments(name))


def test_a_refused_value_leaves_the_function_usable():
    hotk.clear_cache()
    with pytest.raises(hotk.OutputError):
        hotk.gradient.prepare(two, X)
    assert hotk.jacobian(two, X).shape == (2, 4)
    with pytest.raises(hotk.OutputError):
        hotk.gradient(two, X)
