"""A sparse matrix as an operator of the solvers, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import hotk
from hotk.linop import SparseOperator
from tests.helpers import close


RNG = np.random.default_rng(0)
DENSE = np.diag(np.arange(2.0, 12.0)) - np.eye(10, k=1) - np.eye(10, k=-1)
A = hotk.SparseMatrix.from_scipy(scipy.sparse.csr_array(DENSE))
B = jnp.asarray(RNG.normal(size=10))


@pytest.mark.exhaustive
def test_solvers_and_estimates_take_it():
    operator = SparseOperator(A)
    expected = np.linalg.solve(DENSE, B)
    for solver in (hotk.linop.cg, hotk.linop.minres, hotk.linop.solve):
        close(solver(operator, B, tol=1e-12).x, expected, rtol=1e-9)
    close(operator.solve(B, method="sparse").x, expected, rtol=1e-9)
    close(operator.eigh(2).values, np.linalg.eigvalsh(DENSE)[-2:], rtol=1e-9)
    shifted = operator + 0.5 * hotk.Identity()
    close(shifted.matrix(), DENSE + 0.5 * np.eye(10))
    close(shifted.cholesky(), np.linalg.cholesky(DENSE + np.eye(10) / 2))
    trace = hotk.estimate.trace(operator, jax.random.key(0), samples=10)
    close(trace.value, np.trace(DENSE))
    factors = operator.inverse(method="solve", tol=1e-12)
    close(factors @ B, expected, rtol=1e-9)


def test_its_vectors_are_those_of_the_hessian():
    f = lambda p: jnp.sum(p["a"] ** 2 * (1 + p["b"] ** 2)) + p["n"] * p["a"][0]
    p = {"a": jnp.array([1.0, 2.0]), "b": jnp.array([0.1, 0.2]), "n": 3}
    operator = SparseOperator(hotk.sparse_hessian(f, p))
    H = hotk.HessianOperator(f, p)
    v = {"a": jnp.array([0.3, 1.0]), "b": jnp.array([-1.0, 0.5]), "n": None}
    close(operator @ v, H @ v)
    close(operator.block("a", "b"), H.block("a", "b"))
    close((operator + H).matrix(), 2 * H.matrix())


def test_a_matrix_that_is_not_symmetric():
    skew = hotk.SparseMatrix.from_coo([1.0, 2.0], [0, 0], [0, 1], (2, 2))
    operator = SparseOperator(skew)
    assert not operator.symmetric
    close(operator @ jnp.array([1.0, 1.0]), np.array([3.0, 0.0]))
    with pytest.raises(TypeError, match="symmetric"):
        hotk.linop.cg(operator, jnp.ones(2))


def test_it_is_a_pytree():
    def solve(a, b):
        return SparseOperator(a).solve(b, tol=1e-12).x

    close(jax.jit(solve)(A.symmetrized(), B), np.linalg.solve(DENSE, B), rtol=1e-9)
    twice = jax.tree.map(lambda a: 2 * a, SparseOperator(A))
    close(twice @ B, 2 * DENSE @ B)


def test_what_is_refused(as_user):
    wide = hotk.SparseMatrix.from_coo([1.0], [0], [0], (2, 3))
    with pytest.raises(hotk.StructureError, match="square"):
        SparseOperator(wide)
    with pytest.raises(TypeError, match="SparseMatrix"):
        SparseOperator(DENSE)
    for solver in (hotk.linop.cg, hotk.linop.minres, hotk.linop.solve):
        with pytest.raises(TypeError, match=r"hotk\.linop\.SparseOperator\(A\)"):
            solver(A, B)
        with pytest.raises(TypeError, match=r"jnp\.linalg"):
            solver(jnp.asarray(DENSE), B)
    with pytest.raises(TypeError, match=r"hotk\.linop\.SparseOperator\(A\)"):
        hotk.linop.eigh(A, 2)
    with pytest.raises(TypeError, match=r"hotk\.linop\.SparseOperator\(A\)"):
        hotk.estimate.trace(A, jax.random.key(0))


@pytest.mark.parametrize(("dtype", "large"), [(np.float32, 1e7), (np.float64, 1e16)])
def test_an_entry_of_another_unit_makes_no_matrix_symmetric(dtype, large):
    """Halves were compared with the largest entry of all, and their mean taken."""
    dense = np.array([[large, 0, 0], [0, 2, 1], [0, 0.3, 2]], dtype)
    places = np.nonzero(dense)
    A = hotk.SparseMatrix.from_coo(dense[places], *places)
    S = hotk.linop.SparseOperator(A)
    assert not S.symmetric
    v = jnp.array([0.0, 1.0, 0.0], dtype)
    close(S @ v, dense @ np.asarray(v))
    with pytest.raises(TypeError, match="not known to be symmetric"):
        S.solve(v)
