"""A linear map whose transpose is known: one primitive, for every rule of both modes.

JAX differentiates in reverse by transposing what is linear in the tangents. So a
function with a forward rule and a reverse rule is one whose tangent is this primitive:
pushed forward it runs one rule, transposed it runs the other, and differentiated once
more it is differentiated by what it depends on otherwise, its residuals.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from hotk._core import (
    AbstractValue,
    Arrays,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Leaf,
    Types,
    ad,
    equations,
    in_front,
    mapped_aval,
    new_primitive,
    output_types,
    unmapped_aval,
)


@dataclasses.dataclass(frozen=True)
class AbstractLinear(abc.ABC):
    """A map from residuals and inputs to outputs, linear in the inputs.

    Compared by value, so that a program that is traced twice is the same program.
    """

    # Whether one of its directions may not exist, which is known once it is traced.
    is_doubtful: ClassVar[bool] = False

    def note(self, transposed: bool) -> str:
        """Say what the map, or its transpose, is made of, for `info`."""
        del transposed
        return ""

    @abc.abstractmethod
    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Apply the map."""

    @abc.abstractmethod
    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Apply its transpose."""

    @abc.abstractmethod
    def takes(self, residuals: Types) -> Types:
        """Return the types of the inputs, given those of the residuals."""

    @abc.abstractmethod
    def gives(self, residuals: Types) -> Types:
        """Return the types of the outputs."""

    def derivative(
        self,
        transposed: bool,
        residuals: Arrays,
        tangents: list[Leaf | None],
        values: Arrays,
    ) -> Arrays:
        """Differentiate the map, or its transpose, by its residuals.

        Args:
            transposed: Whether the transpose is differentiated.
            residuals: Where.
            tangents: Along which direction, `None` for residuals held fixed.
            values: What the map is applied to.
        """
        moving = [i for i, tangent in enumerate(tangents) if tangent is not None]

        def at(leaves: Arrays) -> Arrays:
            point = list(residuals)
            for i, leaf in zip(moving, leaves, strict=True):
                point[i] = leaf
            return self.apply(transposed, point, values)

        directions = [tangents[i] for i in moving]
        return jax.jvp(at, ([residuals[i] for i in moving],), (directions,))[1]

    def apply(self, transposed: bool, residuals: Arrays, values: Arrays) -> Arrays:
        """Apply the map or its transpose."""
        return (self.backward if transposed else self.forward)(residuals, values)


@dataclasses.dataclass(frozen=True)
class Batched(AbstractLinear):
    """A linear map for a batch of inputs, and of some of its residuals.

    Attributes:
        one: The map of one of them.
        size: How many there are.
        mapped: For each residual whether it has the leading axis as well.
    """

    one: AbstractLinear
    size: int
    mapped: tuple[bool, ...]

    def _over(self, function: Callable[..., Arrays], *arguments: Arrays) -> Arrays:
        axes = [0 if m else None for m in self.mapped]
        rest = [0] * (len(arguments) - 1)
        return jax.vmap(function, in_axes=(axes, *rest), axis_size=self.size)(
            *arguments
        )

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Apply the map to each."""
        return self._over(self.one.forward, residuals, inputs)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Apply the transpose to each."""
        return self._over(self.one.backward, residuals, cotangents)

    def derivative(
        self,
        transposed: bool,
        residuals: Arrays,
        tangents: list[Leaf | None],
        values: Arrays,
    ) -> Arrays:
        """Differentiate each by its own residuals and the common ones."""
        moving = [i for i, tangent in enumerate(tangents) if tangent is not None]

        def one(residuals: Arrays, values: Arrays, along: list[Leaf | None]) -> Arrays:
            direction: list[Any] = [None] * len(residuals)
            for i, tangent in zip(moving, along, strict=True):
                direction[i] = tangent
            return self.one.derivative(transposed, residuals, direction, values)

        axes = [0 if m else None for m in self.mapped]
        along_axes = [axes[i] for i in moving]
        return jax.vmap(one, in_axes=(axes, 0, along_axes), axis_size=self.size)(
            residuals, values, [tangents[i] for i in moving]
        )

    def takes(self, residuals: Types) -> Types:
        """Return the types of the inputs, with the leading axis."""
        return self._with_axis(self.one.takes(self._of_one(residuals)))

    def gives(self, residuals: Types) -> Types:
        """Return the types of the outputs, with the leading axis."""
        return self._with_axis(self.one.gives(self._of_one(residuals)))

    def _of_one(self, residuals: Types) -> Types:
        return [
            mapped_aval(self.size, 0, r) if mapped else r
            for r, mapped in zip(residuals, self.mapped, strict=True)
        ]

    def _with_axis(self, types: Types) -> Types:
        return [unmapped_aval(self.size, 0, a) for a in types]


def check_linear(closed: ClosedJaxpr) -> None:
    """Trace the doubtful linear maps of a program: each in the direction it is run in.

    Raises:
        Exception: What JAX says of a map that does not exist.
    """
    for equation, linear in linear_maps(closed.jaxpr):
        if linear.is_doubtful:
            types = [variable.aval for variable in equation.invars]
            output_types(lambda a, e=equation: _run(*a, **e.params), types)


def notes_of(jaxpr: Jaxpr) -> tuple[str, ...]:
    """Return what the linear maps of a program say of themselves, each once."""
    maps = linear_maps(jaxpr)
    notes = [linear.note(equation.params["transposed"]) for equation, linear in maps]
    return tuple(dict.fromkeys(note for note in notes if note))


def linear_maps(jaxpr: Jaxpr) -> Iterator[tuple[JaxprEqn, AbstractLinear]]:
    """Yield the linear maps of a program, each with its equation."""
    for equation in equations(jaxpr):
        if equation.primitive is _PRIMITIVE:
            linear = equation.params["linear"]
            while isinstance(linear, Batched):
                linear = linear.one
            yield equation, linear


def apply_linear(linear: AbstractLinear, residuals: Arrays, inputs: Arrays) -> Arrays:
    """Apply a linear map so that both of its directions stay known."""
    return _bind(linear, False, residuals, inputs)


def _bind(
    linear: AbstractLinear, transposed: bool, residuals: Arrays, values: Arrays
) -> Arrays:
    return _PRIMITIVE.bind(
        *residuals,
        *values,
        linear=linear,
        transposed=transposed,
        count=len(residuals),
    )


def _run(
    *arguments: Leaf, linear: AbstractLinear, transposed: bool, count: int
) -> Arrays:
    return linear.apply(transposed, list(arguments[:count]), list(arguments[count:]))


def _types(
    *arguments: AbstractValue, linear: AbstractLinear, transposed: bool, count: int
) -> Types:
    residuals = list(arguments[:count])
    if transposed:
        return [a.to_ct_aval() for a in linear.takes(residuals)]
    return linear.gives(residuals)


def _jvp(
    primals: Sequence[Leaf],
    tangents: Sequence[Leaf | ad.Zero],
    *,
    linear: AbstractLinear,
    transposed: bool,
    count: int,
) -> tuple[Arrays, Arrays]:
    residuals, values = list(primals[:count]), list(primals[count:])
    by_residuals, by_values = tangents[:count], tangents[count:]
    outputs = _bind(linear, transposed, residuals, values)
    parts = []
    if any(type(t) is not ad.Zero for t in by_values):
        moved = [ad.instantiate_zeros(t) for t in by_values]
        parts.append(_bind(linear, transposed, residuals, moved))
    if any(type(t) is not ad.Zero for t in by_residuals):
        along = [None if isinstance(t, ad.Zero) else t for t in by_residuals]
        parts.append(linear.derivative(transposed, residuals, along, values))
    if len(parts) == 1:
        return outputs, parts[0]
    return outputs, [ad.add_tangents(a, b) for a, b in zip(*parts, strict=True)]


def _transpose(
    cotangents: Sequence[Leaf | ad.Zero],
    *arguments: Any,
    linear: AbstractLinear,
    transposed: bool,
    count: int,
) -> Sequence[Leaf | ad.Zero | None]:
    if all(isinstance(c, ad.Zero) for c in cotangents):
        return [None] * len(arguments)  # JAX transposes what no one uses as well
    residuals, values = list(arguments[:count]), arguments[count:]
    filled = [ad.instantiate_zeros(c) for c in cotangents]
    back = _bind(linear, not transposed, residuals, filled)
    pairs = zip(values, back, strict=True)
    wanted = [c if ad.is_undefined_primal(v) else None for v, c in pairs]
    return [*([None] * count), *wanted]


def _batch(
    arguments: Sequence[Leaf],
    axes: Sequence[int | None],
    *,
    linear: AbstractLinear,
    transposed: bool,
    count: int,
) -> tuple[Arrays, list[int]]:
    moved, size = in_front(arguments, axes)
    mapped = tuple(d is not None for d in axes)
    values: Arrays = [
        a if m else jnp.broadcast_to(a, (size, *jnp.shape(a)))
        for a, m in zip(moved[count:], mapped[count:], strict=True)
    ]
    batched = Batched(linear, size, mapped[:count])
    outputs = _bind(batched, transposed, moved[:count], values)
    return outputs, [0] * len(outputs)


_PRIMITIVE = new_primitive(
    "hotk_linear", run=_run, types=_types, jvp=_jvp, transpose=_transpose, batch=_batch
)
