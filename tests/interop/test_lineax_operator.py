"""An operator as lineax's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.interop import as_lineax
from tests.counting import compiles
from tests.helpers import close


lineax = pytest.importorskip("lineax")

A = np.random.default_rng(0).normal(size=(8, 8))
SPD = A @ A.T + np.eye(8)
X = np.linspace(-1.0, 1.0, 8)
B = np.linspace(1.0, 2.0, 8)
CG = lineax.CG(rtol=1e-12, atol=1e-12)


def quadratic(x):
    z = jnp.concatenate([x["a"], x["b"].ravel()])
    return 0.5 * z @ (SPD @ z)


def point():
    return {"a": X[:4], "b": X[4:].reshape(2, 2), "n": 3}


def test_a_solution_is_that_of_numpy():
    H = hotk.HessianOperator(quadratic, point())
    operator = as_lineax(H, positive_semidefinite=True)
    b = {"a": jnp.asarray(B[:4]), "b": jnp.asarray(B[4:].reshape(2, 2)), "n": None}
    got = lineax.linear_solve(operator, b, CG).value
    expected = np.linalg.solve(SPD, B)
    expected = {"a": expected[:4], "b": expected[4:].reshape(2, 2), "n": None}
    close(got, expected, rtol=1e-8, atol=1e-8)


def test_products_and_matrix():
    operator = as_lineax(hotk.HessianOperator(lambda x: 0.5 * x @ (SPD @ x), X))
    close(operator.mv(jnp.asarray(B)), SPD @ B)
    close(operator.as_matrix(), SPD)
    close(operator.T.mv(jnp.asarray(B)), SPD @ B)


def test_a_product_that_is_not_symmetric_has_its_transpose():
    H = hotk.HessianOperator(lambda x: 0.5 * x @ (SPD @ x), X)
    operator = as_lineax(H @ hotk.Diagonal(jnp.asarray(B)))
    assert not lineax.is_symmetric(operator)
    close(operator.mv(jnp.asarray(X)), SPD @ (B * X))
    close(operator.T.mv(jnp.asarray(X)), B * (SPD @ X))
    with pytest.raises(ValueError, match="symmetric"):
        as_lineax(H @ hotk.Diagonal(jnp.asarray(B)), positive_semidefinite=True)


def test_tags_are_those_asked_for():
    H = hotk.HessianOperator(lambda x: jnp.sum(x**2), X)
    assert lineax.is_symmetric(as_lineax(H))
    assert not lineax.is_positive_semidefinite(as_lineax(H))
    assert lineax.is_positive_semidefinite(as_lineax(H, positive_semidefinite=True))


def least_squares(loss):
    return hotk.GGNOperator(lambda w: jnp.asarray(A) @ w, loss, jnp.asarray(X))


def test_what_is_known_to_be_positive_semidefinite_is_tagged():
    squares = hotk.curvature.SquaredError(jnp.asarray(B), reduction="sum")
    G = least_squares(squares)
    damped = as_lineax(G + 0.5 * hotk.Identity())
    assert lineax.is_positive_semidefinite(damped)
    got = lineax.linear_solve(damped, jnp.asarray(B), CG).value
    matrix = A.T @ A + 0.5 * np.eye(8)
    close(got, np.linalg.solve(matrix, B), rtol=1e-8)
    F = hotk.FisherOperator(lambda w: jnp.asarray(A) @ w, squares, jnp.asarray(X))
    ones = jnp.ones(8)
    known = (G, F, 2 * G, G + F, G.inverse(0.1), G.linearize(), G @ G)
    known = (*known, hotk.Diagonal(ones), G.restrict(np.arange(8) < 3))
    for operator in known:
        assert operator.positive_semidefinite
        assert lineax.is_positive_semidefinite(as_lineax(operator))
        tagged = as_lineax(operator, positive_semidefinite=False)
        assert not lineax.is_positive_semidefinite(tagged)
    student = least_squares(hotk.curvature.StudentTLoss(jnp.asarray(B)))
    H = hotk.HessianOperator(lambda x: jnp.sum(x**2), jnp.asarray(X))
    function = least_squares(lambda z: jnp.sum(z**2))
    unknown = (H, student, function, -1.0 * G, G - hotk.Identity(), G @ F)
    for operator in (*unknown, hotk.Diagonal(-ones), G + H):
        assert not operator.positive_semidefinite
        assert not lineax.is_positive_semidefinite(as_lineax(operator))


def test_a_factor_that_is_traced_is_not_known():
    G = least_squares(hotk.curvature.SquaredError(jnp.asarray(B)))
    known = []

    @jax.jit
    def f(damping):
        known.append((G + damping * hotk.Identity()).positive_semidefinite)
        return damping

    f(1.0)
    assert known == [False]


@pytest.mark.usefixtures("as_user")
def test_the_error_of_cg_names_the_keyword():
    operator = as_lineax(hotk.HessianOperator(lambda x: jnp.sum(x**4), X))
    for solver in (CG, lineax.Cholesky()):
        with pytest.raises(ValueError, match=r"positive_semidefinite=True"):
            lineax.linear_solve(operator, jnp.asarray(B), solver)
    # no error where lineax only asks, to choose a solver
    got = lineax.linear_solve(operator, jnp.asarray(B)).value
    close(got, B / (12 * X**2), rtol=1e-8)


def test_another_point_needs_no_compile():
    H = hotk.HessianOperator(lambda x: jnp.sum(x**4), X)
    solve = lambda H: lineax.linear_solve(
        as_lineax(H, positive_semidefinite=True), b, CG
    )
    b, x2 = jnp.asarray(B), jnp.asarray(B)
    solve(H)
    second = H.at(x2)
    with compiles() as count:
        got = solve(second).value
    assert count() == 0
    close(got, B / (12 * B**2), rtol=1e-8)


@pytest.mark.usefixtures("as_user")
def test_errors():
    with pytest.raises(TypeError, match="acts on any space"):
        as_lineax(hotk.Identity())
    with pytest.raises(hotk.DtypeError, match="complex"):
        as_lineax(hotk.HessianOperator(lambda z: jnp.sum(abs(z) ** 2), X + 1j))


@pytest.mark.usefixtures("as_user")
def test_an_operator_on_the_host_is_refused():
    loss = lambda w, rows: jnp.mean((rows @ w) ** 2)
    H = hotk.HessianOperator.over(loss, jnp.ones(2), [np.ones((3, 2))])
    with pytest.raises(TypeError, match="a pass over data on the host"):
        as_lineax(H)
