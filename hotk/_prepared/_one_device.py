"""Derivatives in `shard_map` that would be those of one device: added, or refused."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
from jaxtyping import PyTree

from hotk._capture import StaticArrays
from hotk._core import (
    Jaxpr,
    JaxprEqn,
    ModeError,
    Point,
    StructureError,
    differs_along,
    first_collective,
    has_types,
    manual_axes,
    message,
    source_line,
)
from hotk._mode import AbstractMode, Forward, Nested, Reverse
from hotk._primitive import shared_axes, summed

from ._call import Call
from ._device_parts import (
    makes_units,
    moving_inputs,
    refuse_lost_parts,
    refuse_unmarked_parts,
)
from ._options import Definition


_Tried: TypeAlias = tuple[AbstractMode, str]


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


def modes_on_devices(call: Call, jaxpr: Jaxpr, modes: Sequence[_Tried]) -> list[_Tried]:
    """Refuse to differentiate a function that sums over devices, where that is lost.

    With `check_vma=False` JAX takes a sum over devices for its own transpose: the
    derivative of a function that ends in `pmean` is that of this device's part.

    Args:
        call: The call.
        jaxpr: The program of its function.
        modes: Those to be tried, each with the reason for it.

    Returns:
        The modes that do not lose it.

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
        return [*modes]
    refuse_lost_parts(call, jaxpr)
    if has_types(axes):
        return _with_directions(call, jaxpr, axes, modes)
    refuse_unmarked_parts(call, jaxpr)
    alone = set(axes) - shared_axes(jaxpr)
    moving = moving_inputs(call, len(jaxpr.invars))
    found = first_collective(jaxpr, moving, alone) if alone else None
    if found is not None:
        raise lost_sum(call.options.definition.call(), *found)
    return [*modes]


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


def _with_directions(
    call: Call, jaxpr: Jaxpr, axes: Sequence[str], modes: Sequence[_Tried]
) -> list[_Tried]:
    """Refuse directions that do not say what each device moves.

    Where devices hold a point alike, derivatives are added: a product with directions
    of their own would be the sum of each device's Hessian with its own direction,
    neither that of one device nor that of all. JAX refuses such directions as well.

    Where each has a point of its own and the function adds over them, a direction that
    is the same on all moves all these points at once: no column of a matrix.

    Args:
        call: The call.
        jaxpr: The program of its function.
        axes: The axes of the mesh, along which types tell what differs.
        modes: Those to be tried, each with the reason for it.

    Returns:
        The modes without such directions.

    Raises:
        StructureError: If there are only others, and the function differs along an axis
            as they do, or adds along it.
    """
    definition, where = call.options.definition, call.options.definition.call()
    numbers = [i for i in range(len(call.leaves)) if i not in call.inputs.statics]
    given = dict(zip(numbers, call.inputs.arrays, strict=True))
    along = lambda places: {
        axis for i in places if i in given for axis in differs_along(given[i], axes)
    }
    count, points = len(jaxpr.invars), range(call.counts[0])
    of_points, of_directions = along(points), along(range(len(points), call.ahead))
    if definition.modes == (Forward,) and definition.takes:
        return [*modes]  # tangents
    own = iter([bool(along([i])) for i in points if i in given])
    moving = [moves and next(own) for moves in moving_inputs(call, count)]
    if of_points and (found := first_collective(jaxpr, moving, of_points)):
        modes = [each for each in modes if _keeps_points_apart(definition, each[0])]
        alike = of_points - of_directions if definition.wants == "outputs" else set()
        if not modes or (alike and first_collective(jaxpr, moving, alike)):
            raise _own_points(where, *found)
    products = definition.takes in ("v", "vs")
    own = of_directions - of_points
    if (products and own) and (
        any(differs_along(v.aval, tuple(own)) for v in jaxpr.outvars)
        or first_collective(jaxpr, moving_inputs(call, count), own)
    ):
        raise StructureError(
            message(
                where,
                f"the devices have directions of their own along {sorted(own)}, and "
                "hold `x` alike: derivatives by it are those of the sum over devices.",
                expected="directions that all devices hold alike, as `x`",
                got="directions that differ by device",
                fix="For the function of one device cast the point: "
                "`jax.lax.pcast(x, axis, to='varying')`. For that of all, gather the "
                "directions by `jax.lax.all_gather`.",
            )
        )
    return [*modes]


def _keeps_points_apart(definition: Definition, mode: AbstractMode) -> bool:
    """Whether a mode is right where each device has a point of its own.

    What is pulled back is the derivative by the own part, and what is pushed is that
    along the parts of a direction that the caller has given to all. Unit directions are
    made on all devices at once, and inner products are those of one part.
    """
    if definition.takes != "v":
        return isinstance(mode, Reverse) and not makes_units(definition)
    parts = (mode.outer, mode.inner) if isinstance(mode, Nested) else (mode,)
    pulls = any(isinstance(part, Reverse) for part in parts)
    return pulls == (definition.wants == "outputs")  # an `hvp`, or numbers


def _own_points(where: str, equation: JaxprEqn, axis: str) -> StructureError:
    """Return what is raised where each device has a point of its own.

    Args:
        where: The call.
        equation: The operation that adds over the devices.
        axis: The axis along which it does.
    """
    return StructureError(
        message(
            where,
            f"each device has an `x` of its own along {axis!r}, and the function adds "
            "over the devices: directions that are the same on all of them move all of "
            "these points at once.",
            expected="an `x` that all devices hold alike, or a function of this "
            "device's alone",
            got=f"`{equation.primitive.name}` at {source_line(equation)}",
            fix="Call it outside of `shard_map`, where JAX divides the arrays. Reverse "
            "mode works, and so do products with directions that differ as `x` does: "
            f"`jax.lax.pcast(v, {axis!r}, to='varying')`.",
        )
    )
