"""Warnings for Hessians that are zero by structure, and derivatives nested by hand."""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    Function,
    Jaxpr,
    JaxprEqn,
    NestedDerivativesWarning,
    Point,
    ZeroHessianWarning,
    equations,
    function_name,
    function_place,
    inner_jaxprs,
    source_line,
    traits_of,
    used_inputs,
)

from ._per_code import user_level


def kinks(jaxpr: Jaxpr) -> tuple[str, ...]:
    """Return the places of a program's kinks if it may be linear but for them.

    They are those of the outermost calls: what a jitted function holds is traced once,
    with the line of its first caller.
    """
    found = []
    for equation in jaxpr.eqns:
        for each in (equation, *_equations_inside(equation)):
            traits = traits_of(each)
            if traits.kinked:
                found.append(f"`{each.primitive.name}` at {source_line(equation)}")
            elif not traits.is_straight:
                return ()
    return tuple(dict.fromkeys(found))


def _equations_inside(equation: JaxprEqn) -> list[JaxprEqn]:
    inner = inner_jaxprs(equation.params.values())
    return [e for jaxpr in inner for e in equations(jaxpr)]


def warn_if_zero_hessian(
    name: str,
    function: Function,
    f: Callable[[Point], tuple[PyTree, PyTree]],
    point: Point,
    product: Callable[[Callable[[Point], tuple[Array, None]], PyTree], PyTree],
    places: tuple[str, ...],
) -> None:
    """Warn if no direction has a part in the product of the Hessian with it.

    The product is linear in the direction, so it is zero if it does not depend on it.

    Args:
        name: How the operator is called: `hvp(f, x, v)`.
        function: The function of the user.
        f: The function of the operator, of one argument, with `aux`.
        point: Where.
        product: From a scalar function and a direction to the product at the point.
        places: Where the kinks are.
    """

    def total(x: Point) -> tuple[Array, None]:
        leaves = [jnp.real(leaf) for leaf in jax.tree.leaves(f(x)[0])]
        parts = [jnp.sum(a) for a in leaves if jnp.issubdtype(a.dtype, jnp.floating)]
        return sum((p.astype(parts[0].dtype) for p in parts[1:]), parts[0]), None

    closed = jax.make_jaxpr(lambda v: product(total, v))(point)
    if any(used_inputs(closed)):
        return
    more = ", ..." if len(places) > 2 else ""
    warnings.warn(
        f"`{name}`: the Hessian of `{function_name(function)}`"
        f"{function_place(function)} by `x` is zero, because the function is piecewise "
        f"linear: {', '.join(places[:2])}{more}. For curvature use a smooth function "
        "(`jax.nn.softplus` for `relu`), a loss that is not linear, or `hotk.ggnvp`.",
        ZeroHessianWarning,
        stacklevel=user_level(),
    )


_HIGHEST = 3
# Equations below which nothing is lost: derivatives of solutions, or of short formulas.
_SHORT = 250


def warn_if_nested(
    name: str, function: Function, jaxpr: Jaxpr, inner: int, outer: int
) -> None:
    """Warn if a function holds operators, and this one makes the order too high.

    A short program does not trigger the warning, as nothing is lost.

    Args:
        name: How the operator is called: `hvp(f, x, v)`.
        function: The function of the user.
        jaxpr: Its program.
        inner: The order of the derivatives that the function nests already.
        outer: How many more there are now; none in Taylor mode.
    """
    order = inner + outer
    if not inner or not outer or order <= _HIGHEST:
        return
    count = _count(jaxpr)
    if count < _SHORT:
        return
    warnings.warn(
        f"`{name}`: derivatives of order {order} by nesting: the program of "
        f"`{function_name(function)}`{function_place(function)} has {count} "
        "equations already, and each further order makes it two to four times longer. "
        "If all of them are by the same variable, Taylor mode has them in one pass: "
        f"`hotk.derivatives(f, x, v, order={order})` along a direction, "
        f"`hotk.derivative_tensor(f, x, order={order})` for all entries, "
        "`hotk.partial(f, x, index)` or `hotk.tvp(f, x, v1, v2, ...)` for one, "
        "`hotk.laplacian` and `hotk.differential_operator` for sums of them. The "
        "result is right as it is.",
        NestedDerivativesWarning,
        stacklevel=user_level(),
    )


def _count(jaxpr: Jaxpr) -> int:
    """Count equations, but for those of solvers: see `nested_order`."""
    return len(jaxpr.eqns) + sum(
        _count(inner)
        for equation in jaxpr.eqns
        if equation.primitive.name != "while"
        for inner in inner_jaxprs(equation.params.values())
    )
