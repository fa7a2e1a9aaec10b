"""Functions with a rule of `jax.custom_vjp` or `jax.custom_jvp`, and what they lack.

JAX refuses to push tangents through the former, at the latest at second order where
their forward pass calls them again. But a reverse rule is a linear map, and its
transpose is the forward rule. The program of either rule is known where it is applied:
there its maxima get their derivative, as those of the function itself do.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import PyTree

from hotk._core import (
    EXTREMES,
    Arrays,
    ClosedJaxpr,
    Function,
    Handlers,
    JaxprEqn,
    Leaf,
    Primitive,
    ShapedArray,
    Types,
    bound,
    compared_extremes,
    equations,
    has_extremes,
    has_ruled_extremes,
    is_inexact,
    jaxpr_as_fun,
    run_replaced,
    source_line,
)

from ._linear import AbstractLinear, apply_linear, check_linear
from ._ruled import AbstractRuled, Tangents, apply_ruled
from ._written import written


# The largest or smallest number of an array, with the derivative of one. JAX finds the
# entries that a maximum depends on by comparing the array with the maximum. XLA
# computes an array that is the result of cheap operations anew in each place where it
# is read, and may round it otherwise there: with a product and a sum in one operation,
# or in more digits than it has. Then no entry is the largest, or another one in each
# use, and the derivative is `nan`, or a part of it is lost without a sign. Here the
# array is compared as it was written once.


@dataclasses.dataclass(frozen=True)
class _Extreme(AbstractRuled):
    """The largest or the smallest number along axes.

    Attributes:
        primitive: The operation of JAX.
        parameters: Its parameters, with their names.
    """

    primitive: Primitive
    parameters: tuple[tuple[str, Hashable], ...]

    users_rule = False

    def run(self, arrays: Arrays) -> Arrays:
        """Find it."""
        return [self.primitive.bind(*arrays, **dict(self.parameters))]

    def tangents(self, outputs: Arrays, arrays: Arrays, along: Tangents) -> Tangents:
        """Take the mean of those that are equal to it; all are `nan` if it is."""
        [tangent] = along
        if tangent is None:
            return [None]
        array = written(jax.lax.stop_gradient(jnp.asarray(arrays[0])))
        axes: Any = dict(self.parameters)["axes"]
        [extreme] = self.run([array])
        extreme = jnp.expand_dims(jnp.asarray(extreme), axes)
        chosen = (array == extreme).astype(array.dtype)
        chosen = jnp.where(extreme == extreme, chosen, jnp.nan)
        return [jnp.sum(tangent * chosen, axes) / jnp.sum(chosen, axes)]


def extreme(equation: JaxprEqn, inputs: list[Leaf]) -> Arrays:
    """Evaluate `reduce_max` or `reduce_min` so that its derivative is right."""
    parameters = tuple(sorted(equation.params.items()))
    return apply_ruled(_Extreme(equation.primitive, parameters), inputs)


def with_rules(f: Function, *, derive: bool = True, by_body: bool = False) -> Function:
    """Return `f` so that what it holds has all derivatives, and the right ones.

    Args:
        f: A function of trees of arrays.
        derive: Whether what it holds of `jax.custom_vjp` gets the forward rule that it
            lacks; a maximum and a minimum always have the rule of `extreme`.
        by_body: Whether the forward rule is the derivative of the function's body. By
            default it is the transpose of the reverse rule, which need not exist.
    """

    def call(*arguments: PyTree) -> PyTree:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        outputs = _run(closed, jax.tree.leaves(arguments), derive, by_body)
        return jax.tree.structure(shapes).unflatten(outputs)

    return call


def with_extremes(closed: ClosedJaxpr) -> Callable[..., Arrays]:
    """Return a program as a function, so that derivatives by its maxima are right."""
    if not has_extremes(closed.jaxpr):
        return jaxpr_as_fun(closed)
    return lambda *arrays: _run(closed, arrays, derive=False, by_body=False)


def with_forward_rule(closed: ClosedJaxpr, x: Arrays) -> Callable[..., Arrays]:
    """Return a program as a function that has a derivative along any direction.

    What it holds of `jax.custom_vjp` has no forward rule: its reverse rule, transposed,
    is one, and the derivative of its body where JAX cannot transpose the rule, as that
    of a solver that goes back over checkpoints.

    Args:
        closed: A program of floating arrays.
        x: A point.
    """
    run = with_extremes(closed)
    names = [equation.primitive.name for equation in equations(closed.jaxpr)]
    if not any(name.startswith("custom_vjp") for name in names):
        return run
    derived = with_rules(run)
    try:
        check_linear(jax.make_jaxpr(lambda x, v: jax.jvp(derived, x, v))(x, x))
    except NotTransposableError:
        return with_rules(run, by_body=True)
    return derived


def _run(
    closed: ClosedJaxpr, arrays: Iterable[Leaf], derive: bool, by_body: bool
) -> Arrays:
    def forward(equation: JaxprEqn, inputs: Arrays) -> Sequence[Leaf]:
        if not has_ruled_extremes(equation):
            return bound(equation, inputs)
        return _ruled_again(_Function(equation), derive, by_body)(*inputs)

    def reverse(equation: JaxprEqn, inputs: Arrays) -> Sequence[Leaf]:
        if not derive and not has_ruled_extremes(equation):
            return bound(equation, inputs)
        ruled = _CustomVjp(_Function(equation), by_body)
        return apply_ruled(ruled, inputs)

    handlers: Handlers = {
        **dict.fromkeys(EXTREMES, extreme),
        "custom_jvp_call": forward,
        "custom_vjp_call": reverse,
    }
    # What is a derivative already has its maxima by the rule of JAX.
    changes = dict.fromkeys(compared_extremes(closed.jaxpr), written)
    return run_replaced(closed, arrays, handlers, changes)


class NotTransposableError(Exception):
    """A reverse rule can be applied, but JAX cannot transpose it."""


T = TypeVar("T")


class _Function:
    """An equation of a function with a reverse rule; known by its identity."""

    __slots__ = ("equation",)

    def __init__(self, equation: JaxprEqn) -> None:
        self.equation = equation

    def __call__(self, *arrays: Leaf) -> Arrays:
        """Evaluate it as JAX does, its rule included."""
        primitive = self.equation.primitive
        parameters = primitive.get_bind_params(self.equation.params)
        return list(primitive.bind(*arrays, **parameters))

    def body(self, *arrays: Leaf) -> Arrays:
        """Evaluate it without its rule."""
        closed = self.equation.params["call_jaxpr"]
        return jaxpr_as_fun(closed)(*arrays)


@dataclasses.dataclass(frozen=True)
class CustomVjpDerivative(AbstractLinear):
    """The derivative of a function with a reverse rule.

    Attributes:
        function: The function.
        by_body: Whether its forward rule is the derivative of its body.
        types: The types of the tangents of all outputs.
        moving: For each argument whether it moves.
    """

    is_doubtful = True  # a reverse rule need not be one that JAX can transpose
    function: _Function
    by_body: bool
    types: tuple[ShapedArray, ...]
    moving: tuple[bool, ...]

    def note(self, transposed: bool) -> str:
        """Say whether the rule is derived."""
        place = source_line(self.function.equation)
        derived = "the derivative of its body" if self.by_body else "vjp, transposed"
        return f"custom_vjp at {place}: {'vjp' if transposed else derived}"

    def takes(self, residuals: Types) -> Types:
        """Return the types of the tangents."""
        return [a.to_tangent_aval() for a in _chosen(residuals, self.moving)]

    def gives(self, residuals: Types) -> Types:
        """Return the types of the tangents of the outputs."""
        del residuals
        return [t for t in self.types if is_inexact(t)]

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Transpose the reverse rule, or differentiate the body."""
        if not self.by_body:
            types = self.gives([])
            back = lambda cotangents: self.backward(residuals, cotangents)
            # Traced first: an error of the rule itself is not one of transposing it.
            traced = jax.make_jaxpr(back)(types)
            run = lambda cotangents: jaxpr_as_fun(traced)(*cotangents)
            try:
                return jax.linear_transpose(run, types)(inputs)[0]
            except jax.errors.UnexpectedTracerError:
                raise  # the rule's fault: it holds what another trace has left behind
            except Exception as error:  # JAX's transpose rules raise what they like
                place = source_line(self.function.equation)
                text = f"the reverse rule at {place} cannot be transposed ({error})"
                raise NotTransposableError(text) from error

        def body(moved: Arrays) -> Arrays:
            outputs = self.function.body(*_filled(residuals, self.moving, moved))
            return _chosen(outputs, list(map(is_inexact, self.types)))

        point = _chosen(residuals, self.moving)
        return jax.jvp(with_rules(body, by_body=True), (point,), (inputs,))[1]

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Apply the reverse rule, which may call the function again."""

        def pulled(residuals: Arrays, cotangents: Arrays) -> Arrays:
            rest = iter(cotangents)
            full = [
                next(rest) if is_inexact(t) else np.zeros(t.shape, jax.dtypes.float0)
                for t in self.types
            ]
            function = lambda moved: self.function(
                *_filled(residuals, self.moving, moved)
            )
            return jax.vjp(function, _chosen(residuals, self.moving))[1](full)[0]

        return with_rules(pulled, by_body=self.by_body)(residuals, cotangents)


@dataclasses.dataclass(frozen=True)
class _CustomVjp(AbstractRuled):
    """A function with a reverse rule, as one with tangents."""

    function: _Function
    by_body: bool

    def run(self, arrays: Arrays) -> Arrays:
        """Evaluate it."""
        return self.function(*arrays)

    def tangents(self, outputs: Arrays, arrays: Arrays, along: Tangents) -> Tangents:
        """Apply the derived rule."""
        types = tuple(jax.typeof(o).to_tangent_aval() for o in outputs)
        moving = tuple(t is not None for t in along)
        derivative = CustomVjpDerivative(self.function, self.by_body, types, moving)
        moved = [t for t in along if t is not None]
        slopes = iter(apply_linear(derivative, arrays, moved))
        return [next(slopes) if is_inexact(t) else None for t in types]


def _ruled_again(function: _Function, derive: bool, by_body: bool) -> Function:
    """Return a function of `jax.custom_jvp` whose rule has maxima with a derivative."""

    def rule(points: Sequence[Leaf], tangents: Sequence[Any]) -> tuple[Arrays, Arrays]:
        moving = [not isinstance(t, SymbolicZero) for t in tangents]

        # With the values: a rule that solves a system solves it once.
        def along(points: Sequence[Leaf], moved: Arrays) -> tuple[Arrays, Arrays]:
            of = lambda moved: function(*_filled(points, moving, moved))
            y, slopes = jax.jvp(of, (_chosen(points, moving),), (moved,))
            return y, _chosen(slopes, list(map(is_inexact, y)))

        run = with_rules(along, derive=derive, by_body=by_body)
        y, slopes = run(points, _chosen(tangents, moving))
        none = [np.zeros(jnp.shape(a), jax.dtypes.float0) for a in y]
        return y, _filled(none, list(map(is_inexact, y)), slopes)

    # JAX differentiates the body where it splits a loop into what is known and not.
    body = function.equation.params["call_jaxpr"]
    again = jax.custom_jvp(lambda *arrays: _run(body, arrays, derive, by_body))
    again.defjvp(rule, symbolic_zeros=True)
    return again


def _filled(arrays: Sequence[Leaf], moving: Sequence[bool], moved: Arrays) -> Arrays:
    rest = iter(moved)
    return [next(rest) if m else a for a, m in zip(arrays, moving, strict=True)]


def _chosen(arrays: Sequence[T], which: Sequence[bool]) -> list[T]:
    return [a for a, chosen in zip(arrays, which, strict=True) if chosen]
