"""A warning for piecewise-linear functions: their Hessian is zero by structure."""

import warnings
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    Function,
    Jaxpr,
    JaxprEqn,
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

from ._user_code import user_level


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
