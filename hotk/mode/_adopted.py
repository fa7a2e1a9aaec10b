"""Functions of `jax.custom_vjp`, with the forward rule that they lack.

JAX refuses to push tangents through them, at the latest at second order where their
forward pass calls them again. But a reverse rule is a linear map, and its transpose is
the forward rule.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import jaxpr_as_fun, run_replaced, source_line

from ._linear import AbstractLinear, apply_linear
from ._ruled import AbstractRuled, apply_ruled


Arrays = list[Any]
_NAMES = ("custom_vjp_call", "custom_vjp_call_jaxpr")


def adopted(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` so that what it holds of `jax.custom_vjp` has all derivatives.

    Args:
        f: A function of trees of arrays.
    """

    def call(*arguments: Any) -> Any:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        outputs = run_replaced(closed, jax.tree.leaves(arguments), _HANDLERS)
        return jax.tree.structure(shapes).unflatten(outputs)

    return call


class _Function:
    """An equation of a function with a reverse rule; known by its identity."""

    __slots__ = ("equation",)

    def __init__(self, equation: Any) -> None:
        self.equation = equation

    def __call__(self, *arrays: Any) -> Arrays:
        """Evaluate it as JAX does, its rule included."""
        primitive = self.equation.primitive
        parameters = primitive.get_bind_params(self.equation.params)
        return list(primitive.bind(*arrays, **parameters))

    def body(self, *arrays: Any) -> Arrays:
        """Evaluate it without its rule."""
        closed = self.equation.params["call_jaxpr"]
        return jaxpr_as_fun(closed)(*arrays)


@dataclasses.dataclass(frozen=True)
class Adopted(AbstractLinear):
    """The derivative of a function with a reverse rule.

    Attributes:
        function: The function.
        types: The types of the tangents of all outputs.
        moving: For each argument whether it moves.
    """

    is_doubtful = True  # a reverse rule need not be one that JAX can transpose
    function: _Function
    types: tuple[Any, ...]
    moving: tuple[bool, ...]

    def note(self, transposed: bool) -> str:
        """Say whether the rule is derived."""
        place = source_line(self.function.equation)
        rule = "its rule" if transposed else "a derived forward rule"
        return f"custom_vjp at {place}: {rule}"

    def takes(self, residuals: Arrays) -> Arrays:
        """Return the types of the tangents."""
        return [a.to_tangent_aval() for a in self._chosen(residuals)]

    def gives(self, residuals: Arrays) -> Arrays:
        """Return the types of the tangents of the outputs."""
        del residuals
        return [t for t in self.types if _is_inexact(t)]

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Transpose the reverse rule, or differentiate the function where none is."""
        back = lambda cotangents: self.backward(residuals, cotangents)
        try:
            return jax.linear_transpose(back, self.gives(residuals))(inputs)[0]
        except NotImplementedError:  # what the rule is made of is not linear to JAX
            return self._through_body(residuals, inputs)

    def _through_body(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        def body(some: Arrays) -> Arrays:
            rest = iter(some)
            pairs = zip(residuals, self.moving, strict=True)
            outputs = self.function.body(*(next(rest) if m else r for r, m in pairs))
            return [
                o for o, t in zip(outputs, self.types, strict=True) if _is_inexact(t)
            ]

        return jax.jvp(adopted(body), (self._chosen(residuals),), (inputs,))[1]

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Apply the reverse rule, itself adopted: it may call the function again."""

        def pulled(residuals: Arrays, cotangents: Arrays) -> Arrays:
            rest = iter(cotangents)
            given = [
                next(rest) if _is_inexact(t) else np.zeros(t.shape, jax.dtypes.float0)
                for t in self.types
            ]
            held = list(residuals)

            def function(*some: Any) -> Arrays:
                values = iter(some)
                pairs = zip(held, self.moving, strict=True)
                return self.function(*(next(values) if m else r for r, m in pairs))

            return list(jax.vjp(function, *self._chosen(residuals))[1](given))

        return adopted(pulled)(residuals, cotangents)

    def _chosen(self, arrays: Any) -> Arrays:
        return [a for a, m in zip(arrays, self.moving, strict=True) if m]


@dataclasses.dataclass(frozen=True)
class _Ruled(AbstractRuled):
    """A function with a reverse rule, as one with tangents."""

    function: _Function

    def run(self, arrays: Arrays) -> Arrays:
        """Evaluate it."""
        return self.function(*arrays)

    def tangents(self, outputs: Arrays, arrays: Arrays, along: Arrays) -> Arrays:
        """Apply the transpose of its rule."""
        types = tuple(jax.typeof(o).to_tangent_aval() for o in outputs)
        derivative = Adopted(self.function, types, tuple(t is not None for t in along))
        found = iter(
            apply_linear(derivative, arrays, [t for t in along if t is not None])
        )
        return [next(found) if _is_inexact(t) else None for t in types]


def _run(equation: Any, inputs: Arrays) -> Arrays:
    return apply_ruled(_Ruled(_Function(equation)), inputs)


def _is_inexact(kind: Any) -> bool:
    return jnp.issubdtype(kind.dtype, jnp.inexact)


_HANDLERS = dict.fromkeys(_NAMES, _run)
