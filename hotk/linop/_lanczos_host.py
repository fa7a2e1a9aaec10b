"""Lanczos iteration with thick restart, driven from the host.

The product is the program that `A @ v` runs; what is done with it is a program of the
shapes alone, which serves all operators on vectors of these shapes.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from hotk._core import RandomKey, Scalar, Vector, fori_loop, progress as with_bar
from hotk._prepared import jitted

from . import _direct, space
from ._driver import in_working_precision
from ._lanczos import FoundPairs, LanczosLimits, Which, best_first, kept
from ._linear_map import AbstractLinearMap
from ._search import MissedSearch, appended, quotient


Index: TypeAlias = int | Int[Array, ""]


def run_on_host(
    A: AbstractLinearMap,
    start: Vector | None,
    key: RandomKey | None,
    limits: LanczosLimits,
    k: int,
    which: Which,
    m: int,
    show: bool,
) -> FoundPairs:
    """Run the iteration with a window of `m` vectors.

    Args:
        A: The operator.
        start: The vector to begin with, a random one if `None`.
        key: A random key, `None` for a fixed one.
        limits: When to stop.
        k: The number of eigenvalues.
        which: Which of them.
        m: The number of vectors in a window.
        show: Whether to show a progress bar.
    """
    like = space.widened(A.like)
    n, dtype = space.dimension(like), space.scalar_dtype(like)
    random = _random(key)
    window = _Window(in_working_precision(A, A.like, A.applied), random, like, m)
    window.begin(random(like) if start is None else start)
    search, products, restarts = MissedSearch.none_on_host(k), 0, -1
    first, t, values = 0, np.zeros((m, m)), np.zeros(m)
    for _ in with_bar(
        range(max(limits.max_restarts, 0) + 1), "Lanczos windows", show=show
    ):
        restarts += 1  # the first window is none
        beta = window.fill(t, first)
        products += m - first
        values, coordinates = _direct.decomposed(t)
        order = best_first(values, which)
        values, coordinates = values[order], coordinates[:, order]
        residuals = abs(beta * coordinates[-1])
        search = search.after_window(values, residuals, products, limits.tol, n)
        first = k if search.begins else kept(k, m)
        window.restart(coordinates[:, :first], anew=bool(search.begins))
        t = np.diag(np.where(np.arange(m) < first, values, 0))
        if search.complete or not np.isfinite(values).all():
            break
    quotients = np.stack([window.quotient(i) for i in range(k)])
    order = np.argsort(quotients[:, 0], kind="stable")
    found, residuals = quotients[order].T
    number = functools.partial(_direct.on_device, like=like)
    return FoundPairs(
        values=number(found, dtype),
        vectors=_ordered(window.basis, order),
        residuals=number(residuals, dtype),
        # 1.5: computed anew, a residual differs by rounding from that of the window
        converged=number(residuals <= 1.5 * limits.tol * np.max(abs(values)), bool),
        complete=number(search.complete, bool),
        products=number(products + k, jnp.int32),
        restarts=number(restarts, jnp.int32),
    )


def _random(key: RandomKey | None) -> Callable[[Vector], Vector]:
    """Return a function that draws normal vectors by NumPy, which compiles nothing."""
    seed: Int[np.ndarray, " _"] | int = 0
    if key is not None:
        seed = np.asarray(jax.random.key_data(key)).ravel()
    generator = np.random.default_rng(seed)

    def draw(like: Vector) -> Vector:
        row = generator.standard_normal(space.dimension(like), np.float32)
        return _direct.as_vectors(row, like)

    return draw


class Next(NamedTuple):
    """A basis after a step.

    Attributes:
        basis: The vectors; zero beyond the last.
        v: The last one.
        beta: The norm of what the product added.
        numbers: For the host: the inner products of the image with the basis, the norm,
            and whether the product added nothing.
    """

    basis: PyTree
    v: Vector
    beta: Scalar
    numbers: Float[Array, " _"]


class _Window:
    """A basis that is filled, restarted and measured, in place."""

    def __init__(
        self,
        product: Callable[[Vector], Vector],
        random: Callable[[Vector], Vector],
        like: Vector,
        m: int,
    ) -> None:
        self.product, self.random, self.like, self.m = product, random, like, m

    def begin(self, start: Vector) -> None:
        """Begin with one vector."""
        self.basis, self.v = _begun(start, self.m + 1)

    def fill(self, t: Float[np.ndarray, "m m"], first: int) -> float:
        """Multiply all vectors from a number on; return the norm of what is left.

        Args:
            t: The projected matrix, which is written to.
            first: The number of the first vector to multiply.
        """
        m, norm, zero = self.m, 0.0, self.dtype.type(0)
        beta: Scalar | np.generic = zero
        for j in range(first, m):
            now = _grown(self.basis, self.product(self.v), j, beta)
            numbers = np.asarray(now.numbers)
            t[:, j] = t[j, :] = numbers[:m]
            norm, exhausted = float(numbers[-2]), bool(numbers[-1])
            if exhausted and j + 1 < space.dimension(self.like):
                # The span holds all that the products reach: on in a random direction.
                now = _grown(now.basis, self.random(self.like), j, zero)
                now = now._replace(beta=zero)
            self.basis, self.v, beta = now.basis, now.v, now.beta
        return norm

    def restart(self, coordinates: Float[np.ndarray, "m kept"], *, anew: bool) -> None:
        """Keep some combinations, and the direction to go on in or a random one."""
        m, count = coordinates.shape
        rows = np.zeros((m + 1, m + 1))
        rows[:count, :m] = coordinates.T
        if not anew:
            rows[count, m] = 1
        self.basis, self.v = _combined(self.basis, rows.astype(self.dtype), count)
        if anew:
            w = self.random(self.like)
            now = _grown(self.basis, w, count - 1, self.dtype.type(0))
            self.basis, self.v = now.basis, now.v

    def quotient(self, i: int) -> Float[np.ndarray, " 2"]:
        """Return the Rayleigh quotient of a vector, and its residual."""
        v = _taken(self.basis, i)
        return np.asarray(quotient(v, self.product(v)))

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of coefficients."""
        return space.scalar_dtype(self.like)


@jitted(quickly="always", static_argnums=1)
def _begun(start: Vector, count: int) -> tuple[PyTree, Vector]:
    v = space.times(1 / space.scaled_norm(start), start)
    return space.put(space.basis(v, count), 0, v), v


# Donated, here and below, or there would be two bases at a time.
@jitted(quickly="always", donate_argnums=0)
def _grown(basis: PyTree, image: Vector, j: Index, before: Scalar | np.generic) -> Next:
    """Append what the image of the last vector adds, or what another vector does."""
    v, column, beta, exhausted = appended(basis, j, before, image)
    numbers = jnp.stack([beta, exhausted.astype(beta.dtype)])
    numbers = jnp.concatenate([column[:-1], numbers])
    return Next(space.put(basis, j + 1, v), v, beta, numbers)


# So many numbers of each vector are combined at once, in place.
_COLUMNS = 1 << 14


@jitted(quickly="always", donate_argnums=0)
def _combined(
    basis: PyTree, rows: Float[Array, "count count"], number: Index
) -> tuple[PyTree, Vector]:
    """Replace the vectors of a basis by combinations; return one of them as well."""

    def leaf(b: Array) -> Array:
        flat = b.reshape(len(b), -1)
        size = flat.shape[1]
        times = lambda a: space.combination(rows, a)
        if size <= _COLUMNS:
            return times(flat).reshape(b.shape)

        def step(i: Int[Array, ""], flat: Array) -> Array:
            piece = jax.lax.dynamic_slice_in_dim(flat, i * _COLUMNS, _COLUMNS, 1)
            return jax.lax.dynamic_update_slice_in_dim(
                flat, times(piece), i * _COLUMNS, 1
            )

        whole = size // _COLUMNS
        flat = fori_loop(0, whole, step, flat)
        if size % _COLUMNS:
            rest = times(flat[:, whole * _COLUMNS :])
            flat = jax.lax.dynamic_update_slice_in_dim(flat, rest, whole * _COLUMNS, 1)
        return flat.reshape(b.shape)

    basis = jax.tree.map(leaf, basis)
    return basis, space.take(basis, number)


_taken = jitted(space.take, quickly="always")


@jitted(quickly="always")
def _ordered(basis: PyTree, order: Int[Array, " k"]) -> PyTree:
    return jax.tree.map(lambda b: b[order], basis)
