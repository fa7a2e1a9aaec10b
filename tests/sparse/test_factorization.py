"""Sparse factorizations against dense NumPy, and inertia against eigenvalues."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import hotk
from tests.helpers import close
from tests.sparse.matrices import free_framework, scattered


def regular(seed, dtype=np.float64, symmetric=True, shift=0.3):
    rng = np.random.default_rng(seed)
    A, dense = scattered(rng, 12, 12, 30, dtype, symmetric=symmetric)
    one = hotk.sparse.identity(12, dtype)
    return A + shift * one, dense + shift * np.eye(12, dtype=dtype)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("symmetric", [True, False])
def test_solutions(dtype, symmetric):
    A, dense = regular(0, dtype, symmetric, shift=9.0)
    b = np.random.default_rng(1).normal(size=(12, 2)).astype(dtype)
    for right in (b, b[:, 0]):
        close(A.solve(right), np.linalg.solve(dense, right), rtol=1e-4, atol=1e-5)
        close(jax.jit(lambda A, b: A.solve(b))(A, right), np.asarray(A.solve(right)))
        close(A.factorize().solve(right), np.asarray(A.solve(right)))
    logdet = np.linalg.slogdet(dense)[1]
    np.testing.assert_allclose(A.factorize().logdet(), logdet, rtol=1e-5)


def test_trees_and_complex_right_hand_sides():
    tree = {"a": jnp.array([2.0, 4.0]), "b": jnp.array(5.0)}
    ones = jax.tree.map(lambda a: np.ones(a.shape), tree)
    close(hotk.sparse.diagonal(tree).solve(tree), ones)
    close(hotk.sparse.diagonal(tree).factorize().solve(tree), ones)
    A, dense = regular(2, shift=9.0)
    b = np.arange(12) * (1 + 2j)
    close(A.factorize().solve(b), np.linalg.solve(dense, b))
    close(A.solve(b), np.linalg.solve(dense, b))


@pytest.mark.parametrize("symmetric", [True, False])
def test_derivatives_by_values_and_right_hand_side(symmetric):
    A, dense = regular(3, symmetric=symmetric, shift=9.0)
    b = jnp.linspace(1.0, 2.0, 12)
    by_matrix, by_b = jax.grad(lambda A, b: (A.solve(b) ** 2).sum(), (0, 1))(A, b)
    x = np.linalg.solve(dense, b)
    adjoint = np.linalg.solve(dense.T, 2 * x)
    close(by_b, adjoint, rtol=1e-9)
    close(by_matrix.values, -np.outer(adjoint, x)[A.rows, A.cols], rtol=1e-9)
    several = jnp.stack([b, 2 * b])
    close(jax.vmap(A.solve)(several), np.stack([x, 2 * x]), rtol=1e-9)
    _, tangent = jax.jvp(lambda c: (c * A).solve(b), (1.0,), (1.0,))
    close(tangent, -x, rtol=1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_inertia_against_eigenvalues(seed):
    """It is right, or says that it is not known."""
    A, dense = regular(seed, shift=0.7)
    values = np.linalg.eigvalsh(dense)
    try:
        assert A.factorize().inertia() == ((values > 0).sum(), 0, (values < 0).sum())
    except ValueError as error:
        assert "on its diagonal" in str(error)  # noqa: PT017, either is right


def test_inertia_known_by_hand():
    rows, cols = [0, 0, 1, 1, 2], [0, 1, 0, 1, 2]
    A = hotk.SparseMatrix.from_coo([1.0, 2, 2, 1, 5], rows, cols, symmetric=True)
    assert A.factorize().inertia() == (2, 0, 1)
    with pytest.raises(hotk.NotPositiveDefiniteError, match="not positive definite"):
        A.cholesky()
    with pytest.raises(hotk.NotPositiveDefiniteError):
        # no pivot on the diagonal at all
        hotk.SparseMatrix.from_coo([1.0, 1], [0, 1], [1, 0], symmetric=True).cholesky()
    definite = A + 4.0 * hotk.sparse.identity(A)
    assert definite.cholesky().inertia() == (3, 0, 0)


def test_tiny_pivots_on_the_diagonal_lose_no_digits():
    """The solution is (1, 1) up to 1e-12; with the first pivot it would be (0, 1)."""
    rows, cols = [0, 0, 1, 1], [0, 1, 0, 1]
    values = [1e-18, 1.0, 1.0, 1.0]
    A = hotk.SparseMatrix.from_coo(values, rows, cols, symmetric=True)
    close(A.solve(np.array([1.0, 2.0])), np.ones(2), rtol=1e-12)
    assert A.factorize().inertia() == (1, 0, 1)  # its determinant is -1


# Found at random: well conditioned, with small numbers on the diagonal.
SINGLE = {
    "three": [[2e-6, 1, 0], [1, 1, 0.5], [0, 0.5, 2]],
    "small": [[1.6, -0.6, 1.8], [-0.6, 1.8, -1.7], [1.8, -1.7, 0.002]],
    "five": [
        [1, 0, 2, 1, 1],
        [0, 1.4785684470552951e-05, 0, -1, 2],
        [2, 0, 0, 1, -1],
        [1, -1, 1, -1, 0],
        [1, 2, -1, 0, 0],
    ],
    "seven": [
        [-1, 1, 0, 0, 1, 0, -1],
        [1, 0, 2, 0, 1, -1, -1],
        [0, 2, 1, 2, 0, 0, 0],
        [0, 0, 2, 0, -1, 0, 0],
        [1, 1, 0, -1, 0, 0, -1],
        [0, -1, 0, 0, 0, 1.25e-05, 0],
        [-1, -1, 0, 0, -1, 0, 1.25e-05],
    ],
}


@pytest.mark.parametrize("copies", [1, 300])
@pytest.mark.parametrize("name", SINGLE)
def test_small_pivots_in_single_precision(name, copies):
    """The factors are in double precision, so solutions and signs are right."""
    one = np.asarray(SINGLE[name], np.float32)
    n = len(one)
    rows, cols = np.nonzero(one)
    shift = n * np.arange(copies)[:, None]
    A = hotk.SparseMatrix.from_coo(
        jnp.tile(jnp.asarray(one[rows, cols]), copies),
        (rows + shift).ravel(),
        (cols + shift).ravel(),
        symmetric=True,
    )
    b = np.arange(1, n + 1, dtype=np.float32)
    exact = np.linalg.solve(one.astype(float), b)
    values = np.linalg.eigvalsh(one.astype(float))
    x = A.solve(np.tile(b, copies))
    assert x.dtype == jnp.float32
    close(np.asarray(x, float), np.tile(exact, copies), rtol=3e-6)
    close(np.asarray(A.factorize().solve(np.tile(b, copies))), np.asarray(x))
    counts = copies * int((values > 0).sum()), 0, copies * int((values < 0).sum())
    assert A.factorize().inertia() == counts
    known = np.linalg.slogdet(one.astype(float))[1] * copies
    np.testing.assert_allclose(A.factorize().logdet(), known, rtol=1e-6)


def conditions(seed, units=0.0):
    """Return the matrix of the conditions of a minimum under constraints, dense."""
    rng = np.random.default_rng(seed)
    n, m = 40, 15
    H = np.diag(rng.normal(size=n)) + np.diag(rng.normal(size=n - 1), 1)
    A = np.where(rng.uniform(size=(m, n)) < 0.08, rng.normal(size=(m, n)), 0.0)
    A += np.eye(m, n)
    dense = np.block([[H + H.T, A.T], [A, np.zeros((m, m))]])
    scale = 10.0 ** rng.uniform(-units, units, size=n + m)
    return dense * scale * scale[:, None], dense


@pytest.mark.parametrize("units", [0.0, 3.0])
@pytest.mark.parametrize("seed", range(6))
def test_inertia_with_zeros_on_the_diagonal(seed, units):
    scaled, dense = conditions(seed, units)
    values = np.linalg.eigvalsh(dense)  # of the same signs, by Sylvester's law
    A = hotk.SparseMatrix.from_coo(
        scaled[np.nonzero(scaled)], *np.nonzero(scaled), symmetric=True
    )
    assert A.factorize().inertia() == ((values > 0).sum(), 0, (values < 0).sum())


def test_inertia_of_pairs_without_a_diagonal():
    H = hotk.sparse_hessian(lambda x: x[0] * x[1] + 2 * x[2] * x[3], jnp.ones(4))
    assert H.factorize().inertia() == (2, 0, 2)


def states(seed, dependent=False):
    """Return such a matrix where constraints alone determine most variables."""
    rng = np.random.default_rng(seed)
    n, m = 60, 40
    A = np.where(rng.uniform(size=(m, n)) < 0.1, rng.normal(size=(m, n)), 0.0)
    A += 2 * np.eye(m, n)[:, rng.permutation(n)]
    if dependent:
        A[-1] = A[0] - 2 * A[1]
    cost = np.where(np.arange(n) < 25, rng.normal(size=n), 0.0)
    return np.block([[np.diag(cost), A.T], [A, np.zeros((m, m))]])


def sparse(dense):
    places = np.nonzero(dense)
    return hotk.SparseMatrix.from_coo(dense[places], *places, symmetric=True)


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_inertia_where_most_variables_have_no_cost(seed, dependent):
    """No pivots on the diagonal are stable there, and `inertia` raised."""
    dense = states(seed, dependent)
    values = np.linalg.eigvalsh(dense)
    zero = int((abs(values) < 1e-9).sum())
    expected = int((values > 1e-9).sum()), zero, int((values < -1e-9).sum())
    try:
        assert sparse(dense).factorize().inertia() == expected
    except RuntimeError:  # a pivot is exactly zero
        assert zero
    # units make entries of a singular matrix round: it is none any more
    scale = 10.0 ** np.random.default_rng(seed).uniform(-3, 3, size=len(dense))
    if not zero:
        scaled = sparse(dense * scale * scale[:, None])
        assert scaled.factorize().inertia() == expected


def test_inertia_that_would_take_long_is_refused(monkeypatch):
    A = sparse(states(0))
    monkeypatch.setattr("hotk.sparse._bunch_kaufman._MOST_FACTORIZED", 50)
    with pytest.raises(ValueError, match="pivots on its diagonal"):
        A.factorize().inertia()


def test_inertia_of_many_conditions_is_counted_by_factors():
    n, m = 3_000, 1_000

    def lagrangian(z):
        x, y = z[:n], z[n:]
        path = jnp.sum(x**2) / 2 - jnp.sum(jnp.cos(x[1:] - x[:-1]))
        return path + jnp.vdot(y, x[::3] - jnp.sin(x[1::3]) - x[2::3] ** 2)

    # The minimum of a problem with independent constraints: one negative for each.
    H = hotk.HessianOperator(lagrangian, jnp.zeros(n + m))
    assert tuple(map(int, H.inertia())) == (n, 0, m)


def test_what_cannot_be_factorized():
    A, _ = scattered(np.random.default_rng(0), 3, 4, 5)
    with pytest.raises(hotk.StructureError, match="square"):
        A.solve(np.ones(3))
    B, _ = regular(0, symmetric=False)
    with pytest.raises(ValueError, match="not known to be real and symmetric"):
        B.factorize().inertia()
    with pytest.raises(TypeError, match="needs numbers"):
        jax.jit(lambda A: A.factorize().pivots)(B)


SINGULAR = {
    "zero": ([0.0], [0], [0], 1),
    "no entry": (np.zeros(0), [], [], 1),
    "ones": (np.ones(4), [0, 0, 1, 1], [0, 1, 0, 1], 2),
    "an empty row": ([1.0], [0], [0], 2),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_singular_matrices_say_so(name):
    values, rows, cols, n = SINGULAR[name]
    rows, cols = np.asarray(rows, int), np.asarray(cols, int)
    A = hotk.SparseMatrix.from_coo(values, rows, cols, (n, n), symmetric=True)
    for call in (A.factorize, lambda: A.solve(np.ones(n))):
        with pytest.raises(RuntimeError, match="the matrix is singular") as caught:
            call()
        assert caught.type is RuntimeError
    with pytest.raises(hotk.NotPositiveDefiniteError, match="a pivot of zero"):
        A.cholesky()
    with pytest.raises(RuntimeError, match="the matrix is singular"):
        jax.block_until_ready(jax.jit(lambda A: A.solve(jnp.ones(n)))(A))


def test_numbers_that_are_none():
    """Solutions are those of JAX's dense solver; factors say what is wrong."""
    A = hotk.sparse.diagonal(jnp.array([1.0, jnp.nan]))
    for solve in (A.solve, jax.jit(lambda b: A.solve(b))):
        assert np.isnan(solve(np.ones(2))).all()
    with pytest.raises(ValueError, match="NaN or infinite"):
        hotk.sparse.diagonal(jnp.array([1.0, jnp.inf])).factorize()


def test_definiteness_does_not_depend_on_units():
    """Variables of which one is measured in nanometres, the other in light years."""
    scale = np.array([1e-9, 1.0, 1e16])
    dense = scale[:, None] * (np.eye(3) + 0.5) * scale
    rows, cols = np.nonzero(dense)
    A = hotk.SparseMatrix.from_coo(dense[rows, cols], rows, cols, symmetric=True)
    assert A.cholesky().inertia() == (3, 0, 0)
    path = [1.0, -1, -1, 2, -1, -1, 1]  # the Laplacian of a path: ones are in its null
    rows, cols = [0, 0, 1, 1, 1, 2, 2], [0, 1, 0, 1, 2, 1, 2]
    flat = hotk.SparseMatrix.from_coo(np.array(path) / 3, rows, cols, symmetric=True)
    with pytest.raises(hotk.NotPositiveDefiniteError):
        flat.cholesky()


def test_an_empty_matrix():
    A = hotk.SparseMatrix(
        np.zeros(0), hotk.sparse.Pattern([], [], (0, 0), symmetric=True)
    )
    assert A.solve(np.zeros(0)).shape == (0,)
    assert A.factorize().inertia() == (0, 0, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_products_of_a_matrix_and_its_transpose_are_seen_to_be_symmetric(dtype):
    J, j = scattered(np.random.default_rng(4), 9, 6, 40, dtype)
    weights = np.linspace(1e-3, 3.0, 9).astype(dtype)
    gram = J.T @ hotk.sparse.diagonal(weights) @ J + hotk.sparse.identity(6, dtype)
    assert not gram.symmetric
    factors = gram.cholesky()
    assert factors.inertia() == (6, 0, 0)
    dense = j.T @ np.diag(weights) @ j + np.eye(6)
    logdet = np.linalg.slogdet(dense.astype(float))[1]
    np.testing.assert_allclose(factors.logdet(), logdet, rtol=1e-4)
    other = gram + 1e-2 * hotk.SparseMatrix.from_coo([1.0], [0], [1], (6, 6))
    with pytest.raises(ValueError, match="symmetric"):
        other.cholesky()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_matrix_in_half_precision_is_what_it_is(dtype):
    """Entries that are exact there; eigenvalues of 1/4 and 7/4."""
    dense = np.kron(np.eye(3), np.array([[1, 0.75], [0.75, 1]]))
    rows, cols = np.nonzero(dense)
    values = jnp.asarray(dense[rows, cols], dtype)
    A = hotk.SparseMatrix.from_coo(values, rows, cols, symmetric=True)
    assert A.cholesky().inertia() == (6, 0, 0)
    close(np.asarray(A.solve(np.ones(6, np.float32))), np.full(6, 4 / 7, np.float32))


def test_errors_name_the_row():
    def f(p):
        a, b = p["a"], p["b"]
        return jnp.sum(jnp.log(a) ** 2) + jnp.sum(b**2) - 3 * (b[1, 0] + b[1, 1]) ** 2

    H = lambda a: hotk.sparse_hessian(f, {"a": a, "b": jnp.ones((2, 3))})
    with pytest.raises(ValueError, match=r"inf in row 1 \(`a\[1\]`\), column 1"):
        H(jnp.array([1.0, 0.0, 1.0])).factorize()
    # of a block [[-4, -6], [-6, -4]] either row may come first
    with pytest.raises(
        hotk.NotPositiveDefiniteError,
        match=r"in row (6 \(`b\[1,0\]`\)|7 \(`b\[1,1\]`\))",
    ):
        H(jnp.ones(3)).cholesky()
    with pytest.raises(hotk.NotPositiveDefiniteError, match="of -2, in row 0\n"):
        hotk.sparse_hessian(
            lambda x: jnp.sum(x[1:] ** 2) - x[0] ** 2, jnp.ones(3)
        ).cholesky()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [20, 300])
def test_a_matrix_that_is_singular_up_to_rounding_says_so(n, dtype):
    """A solution was 1e15 times as large as it may be, without a word."""
    energy, points = free_framework(n)
    A = hotk.sparse_hessian(energy, jnp.asarray(points, dtype))
    b = np.random.default_rng(1).normal(size=(n, 2)).astype(dtype)
    shifts = np.tile(np.eye(2), (n, 1))
    np.testing.assert_allclose(A.todense() @ shifts.astype(dtype), 0, atol=1e-4)
    F = A.factorize()
    for call in (lambda: A.solve(b), lambda: F.solve(b), lambda: A.T.solve(b)):
        with pytest.raises(RuntimeError, match="pivots zero up to rounding"):
            call()
    with pytest.raises(RuntimeError, match="the matrix is singular"):
        jax.block_until_ready(jax.jit(lambda A: A.solve(b))(A))
    # its first point held, and the direction of its second
    held = [*range(3, 2 * n)]
    kept = np.asarray(A.todense(), np.float64)[np.ix_(held, held)]
    rows, cols = np.nonzero(kept)
    shape = (len(held),) * 2
    B = hotk.SparseMatrix.from_coo(
        kept[rows, cols].astype(dtype), rows, cols, shape, symmetric=True
    )
    right = b.reshape(-1)[3:]
    expected = np.linalg.solve(kept, right)
    assert abs(expected).max() < 1e5
    expected = expected.astype(dtype)
    close(B.solve(right), expected, rtol=1e-3, atol=1e-4 * abs(expected).max())
    close(B.factorize().solve(right), np.asarray(B.solve(right)))


@pytest.mark.parametrize("n", [100, 3000])
def test_a_badly_conditioned_matrix_is_solved(n):
    """A beam that is held at one end: its condition number grows with n to the 4th."""
    D = scipy.sparse.diags_array(
        [np.ones(n), -2 * np.ones(n - 1), np.ones(n - 2)], offsets=[0, -1, -2]
    )
    A = hotk.SparseMatrix.from_scipy((D.T @ D).tocoo(), symmetric=True)
    b = np.ones(n)
    sums = np.cumsum(np.cumsum(b[::-1]))[::-1]  # of D^T y = b, by whole numbers
    expected = np.cumsum(np.cumsum(sums))
    close(A.solve(b), expected, rtol=1e-4)
    close(A.factorize().solve(b), expected, rtol=1e-4)


def test_units_of_variables_make_no_matrix_singular():
    A, dense = regular(3, shift=9.0)
    scale = 10.0 ** np.linspace(-12, 12, 12)
    B = hotk.SparseMatrix.from_coo(
        np.asarray(A.values) * scale[A.rows] * scale[A.cols],
        A.rows,
        A.cols,
        A.shape,
        symmetric=True,
    )
    b = np.arange(12.0)
    close(scale * B.solve(scale * b), np.linalg.solve(dense, b), rtol=1e-8)


@pytest.mark.parametrize("large", [1.0, 1e6, 1e12])
@pytest.mark.parametrize("small", [1e-12, 1e-16])
def test_an_entry_of_another_unit_hides_no_unstable_pivot(large, small):
    """The growth of entries was measured with the largest of the matrix."""
    dense = np.array([[large, 0, 0], [0, 1, 1], [0, 1, small]])
    A, b = sparse(dense), np.array([large, 2.0, 1.0])
    x = np.linalg.solve(dense[1:, 1:], b[1:])
    close(A.solve(b), np.array([1.0, *x]), rtol=1e-9)
    close(A.factorize().solve(b), np.array([1.0, *x]), rtol=1e-9)
    assert A.factorize().inertia() == (2, 0, 1)


@pytest.mark.parametrize(("dtype", "units"), [(np.float32, 8), (np.float64, 15)])
@pytest.mark.parametrize("seed", [2, 5, 6, 10, 13])
def test_inertia_does_not_depend_on_units(seed, dtype, units):
    """Eigenvalues that do not exist were counted as zero."""
    rng = np.random.default_rng(seed)
    n, m = 12, 5
    S = scipy.sparse.random(n, n, 0.25, random_state=seed).toarray()
    S = S + S.T + np.diag(rng.uniform(4, 8, n))
    J = scipy.sparse.random(m, n, 0.3, random_state=seed + 500).toarray()
    J += np.eye(m, n)
    dense = np.block([[S, J.T], [J, np.zeros((m, m))]]).astype(np.float32)
    values = np.linalg.eigvalsh(dense.astype(float))
    assert abs(values).min() > 1e-3
    expected = int((values > 0).sum()), 0, int((values < 0).sum())
    for e in np.linspace(0, units, 9):
        scale = 2.0 ** np.round(np.log2(10.0 ** rng.uniform(-e, e, n + m)))  # exact
        scaled = (dense * scale * scale[:, None]).astype(dtype)
        assert sparse(scaled).factorize().inertia() == expected
