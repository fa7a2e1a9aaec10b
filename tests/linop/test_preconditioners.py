"""Operators near others, and their inverses, against dense ones by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.linop import LeafBlocks, LowRank, nystrom
from tests.helpers import close


N = 30
KEY = jax.random.key(0)
Q = np.linalg.qr(np.asarray(jax.random.normal(KEY, (N, N))))[0]


def quadratic(values):
    """Return the Hessian with these eigenvalues, at a point with two leaves."""
    a = jnp.asarray(Q @ np.diag(values) @ Q.T)
    flat = lambda p: jnp.concatenate([p["a"].reshape(-1), p["b"]])
    f = lambda p: flat(p) @ a @ flat(p) / 2
    return hotk.HessianOperator(f, {"a": jnp.ones((5, 4)), "b": jnp.ones(10)}), a


@pytest.mark.parametrize(
    ("values", "tail", "damping"),
    [
        ([-3.0], 1.0, 0.0),
        ([-3.0], 1.0, 0.5),
        ([3.0], 0.0, 1.0),
        ([3.0, 2.0], -1.0, 0.0),
    ],
)
def test_low_rank_operators_with_any_signs_have_inverses(values, tail, damping):
    rank = len(values)
    A = LowRank(jnp.eye(3)[:, :rank], jnp.array(values), jnp.array(tail), jnp.zeros(3))
    exact = 1 / (np.array(values + [tail] * (3 - rank)) + damping)
    close(A.inverse(damping).matrix(), np.diag(exact))
    inside = jax.jit(lambda A, d: A.inverse(d).matrix())
    close(inside(A, damping), np.diag(exact))


@pytest.mark.parametrize(("values", "tail"), [([3.0], 0.0), ([3.0, 0.0], 1.0)])
def test_singular_low_rank_operators_have_none(values, tail):
    basis = jnp.eye(3)[:, : len(values)]
    A = LowRank(basis, jnp.array(values), jnp.array(tail), jnp.zeros(3))
    with pytest.raises(hotk.NotPositiveDefiniteError, match="Give a damping"):
        A.inverse()
    # of a whole basis there is nothing else
    A = LowRank(jnp.eye(2), jnp.array([3.0, 2.0]), jnp.array(0.0), jnp.zeros(2))
    close(A.inverse().matrix(), np.diag([1 / 3, 1 / 2]))


@pytest.mark.exhaustive
def test_low_rank_operators_and_their_inverses():
    H, _ = quadratic(np.ones(N))
    values = np.array([5.0, 3.0, 2.0])
    A = LowRank(jnp.asarray(Q[:, :3]), jnp.asarray(values), jnp.asarray(0.5), H.like)
    expected = Q @ np.diag([*values, *[0.5] * (N - 3)]) @ Q.T
    close(A.matrix(), expected)
    close(A.inverse(0.25).matrix(), np.linalg.inv(expected + 0.25 * np.eye(N)))
    close(A.inverse(0.25, "cholesky").matrix(), A.inverse(0.25).matrix())
    assert A.positive_semidefinite
    assert repr(A) == "LowRank(dict of f64[5,4], f64[10], n=30, rank=3)"


@pytest.mark.exhaustive
def test_nystrom_is_exact_at_full_rank_and_of_low_rank_operators():
    H, a = quadratic(np.logspace(2, -2, N))
    full = nystrom(H, N, KEY)
    close(full.matrix(), a, rtol=1e-8, atol=1e-8)
    few, b = quadratic([3.0, 2.0, 1.0] + [0.0] * (N - 3))
    close(nystrom(few, 6, KEY).matrix(), b, atol=1e-6)
    assert (np.asarray(nystrom(few, 6, KEY).values) >= 0).all()


def test_nystrom_makes_conjugate_gradients_fast():
    """As [Frangella, Tropp, Udell 2023] says: a condition of a small constant."""
    damping = 1e-3
    H, a = quadratic(np.concatenate([np.logspace(4, 0, 10), np.full(20, 1e-3)]))
    b = jnp.ones(N)
    damped = H + damping * hotk.Identity()
    inverse = nystrom(H, 15, KEY).inverse(damping)
    slow = damped.solve(b, tol=1e-8)
    fast = damped.solve(b, tol=1e-8, preconditioner=inverse)
    assert int(fast.iterations) <= 0.4 * int(slow.iterations)
    close(H.flat(fast.x), np.linalg.solve(a + damping * np.eye(N), b), rtol=1e-4)
    by_minres = hotk.linop.minres(damped, b, preconditioner=inverse, tol=1e-8)
    assert int(by_minres.iterations) <= 0.4 * int(slow.iterations)


def test_nystrom_refuses_what_it_cannot_take():
    H, _ = quadratic(np.linspace(-1.0, 1.0, N))
    with pytest.raises(hotk.NotPositiveDefiniteError, match="GGNOperator"):
        nystrom(H, 10, KEY)
    inside = jax.jit(lambda H: nystrom(H, 10, KEY).values)(H)
    assert (np.asarray(inside) >= 0).all()
    for rank in (0, N + 1):
        with pytest.raises(ValueError, match="rank"):
            nystrom(H, rank, KEY)
    with pytest.raises(TypeError, match="rank"):
        nystrom(H, 2.5, KEY)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="symmetric"):
        nystrom(H @ quadratic(np.linspace(1.0, 2.0, N))[0], 3, KEY)


def test_blocks_of_leaves():
    H, a = quadratic(np.linspace(1.0, 4.0, N))
    D = LeafBlocks.of(H)
    expected = np.zeros((N, N))
    for rows in (slice(20), slice(20, N)):
        expected[rows, rows] = np.asarray(a)[rows, rows]
    close(D.matrix(), expected)
    close(D.inverse(0.5).matrix(), np.linalg.inv(expected + 0.5 * np.eye(N)))
    single = hotk.HessianOperator(lambda x: x @ x, jnp.ones(3))
    close(LeafBlocks.of(single).matrix(), 2 * np.eye(3))
    with pytest.raises(hotk.StructureError, match="sizes of the leaves"):
        LeafBlocks((jnp.eye(2),), H.like)


def test_the_inverse_of_blocks_inside_of_a_transformation():
    """NaN where it raises outside; and derivatives where eigenvalues are equal."""
    b = jnp.array([1.0, 2.0])
    of = lambda B: LeafBlocks((B,), jnp.zeros(2))
    solution = jax.jit(lambda B: of(B).inverse(0.5) @ b)
    B = np.array([[1.0, 2.0], [2.0, -3.0]])
    assert np.isnan(np.asarray(solution(B))).all()
    with pytest.raises(hotk.NotPositiveDefiniteError, match="block 0"):
        of(jnp.asarray(B)).inverse(0.5)
    C = B + 5 * np.eye(2)
    by_hand = np.linalg.solve(C + 0.5 * np.eye(2), np.asarray(b))
    close(solution(C), by_hand, rtol=1e-12)
    total = lambda t: jnp.sum(of(t * jnp.eye(2)).inverse() @ b)
    close(jax.grad(total)(2.0), jnp.asarray(-3 / 4))
    close(jax.jit(jax.grad(jax.grad(total)))(2.0), jnp.asarray(3 / 4))


def test_blocks_of_complex_leaves():
    """Two numbers each, and those of other leaves."""
    f = lambda p: jnp.sum(jnp.abs(p["z"]) ** 2) + 3 * p["x"] ** 2
    p = {"x": jnp.array(1.0), "z": jnp.array([1 + 1j, 2.0])}
    D = LeafBlocks.of(hotk.HessianOperator(f, p))
    assert [block.shape for block in D.blocks] == [(1, 1), (4, 4)]
    close(D.inverse() @ p, {"x": np.array(1 / 6), "z": np.array([0.5 + 0.5j, 1.0])})


def test_the_inverse_of_a_complex_diagonal_is_that_of_its_parts():
    D = hotk.Diagonal(jnp.array([1.0 - 2j, 4 + 5j]))
    v = jnp.array([1.0 + 4j, 2 - 10j])
    for inverse in (D.inverse(), jax.jit(lambda D: D.inverse())(D)):
        assert isinstance(inverse, hotk.Diagonal)
        close(inverse @ v, np.array([1.0 - 2j, 0.5 - 2j]))


def test_absolute_values_of_blocks():
    B = np.array([[1.0, 2.0], [2.0, -3.0]])
    values, vectors = np.linalg.eigh(B)
    found = LeafBlocks(
        (jnp.asarray(B), jnp.zeros((1, 1))), [jnp.zeros(2), jnp.zeros(1)]
    )
    by_hand = vectors @ np.diag(abs(values)) @ vectors.T
    for matrix in (
        found.absolute().matrix(),
        jax.jit(lambda: found.absolute().matrix())(),
    ):
        close(np.asarray(matrix)[:2, :2], by_hand, rtol=1e-12)
        assert 0 < matrix[2, 2] < 1e-15  # not zero: it has an inverse


def test_the_inverse_of_a_diagonal_is_one():
    D = hotk.Diagonal({"a": jnp.array([1.0, 4.0]), "b": jnp.array(0.0)})
    inverse = D.inverse(1.0)
    assert isinstance(inverse, hotk.Diagonal)
    close(inverse.matrix(), np.diag([0.5, 0.2, 1.0]))
    with pytest.raises(hotk.NotPositiveDefiniteError):
        D.inverse()


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e-9, 1.0, 1e9, 1e20, 1e30])
def test_nystrom_of_any_size_in_single_precision(scale):
    """The square of a product may be out of range where the product is not."""
    values = np.array([8.0, 3.0, 2.0] + [0.0] * (N - 3))
    matrix = np.asarray(Q @ np.diag(values * scale) @ Q.T, np.float32)
    A = jnp.asarray(matrix)
    H = hotk.HessianOperator(lambda x: x @ (A @ x) / 2, jnp.zeros(N, jnp.float32))
    found = nystrom(H, 8, KEY)
    close(np.asarray(found.values[:3], float), scale * values[:3], rtol=1e-3)
    dense = np.asarray(found.matrix(), float)
    close(dense / scale, np.asarray(matrix, float) / scale, atol=1e-5)
    x = found.inverse(scale) @ jnp.ones(N, jnp.float32)
    expected = np.linalg.solve(dense / scale + np.eye(N), np.ones(N))
    close(np.asarray(x, float) * scale, expected, atol=1e-5)


def test_nystrom_of_zero_is_zero():
    H = hotk.HessianOperator(lambda x: jnp.sum(x), jnp.zeros(4))
    close(nystrom(H, 2, KEY).matrix(), np.zeros((4, 4)), atol=1e-300)


UNITS = [1e-30, 1e-20, 1e-9, 1.0, 1e9, 1e20, 1e30]


@pytest.mark.thinned(4)
@pytest.mark.parametrize("start", [False, True], ids=["zero", "start"])
@pytest.mark.parametrize("unit", UNITS)
def test_conjugate_gradients_are_the_same_in_any_unit_of_the_operator(unit, start):
    """In single precision the square of a product of its inverse is out of range."""
    a = np.diag(np.logspace(0, 3, 8)) + 0.3
    A = jnp.asarray(a * unit, jnp.float32)
    H = hotk.HessianOperator(lambda x: x @ (A @ x) / 2, jnp.zeros(8, jnp.float32))
    M = hotk.Diagonal(jnp.diagonal(A)).inverse()
    x0 = jnp.asarray(np.full(8, 0.1 / unit), jnp.float32) if start else None
    found = hotk.linop.cg(H, jnp.ones(8, jnp.float32), x0=x0, preconditioner=M)
    assert bool(found.converged), found
    assert int(found.iterations) <= 10
    expected = np.linalg.solve(a, np.ones(8))
    close(np.asarray(found.x, float) * unit, expected, rtol=1e-4)
    solved = H.solve(jnp.ones(8, jnp.float32), preconditioner=M)
    close(np.asarray(solved.x, float) * unit, expected, rtol=1e-4)


@pytest.mark.parametrize("unit", UNITS)
def test_a_region_in_the_norm_of_a_preconditioner_in_any_unit(unit):
    """Along -M g to the boundary, where the norm of the step is the radius."""
    a = np.array([1.0, 4.0, 100.0])
    A = jnp.asarray(a * unit, jnp.float32)
    H = hotk.HessianOperator(lambda x: jnp.sum(A * x**2) / 2, jnp.zeros(3, jnp.float32))
    M = hotk.Diagonal(A).inverse()
    radius = 0.01 / unit**0.5
    found = hotk.linop.steihaug(H, jnp.ones(3, jnp.float32), radius, preconditioner=M)
    x = np.asarray(found.x, float) * unit
    length = 0.01 / np.sqrt(np.sum(1 / a))
    close(x, -length / a, rtol=1e-4)
