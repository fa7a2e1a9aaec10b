"""`Derivative`: the derivative of a function with rules, as a linear map."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    ModeError,
    equations,
    function_name,
    function_place,
    is_inexact,
    manual_axes,
    message,
    used_inputs,
    zeros_like,
)
from hotk._mode import Forward, Reverse
from hotk._primitive import AbstractLinear, apply_linear, with_rules

from ._results import cotangents_of, tangents_of
from ._shape import Arrays, ArrayType, FunctionWithRules, Shape


# Equations whose inner programs `_check_linear` does not follow.
_HIDING = ("while", "scan", "cond", "hotk_ruled", "hotk_linear")


class Rules(NamedTuple):
    """Which rule serves which mode.

    Attributes:
        names: The rules that were given, but for Taylor series.
        forward: `"jvp"`, `"vjp"` (transposed) or `"body"`.
        backward: `"vjp"`, `"jvp"` (transposed) or `"body"`.
        keeps_value: Whether a rule takes the value of the function.
    """

    names: frozenset[str]
    forward: str
    backward: str
    keeps_value: bool

    @staticmethod
    def of(shape: Shape) -> "Rules":
        """Choose the rules of a function."""
        return rules_of(shape.template)


def rules_of(function: FunctionWithRules) -> Rules:
    """Choose the rules of a function: the nearest one that may serve a mode."""
    rules = {n: rule for n, rule in function.rules().items() if n != "taylor"}

    def serves(name: str, mode: type) -> bool:
        return name in rules and mode in getattr(function, f"{name}_modes")

    def nearest(mode: type, names: tuple[str, ...]) -> str:
        return next((name for name in names if serves(name, mode)), "body")

    return Rules(
        frozenset(rules),
        nearest(Forward, ("jvp", "vjp")),
        nearest(Reverse, ("vjp", "jvp")),
        any("y" in function.extras[name] for name in rules),
    )


@dataclasses.dataclass(frozen=True)
class Derivative(AbstractLinear):
    """The derivative of a function with rules by some of its arrays.

    Residuals: the value, where a rule takes it, then all arrays of the call. Inputs:
    tangents of the arrays that move. Outputs: tangents of the inexact outputs.

    Attributes:
        shape: The function and what is static in its call.
        rules: Which rule serves which mode.
        tree: The structure of the value.
        types: The types of the tangents of all outputs.
        moving: For each array whether it moves.
    """

    shape: Shape
    rules: Rules
    tree: Any
    types: tuple[ArrayType, ...]
    moving: tuple[bool, ...]

    def note(self, transposed: bool) -> str:
        """Say which rule runs."""
        own = "vjp" if transposed else "jvp"
        name = self.rules.backward if transposed else self.rules.forward
        derived = "" if name in (own, "body") else ", transposed"
        return f"{function_name(self.shape.template.f)}: {name}{derived}"

    def along(self, outputs: Arrays, arrays: Arrays, tangents: Arrays) -> Arrays:
        """Differentiate along tangents, so that the rules are kept for what follows."""
        residuals = [*(outputs if self.rules.keeps_value else ()), *arrays]
        # One rule that serves both modes needs no primitive to keep two apart: JAX
        # transposes it as it does any code, and may fuse it with what is around.
        if self.rules.names <= {"jvp"} and self.rules.forward == self.rules.backward:
            return with_rules(self.forward)(residuals, tangents)
        return apply_linear(self, residuals, tangents)

    def takes(self, residuals: Arrays) -> Arrays:
        """Return the types of the tangents."""
        arrays = residuals[len(residuals) - len(self.moving) :]
        return [a.to_tangent_aval() for a in self.chosen(arrays)]

    def gives(self, residuals: Arrays) -> Arrays:
        """Return the types of the tangents of the outputs."""
        del residuals
        return [t for t in self.types if is_inexact(t)]

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Apply the forward rule, or what is derived for it."""
        if self.rules.forward == "jvp":
            return self._by_jvp(residuals, inputs)
        if self.rules.forward == "body":
            point = self.chosen(residuals)
            # The body may call a `jax.custom_vjp`, which has no forward rule in JAX.
            return jax.jvp(with_rules(self._body(residuals)), (point,), (inputs,))[1]
        self._check_linear(residuals)
        back = lambda cotangents: self._by_vjp(residuals, cotangents)
        return self.contracted(back, self.gives(residuals), inputs)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Apply the reverse rule, or what is derived for it."""
        if self.rules.backward == "vjp":
            return self._by_vjp(residuals, cotangents)
        if self.rules.backward == "body":
            point = self.chosen(residuals)
            return jax.vjp(self._body(residuals), point)[1](cotangents)[0]
        like = [jax.typeof(a).to_tangent_aval() for a in self.chosen(residuals)]
        ahead = lambda tangents: self._by_jvp(residuals, tangents)
        return jax.linear_transpose(ahead, like)(cotangents)[0]

    def _by_jvp(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        rule, args, arrays = self.rule("jvp", residuals)
        tangents = rule(args, self.directions(arrays, self.moving, inputs))
        return tangents_of(rule.func, tangents, self.tree, self.types)

    def _by_vjp(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        rule, args, arrays = self.rule("vjp", residuals)
        products = rule(args, self.cotangent(cotangents))
        return self.chosen(cotangents_of(rule.func, products, self.shape, arrays))

    def derivative(
        self, transposed: bool, residuals: Arrays, tangents: Arrays, values: Arrays
    ) -> Arrays:
        """Apply the second-order rule, or differentiate the rule of first order."""
        if "hvp" not in self.rules.names:
            if transposed and self.rules.backward == "vjp":
                self._check_linear(residuals)
            return super().derivative(transposed, residuals, tangents, values)
        # Tangents of the value, where it is among the residuals, are left out: it
        # follows from the arguments, and the rule gives the whole derivative by these.
        along = tangents[len(tangents) - len(self.moving) :]
        moving = tuple(t is not None for t in along)
        second = SecondDerivative(self, transposed, moving)
        moved = [t for t in along if t is not None]
        return apply_linear(second, [*residuals, *values], moved)

    def _check_linear(self, residuals: Arrays) -> None:
        """Refuse a reverse rule that is not linear, such as one that clips.

        A map is linear if its derivative does not depend on where it is taken. Without
        this check the transpose would be taken of something else than the rule, and
        the result silently be wrong (`tests/rule/test_custom.py`).
        """
        values = self.gives(residuals)
        back = lambda u: self._by_vjp(residuals, u)
        slope = lambda u, t: jax.jvp(back, (u,), (t,))[1]
        try:
            closed = jax.make_jaxpr(slope)(values, values)
        except Exception:  # what JAX cannot differentiate is not known to be nonlinear
            return
        # Nor is what is linear as a whole and not in its parts, as an iterative solver,
        # or a rule that is itself a primitive.
        hidden = any(e.primitive.name in _HIDING for e in equations(closed.jaxpr))
        if not hidden and any(used_inputs(closed)[: len(values)]):
            raise _nonlinear(self.shape.template)

    def rule(
        self, name: str, residuals: Arrays
    ) -> tuple[functools.partial[PyTree], tuple[PyTree, ...], Arrays]:
        """Return a rule with what it takes, the arguments, and all arrays."""
        start = len(residuals) - len(self.moving)
        arrays = residuals[start:]
        value = lambda: self.tree.unflatten(residuals[:start])
        rule = self.shape.rule(name, arrays, value)
        return rule, self.shape.args(arrays), arrays

    def directions(
        self, arrays: Arrays, moving: tuple[bool, ...], inputs: Arrays
    ) -> tuple[PyTree, ...]:
        """Return tangents of all arguments: zero for those that do not move."""
        rest = iter(inputs)
        tangents = [
            next(rest) if m else (zeros_like(a) if is_inexact(a) else None)
            for a, m in zip(arrays, moving, strict=True)
        ]
        return self.shape.arguments.only(tangents[self.shape.start :])

    def cotangent(self, cotangents: Arrays) -> PyTree:
        """Return the cotangent of the value, `None` where it is not differentiated."""
        rest = iter(cotangents)
        return self.tree.unflatten(
            next(rest) if is_inexact(t) else None for t in self.types
        )

    def chosen(self, arrays: Arrays, moving: tuple[bool, ...] | None = None) -> Arrays:
        """Return the arrays that move."""
        arrays = arrays[len(arrays) - len(self.moving) :]
        pairs = zip(arrays, moving or self.moving, strict=True)
        return [a for a, m in pairs if m]

    def contracted(
        self, product: Callable[[Arrays], Arrays], types: Arrays, values: Arrays
    ) -> Arrays:
        r"""Return $u \mapsto \langle$ `product(u)`, `values` $\rangle$ as a vector.

        That is the transpose of a linear map, applied to `values`. JAX transposes it,
        unless there is one output of one number, where the product with 1 is all that
        is needed, or the rules run on the host, where JAX sees no program.

        Args:
            product: A map that is linear in cotangents of these types.
            types: What it is applied to.
            values: What its results are contracted with.
        """
        single = len(types) == 1 and types[0].size == 1
        # Of a number that devices share, each has a part of the product alone.
        single = single and not manual_axes()
        single = single and jnp.issubdtype(types[0].dtype, jnp.floating)
        if self.shape.template.transposable and not single:
            return jax.linear_transpose(product, types)(values)[0]
        zeros = [jnp.zeros(t.shape, t.dtype) for t in types]

        def entry(k: int, i: int | Array) -> Array:
            unit = zeros[k].reshape(-1).at[i].set(1).reshape(zeros[k].shape)
            row = product([*zeros[:k], unit, *zeros[k + 1 :]])
            parts = [jnp.sum(a * b) for a, b in zip(row, values, strict=True)]
            return sum(parts[1:], parts[0]).astype(types[k].dtype)

        return [
            zeros[k]
            if t.size == 0
            else jnp.reshape(entry(k, 0), t.shape)
            if t.size == 1
            else jax.lax.map(functools.partial(entry, k), jnp.arange(t.size)).reshape(
                t.shape
            )
            for k, t in enumerate(types)
        ]

    def _body(self, residuals: Arrays) -> Callable[[Arrays], Arrays]:
        arrays = residuals[len(residuals) - len(self.moving) :]

        def body(some: Arrays) -> Arrays:
            rest = iter(some)
            pairs = zip(arrays, self.moving, strict=True)
            outputs = self.shape.call([next(rest) if m else a for a, m in pairs])
            return [o for o in jax.tree.leaves(outputs) if is_inexact(o)]

        return body


@dataclasses.dataclass(frozen=True)
class SecondDerivative(AbstractLinear):
    r"""The derivative of a `Derivative` by its arrays, by a rule of second order.

    The rule gives $M(u)\,t = \sum_k u_k \nabla^2 f_k\,t$, which is linear in both; with
    the residuals go the values that the first derivative was applied to.

    Attributes:
        first: The derivative that is differentiated.
        transposed: Whether that is its transpose, applied to a cotangent.
        moving: For each array whether it moves.
    """

    first: Derivative
    transposed: bool
    moving: tuple[bool, ...]

    def note(self, transposed: bool) -> str:
        """Say which rule runs."""
        del transposed
        function = self.first.shape.template
        notes = "".join(f" ({note})" for note in function.notes)
        return f"{function_name(function.f)}: hvp{notes}"

    def takes(self, residuals: Arrays) -> Arrays:
        """Return the types of the tangents."""
        inner, _ = self._split(residuals)
        arrays = self.first.chosen(inner, self.moving)
        return [a.to_tangent_aval() for a in arrays]

    def gives(self, residuals: Arrays) -> Arrays:
        """Return the types of what the first derivative returns."""
        inner, _ = self._split(residuals)
        return self.first.takes(inner) if self.transposed else self.first.gives(inner)

    def forward(self, residuals: Arrays, inputs: Arrays) -> Arrays:
        """Differentiate the first derivative along tangents."""
        inner, values = self._split(residuals)
        if self.transposed:
            return self.first.chosen(self._rule(inner, self.moving, inputs, values))

        # The forward derivative t -> J t, differentiated along s, is a vector of which
        # the rule gives products with cotangents: <u, (dJ s) t> = <M(u) s, t>.
        def product(cotangents: Arrays) -> Arrays:
            products = self._rule(inner, self.moving, inputs, cotangents)
            return self.first.chosen(products)

        return self.first.contracted(product, self.first.gives(inner), values)

    def backward(self, residuals: Arrays, cotangents: Arrays) -> Arrays:
        """Apply the transpose, which is the same rule: Hessians are symmetric."""
        inner, values = self._split(residuals)
        first = self.first
        if self.transposed:
            products = self._rule(inner, first.moving, cotangents, values)
        else:
            products = self._rule(inner, first.moving, values, cotangents)
        return first.chosen(products, self.moving)

    def _rule(
        self, inner: Arrays, moving: tuple[bool, ...], along: Arrays, u: Arrays
    ) -> Arrays:
        first = self.first
        rule, args, arrays = first.rule("hvp", inner)
        tangents = first.directions(arrays, moving, along)
        products = rule(args, tangents, first.cotangent(u))
        return cotangents_of(rule.func, products, first.shape, arrays)

    def _split(self, residuals: Arrays) -> tuple[Arrays, Arrays]:
        first = self.first
        count = len(first.moving)
        count += len(first.types) if first.rules.keeps_value else 0
        return list(residuals[:count]), list(residuals[count:])


def _nonlinear(function: FunctionWithRules) -> ModeError:
    rule = function.vjp
    return ModeError(
        message(
            f"rule {function_name(rule)}{function_place(rule)}",
            f"the reverse rule of `{function_name(function.f)}` is transposed or "
            "differentiated, but it is not linear in the cotangent.",
            expected="a rule that gives J(x)^T u",
            got="one that is not linear in u, as with clipping",
            fix="Give `def_hvp`, or use `jax.custom_vjp`, whose rules JAX "
            "differentiates as they are.",
        )
    )
