"""A warning for functions that bend nowhere: their Hessian is zero by structure."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import (
    JaxprEqn,
    ZeroHessianWarning,
    equations,
    function_name,
    function_place,
    source_line,
    sub_jaxprs,
    traits_of,
    used_inputs,
)
from hotk.mode import Nested

from ._level import user_level


def kinks(jaxpr: Any) -> tuple[str, ...]:
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
    inner = (j for value in equation.params.values() for j in sub_jaxprs(value))
    return [e for jaxpr in inner for e in equations(jaxpr)]


def warn_if_flat(
    call: Any,
    f: Callable[[Any], Any],
    point: Any,
    mode: Nested,
    places: tuple[str, ...],
) -> None:
    """Warn if no direction has a part in the product of the Hessian with it.

    The product is linear in the direction, so it is zero if it does not depend on it.

    Args:
        call: The call, for the message.
        f: The function of the operator, of one argument, with `aux`.
        point: Where.
        mode: The nesting.
        places: Where the kinks are.
    """

    def total(x: Any) -> tuple[Any, None]:
        leaves = [jnp.real(leaf) for leaf in jax.tree.leaves(f(x)[0])]
        parts = [jnp.sum(a) for a in leaves if jnp.issubdtype(a.dtype, jnp.floating)]
        return sum((p.astype(parts[0].dtype) for p in parts[1:]), parts[0]), None

    product = lambda v: mode.product(total, point, v)[2]
    if any(used_inputs(jax.make_jaxpr(product)(point))):
        return
    more = ", ..." if len(places) > 2 else ""
    warnings.warn(
        f"`{call.options.kind.call()}`: the Hessian of `{function_name(call.f)}`"
        f"{function_place(call.f)} by `x` is zero, as the function is linear in "
        f"pieces: {', '.join(places[:2])}{more}. For curvature take a smooth function "
        "(`jax.nn.softplus` for `relu`), a loss that bends, or `hotk.ggnvp`.",
        ZeroHessianWarning,
        stacklevel=user_level(),
    )
