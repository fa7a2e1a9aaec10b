"""Sparse derivatives for SciPy and IPOPT: against dense JAX and known solutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse

from hotk.interop import _scipy_problem, ipopt_problem, scipy_problem, scipy_residuals
from tests.counting import compiles
from tests.helpers import close


N = 60
Z = np.cos(np.arange(N))


def residuals(x):
    """The chained function of Rosenbrock: both sums vanish at ones."""
    return {"chain": 10 * (x[1:] - x[:-1] ** 2), "ends": 1 - x[:-1]}


def flat(x):
    values = residuals(x)
    return jnp.concatenate([values["chain"], values["ends"]])


def value(x):
    return jnp.sum(flat(x) ** 2)


@pytest.mark.exhaustive
def test_residuals_and_their_derivatives():
    problem = scipy_residuals(residuals, jnp.zeros(N))
    assert (problem.n, problem.m) == (N, 2 * N - 2)
    close(problem.fun(Z), np.asarray(flat(Z)))
    jacobian = problem.jac(Z)
    assert scipy.sparse.issparse(jacobian)
    assert jacobian.nnz == 3 * (N - 1)
    close(jacobian.toarray(), np.asarray(jax.jacobian(flat)(Z)))
    v = np.arange(problem.m) / 7
    second = problem.hess(Z, v)
    assert scipy.sparse.issparse(second)
    close(second.toarray(), np.asarray(jax.hessian(lambda x: v @ flat(x))(Z)))
    problem.fun(Z)[:] = 0  # results are the caller's
    close(problem.fun(Z), np.asarray(flat(Z)))
    with compiles() as count:
        problem.jac(Z + 1), problem.hess(Z + 1, v)
    assert count() == 0


def test_trees_of_points_and_dense_jacobians():
    r = lambda p: p["a"] * jnp.sum(p["b"]) + p["n"]
    problem = scipy_residuals(r, {"a": jnp.ones(3), "b": jnp.ones(4), "n": 2})
    jacobian = problem.jac(np.arange(7.0))
    assert type(jacobian) is np.ndarray
    a, b = np.arange(3.0), np.arange(3.0, 7.0)
    close(jacobian, np.hstack([b.sum() * np.eye(3), a[:, None] * np.ones(4)]))
    assert problem.unravel(problem.x0)["n"] == 2


def test_least_squares_finds_the_known_solution():
    problem = scipy_residuals(residuals, jnp.full(N, 0.5))
    result = problem.solve(xtol=1e-12, ftol=1e-12)
    assert result.success
    close(result.tree, np.ones(N), rtol=1e-7)


def test_constraints_and_a_sparse_hessian_for_trust_constr(monkeypatch):
    """The nearest point to 2 with neighbours whose product is one: all are one."""
    monkeypatch.setattr(_scipy_problem, "_LARGE", 10)
    f = lambda x: jnp.sum((x - 2.0) ** 4) / 4
    objective = scipy_problem(f, jnp.full(N, 1.3))
    sparse = objective.sparse_hess(Z)
    assert scipy.sparse.issparse(sparse)
    close(sparse.toarray(), np.diag(3 * (Z - 2) ** 2))
    products = scipy_residuals(lambda x: x[1:] * x[:-1], jnp.ones(N))
    one = scipy.optimize.NonlinearConstraint(
        products.fun, 1.0, 1.0, jac=products.jac, hess=products.hess
    )
    seen = []
    monkeypatch.setattr(
        objective, "hessp", lambda *given: seen.append(given), raising=False
    )
    result = objective.minimize("trust-constr", constraints=one, gtol=1e-8)
    assert not seen
    close(result.x, np.ones(N), atol=1e-4)


def test_auxiliary_output():
    f = lambda x: (value(x), {"norm": jnp.sum(x**2)})
    problem = scipy_problem(f, jnp.zeros(N), has_aux=True)
    close(problem.sparse_hess(Z).toarray(), np.asarray(jax.hessian(value)(Z)))


def check_ipopt(problem, objective, constraints, z, weights, factor):
    """Compare structures and values with dense JAX."""
    n, m = problem.n, problem.m
    jacobian = np.zeros((m, n))
    rows, columns = problem.jacobianstructure()
    jacobian[rows, columns] = problem.jacobian(z)
    close(jacobian, np.asarray(jax.jacobian(constraints)(z)).reshape(m, n))
    close(problem.constraints(z), np.asarray(constraints(z)).ravel())
    rows, columns = problem.hessianstructure()
    assert (rows >= columns).all()
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == rows.size
    triangle = np.zeros((n, n))
    triangle[rows, columns] = problem.hessian(z, weights, factor)
    total = lambda x: (
        factor * objective(x)
        + jnp.sum(weights.reshape(constraints(x).shape) * constraints(x))
    )
    close(triangle, np.tril(np.asarray(jax.hessian(total)(z))))
    return rows.size


def test_structures_and_values_for_ipopt():
    g = lambda x: x[1:-1] * x[2:] - jnp.sin(x[:-2])
    weights = np.linspace(-1.0, 2.0, N - 2)
    problem = ipopt_problem(value, Z, constraints=g, sparse=True)
    close(problem.objective(Z), float(value(Z)))
    entries = check_ipopt(problem, value, g, Z, weights, 0.5)
    assert entries == 2 * N - 1
    assert problem.jacobian(Z).size == 3 * (N - 2)
    # zero multipliers and another point: structures hold for all
    check_ipopt(problem, value, g, 0 * Z, 0 * weights, 0.0)
    with compiles() as count:
        problem.jacobian(Z + 1), problem.hessian(Z + 1, weights, 2.0)
    assert count() == 0


def test_ipopt_problems_are_sparse_from_some_size_on():
    g = lambda x: x[1:] - x[:-1] ** 2
    large = ipopt_problem(lambda x: jnp.sum(x**4), np.ones(200), constraints=g)
    assert large.jacobianstructure()[0].size == 2 * 199
    assert large.hessianstructure()[0].size == 200
    small = ipopt_problem(lambda x: jnp.sum(x**4), np.ones(20), constraints=g)
    assert small.jacobianstructure()[0].size == 20 * 19
    assert small.hessianstructure()[0].size == 210
    free = ipopt_problem(lambda x: jnp.sum(x**4), np.ones(200))
    assert free.jacobianstructure()[0].size == 0
    assert free.jacobian(np.ones(200)).size == 0


def test_single_precision_gives_double():
    with pytest.warns(Warning, match="float32"):
        problem = scipy_residuals(residuals, jnp.zeros(N, jnp.float32))
    assert problem.jac(Z).dtype == np.float64
    np.testing.assert_allclose(problem.fun(Z), flat(Z), rtol=1e-5, atol=1e-5)
