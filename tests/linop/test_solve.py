"""Linear systems: right answers, and the truth where there is none."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.linop import Method, Reason, cg, minres, solve
from tests.helpers import close


SOLVERS = {"cg": cg, "minres": minres, "solve": solve}
each_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
each_indefinite = pytest.mark.parametrize("solver", [minres, solve])


def symmetric(values, seed=0, dtype=np.float64):
    """A matrix of known eigenvalues, in a basis that is not a special one."""
    n = len(values)
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    return ((q * np.asarray(values)) @ q.T).astype(dtype)


def operator(matrix):
    a = jnp.asarray(matrix)
    return hotk.HessianOperator(lambda x: x @ a @ x / 2, jnp.zeros(len(a), a.dtype))


def vector(n, seed=1, dtype=np.float64):
    return np.random.default_rng(seed).normal(size=n).astype(dtype)


def residual(matrix, b, solution):
    x = np.asarray(solution.x, np.float64)
    return np.linalg.norm(b - np.asarray(matrix, np.float64) @ x)


@pytest.mark.thinned(2)
@each_solver
@pytest.mark.parametrize("n", [1, 2, 10, 40])
def test_the_solution_is_that_of_dense_algebra(solver, n):
    A, b = symmetric(np.linspace(1.0, 50.0, n)), vector(n)
    solution = solver(operator(A), b, tol=1e-12)
    assert solution.converged
    assert solution.definite
    np.testing.assert_allclose(solution.x, np.linalg.solve(A, b), rtol=1e-9, atol=1e-11)
    x = np.asarray(solution.x)
    np.testing.assert_allclose(solution.model, x @ A @ x / 2 - b @ x, rtol=1e-10)
    found = residual(A, b, solution)
    np.testing.assert_allclose(solution.residual, found, atol=1e-12)
    np.testing.assert_allclose(solution.relative, found / np.linalg.norm(b), atol=1e-12)


@pytest.mark.thinned(1)
@each_indefinite
def test_an_indefinite_system_is_solved_and_called_indefinite(solver):
    A, b = symmetric(np.append(np.linspace(1, 9, 8), [-1, -5, -7])), vector(11)
    solution = solver(operator(A), b, tol=1e-11)
    assert solution.converged
    assert not solution.definite
    np.testing.assert_allclose(solution.x, np.linalg.solve(A, b), rtol=1e-8)
    p = np.asarray(solution.direction)
    assert p @ A @ p <= 0
    np.testing.assert_allclose(p @ A @ p / (p @ p), solution.curvature)


def test_a_definite_operator_is_left_to_conjugate_gradients():
    A, b = symmetric([1.0, 2.0, 3.0]), vector(3)
    assert operator(A).solve(b).method == Method.cg
    assert operator(-A).solve(b, method="iterative").method == Method.minres


@pytest.mark.parametrize("dtype", ["f", "d"])
def test_a_small_indefinite_system_is_solved_from_its_matrix(dtype):
    A = symmetric([1.0, 4.0, -2.0, -9.0, 3.0], dtype=dtype)
    b = vector(5).astype(dtype)
    found = operator(A).solve(b)
    exact = np.linalg.solve(A.astype(float), b.astype(float))
    close = functools.partial(np.testing.assert_allclose, rtol=50 * np.finfo(dtype).eps)
    assert found.method == Method.direct
    assert found.converged
    assert not found.definite
    assert found.x.dtype == dtype
    close(found.x, exact)
    close(found.model, -exact @ b / 2, rtol=1e-5)
    # within a transformation, or with limits of an iteration, there is one
    A = operator(A)
    assert jax.jit(lambda b: A.solve(b))(b).method == Method.minres
    assert A.solve(b, max_steps=20).method == Method.minres
    assert A.solve(b, x0=b).method == Method.minres


def test_a_small_singular_system_is_solved_in_the_sense_of_least_squares():
    A = operator(np.diag([2.0, -1.0, 0.0]))
    found = A.solve(np.array([2.0, 3.0, 5.0]))
    np.testing.assert_allclose(found.x, [1.0, -3.0, 0.0], atol=1e-14)
    assert found.reason == hotk.linop.Reason.least_squares
    np.testing.assert_allclose(found.residual, 5.0)
    consistent = A.solve(np.array([2.0, 3.0, 0.0]))
    np.testing.assert_allclose(consistent.x, [1.0, -3.0, 0.0], atol=1e-14)
    assert consistent.converged


@pytest.mark.thinned(1)
@each_solver
def test_single_precision_converges_to_its_tolerance(solver):
    A, b = symmetric(np.linspace(1, 100, 30), dtype=np.float32), vector(30).astype("f")
    solution = solver(operator(A), b)
    assert solution.converged
    assert solution.x.dtype == np.float32
    assert residual(A, b, solution) <= 2e-5 * np.linalg.norm(b)


@pytest.mark.thinned(2)
@each_solver
def test_a_start_at_the_solution_needs_no_step(solver):
    A, b = symmetric([1.0, 4.0, 9.0, 2.0]), vector(4)
    x = np.linalg.solve(A, b)
    solution = solver(operator(A), b, x0=x)
    assert solution.converged
    assert solution.iterations == 0
    close(solution.x, x)
    near = solver(operator(A), b, x0=x + 0.1, tol=1e-12)
    np.testing.assert_allclose(near.x, x, rtol=1e-9)


@pytest.mark.thinned(1)
@each_solver
def test_a_preconditioner_saves_steps_and_changes_no_solution(solver):
    n = 60
    scale = np.logspace(0, 4, n)
    A = np.diag(scale) + 0.1 * symmetric(np.linspace(0.5, 1.0, n))
    b = vector(n)
    M = hotk.Diagonal(1 / np.diag(A))
    plain = solver(operator(A), b, tol=1e-9)
    faster = solver(operator(A), b, tol=1e-9, preconditioner=M)
    assert faster.converged
    assert int(faster.iterations) < 0.3 * int(plain.iterations)
    np.testing.assert_allclose(faster.x, np.linalg.solve(A, b), rtol=1e-4)


@pytest.mark.thinned(1)
@each_indefinite
def test_a_preconditioner_of_an_indefinite_operator(solver):
    values = np.logspace(0, 3, 20) * np.where(np.arange(20) % 3, 1, -1)
    A = np.diag(values) + 0.1 * symmetric(np.linspace(-1, 1, 20))
    b = vector(20)
    M = hotk.Diagonal(1 / np.abs(values))
    solution = solver(operator(A), b, tol=1e-9, preconditioner=M)
    assert solution.converged
    np.testing.assert_allclose(solution.x, np.linalg.solve(A, b), rtol=1e-4, atol=1e-8)


@pytest.mark.thinned(2)
@each_solver
def test_an_indefinite_preconditioner_is_named_as_the_reason(solver):
    A, b = symmetric([1.0, 2.0, 3.0]), vector(3)
    for entries in (-np.ones(3), np.zeros(3)):
        M = hotk.Diagonal(entries)
        solution = solver(operator(A), b, preconditioner=M)
        assert solution.reason == Reason.preconditioner


@pytest.mark.thinned(1)
@each_solver
@pytest.mark.parametrize("with_start", [False, True])
def test_right_hand_sides_side_by_side(solver, with_start):
    A = symmetric([1.0, 4.0, 9.0, 2.0])
    b = np.stack([vector(4, seed) for seed in range(3)] + [np.zeros(4)])
    H = operator(A)
    x0 = b + 1.0 if with_start else None
    if solver is solve:
        found = solve(H, b, batched=True, x0=x0, tol=1e-12)
    else:
        start = b * 0 if x0 is None else x0
        one = lambda b, x: solver(H, b, x0=x, tol=1e-12)
        found = jax.vmap(one)(jnp.asarray(b), jnp.asarray(start))
    assert found.converged.all()
    expected = np.linalg.solve(A, b.T).T
    np.testing.assert_allclose(found.x, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.exhaustive
def test_a_batch_with_definite_and_indefinite_systems():
    As = jnp.asarray([symmetric([1.0, 2.0, 3.0]), symmetric([1.0, -2.0, 3.0])])
    b = jnp.asarray(vector(3))
    found = jax.vmap(lambda A: operator(A).solve(b, tol=1e-12))(As)
    np.testing.assert_allclose(found.x, [np.linalg.solve(A, b) for A in As], rtol=1e-9)
    assert found.definite.tolist() == [True, False]
    assert (found.method == Method.cg).tolist() == [True, False]


@pytest.mark.thinned(1)
@each_solver
def test_zero_is_solved_by_zero(solver):
    solution = solver(operator(symmetric([1.0, 2.0])), np.zeros(2))
    assert solution.converged
    assert solution.iterations == 0
    assert solution.x.tolist() == [0.0, 0.0]
    assert solution.residual == solution.relative == solution.model == 0


@pytest.mark.thinned(5)
@each_solver
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_never_a_success(solver, bad):
    A, b = symmetric([1.0, 2.0, 3.0]), vector(3)
    spoiled = b.copy()
    spoiled[1] = bad
    assert solver(operator(A), spoiled).reason == Reason.not_finite
    assert solver(operator(A), b, x0=spoiled).reason == Reason.not_finite
    A[1, 1] = bad
    assert solver(operator(A), b).reason == Reason.not_finite
    M = hotk.Diagonal(spoiled)
    found = solver(operator(symmetric([1.0, 2.0, 3.0])), b, preconditioner=M)
    assert not found.converged


@pytest.mark.thinned(7)
@each_solver
@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e30])
def test_tiny_and_huge_right_hand_sides_are_no_special_case(solver, size):
    A = symmetric([1.0, 2.0, 5.0], dtype=np.float32)
    b = np.array([1.0, -2.0, 0.5], np.float32)
    expected = np.linalg.solve(A.astype(float), b)
    solution = solver(operator(A), (size * b).astype(np.float32))
    assert solution.converged
    assert solution.definite
    np.testing.assert_allclose(solution.x / np.float32(size), expected, rtol=1e-4)


def test_conjugate_gradients_stop_where_the_curvature_is_not_positive():
    """These two made `jax.scipy.sparse.linalg.cg` ascend, and return NaN."""
    for diagonal, g in (
        ([3.0, 1.0, -2.0], [0.1, 0.1, 1.0]),
        ([1.0, -1.0], [1.0, 1.0]),
        ([0.0, 0.0], [1.0, 1.0]),
    ):
        A, g = np.diag(diagonal), np.array(g)
        solution = cg(operator(A), -g)
        assert solution.reason == Reason.negative_curvature
        assert not solution.definite
        assert np.isfinite(solution.x).all()
        assert g @ np.asarray(solution.x) <= 0
        p = np.asarray(solution.direction)
        assert p @ A @ p <= 0
        assert g @ p < 0


def test_where_the_curvature_is_found_late_the_step_descends():
    A, g = np.diag([3.0, 1.0, -2.0]), np.array([1.0, 1.0, 0.1])
    solution = cg(operator(A), -g)
    assert solution.reason == Reason.negative_curvature
    assert g @ np.asarray(solution.x) < 0
    assert solution.model < 0


@pytest.mark.thinned(1)
@each_solver
def test_a_consistent_singular_system_has_a_solution(solver):
    A = symmetric([0.0, 0.0, 1.0, 3.0, 7.0])
    b = A @ vector(5)
    solution = solver(operator(A), b, tol=1e-10)
    assert solution.converged
    assert residual(A, b, solution) <= 1e-9 * np.linalg.norm(b)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "rank"), [(3, 1), (5, 3), (30, 20), (60, 40), (50, 49)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_inconsistent_system_has_a_least_squares_solution(dtype, n, rank, seed):
    values = np.linspace(-2.0, 3.0, rank)
    A = symmetric([*(values + 0.1), *np.zeros(n - rank)], seed, dtype)
    b = vector(n, seed, dtype)
    solution = minres(operator(A), b)
    assert solution.reason == Reason.least_squares
    best, *_ = np.linalg.lstsq(A.astype(float), b, rcond=1e-5)
    least = np.linalg.norm(b - A.astype(float) @ best)
    assert residual(A, b, solution) <= (1 + 1e-3) * least
    assert np.linalg.norm(solution.x) <= 1e3 * np.linalg.norm(best)


def test_without_curvature_there_is_no_solution_and_none_is_claimed():
    solution = operator(np.zeros((3, 3))).solve(np.ones(3))
    assert not solution.converged
    assert solution.reason == Reason.least_squares
    assert solution.relative == 1.0


@pytest.mark.thinned(1)
@each_solver
def test_it_stops_after_so_many_products(solver):
    A, b = symmetric(np.logspace(0, 4, 50)), vector(50)
    solution = solver(operator(A), b, max_steps=7)
    assert solution.iterations == 7
    assert solution.reason == Reason.most_steps
    assert not solution.converged
    np.testing.assert_allclose(solution.residual, residual(A, b, solution))


@pytest.mark.usefixtures("as_user")
@each_solver
def test_no_steps_at_all_are_refused(solver):
    with pytest.raises(ValueError, match="max_steps"):
        solver(operator(np.eye(2)), np.ones(2), max_steps=0)


@each_solver
def test_what_rounding_does_not_allow_is_not_claimed(solver):
    A = symmetric(np.logspace(-3, 0, 30), dtype=np.float32)
    b = vector(30).astype(np.float32)
    solution = solver(operator(A), b, tol=1e-7)
    reached = residual(A, b, solution) / np.linalg.norm(b)
    np.testing.assert_allclose(solution.relative, reached, rtol=0.2, atol=1e-6)
    assert reached > 3e-7
    assert solution.reason == Reason.stagnated


def test_more_curvature_than_met_is_not_claimed():
    A = symmetric([1.0, 2.0, 4.0])
    solution = cg(operator(A), vector(3), tol=1e-12)
    assert 1.0 - 1e-9 <= solution.curvature <= 4.0


@pytest.mark.thinned(1)
@each_solver
def test_leaves_of_two_precisions(solver):
    x = {"a": jnp.zeros(4, jnp.float32), "b": jnp.zeros(3, jnp.bfloat16)}
    d = {"a": np.array([1.0, 2.0, 3.0, 4.0]), "b": np.array([1.0, 2.0, 4.0])}

    def f(x):
        wide = jax.tree.map(lambda a: a.astype(jnp.float32), x)
        parts = (jnp.sum(jnp.asarray(d[k], jnp.float32) * wide[k] ** 2) for k in d)
        return sum(parts) / 2

    b = {"a": jnp.ones(4, jnp.float32), "b": jnp.ones(3, jnp.bfloat16)}
    solution = solver(hotk.HessianOperator(f, x), b, tol=1e-2)
    for name, leaf in solution.x.items():
        assert leaf.dtype == x[name].dtype
        np.testing.assert_allclose(leaf.astype(float), 1 / d[name], rtol=3e-2)


@pytest.mark.thinned(1)
@each_solver
def test_under_jit_it_is_the_same(solver):
    A, b = symmetric([1.0, 3.0, 5.0, 0.5]), vector(4)
    found = jax.jit(lambda A, b: solver(operator(A), b, tol=1e-12))(A, b)
    np.testing.assert_allclose(found.x, np.linalg.solve(A, b), rtol=1e-9)
    assert found.converged


def test_a_solution_shows_itself():
    text = str(operator(np.eye(2)).solve(np.ones(2)))
    assert "conjugate gradients" in text
    assert "below the tolerance" in text


def test_a_flat_right_hand_side_is_a_vector_as_well():
    f = lambda p: jnp.sum(p["a"] ** 2) + 2.0 * p["b"] ** 2
    H = hotk.HessianOperator(f, {"a": jnp.ones(2), "b": jnp.asarray(1.0)})
    found = H.solve(jnp.array([2.0, 4.0, 8.0])).x
    close(found, {"a": np.array([1.0, 2.0]), "b": np.array(2.0)})
    close(H.flat(found), np.array([1.0, 2.0, 2.0]))
    close(H.vector(H.flat(found)), found)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_singular_system_without_solution_ends_in_least_squares(dtype):
    """Rounding leaves a curvature in the null space: no step is made along it."""
    d = jnp.array([12.0, 48.0, 108.0, 0.0], dtype)
    H = hotk.HessianOperator(lambda x: jnp.sum(d * x**2) / 2, jnp.zeros(4, dtype))
    solution = H.solve(jnp.array([4.0, 32.0, 108.0, 1.0], dtype))
    assert solution.reason == hotk.linop.Reason.least_squares
    assert solution.residual.item() == pytest.approx(1, rel=1e-3)
    assert not solution.definite
    expected = np.array([1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(solution.x[:3], expected, rtol=1e-2)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_preconditioned_system_of_bad_scale_is_definite(dtype):
    """The residual may grow by the root of the condition, that of the system itself."""
    d = np.logspace(-5, 0, 8)
    b = np.eye(8)[0]
    dense = d[:, None] * (np.eye(8) + 0.1) * d
    A = jnp.asarray(dense, dtype)
    H = hotk.HessianOperator(lambda x: x @ A @ x / 2, jnp.zeros(8, dtype))
    M = hotk.Diagonal(1 / jnp.diag(A))
    exact = np.linalg.solve(dense, b)
    right = jnp.asarray(b, dtype)
    for found in (
        cg(H, right, preconditioner=M, tol=1e-2),
        solve(H, right, preconditioner=M, tol=1e-2),
        hotk.linop.steihaug(H, -right, 1e12, preconditioner=M, tol=1e-2),
    ):
        assert found.definite
        assert found.converged
        assert found.model < 0
        np.testing.assert_allclose(found.x, exact, rtol=1e-3)


@pytest.mark.parametrize("steps", [1, 2, 4, 5, 40])
def test_both_solvers_together_take_no_more_steps_than_allowed(steps):
    values = np.append(np.linspace(1, 9, 20), -np.linspace(1, 3, 10))
    solution = operator(symmetric(values)).solve(jnp.ones(30), max_steps=steps)
    assert solution.iterations <= steps
    whole = operator(symmetric(values)).solve(jnp.ones(30), tol=1e-9)
    assert not whole.definite
    assert whole.reason == hotk.linop.Reason.converged


@pytest.mark.thinned(1)
@pytest.mark.parametrize("most", [1, 10])
def test_no_more_products_are_counted_than_were_allowed(most):
    """Also where minimal residuals go on from conjugate gradients."""
    spread = jnp.asarray(np.linspace(-3.0, 5.0, 60))
    H = hotk.HessianOperator(lambda x: jnp.sum(spread * x**2) / 2, jnp.ones(60))
    b = jnp.asarray(np.random.default_rng(0).normal(size=60))
    limits = {"max_steps": most, "tol": 1e-10}
    found = [
        H.solve(b, **limits),
        H.solve(b, x0=b, **limits),
        H.solve(jnp.stack([b, -b]), batched=True, **limits),
        jax.jit(lambda b: H.solve(b, **limits))(b),
    ]
    for solution in found:
        assert (np.asarray(solution.iterations) <= most).all()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", range(6))
def test_a_singular_system_without_a_solution_does_not_blow_up(seed):
    """Eigenvalues 0, 0, 3, 4, 5; the right-hand side has a part in the null space."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    a, b = turn @ np.diag([0, 0, 3.0, 4.0, 5.0]) @ turn.T, rng.normal(size=5)
    rows = jnp.asarray(a)
    H = hotk.HessianOperator(lambda x: x @ rows @ x / 2, jnp.zeros(5))
    least = np.linalg.norm(a @ np.linalg.lstsq(a, b, rcond=1e-10)[0] - b)
    for found in (H.solve(b), jax.jit(H.solve)(b), hotk.linop.minres(H, b)):
        assert not bool(found.converged)
        assert float(found.residual) < least * (1 + 1e-6)
    by_cg = hotk.linop.cg(H, b)
    assert int(by_cg.reason == Reason.negative_curvature)
    assert int(by_cg.iterations) <= 6


def test_in_half_precision_no_solution_is_worse_than_zero():
    """Conjugate gradients end at a residual of a hundred times the right-hand side."""
    n = 100
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(n, n)))[0]
    rows = jnp.asarray(turn * np.logspace(-3, 2, n) @ turn.T, jnp.bfloat16)
    b = jnp.asarray(np.random.default_rng(1).normal(size=n), jnp.bfloat16)
    H = hotk.HessianOperator(lambda x: x @ (rows @ x) / 2, jnp.zeros(n, jnp.bfloat16))
    assert float(hotk.linop.cg(H, b).relative) > 10
    for found in (H.solve(b), jax.jit(H.solve)(b)):
        image = np.asarray(H @ found.x, float)
        assert np.linalg.norm(image - np.asarray(b, float)) < np.linalg.norm(b)
        assert int(found.iterations) < 2 * n


@pytest.mark.parametrize("seed", range(3))
def test_in_half_precision_it_stops_where_rounding_is_all_that_is_left(seed):
    """An indefinite Hessian in bfloat16, whose products have two or three digits."""
    draw = lambda i, *shape: jax.random.normal(jax.random.key(10 * seed + i), shape)
    half = lambda a: (0.3 * a).astype(jnp.bfloat16)
    p = {"a": half(draw(0, 6, 6)), "b": half(draw(1, 6, 2))}
    x, y = draw(2, 32, 6).astype(jnp.bfloat16), draw(3, 32, 2).astype(jnp.bfloat16)

    def f(p):
        return jnp.mean((jnp.tanh(x @ p["a"]) @ p["b"] - y).astype(jnp.float32) ** 2)

    H = hotk.HessianOperator(f, p)
    b = H.gradient
    for found in (minres(H, b), H.solve(b)):
        assert int(found.iterations) <= 4 * H.size
        length = jnp.linalg.norm(H.flat(b).astype(jnp.float32))
        assert float(found.residual) < float(length)
    image = H.flat(H @ found.x).astype(jnp.float32)
    size = jnp.linalg.norm(image - H.flat(b).astype(jnp.float32))
    assert float(size) < 1.2 * float(length)
