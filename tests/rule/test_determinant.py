"""Determinants and their derivatives, at singular matrices of every rank."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk import safe
from tests import reference
from tests.helpers import close


NESTINGS = [getattr(hotk, name) for name in reference.NESTINGS]
each_nesting = pytest.mark.parametrize("mode", NESTINGS, ids=reference.NESTINGS)


def leibniz(a):
    """Sum over all permutations: a polynomial, whose derivatives have no division."""
    n, total = a.shape[-1], 0.0
    for order in itertools.permutations(range(n)):
        term = round(np.linalg.det(np.eye(n)[list(order)]))
        for i in range(n):
            term = term * a[i, order[i]]
        total += term
    return total


def of_rank(n, rank, seed=0):
    draw = np.random.default_rng(seed).integers
    left, right = draw(-3, 4, (n, rank)), draw(-3, 4, (rank, n))
    return np.asarray(left @ right, float)


def along(f, v, order):
    return functools.reduce(
        lambda g, _: lambda x: jax.jvp(g, (x,), (v,))[1], range(order), f
    )


def polynomial(a, v):
    """Return t to det(a + t v), by the formula of Leibniz on polynomials."""
    n = len(a)
    total = np.polynomial.Polynomial([0.0])
    for places in itertools.permutations(range(n)):
        sign = np.linalg.det(np.eye(n)[list(places)])
        term = np.polynomial.Polynomial([round(sign)])
        for i, j in enumerate(places):
            term *= np.polynomial.Polynomial([a[i, j], v[i, j]])
        total += term
    return total


RANKS = [(n, rank) for n in (1, 2, 3, 5) for rank in range(n + 1)]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("n", "rank"), RANKS)
def test_determinants_are_exact_up_to_the_fourth_derivative(n, rank, compiled_fast):
    a, v = of_rank(n, rank), np.random.default_rng(1).normal(size=(n, n))
    size = max(1.0, np.abs(a).max()) ** n
    known = polynomial(a, v)
    for order in range(5):
        found = jax.jit(along(safe.det, v, order))(a)
        close(found, known.deriv(order)(0.0), rtol=0, atol=1e-13 * size)


@pytest.mark.thinned(3, "mode")
@each_nesting
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_hessians_of_determinants_in_every_nesting(mode, rank):
    a, v = of_rank(3, rank), np.random.default_rng(1).normal(size=(3, 3))
    known = jax.jvp(jax.grad(leibniz), (a,), (v,))[1]
    close(hotk.hvp(safe.det, a, v, mode=mode), known, atol=1e-12)


@pytest.mark.exhaustive
def test_the_plain_determinant_has_the_hessian_wrong():
    """What the one in `hotk.safe` is for; if this fails JAX has learned it."""
    a, v = np.diag([0.0, 0.0, 1.0, 1.0]), np.diag([1.0, 1.0, 0.0, 0.0])
    assert along(jnp.linalg.det, v, 2)(a) != 2.0  # det(A + t V) is t^2
    close(along(safe.det, v, 2)(a), 2.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("kind", ["real", "complex"])
def test_values_and_derivatives_of_regular_matrices(n, kind):
    draw = np.random.default_rng(2).normal
    a = draw(size=(2, n, n)) + (1j * draw(size=(2, n, n)) if kind == "complex" else 0)
    sign, logarithm = safe.slogdet(a)
    close(sign, np.linalg.slogdet(a)[0])
    close(logarithm, np.linalg.slogdet(a)[1], atol=1e-13)
    close(safe.det(a), np.linalg.det(a), rtol=1e-12, atol=1e-13)
    if n and kind == "real":
        f = lambda a: jnp.sum(safe.slogdet(a)[1])
        inverse = np.linalg.inv(a)
        close(hotk.gradient(f, a), np.swapaxes(inverse, -1, -2), atol=1e-11)
        v = draw(size=a.shape)
        product = -np.swapaxes(inverse @ v @ inverse, -1, -2)
        close(hotk.hvp(f, a, v), product, rtol=1e-9, atol=1e-9)


@pytest.mark.thinned(1)
@each_nesting
def test_logarithms_of_determinants_in_every_nesting(mode):
    a = np.random.default_rng(3).normal(size=(6, 6))
    inverse = np.linalg.inv(a)
    f = lambda a: safe.slogdet(a)[1]
    close(hotk.hvp(f, a, a, mode=mode), -inverse.T, atol=1e-10)


def test_the_sign_of_a_complex_determinant_turns():
    a = np.array([[2.0 + 1j, 0.5], [-1j, 1.0]])
    phase = lambda t: jnp.angle(safe.slogdet(a * jnp.exp(1j * t))[0])
    close(hotk.derivative(phase, 0.1), 2.0)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("size", [1e-200, 1e200])
@pytest.mark.parametrize("n", [2, 3, 6])
def test_matrices_of_any_size(size, n):
    a = np.random.default_rng(4).normal(size=(n, n))
    f = lambda a: safe.slogdet(a)[1]
    expected = np.linalg.slogdet(a)[1] + n * np.log(size)
    close(f(size * a), expected, rtol=1e-13)
    close(hotk.gradient(f, size * a) * size, np.linalg.inv(a).T, atol=1e-12)


@pytest.mark.thinned(1)
@each_nesting
def test_logarithms_at_singular_matrices_have_derivatives_of_zero(mode):
    f = lambda a: jnp.where(a[0, 0] > 1, safe.slogdet(a)[1], jnp.sum(a**2))
    close(
        hotk.hvp(f, np.zeros((6, 6)), np.ones((6, 6)), mode=mode), np.full((6, 6), 2.0)
    )
    sign, logarithm = safe.slogdet(np.zeros((6, 6)))
    assert sign == 0
    assert logarithm == -np.inf


@pytest.mark.exhaustive
def test_in_single_precision_under_vmap_and_with_what_is_no_matrix():
    a = np.stack([of_rank(5, r) for r in (2, 4, 5)]).astype(np.float32)
    known = np.stack([jax.grad(leibniz)(b) for b in a.astype(float)])
    found = jax.vmap(jax.grad(safe.det))(a)
    assert found.dtype == np.float32
    size = np.abs(known).max()
    close(found.astype(float), known, rtol=0, atol=2e-5 * max(size, 1.0))
    with pytest.raises(hotk.StructureError, match="square"):
        safe.det(np.ones((2, 3)))
    with pytest.raises(hotk.DtypeError, match="floating"):
        safe.slogdet(np.ones((2, 2), int))
