"""Lanczos iteration with thick restart: extreme eigenvalues and their vectors."""

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from hotk._core import (
    AbstractReport,
    RandomKey,
    Scalar,
    Vector,
    WhileLoop,
    in_trace,
    progress as with_bar,
)
from hotk.prepared import jitted

from . import space
from ._driver import in_working_precision, loop, nondifferentiable
from ._lanczos_basis import extend
from ._linear_map import AbstractLinearMap
from ._search import Search, renewed
from ._vectors import space_of


Which = Literal["LA", "SA", "LM", "BE"]

_DERIVATIVE = "that of a simple eigenvalue with the vector v is v' dA v"
_WHICH = ("LA", "SA", "LM", "BE")
# Up to this dimension the window covers the space: exact, in fewer products than a
# search takes.
_SMALL = 128


@final
class Eigenpairs(AbstractReport):
    """Some eigenvalues of a symmetric operator, with vectors and residuals.

    It is a pytree of arrays, and prints as a table.

    Attributes:
        values: The eigenvalues, in ascending order: the Rayleigh quotients of the
            vectors.
        vectors: The eigenvectors, of norm 1: a tree like the space with one leading
            axis.
        residuals: The norms of `A v - lambda v`, computed anew at the end. Each
            interval `lambda +- residual` holds an eigenvalue.
        converged: Whether each residual is below the tolerance.
        complete: Whether a search from a random direction, orthogonal to these vectors,
            found no eigenvalue that belongs among them: then a copy of a multiple one
            is hardly ever missing.
        products: The number of products with the operator, residuals included.
        restarts: The number of restarts.
    """

    values: Float[Array, " k"]
    vectors: PyTree
    residuals: Float[Array, " k"]
    converged: Bool[Array, " k"]
    complete: Bool[Array, ""]
    products: Int[Array, ""]
    restarts: Int[Array, ""]

    _header: ClassVar[tuple[str, ...]] = ("eigenvalue", "residual", "converged")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (f"{float(v):.6g}", f"{float(r):.2g}", "yes" if bool(c) else "no")
            for v, r, c in zip(self.values, self.residuals, self.converged, strict=True)
        ]

    def _lines(self) -> list[str]:
        search = "complete" if bool(self.complete) else "copies may be missing"
        counts = f"{int(self.products)} products, {int(self.restarts)} restarts"
        return [f"{counts}, {search}"]


class Limits(NamedTuple):
    """When the iteration stops.

    Attributes:
        tol: The largest residual over the largest magnitude of an eigenvalue.
        max_restarts: The largest number of restarts.
    """

    tol: Scalar
    max_restarts: Int[Array, ""]


class State(NamedTuple):
    """The state between two restarts.

    Attributes:
        basis: The vectors that were kept, then the one to go on with; zero beyond.
        t: The projected matrix of those that were kept.
        start: The number of the vector to go on with.
        values: The Ritz values, the best first.
        products: The number of products.
        restarts: The number of restarts.
        running: Whether to go on.
        search: The search for what is missed.
    """

    basis: PyTree
    t: Float[Array, "m m"]
    start: Int[Array, ""]
    values: Float[Array, " m"]
    products: Int[Array, ""]
    restarts: Int[Array, ""]
    running: Bool[Array, ""]
    search: Search


def eigh(
    operator: AbstractLinearMap,
    k: int = 6,
    which: Which = "LA",
    *,
    key: RandomKey | None = None,
    tol: float | None = None,
    window: int | None = None,
    max_restarts: int = 100,
    progress: bool = False,
) -> Eigenpairs:
    r"""Compute `k` extreme eigenvalues of a symmetric operator, with vectors.

    Lanczos iteration with full re-orthogonalization, repeated where a pass took away
    more than 1 - 1/sqrt(2) of the norm [2], and thick restart [1]: of a window of basis
    vectors the best Ritz vectors are kept, until `k` residuals are below `tol` times
    the largest eigenvalue found. Where a Krylov space is exhausted, the iteration goes
    on from a random direction.

    A Krylov space holds one vector of each eigenspace, so copies of a multiple
    eigenvalue are missed at first. Once `k` pairs have converged, the iteration
    therefore begins again from a random direction that is orthogonal to them. If a
    value comes up that belongs among the `k`, it goes on until they have converged, and
    searches again. If none has come up when the best value beside them has converged as
    well, the result is `complete`. A search takes at least the share $(\ln n + 2 \ln
    100) / (\ln n + 2 \ln(1 / \mathrm{tol}))$ of the products that the first convergence
    took: without restarts, a component of the random direction in a missed eigenspace
    comes up in as many with a probability of 99 % [3]. No search is needed where the
    window covers the space.

    Args:
        operator: A symmetric operator.
        k: The number of eigenvalues.
        which: `"LA"`, the largest; `"SA"`, the smallest; `"LM"`, those of largest
            magnitude; `"BE"`, from both ends, one more from the upper end if odd.
        key: A random key for the start; a fixed one if left out.
        tol: Residual over largest magnitude; the square root of the precision
            (3e-4 in single, 1e-8 in double precision) if left out.
        window: The number of basis vectors; `2 k + 20` if left out, or the dimension if
            that is at most 128. More of them take more memory and fewer restarts.
        max_restarts: Stop after this number of restarts, converged or not.
        progress: Whether to show a progress bar over the windows; needs `tqdm`.

    Returns:
        `Eigenpairs`: `values`, `vectors`, `residuals`, `converged`.

    Raises:
        ValueError: If `k` is not between 1 and the dimension, `which` is not one of the
            four, or `progress=True` inside of a transformation.
        TypeError: If the operator is not symmetric.
        ModeError: If a derivative is taken by the operator.

    Example:
        >>> f = lambda x: jnp.sum(jnp.arange(5.0) * x**2)
        >>> H = hotk.HessianOperator(f, jnp.ones(5))
        >>> hotk.linop.eigh(H, 2).values.round(4).tolist()
        [6.0, 8.0]

    References:
        [1] Wu and Simon (2000). Thick-restart Lanczos method for large symmetric
            eigenvalue problems. SIAM J. Matrix Anal. Appl. 22(2), 602-616. Algorithm 2.
        [2] Daniel, Gragg, Kaufman and Stewart (1976). Reorthogonalization and stable
            algorithms for updating the Gram-Schmidt QR factorization. Math. Comp. 30.
        [3] Kuczynski and Wozniakowski (1992). Estimating the largest eigenvalue by the
            power and Lanczos algorithms with a random start. SIAM J. Matrix Anal. Appl.
            13(4), 1094-1122.
    """
    like = space_of(operator)
    n = space.dimension(like)
    if not operator.symmetric:
        raise TypeError("`eigh(A, k)`: the operator is not known to be symmetric.")
    if not 1 <= k <= n:
        raise ValueError(f"`eigh(A, k)`: k = {k} is not between 1 and n = {n}.")
    if which not in _WHICH:
        raise ValueError(f"`eigh(A, k, which)`: {which!r} is not one of {_WHICH}.")
    if window is None:
        window = n if n <= _SMALL else 2 * k + 20
    window = min(n, max(window, k + 2))
    dtype = space.scalar_dtype(like)
    tol = float(jnp.finfo(dtype).eps) ** 0.5 if tol is None else tol
    key = jax.random.key(0) if key is None else key
    limits = Limits(jnp.asarray(tol, dtype), jnp.asarray(max_restarts))
    operator = nondifferentiable("eigh(A, k)", operator, _DERIVATIVE)
    inputs = _start(key, space.widened(like)), key, limits, k, which, window
    if progress:
        if in_trace():
            raise ValueError(
                "`eigh(A, k, progress=True)`: there is no progress bar inside of a "
                "transformation."
            )
        return _run_with_bar(operator, *inputs)
    return loop(operator, _run, operator, *inputs)


# `like` has no values that matter, but tells JAX the devices to compute on
@jitted(keep_unused=True)
def _start(key: RandomKey, like: Vector) -> Vector:
    start = space.random(key, like)
    return space.times(1 / space.norm(start), start)


def _run(
    while_loop: WhileLoop,
    A: AbstractLinearMap,
    start: Vector,
    key: RandomKey,
    limits: Limits,
    k: int,
    which: Which,
    m: int,
) -> Eigenpairs:
    cycle = lambda s: _cycle(while_loop, A, s, key, limits, k, which, m)
    end = while_loop(lambda s: s.running, cycle, _initial_state(start, k, m))
    return _pairs(while_loop, A, end, limits, k)


def _run_with_bar(
    A: AbstractLinearMap,
    start: Vector,
    key: RandomKey,
    limits: Limits,
    k: int,
    which: Which,
    m: int,
) -> Eigenpairs:
    """Do the same with a progress bar: one compiled window after the other."""
    s = _initial_state(start, k, m)
    most_windows = int(limits.max_restarts) + 1
    for _ in with_bar(range(most_windows), "Lanczos windows", show=True):
        s = loop(A, _cycle, A, s, key, limits, k, which, m)
        if not bool(s.running):
            break
    return loop(A, _pairs, A, s, limits, k)


def _initial_state(start: Vector, k: int, m: int) -> State:
    dtype = space.scalar_dtype(start)
    return State(
        basis=space.put(space.basis(start, m + 1), 0, start),
        t=jnp.zeros((m, m), dtype),
        start=jnp.zeros((), jnp.int32),
        values=jnp.zeros(m, dtype),
        products=jnp.zeros((), jnp.int32),
        restarts=-jnp.ones((), jnp.int32),  # the first window is no restart
        running=jnp.ones((), bool),
        search=Search.none(k, dtype),
    )


def _cycle(
    while_loop: WhileLoop,
    A: AbstractLinearMap,
    s: State,
    key: RandomKey,
    limits: Limits,
    k: int,
    which: Which,
    m: int,
) -> State:
    """Fill the window, and keep the best Ritz vectors of it."""
    n, keep = space.dimension(A.like), k + (m - k) // 3
    key = jax.random.fold_in(key, s.restarts + 1)
    product = in_working_precision(A, A.like)
    window = extend(while_loop, product, s.basis, s.t, s.start, m, key)
    values, coordinates = jnp.linalg.eigh(window.t)
    order = _best_first(values, which)
    values, coordinates = values[order], coordinates[:, order]
    residuals = jnp.abs(window.beta * coordinates[-1])
    products, restarts = s.products + m - s.start, s.restarts + 1
    search = s.search.after_window(values, residuals, products, limits.tol, n)
    # the kept Ritz vectors, then the direction in which the space goes on
    kept = space.combination(coordinates.T[:keep], _leading(window.basis, m))
    basis = jax.tree.map(
        lambda a, b: jnp.concatenate([a, b[m:], jnp.zeros_like(b[keep:m])]),
        kept,
        window.basis,
    )
    basis = renewed(search.begins, basis, key, k)
    start = jnp.where(search.begins, k, keep).astype(jnp.int32)
    failed = ~jnp.isfinite(jnp.max(jnp.abs(values)))
    stops = search.complete | failed | (restarts >= limits.max_restarts)
    return State(
        basis=basis,
        t=jnp.diag(jnp.where(jnp.arange(m, dtype=jnp.int32) < start, values, 0)),
        start=start,
        values=values,
        products=products,
        restarts=restarts,
        running=~stops,
        search=search,
    )


def _pairs(
    while_loop: WhileLoop, A: AbstractLinearMap, end: State, limits: Limits, k: int
) -> Eigenpairs:
    vectors = _leading(end.basis, k)
    product = in_working_precision(A, A.like)
    values, residuals = _quotients(while_loop, product, vectors, end.t.dtype)
    order = jnp.argsort(values)
    values, residuals = values[order], residuals[order]
    scale = jnp.max(jnp.abs(end.values))
    return Eigenpairs(
        values=values,
        vectors=space.narrowed(jax.tree.map(lambda b: b[order], vectors), A.like),
        residuals=residuals,
        # 1.5: computed anew, a residual differs by rounding from that of the window
        converged=residuals <= 1.5 * limits.tol * scale,
        complete=end.search.complete,
        products=end.products + k,
        restarts=end.restarts,
    )


def _quotients(
    while_loop: WhileLoop,
    mv: Callable[[Vector], Vector],
    vectors: PyTree,
    dtype: jnp.dtype,
) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
    """Return the Rayleigh quotients of several vectors, and their residuals.

    Of all numbers the Rayleigh quotient is the one with the smallest residual.
    """
    count = len(jax.tree.leaves(vectors)[0])

    def step(
        s: tuple[Int[Array, ""], Float[Array, " k"], Float[Array, " k"]],
    ) -> tuple[Int[Array, ""], Float[Array, " k"], Float[Array, " k"]]:
        j, values, residuals = s
        v = space.take(vectors, j)
        image = mv(v)
        value = space.inner(v, image) / space.inner(v, v)
        residual = space.norm(space.plus(image, v, -value))
        return j + 1, values.at[j].set(value), residuals.at[j].set(residual)

    zeros = jnp.zeros(count, dtype)
    state = (jnp.zeros((), jnp.int32), zeros, zeros)
    return while_loop(lambda s: s[0] < count, step, state)[1:]


def _leading(basis: PyTree, count: int) -> PyTree:
    return jax.tree.map(lambda b: b[:count], basis)


def _best_first(values: Float[Array, " m"], which: Which) -> Int[Array, " m"]:
    n = values.shape[0]
    if which == "LA":
        return jnp.arange(n)[::-1]
    if which == "SA":
        return jnp.arange(n)
    if which == "LM":
        return jnp.argsort(-jnp.abs(values))
    ends = [i // 2 if i % 2 else n - 1 - i // 2 for i in range(n)]
    return jnp.array(ends)
