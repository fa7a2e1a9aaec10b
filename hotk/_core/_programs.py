"""What a traced program says of itself: results, work, tracers that it has kept."""

import itertools
import math
import os
from collections.abc import Mapping
from typing import Any

import jax

from ._by_numpy import COMPARISONS
from ._compat import (
    CONVERTED,
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    ShapedArray,
    Tracer,
    Var,
    equations,
    inner_jaxprs,
)
from ._primitives import CUSTOM, TRAITS, ProgramKind, traits_of
from ._types import is_inexact


_JAX = os.path.dirname(os.path.abspath(jax.__file__))
_HOTK = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LOSSES = os.path.join(_HOTK, "curvature")
_OWN_FUNCTIONS = {
    "_ndtri": "ndtri",
    "_slogdet_lu": "slogdet",
    "log_ndtr": "log_ndtr",
    "logaddexp": "logaddexp",
    "zeta": "zeta",
}


def check_forward(closed: ClosedJaxpr) -> None:
    """Refuse a program that holds the forward derivative of a `custom_vjp` function.

    JAX leaves a mark in the program and complains when the program is lowered; only
    then would the next nesting be tried.
    """
    for equation in equations(closed.jaxpr):
        if equation.primitive.name == "custom_lin":
            raise TypeError(
                "can't apply forward-mode autodiff (jvp) to a custom_vjp function."
            )


def operation_name(equation: JaxprEqn) -> str:
    """Return the name of an operation: of its primitive, or of a function of JAX.

    JAX gives a function with a derivative rule no name of its own; where it is defined
    tells which it is. One that is not recognised is any function with a rule.
    """
    if equation.primitive.name == "custom_jvp_call":
        info = equation.params["call_jaxpr"].jaxpr.debug_info
        if (info.func_filename or "").startswith(_JAX + os.sep):
            return _OWN_FUNCTIONS.get(info.func_name, equation.primitive.name)
    return equation.primitive.name


def has_users_rule(equation: JaxprEqn) -> bool:
    """Whether an operation may have a derivative rule that a user wrote.

    Such a rule may be the derivative of nothing. Those of JAX, and those of losses, are
    the derivatives of what they belong to; of an unknown operation nothing is known.
    """
    name = equation.primitive.name
    if name == "hotk_ruled":
        return equation.params["function"].users_rule
    if name == "hotk_held":  # after an odd number of derivatives: no Hessian either
        return equation.params["derivatives"] == 1
    if name not in CUSTOM:
        return name not in TRAITS
    for inner in inner_jaxprs(equation.params.values()):
        file = inner.debug_info.func_filename or ""
        return not file.startswith((_JAX + os.sep, _LOSSES + os.sep))
    return True


EXTREMES = ("reduce_max", "reduce_min")


def has_extremes(jaxpr: Jaxpr) -> bool:
    """Whether the derivative of a program goes through a maximum of an array.

    That of a softmax does not: its maximum is held fixed. What goes through one already
    compares the array with it. Of a rule of a user only the body is known here.
    """
    if not any(map(_is_extreme, equations(jaxpr))):
        return False  # as nearly always
    if compared_extremes(jaxpr):
        return True
    live = {v for v in jaxpr.outvars if isinstance(v, Var)}
    for equation in reversed(jaxpr.eqns):
        if live.isdisjoint(equation.outvars) or traits_of(equation).constant:
            continue
        if _is_extreme(equation) or has_ruled_extremes(equation):
            return True
        inner = inner_jaxprs(equation.params.values())
        if equation.primitive.name not in CUSTOM and any(map(has_extremes, inner)):
            return True
        live.update(v for v in equation.invars if isinstance(v, Var))
    return False


def has_ruled_extremes(equation: JaxprEqn) -> bool:
    """Whether a function with a rule of a user has a maximum in its body."""
    if equation.primitive.name not in CUSTOM or not has_users_rule(equation):
        return False
    inner = inner_jaxprs(equation.params.values())
    return any(map(_is_extreme, itertools.chain(*map(equations, inner))))


def compared_extremes(jaxpr: Jaxpr) -> set[Atom]:
    """Return the arrays, also inside of loops, that have a maximum and are compared."""
    found = {e.invars[0] for e in equations(jaxpr) if _is_extreme(e)}
    compared = (e for e in equations(jaxpr) if e.primitive.name in COMPARISONS)
    return found.intersection(
        v for e in compared for v in e.invars if isinstance(v, Var)
    )


def _is_extreme(equation: JaxprEqn) -> bool:
    return equation.primitive.name in EXTREMES and is_inexact(equation.invars[0].aval)


def transforms(equation: JaxprEqn) -> str:
    """Return the transformations that made an equation: `transpose(jvp())`.

    JAX writes them into the names that profilers show, and nowhere else.
    """
    return str(equation.source_info.name_stack)


def scan_counts(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many constants and carries a `scan` has; jax 0.12 renamed them."""
    if "num_carry" in parameters:
        return parameters["num_consts"], parameters["num_carry"]
    constants, carry, _ = parameters["ft_in"].unpack()
    return len(constants), len(carry)


def tracers_inside(closed: ClosedJaxpr) -> bool:
    """Whether a program holds a tracer as a constant: one that has leaked into it."""
    return any(isinstance(c, Tracer) for c in closed.consts) or _below(closed.jaxpr)


def _below(jaxpr: Jaxpr) -> bool:
    for equation in jaxpr.eqns:
        # a single number is not among the constants
        values = [atom.val for atom in equation.invars if isinstance(atom, Literal)]
        if any(isinstance(value, Tracer) for value in values):
            return True
        converted = _converted(equation.params)
        for value in equation.params.values():
            for item in value if isinstance(value, (tuple, list)) else (value,):
                if not isinstance(item, ClosedJaxpr):
                    continue
                is_rebound = id(item) in converted
                if _below(item.jaxpr) if is_rebound else tracers_inside(item):
                    return True
    return False


def _converted(params: dict[str, Any]) -> set[int]:
    """Find the programs that are run with other constants than those they hold.

    A primitive of Equinox, such as Lineax's linear solve, keeps the static leaves of
    its arguments. Among them is the program of a function whose constants are further
    arguments. Where JAX has one class for programs with and without constants, that
    program still holds those it was traced with, and nothing reads them.
    """
    if not params.keys() >= {"treedef", "static"}:
        return set()
    tree, static = params["treedef"], params["static"]
    if not isinstance(static, tuple) or tree.num_leaves != len(static):
        return set()
    is_converted = lambda node: isinstance(node, CONVERTED)
    nodes = jax.tree.leaves(tree.unflatten(static), is_leaf=is_converted)
    return {id(node.jaxpr) for node in nodes if is_converted(node)}


# Up to so many unknowns a matrix is formed and factorized where an iteration would do:
# it is exact, takes seconds at most and, in float64, 32 MiB.
LARGEST_FACTOR = 2048


def work(jaxpr: Jaxpr) -> int:
    """Count the numbers that a program computes, with all terms of its products."""
    return sum(map(_equation_work, jaxpr.eqns))


def _equation_work(equation: JaxprEqn) -> int:
    inside = sum(map(work, inner_jaxprs(equation.params.values())))
    if inside:
        scan = traits_of(equation).program is ProgramKind.SCAN
        return inside * (equation.params["length"] if scan else 1)
    results = sum(map(_size, equation.outvars))
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        aval = equation.invars[0].aval
        assert isinstance(aval, ShapedArray)
        return results * math.prod(aval.shape[d] for d in contracted)
    if equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval
        assert isinstance(kernel, ShapedArray)
        outputs = kernel.shape[equation.params["dimension_numbers"].rhs_spec[0]]
        return results * max(kernel.size // max(outputs, 1), 1)
    return results


def _size(variable: object) -> int:
    aval = getattr(variable, "aval", None)
    return aval.size if isinstance(aval, ShapedArray) else 0
