"""A warning for functions that bend nowhere: their Hessian is zero by structure."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import (
    ZeroHessianWarning,
    equations,
    function_name,
    function_place,
    source_line,
    sub_jaxprs,
    used_inputs,
)
from hotk.mode import Nested

from ._level import user_level


# What is linear in an argument while the others are held, and what only moves numbers.
_STRAIGHT = frozenset(
    {
        "add",
        "add_any",
        "broadcast",
        "broadcast_in_dim",
        "concatenate",
        "conv_general_dilated",
        "convert_element_type",
        "copy",
        "cumsum",
        "div",
        "dot_general",
        "dynamic_slice",
        "dynamic_update_slice",
        "eq",
        "expand_dims",
        "gather",
        "ge",
        "gt",
        "imag",
        "iota",
        "le",
        "lt",
        "mul",
        "ne",
        "neg",
        "not",
        "or",
        "and",
        "pad",
        "pjit",
        "jit",
        "custom_jvp_call",
        "checkpoint",
        "remat",
        "remat2",
        "scan",
        "while",
        "cond",
        "real",
        "reduce_sum",
        "reduce_window_sum",
        "reshape",
        "rev",
        "scatter",
        "scatter-add",
        "scatter_add",
        "select_and_scatter_add",
        "slice",
        "split",
        "squeeze",
        "stop_gradient",
        "sub",
        "transpose",
        "xor",
        "sharding_constraint",
    }
)
# What is linear in pieces.
_KINKED = frozenset(
    {
        "abs",
        "argmax",
        "argmin",
        "ceil",
        "clamp",
        "cummax",
        "cummin",
        "floor",
        "max",
        "min",
        "reduce_max",
        "reduce_min",
        "reduce_window_max",
        "reduce_window_min",
        "round",
        "select_n",
        "sign",
        "sort",
        "top_k",
    }
)


def kinks(jaxpr: Any) -> tuple[str, ...]:
    """Return the places of a program's kinks if it may be linear but for them.

    They are those of the outermost calls: what a jitted function holds is traced once,
    with the line of its first caller.
    """
    found = []
    for equation in jaxpr.eqns:
        for name in (equation.primitive.name, *_names_inside(equation)):
            if name in _KINKED:
                found.append(f"`{name}` at {source_line(equation)}")
            elif name not in _STRAIGHT:
                return ()
    return tuple(dict.fromkeys(found))


def _names_inside(equation: Any) -> list[str]:
    inner = (j for value in equation.params.values() for j in sub_jaxprs(value))
    return [e.primitive.name for jaxpr in inner for e in equations(jaxpr)]


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
