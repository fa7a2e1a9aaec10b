"""Refusals where each device of a `shard_map` holds a part of an array."""

import jax

from hotk._core import (
    Jaxpr,
    JaxprEqn,
    Literal,
    StructureError,
    Var,
    axes_named,
    inner_jaxprs,
    is_shard,
    leaf_name,
    message,
    source_line,
)
from hotk._primitive import shares, takes_part

from ._call import Call
from ._options import Definition


def refuse_lost_parts(call: Call, jaxpr: Jaxpr) -> None:
    """Refuse parts of arrays where the result would be that of one device's part.

    Args:
        call: The call.
        jaxpr: The program of its function.

    Raises:
        StructureError: If the point has a `Shard`, and the operator needs unit
            directions or the function uses it other than in `over_axis`.
    """
    names: dict[int, str] = {}
    count = 0
    for path, node in jax.tree.leaves_with_path(call.x, is_leaf=is_shard):
        leaves = len(jax.tree.leaves(node))
        if is_shard(node) and leaves:
            names[count] = leaf_name("x", path)
        count += leaves
    if not names:
        return
    name = next(iter(names.values()))
    if makes_units(call.options.definition):
        raise StructureError(
            message(
                call.options.definition.call(),
                f"`{name}` is one device's part of an array, and the unit directions "
                "of the other parts are not here.",
                expected="arrays that each device holds whole",
                got="a `Shard`",
                fix="Call it outside of `shard_map`, where JAX divides the arrays; or "
                "use products: `hotk.hvp`, `hotk.HessianOperator`.",
            )
        )
    points = [i for i in range(call.counts[0]) if i not in call.inputs.statics]
    places = [
        i for i, moves in enumerate(moving_inputs(call, len(jaxpr.invars))) if moves
    ]
    for leaf, place in zip(points, places, strict=True):
        if leaf in names and not _only_taken(jaxpr, jaxpr.invars[place]):
            raise StructureError(
                message(
                    call.options.definition.call(),
                    f"the function uses `{names[leaf]}`, this device's part of an "
                    "array, outside of `over_axis`: a part is another number on each "
                    "device.",
                    expected="a function whose only use of it is that of "
                    "`hotk.over_axis(...)`, called with `x` as it is",
                    got="another operation with it",
                    fix="Put all terms inside: `over_axis(lambda p, *args: f(p, "
                    "*args) + penalty(p), axis)`.",
                )
            )


def _only_taken(jaxpr: Jaxpr, variable: Var) -> bool:
    """Whether each use of a variable is that of a part by `over_axis`."""
    if any(out is variable for out in jaxpr.outvars):
        return False
    for equation in jaxpr.eqns:
        positions = [i for i, a in enumerate(equation.invars) if a is variable]
        if not positions or takes_part(equation):
            continue
        inside = list(inner_jaxprs(equation.params.values()))
        if not inside:
            return False
        for inner in inside:
            if len(inner.invars) != len(equation.invars):
                return False
            if not all(_only_taken(inner, inner.invars[i]) for i in positions):
                return False
    return True


# Operations that only move numbers.
_MOVES = (
    "concatenate",
    "convert_element_type",
    "copy",
    "expand_dims",
    "pad",
    "reshape",
    "slice",
    "squeeze",
    "transpose",
)
# What is done with parts of an array, and not with one that all devices hold alike.
_GATHERS = ("all_gather", "all_gather_invariant", "all_to_all", "ppermute")


def refuse_unmarked_parts(call: Call, jaxpr: Jaxpr) -> None:
    """Refuse parts of arrays that `over_axis` takes for arrays that all hold alike.

    With `check_vma=True` their types tell. Without, what `f` gathers of its point does.

    Args:
        call: The call.
        jaxpr: The program of its function.

    Raises:
        StructureError: If a leaf of the point is gathered as it is.
    """
    moving = moving_inputs(call, len(jaxpr.invars))
    points = {v for v, moves in zip(jaxpr.invars, moving, strict=True) if moves}
    found = _gathered(jaxpr, points)[0]
    if found is None:
        return
    name = axes_named(found)
    raise StructureError(
        message(
            call.options.definition.call(),
            "the function gathers a leaf of `x` over the devices, and `over_axis` "
            "takes it for one that all hold alike: its derivative would be wrong.",
            expected="a `Shard` for each leaf of which a device holds a part",
            got=f"`{found.primitive.name}` over {sorted(name)} at {source_line(found)}",
            fix='Mark the parts: `x = hotk.as_shards(x, {"w": P("data"), "b": P()})`.',
        )
    )


def _gathered(jaxpr: Jaxpr, same: set[Var]) -> tuple[JaxprEqn | None, set[Var]]:
    """Return the first equation that gathers some inputs, and where these still are."""
    same = set(same)
    for equation in jaxpr.eqns:
        reads = [not isinstance(a, Literal) and a in same for a in equation.invars]
        if not any(reads):
            continue
        name = equation.primitive.name
        if name in _GATHERS:
            return equation, same
        if name in _MOVES:
            same.update(equation.outvars)
        elif shares(equation):
            pairs = zip(equation.outvars, reads, strict=True)
            same.update(out for out, read in pairs if read)
        for inner in inner_jaxprs(equation.params.values()):
            if len(inner.invars) != len(reads):
                continue
            inputs = {v for v, read in zip(inner.invars, reads, strict=True) if read}
            found, ends = _gathered(inner, inputs)
            if found is not None:
                return found, same
            if len(inner.outvars) == len(equation.outvars):
                pairs = zip(equation.outvars, inner.outvars, strict=True)
                same.update(
                    out
                    for out, end in pairs
                    if not isinstance(end, Literal) and end in ends
                )
    return None, same


def makes_units(definition: Definition) -> bool:
    """Whether an operator makes unit directions itself, whatever the mode."""
    name = definition.name.split("_and_")[-1]
    return not definition.takes and "gradient" not in name


def moving_inputs(call: Call, count: int) -> list[bool]:
    """Return which inputs of the program are the point; the last are the arguments."""
    statics = call.inputs.statics
    points = sum(i not in statics for i in range(call.counts[0]))
    args = sum(i not in statics for i in range(call.ahead, len(call.leaves)))
    first = count - points - args
    return [first <= i < first + points for i in range(count)]
