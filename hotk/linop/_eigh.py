"""Extreme eigenvalues of a symmetric operator, with their vectors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import (
    RandomKey,
    V,
    Vector,
    describe,
    from_host,
    names_ours,
)
from hotk._prepared import shown
from hotk._primitive import constants, may_have_tangents

from . import _direct, space
from ._driver import compiled
from ._eigenpairs import Eigenpairs, with_derivatives
from ._flat import Flat, as_trees, is_better_flat
from ._lanczos import (
    FoundPairs,
    LanczosLimits,
    Which,
    best_first,
    default_tolerance,
    random_start,
    run,
)
from ._lanczos_host import run_on_host
from ._linear_map import AbstractLinearMap
from ._solution import Method
from ._vectors import check_symmetric, space_of


_WHICH = {
    "LA": "the largest",
    "SA": "the smallest",
    "LM": "of largest magnitude",
    "BE": "from both ends",
}


@names_ours
@shown
def eigh(
    operator: AbstractLinearMap[V],
    k: int = 6,
    which: Which = "LA",
    *,
    key: RandomKey | None = None,
    tol: float | None = None,
    v0: PyTree = None,
    window: int | None = None,
    max_basis: int | None = None,
    max_restarts: int = 100,
    progress: bool = False,
) -> Eigenpairs[V]:
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

    Up to a dimension of 128, and outside of transformations, all eigenvalues are those
    of the matrix, by LAPACK, unless `v0`, `window` or `max_basis` asks for the
    iteration. `method` of the result reports which was used.

    Values and vectors can be differentiated to any order by what the operator depends
    on, where eigenvalues are simple: with $A v = \lambda v$, $v^T v = 1$, one bordered
    system for each tangent of each pair. The system is factorized below 2048 unknowns,
    and solved by iteration above. The derivative of a multiple eigenvalue does not
    exist: it is NaN, and raises outside of `jit` and `vmap`.

    Memory: `max_basis` vectors and a few more. With `max_basis=k + 3`, the least that
    makes sense, the iteration is that of a locally optimal descent, as in LOBPCG
    without a preconditioner: it takes a multiple of the products.

    Args:
        operator: A symmetric operator.
        k: The number of eigenvalues.
        which: `"LA"`, the largest; `"SA"`, the smallest; `"LM"`, those of largest
            magnitude; `"BE"`, from both ends, one more from the upper end if odd.
        key: A random key for the start and for searches; a fixed one if left out.
        tol: Residual over largest magnitude; the square root of the precision
            (3e-4 in single, 1e-8 in double precision) if left out.
        v0: A vector of the space to begin with, not zero: an eigenvector of an operator
            near this one saves products. A random one if left out.
        window: The number of basis vectors that are multiplied before a restart;
            `max_basis - 1` if left out. More of them take more memory and fewer
            restarts.
        max_basis: The largest number of basis vectors to hold, with the direction that
            the iteration goes on with; `k + 20` if left out, or the dimension if that
            is at most 128.
        max_restarts: Stop after this number of restarts, converged or not.
        progress: Whether to show a progress bar over the windows; needs `tqdm`.

    Returns:
        `Eigenpairs`: `values`, `vectors`, `residuals`, `converged`.

    Raises:
        StructureError: If `v0` is not a vector of the space.
        ValueError: If `k` is not between 1 and the dimension, `which` is not one of the
            four, or `progress=True` inside of a transformation.
        TypeError: If the operator is not symmetric, or `k` is not an integer.
        ModeError: If a derivative is taken, and an eigenvalue is not simple or has not
            converged; or one of `residuals`, in reverse mode.

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
    check_symmetric("eigh(A, k)", operator)
    like = space_of(operator)
    n = space.dimension(like)
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
        raise TypeError(
            f"`eigh(A, k)`: k is {describe(k)}. It is the number of eigenvalues, an "
            "integer, as in `H.eigh(2)`; `which` says from which end."
        )
    if not 1 <= k <= n:
        raise ValueError(f"`eigh(A, k)`: k = {k} is not between 1 and n = {n}.")
    if which not in _WHICH:
        known = ", ".join(f"{name!r} ({words})" for name, words in _WHICH.items())
        raise ValueError(f"`eigh(A, k, which)`: {which!r} is not one of {known}.")
    if v0 is not None:
        v0 = space.widened(operator.vector(v0, "eigh(A, k, v0=v)"))
    options = k, which, key, tol, window, max_basis, max_restarts, progress
    if operator.on_host or not may_have_tangents((operator, v0)):
        return _eigh(operator, like, v0, *options)
    held, v0 = constants((operator, v0))
    return with_derivatives(_eigh(held, like, v0, *options), operator, held)


def _eigh(
    operator: AbstractLinearMap,
    like: Vector,
    v0: PyTree,
    k: int,
    which: Which,
    key: RandomKey | None,
    tol: float | None,
    window: int | None,
    max_basis: int | None,
    max_restarts: int,
    progress: bool,
) -> Eigenpairs:
    """Compute eigenpairs without derivatives; see `eigh`."""
    n = space.dimension(like)
    iterates = v0 is not None or window is not None or max_basis is not None
    if not iterates and not progress and _direct.is_small(operator):
        return _from_matrix(operator, like, k, which, tol)
    m = _window(n, k, window, max_basis)
    dtype = space.scalar_dtype(like)
    tol = default_tolerance(dtype) if tol is None else tol
    if operator.on_host or _direct.is_concrete(operator):
        limits = LanczosLimits(float(tol), int(max_restarts))
        options = limits, k, which, m, progress
        if not is_better_flat(operator, v0):
            return _as_pairs(run_on_host(operator, v0, key, *options), like)
        v0 = None if v0 is None else space.flattened(v0)
        found = run_on_host(Flat(operator, like), v0, key, *options)
        vectors = as_trees(found.vectors, space.widened(like))
        return _as_pairs(found._replace(vectors=vectors), like)
    if progress:
        raise ValueError(
            "`eigh(A, k, progress=True)`: there is no progress bar inside of a "
            "transformation."
        )
    key = jax.random.key(0) if key is None else key
    v0 = random_start(key, space.widened(like)) if v0 is None else v0
    limits = LanczosLimits(from_host(tol, dtype), from_host(max_restarts))
    return _as_pairs(compiled(run, (operator, v0, key, limits, k, which, m)), like)


def _window(n: int, k: int, window: int | None, max_basis: int | None) -> int:
    if max_basis is not None and max_basis < k + 3 <= n:
        raise ValueError(
            f"`eigh(A, k, max_basis=)`: {max_basis} vectors are too few for k = {k}: "
            f"at least {k + 3} are needed."
        )
    if window is None:
        small = max_basis is None and n <= _direct.LARGEST
        window = n if small else (k + 20 if max_basis is None else max_basis) - 1
    return min(n, max(window, k + 2))


def _as_pairs(found: FoundPairs, like: Vector) -> Eigenpairs:
    return Eigenpairs(
        values=found.values,
        vectors=space.narrowed(found.vectors, like),
        residuals=found.residuals,
        converged=found.converged,
        complete=found.complete,
        products=found.products,
        restarts=found.restarts,
        method=Method.lanczos,
    )


def _from_matrix(
    operator: AbstractLinearMap, like: Vector, k: int, which: Which, tol: float | None
) -> Eigenpairs:
    a = _direct.matrix_on_host(operator)
    values, columns = _direct.decomposed(a)
    chosen = np.sort(best_first(values, which)[:k])
    vectors = _direct.as_vectors(columns.T[chosen], like)
    # of the vectors as they are returned, in the precision of their leaves
    rows = _direct.as_rows(vectors)
    residuals = np.linalg.norm(rows @ a - values[chosen, None] * rows, axis=1)
    dtype = space.scalar_dtype(like)
    tol = default_tolerance(dtype) if tol is None else float(tol)
    number = functools.partial(_direct.on_device, like=like)
    return Eigenpairs(
        values=number(values[chosen], dtype),
        vectors=vectors,
        residuals=number(residuals, dtype),
        converged=number(residuals <= 1.5 * tol * np.max(np.abs(values)), bool),
        complete=number(np.isfinite(values).all(), bool),
        products=number(len(a), jnp.int32),
        restarts=number(0, jnp.int32),
        method=Method.direct,
    )
