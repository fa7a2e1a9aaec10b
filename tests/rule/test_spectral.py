"""Functions of symmetric matrices where eigenvalues coincide."""

import itertools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import hotk
from hotk import safe
from tests import reference
from tests.helpers import close


NESTINGS = [getattr(hotk, name) for name in reference.NESTINGS]
each_nesting = pytest.mark.parametrize("mode", NESTINGS, ids=reference.NESTINGS)
RANDOM = np.random.default_rng(0).normal(size=(4, 4))
BASIS = np.linalg.qr(RANDOM)[0]
MATRICES = {
    "distinct": RANDOM @ RANDOM.T + np.eye(4),
    "a pair": BASIS @ np.diag([1.0, 1.0, 2.0, 3.0]) @ BASIS.T,
    "nearly a pair": BASIS @ np.diag([1.0, 1.0 + 1e-7, 2.0, 3.0]) @ BASIS.T,
    "identity": np.eye(4),
    "far apart": BASIS @ np.diag([1e-3, 1.0, 1.0, 50.0]) @ BASIS.T,
}
each_matrix = pytest.mark.parametrize("name", MATRICES)


@pytest.mark.thinned(2)
@each_nesting
def test_the_sum_of_logarithms_at_the_identity(mode):
    f = lambda a: safe.spectral_sum(jnp.diag(a), jnp.log)
    close(hotk.hessian(f, jnp.ones(3), mode=mode), -np.eye(3))


@pytest.mark.thinned(1)
@each_nesting
@each_matrix
def test_the_sum_of_logarithms_is_a_determinant(name, mode):
    a = jnp.asarray(MATRICES[name])
    ours = lambda a: safe.spectral_sum(a, jnp.log)
    theirs = lambda a: jnp.linalg.slogdet((a + a.T) / 2)[1]
    close(ours(a), np.asarray(theirs(a)))
    expected = np.asarray(jax.hessian(theirs)(a))
    scale = np.max(np.abs(expected))
    close(hotk.hessian(ours, a, mode=mode), expected, rtol=0, atol=1e-9 * scale)


@pytest.mark.exhaustive
@each_nesting
@each_matrix
def test_the_exponential(name, mode):
    a = jnp.asarray(MATRICES[name]) / 5
    ours = lambda a: safe.matrix_function(a, jnp.exp)[0, 1]
    theirs = lambda a: jax.scipy.linalg.expm((a + a.T) / 2)[0, 1]
    close(ours(a), np.asarray(theirs(a)), atol=1e-12)
    expected = np.asarray(jax.hessian(theirs)(a))
    scale = np.max(np.abs(expected))
    close(hotk.hessian(ours, a, mode=mode), expected, rtol=0, atol=1e-10 * scale)


@pytest.mark.exhaustive
def test_third_derivatives_of_the_sum_at_coinciding_eigenvalues():
    f = lambda s: safe.spectral_sum(s * jnp.eye(3), jnp.log)
    close(jax.grad(jax.grad(jax.grad(f)))(2.0), 3 * 2 / 2.0**3)


@pytest.mark.exhaustive
def test_what_the_function_captures_is_differentiated():
    a = jnp.asarray(MATRICES["a pair"])
    total = lambda p: safe.spectral_sum(a, lambda x: x**p)
    entry = lambda p: safe.matrix_function(a, lambda x: jnp.exp(p * x))[0, 1]
    values = np.linalg.eigvalsh(a)
    expected = np.sum(values**2.0 * np.log(values) ** 2)
    close(hotk.second_derivative(total, 2.0), expected)
    theirs = lambda p: jax.scipy.linalg.expm(p * a)[0, 1]
    close(jax.grad(entry)(0.5), np.asarray(jax.grad(theirs)(0.5)), atol=1e-12)
    close(
        jax.jvp(entry, (0.5,), (1.0,))[1], np.asarray(jax.grad(theirs)(0.5)), atol=1e-12
    )


def test_what_is_no_symmetric_matrix_is_refused(as_user):
    with pytest.raises(hotk.StructureError, match="square"):
        safe.spectral_sum(jnp.ones((2, 3)), jnp.log)
    with pytest.raises(hotk.DtypeError, match="real"):
        safe.matrix_function(jnp.eye(2, dtype=complex), jnp.exp)


def second(f, a, v):
    """Differentiate f(A) twice along V by a block matrix, in forty digits."""
    n = len(a)
    with mpmath.workdps(40):
        zero = mpmath.zeros(n)
        a, v = (mpmath.matrix(m.tolist()) for m in (a, v))
        rows = [[a, v, zero], [zero, a, v], [zero, zero, a]]
        block = mpmath.matrix(3 * n)
        for i, j in itertools.product(range(3), repeat=2):
            for k, m in itertools.product(range(n), repeat=2):
                block[i * n + k, j * n + m] = rows[i][j][k, m]
        found = f(block)
        made = [[2 * found[k, 2 * n + m] for m in range(n)] for k in range(n)]
        return np.array(made, float)


def mp_tanh(a):
    up, down = mpmath.expm(a), mpmath.expm(-a)
    return (up - down) * (up + down) ** -1


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(4))
def test_matrices_of_low_rank_whose_zeros_are_roundings(seed):
    draw = np.random.default_rng(seed).normal
    b, v = 0.7 * draw(size=(5, 1)), draw(size=(5, 5))
    a, v = b @ b.T, v + v.T
    known = second(mp_tanh, a, v)
    f = lambda a: safe.matrix_function(a, jnp.tanh)
    along = lambda f: lambda a: jax.jvp(f, (a,), (jnp.asarray(v),))[1]
    close(along(along(f))(jnp.asarray(a)), known, rtol=0, atol=1e-12)
    g = lambda a: safe.spectral_sum(a, jnp.tanh)
    close(hotk.quadratic_form(g, a, v), np.trace(known), rtol=0, atol=1e-11)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("gap", [0.0, 1e-16, 1e-13, 1e-9, 1e-6, 1e-4, 1e-2, 1.0])
def test_eigenvalues_that_nearly_coincide(gap):
    a = np.diag([0.3, 0.3 + gap, 0.3 - gap / 3, 1.0])
    v = np.random.default_rng(5).normal(size=(4, 4))
    v = v + v.T
    f = lambda a: safe.matrix_function(a, jnp.tanh)
    along = lambda f: lambda a: jax.jvp(f, (a,), (jnp.asarray(v),))[1]
    known = second(mp_tanh, a, v)
    close(along(along(f))(jnp.asarray(a)), known, rtol=0, atol=2e-11)
