"""Lanczos iteration with thick restart, as one program for inside of a transformation.

The numbers in brackets are those of the references of `eigh`.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from hotk._core import RandomKey, Scalar, Vector, WhileLoop, cond
from hotk._prepared import jitted

from . import space
from ._driver import in_working_precision
from ._linear_map import AbstractLinearMap
from ._search import MissedSearch, appended, quotient, random_orthogonal, renewed


Which = Literal["LA", "SA", "LM", "BE"]


class LanczosLimits(NamedTuple):
    """When the iteration stops.

    Attributes:
        tol: The largest residual over the largest magnitude of an eigenvalue.
        max_restarts: The largest number of restarts.
    """

    tol: Scalar | float
    max_restarts: Int[Array, ""] | int


class FoundPairs(NamedTuple):
    """What an iteration has found; see `Eigenpairs`."""

    values: Float[Array, " k"]
    vectors: PyTree
    residuals: Float[Array, " k"]
    converged: Bool[Array, " k"]
    complete: Bool[Array, ""]
    products: Int[Array, ""]
    restarts: Int[Array, ""]


class RestartState(NamedTuple):
    """The state between two restarts.

    Attributes:
        basis: The vectors that were kept, then the one to go on with; zero beyond.
        t: The projected matrix of those that were kept.
        start: The number of the vector to go on with.
        values: The Ritz values, the best first.
        products: The number of products.
        restarts: The number of restarts.
        measures: Whether the vectors are multiplied once more, for their residuals.
        running: Whether to go on.
        search: The search for what is missed.
        quotients: The Rayleigh quotients of the first vectors, and their residuals.
    """

    basis: PyTree
    t: Float[Array, "m m"]
    start: Int[Array, ""]
    values: Float[Array, " m"]
    products: Int[Array, ""]
    restarts: Int[Array, ""]
    measures: Bool[Array, ""]
    running: Bool[Array, ""]
    search: MissedSearch
    quotients: Float[Array, "k 2"]


class Window(NamedTuple):
    """A window that is being filled, or vectors that are measured.

    Attributes:
        j: The number of the vector to multiply.
        basis: The vectors; zero beyond the last.
        t: The projected matrix.
        beta: The norm of what the last product added to the span.
        quotients: See `RestartState`.
    """

    j: Int[Array, ""]
    basis: PyTree
    t: Float[Array, "m m"]
    beta: Scalar
    quotients: Float[Array, "k 2"]


def default_tolerance(dtype: jnp.dtype) -> float:
    """Return the residual to reach over the largest magnitude of an eigenvalue."""
    return float(jnp.finfo(dtype).eps) ** 0.5


# `like` has no values that matter, but tells JAX the devices to compute on
@jitted(keep_unused=True)
def random_start(key: RandomKey, like: Vector) -> Vector:
    """Return a random vector to begin with."""
    return space.random(key, like)


def run(
    while_loop: WhileLoop,
    A: AbstractLinearMap,
    start: Vector,
    key: RandomKey,
    limits: LanczosLimits,
    k: int,
    which: Which,
    m: int,
) -> FoundPairs:
    """Run the iteration with a window of `m` vectors."""
    cycle = lambda s: _cycle(while_loop, A, s, key, limits, k, which, m)
    end = while_loop(lambda s: s.running, cycle, _initial_state(start, k, m))
    values, residuals = end.quotients.T
    order = jnp.argsort(values)
    scale = jnp.max(jnp.abs(end.values))
    return FoundPairs(
        values=values[order],
        vectors=jax.tree.map(lambda b: b[:k][order], end.basis),
        residuals=residuals[order],
        # 1.5: computed anew, a residual differs by rounding from that of the window
        converged=residuals[order] <= 1.5 * limits.tol * scale,
        complete=end.search.complete,
        products=end.products,
        restarts=end.restarts,
    )


def _initial_state(start: Vector, k: int, m: int) -> RestartState:
    dtype = space.scalar_dtype(start)
    zero, no = jnp.zeros((), jnp.int32), jnp.zeros((), bool)
    start = space.times(1 / space.norm(start), start)
    return RestartState(
        basis=space.put(space.basis(start, m + 1), 0, start),
        t=jnp.zeros((m, m), dtype),
        start=zero,
        values=jnp.zeros(m, dtype),
        products=zero,
        restarts=zero - 1,  # the first window is no restart
        measures=no,
        running=~no,
        search=MissedSearch.none(k, dtype),
        quotients=jnp.zeros((k, 2), dtype),
    )


def _cycle(
    while_loop: WhileLoop,
    A: AbstractLinearMap,
    s: RestartState,
    key: RandomKey,
    limits: LanczosLimits,
    k: int,
    which: Which,
    m: int,
) -> RestartState:
    """Fill the window and keep the best Ritz vectors of it, or measure these."""
    key = jax.random.fold_in(key, s.restarts + 1)
    product = in_working_precision(A, A.like)

    def step(w: Window) -> Window:
        # The only place where the operator stands in the program.
        v = space.take(w.basis, w.j)
        image = product(v)
        grow = lambda: _grown(w, image, jax.random.fold_in(key, w.j + 1))
        measure = lambda: _measured(w, v, image)
        v, t, beta, quotients = cond(s.measures, measure, grow)
        place = jnp.where(s.measures, w.j, w.j + 1)
        return Window(w.j + 1, space.put(w.basis, place, v), t, beta, quotients)

    begin = Window(s.start, s.basis, s.t, jnp.zeros((), s.t.dtype), s.quotients)
    last = jnp.where(s.measures, k, m)
    window = while_loop(lambda w: w.j < last, step, begin)
    s = s._replace(products=s.products + window.j - s.start, quotients=window.quotients)
    stop = lambda: s._replace(running=jnp.zeros((), bool))
    go_on = lambda: _restarted(s, window, key, limits, k, which)
    return cond(s.measures, stop, go_on)


def _measured(
    w: Window, v: Vector, image: Vector
) -> tuple[Vector, Array, Scalar, Array]:
    return v, w.t, w.beta, w.quotients.at[w.j].set(quotient(v, image))


def _grown(
    w: Window, image: Vector, key: RandomKey
) -> tuple[Vector, Array, Scalar, Array]:
    v, column, beta, exhausted = appended(w.basis, w.j, w.beta, image)
    anew = lambda: random_orthogonal(v, w.basis, key)
    v = cond(exhausted, anew, lambda: v)
    column = column[: len(w.t)]
    t = w.t.at[:, w.j].set(column).at[w.j, :].set(column)
    return v, t, beta, w.quotients


def _restarted(
    s: RestartState,
    window: Window,
    key: RandomKey,
    limits: LanczosLimits,
    k: int,
    which: Which,
) -> RestartState:
    m, n = len(s.t), space.dimension(jax.tree.map(lambda b: b[0], s.basis))
    keep = kept(k, m)
    values, coordinates = jnp.linalg.eigh(window.t)
    order = best_first(values, which)
    values, coordinates = values[order], coordinates[:, order]
    residuals = jnp.abs(window.beta * coordinates[-1])
    search = s.search.after_window(values, residuals, s.products, limits.tol, n)
    # the kept Ritz vectors, then the direction in which the space goes on
    leading = jax.tree.map(lambda b: b[:m], window.basis)
    basis = jax.tree.map(
        lambda a, b: jnp.concatenate([a, b[m:], jnp.zeros_like(b[keep:m])]),
        space.combination(coordinates.T[:keep], leading),
        window.basis,
    )
    basis = renewed(search.begins, basis, key, k)
    start = jnp.where(search.begins, k, keep).astype(jnp.int32)
    restarts = s.restarts + 1
    failed = ~jnp.isfinite(jnp.max(jnp.abs(values)))
    measures = search.complete | failed | (restarts >= limits.max_restarts)
    return s._replace(
        basis=basis,
        t=jnp.diag(jnp.where(jnp.arange(m, dtype=jnp.int32) < start, values, 0)),
        start=jnp.where(measures, 0, start),
        values=values,
        restarts=restarts,
        measures=measures,
        search=search,
    )


def kept(k: int, m: int) -> int:
    """Return how many Ritz vectors of a window of `m` are kept for `k` eigenvalues."""
    return k + (m - k) // 3


def best_first(
    values: Float[Array | np.ndarray, " m"], which: Which
) -> Int[Array | np.ndarray, " m"]:
    """Return the order of ascending eigenvalues in which the best come first."""
    n = values.shape[0]
    if which == "LM":
        host = isinstance(values, np.ndarray)
        return (np if host else jnp).argsort(-abs(values), stable=True)
    if which == "LA":
        return np.arange(n)[::-1]
    if which == "SA":
        return np.arange(n)
    return np.array([i // 2 if i % 2 else n - 1 - i // 2 for i in range(n)])
