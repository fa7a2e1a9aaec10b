"""An operator is a pytree: it goes through JAX's transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


X, V = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.5, -2.0])
C = np.array([1.0, 2.0, 3.0])


def make(x):
    scale = jnp.asarray(C)
    return hotk.HessianOperator(lambda x: jnp.sum(scale * x**4) + jnp.sum(x) ** 2, x)


def dense(x):
    return np.diag(12 * C * x**2) + 2.0


@pytest.mark.exhaustive
def test_through_jit():
    close(jax.jit(lambda H, v: H @ v)(make(X), V), dense(X) @ V)
    close(jax.jit(lambda H: H.matrix())(make(X)), dense(X))
    close(jax.jit(lambda x: make(x).at(2 * x) @ V)(X), dense(2 * X) @ V)
    close(jax.jit(lambda x: make(x).solve(V, tol=1e-13).x)(X), solve(X))
    close(jax.jit(lambda x: make(x))(X).diagonal(), np.diag(dense(X)))


def solve(x):
    return np.linalg.solve(dense(x), V)


@pytest.mark.exhaustive
def test_vmap_over_the_point():
    xs = np.stack([X, 2 * X, X + 1])
    close(jax.vmap(lambda x: make(x) @ V)(xs), np.stack([dense(x) @ V for x in xs]))
    close(jax.vmap(lambda x: make(x).matrix())(xs), np.stack([dense(x) for x in xs]))
    close(jax.vmap(lambda x: make(x).value)(xs), np.stack([value(x) for x in xs]))
    got = jax.vmap(lambda x: make(x).solve(jnp.asarray(V), tol=1e-13).x)(xs)
    close(got, np.stack([solve(x) for x in xs]))
    values = jax.vmap(lambda x: make(x).eigh(2).values)(xs)
    close(values, np.stack([np.linalg.eigvalsh(dense(x))[-2:] for x in xs]))


def value(x):
    return np.sum(C * x**4) + np.sum(x) ** 2


def test_a_batch_of_operators_is_mapped_over():
    xs = np.stack([X, 2 * X])
    many = jax.vmap(make)(xs)
    got = jax.vmap(lambda H, v: H @ v, in_axes=(0, None))(many, V)
    close(got, np.stack([dense(x) @ V for x in xs]))


def test_as_the_carry_of_a_scan():
    def step(H, _):
        return H.at(H.x + 1.0), H @ V

    H, products = jax.lax.scan(step, make(X), None, length=3)
    close(H.x, X + 3)
    close(products, np.stack([dense(X + i) @ V for i in range(3)]))


@pytest.mark.exhaustive
def test_as_the_carry_of_a_while_loop():
    """Newton's method, for a function whose minimum is zero."""

    def step(H):
        return H.at(H.x - H.solve(H.gradient, tol=1e-12).x)

    end = jax.lax.while_loop(lambda H: H.value > 1e-12, step, make(X))
    assert 0 <= end.value <= 1e-12
    np.testing.assert_allclose(end.x, 0.0, atol=1e-2)


def test_products_are_differentiated_by_the_point():
    slope = jax.grad(lambda x: make(x).quadratic_form(V))(X)
    close(slope, 24 * C * X * V**2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("b", [V, np.zeros(3)], ids=["some", "zero"])
def test_a_solution_goes_through_jit_and_scan(b):
    def step(carry, scale):
        return carry, make(X).solve(scale * jnp.asarray(b), tol=1e-13)

    _, found = jax.lax.scan(step, 0, jnp.array([1.0, 2.0]))
    expected = np.linalg.solve(dense(X), b)
    close(found.x, np.stack([expected, 2 * expected]))
    assert found.converged.all()
    assert "2" in str(found)
