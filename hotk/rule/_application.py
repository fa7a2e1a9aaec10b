"""`Application`: a function with rules at arguments of one structure."""

import collections
import dataclasses
import threading
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, PyTree

from hotk._capture import Closure, Opaque, OpaqueReason, Skeleton, survey
from hotk._core import (
    Leaf,
    ModeError,
    StructureError,
    Tracer,
    function_name,
    function_place,
    is_inexact,
    message,
    output_types,
    trace_context,
    varying_alike,
    zeros_like,
)
from hotk._prepared import STORE
from hotk._primitive import AbstractRuled, apply_ruled

from ._derivative import Derivative, Rules
from ._results import tangents_of
from ._shape import Arrays, FunctionWithRules, Shape, split


@dataclasses.dataclass(frozen=True)
class Application(AbstractRuled):
    """A function with rules, at arguments of one structure.

    Attributes:
        shape: The function, and what is static in its call.
        tree: In its first entry the structure of the value, once it was evaluated. It
            is not compared: an application is a parameter of an equation, and must be
            equal before and after the function has run.
    """

    shape: Shape
    tree: list[Any] = dataclasses.field(default_factory=list, compare=False)

    def run(self, arrays: Arrays) -> Arrays:
        """Evaluate the function."""
        outputs, tree = jax.tree.flatten(self.shape.call(arrays))
        self.tree[:] = [tree]
        return outputs

    def structure(self, arrays: Arrays) -> Any:  # JAX has no type for it
        """Return the structure of the value; JAX may know its types without a run."""
        if not self.tree:
            output_types(self.run, list(map(jax.typeof, arrays)))
        return self.tree[0]

    def tangents(self, outputs: Arrays, arrays: Arrays, along: Arrays) -> Arrays:
        """Apply the rules."""
        moving = tuple(t is not None for t in along)
        rules = Rules.of(self.shape)
        # A rule gives no derivative by what the function captures. Zero would be wrong.
        if any(moving[: self.shape.captured]):
            raise _captured(self.shape)
        types = tuple(jax.typeof(o).to_tangent_aval() for o in outputs)
        derivative = Derivative(
            self.shape, rules, self.structure(arrays), types, moving
        )
        moved = [t for t in along if t is not None]
        tangents = iter(derivative.along(outputs, arrays, moved))
        return [next(tangents) if is_inexact(t) else None for t in types]

    def has_series(self) -> bool:
        """Whether there is a rule for Taylor series."""
        return self.shape.template.taylor is not None

    def series(self, outputs: Arrays, arrays: Arrays, terms: Arrays) -> Arrays:
        """Apply the rule for Taylor series."""
        shape, tree = self.shape, self.structure(arrays)
        if any(t is not None for column in terms for t in column[: shape.captured]):
            raise _captured(shape)
        rule = shape.rule("taylor", arrays, lambda: tree.unflatten(outputs))
        # The rule of a user gets zeros, so it need not ask for `None`.
        columns = [
            shape.arguments.only(
                [
                    zeros_like(a) if t is None and is_inexact(a) else t
                    for a, t in zip(arrays, column, strict=True)
                ][shape.start :]
            )
            for column in terms
        ]
        series = rule(shape.args(arrays), _per_argument(columns))
        types = tuple(jax.typeof(o).to_tangent_aval() for o in outputs)
        if not isinstance(series, (list, tuple)) or len(series) != len(terms):
            raise _no_series(shape, len(terms), series)
        flat = [iter(tangents_of(rule.func, m, tree, types)) for m in series]
        return [[next(f) if is_inexact(t) else None for t in types] for f in flat]


def _per_argument(columns: list[tuple[PyTree, ...]]) -> tuple[list[PyTree], ...]:
    """Return for each argument the list of its coefficients."""
    return tuple(map(list, zip(*columns, strict=True)))


def call_with_rules(function: FunctionWithRules, args: tuple[PyTree, ...]) -> PyTree:
    """Evaluate a function so that its derivatives follow its rules."""
    args = jax.tree.map(lambda a: _argument(a) if callable(a) else a, args)
    built = split(built_for(function.build, args))
    arguments = split(args)
    skeleton, captured = _without_tracers(function)
    shape = Shape(skeleton, len(captured), built.form, arguments.form)
    arrays = [*captured, *built.arrays, *arguments.arrays]
    if not function.transposable:  # what the host returns varies as all it was given
        arrays = varying_alike(arrays)
    application = Application(shape)
    if captured and not function.transposable:  # the host may read what it captured
        application.on_host.append(True)
    # An opaque function may have captured tracers that hotk cannot find. JAX's own
    # `custom_jvp` carries them, at the price of losing its rule where a loop is split.
    opaque = skeleton.opaque is not None
    outputs = (_as_custom_jvp if opaque else apply_ruled)(application, arrays)
    return application.structure(arrays).unflatten(outputs)


def _as_custom_jvp(application: Application, arrays: Arrays) -> Arrays:
    """Evaluate a function that may have captured tracers, as JAX does."""
    function = jax.custom_jvp(lambda *arrays: application.run(list(arrays)))

    def jvp(
        primals: tuple[Array, ...], tangents: tuple[Array | SymbolicZero, ...]
    ) -> tuple[Arrays, Arrays]:
        # The function itself and not its body: so the rule is there at second order.
        outputs = function(*primals)
        along = [None if type(t) is SymbolicZero else t for t in tangents]
        if all(t is None for t in along):
            return outputs, [_zero(o) for o in outputs]
        derived = application.tangents(outputs, list(primals), along)
        pairs = zip(outputs, derived, strict=True)
        return outputs, [_zero(o) if t is None else t for o, t in pairs]

    function.defjvp(jvp, symbolic_zeros=True)
    return function(*arrays)


class _ByIdentity:
    """A captured array in a key: arrays have no hash, and `==` of them no truth."""

    __slots__ = ("array",)

    def __init__(self, array: Leaf) -> None:
        self.array = array

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.array is self.array

    def __hash__(self) -> int:
        return id(self.array)


class FunctionArgument:
    """A function among the arguments: static, compared by what it is and captures."""

    __slots__ = ("func", "key")

    def __init__(
        self, function: Callable[..., PyTree], key: tuple[Hashable, ...]
    ) -> None:
        self.func = function
        self.key = key

    def __call__(self, *args: PyTree, **keywords: PyTree) -> PyTree:
        return self.func(*args, **keywords)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionArgument) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)


def _argument(function: Callable[..., PyTree]) -> Closure | FunctionArgument:
    """Return a function that is an argument: its captured tracers are arguments too."""
    skeleton, captured = _without_tracers(function)
    if captured:
        return Closure(tuple(captured), skeleton)
    return FunctionArgument(function, skeleton.key)


def _without_tracers(
    function: Callable[..., PyTree],
) -> tuple[Skeleton, list[Leaf]]:
    """Split a function with rules into its captured tracers and the rest.

    Tracers become arguments, as a rule must not keep those of another trace; without
    any the function is used as it is, with its arrays. It is compared by value.
    """
    name = function_name(function)
    try:
        walk, _ = survey(function)
        walk.close()
    except (Opaque, RecursionError):
        # A new object equals no other: what an opaque function does may have changed
        # since the last call, so no program of it is used again.
        key = (object(),)
        return Skeleton(
            key, function, name=name, opaque=OpaqueReason("it is opaque")
        ), []
    if any(isinstance(leaf, Tracer) for leaf in walk.leaves):
        closure = Closure.of(function)
        if closure.skeleton.opaque is None:
            return closure.skeleton, list(closure.leaves)
    # By identity, and not content, which would be compared at each call. The walk
    # copies NumPy arrays, which may change in place, so these equal no other.
    leaves = walk.leaves
    if not getattr(function, "transposable", True):
        leaves = [function, *leaves]  # the host reads what it holds when it runs
    key = (*walk.key, *map(_ByIdentity, leaves))
    return Skeleton(key, function, name=name), []


def _zero(output: Array) -> Array | np.ndarray:
    if is_inexact(output):
        return jnp.zeros_like(output)
    # JAX's type for the tangent of an integer
    return np.zeros(jnp.shape(output), jax.dtypes.float0)


def _no_series(shape: Shape, order: int, series: object) -> StructureError:
    rule = shape.template.taylor
    return StructureError(
        message(
            f"rule {function_name(rule)}{function_place(rule)}",
            "the rule for Taylor series must return a list of coefficients.",
            expected=f"a list with the {order} coefficients of the value",
            got=f"{type(series).__name__}"
            + (f" of {len(series)}" if isinstance(series, (list, tuple)) else ""),
            fix="Leave out the value itself, coefficient 0.",
        )
    )


def _captured(shape: Shape) -> ModeError:
    f = shape.template.f
    return ModeError(
        message(
            function_name(f),
            "it is differentiated by an array that it captures, but its rules give "
            "derivatives by its arguments only.",
            expected="derivatives by arguments",
            got=f"a derivative by a captured array of the function{function_place(f)}",
            fix="Pass the array as an argument, or take `jax.lax.stop_gradient` of it.",
        )
    )


_LIMIT = 128
_LOCK = threading.Lock()
# What was built, with the closure whose arrays the key knows by `id`: while it lives,
# no other array can get one of these.
_BUILT: collections.OrderedDict[Hashable, tuple[PyTree, Closure]]
_BUILT = collections.OrderedDict()
STORE.others.append(_BUILT)


def built_for(build: Callable[..., PyTree] | None, args: PyTree) -> PyTree:
    """Return what `build` makes of the shapes of these arguments.

    It is built once for a signature, outside of all transformations: no tracer reaches
    it, so it is never differentiated, and a program traced again gets the same object.
    """
    if build is None:
        return None
    closure = Closure.of(build)
    shapes = jax.tree.map(_shape, args)
    leaves, tree = jax.tree.flatten(shapes)
    captured = tuple(map(id, closure.leaves))
    key = (closure.skeleton, captured, tree, tuple(map(_key, leaves)), trace_context())
    with _LOCK:
        if key in _BUILT:
            _BUILT.move_to_end(key)
            return _BUILT[key][0]
    # Outside of the lock, as it is code of the user. Two threads may both build; then
    # the first result is taken, so that all programs hold one object.
    with jax.ensure_compile_time_eval():
        built = build(*shapes)
    with _LOCK:
        built, _ = _BUILT.setdefault(key, (built, closure))
        while len(_BUILT) > _LIMIT:
            _BUILT.popitem(last=False)
    return built


def _shape(leaf: object) -> object:
    if not hasattr(leaf, "dtype") and not isinstance(leaf, (float, complex)):
        return leaf
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _key(leaf: Hashable) -> Hashable:
    # with its type, as 1 and 1.0 are equal and may build different things
    return leaf if isinstance(leaf, jax.ShapeDtypeStruct) else (type(leaf), leaf)
