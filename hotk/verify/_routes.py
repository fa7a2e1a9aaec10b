"""What each operator is compared with: derivatives of plain JAX, in other nestings.

One function an operator, in one table. None of them uses a mode of hotk.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import Leaf
from hotk.higher import SymmetricTensor

from ._case import Alternatives, Arrays, Case, dense, flat, inner, number, split
from ._comparison import Comparison, Skipped
from ._curvature import CURVATURES, curvature_product
from ._operations import wide


# Nested derivatives cost exponentially more with the order.
_MOST_NESTED = 4
_MOST_TERMS = 40

Route: TypeAlias = Callable[[Case], Iterator[Alternatives]]


def _along(case: Case, found: Arrays, v: Arrays) -> Alternatives:
    """Compare a derivative of all outputs along a direction."""
    w = case.direction(case.y)
    return [
        Comparison(
            "J v", found, lambda x, v: jax.jvp(case.f, (x,), (v,))[1], (case.x, v)
        ),
        Comparison(
            "w' J v",
            [number(flat(w) @ flat(found), case.y)],
            lambda x, v, w: [inner(jax.grad(case.number)(x, w), v)],
            (case.x, v, w),
        ),
    ]


def _gradient(case: Case, found: Arrays, w: Arrays) -> Alternatives:
    """Compare a gradient of the weighted outputs."""
    u = case.direction(case.x)
    return [
        Comparison("gradient", found, jax.grad(case.number), (case.x, w)),
        Comparison(
            "gradient along u",
            [number(flat(found) @ flat(u), case.x)],
            lambda x, w, u: [jax.jvp(lambda x: case.number(x, w), (x,), (u,))[1]],
            (case.x, w, u),
        ),
    ]


def _product(case: Case, found: Arrays, v: Arrays, w: Arrays) -> Alternatives:
    """Compare a product with the Hessian of the weighted outputs."""
    u = case.direction(case.x)
    along = [number(flat(found) @ flat(u), case.x)]
    return [
        *(
            Comparison("H v", found, way, (case.x, v, w))
            for way in hessian_products(case)
        ),
        Comparison(
            "u' H v",
            along,
            lambda x, u, v, w: [_twice(case, x, u, v, w)],
            (case.x, u, v, w),
        ),
    ]


def hessian_products(case: Case) -> Sequence[Callable[..., Arrays]]:
    """Return what multiplies with the Hessian, each from a point, a vector, weights."""
    if isinstance(case.inside, CURVATURES) and case.call.traced is None:
        return [lambda x, v, w: curvature_product(case, x, v)]
    slope = jax.grad(case.number)
    return [
        lambda x, v, w: jax.jvp(lambda x: slope(x, w), (x,), (v,))[1],
        lambda x, v, w: jax.grad(lambda x: inner(slope(x, w), v))(x),
    ]


def _twice(case: Case, x: Arrays, u: Arrays, v: Arrays, w: Arrays) -> Leaf:
    if isinstance(case.inside, CURVATURES) and case.call.traced is None:
        return inner(u, curvature_product(case, x, v))
    weighted = lambda x: case.number(x, w)
    return jax.jvp(lambda x: jax.jvp(weighted, (x,), (u,))[1], (x,), (v,))[1]


def _value(case: Case) -> Iterator[Alternatives]:
    if case.value is not None:
        value = jax.tree.leaves(case.value)
        yield [Comparison("value", value, case.f, (case.x,))]


def _gradient_of(case: Case, leaves: Arrays) -> Alternatives:
    w = case.weights()
    return _gradient(case, _weighted(case, leaves, w), w)


def _weighted(case: Case, leaves: Arrays, w: Arrays) -> Arrays:
    """Return the sum over outputs, each times its weight, of a vector for each."""
    if case.one:
        return leaves
    if case.is_complex:
        raise Skipped("several outputs of a complex point")
    return split(np.real(flat(w) @ dense(leaves, [case.y, case.x])), case.x)


def gradient(case: Case) -> Iterator[Alternatives]:
    """Compare a gradient, or a Jacobian, multiplied by random weights."""
    yield from _value(case)
    yield _gradient_of(case, case.found)


def jvp(case: Case) -> Iterator[Alternatives]:
    """Compare a product with the Jacobian; a batch of them by a random sum."""
    yield from _value(case)
    found, v = _batch(case)
    yield _along(case, found, v)


def derivative(case: Case) -> Iterator[Alternatives]:
    """Compare the derivative by a number."""
    yield from _value(case)
    yield _along(case, case.found, [np.ones((), a.dtype) for a in case.x])


def vjp(case: Case) -> Iterator[Alternatives]:
    """Compare a product of a cotangent with the Jacobian."""
    yield from _value(case)
    found, u = _batch(case)
    yield [
        Comparison(
            "u' J", found, lambda x, u: jax.vjp(case.f, x)[1](u)[0], (case.x, u)
        ),
        *_gradient(case, found, u)[1:],
    ]


def hvp(case: Case) -> Iterator[Alternatives]:
    """Compare a product with the Hessian; a batch of them by a random sum."""
    yield from _value(case)
    for slopes in case.others:
        yield _gradient_of(case, jax.tree.leaves(slopes))
    w = case.weights()
    found, v = _batch(case)
    yield _product(case, _weighted(case, found, w), v, w)


def _batch(case: Case) -> tuple[Arrays, Arrays]:
    """Return result and direction; of a batch of them a random sum of each."""
    if not case.options.batched:
        return case.found, case.v
    count = len(case.v[0])
    r = case.random.normal(size=count)
    mixed = lambda a: np.tensordot(r, np.asarray(a).astype(wide(a.dtype)), 1)
    both = case.found, case.v
    return tuple([mixed(a).astype(a.dtype) for a in leaves] for leaves in both)


def hessian(case: Case) -> Iterator[Alternatives]:
    """Compare a Hessian by its product with one random vector."""
    yield from _value(case)
    for slopes in case.others:
        yield _gradient_of(case, jax.tree.leaves(slopes))
    w, v = case.weights(), case.direction(case.x)
    matrix = np.real(
        np.tensordot(flat(w), dense(case.found, [case.y, case.x, case.x]), 1)
    )
    yield _product(case, split(matrix @ flat(v), case.x), v, w)


def quadratic_form(case: Case) -> Iterator[Alternatives]:
    """Compare the curvature along a direction, the last one of a batch."""
    last = (lambda a: a[-1]) if case.options.batched else (lambda a: a)
    v, w = list(map(last, case.v)), case.weights()
    found = [np.asarray(last(case.found[0]))]
    nested = lambda x, v, w: [_twice(case, x, v, v, w)]
    mixed = lambda x, v, w: [inner(hessian_products(case)[0](x, v, w), v)]
    at = (case.x, v, w)
    yield [Comparison("v' H v", found, way, at) for way in (nested, mixed)]


def hessian_diagonal(case: Case) -> Iterator[Alternatives]:
    """Compare entries of the diagonal: all of few, else one of each array."""
    w, diagonal = case.weights(), flat(case.found)
    nested = lambda x, u, w: [_twice(case, x, u, u, w)]
    mixed = lambda x, u, w: [inner(hessian_products(case)[0](x, u, w), u)]
    for i, unit in case.units():
        found, at = [number(diagonal[i], case.x)], (case.x, unit, w)
        yield [Comparison(f"entry {i}", found, way, at) for way in (nested, mixed)]


def second_derivative(case: Case) -> Iterator[Alternatives]:
    """Compare the second derivative by a number."""
    one = [np.ones((), a.dtype) for a in case.x]
    twice = lambda x, v: _nested(case, x, [v, v])
    yield [Comparison("second derivative", case.found, twice, (case.x, one))]


def _nested(case: Case, x: Arrays, along: Sequence[Arrays]) -> Arrays:
    """Differentiate along one direction after the other, by nested `jax.jvp`."""
    if len(along) > _MOST_NESTED:
        raise Skipped(f"an order above {_MOST_NESTED}")
    f = case.f
    for v in along:
        f = lambda x, f=f, v=v: jax.jvp(f, (x,), (v,))[1]
    return f(x)


def taylor(case: Case) -> Iterator[Alternatives]:
    """Compare the lowest coefficients along a direction, the last one of a batch."""
    last = (lambda a: a[-1]) if case.options.batched else (lambda a: a)
    v = list(map(last, case.v))
    scaled = case.options.definition.name == "taylor"
    for order, found in enumerate(case.result[: _MOST_NESTED + 1]):
        factor = math.factorial(order) if scaled else 1
        leaves = [np.asarray(last(a)) * factor for a in jax.tree.leaves(found)]
        typed = [a.astype(b.dtype) for a, b in zip(leaves, case.y, strict=True)]
        nested = lambda x, v, order=order: _nested(case, x, [v] * order)
        yield [Comparison(f"order {order}", typed, nested, (case.x, v))]


def tvp(case: Case) -> Iterator[Alternatives]:
    """Compare a derivative along several directions, the last ones of a batch."""
    last = (lambda a: a[-1]) if case.options.batched else (lambda a: a)
    along = [list(map(last, case.tangent(v))) for v in case.taken]
    found = list(map(last, case.found))
    nested = lambda x, *along: _nested(case, x, along)
    yield [Comparison("derivative", found, nested, (case.x, *along))]


def derivative_tensor(case: Case) -> Iterator[Alternatives]:
    """Compare a derivative by its value along random directions."""
    order: Any = case.options.order
    along = [case.direction(case.x) for _ in range(order)]
    is_tensor = lambda a: isinstance(a, SymmetricTensor)
    leaves = jax.tree.leaves(case.result, is_leaf=is_tensor)
    if any(map(is_tensor, leaves)):
        whole = jax.ShapeDtypeStruct((flat(case.x).size,), float)
        spaces, leaves = [[whole]] * order, [a.full() for a in leaves]
    else:
        spaces = [case.x] * order
    numbers = dense(leaves, [case.y, *spaces])
    for v in reversed(along):
        numbers = numbers @ flat(v)
    nested = lambda x, *along: _nested(case, x, along)
    found = split(numbers, case.y)
    yield [Comparison("derivative", found, nested, (case.x, *along))]


def _partials(case: Case, x: Arrays, weights: Sequence[Leaf]) -> Arrays:
    """Sum the partial derivatives that a call asks for."""
    order: Any = case.options.order
    sums: Arrays = []
    for weight, index in zip(weights, order.indices, strict=True):
        along = [case.unit(place) for place, power in index for _ in range(power)]
        part = [a * jnp.asarray(weight, a.dtype) for a in _nested(case, x, along)]
        sums = [a + b for a, b in zip(sums, part, strict=True)] if sums else part
    return sums


def partial(case: Case) -> Iterator[Alternatives]:
    """Compare a partial derivative, or a sum of them with coefficients."""
    order: Any = case.options.order
    given = [np.asarray(c) for c in jax.tree.leaves(case.taken)]
    weights = given or [np.ones(())] * len(order.indices)
    if len(weights) > _MOST_TERMS:
        raise Skipped(f"more than {_MOST_TERMS} terms")
    summed = lambda x: _partials(case, x, weights)
    yield [Comparison("derivative", case.found, summed, (case.x,))]


def laplacian(case: Case) -> Iterator[Alternatives]:
    """Compare the sum of second derivatives along all unit directions."""
    yield from _value(case)

    def summed(x: Arrays, basis: Arrays) -> Arrays:
        each = jax.vmap(lambda u: _nested(case, x, [u, u]))(basis)
        return [jnp.sum(a, axis=0) for a in each]

    yield [Comparison("Laplacian", case.found, summed, (case.x, case.basis(256)))]


def biharmonic(case: Case) -> Iterator[Alternatives]:
    """Compare the sum of fourth derivatives along all pairs of unit directions."""

    def summed(x: Arrays, basis: Arrays) -> Arrays:
        pair = lambda u, v: _nested(case, x, [u, u, v, v])
        row = lambda u: jax.vmap(lambda v: pair(u, v))(basis)
        return [jnp.sum(a, axis=(0, 1)) for a in jax.vmap(row)(basis)]

    yield [Comparison("biharmonic", case.found, summed, (case.x, case.basis(16)))]


def divergence(case: Case) -> Iterator[Alternatives]:
    """Compare the trace of the Jacobian, by all unit directions."""
    yield from _value(case)

    field = lambda x: case.tangent(case.tree(x))

    def summed(x: Arrays, basis: Arrays) -> Arrays:
        entry = lambda u: inner(u, jax.jvp(field, (x,), (u,))[1])
        return [jnp.sum(jax.vmap(entry)(basis), axis=0)]

    yield [Comparison("divergence", case.found, summed, (case.x, case.basis(256)))]


def sparse_hessian(case: Case) -> Iterator[Alternatives]:
    """Compare a sparse Hessian by its product with one random vector."""
    yield from _value(case)
    for slopes in case.others:
        yield _gradient_of(case, jax.tree.leaves(slopes))
    v, w = case.direction(case.x), case.weights()
    yield _product(case, split(_times(case.result, flat(v)), case.x), v, w)


def sparse_jacobian(case: Case) -> Iterator[Alternatives]:
    """Compare a sparse Jacobian by its product with one random vector."""
    yield from _value(case)
    v = case.direction(case.x)
    yield _along(case, split(_times(case.result, flat(v)), case.y), v)


def _times(result: Any, v: np.ndarray) -> np.ndarray:
    """Multiply a sparse matrix with a vector, by NumPy."""
    matrix = getattr(result, "matrix", result)
    if matrix is None:
        raise Skipped("it was found to be dense")
    rows, columns = matrix.pattern.rows, matrix.pattern.cols
    values = np.asarray(matrix.values).astype(wide(matrix.values.dtype))
    product = np.zeros(matrix.pattern.shape[0], np.result_type(values, v))
    np.add.at(product, np.asarray(rows), values * v[np.asarray(columns)])
    return product


ROUTES: dict[str, Route] = {
    "gradient": gradient,
    "value_and_gradient": gradient,
    "jacobian": gradient,
    "value_and_jacobian": gradient,
    "jvp": jvp,
    "value_and_jvp": jvp,
    "vjp": vjp,
    "value_and_vjp": vjp,
    "derivative": derivative,
    "value_and_derivative": derivative,
    "hvp": hvp,
    "value_gradient_and_hvp": hvp,
    "hessian": hessian,
    "value_gradient_and_hessian": hessian,
    "quadratic_form": quadratic_form,
    "hessian_diagonal": hessian_diagonal,
    "second_derivative": second_derivative,
    "derivatives": taylor,
    "taylor": taylor,
    "tvp": tvp,
    "derivative_tensor": derivative_tensor,
    "partial": partial,
    "differential_operator": partial,
    "laplacian": laplacian,
    "value_and_laplacian": laplacian,
    "biharmonic": biharmonic,
    "divergence": divergence,
    "value_and_divergence": divergence,
    "sparse_hessian": sparse_hessian,
    "value_gradient_and_sparse_hessian": sparse_hessian,
    "sparse_jacobian": sparse_jacobian,
    "value_and_sparse_jacobian": sparse_jacobian,
}
