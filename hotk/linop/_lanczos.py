"""Lanczos iteration with thick restart: extreme eigenvalues and their vectors."""

from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hotk._core import AbstractReport, in_trace, progress as with_bar
from hotk.prepared import jitted

from . import space
from ._driver import constant, loop
from ._vectors import space_of


_DERIVATIVE = "that of a simple eigenvalue with the vector v is v' dA v"
_WHICH = ("LA", "SA", "LM", "BE")


@final
class Eigenpairs(AbstractReport):
    """Some eigenvalues of a symmetric operator, with vectors and residuals.

    Attributes:
        values: The eigenvalues, in ascending order: the Rayleigh quotients of the
            vectors.
        vectors: The eigenvectors, of norm 1: a tree like the space with one leading
            axis.
        residuals: The norms of `A v - lambda v`, computed anew at the end. Each
            interval `lambda +- residual` holds an eigenvalue.
        converged: Whether each residual is below the tolerance.
        products: How many products with the operator it took, residuals included.
        restarts: How often the iteration was restarted.
    """

    values: Float[Array, " k"]
    vectors: Any
    residuals: Float[Array, " k"]
    converged: Bool[Array, " k"]
    products: Int[Array, ""]
    restarts: Int[Array, ""]

    _header: ClassVar[tuple[str, ...]] = ("eigenvalue", "residual", "converged")

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (f"{float(v):.6g}", f"{float(r):.2g}", "yes" if bool(c) else "no")
            for v, r, c in zip(self.values, self.residuals, self.converged, strict=True)
        ]

    def _lines(self) -> list[str]:
        return [f"{int(self.products)} products, {int(self.restarts)} restarts"]


def eigh(
    operator: Any,
    k: int = 6,
    which: str = "LA",
    *,
    key: Any = None,
    tol: float | None = None,
    window: int | None = None,
    max_restarts: int = 100,
    progress: bool = False,
) -> Eigenpairs:
    r"""Compute `k` extreme eigenvalues of a symmetric operator, with vectors.

    Lanczos iteration with full re-orthogonalization, repeated where a pass took away
    more than 1 - 1/sqrt(2) of the norm [2], and thick restart [1]: of a window of basis
    vectors the best Ritz vectors are kept, until `k` residuals are below `tol` times
    the largest eigenvalue found. Where a Krylov space is exhausted, a random direction
    begins another one, so that multiple eigenvalues and the zero operator come out
    right where the window covers the space. Of a multiple eigenvalue in a larger space
    one copy may be found.

    Args:
        operator: A symmetric operator.
        k: How many eigenvalues.
        which: `"LA"`, the largest; `"SA"`, the smallest; `"LM"`, those of largest
            magnitude; `"BE"`, from both ends, one more from the upper end if odd.
        key: A random key for the start; a fixed one if left out.
        tol: Residual over largest magnitude; the square root of the precision
            (3e-4 in single, 1e-8 in double precision) if left out.
        window: The number of basis vectors, `2 k + 20` if left out. More memory, fewer
            restarts.
        max_restarts: Stop after so many restarts, converged or not.
        progress: Whether to show a bar over the windows; needs `tqdm`.

    Returns:
        `Eigenpairs`: `values`, `vectors`, `residuals`, `converged`.

    Raises:
        ValueError: If `k` is not between 1 and the dimension, or `which` is none of
            those, or progress is asked for inside of a transformation.
        TypeError: If the operator is not symmetric.

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
    """
    like = space_of(operator)
    n = space.dimension(like)
    if not operator.symmetric:
        raise TypeError("`eigh(A, k)`: the operator is not known to be symmetric.")
    if not 1 <= k <= n:
        raise ValueError(f"`eigh(A, k)`: k = {k} is not between 1 and n = {n}.")
    if which not in _WHICH:
        raise ValueError(f"`eigh(A, k, which)`: {which!r} is none of {_WHICH}.")
    window = 2 * k + 20 if window is None else window
    window = min(n, max(window, k + 2))
    dtype = space.scalar_dtype(like)
    tol = float(jnp.finfo(dtype).eps) ** 0.5 if tol is None else tol
    key = jax.random.key(0) if key is None else key
    limits = (jnp.asarray(tol, dtype), jnp.asarray(max_restarts))
    operator = constant("eigh(A, k)", operator, _DERIVATIVE)
    inputs = _start(key, space.widened(like)), key, limits, k, which, window
    if progress:
        if in_trace():
            raise ValueError(
                "`eigh(A, k, progress=True)`: inside of a transformation there is no "
                "progress to show."
            )
        return _shown(operator, *inputs)
    return loop(operator, _run, operator, *inputs)


@jitted(keep_unused=True)  # it says where to compute
def _start(key: Any, like: Any) -> Any:
    start = space.random(key, like)
    return space.times(1 / space.norm(start), start)


def _run(
    while_loop: Any,
    A: Any,
    start: Any,
    key: Any,
    limits: Any,
    k: int,
    which: str,
    m: int,
) -> Eigenpairs:
    cycle = lambda s: _cycle(while_loop, A, s, key, limits, k, which, m)
    end = while_loop(lambda s: s["running"], cycle, _blank(start, m))
    return _pairs(while_loop, A, end, limits, k)


def _shown(
    A: Any, start: Any, key: Any, limits: Any, k: int, which: str, m: int
) -> Eigenpairs:
    """Do the same with a bar: one compiled window after the other."""
    s = _blank(start, m)
    for _ in with_bar(range(int(limits[1]) + 1), "Lanczos windows", show=True):
        s = loop(A, _cycle, A, s, key, limits, k, which, m)
        if not bool(s["running"]):
            break
    return loop(A, _pairs, A, s, limits, k)


def _blank(start: Any, m: int) -> Any:
    dtype = space.scalar_dtype(start)
    return {
        "basis": space.put(space.basis(start, m + 1), 0, start),
        "t": jnp.zeros((m, m), dtype),
        "from": jnp.zeros((), jnp.int32),
        "values": jnp.zeros(m, dtype),
        "products": jnp.zeros((), jnp.int32),
        "restarts": -jnp.ones((), jnp.int32),
        "running": jnp.ones((), bool),
    }


def _product(A: Any) -> Any:
    return lambda v: space.widened(A.mv(space.narrowed(v, A.like)))


def _cycle(
    while_loop: Any, A: Any, s: Any, key: Any, limits: Any, k: int, which: str, m: int
) -> Any:
    """Fill the window, and keep the best Ritz vectors of it."""
    tol, max_restarts = limits
    keep = k + (m - k) // 3
    fresh = jax.random.fold_in(key, s["restarts"] + 1)
    steps = extend(while_loop, _product(A), s["basis"], s["t"], s["from"], m, fresh)
    values, small = jnp.linalg.eigh(steps["t"])
    order = _best_first(values, which)
    values, small = values[order], small[:, order]
    residuals = jnp.abs(steps["beta"] * small[-1])
    scale = jnp.max(jnp.abs(values))
    done = jnp.all(residuals[:k] <= tol * scale) | ~jnp.isfinite(scale)
    restarts = s["restarts"] + 1
    # the kept Ritz vectors, then the direction in which the space goes on
    kept = space.combination(small.T[:keep], _first(steps["basis"], m))
    basis = jax.tree.map(
        lambda a, b: jnp.concatenate([a, b[m:], jnp.zeros_like(b[keep:m])]),
        kept,
        steps["basis"],
    )
    return {
        "basis": basis,
        "t": jnp.diag(jnp.where(jnp.arange(m) < keep, values, 0)),
        "from": jnp.asarray(keep, jnp.int32),
        "values": values,
        "products": s["products"] + m - s["from"],
        "restarts": restarts,
        "running": ~(done | (restarts >= max_restarts)),
    }


def _pairs(while_loop: Any, A: Any, end: Any, limits: Any, k: int) -> Eigenpairs:
    vectors = _first(end["basis"], k)
    values, residuals = _quotients(while_loop, _product(A), vectors, end["t"].dtype)
    order = jnp.argsort(values)
    values, residuals = values[order], residuals[order]
    scale = jnp.max(jnp.abs(end["values"]))
    return Eigenpairs(
        values=values,
        vectors=space.narrowed(jax.tree.map(lambda b: b[order], vectors), A.like),
        residuals=residuals,
        converged=residuals <= 1.5 * limits[0] * scale,
        products=end["products"] + k,
        restarts=end["restarts"],
    )


def _quotients(while_loop: Any, mv: Any, vectors: Any, dtype: Any) -> Any:
    """Return the Rayleigh quotients of several vectors and the residuals of these.

    Of all numbers that is the one with the smallest residual.
    """
    count = len(jax.tree.leaves(vectors)[0])

    def step(s: Any) -> Any:
        j, values, residuals = s
        v = space.take(vectors, j)
        image = mv(v)
        value = space.inner(v, image) / space.inner(v, v)
        residual = space.norm(space.plus(image, v, -value))
        return j + 1, values.at[j].set(value), residuals.at[j].set(residual)

    state = (jnp.zeros((), jnp.int32), *[jnp.zeros(count, dtype)] * 2)
    return while_loop(lambda s: s[0] < count, step, state)[1:]


def extend(
    while_loop: Any, mv: Any, basis: Any, t: Any, start: Any, m: int, key: Any
) -> Any:
    """Go on with a Lanczos basis from its vector number `start` to number `m`.

    Args:
        while_loop: Which loop to use.
        mv: The product.
        basis: A basis of `m + 1` vectors, of which the first `start + 1` are there.
        t: The projected matrix, of which the first `start` columns are there.
        start: The number of the first vector to be multiplied.
        m: The number of vectors in the end.
        key: A random key for new directions.

    Returns:
        The state of the loop: `basis`, `t`, and `beta`, the norm of what is left.
    """

    def step(s: Any) -> Any:
        image = mv(space.take(s["basis"], s["j"]))
        return _grown(s, image, jax.random.fold_in(key, s["j"] + 1))

    state = {
        "j": start,
        "basis": basis,
        "t": t,
        "beta": jnp.zeros((), t.dtype),
    }
    return while_loop(lambda s: s["j"] < m, step, state)


@jitted
def _grown(s: Any, image: Any, key: Any) -> Any:
    """Take up the image of the last vector of a basis as the next one."""
    j, basis, before = s["j"], s["basis"], s["beta"]
    last, last_but_one = space.take(basis, j), space.take(basis, jnp.maximum(j - 1, 0))
    length = space.norm(image)
    # the recurrence of three terms takes away nearly all that lies in the span, so that
    # one pass over the basis is a second one; another where it still took away much [2]
    alpha = space.inner(last, image)
    w = space.plus(space.plus(image, last, -alpha), last_but_one, -before)
    size = space.norm(w)
    w, column = space.orthogonal(basis, w)
    m = len(s["t"])
    column = column[:m].at[j].add(alpha).at[jnp.maximum(j - 1, 0)].add(before)
    again = space.norm(w) < size / 2**0.5
    w, more = jax.lax.cond(again, space.orthogonal, _as_it_is, basis, w)
    beta = space.norm(w)
    # what rounding leaves of a vector inside of the space is no direction
    exhausted = beta <= 10 * jnp.finfo(beta.dtype).eps * length
    v = jax.lax.cond(exhausted, _another, _normalized, w, beta, basis, key)
    return {
        "j": j + 1,
        "basis": space.put(basis, j + 1, v),
        "t": s["t"].at[:, j].set(column + more[:m]).at[j, :].set(column + more[:m]),
        "beta": jnp.where(exhausted, 0, beta),
    }


def _as_it_is(basis: Any, w: Any) -> Any:
    return w, jnp.zeros(len(jax.tree.leaves(basis)[0]), space.scalar_dtype(w))


def _normalized(w: Any, size: Any, *_: Any) -> Any:
    return space.times(1 / jnp.where(size > 0, size, 1), w)


def _another(w: Any, size: Any, basis: Any, key: Any) -> Any:
    """Return a random direction of norm 1 that is orthogonal to a basis, if any is."""
    del size
    w = space.random(key, w)
    for _ in range(2):
        w, _ = space.orthogonal(basis, w)
    return _normalized(w, space.norm(w))


def _first(basis: Any, count: int) -> Any:
    return jax.tree.map(lambda b: b[:count], basis)


def _best_first(values: Any, which: str) -> Any:
    n = values.shape[0]
    if which == "LA":
        return jnp.arange(n)[::-1]
    if which == "SA":
        return jnp.arange(n)
    if which == "LM":
        return jnp.argsort(-jnp.abs(values))
    ends = [i // 2 if i % 2 else n - 1 - i // 2 for i in range(n)]
    return jnp.array(ends)
