"""Functions of `jax.custom_vjp`, with the forward rule that they lack.

JAX refuses to push tangents through them, at the latest at second order where their
forward pass calls them again. But a reverse rule is a linear map, and its transpose is
the forward rule.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from hotk._core import (
    EXTREMES,
    Arrays,
    Function,
    Handlers,
    JaxprEqn,
    Leaf,
    ShapedArray,
    Types,
    is_inexact,
    jaxpr_as_fun,
    run_replaced,
    source_line,
    varying_alike,
)

from ._extremes import extreme
from ._linear import AbstractLinear, apply_linear
from ._ruled import AbstractRuled, Tangents, apply_ruled


def with_rules(f: Function, *, derive: bool = True, by_body: bool = False) -> Function:
    """Return `f` so that what it holds has all derivatives, and the right ones.

    Args:
        f: A function of trees of arrays.
        derive: Whether what it holds of `jax.custom_vjp` gets the forward rule that it
            lacks; a maximum and a minimum always have the rule of `extreme`.
        by_body: Whether the forward rule is the derivative of the function's body. By
            default it is the transpose of the reverse rule, which need not exist.
    """
    handlers: Handlers = dict.fromkeys(EXTREMES, extreme)
    if derive:
        handlers = {**handlers, "custom_vjp_call": functools.partial(_run, by_body)}

    def call(*arguments: PyTree) -> PyTree:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        outputs = run_replaced(closed, jax.tree.leaves(arguments), handlers)
        return jax.tree.structure(shapes).unflatten(outputs)

    return call


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
        return [a.to_tangent_aval() for a in self._chosen(residuals)]

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
            outputs = self.function.body(*self._with(residuals, moved))
            pairs = zip(outputs, self.types, strict=True)
            return [o for o, t in pairs if is_inexact(t)]

        point = self._chosen(residuals)
        return jax.jvp(with_rules(body, by_body=True), (point,), (inputs,))[1]

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Apply the reverse rule, which may call the function again."""

        def pulled(residuals: Arrays, cotangents: Arrays) -> Arrays:
            rest = iter(cotangents)
            full = [
                next(rest) if is_inexact(t) else np.zeros(t.shape, jax.dtypes.float0)
                for t in self.types
            ]
            function = lambda moved: self.function(*self._with(residuals, moved))
            return jax.vjp(function, self._chosen(residuals))[1](full)[0]

        return with_rules(pulled, by_body=self.by_body)(residuals, cotangents)

    def _with(self, residuals: Arrays, moved: Arrays) -> Arrays:
        rest = iter(moved)
        pairs = zip(residuals, self.moving, strict=True)
        return [next(rest) if m else r for r, m in pairs]

    def _chosen(self, arrays: Sequence[T]) -> list[T]:
        return [a for a, m in zip(arrays, self.moving, strict=True) if m]


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


def _run(by_body: bool, equation: JaxprEqn, inputs: Arrays) -> Arrays:
    return apply_ruled(_CustomVjp(_Function(equation), by_body), varying_alike(inputs))
