"""`locate_nan`: where the NaN of a derivative comes from."""

from collections.abc import Sequence
from typing import NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import (
    AbstractReport,
    Function,
    JaxprEqn,
    ModeError,
    Point,
    describe,
    run_watched,
)
from hotk.mode import AUTO, NESTINGS, AbstractMode, Forward, Nested, Reverse
from hotk.prepared import Operator, TypedOperator


@final
class NaNOrigin(AbstractReport):
    """Where the first NaN of a derivative comes from: what `hotk.locate_nan` returns.

    Attributes:
        primitive: The operation that made a NaN of numbers, `None` if there is none;
            `"the arguments"` if one of them holds NaN.
        line: The line of the user's code that it belongs to.
        part: The pass that it is in: `"value"`, `"forward"` or `"backward"`.
        order: The highest order of the derivatives in that pass; 0 is the value.
        inputs: What went into it, in words: "zero", "infinity".
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


class _Finding(NamedTuple):
    primitive: str
    inputs: Sequence[PyTree]
    line: str
    stack: str


def locate_nan(
    operator: TypedOperator[..., PyTree],
    f: Function,
    x: Point,
    *rest: PyTree,
    mode: AbstractMode | None = None,
) -> NaNOrigin:
    """Find the operation that makes the first NaN of a derivative.

    The program of the operator is run one operation after the other, without a
    compiler: slow, for finding out. It reports the first operation that returns NaN
    from inputs without NaN; inside of a loop, the loop. Then the other modes are tried.

    Args:
        operator: An operator: `hotk.hvp`, `hotk.hessian`, `hotk.gradient`, ...
        f: The function.
        x: The point at which the result is NaN.
        *rest: The direction, if the operator takes one, and further arguments.
        mode: The mode to look into; by default the one that would be chosen.

    Returns:
        The operation, its line, at which order of differentiation it stands, and the
        modes in which the result is finite.

    Raises:
        TypeError: If `operator` is not an operator of hotk.

    Example:
        >>> f = lambda x: jnp.exp(-jnp.sqrt(jnp.sum(x**2)))
        >>> origin = hotk.locate_nan(hotk.gradient, f, jnp.zeros(2))
        >>> origin.primitive, origin.part, origin.order, origin.finite
        ('mul', 'backward', 1, ())
    """
    if not hasattr(operator, "prepare"):
        raise TypeError(
            "`locate_nan(operator, f, x)`: `operator` must be one of hotk, such as "
            f"`hotk.gradient` or `hotk.hvp`, not {describe(operator)}."
        )
    prepared = operator.prepare(f, x, *rest, mode=AUTO if mode is None else mode)
    moving, static = eqx.partition((x, *rest), eqx.is_array_like)
    closed = jax.make_jaxpr(lambda a: prepared(*eqx.combine(a, static)))(moving)
    findings: list[_Finding] = []

    def check(
        equation: JaxprEqn,
        inputs: Sequence[PyTree],
        outputs: Sequence[PyTree],
        line: str,
        stack: str,
    ) -> None:
        makes_nan = any(map(_has_nan, outputs)) and not any(map(_has_nan, inputs))
        if makes_nan and not findings:
            findings.append(_Finding(equation.primitive.name, inputs, line, stack))

    arrays = list(map(jnp.asarray, jax.tree.leaves(moving)))
    if any(map(_has_nan, arrays)):
        return NaNOrigin("the arguments", "", "value", 0, "NaN", prepared.info.mode, ())
    run_watched(closed, arrays, check)
    name = prepared.info.mode
    if not findings:
        return NaNOrigin(None, "", "value", 0, "", name, (name,))
    finding = findings[0]
    # JAX notes in the name stack of an equation what has been done to it.
    part = "backward" if "transpose(" in finding.stack else "forward"
    order = finding.stack.count("jvp(")
    return NaNOrigin(
        finding.primitive,
        finding.line,
        part if order else "value",
        order,
        ", ".join(map(_words, finding.inputs)),
        name,
        _finite(operator, f, x, rest),
    )


def _finite(
    operator: TypedOperator[..., PyTree], f: Function, x: Point, rest: PyTree
) -> tuple[str, ...]:
    """Return the names of the modes in which the result is finite."""
    # What is arranged of other operators, as `hotk.partial`, has one mode.
    accepted = operator.definition.modes if isinstance(operator, Operator) else ()
    modes = NESTINGS if Nested in accepted else (Forward(), Reverse())
    names = []
    for mode in modes:
        if not isinstance(mode, accepted):
            continue
        try:
            result = operator(f, x, *rest, mode=mode)
        except ModeError:
            continue
        if not any(map(_has_nan, jax.tree.leaves(result))):
            names.append(str(mode))
    return tuple(names)


def _has_nan(a: PyTree) -> bool:
    if not hasattr(a, "dtype") or not jnp.issubdtype(a.dtype, jnp.inexact):
        return False
    return bool(jnp.any(jnp.isnan(a)))


def _words(a: PyTree) -> str:
    """Say what may be the cause in an input: zeros and infinities."""
    if not hasattr(a, "dtype") or not jnp.issubdtype(a.dtype, jnp.inexact):
        return "an integer"
    if bool(jnp.any(jnp.isinf(a))):
        return "infinity"
    return "zero" if bool(jnp.any(a == 0)) else "numbers"
