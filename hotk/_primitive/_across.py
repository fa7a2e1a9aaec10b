"""What crosses between one device and all: linear maps, each the other's transpose.

`shared` takes what all devices of a mesh axis hold alike to one device each; its
transpose is the sum over the devices. `summed` is that sum; its transpose gives the
same to each. JAX has the pair where `shard_map` checks which arrays vary; without the
check its `psum` is its own transpose, and derivatives of a sum over devices are those
of one device, or too large.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp

from hotk._core import (
    AbstractValue,
    Arrays,
    Jaxpr,
    JaxprEqn,
    Leaf,
    Types,
    output_types,
    varying_along,
)

from ._linear import AbstractLinear, Batched, apply_linear, linear_maps


Axes: TypeAlias = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Shared(AbstractLinear):
    """From what all devices hold alike to one device, or the sum back.

    Attributes:
        axes: The axes of the mesh.
        reversed: Whether this is the sum.
        local: The types of the arrays of one device.
        alike: The types of the arrays that all hold alike.
    """

    axes: Axes
    reversed: bool
    local: tuple[AbstractValue, ...]
    alike: tuple[AbstractValue, ...]

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Return each array as it is, or the sum over the devices."""
        del residuals
        return self._sum(inputs) if self.reversed else self._give(inputs)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Return the sum over the devices, or each array as it is."""
        del residuals
        return self._give(cotangents) if self.reversed else self._sum(cotangents)

    def takes(self, residuals: Types) -> Types:
        """Return the types of the inputs."""
        del residuals
        return list(self.local if self.reversed else self.alike)

    def gives(self, residuals: Types) -> Types:
        """Return the types of the outputs."""
        del residuals
        return list(self.alike if self.reversed else self.local)

    def _give(self, arrays: Sequence[Leaf]) -> Arrays:
        return varying_along(arrays, self.axes)

    def _sum(self, arrays: Sequence[Leaf]) -> Arrays:
        """Add over the devices: one collective for each dtype, not one for each array.

        XLA joins collectives on GPUs alone.
        """
        sums = list(arrays)
        dtypes = [jnp.result_type(a) for a in arrays]
        for dtype in dict.fromkeys(dtypes):
            places = [i for i, own in enumerate(dtypes) if own == dtype]
            if len(places) == 1:
                sums[places[0]] = jax.lax.psum(arrays[places[0]], self.axes)
                continue
            flat = jnp.concatenate([jnp.ravel(arrays[i]) for i in places])
            flat, start = jax.lax.psum(flat, self.axes), 0
            for i in places:
                size = jnp.size(arrays[i])
                part = flat[start : start + size]
                sums[i] = part.reshape(jnp.shape(arrays[i]))
                start += size
        return sums


@dataclasses.dataclass(frozen=True)
class Taken(AbstractLinear):
    """What this device holds of arrays that are divided: the same numbers.

    It tells in a program which arrays a function was given as parts.

    Attributes:
        axes: The axes of the mesh along which the parts differ.
        types: The types of the parts.
    """

    axes: Axes
    types: tuple[AbstractValue, ...]

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Return each array as it is."""
        del residuals
        return list(inputs)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Return each array as it is."""
        del residuals
        return list(cotangents)

    def takes(self, residuals: Types) -> Types:
        """Return the types of the inputs."""
        del residuals
        return list(self.types)

    def gives(self, residuals: Types) -> Types:
        """Return the types of the outputs."""
        del residuals
        return list(self.types)


def taken(part: Leaf, axes: Axes) -> Leaf:
    """Take this device's part of an array that is divided among devices.

    Args:
        part: The part.
        axes: The axes of the mesh along which the parts differ.
    """
    part = jnp.asarray(part)
    return apply_linear(Taken(axes, (jax.typeof(part),)), [], [part])[0]


def takes_part(equation: JaxprEqn) -> bool:
    """Whether an equation of a program takes a part of an array by `taken`."""
    return isinstance(_linear_map(equation), Taken)


def shares(equation: JaxprEqn) -> bool:
    """Whether an equation of a program takes what all hold alike, by `shared`."""
    linear = _linear_map(equation)
    return isinstance(linear, Shared) and not linear.reversed


def _linear_map(equation: JaxprEqn) -> AbstractLinear | None:
    linear = equation.params.get("linear")
    while isinstance(linear, Batched):
        linear = linear.one
    return linear


def crossing(equation: JaxprEqn) -> Callable[[Arrays], Arrays] | None:
    """Return what an equation by `shared`, `summed` or `taken` does to any arrays."""
    linear = _linear_map(equation)
    if isinstance(linear, Taken):
        return list
    if not isinstance(linear, Shared):
        return None
    is_sum = linear.reversed != equation.params["transposed"]
    return functools.partial(_across, axes=linear.axes, is_sum=is_sum)


def shared_axes(jaxpr: Jaxpr) -> set[str]:
    """Return the axes over which a program adds by such a pair."""
    maps = [linear for _, linear in linear_maps(jaxpr)]
    return {a for linear in maps if isinstance(linear, Shared) for a in linear.axes}


def shared(arrays: Sequence[Leaf], axes: Axes) -> Arrays:
    """Take arrays that all devices hold alike to this device.

    Args:
        arrays: The arrays.
        axes: The axes of the mesh.
    """
    return _across(arrays, axes, is_sum=False)


def summed(arrays: Sequence[Leaf], axes: Axes) -> Arrays:
    """Add arrays of each device over all devices, which hold the sum alike.

    Args:
        arrays: The arrays of this device.
        axes: The axes of the mesh.
    """
    return _across(arrays, axes, is_sum=True)


def _across(arrays: Sequence[Leaf], axes: Axes, *, is_sum: bool) -> Arrays:
    if not arrays:
        return []
    given = list(map(jnp.asarray, arrays))
    # Where JAX tracks which arrays vary, the types say so.
    local = list(map(jax.typeof, varying_along(given, axes)))
    if is_sum:
        add = lambda a: [jax.lax.psum(b, axes) for b in a]
        given, alike = varying_along(given, axes), output_types(add, local)
    else:
        alike = list(map(jax.typeof, given))
    linear = Shared(axes, is_sum, tuple(local), tuple(alike))
    return apply_linear(linear, [], list(given))
