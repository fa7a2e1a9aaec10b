"""An operator as SciPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg

import hotk
from hotk.interop import as_scipy
from tests.counting import compiles
from tests.helpers import close


A = np.random.default_rng(0).normal(size=(12, 12))
SPD = A @ A.T + np.eye(12)
X = np.linspace(-1.0, 1.0, 12)


def quadratic(x):
    return 0.5 * x @ (SPD @ x)


def cubic(x):
    return jnp.sum(x["u"] ** 3) * x["w"][0, 0] + jnp.sum(x["w"] ** 4)


def tree():
    return {"n": jnp.array([7]), "u": np.array([1.0, 2.0]), "w": jnp.array([[3.0]])}


def test_products_are_those_with_the_matrix():
    operator = as_scipy(hotk.HessianOperator(quadratic, X))
    rows = np.random.default_rng(1).normal(size=(12, 5))
    assert isinstance(operator, scipy.sparse.linalg.LinearOperator)
    assert operator.shape == (12, 12)
    assert operator.dtype == np.float64
    close(operator.matvec(X), SPD @ X)
    close(operator.matmat(X[:, None]), (SPD @ X)[:, None])
    close(operator.matmat(rows), SPD @ rows)
    close(operator.rmatvec(X), SPD @ X)
    close(operator.rmatmat(rows), SPD @ rows)
    close(operator.H @ X, SPD @ X)


def test_of_a_tree_in_the_order_of_the_index():
    H = hotk.HessianOperator(cubic, tree())
    operator = as_scipy(H)
    expected = np.array([[18.0, 0, 3], [0, 36, 12], [3, 12, 108]])
    close(operator @ np.eye(3), expected)
    close(operator @ np.array([1.0, -1.0, 2.0]), expected @ [1.0, -1.0, 2.0])
    close(np.asarray(H.matrix()), expected)


def test_complex_leaves_are_pairs_of_real_numbers():
    z = np.array([1 + 2j, -0.5 + 1j])
    f = lambda z: (z[0] ** 2 * z[1]).real + jnp.sum(z.real**3 * z.imag)
    flat = lambda x: f(jax.lax.complex(x[:2], x[2:]))
    expected = jax.jit(jax.hessian(flat))(np.append(z.real, z.imag))
    close(as_scipy(hotk.HessianOperator(f, z)) @ np.eye(4), np.asarray(expected))


def test_mixed_dtypes_come_back_in_double_precision():
    x = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(1, jnp.float32)}
    f = lambda x: jnp.sum(x["a"].astype("f4") ** 3) + jnp.sum(x["b"] ** 4)
    operator = as_scipy(hotk.HessianOperator(f, x))
    for got in (operator @ np.array([1.0, 2, 3]), operator @ np.diag([1.0, 2, 3])):
        assert got.dtype == np.float64
    assert got.tolist() == [[6.0, 0, 0], [0, 12.0, 0], [0, 0, 36.0]]


def test_outputs_are_arrays_of_their_own_and_inputs_are_copied():
    operator = as_scipy(hotk.HessianOperator(quadratic, X))
    v, rows = X.copy(), np.eye(12)
    for got in (operator.matvec(v), operator.matmat(rows)):
        assert type(got) is np.ndarray
        assert got.flags.writeable
        got[:] = 0.0
    v *= 2
    rows *= 3
    close(operator.matvec(v), 2 * SPD @ X)
    close(operator.matmat(rows), 3 * SPD)
    close(operator.matvec(np.arange(12)), SPD @ np.arange(12.0))


def test_scipy_solves_and_finds_eigenvalues():
    operator = as_scipy(hotk.HessianOperator(quadratic, X))
    solution, failed = scipy.sparse.linalg.cg(operator, X, rtol=1e-12)
    assert failed == 0
    np.testing.assert_allclose(solution, np.linalg.solve(SPD, X), rtol=1e-8)
    values = np.linalg.eigvalsh(SPD)
    found = scipy.sparse.linalg.eigsh(operator, 3, return_eigenvectors=False)
    np.testing.assert_allclose(np.sort(found), values[-3:], rtol=1e-10)
    start = np.random.default_rng(2).normal(size=(12, 2))
    found, _ = scipy.sparse.linalg.lobpcg(operator, start, tol=1e-8, maxiter=200)
    np.testing.assert_allclose(np.sort(found), values[-2:], rtol=1e-8)


def test_only_a_symmetric_operator_has_a_transpose():
    H = hotk.HessianOperator(quadratic, X)
    product = as_scipy(H @ hotk.Diagonal(jnp.asarray(X)))
    close(product @ X, SPD @ (X * X))
    with pytest.raises(NotImplementedError):
        product.rmatvec(X)
    damped = as_scipy(H + 0.5 * hotk.Identity())
    close(damped.rmatvec(X), SPD @ X + 0.5 * X)


def test_another_point_needs_no_compile():
    H = hotk.HessianOperator(lambda x: jnp.sum(x**4), X)
    as_scipy(H) @ X
    second = as_scipy(H.at(2 * X))
    with compiles() as count:
        got = second @ X
    assert count() == 0
    close(got, 48 * X**3)


def test_what_is_not_finite_comes_through():
    operator = as_scipy(hotk.HessianOperator(lambda x: jnp.sum(x**4), X[:2]))
    assert np.isnan(operator @ np.array([np.nan, 1.0])).tolist() == [True, False]


@pytest.mark.usefixtures("as_user")
def test_errors():
    with pytest.raises(TypeError, match="acts on any space"):
        as_scipy(hotk.Identity())
    operator = as_scipy(hotk.HessianOperator(quadratic, X))
    with pytest.raises(hotk.DtypeError, match="complex"):
        operator @ (X + 1j)
    with pytest.raises(ValueError, match="mismatch"):
        operator @ np.ones(3)


def test_an_operator_over_batches_of_data():
    rows = np.arange(20.0).reshape(10, 2) / 10
    loss = lambda w, rows: jnp.mean((rows @ w) ** 2) / 2
    H = hotk.HessianOperator.over(loss, jnp.ones(2), [rows[:4], rows[4:8], rows[8:]])
    np.testing.assert_allclose(as_scipy(H) @ np.eye(2), rows.T @ rows / 10, rtol=1e-12)
    np.testing.assert_allclose(
        as_scipy(H) @ np.ones(2), rows.T @ rows @ np.ones(2) / 10, rtol=1e-12
    )
