"""What linear algebra is compared with: residuals with products of plain JAX."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import Vector
from hotk._mode import AUTO
from hotk._prepared import Call
from hotk._second import hvp

from ._case import Case, flat, split
from ._comparison import Comparison, Skipped
from ._curvature import kfac
from ._operations import wide
from ._routes import second


Route: TypeAlias = Callable[[Any, Mapping[str, Any], Any], Iterator[Comparison]]


def product(operator: Any, v: Vector) -> Vector:
    """Multiply as plain JAX does, within a trace.

    Raises:
        Skipped: If the product of an operator is not known but by its own.
    """
    match type(operator).__name__:
        case "Identity":
            return v
        case "Diagonal":
            return jax.tree.map(jnp.multiply, operator.entries, v)
        case "Sum":
            parts = [product(term, v) for term in operator.terms]
            return jax.tree.map(lambda *a: sum(a[1:], start=a[0]), *parts)
        case "Product":
            for factor in reversed(operator.factors):
                v = product(factor, v)
            return v
        case "Scaled":
            times = lambda a: a * operator.factor.astype(a.dtype)
            return jax.tree.map(times, product(operator.inner, v))
        case "Restricted":
            return operator.take(product(operator.inner, operator.embed(v)))
        case name if not (hasattr(operator, "selected") and hasattr(operator, "f")):
            raise Skipped(f"{name} has no other product")
    known: Any = hvp
    options = known._options(AUTO, False, False, None, None, operator.x, operator.where)
    direction = operator.direction(v)
    given = (direction, *operator.args)
    static = operator.f.skeleton.static_arrays
    call = Call(options, operator.f, operator.x, given, static_arrays=static)
    point, w = Case(call, direction), [jnp.ones(())]
    leaves, tree = jax.tree.flatten(v)
    if any(map(jnp.iscomplexobj, leaves)):
        raise Skipped("a complex space")
    # The form is linear in u: its gradient by u is the product.
    form = lambda u: second(point, point.x, _typed(w, point.y), u, leaves)
    return tree.unflatten(jax.grad(form)(list(map(jnp.zeros_like, leaves))))


def _typed(w: list[Any], y: list[Any]) -> list[Any]:
    return [a.astype(b.dtype) for a, b in zip(w, y, strict=True)]


def _compared(
    what: str, found: Any, A: Any, x: Vector, damping: Any = 0.0, slack: float = 0.0
) -> Comparison:
    """Compare a vector with the product of an operator, damped, with another one."""

    def expected(x: Vector) -> list[Any]:
        pairs = zip(*map(jax.tree.leaves, (product(A, x), x)), strict=True)
        return [a + jnp.asarray(damping, b.dtype) * b for a, b in pairs]

    return Comparison(what, jax.tree.leaves(found), [expected], (x,), slack)


def _random(A: Any) -> tuple[Vector, np.ndarray]:
    """Draw a vector of the space of an operator."""
    leaves, tree = jax.tree.flatten(A.like)
    if not leaves or any(map(jnp.iscomplexobj, leaves)):
        raise Skipped("no real space")
    numbers = np.random.default_rng(0).normal(size=sum(a.size for a in leaves))
    parts = split(numbers, leaves)
    return tree.unflatten(map(jnp.asarray, parts)), flat(parts)


def _system(args: Any, keywords: Any, result: Any) -> Iterator[Comparison]:
    """Compare A x with b, up to the residual that was told."""
    del keywords
    A, b = args[:2]
    if np.ndim(result.residual) or not np.isfinite(result.residual):
        raise Skipped("several systems, or none that was solved")
    slack = 1.5 * float(result.residual)
    yield _compared("A x", A.vector(b, "verified()"), A, result.x, slack=slack)


def _region(args: Any, keywords: Any, result: Any) -> Iterator[Comparison]:
    """Compare A x with minus the gradient."""
    A, g = args[:2]
    b = jax.tree.map(jnp.negative, A.vector(g, "verified()"))
    yield from _system((A, b), keywords, result)


def _eigenpairs(args: Any, keywords: Any, result: Any) -> Iterator[Comparison]:
    """Compare a random sum of vectors, times the values, with the product."""
    del keywords
    values = np.asarray(result.values, float)
    r = np.random.default_rng(0).normal(size=values.size)
    summed = lambda a, r: np.tensordot(r, np.asarray(a, wide(a.dtype)), 1)
    mixed = lambda r: jax.tree.map(
        lambda a: jnp.asarray(summed(a, r), a.dtype), result.vectors
    )
    slack = 2 * float(np.abs(r) @ np.asarray(result.residuals, float))
    yield _compared("A V", mixed(r * values), args[0], mixed(r), slack=slack)


def _inverse(args: Any, keywords: Any, result: Any) -> Iterator[Comparison]:
    """Compare a vector with the damped product of what the inverse makes of it."""
    del keywords, result
    A, damping, method, tol, most = args
    v, numbers = _random(A)
    slack = float(np.max(np.abs(numbers))) * (tol or 1e-5)
    x = A.inverse(damping, method, tol=tol, max_steps=most).mv(v)
    yield _compared("A x", v, A, x, damping, slack)


def _cholesky(args: Any, keywords: Any, result: Any) -> Iterator[Comparison]:
    """Compare L L^T u with A u plus the damping times u."""
    if not isinstance(result, jax.Array):
        raise Skipped("sparse factors")
    v, u = _random(args[0])
    factor = np.asarray(result, float)
    found = split(factor @ (factor.T @ u), jax.tree.leaves(v))
    damping = keywords.get("damping", args[1] if len(args) > 1 else 0.0)
    yield _compared("L L' u", found, args[0], v, damping)


def _matrix(args: Any, keywords: Any, result: Any) -> Iterator[Comparison]:
    """Compare the product of a dense matrix with a random vector."""
    del keywords
    v, u = _random(args[0])
    if not np.isfinite(result).all():  # one entry would be in each of the sums
        raise Skipped("a matrix with entries that are not finite")
    found = split(np.asarray(result, float) @ u, jax.tree.leaves(v))
    yield _compared("M v", found, args[0], v)


def _block(args: Any, keywords: Any, result: Any) -> Iterator[Comparison]:
    """Compare the product of a block with a random vector."""
    del keywords
    A, rows, columns = args[:3]
    part = columns.take(_random(A)[0])
    found = np.asarray(result, float) @ flat(jax.tree.leaves(part))

    def expected(part: PyTree) -> list[Any]:
        return jax.tree.leaves(rows.take(product(A, columns.put(part, A.like))))

    like = jax.tree.leaves(rows.take(A.like))
    yield Comparison("M v", split(found, like), [expected], (part,))


def _diagonal(args: Any, keywords: Any, result: Any) -> Iterator[Comparison]:
    """Compare the first and the last entry of each array of a diagonal."""
    del keywords
    A, (leaves, tree) = args[0], jax.tree.flatten(result)
    _random(A)
    for i, leaf in enumerate(leaves[:4]):
        for place in {0, leaf.size - 1} if leaf.size else ():
            unit = [np.zeros(a.shape, a.dtype) for a in leaves]
            unit[i].flat[place] = 1
            entry = lambda v, i=i, place=place: [
                jax.tree.leaves(product(A, tree.unflatten(v)))[i].ravel()[place]
            ]
            what, found = f"entry {place} of array {i}", np.asarray(leaf).ravel()[place]
            yield Comparison(what, [found], [entry], (unit,))


SOLVERS: dict[str, Route] = {
    "linop._cg.cg": _system,
    "linop._cg.steihaug": _region,
    "linop._minres.minres": _system,
    "linop._solve.solve": _system,
    "linop._eigh.eigh": _eigenpairs,
    "linop._cholesky.cholesky": _cholesky,
    "linop._inverse.inverse_fields": _inverse,
    "linop._kfac_operator._computed": kfac,
    "linop._dense._matrix": _matrix,
    "linop._dense._block": _block,
    "linop._dense._diagonal": _diagonal,
}
