"""What each operator is compared with: derivatives of plain JAX, in other nestings.

Every result, multiplied with random vectors, is a sum of derivatives of the outputs
along directions, each sum with weights of the outputs. Those are taken by `jax.grad`
and nested `jax.jvp`. One function an operator, in one table; none uses a mode of hotk.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import Leaf
from hotk._higher import SymmetricTensor

from ._case import Arrays, Case, along, dense, flat, inner, split
from ._comparison import Comparison, Skipped
from ._curvature import CURVATURES, curvature
from ._operations import epsilon, wide


Route: TypeAlias = Callable[[Case], Iterator[Comparison]]
Term: TypeAlias = tuple[Arrays, Sequence[Arrays]]
"""Weights of the outputs, and directions."""

# Nested derivatives cost exponentially more with the order.
_MOST_NESTED = 4
_MOST_TERMS = 40
_MOST_DIRECTIONS = 256
_MOST_ENTRIES = 6


def second(case: Case, x: Arrays, w: Arrays, u: Arrays, v: Arrays) -> Leaf:
    """Return the second derivative along two directions."""
    inside: Any = case.inside
    if isinstance(inside, CURVATURES) and case.call.traced is None:
        return curvature(inside, lambda x: case.tree(x, inside.model), x, u, v)
    return _forward(case, x, w, [u, v])


def _forward(case: Case, x: Arrays, w: Arrays, vectors: Sequence[Arrays]) -> Leaf:
    return along(lambda x: inner(w, case.f(x)), vectors)(x)


def _reverse(case: Case, x: Arrays, w: Arrays, vectors: Sequence[Arrays]) -> Leaf:
    slope = jax.grad(lambda x: inner(w, case.f(x)))
    return along(lambda x: inner(slope(x), vectors[0]), vectors[1:])(x)


def _sum(case: Case, what: str, found: Any, terms: Sequence[Term]) -> Comparison:
    """Compare a number with a sum of derivatives."""
    orders = [len(vectors) for _, vectors in terms]
    if max(orders) > _MOST_NESTED:
        raise Skipped(f"an order above {_MOST_NESTED}")
    if len(terms) > _MOST_TERMS:
        raise Skipped(f"more than {_MOST_TERMS} terms")
    dtype = max((a.dtype for a in (*case.x, *case.y)), key=epsilon)
    number = np.asarray(np.real(found)).astype(jnp.finfo(dtype).dtype)
    ways: list[Callable[..., Leaf]] = [_forward]
    if orders == [2]:
        is_curved = isinstance(case.inside, CURVATURES) and case.call.traced is None
        curved = lambda case, x, w, vectors: second(case, x, w, *vectors)
        ways = [curved] if is_curved else [_reverse, _forward]
    elif orders == [1]:
        ways = [_reverse, _forward]

    def summed(way: Callable[..., Leaf], x: Arrays, terms: Sequence[Term]) -> Arrays:
        parts = [way(case, x, w, vectors) for w, vectors in terms]
        return [functools.reduce(jnp.add, parts)]

    at = (case.x, terms)
    return Comparison(what, [number], [functools.partial(summed, w) for w in ways], at)


def _form(
    case: Case, what: str, leaves: Any, vectors: Sequence[Arrays], last: int = 0
) -> Comparison:
    """Compare a result, with the last vectors in its last axes, with a derivative."""
    w = case.weights()
    applied = vectors[len(vectors) - last :]
    spaces = [case.x] * last
    if last and case.y[0].shape != () and any(map(jnp.iscomplexobj, case.x)):
        raise Skipped("several outputs of a complex point")
    numbers = dense(jax.tree.leaves(leaves), [case.y, *spaces])
    for v in reversed(applied):
        numbers = numbers @ flat(v)
    return _sum(case, what, flat(w) @ numbers, [(w, vectors)])


def _others(case: Case) -> Iterator[Comparison]:
    """Compare value and gradient, where they are among the results."""
    if case.call.options.definition.value:
        yield _form(case, "value", case.results[0], [])
    for gradient in case.results[1:-1]:
        yield _form(case, "gradient", gradient, [case.direction()], 1)


def _along(count: int, applied: int, kind: str = "") -> Route:
    """Compare a derivative along `count` directions, as many applied to the result.

    Args:
        count: The order.
        applied: How many axes the result has for it.
        kind: `"v"` if the first direction is that of the call, `"vv"` if all are, `"1"`
            if the point is a number.
    """

    def route(case: Case) -> Iterator[Comparison]:
        yield from _others(case)
        vectors = [case.direction() for _ in range(count)]
        if kind == "1":
            vectors = [[np.ones((), a.dtype) for a in case.x]] * count
        elif kind:
            vectors = [case.v] * len(kind) + vectors[len(kind) :]
        yield _form(case, f"order {count}", case.results[-1], vectors, applied)

    return route


def _vjp(case: Case) -> Iterator[Comparison]:
    yield from _others(case)
    t, found = case.direction(), jax.tree.leaves(case.results[-1])
    yield _sum(case, "u' J t", flat(found) @ flat(t), [(case.v, [t])])


def _unit(case: Case, number: int) -> Arrays:
    numbers = np.zeros(sum(a.size for a in case.x))
    numbers[number] = 1
    return split(numbers, case.x)


def _diagonal(case: Case) -> Iterator[Comparison]:
    """Compare all entries of a small diagonal, else one of each of its arrays."""
    sizes = np.array([a.size for a in case.x])
    places = np.arange(sizes.sum())
    if places.size > _MOST_ENTRIES:
        full, starts = sizes > 0, np.cumsum(sizes) - sizes
        drawn = case.random.integers(starts[full], starts[full] + sizes[full])
        places = np.array([*drawn[: _MOST_ENTRIES - 1], places[-1]])
    diagonal = flat(jax.tree.leaves(case.results[-1]))
    for i in places:
        term = (case.weights(), [_unit(case, i)] * 2)
        yield _sum(case, f"entry {i}", diagonal[i], [term])


def _taylor(case: Case) -> Iterator[Comparison]:
    """Compare the lowest coefficients along a direction."""
    scaled = case.call.options.definition.name == "taylor"
    for k, found in enumerate(case.results[0][: _MOST_NESTED + 1]):
        factor = math.factorial(k) if scaled else 1
        leaves = [np.asarray(a) * np.asarray(factor, a.dtype) for a in _leaves(found)]
        yield _form(case, f"order {k}", leaves, [case.v] * k)


def _leaves(tree: Any) -> Arrays:
    return jax.tree.leaves(tree)


def _tvp(case: Case) -> Iterator[Comparison]:
    last = -1 if case.call.options.batched else ...
    vectors = [[a[last] for a in case.tangent(v)] for v in case.taken]
    yield _form(case, "derivative", case.results[0], vectors)


def _tensor(case: Case) -> Iterator[Comparison]:
    order: Any = case.call.options.order
    is_tensor = lambda a: isinstance(a, SymmetricTensor)
    leaves = jax.tree.leaves(case.results[0], is_leaf=is_tensor)
    vectors, w = [case.direction() for _ in range(order)], case.weights()
    spaces = [case.x] * order
    if any(map(is_tensor, leaves)):
        whole = jax.ShapeDtypeStruct((flat(case.x).size,), float)
        leaves, spaces = [a.full() for a in leaves], [[whole]] * order
    numbers = dense(leaves, [case.y, *spaces])
    for v in vectors:
        numbers = numbers @ flat(v)
    yield _sum(case, "derivative", flat(w) @ numbers, [(w, vectors)])


def _partial(case: Case) -> Iterator[Comparison]:
    """Compare a partial derivative, or a sum of them with coefficients."""
    order: Any = case.call.options.order
    takes, w = case.call.options.definition.takes, case.weights()
    found = flat(w) @ flat(jax.tree.leaves(case.results[0]))
    factors = [np.asarray(c) for c in _leaves(case.taken)] if takes else [np.ones(())]
    terms: list[Term] = []
    for c, index in zip(factors, order.indices, strict=True):
        vectors = [_unit(case, place) for place, power in index for _ in range(power)]
        terms.append(([np.asarray(a * c).astype(a.dtype) for a in w], vectors))
    yield _sum(case, "derivative", found, terms)


def _trace(order: int) -> Route:
    """Compare a sum over all unit directions: of second or fourth derivatives.

    The divergence, of order 1, has the weight of each output in its own direction.
    """

    def route(case: Case) -> Iterator[Comparison]:
        yield from _others(case)
        w, n = case.weights(), sum(a.size for a in case.x)
        count = n ** max(order // 2, 1)
        if count > _MOST_DIRECTIONS:
            raise Skipped(f"more than {_MOST_DIRECTIONS} directions")
        found = flat(_leaves(case.results[-1]))
        found = found[0] if order == 1 else flat(w) @ found
        units = [
            np.stack(a) for a in zip(*(_unit(case, i) for i in range(n)), strict=True)
        ]

        def summed(x: Arrays, units: Arrays) -> Arrays:
            if order == 1:
                field = lambda x: case.tangent(case.tree(x))
                one = lambda u: inner(u, along(field, [u])(x))
            elif order == 2:
                one = lambda u: _forward(case, x, w, [u, u])
            else:
                pair = lambda u, v: _forward(case, x, w, [u, u, v, v])
                one = lambda u: jnp.sum(jax.vmap(lambda v: pair(u, v))(units))
            return [jnp.sum(jax.vmap(one)(units))]

        number = _sum(case, "", found, [(w, [])]).found
        yield Comparison("sum over directions", number, [summed], (case.x, units))

    return route


def _sparse(order: int) -> Route:
    """Compare the product of a sparse matrix with a random vector, by NumPy."""

    def route(case: Case) -> Iterator[Comparison]:
        yield from _others(case)
        result: Any = case.results[-1]
        matrix, v = getattr(result, "matrix", result), case.direction()
        if matrix is None:
            raise Skipped("it was found to be dense")
        values = np.asarray(matrix.values).astype(wide(matrix.values.dtype))
        product = np.zeros(matrix.pattern.shape[0], np.result_type(values, 1.0))
        rows, columns = map(np.asarray, (matrix.pattern.rows, matrix.pattern.cols))
        np.add.at(product, rows, values * flat(v)[columns])
        w = case.weights()
        if order == 1:
            yield _sum(case, "w' M v", flat(w) @ product, [(w, [v])])
        else:
            u = case.direction()
            yield _sum(case, "u' M v", flat(u) @ product, [(w, [u, v])])

    return route


ROUTES: dict[str, Route] = {
    "gradient": _along(1, 1),
    "jacobian": _along(1, 1),
    "jvp": _along(1, 0, "v"),
    "vjp": _vjp,
    "derivative": _along(1, 0, "1"),
    "divergence": _trace(1),
    "hvp": _along(2, 1, "v"),
    "hessian": _along(2, 2),
    "quadratic_form": _along(2, 0, "vv"),
    "second_derivative": _along(2, 0, "1"),
    "hessian_diagonal": _diagonal,
    "derivatives": _taylor,
    "taylor": _taylor,
    "tvp": _tvp,
    "derivative_tensor": _tensor,
    "partial": _partial,
    "differential_operator": _partial,
    "laplacian": _trace(2),
    "biharmonic": _trace(4),
    "sparse_hessian": _sparse(2),
    "sparse_jacobian": _sparse(1),
}


def route_of(name: str) -> Route | None:
    """Return the route of an operator; its value and gradient are compared as well."""
    for beginning in ("value_gradient_and_", "value_and_", ""):
        if name.startswith(beginning):
            return ROUTES.get(name.removeprefix(beginning))
    return None
