"""Arrows of small blocks: factors by a Schur complement, against dense matrices."""

import itertools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.sparse import Shifted
from hotk.sparse._factors import definite_factors
from hotk.sparse._schur import SchurFactors
from tests.helpers import close


def arrow(seed, *, blocks=20, others=6, holes=0.0):
    """Return a dense symmetric matrix, its rows in random order."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 5, blocks)
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
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_factors_against_dense(case):
    dense = definite(**case)
    A, n = sparse(dense), len(dense)
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


@pytest.mark.parametrize("seed", range(4))
def test_that_the_complement_is_used(seed):
    dense = definite(seed, blocks=40)
    A = sparse(dense)
    found = definite_factors(A.pattern, np.asarray(A.values))
    assert isinstance(found, SchurFactors)
    chain = hotk.sparse_hessian(lambda x: jnp.sum((x[1:] - x[:-1]) ** 4), jnp.ones(500))
    chain = chain + 1.0 * hotk.sparse.identity(chain)
    found = definite_factors(chain.pattern, np.asarray(chain.values))
    assert found is not None
    assert not isinstance(found, SchurFactors)


@pytest.mark.parametrize("seed", range(4))
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


def test_shifts():
    dense = definite(0, blocks=40)
    A = sparse(dense)
    shifted, b = Shifted(A.pattern, A.values), np.ones(len(dense))
    for shift in (0.0, 0.5, -0.2):
        found = shifted.definite(shift)
        close(found.solve(b), np.linalg.solve(dense + shift * np.eye(len(dense)), b))
    least = np.linalg.eigvalsh(dense)[0]
    assert shifted.definite(-1.01 * least) is None


def test_single_precision_is_that_of_the_result():
    dense = definite(1, blocks=40)
    A = sparse(dense, np.float32)
    b = np.ones(len(dense), np.float32)
    x = A.cholesky().solve(b)
    assert x.dtype == jnp.float32
    close(np.asarray(x, float), np.linalg.solve(dense, b), rtol=1e-5)
    assert A.cholesky().selected_inverse().dtype == np.float32


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


def test_the_first_step_of_levenberg_and_marquardt():
    residuals, x = small_bundle()
    loss = hotk.curvature.LeastSquares(residuals)
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


def test_a_fit_finds_the_exact_solution():
    residuals, x = small_bundle()
    loss = hotk.curvature.LeastSquares(residuals)
    transform = hotk.optim.levenberg_marquardt()
    found = hotk.optim.minimize(loss, x, transform, max_steps=50)
    assert float(loss(found.x)) < 1e-16


def test_the_work_is_that_of_the_complement():
    """Of blocks b by b that meet k rows each: b (b + k)^2; and a dense rest."""
    blocks, b, others = 500, 2, 30
    rng = np.random.default_rng(0)
    rows, cols = [], []
    for i in range(blocks):
        own = [b * i, b * i + 1]
        met = [b * blocks + int(r) for r in rng.permutation(others)[:3]]
        for r in own:
            for c in own + met:
                rows += [r, c]
                cols += [c, r]
    rows += range(b * blocks + others)
    cols += range(b * blocks + others)
    pairs = np.unique(np.stack([rows, cols], 1), axis=0)
    n = b * blocks + others
    pattern = hotk.sparse.Pattern(pairs[:, 0], pairs[:, 1], (n, n), symmetric=True)
    work = hotk.sparse.factorization_work(pattern)
    assert work == blocks * b * (b + 3) ** 2 + others**3 / 3
    assert hotk.sparse.is_worth_factors(pattern)
