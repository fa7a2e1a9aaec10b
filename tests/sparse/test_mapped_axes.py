"""Sums over an axis of `jax.vmap`, which JAX makes sums over a numbered axis."""

import jax
import jax.numpy as jnp
import pytest

import hotk
from tests.helpers import close


X = jnp.array([1.0, 2.0, 3.0])
psum, pmean = jax.lax.psum, jax.lax.pmean


def mapped(f):
    return jax.vmap(f, axis_name="i")


def twice(f):
    """Map over a matrix of numbers, along axes "i" and "j"."""
    rows = jax.vmap(jax.vmap(f, axis_name="i"), axis_name="j")
    return lambda x: rows(x[:2, None] * jnp.arange(1.0, 4.0)[None]).reshape(-1)


FUNCTIONS = {
    "sum": mapped(lambda a: psum(a, "i")),
    "weighted": mapped(lambda a: a * psum(a**2, "i")),
    "exponential": mapped(lambda a: jnp.exp(a) * psum(jnp.sin(a), "i")),
    "centered": mapped(lambda a: a - pmean(a, "i")),
    "squares": mapped(lambda a: (a - pmean(a, "i")) ** 2),
    "two": mapped(lambda a: a * jnp.prod(jnp.stack(psum((a, jnp.cos(a)), "i")))),
    "gathered": mapped(lambda a: jnp.sum(jax.lax.all_gather(a**2, "i")) * a),
    "permuted": mapped(
        lambda a: a * jax.lax.ppermute(a**3, "i", [(0, 1), (1, 2), (2, 0)])
    ),
    "both": twice(lambda a: a * psum(a**2, ("i", "j"))),
    "one in another": twice(lambda a: jnp.cos(a) * psum(a * psum(a, "i"), "j")),
}
MODES = [hotk.Auto(), hotk.FORWARD_OVER_FORWARD, hotk.REVERSE_OVER_REVERSE]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobians(name):
    f = FUNCTIONS[name]
    close(hotk.sparse_jacobian(f, X).todense(), jax.jacobian(f)(X))


@pytest.mark.thinned(10, "name")
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_hessians(name, mode):
    f = lambda x: jnp.sum(jnp.sin(FUNCTIONS[name](x)))
    close(hotk.sparse_hessian(f, X, mode=mode).todense(), jax.hessian(f)(X))
