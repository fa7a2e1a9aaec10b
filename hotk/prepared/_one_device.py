"""Derivatives inside of `shard_map` that would silently be those of one device."""

from collections.abc import Sequence

from hotk._core import (
    Jaxpr,
    JaxprEqn,
    Literal,
    ModeError,
    has_types,
    inner_jaxprs,
    manual_axes,
    message,
    source_line,
)
from hotk.primitive import shared_axes

from ._call import Call


# Operations across devices, which JAX transposes as if each device had a result, and a
# derivative, of its own.
_COLLECTIVES = (
    "all_gather",
    "all_gather_invariant",
    "all_to_all",
    "ppermute",
    "psum",
    "psum_invariant",
    "reduce_scatter",
)


def refuse_one_device(call: Call, jaxpr: Jaxpr) -> None:
    """Refuse to differentiate a function that sums over devices, where that is lost.

    With `check_vma=False` JAX takes a sum over devices for its own transpose: the
    derivative of a function that ends in `pmean` is that of this device's part.

    Args:
        call: The call.
        jaxpr: The program of its function.

    Raises:
        ModeError: If it has a collective of what depends on the point, and is not
            inside of `over_axis`.
    """
    axes = manual_axes()
    if not axes or has_types(axes):
        return
    alone = set(axes) - shared_axes(jaxpr)
    if not alone:
        return
    found = _collective(jaxpr, _moving(call, len(jaxpr.invars)), alone)
    if found is None:
        return
    equation, axis = found
    raise ModeError(
        message(
            call.options.definition.call(),
            f"the function adds over the devices of the axis {axis!r}, and with "
            "`check_vma=False` its derivatives would be those of one device.",
            expected="a function of this device's part, or `hotk.over_axis` of it",
            got=f"`{equation.primitive.name}` at {source_line(equation)}",
            fix=f"Write `hotk.over_axis(f, {axis!r})` in place of `f`: the mean over "
            "the devices. Or leave out `check_vma=False`.",
        )
    )


def _moving(call: Call, count: int) -> list[bool]:
    """Return which inputs of the program are the point; the last are the arguments."""
    statics = call.inputs.statics
    points = sum(i not in statics for i in range(call.counts[0]))
    args = sum(i not in statics for i in range(call.ahead, len(call.leaves)))
    first = count - points - args
    return [first <= i < first + points for i in range(count)]


def _collective(
    jaxpr: Jaxpr, moving: Sequence[bool], axes: set[str]
) -> tuple[JaxprEqn, str] | None:
    """Return the first collective of what depends on some inputs, and its axis."""
    reached = {v for v, moves in zip(jaxpr.invars, moving, strict=True) if moves}
    for equation in jaxpr.eqns:
        operands = [
            not isinstance(atom, Literal) and atom in reached
            for atom in equation.invars
        ]
        if not any(operands):
            continue
        reached.update(equation.outvars)
        if equation.primitive.name in _COLLECTIVES:
            over = axes & _names(equation)
            if over:
                return equation, min(over)
        for inner in inner_jaxprs(equation.params.values()):
            same = len(inner.invars) == len(operands)
            found = _collective(
                inner, operands if same else [True] * len(inner.invars), axes
            )
            if found is not None:
                return found
    return None


def _names(equation: JaxprEqn) -> set[str]:
    names = equation.params.get("axes", equation.params.get("axis_name", ()))
    return {names} if isinstance(names, str) else set(names)
