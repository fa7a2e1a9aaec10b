"""A function whose tangents are given: a primitive that keeps them at every order.

`jax.custom_jvp` loses its rule where JAX splits a loop into what is known and what is
linear, so a tangent pushed through a reverse pass differentiates the body instead. An
equation of its own is split as any other: whole.
"""

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
from jaxtyping import PyTree

from hotk._capture import host_reaches_tracer
from hotk._core import (
    AbstractValue,
    Arrays,
    Leaf,
    Types,
    ad,
    in_front,
    new_primitive,
    program_for_types,
)


# One for each array, `None` where it is zero or there is none.
Tangents: TypeAlias = list[Leaf | None]


@dataclasses.dataclass(frozen=True)
class AbstractRuled(abc.ABC):
    """A function of a list of arrays, with its tangents; compared by value."""

    # Types of outputs by those of the arrays: tracing it once is enough.
    known: dict[tuple[AbstractValue, ...], Types] = dataclasses.field(
        default_factory=dict, compare=False, repr=False, kw_only=True
    )

    # Not empty if the host may read a captured array, for which a tracer stands here.
    on_host: list[bool] = dataclasses.field(
        default_factory=list, compare=False, repr=False, kw_only=True
    )

    # Whether its tangents are a rule of the user, which may be that of nothing.
    users_rule = True

    @abc.abstractmethod
    def run(self, arrays: Arrays) -> Arrays:
        """Evaluate the function."""

    @abc.abstractmethod
    def tangents(self, outputs: Arrays, arrays: Arrays, along: Tangents) -> Tangents:
        """Differentiate the function along tangents.

        Args:
            outputs: Its values at `arrays`.
            arrays: Where.
            along: Tangents, `None` for those that are zero.

        Returns:
            The tangents of the outputs, `None` for those that are not differentiated.
        """

    def has_series(self) -> bool:
        """Whether there is a rule for Taylor series."""
        return False

    def series(
        self, outputs: Arrays, arrays: Arrays, terms: list[Tangents]
    ) -> list[Tangents]:
        """Propagate Taylor series by the rule, where `has_series()`.

        Args:
            outputs: Its values at `arrays`.
            arrays: Where.
            terms: For each order from 1 on the coefficients of the arrays, `None` for
                those that have none.

        Returns:
            For each order the coefficients of the outputs, `None` for those that are
            not differentiated.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class BatchedRuled(AbstractRuled):
    """A function for a batch of arguments.

    Attributes:
        one: The function of one of them.
        size: How many there are.
        mapped: For each array whether it has the leading axis.
    """

    one: AbstractRuled
    size: int
    mapped: tuple[bool, ...]

    def __post_init__(self) -> None:
        """Take over whose rule it is: one of hotk is none of the user in a batch."""
        object.__setattr__(self, "users_rule", self.one.users_rule)

    def run(self, arrays: Arrays) -> Arrays:
        """Evaluate each."""
        return self._over(self.one.run, [self._axes()], arrays)

    def tangents(self, outputs: Arrays, arrays: Arrays, along: Tangents) -> Tangents:
        """Differentiate each."""
        axes = self._axes()
        moved = [None if t is None else a for a, t in zip(axes, along, strict=True)]
        return self._over(self.one.tangents, [0, axes, moved], outputs, arrays, along)

    def has_series(self) -> bool:
        """Whether the function of one has a rule."""
        return self.one.has_series()

    def series(
        self, outputs: Arrays, arrays: Arrays, terms: list[Tangents]
    ) -> list[Tangents]:
        """Propagate the series of each."""
        axes = self._axes()
        moved = [
            [None if t is None else a for a, t in zip(axes, column, strict=True)]
            for column in terms
        ]
        return self._over(self.one.series, [0, axes, moved], outputs, arrays, terms)

    def _axes(self) -> list[int | None]:
        return [0 if m else None for m in self.mapped]

    def _over(
        self,
        function: Callable[..., PyTree],
        axes: Sequence[PyTree],
        *arguments: PyTree,
    ) -> PyTree:
        mapped = jax.vmap(function, in_axes=tuple(axes), axis_size=self.size)
        return mapped(*arguments)


def apply_ruled(function: AbstractRuled, arrays: Arrays) -> Arrays:
    """Evaluate a function so that its tangents stay its own."""
    return _PRIMITIVE.bind(*arrays, function=function)


def _run(*arrays: Leaf, function: AbstractRuled) -> Arrays:
    return function.run(list(arrays))


def _types(*types: AbstractValue, function: AbstractRuled) -> Types:
    if types not in function.known:
        program = program_for_types(function.run, types)
        if host_reaches_tracer(program):
            function.on_host[:] = [True]
        function.known[types] = [variable.aval for variable in program.outvars]
    return function.known[types]


def _jvp(
    primals: Sequence[Leaf],
    tangents: Sequence[Leaf | ad.Zero],
    *,
    function: AbstractRuled,
) -> tuple[Arrays, Sequence[Leaf | ad.Zero]]:
    outputs = _PRIMITIVE.bind(*primals, function=function)
    along = [None if isinstance(t, ad.Zero) else t for t in tangents]
    slopes = function.tangents(outputs, list(primals), along)
    return outputs, [
        ad.Zero(jax.typeof(o).to_tangent_aval()) if t is None else t
        for o, t in zip(outputs, slopes, strict=True)
    ]


def _transpose(
    cotangents: Sequence[Leaf | ad.Zero], *arrays: Any, function: AbstractRuled
) -> Tangents:
    """Transpose a function that is linear in what is not known."""
    unknown = [i for i, a in enumerate(arrays) if ad.is_undefined_primal(a)]

    def linear(*values: Leaf) -> Arrays:
        operands = list(arrays)
        for i, value in zip(unknown, values, strict=True):
            operands[i] = value
        return function.run(operands)

    shapes = [
        jax.ShapeDtypeStruct(arrays[i].aval.shape, arrays[i].aval.dtype)
        for i in unknown
    ]
    filled = [ad.instantiate_zeros(c) for c in cotangents]
    back = jax.linear_transpose(linear, *shapes)(filled)
    by_place = dict(zip(unknown, back, strict=True))
    return [by_place.get(i) for i in range(len(arrays))]


def _batch(
    arrays: Sequence[Leaf], axes: Sequence[int | None], *, function: AbstractRuled
) -> tuple[Arrays, list[int]]:
    moved, size = in_front(arrays, axes)
    mapped = tuple(d is not None for d in axes)
    outputs = apply_ruled(BatchedRuled(function, size, mapped), moved)
    return outputs, [0] * len(outputs)


_PRIMITIVE = new_primitive(
    "hotk_ruled", run=_run, types=_types, jvp=_jvp, transpose=_transpose, batch=_batch
)
