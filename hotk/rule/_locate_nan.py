"""`locate_nan`: where the NaN of a derivative comes from."""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp

from hotk._core import AbstractReport, ModeError, describe, run_watched
from hotk.mode import (
    NESTINGS,
    Forward,
    Nested,
    Reverse,
)


@final
class NaNOrigin(AbstractReport):
    """Where the first NaN of a derivative comes from.

    Attributes:
        primitive: The operation that made a NaN of numbers, `None` if there is none;
            `"the arguments"` if one of them holds NaN.
        line: The line of the user's code that it belongs to.
        part: `"value"`, `"forward"` or `"backward"`: the pass that it is in.
        order: The highest order of the derivatives in that pass; 0 is the value.
        inputs: What went into it, in words.
        mode: The mode in which it was looked for.
        finite: The modes whose result is finite.
    """

    primitive: str | None
    line: str
    part: str
    order: int
    inputs: str
    mode: str
    finite: tuple[str, ...]

    def _rows(self) -> list[tuple[str, ...]]:
        if self.primitive is None:
            return [("first NaN", "none"), ("mode", self.mode)]
        level = f"the {self.part} pass, order up to {self.order}"
        return [
            ("first NaN", f"`{self.primitive}` of {self.inputs}"),
            ("line", self.line),
            ("in", level if self.order else "the value"),
            ("mode", self.mode),
            ("finite in", ", ".join(self.finite) or "no mode"),
        ]


def locate_nan(
    operator: Any, f: Any, x: Any, *rest: Any, mode: Any = None
) -> NaNOrigin:
    """Find the operation that makes the first NaN of a derivative.

    The program of the operator is run one operation after the other, without a
    compiler. The first one that returns NaN though nothing NaN went in is it; inside of
    a loop, the loop. Then the other modes are tried.

    Args:
        operator: An operator: `hotk.hvp`, `hotk.hessian`, `hotk.gradient`, ...
        f: The function.
        x: The point at which the result is NaN.
        *rest: The direction, if the operator takes one, and further arguments.
        mode: The mode to look into; by default the one that would be chosen.

    Returns:
        What it is, on which line, at which order of differentiation, and in which modes
        the result is finite.

    Example:
        >>> f = lambda x: jnp.exp(-jnp.sqrt(jnp.sum(x**2)))
        >>> found = hotk.locate_nan(hotk.gradient, f, jnp.zeros(2))
        >>> found.primitive, found.part, found.order, found.finite
        ('mul', 'backward', 1, ())
    """
    if not hasattr(operator, "prepare"):
        raise TypeError(
            "`locate_nan(operator, f, x)`: `operator` must be one of hotk, such as "
            f"`hotk.gradient` or `hotk.hvp`, not {describe(operator)}."
        )
    chosen = {} if mode is None else {"mode": mode}
    prepared = operator.prepare(f, x, *rest, **chosen)
    moving, kept = eqx.partition((x, *rest), eqx.is_array_like)
    closed = jax.make_jaxpr(lambda a: prepared(*eqx.combine(a, kept)))(moving)
    found: list[Any] = []

    def see(equation: Any, inputs: Any, outputs: Any, line: str, stack: str) -> None:
        if not found and any(map(_has_nan, outputs)) and not any(map(_has_nan, inputs)):
            found.append((equation.primitive.name, inputs, line, stack))

    arrays = list(map(jnp.asarray, jax.tree.leaves(moving)))
    if any(map(_has_nan, arrays)):
        return NaNOrigin("the arguments", "", "value", 0, "NaN", prepared.info.mode, ())
    run_watched(closed, arrays, see)
    name = prepared.info.mode
    if not found:
        return NaNOrigin(None, "", "value", 0, "", name, (name,))
    primitive, inputs, line, stack = found[0]
    part = "backward" if "transpose(" in stack else "forward"
    order = stack.count("jvp(")
    return NaNOrigin(
        primitive,
        line,
        part if order else "value",
        order,
        ", ".join(map(_words, inputs)),
        name,
        _finite(operator, f, x, rest),
    )


def _finite(operator: Any, f: Any, x: Any, rest: Any) -> tuple[str, ...]:
    modes: tuple[Any, ...] = (
        NESTINGS if Nested in operator.kind.modes else (Forward(), Reverse())
    )
    names = []
    for mode in modes:
        if not isinstance(mode, operator.kind.modes):
            continue
        try:
            result = operator(f, x, *rest, mode=mode)
        except ModeError:
            continue
        if not any(map(_has_nan, jax.tree.leaves(result))):
            names.append(str(mode))
    return tuple(names)


def _has_nan(a: Any) -> bool:
    if not hasattr(a, "dtype") or not jnp.issubdtype(a.dtype, jnp.inexact):
        return False
    return bool(jnp.any(jnp.isnan(a)))


def _words(a: Any) -> str:
    """Say what is remarkable about an input: zeros and infinities."""
    if not hasattr(a, "dtype") or not jnp.issubdtype(a.dtype, jnp.inexact):
        return "an integer"
    if bool(jnp.any(jnp.isinf(a))):
        return "infinity"
    return "zero" if bool(jnp.any(a == 0)) else "numbers"
