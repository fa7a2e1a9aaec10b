"""What each operator is compared with: derivatives of plain JAX, in other nestings.

One function an operator, in one table. None of them uses a mode of hotk.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import jax
import numpy as np

from ._case import Alternatives, Arrays, Case, dense, flat, inner, number, split
from ._comparison import Comparison, Skipped
from ._operations import wide


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
    slope = jax.grad(case.number)
    return [
        Comparison(
            "H v",
            found,
            lambda x, v, w: jax.jvp(lambda x: slope(x, w), (x,), (v,))[1],
            (case.x, v, w),
        ),
        Comparison(
            "H v",
            found,
            lambda x, v, w: jax.grad(lambda x: inner(slope(x, w), v))(x),
            (case.x, v, w),
        ),
        Comparison(
            "u' H v",
            [number(flat(found) @ flat(u), case.x)],
            lambda x, u, v, w: [_twice(case, x, u, v, w)],
            (case.x, u, v, w),
        ),
    ]


def _twice(case: Case, x: Arrays, u: Arrays, v: Arrays, w: Arrays) -> jax.Array:
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
    for slopes in getattr(case, "others", ()):
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
    for slopes in getattr(case, "others", ()):
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
    slope = jax.grad(case.number)
    product = lambda x, v, w: jax.jvp(lambda x: slope(x, w), (x,), (v,))[1]
    mixed = lambda x, v, w: [inner(product(x, v, w), v)]
    at = (case.x, v, w)
    yield [
        Comparison("v' H v", found, nested, at),
        Comparison("v' H v", found, mixed, at),
    ]


def hessian_diagonal(case: Case) -> Iterator[Alternatives]:
    """Compare entries of the diagonal: all of few, else one of each array."""
    w, diagonal = case.weights(), flat(case.found)
    for i, unit in case.units():
        found = [number(diagonal[i], case.x)]
        form = lambda x, u, w: [_twice(case, x, u, u, w)]
        yield [Comparison(f"entry {i}", found, form, (case.x, unit, w))]


def second_derivative(case: Case) -> Iterator[Alternatives]:
    """Compare the second derivative by a number."""
    one = [np.ones((), a.dtype) for a in case.x]
    twice = lambda x, v: _repeated(case.f, 2)(x, v)
    yield [Comparison("second derivative", case.found, twice, (case.x, one))]


def _repeated(f: Callable[[Arrays], Arrays], order: int) -> Callable[..., Arrays]:
    """Return the derivative of an order along a direction, by nested `jax.jvp`."""
    if order == 0:
        return lambda x, v: f(x)
    below = _repeated(f, order - 1)
    return lambda x, v: jax.jvp(lambda x: below(x, v), (x,), (v,))[1]


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
}
