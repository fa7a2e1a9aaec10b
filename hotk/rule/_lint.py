"""`lint`: JAX's custom rules that are lost when they are differentiated."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import (
    AbstractReport,
    Function,
    JaxprEqn,
    Point,
    equations,
    placed_equations,
    trace_once,
)

from ._shape import shapes


_DECORATORS = {"custom_jvp_call": "custom_jvp", "custom_vjp_call": "custom_vjp"}


@final
class Findings(AbstractReport):
    """Custom rules that are lost at second order: what `hotk.rule.lint` returns.

    Attributes:
        rows: For each `"custom_jvp"` or `"custom_vjp"`, the function, and the line of
            its call.
    """

    rows: tuple[tuple[str, str, str], ...]

    def __bool__(self) -> bool:
        """Whether there is a finding."""
        return bool(self.rows)

    def _head(self) -> tuple[str, ...]:
        return ("kind", "function", "line")

    def _rows(self) -> list[tuple[str, ...]]:
        return list(self.rows)

    def _lines(self) -> list[str]:
        if not self.rows:
            return ["No custom rule is lost."]
        return [
            "The rule computes the value without the function itself, so a second "
            "derivative differentiates that code and not the rule. Call the function "
            "in its rule, or use `hotk.rule.custom`."
        ]


def lint(f: Function, x: Point, *args: PyTree) -> Findings:
    """Find rules of `jax.custom_jvp` and `jax.custom_vjp` that second order loses.

    A rule of JAX returns the value as well. If it computes the value without calling
    the function, the function and its rule are no longer in the first derivative. A
    second derivative then differentiates the code of the rule: harmless where the rule
    is what JAX would do, silently another number where it is not.

    Args:
        f: Function `f(x, *args)`. It is traced; what depends on `x` is not computed.
        x: Point: any pytree.
        *args: Further arguments of `f`.

    Returns:
        The findings, as a table; it is true if there are any.

    Example:
        >>> f = jax.custom_jvp(lambda x: jnp.exp(-x))
        >>> _ = f.defjvp(lambda p, t: (jnp.exp(-p[0]), p[0] * t[0]))
        >>> [kind for kind, _, _ in hotk.rule.lint(f, 1.5).rows]
        ['custom_jvp']
    """
    moving, static = eqx.partition(x, eqx.is_array_like)
    outputs = lambda moving: jax.tree.leaves(f(eqx.combine(moving, static), *args))
    arrays = lambda moving: list(filter(eqx.is_array, outputs(moving)))
    closed, _ = trace_once(arrays, moving, kept=True)
    rows = {}
    for equation, place in placed_equations(closed.jaxpr):
        decorator = _DECORATORS.get(equation.primitive.name)
        if decorator is not None and not _calls_itself(equation):
            rows[decorator, _name(equation), place] = None
    return Findings(tuple(rows))


def _name(equation: JaxprEqn) -> str:
    info = equation.params["call_jaxpr"].jaxpr.debug_info
    return str(getattr(info, "func_name", "")) or "a function"


def _calls_itself(equation: JaxprEqn) -> bool:
    """Whether the derivative of a function with a rule calls the function."""
    inputs = shapes([variable.aval for variable in equation.invars])
    primitive = equation.primitive

    def run(*arrays: Array) -> PyTree:
        return primitive.bind(*arrays, **primitive.get_bind_params(equation.params))

    def derivative(*arrays: Array) -> PyTree:
        if primitive.name == "custom_jvp_call":
            return jax.jvp(run, arrays, tuple(map(_tangent, arrays)))
        value, pull = jax.vjp(run, *arrays)
        return value, pull(jax.tree.map(_tangent, value))

    try:
        program = jax.make_jaxpr(derivative)(*inputs)
    except Exception:  # the rule does not exist for these types
        return True
    inner = [e for e in equations(program.jaxpr) if e.primitive is primitive]
    return any(_name(e) == _name(equation) for e in inner)


def _tangent(a: Array) -> Array | np.ndarray:
    if jnp.issubdtype(a.dtype, jnp.inexact):
        return jnp.ones_like(a)
    return np.zeros(a.shape, jax.dtypes.float0)
