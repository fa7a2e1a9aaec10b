"""What linear algebra is compared with: residuals with products of plain JAX."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import Vector
from hotk.capture import StaticArrays
from hotk.linop import Diagonal, Identity
from hotk.mode import AUTO
from hotk.prepared import Call
from hotk.second import hvp

from ._case import Alternatives, Case, flat, split
from ._comparison import Comparison, Skipped
from ._curvature import kfac
from ._operations import wide
from ._routes import hessian_products


Route: TypeAlias = Callable[
    [tuple[Any, ...], Mapping[str, Any], Any], Iterator[Alternatives]
]


def product(operator: Any, v: Vector) -> Vector:
    """Multiply as plain JAX does, within a trace.

    Raises:
        Skipped: If the product of an operator is not known but by its own.
    """
    match operator:
        case Identity():
            return v
        case Diagonal():
            return jax.tree.map(jnp.multiply, operator.entries, v)
    again = lambda inner, v: product(inner, v)
    name = type(operator).__name__
    if name == "Sum":
        parts = [again(term, v) for term in operator.terms]
        return jax.tree.map(lambda *a: sum(a[1:], start=a[0]), *parts)
    if name == "Product":
        for factor in reversed(operator.factors):
            v = again(factor, v)
        return v
    if name == "Scaled":
        times = lambda a: a * operator.factor.astype(a.dtype)
        return jax.tree.map(times, again(operator.inner, v))
    if name == "Restricted":
        return operator.take(again(operator.inner, operator.embed(v)))
    if not hasattr(operator, "selected") or not hasattr(operator, "f"):
        raise Skipped(f"{name} has no other product")
    return _at_point(operator, v)


def _at_point(operator: Any, v: Vector) -> Vector:
    known: Any = hvp
    options = known._options(AUTO, False, False, None, None, operator.x, operator.where)
    direction = operator.direction(v)
    given = (direction, *operator.args)
    static = StaticArrays(operator.f.skeleton.static_arrays)
    call = Call(options, operator.f, operator.x, given, static_arrays=static)
    case = Case(call, direction)
    if case.is_complex:
        raise Skipped("a complex point")
    for multiply in hessian_products(case):
        try:
            leaves = multiply(case.x, jax.tree.leaves(v), case.weights())
        except Exception:
            continue
        return jax.tree.structure(v).unflatten(leaves)
    raise Skipped("plain JAX has no such derivative")


def _image(what: str, found: Any, A: Any, x: Vector, slack: float = 0) -> Alternatives:
    """Compare a vector with the product of an operator with another."""
    leaves = jax.tree.leaves(found)
    expected = lambda x: jax.tree.leaves(product(A, x))
    return [Comparison(what, leaves, expected, (x,), slack)]


def _random(A: Any) -> tuple[Vector, np.ndarray]:
    """Draw a vector of the space of an operator."""
    leaves, tree = jax.tree.flatten(A.like)
    if not leaves or any(map(jnp.iscomplexobj, leaves)):
        raise Skipped("no real space")
    numbers = np.random.default_rng(0).normal(size=sum(a.size for a in leaves))
    parts = split(numbers, leaves)
    return tree.unflatten(map(jnp.asarray, parts)), flat(parts)


def system(args: Any, keywords: Any, result: Any) -> Iterator[Alternatives]:
    """Compare A x with b, up to the residual that was told."""
    A, b = args[:2]
    if np.ndim(result.residual) or not np.isfinite(result.residual):
        raise Skipped("several systems, or none that was solved")
    b = A.vector(b, "verified()")
    yield _image("A x", b, A, result.x, 1.5 * float(result.residual))


def eigenpairs(args: Any, keywords: Any, result: Any) -> Iterator[Alternatives]:
    """Compare a random sum of vectors, times the values, with the product."""
    A, values = args[0], np.asarray(result.values, float)
    r = np.random.default_rng(0).normal(size=values.size)
    mixed = lambda r: jax.tree.map(
        lambda a: np.tensordot(r, np.asarray(a, wide(a.dtype)), 1).astype(a.dtype),
        result.vectors,
    )
    slack = 2 * float(np.abs(r) @ np.asarray(result.residuals, float))
    yield _image("A V", mixed(r * values), A, mixed(r), slack)


def inverse(args: Any, keywords: Any, result: Any) -> Iterator[Alternatives]:
    """Compare a random vector with the damped product of what the inverse makes of it."""
    A, damping = args[0], _damping(args, keywords)
    v = _random(A)[0]
    size = max(float(np.max(np.abs(a), initial=0)) for a in jax.tree.leaves(v))
    slack = size * (keywords.get("tol") or 1e-5)
    expected = lambda x: _damped(A, damping, x)
    yield [Comparison("A x", jax.tree.leaves(v), expected, (result.mv(v),), slack)]


def _damping(args: Any, keywords: Any) -> Any:
    return keywords.get("damping", args[1] if len(args) > 1 else 0.0)


def _damped(A: Any, damping: Any, v: Vector) -> list[Any]:
    pairs = zip(*map(jax.tree.leaves, (product(A, v), v)), strict=True)
    return [a + jnp.asarray(damping, b.dtype) * b for a, b in pairs]


def cholesky(args: Any, keywords: Any, result: Any) -> Iterator[Alternatives]:
    """Compare L L^T u with A u plus the damping times u."""
    A, damping = args[0], _damping(args, keywords)
    if not isinstance(result, jax.Array):
        raise Skipped("sparse factors")
    v, u = _random(A)
    factor = np.asarray(result, float)
    found = split(factor @ (factor.T @ u), jax.tree.leaves(v))
    yield [Comparison("L L' u", found, lambda v: _damped(A, damping, v), (v,))]


def matrix(args: Any, keywords: Any, result: Any) -> Iterator[Alternatives]:
    """Compare the product of a dense matrix with a random vector."""
    v, u = _random(args[0])
    found = split(np.asarray(result, float) @ u, jax.tree.leaves(v))
    yield _image("M v", found, args[0], v)


def block(args: Any, keywords: Any, result: Any) -> Iterator[Alternatives]:
    """Compare the product of a block with a random vector."""
    A, rows, columns = args[:3]
    part, tree = jax.tree.flatten(columns.take(_random(A)[0]))
    found = np.asarray(result, float) @ flat(part)

    def expected(part: list[Any]) -> list[Any]:
        whole = columns.put(tree.unflatten(part), A.like)
        image = jax.tree.leaves(rows.take(product(A, whole)))
        return [jnp.concatenate([a.ravel().astype(part[0].dtype) for a in image])]

    yield [Comparison("M v", [found.astype(part[0].dtype)], expected, (part,))]


def diagonal(args: Any, keywords: Any, result: Any) -> Iterator[Alternatives]:
    """Compare the first and the last entry of each array of a diagonal."""
    A, tree = args[0], jax.tree.structure(result)
    leaves = jax.tree.leaves(result)
    _random(A)
    for i, leaf in enumerate(leaves[:4]):
        for place in {0, leaf.size - 1} if leaf.size else ():
            unit = [np.zeros(a.shape, a.dtype) for a in leaves]
            unit[i].flat[place] = 1
            entry = lambda v, i=i, place=place: [
                jax.tree.leaves(product(A, tree.unflatten(v)))[i].ravel()[place]
            ]
            found = [np.asarray(leaf).ravel()[place]]
            yield [Comparison(f"entry {place} of array {i}", found, entry, (unit,))]


SOLVERS: dict[str, Route] = {
    "linop._cg.cg": system,
    "linop._minres.minres": system,
    "linop._solve.solve": system,
    "linop._eigh.eigh": eigenpairs,
    "linop._solve.cholesky": cholesky,
    "linop._operator.inverse": inverse,
    "linop._kfac_operator._computed": kfac,
    "linop._dense._matrix": matrix,
    "linop._dense._block": block,
    "linop._dense._diagonal": diagonal,
}
