"""Derivatives through operators and solutions are right; through iterations refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


C, B = np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0, 0.5])
M = np.array([[2.0, 0.3, 0.1], [0.3, 1.0, 0.2], [0.1, 0.2, 3.0]])


def make(c):
    return hotk.HessianOperator(lambda x, c: jnp.sum(c * x**4) / 12, jnp.ones(3), c)


def coupled(c):
    """The matrix diag(c) + M."""
    f = lambda x: jnp.sum(c * x**4) / 12 + x @ M @ x / 2
    return hotk.HessianOperator(f, jnp.ones(3))


def inverse(c):
    return np.linalg.inv(np.diag(c) + M)


ITERATIONS = {
    "cg": lambda A, b: hotk.linop.cg(A, b).x,
    "minres": lambda A, b: hotk.linop.minres(A, b).x,
    "steihaug": lambda A, b: hotk.linop.steihaug(A, b, 9.0).x,
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("take", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("run", ITERATIONS.values(), ids=ITERATIONS)
def test_an_iteration_has_no_derivative(run, take, as_user):
    b, c = jnp.asarray(B), jnp.asarray(C)
    with pytest.raises(hotk.ModeError, match=r"hotk\.linop\.solve"):
        take(lambda b: run(make(c), b))(b)
    with pytest.raises(hotk.ModeError, match=r"hotk\.linop\.solve"):
        take(lambda c: run(make(c), b))(c)
    # what is not differentiated may stand inside
    slope = take(lambda t: t * jnp.ravel(run(make(c), b)))(jnp.asarray(2.0))
    np.testing.assert_allclose(np.abs(slope), np.abs(B) / C, rtol=1e-4)


def test_products_and_matrices_have_theirs():
    c = jnp.asarray(C)
    close(jax.jacfwd(lambda c: make(c) @ jnp.asarray(B))(c), np.diag(B))
    close(jax.jacrev(lambda c: make(c) @ jnp.asarray(B))(c), np.diag(B))
    found = jax.jacfwd(lambda c: make(c).matrix())(c)
    close(found, np.einsum("ij,jk->ijk", np.eye(3), np.eye(3)))


# ----- Solutions


ROADS = {
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "jit": lambda f: jax.jit(jax.jacrev(f)),
    "hotk": lambda f: lambda x: hotk.jacobian(f, x),
}
each_road = pytest.mark.parametrize("take", ROADS.values(), ids=ROADS)


@pytest.mark.exhaustive
@each_road
def test_a_solution_by_its_right_hand_side_and_by_its_operator(take):
    """From A x = b, with A = diag(c) + M: dx = inverse(A) (db - dc x)."""
    solve = lambda c, b: coupled(c).solve(b, tol=1e-13).x
    b, c, x = jnp.asarray(B), jnp.asarray(C), inverse(C) @ B
    close(take(lambda b: solve(c, b))(b), inverse(C), rtol=1e-9)
    close(take(lambda c: solve(c, b))(c), -inverse(C) * x, rtol=1e-9)
    several = lambda b: coupled(c).solve(jnp.stack([b, 2 * b]), batched=True, tol=1e-13)
    close(take(lambda b: several(b).x[1])(b), 2 * inverse(C), rtol=1e-9)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("take", [jax.hessian, lambda f: lambda x: hotk.hessian(f, x)])
def test_a_solution_to_second_order(take):
    """With y = B'x and the inverse P: y_jk = x_j P_jk u_k + u_j P_jk x_k, u = P B."""
    y = lambda c: B @ coupled(c).solve(jnp.asarray(np.ones(3)), tol=1e-13).x
    P = inverse(C)
    x, u = P @ np.ones(3), P @ B
    expected = P * (np.outer(u, x) + np.outer(x, u))
    close(take(y)(jnp.asarray(C)), expected, rtol=1e-9)


@pytest.mark.exhaustive
def test_an_indefinite_and_a_complex_system():
    bent = lambda c: hotk.HessianOperator(
        lambda x: c * x[0] ** 2 - x[1] ** 2 + x[0] * x[1], jnp.ones(2)
    )
    b = np.array([1.0, 2.0])
    A, dA = np.array([[1.4, 1.0], [1.0, -2.0]]), np.diag([2.0, 0.0])
    expected = -np.linalg.solve(A, dA @ np.linalg.solve(A, b))
    solve = lambda c: bent(c).solve(jnp.asarray(b), tol=1e-12).x
    close(jax.jacrev(solve)(0.7), expected, rtol=1e-9)
    H = lambda c: hotk.HessianOperator(
        lambda z: c * jnp.sum(jnp.abs(z) ** 2), jnp.ones(1, complex)
    )
    right = jnp.array([1.0 + 2.0j])
    found = jax.jacfwd(lambda c: H(c).solve(right, tol=1e-12).x)(2.0)
    close(found, np.array([-(1.0 + 2.0j) / 8]), rtol=1e-9)


@pytest.mark.exhaustive
def test_the_inverse_and_the_determinant_have_theirs():
    c, b = jnp.asarray(C), jnp.asarray(B)
    P = inverse(C)
    for options in ({}, {"method": "solve", "tol": 1e-12}):
        take = lambda c, options=options: coupled(c).inverse(**options) @ b
        close(jax.jacrev(take)(c), -P * (P @ B), rtol=1e-9)
    logdet = lambda c: 2 * jnp.sum(jnp.log(jnp.diagonal(coupled(c).cholesky())))
    close(jax.grad(logdet)(c), np.diagonal(P))
    close(jax.hessian(logdet)(c), -(P**2))


@pytest.mark.exhaustive
def test_a_system_that_is_not_solved_says_so(as_user):
    f = lambda b, c: coupled(c).solve(b, max_steps=1).x.sum()
    given = jnp.asarray(B), jnp.asarray(C)
    with pytest.raises(hotk.ModeError, match="largest number of steps"):
        jax.grad(f)(*given)
    assert np.isnan(jax.jit(jax.grad(f, 1))(*given)).all()
    singular = lambda b, s: hotk.HessianOperator(
        lambda x: s * x[0] ** 2, jnp.ones(2)
    ).solve(b)
    value, slope = jax.jit(jax.value_and_grad(lambda b: singular(b, 1.0).x.sum()))(
        jnp.array([1.0, 0.0])
    )
    assert value == 0.5
    assert np.isnan(slope).all()  # of (1, 1), which has no solution


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["model", "residual", "curvature"])
def test_other_results_of_a_solver_have_none(name, as_user):
    f = lambda b: jnp.sum(getattr(make(jnp.asarray(C)).solve(b), name))
    with pytest.raises(hotk.ModeError, match=r"solution\.x"):
        jax.grad(f)(jnp.asarray(B))
    assert np.isnan(jax.jvp(f, (jnp.asarray(B),), (jnp.asarray(C),))[1])


# ----- Eigenvalues


@pytest.mark.exhaustive
@each_road
def test_simple_eigenvalues_and_their_vectors(take):
    """By perturbation theory: v' dA v, and a sum over the other vectors."""
    values, V = np.linalg.eigh(np.diag(C) + M)
    pairs = lambda c: coupled(c).eigh(2, tol=1e-13)
    c = jnp.asarray(C)
    close(take(lambda c: pairs(c).values)(c), (V**2).T[1:], rtol=1e-9)

    def by_hand(i):
        """The derivative of (B'v_i)^2 by c."""
        terms = [
            np.outer(B @ V[:, j] * V[:, j], V[:, i]) / (values[i] - values[j])
            for j in range(3)
            if j != i
        ]
        return 2 * (B @ V[:, i]) * np.sum([np.diagonal(t) for t in terms], axis=0)

    squares = lambda c: (pairs(c).vectors @ jnp.asarray(B)) ** 2
    expected = np.stack([by_hand(1), by_hand(2)])
    close(take(squares)(c), expected, rtol=1e-8)


@pytest.mark.exhaustive
def test_eigenvalues_to_second_order_in_any_unit():
    """Of the matrix [[c, 1], [1, 0]]: c / 2 +- sqrt(c^2 / 4 + 1)."""
    for unit in (1.0, 1e20, 1e-20):
        f = lambda x, c, unit=unit: unit * (c * x[0] ** 2 / 2 + x[0] * x[1])
        largest = lambda c, f=f: hotk.HessianOperator(f, jnp.ones(2), c).eigh(1).values
        root = np.sqrt(0.3**2 / 4 + 1)
        first, second = 0.5 + 0.3 / 4 / root, 0.25 / root**3
        close(jax.jacfwd(largest)(0.3) / unit, np.array([first]), rtol=1e-9)
        twice = jax.jit(jax.jacfwd(jax.jacrev(largest)))
        close(twice(0.3) / unit, np.array([second]), rtol=1e-8)


def levels(c):
    """An operator with the eigenvalues c (1, 2, 2, 3)."""
    f = lambda x: c * jnp.sum(jnp.array([1.0, 2.0, 2.0, 3.0]) * x**2) / 2
    return hotk.HessianOperator(f, jnp.ones(4))


@pytest.mark.exhaustive
def test_multiple_eigenvalues_are_refused_by_number(as_user):
    with pytest.raises(hotk.ModeError, match="pairs 1, 2, with the eigenvalues 2, 2"):
        jax.jacfwd(lambda c: levels(c).eigh(4).values)(1.0)
    # the copy is not among those that were asked for
    with pytest.raises(hotk.ModeError, match="pairs 0, with"):
        jax.grad(lambda c: levels(c).eigh(2).values.sum())(1.0)
    expected = np.array([1.0, np.nan, np.nan, 3.0])
    for take in (jax.jacfwd, jax.jacrev):
        close(jax.jit(take(lambda c: levels(c).eigh(4).values))(1.0), expected)
    close(jax.grad(lambda c: levels(c).eigh(1).values[0])(1.0), 3.0)
    with pytest.raises(hotk.ModeError, match="`values` or `vectors`"):
        jax.grad(lambda c: levels(c).eigh(1).residuals[0])(1.0)


@pytest.mark.exhaustive
def test_an_eigenvalue_of_a_large_operator():
    """The largest one of diag(t^2) + c e e', with a vector e, as its secular root."""
    t = np.linspace(0.0, 1.0, 2500)
    e = np.ones(2500) / 50

    def operator(c):
        f = lambda x: jnp.sum(t**2 * x**2) / 2 + c * (e @ x) ** 2 / 2
        return hotk.HessianOperator(f, jnp.ones(2500))

    value, slope = jax.jit(
        jax.value_and_grad(lambda c: operator(c).eigh(1, tol=1e-10).values[0])
    )(2.0)
    # 1 = c sum(e^2 / (lambda - t^2)), so d lambda / dc = 1 / (c^2 sum(e^2 / (...)^2))
    close(2 * np.sum(e**2 / (value - t**2)), 1.0, rtol=1e-8)
    close(slope, 1 / (4 * np.sum(e**2 / (value - t**2) ** 2)), rtol=1e-7)


@pytest.mark.exhaustive
def test_as_users_have_them(default_settings):
    c, b = jnp.asarray(C), jnp.asarray(B)
    found = jax.jacrev(lambda b: coupled(c).solve(b).x)(b)
    np.testing.assert_allclose(found, inverse(C), atol=1e-4)
    found = jax.jacrev(lambda c: coupled(c).eigh(1).values)(c)
    v = np.linalg.eigh(np.diag(C) + M)[1][:, -1]
    np.testing.assert_allclose(found[0], v**2, atol=1e-4)


@pytest.mark.exhaustive
@pytest.mark.parametrize("options", ["tol", "preconditioner"])
def test_inside_of_a_shard_map_a_solver_may_have_arrays(options):
    """A + c I with the data in parts: by the inverse of the whole matrix, NumPy."""
    data, b = np.random.default_rng(0).normal(size=(8, 3)), np.array([1.0, -2.0, 0.5])

    def one(data, c):
        total = lambda x: (
            jax.lax.psum(jnp.sum((data @ x) ** 2) / 2, "d") + c * x @ x / 2
        )
        H = hotk.HessianOperator(total, jnp.zeros(3))
        given = {
            "tol": {"tol": jnp.asarray(1e-13)},
            "preconditioner": {
                "preconditioner": hotk.linop.Diagonal(jnp.ones(3) * (1 + c)),
                "tol": 1e-13,
            },
        }[options]
        return H.solve(jnp.asarray(b), **given).x

    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    parts = jax.P("d"), jax.P()
    run = jax.shard_map(one, mesh=mesh, in_specs=parts, out_specs=jax.P())
    inverse = np.linalg.inv(data.T @ data + 0.3 * np.eye(3))
    of_c = lambda c: run(jnp.asarray(data), c)
    c = jnp.asarray(0.3)
    close(of_c(c), inverse @ b)
    slope = -inverse @ inverse @ b
    close(jax.jvp(of_c, (c,), (jnp.ones(()),))[1], slope)
    close(jax.jit(jax.jacrev(of_c))(c), slope)
