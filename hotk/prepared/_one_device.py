"""Derivatives in `shard_map` that would be those of one device: added, or refused."""

from collections.abc import Callable, Sequence

import jax
from jaxtyping import PyTree

from hotk._core import (
    Jaxpr,
    JaxprEqn,
    Literal,
    ModeError,
    Point,
    StructureError,
    Var,
    axes_named,
    differs_along,
    first_collective,
    has_types,
    inner_jaxprs,
    is_shard,
    leaf_name,
    manual_axes,
    message,
    source_line,
)
from hotk.capture import StaticArrays
from hotk.mode import Forward
from hotk.primitive import shared_axes, shares, summed, takes_part

from ._call import Call


class DeviceSum:
    """Derivatives by a point that all devices hold alike, of a value that they do not.

    With `check_vma=True` reverse mode returns their sum over the devices, because the
    transpose of "each device takes its copy" is a sum; forward mode returns those of
    one device. Here all modes return the sum: what still differs is added. The types
    tell, so nothing is added twice. Without types, and outside of `shard_map`, nothing
    is done. Values stay those of each device, as in `jax.value_and_grad`, and tangents
    of `jvp`, as in `jax.jvp`.

    Attributes:
        call: The call.
        x: The differentiated part of the point.
        axes: For each output of the function, the axes along which it differs.
        first: Whether values are added, and not the derivatives.
    """

    def __init__(self, call: Call, x: Point) -> None:
        self.call = call
        self.x = x
        self.axes: list[tuple[str, ...]] = []
        own = call.options.definition
        self.first = own.iterates or own.static_arrays is StaticArrays.ALL_INTEGERS

    def of(self, f: Callable[[Point], PyTree]) -> Callable[[Point], PyTree]:
        """Return the function of which the formula of an operator is evaluated.

        Where its results are not linear in the function, or without types, the function
        is the sum itself: an optimizer compares values, and a sparse matrix has entries
        from anywhere.
        """
        inside, definition = manual_axes(), self.call.options.definition
        if not inside or definition.modes == (Forward,):
            return f

        def watched(x: Point) -> PyTree:
            y, aux = f(x)
            self.axes = [differs_along(a, inside) for a in jax.tree.leaves(y)]
            if not self.first or not any(self.axes):
                return y, aux
            return self._added(y), (y, aux)

        return watched

    def results(self, results: Sequence[PyTree]) -> list[PyTree]:
        """Add the results of a formula over devices, except the value and `aux`."""
        options = self.call.options
        first = 1 if options.definition.value else 0
        *found, aux = results
        if any(self.axes) and not self.first:
            return [*found[:first], *map(self._added, found[first:]), aux]
        if any(self.axes) and (first or options.has_aux):
            y, aux = aux
            return [*([y] if first else []), *found[first:], aux]
        return [*found, aux]

    def _added(self, result: PyTree) -> PyTree:
        """Add the leaves of a result over the axes along which only they differ."""
        axes = sorted(set().union(*self.axes))
        parts, tree = jax.tree.flatten(result)
        points, like = jax.tree.flatten(self.x)
        own = [differs_along(a, axes) for a in points]
        definition = self.call.options.definition
        # A gradient has a leaf for each leaf of the point; other results mix them.
        by_leaf = definition.wants != "inexact" or definition.takes == "u"
        if not (by_leaf and tree == like and not self.first):
            if len(set(own)) > 1:
                raise self._mixed(axes)
            own = own[:1] * len(parts)
        places: dict[tuple[str, ...], list[int]] = {}
        for i, (part, held) in enumerate(zip(parts, own, strict=True)):
            over = tuple(a for a in differs_along(part, axes) if a not in held)
            places.setdefault(over, []).append(i)
        for over, chosen in places.items():
            sums = summed([parts[i] for i in chosen], over) if over else ()
            for i, total in zip(chosen, sums, strict=False):
                parts[i] = total
        return tree.unflatten(parts)

    def _mixed(self, axes: Sequence[str]) -> StructureError:
        return StructureError(
            message(
                self.call.options.definition.call(),
                "the devices hold some leaves of `x` alike and others not, so the "
                "result is neither that of one device nor of all.",
                expected="leaves that all differ, or none",
                got=f"leaves of which some vary along {' or '.join(map(repr, axes))}",
                fix="Choose leaves by `where=`; or use `hotk.over_axis` and "
                "`hotk.as_shards`.",
            )
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
        StructureError: If the point has parts of arrays, and the operator needs unit
            directions, the function uses a part without `over_axis`, or puts together
            parts that are not marked; or if devices have directions of their own at a
            point that they hold alike.
    """
    axes = manual_axes()
    if not axes:
        return
    _refuse_lost_parts(call, jaxpr)
    if has_types(axes):
        _refuse_own_directions(call, jaxpr, axes)
        return
    _refuse_unmarked_parts(call, jaxpr)
    alone = set(axes) - shared_axes(jaxpr)
    if not alone:
        return
    found = first_collective(jaxpr, _moving(call, len(jaxpr.invars)), alone)
    if found is None:
        return
    raise lost_sum(call.options.definition.call(), *found)


def lost_sum(where: str, equation: JaxprEqn, axis: str) -> ModeError:
    """Return what is raised for a sum over devices, its operation and its axis.

    Args:
        where: The call.
        equation: The operation.
        axis: Its axis.
    """
    return ModeError(
        message(
            where,
            f"the function adds over the devices of the axis {axis!r}, and with "
            "`check_vma=False` its derivatives would be those of one device.",
            expected="a function of this device's part, or `hotk.over_axis` of it",
            got=f"`{equation.primitive.name}` at {source_line(equation)}",
            fix=f"Write `hotk.over_axis(f, {axis!r})` in place of `f`: the mean over "
            "the devices. Or leave out `check_vma=False`.",
        )
    )


def _refuse_own_directions(call: Call, jaxpr: Jaxpr, axes: Sequence[str]) -> None:
    """Refuse directions that differ over devices whose derivatives are added.

    A product would be the sum of each device's Hessian with its own direction: neither
    that of one device nor that of all. JAX refuses such directions as well.

    Args:
        call: The call.
        jaxpr: The program of its function.
        axes: The axes of the mesh, along which types tell what differs.

    Raises:
        StructureError: If there are some, and the function differs along an axis as
            they do, or adds along it.
    """
    definition = call.options.definition
    if definition.takes not in ("v", "vs") or definition.modes == (Forward,):
        return
    numbers = [i for i in range(len(call.leaves)) if i not in call.inputs.statics]
    given = dict(zip(numbers, call.inputs.arrays, strict=True))
    along = lambda places: {
        axis for i in places if i in given for axis in differs_along(given[i], axes)
    }
    points = call.counts[0]
    own = along(range(points, call.ahead)) - along(range(points))
    moving = _moving(call, len(jaxpr.invars))
    if own and (
        any(differs_along(v.aval, tuple(own)) for v in jaxpr.outvars)
        or first_collective(jaxpr, moving, own)
    ):
        raise StructureError(
            message(
                definition.call(),
                f"the devices have directions of their own along {sorted(own)}, and "
                "hold `x` alike: derivatives by it are those of the sum over devices.",
                expected="directions that all devices hold alike, as `x`",
                got="directions that differ by device",
                fix="For the function of one device cast the point: "
                "`jax.lax.pcast(x, axis, to='varying')`. For that of all, gather the "
                "directions by `jax.lax.all_gather`.",
            )
        )


def _refuse_lost_parts(call: Call, jaxpr: Jaxpr) -> None:
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
    definition = call.options.definition
    name = next(iter(names.values()))
    if not definition.takes and "gradient" not in definition.name.split("_and_")[-1]:
        raise StructureError(
            message(
                definition.call(),
                f"`{name}` is one device's part of an array, and the unit directions "
                "of the other parts are not here.",
                expected="arrays that each device holds whole",
                got="a `Shard`",
                fix="Call it outside of `shard_map`, where JAX divides the arrays; or "
                "use products: `hotk.hvp`, `hotk.HessianOperator`.",
            )
        )
    points = [i for i in range(call.counts[0]) if i not in call.inputs.statics]
    places = [i for i, moves in enumerate(_moving(call, len(jaxpr.invars))) if moves]
    for leaf, place in zip(points, places, strict=True):
        if leaf in names and not _only_taken(jaxpr, jaxpr.invars[place]):
            raise StructureError(
                message(
                    definition.call(),
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


def _refuse_unmarked_parts(call: Call, jaxpr: Jaxpr) -> None:
    """Refuse parts of arrays that `over_axis` takes for arrays that all hold alike.

    With `check_vma=True` their types tell. Without, what `f` gathers of its point does.

    Args:
        call: The call.
        jaxpr: The program of its function.

    Raises:
        StructureError: If a leaf of the point is gathered as it is.
    """
    moving = _moving(call, len(jaxpr.invars))
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


def _moving(call: Call, count: int) -> list[bool]:
    """Return which inputs of the program are the point; the last are the arguments."""
    statics = call.inputs.statics
    points = sum(i not in statics for i in range(call.counts[0]))
    args = sum(i not in statics for i in range(call.ahead, len(call.leaves)))
    first = count - points - args
    return [first <= i < first + points for i in range(count)]
