"""Arrows of small blocks: factors by a Schur complement, against dense matrices."""

import itertools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import hotk
from hotk.sparse import Shifted
from hotk.sparse._elimination import elimination
from hotk.sparse._factors import definite_factors
from hotk.sparse._schur import SchurFactors
from tests.helpers import close


def arrow(seed, *, blocks=20, others=6, holes=0.0, size=None):
    """Return a dense symmetric matrix, its rows in random order."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, blocks) if size is None else np.full(blocks, size)
    widths = rng.integers(1, 4, others)
    ends = np.cumsum([0, *sizes, *widths])
    at = [slice(*pair) for pair in itertools.pairwise(ends)]
    has = np.zeros((ends[-1], ends[-1]))
    for i in range(blocks):
        has[at[i], at[i]] = 1
        for r in rng.choice(others, rng.integers(0, min(3, others) + 1), replace=False):
            has[at[i], at[blocks + r]] = 1
    for r in range(others):
        for q in range(r + 1):
            if r == q or rng.random() < 0.4:
                has[at[blocks + r], at[blocks + q]] = 1
    has *= rng.random(has.shape) >= holes
    has = np.maximum(has, has.T)
    entries = rng.normal(size=has.shape)
    order = rng.permutation(ends[-1])
    return ((entries + entries.T) * has)[np.ix_(order, order)]


def sparse(dense, dtype=np.float64):
    rows, cols = np.nonzero(dense)
    values = dense[rows, cols].astype(dtype)
    return hotk.SparseMatrix.from_coo(values, rows, cols, dense.shape, symmetric=True)


@pytest.fixture
def by_complement(monkeypatch):
    """Take the complement however small the matrix is."""
    monkeypatch.setattr("hotk.sparse._elimination._FASTER", np.inf)


def definite(seed, **options):
    dense = arrow(seed, **options)
    shift = 0.3 - np.linalg.eigvalsh(dense).min()
    return dense + shift * np.eye(len(dense))


CASES = [
    *[{"seed": seed} for seed in range(6)],
    *[{"seed": seed, "holes": 0.1} for seed in range(6, 9)],
    {"seed": 9, "others": 0},
    {"seed": 10, "others": 1, "blocks": 40},
    {"seed": 11, "blocks": 1},
    *[{"seed": seed, "size": seed - 10} for seed in range(11, 15)],
    {"seed": 15, "size": 3, "holes": 0.05},
    {"seed": 16, "size": 3, "blocks": 1},
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.usefixtures("by_complement")
def test_factors_against_dense(case):
    dense = definite(**case)
    A, n = sparse(dense), len(dense)
    assert isinstance(found(A), SchurFactors)
    F = A.cholesky()
    inverse = np.linalg.inv(dense)
    b = np.random.default_rng(0).normal(size=(n, 3))
    for right in (b, b[:, 0], b[:, 0] + 1j * b[:, 1]):
        close(np.asarray(F.solve(right)), inverse @ right, rtol=1e-9)
    assert F.inertia() == (n, 0, 0)
    close(F.logdet(), float(np.linalg.slogdet(dense)[1]), rtol=1e-10)
    close(F.selected_inverse(), inverse[A.rows, A.cols], rtol=1e-8)
    close(F.inverse_diagonal(), np.diag(inverse), rtol=1e-8)
    root = F.inverse_root(np.eye(n))
    close(root @ root.T, inverse, rtol=1e-8)
    close(F.inverse_root(b, transposed=True), root.T @ b, rtol=1e-10)


def found(A):
    return definite_factors(A.pattern, np.asarray(A.values, float))


def laplacian(n, i, j):
    """Return the identity plus that of a graph."""
    ones = np.ones(len(i))
    W = scipy.sparse.coo_array((ones, (i, j)), shape=(n, n)).tocsr()
    degrees = np.asarray((W + W.T).sum(1)).ravel()
    L = scipy.sparse.diags_array(degrees + 1) - W - W.T
    return hotk.SparseMatrix.from_scipy(L, symmetric=True)


def test_effects_of_subjects_beside_common_ones():
    """A mixed model: 500 subjects of two numbers, and six common numbers."""
    own = np.kron(np.eye(500), np.ones((2, 2)) + 2 * np.eye(2))
    common = 0.01 * np.random.default_rng(0).normal(size=(1000, 6))
    dense = np.block([[own, common], [common.T, 50 * np.eye(6) + 1]])
    A = sparse(dense)
    assert isinstance(found(A), SchurFactors)
    close(np.asarray(A.solve(np.ones(1006))), np.linalg.solve(dense, np.ones(1006)))
    assert hotk.sparse.factorization_work(A.pattern) == 500 * 2 * 8**2 + 6**3 / 3
    assert hotk.sparse.is_worth_factors(A.pattern)


def grid(k):
    nodes = np.arange(k * k).reshape(k, k)
    i = np.concatenate([nodes[1:].ravel(), nodes[:, 1:].ravel()])
    j = np.concatenate([nodes[:-1].ravel(), nodes[:, :-1].ravel()])
    return laplacian(k * k, i, j)


@pytest.mark.parametrize(
    "A",
    [
        laplacian(500, np.arange(1, 500), np.arange(499)),
        laplacian(3280, np.arange(1, 3280), (np.arange(1, 3280) - 1) // 3),
        grid(20),
        grid(40),
    ],
    ids=["chain", "tree", "small grid", "grid"],
)
def test_what_sparse_factors_do_better(A):
    """A dense complement takes 10 to 1000 times as long."""
    assert not isinstance(found(A), SchurFactors)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("by_complement")
def test_matrices_that_are_not_definite(seed):
    """They are factorized as others are: right, and counted right."""
    dense = definite(seed, blocks=40)
    values = np.linalg.eigvalsh(dense)
    low = dense - (values[2] + values[3]) / 2 * np.eye(len(dense))
    A = sparse(low)
    b = np.arange(1.0, len(dense) + 1)
    close(np.asarray(A.solve(b)), np.linalg.solve(low, b), rtol=1e-7)
    assert A.factorize().inertia() == (len(dense) - 3, 0, 3)
    with pytest.raises(hotk.NotPositiveDefiniteError):
        A.cholesky()
    assert np.isnan(A.logdet())


@pytest.mark.usefixtures("by_complement")
def test_shifts():
    dense = definite(0, blocks=40)
    A = sparse(dense)
    shifted, b = Shifted(A.pattern, A.values), np.ones(len(dense))
    for shift in (0.0, 0.5, -0.2):
        found = shifted.definite(shift)
        close(found.solve(b), np.linalg.solve(dense + shift * np.eye(len(dense)), b))
    least = np.linalg.eigvalsh(dense)[0]
    assert shifted.definite(-1.01 * least) is None


@pytest.mark.usefixtures("by_complement")
def test_single_precision_is_that_of_the_result():
    dense = definite(1, blocks=40)
    A = sparse(dense, np.float32)
    b = np.ones(len(dense), np.float32)
    x = A.cholesky().solve(b)
    assert x.dtype == jnp.float32
    close(np.asarray(x, float), np.linalg.solve(dense, b), rtol=1e-5)
    assert A.cholesky().selected_inverse().dtype == np.float32


@pytest.mark.usefixtures("by_complement")
def test_derivatives_of_solutions_and_determinants():
    dense = definite(2, blocks=40)
    A, b = sparse(dense), np.linspace(1.0, 2.0, len(dense))
    of = lambda v: hotk.SparseMatrix(v, A.pattern)
    inverse = np.linalg.inv(dense)
    x = inverse @ b
    got = jax.jit(jax.grad(lambda v: jnp.sum(of(v).solve(b))))(A.values)
    by_hand = -(inverse @ np.ones_like(b))[A.rows] * x[A.cols]
    close(np.asarray(got), by_hand, rtol=1e-8)
    got = jax.grad(lambda v: of(v).logdet())(A.values)
    close(np.asarray(got), inverse[A.rows, A.cols], rtol=1e-8)


def small_bundle():
    """Points on a line that are seen by cameras, each with a place and a scale."""
    rng = np.random.default_rng(0)
    cameras, points = 12, 700
    camera = np.stack([rng.permutation(cameras)[:3] for _ in range(points)]).ravel()
    point = np.repeat(np.arange(points), 3)
    place, scale = rng.normal(size=cameras), rng.uniform(1, 2, cameras)
    where = rng.normal(size=(points, 2))
    seen = scale[camera, None] * (where[point] - place[camera, None])

    def residuals(x):
        (p, s), q = x["cameras"][camera].T, x["points"][point]
        return s[:, None] * (q - p[:, None]) - seen

    start = {
        "cameras": jnp.asarray(np.stack([place + 0.1, scale * 1.2], 1)),
        "points": jnp.asarray(where + 0.2),
    }
    return residuals, start


@pytest.mark.exhaustive
@pytest.mark.usefixtures("by_complement")
def test_the_first_step_of_levenberg_and_marquardt():
    residuals, x = small_bundle()
    loss = hotk.curvature.LeastSquares(residuals)
    assert elimination(hotk.sparsity(loss, x)) is not None
    transform = hotk.optim.levenberg_marquardt(
        linear_solver="sparse", scaling=None, max_acceleration=0.0, damping=1e-3
    )
    g = jax.grad(loss)(x)
    step, _ = transform.update(g, transform.init(x), x, residual_fn=residuals)
    flat, back = jax.flatten_util.ravel_pytree(x)
    J = np.asarray(jax.jacobian(lambda z: residuals(back(z)).ravel())(flat))
    gradient = np.asarray(jax.flatten_util.ravel_pytree(g)[0])
    got = np.asarray(jax.flatten_util.ravel_pytree(step)[0])
    # Whatever the damping is, the step solves the system with it.
    rest = -(gradient + J.T @ (J @ got))
    damping = (rest @ got) / (got @ got)
    assert damping > 0
    by_hand = -np.linalg.solve(J.T @ J + damping * np.eye(flat.size), gradient)
    close(got, by_hand, rtol=1e-6)


@pytest.mark.usefixtures("by_complement")
def test_a_fit_finds_the_exact_solution():
    residuals, x = small_bundle()
    loss = hotk.curvature.LeastSquares(residuals)
    assert elimination(hotk.sparsity(loss, x)) is not None
    transform = hotk.optim.levenberg_marquardt(linear_solver="sparse")
    found = hotk.optim.minimize(loss, x, transform, max_steps=50)
    assert float(loss(found.x)) < 1e-16
