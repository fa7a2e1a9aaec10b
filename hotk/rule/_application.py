"""`Application`: a function with rules at arguments of one structure."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from hotk._core import (
    ModeError,
    StructureError,
    Tracer,
    function_name,
    function_place,
    is_inexact,
    message,
    output_types,
    varying_alike,
)
from hotk.capture import Closure, Opaque, Skeleton, survey
from hotk.primitive import AbstractRuled, apply_ruled

from ._built import built_for
from ._derivative import Derivative, Rules
from ._results import tangents_of
from ._shape import Shape, split


Arrays = list[Any]


@dataclasses.dataclass(frozen=True)
class Application(AbstractRuled):
    """A function with rules, at arguments of one structure.

    Attributes:
        shape: The function, and what is static in its call.
        tree: In its first entry the structure of the value, once it was evaluated.
    """

    shape: Shape
    tree: list[Any] = dataclasses.field(default_factory=list, compare=False)

    def run(self, arrays: Arrays) -> Arrays:
        """Evaluate the function."""
        outputs, tree = jax.tree.flatten(self.shape.call(arrays))
        self.tree[:] = [tree]
        return outputs

    def structure(self, arrays: Arrays) -> Any:
        """Return the structure of the value; JAX may know its types without a run."""
        if not self.tree:
            output_types(self.run, list(map(jax.typeof, arrays)))
        return self.tree[0]

    def tangents(self, outputs: Arrays, arrays: Arrays, along: Arrays) -> Arrays:
        """Apply the rules."""
        moving = tuple(t is not None for t in along)
        rules = Rules.of(self.shape)
        if any(moving[: self.shape.captured]):
            raise _captured(self.shape)
        types = tuple(jax.typeof(o).to_tangent_aval() for o in outputs)
        derivative = Derivative(
            self.shape, rules, self.structure(arrays), types, moving
        )
        moved = [t for t in along if t is not None]
        found = iter(derivative.along(outputs, arrays, moved))
        return [next(found) if is_inexact(t) else None for t in types]

    def has_series(self) -> bool:
        """Whether there is a rule for Taylor series."""
        return self.shape.template.taylor is not None

    def series(self, outputs: Arrays, arrays: Arrays, terms: Arrays) -> Arrays:
        """Apply the rule for Taylor series."""
        shape, tree = self.shape, self.structure(arrays)
        if any(t is not None for column in terms for t in column[: shape.captured]):
            raise _captured(shape)
        rule = shape.rule("taylor", arrays, lambda: tree.unflatten(outputs))
        columns = [
            shape.given.only(
                [
                    jnp.zeros_like(a) if t is None and is_inexact(a) else t
                    for a, t in zip(arrays, column, strict=True)
                ][shape.start :]
            )
            for column in terms
        ]
        made = rule(shape.args(arrays), _per_argument(columns))
        types = tuple(jax.typeof(o).to_tangent_aval() for o in outputs)
        if not isinstance(made, (list, tuple)) or len(made) != len(terms):
            raise _no_series(shape, len(terms), made)
        found = [iter(tangents_of(rule.func, m, tree, types)) for m in made]
        return [[next(f) if is_inexact(t) else None for t in types] for f in found]


def _per_argument(columns: list[tuple[Any, ...]]) -> tuple[list[Any], ...]:
    """Return for each argument the list of its coefficients."""
    return tuple(map(list, zip(*columns, strict=True)))


def call_with_rules(function: Any, args: tuple[Any, ...]) -> Any:
    """Evaluate a function so that its derivatives follow its rules."""
    args = jax.tree.map(lambda a: _held(a) if callable(a) else a, args)
    built = split(built_for(function.build, args))
    given = split(args)
    skeleton, captured = _split(function)
    shape = Shape(skeleton, len(captured), built.form, given.form)
    arrays = varying_alike([*captured, *built.arrays, *given.arrays])
    application = Application(shape)
    run = apply_ruled
    if skeleton.opaque is not None:  # what it has captured cannot be told
        run = _as_custom_jvp
    outputs = run(application, arrays)
    return application.structure(arrays).unflatten(outputs)


def _as_custom_jvp(application: Application, arrays: Arrays) -> Arrays:
    """Evaluate a function that may have captured tracers, as JAX does."""
    ruled = jax.custom_jvp(lambda *arrays: application.run(list(arrays)))

    def jvp(primals: Arrays, tangents: Arrays) -> tuple[Arrays, Arrays]:
        outputs = ruled(*primals)
        along = [None if type(t) is SymbolicZero else t for t in tangents]
        if all(t is None for t in along):
            return outputs, [_zero(o) for o in outputs]
        made = application.tangents(outputs, list(primals), along)
        pairs = zip(outputs, made, strict=True)
        return outputs, [_zero(o) if t is None else t for o, t in pairs]

    ruled.defjvp(jvp, symbolic_zeros=True)
    return ruled(*arrays)


class _Itself:
    """A captured array, compared by identity."""

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.array is self.array

    def __hash__(self) -> int:
        return id(self.array)


class _Held:
    """A function among the arguments: static, compared by what it is and captured."""

    __slots__ = ("func", "key")

    def __init__(self, function: Any, key: Any) -> None:
        self.func = function
        self.key = key

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.func(*args, **keywords)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Held) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)


def _held(function: Any) -> Any:
    """Return a function that is an argument: its captured tracers are as well."""
    skeleton, captured = _split(function)
    if captured:
        return Closure(tuple(captured), skeleton)
    return _Held(function, skeleton.key)


def _split(function: Any) -> tuple[Skeleton, list[Any]]:
    """Split a function with rules into its captured tracers and the rest.

    Tracers become arguments, as a rule must not keep those of another trace; without
    any the function is used as it is, with its arrays. It is compared by value.
    """
    name = function_name(function)
    try:
        walk, _ = survey(function)
        walk.close()
    except (Opaque, RecursionError):
        key = (object(),)  # what it does may change: it equals no other
        return Skeleton(key, function, name=name, opaque="it is opaque"), []
    if any(isinstance(leaf, Tracer) for leaf in walk.leaves):
        closure = Closure.of(function)
        if closure.skeleton.opaque is None:
            return closure.skeleton, list(closure.leaves)
    # a NumPy array may change in place: its copy in the walk is like no other
    key = (*walk.key, *map(_Itself, walk.leaves))
    return Skeleton(key, function, name=name), []


def _zero(output: Any) -> Any:
    if is_inexact(output):
        return jnp.zeros_like(output)
    return np.zeros(jnp.shape(output), jax.dtypes.float0)


def _no_series(shape: Shape, order: int, made: Any) -> StructureError:
    rule = shape.template.taylor
    return StructureError(
        message(
            f"rule {function_name(rule)}{function_place(rule)}",
            "the rule for Taylor series returns something else than it must.",
            expected=f"a list with the {order} coefficients of the value",
            got=f"{type(made).__name__}"
            + (f" of {len(made)}" if isinstance(made, (list, tuple)) else ""),
            fix="The value itself is not among them.",
        )
    )


def _captured(shape: Shape) -> ModeError:
    f = shape.template.f
    return ModeError(
        message(
            function_name(f),
            "it is differentiated by an array that it has captured; its rules know "
            "its arguments alone.",
            expected="derivatives by arguments",
            got=f"a derivative by a captured array of the function{function_place(f)}",
            fix="Pass the array as an argument, or take `jax.lax.stop_gradient` of it.",
        )
    )
