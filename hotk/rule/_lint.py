"""`lint`: JAX's custom rules that are lost when they are differentiated."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import AbstractReport, equations, placed_equations, trace_once


_KINDS = {"custom_jvp_call": "custom_jvp", "custom_vjp_call": "custom_vjp"}


@final
class Findings(AbstractReport):
    """Custom rules that do not survive to second order.

    Attributes:
        rows: For each its kind, the function, and the line of its call.
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


def lint(f: Callable[..., Any], x: Any, *args: Any) -> Findings:
    """Look for rules of `jax.custom_jvp` and `jax.custom_vjp` that are lost.

    A rule of JAX returns the value as well. If it computes it otherwise than by the
    function, the function with its rule is gone from the first derivative, and what a
    second derivative differentiates is that other code: harmless where the rule is
    what JAX would do, silently another number where it is not.

    Args:
        f: Function `f(x, *args)`. It is traced; what depends on `x` is not computed.
        x: Point: any pytree.
        *args: Further arguments of `f`.

    Returns:
        The findings, as a table; true if there are any.

    Example:
        >>> f = jax.custom_jvp(lambda x: jnp.exp(-x))
        >>> _ = f.defjvp(lambda p, t: (jnp.exp(-p[0]), p[0] * t[0]))
        >>> [kind for kind, _, _ in hotk.rule.lint(f, 1.5).rows]
        ['custom_jvp']
    """
    moving, kept = eqx.partition(x, eqx.is_array_like)
    whole = lambda moving: jax.tree.leaves(f(eqx.combine(moving, kept), *args))
    arrays = lambda moving: list(filter(eqx.is_array, whole(moving)))
    closed, _ = trace_once(arrays, moving, kept=True)
    found = {}
    for equation, place in placed_equations(closed.jaxpr):
        kind = _KINDS.get(equation.primitive.name)
        if kind is not None and not _calls_itself(equation):
            found[kind, _name(equation), place] = None
    return Findings(tuple(found))


def _name(equation: Any) -> str:
    info = equation.params["call_jaxpr"].jaxpr.debug_info
    return str(getattr(info, "func_name", "")) or "a function"


def _calls_itself(equation: Any) -> bool:
    """Whether the derivative of a function with a rule has the function inside."""
    types = [variable.aval for variable in equation.invars]
    shapes = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    primitive = equation.primitive

    def run(*arrays: Any) -> Any:
        return primitive.bind(*arrays, **primitive.get_bind_params(equation.params))

    def derivative(*arrays: Any) -> Any:
        if primitive.name == "custom_jvp_call":
            return jax.jvp(run, arrays, tuple(map(_tangent, arrays)))
        made, pull = jax.vjp(run, *arrays)
        return made, pull(jax.tree.map(_tangent, made))

    try:
        made = jax.make_jaxpr(derivative)(*shapes)
    except Exception:  # the rule does not exist for these types
        return True
    inner = [e for e in equations(made.jaxpr) if e.primitive is primitive]
    return any(_name(e) == _name(equation) for e in inner)


def _tangent(a: Any) -> Any:
    if jnp.issubdtype(a.dtype, jnp.inexact):
        return jnp.ones_like(a)
    return np.zeros(a.shape, jax.dtypes.float0)
