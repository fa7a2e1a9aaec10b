"""Operators whose matrix is sparse: the matrix, solutions, inertia, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg

import hotk
from hotk.linop import Method, Reason, _sparse, solve
from tests.counting import compiles, traces
from tests.helpers import close
from tests.sparse.matrices import free_framework


N = 240
T = np.linspace(0.0, 1.0, N)


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Let the operators here count as large: the dense way is the oracle."""
    monkeypatch.setattr(_sparse, "LEAST", 200)


def springs(x):
    """A chain: its Hessian is tridiagonal."""
    return jnp.sum((x[1:] - x[:-1]) ** 2) / 2 + jnp.sum(x**2 * T) / 2


def stiffness(n=N, diagonal=T):
    """The Hessian of the chain, by hand."""
    main = np.full(n, 2.0)
    main[[0, -1]] = 1.0
    off = -np.ones(n - 1)
    return scipy.sparse.diags([off, main + diagonal, off], [-1, 0, 1], format="csc")


def test_the_matrix_in_all_forms():
    H, K = hotk.HessianOperator(springs, jnp.zeros(N)), stiffness()
    assert H.sparse().pattern.symmetric
    assert abs(H.sparse().to_scipy("csc") - K).max() < 1e-15
    close(H.matrix(), K.toarray())
    close(H.diagonal(), K.diagonal())
    close(H.matrix(block_size=50), K.toarray())
    close(jax.jit(lambda H: H.sparse().values.sum())(H), np.array(K.sum()), rtol=1e-12)


@pytest.mark.exhaustive
def test_trees_filters_and_parts():
    f = lambda p: springs(p["u"]) + p["c"] * jnp.sum(p["u"] ** 2) / 2
    point = {"u": jnp.asarray(T) + 1, "c": jnp.array(3.0), "name": "x"}
    K = stiffness(diagonal=T + 3.0)
    for H in (
        hotk.HessianOperator(f, point, where={"u": True, "c": False, "name": False}),
        hotk.HessianOperator(f, point).restrict("u"),
    ):
        assert H.sparse().shape == (N, N)
        assert abs(H.sparse().to_scipy("csc") - K).max() < 1e-15
        close(H.diagonal()["u"], K.diagonal())
        assert H.diagonal()["c"] is None
    whole = hotk.HessianOperator(f, point)
    assert whole.sparse().shape == (N + 1, N + 1)
    b = jax.tree.map(jnp.ones_like, hotk.linop.space_of(whole))
    found = whole.solve(b, method="sparse")
    close((whole @ found.x)["u"], np.ones(N), atol=1e-8)


def test_sums_and_multiples_are_sparse_too():
    H = hotk.HessianOperator(springs, jnp.zeros(N))
    D = hotk.Diagonal(jnp.asarray(T))
    A = 2 * H - D / 2 + 0.5 * hotk.Identity()
    K = 2 * stiffness() - scipy.sparse.diags(T / 2) + 0.5 * scipy.sparse.identity(N)
    close(A.matrix(), K.toarray())
    b = np.cos(T)
    found = A.solve(b)
    assert found.method == Method.sparse
    close(found.x, scipy.sparse.linalg.spsolve(K.tocsc(), b), rtol=1e-9)
    close(
        H.inverse(0.25, "solve") @ b,
        np.linalg.solve(stiffness().toarray() + 0.25 * np.eye(N), b),
        rtol=1e-6,
    )


def test_a_definite_system():
    H, b = hotk.HessianOperator(springs, jnp.zeros(N)), np.cos(7 * T)
    expected = scipy.sparse.linalg.spsolve(stiffness(), b)
    for found in (H.solve(b), H.solve(b, method="sparse")):
        assert found.method == Method.sparse
        assert found.converged
        assert found.definite
        assert int(found.iterations) == 0
        close(found.x, expected, rtol=1e-8)
        np.testing.assert_allclose(found.model, -expected @ b / 2, rtol=1e-9)
        assert 0 < float(found.curvature) < 5
    iterated = H.solve(b, method="iterative", tol=1e-10)
    assert iterated.method == Method.cg
    close(iterated.x, expected, rtol=1e-5, atol=1e-7)
    many = H.solve(np.stack([b, 2 * b]), method="sparse", batched=True)
    close(many.x, np.stack([expected, 2 * expected]), rtol=1e-8)
    assert many.converged.tolist() == [True, True]


def test_several_right_hand_sides_share_the_factors(monkeypatch):
    made = []

    class Counted(_sparse.Factorization):
        def __init__(self, *args):
            made.append(self)
            super().__init__(*args)

    monkeypatch.setattr(_sparse, "Factorization", Counted)
    rights = np.stack([np.cos(k * T) for k in range(4)])
    H, K = hotk.HessianOperator(springs, jnp.zeros(N)), stiffness().toarray()
    several = lambda b: H.solve(b, method="sparse", batched=True)
    for solve_all in (several, jax.jit(several)):
        made.clear()
        found = solve_all(rights)
        jax.block_until_ready(found.x)
        assert len(made) == 1
        expected = np.linalg.solve(K, rights.T).T
        close(found.x, expected, rtol=1e-8)
        np.testing.assert_allclose(
            found.curvature, np.sum(rights * expected, 1) / np.sum(expected**2, 1)
        )


def test_an_indefinite_system_says_so():
    c = 0.1
    f = lambda x: springs(x) - c * jnp.sum(x**2)
    H, b = hotk.HessianOperator(f, jnp.zeros(N)), np.cos(7 * T)
    K = stiffness(diagonal=T - 2 * c)
    for found in (H.solve(b), H.solve(b, method="sparse")):
        assert found.converged
        assert not found.definite
        close(found.x, scipy.sparse.linalg.spsolve(K, b), rtol=1e-7)
        p = np.asarray(found.direction)
        np.testing.assert_allclose(p @ (K @ p) / (p @ p), found.curvature, rtol=1e-6)
        assert float(found.curvature) < 0


def test_no_pivot_on_the_diagonal():
    """Saddle points of pairs: each diagonal entry is zero."""
    f = lambda x: jnp.sum(x[::2] * x[1::2])
    b = np.arange(N) + 1.0
    found = hotk.HessianOperator(f, jnp.zeros(N)).solve(b, method="sparse")
    assert found.converged
    assert not found.definite
    close(found.x, b.reshape(-1, 2)[:, ::-1].ravel())


@pytest.mark.exhaustive
def test_a_singular_system_is_left_to_least_squares():
    """The chain that nothing holds: constants are in its kernel."""
    f = lambda x: jnp.sum((x[1:] - x[:-1]) ** 2) / 2
    H = hotk.HessianOperator(f, jnp.zeros(40))
    b = np.arange(40.0)
    for run in (
        lambda H, b: H.solve(b, method="sparse"),
        jax.jit(lambda H, b: H.solve(b, method="sparse")),
    ):
        found = run(H, jnp.asarray(b))
        residual = b - np.asarray(H.matrix()) @ np.asarray(found.x)
        if found.reason == Reason.converged:  # rounding may make it regular
            pytest.fail("a system without a solution was called solved")
        assert found.reason in (Reason.least_squares, Reason.stagnated)
        if found.reason == Reason.least_squares:
            close(residual, np.full(40, b.mean()), rtol=1e-4)


@pytest.mark.exhaustive
def test_within_transformations():
    H, b = hotk.HessianOperator(springs, jnp.zeros(N)), jnp.cos(7 * T)
    expected = scipy.sparse.linalg.spsolve(stiffness(), np.asarray(b))
    run = lambda H, b: H.solve(b, method="sparse").x
    close(jax.jit(run)(H, b), expected, rtol=1e-8)
    several = jax.vmap(run, (None, 0))(H, jnp.stack([b, -b]))
    close(several, np.stack([expected, -expected]), rtol=1e-8)
    # the matrix is symmetric: the derivative of the sum is the solution for ones
    slope = jax.jit(jax.grad(lambda b: run(H, b).sum()))(b)
    expected = scipy.sparse.linalg.spsolve(stiffness(), np.ones(N))
    close(slope, expected, rtol=1e-8)


@pytest.mark.exhaustive
def test_inertia_and_cholesky():
    for c in (0.0, 0.05, 0.3):
        f = lambda x, c=c: springs(x) - c * jnp.sum(x**2)
        H = hotk.HessianOperator(f, jnp.zeros(N))
        values = np.linalg.eigvalsh(stiffness(diagonal=T - 2 * c).toarray())
        counts = (values > 0).sum(), 0, (values < 0).sum()
        assert tuple(int(n) for n in hotk.linop.inertia(H)) == counts
        if c:
            with pytest.raises(hotk.NotPositiveDefiniteError):
                H.cholesky(method="sparse")
        factors = H.cholesky(damping=2 * c, method="sparse")
        b = np.cos(T)
        expected = scipy.sparse.linalg.spsolve(stiffness(), b)
        close(factors.solve(b), expected, rtol=1e-8)


def test_indices_are_known_and_others_give_another_pattern():
    def of(edges):
        f = lambda x: jnp.sum((x[edges[:, 0]] - x[edges[:, 1]]) ** 2) / 2 + x @ x
        return hotk.HessianOperator(f, jnp.zeros(N))

    ring = np.stack([np.arange(N), np.roll(np.arange(N), 1)], axis=1)
    assert of(ring).solve(T).method == Method.sparse
    far = np.stack([np.arange(N), np.roll(np.arange(N), 90)], axis=1)
    for edges in (ring, far):
        K = scipy.sparse.csc_array(
            (np.ones(N), (edges[:, 0], edges[:, 1])), shape=(N, N)
        )
        K = scipy.sparse.diags([4.0], [0], shape=(N, N)) - K - K.T
        expected = scipy.sparse.linalg.spsolve(K.tocsc(), T)
        close(of(edges).solve(T).x, expected, rtol=1e-4, atol=1e-6)
        close(of(jnp.asarray(edges)).diagonal(), K.diagonal())


def test_a_new_closure_and_another_point_compile_nothing():
    def of(scale, x):
        return hotk.HessianOperator(lambda x: scale * jnp.sum(x[1:] * x[:-1] ** 3), x)

    for scale in (1.0, 2.0):
        of(jnp.array(scale), jnp.ones(N)).diagonal()
    scale, x = jnp.array(5.0), jnp.asarray(np.full(N, 2.0))
    with compiles() as count:
        got = of(scale, x).diagonal()
    assert count() == 0
    close(got[:3], np.full(3, 120.0))  # 6 * 5 * 2 * 2


def test_a_dense_matrix_is_computed_and_solved_as_before():
    a = np.random.default_rng(0).normal(size=(N, 3))
    f = lambda x: jnp.sum(jnp.cosh(a.T @ x / 50)) + x @ x / 2
    H, b = hotk.HessianOperator(f, jnp.zeros(N)), np.cos(T)
    dense = np.eye(N) + a @ a.T / 2500
    close(H.matrix(), dense, rtol=1e-9)
    found = H.solve(b, tol=1e-10)
    assert found.method == Method.cg
    close(found.x, np.linalg.solve(dense, b), rtol=1e-7)


def test_other_labels_are_no_other_question():
    rng = np.random.default_rng(0)
    inputs = jnp.asarray(rng.normal(size=(8, N // 3)))

    def of(labels):
        def loss(w):
            scores = jax.nn.log_softmax(inputs @ w.reshape(-1, 3))
            return -jnp.mean(scores[jnp.arange(8), labels]) + jnp.sum(w**2)

        return hotk.HessianOperator(loss, jnp.zeros(N))

    first, second = (of(jnp.asarray(rng.integers(0, 3, 8))) for _ in range(2))
    assert first.solve(T).method == Method.cg
    with traces() as count:
        found = second.solve(T)
    assert count() == 0
    close(second @ found.x, T.copy(), atol=1e-4)
    assert _sparse._FOUND_DENSE
    hotk.clear_cache()
    assert not _sparse._FOUND_DENSE


def test_what_cannot_be_is_refused():
    H = hotk.HessianOperator(springs, jnp.zeros(N))
    with pytest.raises(ValueError, match="are for an iteration"):
        H.solve(T, method="sparse", max_steps=3)
    with pytest.raises(TypeError, match="whose pattern is sparse"):
        solve(H @ hotk.Identity(), jnp.asarray(T), method="sparse")


def test_single_precision():
    with jax.enable_x64(False):
        H = hotk.HessianOperator(springs, jnp.zeros(N))
        found = H.solve(np.cos(T))
        assert found.method == Method.sparse
        assert found.x.dtype == np.float32
        assert found.converged
    expected = scipy.sparse.linalg.spsolve(stiffness(), np.cos(T))
    np.testing.assert_allclose(found.x, expected, rtol=1e-4)


def test_a_singular_system_has_a_least_squares_solution():
    """Factors exist, by rounding, and gave a solution of 1e15."""
    n = 150
    energy, points = free_framework(n)
    H = hotk.HessianOperator(energy, points)
    b = np.random.default_rng(0).normal(size=(n, 2))
    found = H.solve(b)
    assert not found.converged
    assert abs(found.x).max() < 1e6
    # what is left is the part of b along shifts and the rotation
    turned = points @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    free = np.stack([*np.tile(np.eye(2), (n, 1)).T, turned.reshape(-1)], axis=1)
    basis = np.linalg.qr(free)[0]
    left = basis @ (basis.T @ b.reshape(-1))
    close(b.reshape(-1) - (H @ found.x).reshape(-1), left, atol=1e-3)
