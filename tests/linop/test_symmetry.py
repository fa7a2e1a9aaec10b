"""Factorizations want a symmetric, finite matrix: what is known to be one, and refusal.

Right numbers are NumPy's, of matrices that are written down.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.linop import SparseOperator, Symmetric
from tests.helpers import close


KEY = jax.random.key(0)
ROWS = np.array([[2.0, 1.0, 0.0], [1.0, 3.0, 0.5], [0.0, 0.5, 4.0]])
D = np.array([1.0, 10.0, 0.5])
LOWER = np.array([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [0.0, -1.0, 3.0]])


def hessian(rows=ROWS):
    rows = jnp.asarray(rows)
    return hotk.HessianOperator(lambda x: x @ rows @ x / 2, jnp.zeros(3))


def sparse(rows):
    at = np.nonzero(rows)
    return hotk.sparse.SparseMatrix.from_coo(rows[at], *at, shape=(3, 3))


class Own(hotk.linop.AbstractOperator):
    like, symmetric = np.zeros(3), False
    mv = lambda self, v: jnp.asarray(ROWS * D) @ v


POTENTIAL = lambda x: x @ jnp.asarray(ROWS) @ x / 2
APPROXIMATION = hotk.statistics.laplace_approximation
FACTORIZATIONS = {
    "cholesky": lambda A: A.cholesky(),
    "sparse cholesky": lambda A: A.cholesky(method="sparse"),
    "inertia": lambda A: A.inertia(),
    "inverse": lambda A: A.inverse(),
    "inverse by iteration": lambda A: A.inverse(method="solve"),
    "eigh": lambda A: A.eigh(1),
    "solve": lambda A: A.solve(jnp.ones(3)),
    "cg": lambda A: hotk.linop.cg(A, jnp.ones(3)),
    "minres": lambda A: hotk.linop.minres(A, jnp.ones(3)),
    "steihaug": lambda A: hotk.linop.steihaug(A, jnp.ones(3), 1.0),
    "nystrom": lambda A: hotk.linop.nystrom(A, 2, KEY),
    "leaf blocks": lambda A: hotk.linop.LeafBlocks.of(A),
    "logdet": lambda A: hotk.estimate.logdet(A, KEY),
    "spectrum": lambda A: hotk.estimate.spectrum(A, KEY),
    **{
        f"laplace, {form}": lambda A, form=form: APPROXIMATION(
            POTENTIAL, jnp.zeros(3), form=form, curvature=A, prior_precision=1.0, rank=1
        )
        for form in ("full", "block", "diagonal", "lanczos")
    },
}
NOT_SYMMETRIC = {
    "product": lambda: hessian() @ hotk.Diagonal(jnp.asarray(D)),
    "sum": lambda: hessian() + hessian() @ hotk.Diagonal(jnp.asarray(D)),
    "restricted": lambda: (hessian() @ hotk.Diagonal(jnp.asarray(D))).restrict(""),
    "own": Own,
    "sparse": lambda: SparseOperator(sparse(ROWS * D)),
    "no congruence": lambda: (
        SparseOperator(sparse(LOWER)) @ hessian() @ SparseOperator(sparse(LOWER))
    ),
}


@pytest.mark.thinned(14)
@pytest.mark.parametrize("factorize", FACTORIZATIONS.values(), ids=FACTORIZATIONS)
def test_an_operator_that_is_not_symmetric_is_refused(factorize):
    for make in NOT_SYMMETRIC.values():
        with pytest.raises(TypeError, match="not known to be symmetric"):
            factorize(make())
        with pytest.raises(TypeError, match="not known to be symmetric"):
            jax.jit(lambda A: jax.tree.leaves(factorize(A)))(make())
    with pytest.raises(TypeError, match="not an operator"):
        hotk.linop.check_symmetric("f(A)", jnp.eye(3))


def test_a_curvature_that_is_an_array_is_refused():
    with pytest.raises(TypeError, match="not an operator"):
        APPROXIMATION(POTENTIAL, jnp.zeros(3), curvature=jnp.eye(3))


def congruences():
    """Return operators with their matrices."""
    H, E = hessian(), hotk.Diagonal(jnp.asarray(D))
    L, R = SparseOperator(sparse(LOWER)), SparseOperator(sparse(LOWER).T)
    again = hotk.Diagonal(E.entries)
    d = np.diag(D)
    return {
        "D H D": (E @ H @ E, d @ ROWS @ d),
        "D (H D)": (E @ (H @ E), d @ ROWS @ d),
        "D H D of the same array": (E @ H @ again, d @ ROWS @ d),
        "L' H L": (R @ H @ L, LOWER.T @ ROWS @ LOWER),
        "L H L'": (L @ H @ R, LOWER @ ROWS @ LOWER.T),
        "L' D H D L": (R @ E @ H @ E @ L, LOWER.T @ d @ ROWS @ d @ LOWER),
        "H H": (H @ H, ROWS @ ROWS),
        "L' L": (R @ L, LOWER.T @ LOWER),
        "with identities": (E @ H @ hotk.Identity() @ E, d @ ROWS @ d),
        "a sum": (E @ H @ E + H, d @ ROWS @ d + ROWS),
        "asserted": (
            Symmetric(hotk.Diagonal(jnp.full(3, 2.0)) @ H),
            2 * ROWS,
        ),
    }


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", congruences())
def test_congruences_are_symmetric(name):
    A, rows = congruences()[name]
    assert A.symmetric
    close(A.matrix(), jnp.asarray(rows))
    close(A.eigh(3).values, jnp.asarray(np.linalg.eigvalsh(rows)), rtol=1e-8)
    b = np.array([1.0, -2.0, 0.5])
    close(A.solve(b, tol=1e-12).x, jnp.asarray(np.linalg.solve(rows, b)), rtol=1e-8)
    factor = A.cholesky()
    close(factor, jnp.asarray(np.linalg.cholesky(rows)))
    assert tuple(map(int, A.inertia())) == (3, 0, 0)
    found = hotk.estimate.logdet(A, KEY)
    close(float(found.value), float(np.linalg.slogdet(rows)[1]), rtol=1e-8)
    # it is known inside of a transformation as well, where the arrays are traced
    x = jax.jit(lambda A, b: A.solve(b, tol=1e-12).x)(A, jnp.asarray(b))
    close(x, jnp.asarray(np.linalg.solve(rows, b)), rtol=1e-8)


def test_only_a_congruence_of_a_semidefinite_operator_is_known_to_be_one():
    E, H = hotk.Diagonal(jnp.asarray(D)), hessian()
    L, R = SparseOperator(sparse(LOWER)), SparseOperator(sparse(LOWER).T)
    assert (R @ E @ L).positive_semidefinite
    assert (R @ L).positive_semidefinite
    assert (H @ H).positive_semidefinite
    assert not (E @ H @ E).positive_semidefinite
    assert not (E @ H).positive_semidefinite


FINITE = {
    "Hessian": lambda bad: hessian(ROWS * bad),
    "diagonal": lambda bad: hotk.Diagonal(jnp.asarray(D * bad)),
    "sparse": lambda bad: SparseOperator(sparse(np.diag(D) * bad).symmetrized()),
    "sum": lambda bad: hessian() + hotk.Diagonal(jnp.asarray(D * bad)),
}
NEED_FINITE = {
    "cholesky": (lambda A: A.cholesky(), hotk.NotPositiveDefiniteError),
    "inverse": (lambda A: A.inverse(method="cholesky"), ValueError),
    "inertia": (lambda A: A.inertia(), ValueError),
    "logdet": (
        lambda A: hotk.estimate.logdet(A, KEY),
        hotk.NotPositiveDefiniteError,
    ),
    "laplace": (
        lambda A: APPROXIMATION(POTENTIAL, jnp.zeros(3), curvature=A),
        hotk.NotPositiveDefiniteError,
    ),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize(
    ("factorize", "error"), NEED_FINITE.values(), ids=list(NEED_FINITE)
)
def test_a_matrix_that_is_not_finite_is_refused(factorize, error, name, bad):
    bad = np.array([1.0, bad, 1.0])
    with pytest.raises(error, match="not finite") as caught:
        factorize(FINITE[name](bad))
    assert "multiple of the identity" not in str(caught.value)


def test_inertia_of_what_is_not_finite_inside_of_a_transformation():
    count = jax.jit(lambda A: A.inertia())
    assert tuple(map(int, count(hessian()))) == (3, 0, 0)
    nowhere = count(hotk.Diagonal(jnp.asarray([1.0, np.nan, 2.0])))
    assert tuple(map(int, nowhere)) == (-1, -1, -1)


def test_the_cholesky_factor_of_no_dimension():
    H = hotk.HessianOperator(lambda x: jnp.sum(x**2), jnp.zeros(0))
    assert H.cholesky().shape == (0, 0)
    assert tuple(map(int, H.inertia())) == (0, 0, 0)
