"""Indices that are computed from captured floating arrays are known, by content."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles, traces
from tests.helpers import close


N = 24
GRID = jnp.linspace(0.0, 1.0, N)
RNG = np.random.default_rng(3)
QUERIES = jnp.asarray(np.sort(RNG.uniform(size=N)))
U = jnp.asarray(RNG.normal(size=N))


def interpolated(u, t, q):
    """Return a curve at points."""
    return jnp.interp(q, t, u)


# Each takes the values of a curve at `t`, and reads it by an index that `t` and `q`
# decide.
READS = {
    "interp": interpolated,
    "digitize": lambda u, t, q: u * u[jnp.digitize(q, t) - 1],
    "searchsorted": lambda u, t, q: u * u[jnp.searchsorted(t, q)],
    "argsort": lambda u, t, q: u * u[jnp.argsort(-q)],
    "cast": lambda u, t, q: u * u[(q * 10).astype(int)],
    "floor": lambda u, t, q: u * u[jnp.floor(q * N).astype(int)],
    "segment_sum": lambda u, t, q: jax.ops.segment_sum(u, (q * 9).astype(int), 9),
    "scatter": lambda u, t, q: jnp.zeros(10).at[(q * 9).astype(int)].add(u),
    "map_coordinates": lambda u, t, q: jax.scipy.ndimage.map_coordinates(
        u, [q * (N - 1)], order=1
    ),
    "dynamic_slice": lambda u, t, q: jax.lax.dynamic_slice(
        u, (jnp.argmax(q) // 4,), (9,)
    ),
    "in a scan": lambda u, t, q: jax.lax.scan(
        lambda s, p: (s, s[jnp.searchsorted(t, p)]), u, q
    )[1],
    "mapped": lambda u, t, q: jax.vmap(lambda p: u[jnp.searchsorted(t, p)] ** 2)(q),
}


def energy(read, t=GRID, q=QUERIES, y=0.0):
    """Return a sum of cubes of what is read."""
    return lambda u: jnp.sum((read(u, t, q) - y) ** 3)


def nonzero(f, u):
    """Return the entries of the Hessian that JAX computes."""
    rows, cols = np.nonzero(np.asarray(jax.hessian(f)(u)))
    return set(zip(rows.tolist(), cols.tolist(), strict=True))


def entries(H):
    """Return the positions of a sparse matrix."""
    return set(zip(H.rows.tolist(), H.cols.tolist(), strict=True))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_hessian_has_the_entries_that_are_not_zero(read):
    f = energy(read)
    H = hotk.sparse_hessian(f, U)
    close(H.todense(), jax.hessian(f)(U))
    assert nonzero(f, U) <= entries(H)
    # a select between a value and its bound may be either
    assert H.nnz <= len(nonzero(f, U)) + 2


@pytest.mark.thinned(1)
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_other_content_has_another_pattern_and_is_compiled_once(kind):
    def at(q):
        return hotk.sparse_hessian(energy(interpolated, q=kind(q)), U)

    first, other = np.asarray(QUERIES), np.asarray(QUERIES)[::3]
    for q in (first, other, first):
        f = energy(interpolated, q=jnp.asarray(q))
        close(at(q).todense(), jax.hessian(f)(U))
    with compiles() as compiled:
        at(other.copy())
        at(first.copy())
    assert not compiled()


def test_an_array_of_numpy_that_is_written_to_is_read_anew():
    q = np.array(QUERIES)
    f = energy(interpolated, q=q)
    hotk.sparse_hessian(f, U)
    q[:] = q[::-1] / 2
    close(hotk.sparse_hessian(f, U).todense(), jax.hessian(f)(U))


def test_other_captured_numbers_stay_free():
    def at(y):
        return hotk.sparse_hessian(energy(interpolated, y=y), U)

    at(jnp.zeros(N))
    y = jnp.asarray(RNG.normal(size=N))
    with traces() as traced, compiles() as compiled:
        H = at(y)
    assert traced() == compiled() == 0
    close(H.todense(), jax.hessian(energy(interpolated, y=y))(U))


def test_a_further_argument_may_decide():
    f = lambda u, q, y: jnp.sum((jnp.interp(q, GRID, u) - y) ** 3)
    y = jnp.zeros(N)
    for q in (QUERIES, QUERIES[::2].repeat(2)):
        H = hotk.sparse_hessian(f, U, q, y)
        close(H.todense(), jax.hessian(f)(U, q, y))
        assert H.nnz < 4 * N
    y = y + 1
    with compiles() as compiled:
        H = hotk.sparse_hessian(f, U, QUERIES, y)
    close(H.todense(), jax.hessian(f)(U, QUERIES, y))
    assert not compiled()


def test_jacobians_patterns_and_gauss_newton_matrices():
    read = lambda u: interpolated(u, GRID, QUERIES) ** 2
    J = hotk.sparse_jacobian(read, U)
    close(J.todense(), jax.jacobian(read)(U))
    assert J.nnz <= 2 * N
    assert hotk.sparsity(read, U, of="jacobian") == J.pattern
    f = energy(interpolated)
    assert nonzero(f, U) <= entries(found := hotk.sparsity(f, U))
    assert found.nnz < 4 * N
    G = hotk.sparse_ggn(read, lambda y: jnp.sum(y**2) / 2, U)
    dense = np.asarray(jax.jacobian(read)(U))
    close(G.todense(), dense.T @ dense)
    assert G.nnz < 4 * N


def test_a_prepared_operator_holds_what_decides_and_takes_the_rest():
    y = jnp.asarray(RNG.normal(size=N))
    prepared = hotk.sparse_hessian.prepare(energy(interpolated, y=y), U)
    H = prepared(U)
    close(H.todense(), jax.hessian(energy(interpolated, y=y))(U))
    assert H.nnz < 4 * N
    bound = prepared.bind(energy(interpolated, y=y + 1))
    close(bound(U).todense(), jax.hessian(energy(interpolated, y=y + 1))(U))
    with pytest.raises(hotk.PreparationError):
        prepared.bind(energy(interpolated, q=QUERIES / 2, y=y))


def test_a_prepared_operator_holds_arguments_that_decide():
    f = lambda u, q, y: jnp.sum((jnp.interp(q, GRID, u) - y) ** 3)
    y = jnp.zeros(N)
    prepared = hotk.sparse_hessian.prepare(f, U, QUERIES, y)
    close(prepared(U, QUERIES, y + 1).todense(), jax.hessian(f)(U, QUERIES, y + 1))
    with pytest.raises(hotk.PreparationError):
        prepared(U, QUERIES / 2, y)


def test_a_number_among_the_arguments_may_decide():
    f = lambda u, h: jnp.sum(u[(jnp.arange(8.0) * h).astype(int)] ** 3)
    prepared = hotk.sparse_hessian.prepare(f, U, 2.5)
    for H in (prepared(U, 2.5), hotk.sparse_hessian(f, U, 2.5)):
        assert H.rows.tolist() == H.cols.tolist() == [0, 2, 5, 7, 10, 12, 15, 17]
    assert hotk.sparse_hessian(f, U, 0.25).rows.tolist() == [0, 1]
    with pytest.raises(hotk.PreparationError, match=r"content of args\[0\]"):
        prepared(U, 0.25)


def test_within_a_trace_arrays_that_are_no_tracers_are_known():
    f = energy(interpolated)
    H = jax.jit(lambda u: hotk.sparse_hessian(f, u))(U)
    close(H.todense(), jax.hessian(f)(U))
    assert H.nnz < 4 * N

    @jax.jit
    def traced(u, q):
        return hotk.sparse_hessian(energy(interpolated, q=q), u)

    close(traced(U, QUERIES).todense(), jax.hessian(f)(U))
    assert traced(U, QUERIES).nnz == N * N


@pytest.mark.exhaustive
def test_derivatives_and_maps_of_a_matrix():
    f = lambda u, y: jnp.sum((jnp.interp(QUERIES, GRID, u) - y) ** 4)
    total = lambda u: jnp.sum(hotk.sparse_hessian(f, u, jnp.ones(N)).values)
    plain = lambda u: jnp.sum(jax.hessian(f)(u, jnp.ones(N)))
    close(jax.grad(total)(U), jax.grad(plain)(U))
    points = jnp.stack([U, 2 * U])
    maps = jax.vmap(lambda u: hotk.sparse_hessian(f, u, jnp.ones(N)).todense())(points)
    close(maps, jax.vmap(lambda u: jax.hessian(f)(u, jnp.ones(N)))(points))


def test_an_index_of_the_point_is_not_known():
    f = lambda u: jnp.sum(u * u[jnp.argsort(u)] ** 2)
    H = hotk.sparse_hessian(f, U)
    close(H.todense(), jax.hessian(f)(U))
    assert H.nnz == N * N


@pytest.mark.exhaustive
def test_newton_by_factors_of_a_sparse_matrix():
    n = 300
    grid, q = jnp.linspace(0, 1, n), jnp.asarray(RNG.uniform(size=900))
    y = jnp.sin(6 * q)

    def f(u):
        smooth = jnp.sum((u[2:] - 2 * u[1:-1] + u[:-2]) ** 2)
        misfit = jnp.sum((jnp.interp(q, grid, u) - y) ** 2)
        return misfit + 1e-3 * jnp.sum(u**2) + smooth

    found = hotk.optim.minimize(
        f, jnp.zeros(n), hotk.optim.newton(linear_solver="sparse"), tol=1e-8
    )
    H = np.asarray(jax.hessian(f)(jnp.zeros(n)))
    close(found.x, -np.linalg.solve(H, np.asarray(jax.grad(f)(jnp.zeros(n)))))


def test_a_large_matrix_that_is_dense_is_told_with_the_line():
    n = 1_100

    def f(u):
        return jnp.sum(u * u[jnp.argsort(u)] ** 2)

    with pytest.warns(hotk.DensePatternWarning, match=r"test_known_indices\.py:\d+"):
        hotk.sparse_hessian(f, jnp.linspace(0.0, 1.0, n))
