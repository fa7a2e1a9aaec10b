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
    run_watched_inside,
)
from hotk._mode import AUTO, NESTINGS, AbstractMode, Forward, Nested, Reverse, Taylor
from hotk._prepared import Operator, TypedOperator


@final
class NaNOrigin(AbstractReport):
    """Where the first NaN of a derivative comes from: what `hotk.locate_nan` returns.

    Attributes:
        primitive: The operation that made a NaN of numbers, `None` if there is none;
            `"the arguments"` if one of them holds NaN.
        line: The line of the user's code that it belongs to.
        part: The pass that it is in: `"value"`, `"forward"`, `"backward"`, or
            `"series"` for the coefficients of Taylor mode.
        order: The highest order of the derivatives in that pass; 0 in the value, and
            in a series, whose coefficients of all orders are computed together.
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
        value = "the value" if self.part == "value" else "the Taylor coefficients"
        return [
            ("first NaN", f"`{self.primitive}` of {self.inputs}"),
            ("line", self.line),
            ("in", level if self.order else value),
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
    **named: PyTree,
) -> NaNOrigin:
    """Find the operation that makes the first NaN of a derivative.

    The program of the operator is run one operation after the other, without a
    compiler: slow, for finding out. It reports the first operation that returns NaN
    from inputs without NaN; of a loop or a branch it is the operation inside. Then the
    other modes are tried.

    Args:
        operator: An operator: `hotk.hvp`, `hotk.hessian`, `hotk.partial`, ...
        f: The function.
        x: The point at which the result is NaN.
        *rest: What the operator takes after the point: a direction or an index, and
            further arguments.
        mode: The mode to look into; by default the one that would be chosen.
        **named: Further keywords of the operator, such as `order=3`.

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
    # `hotk.partial(f, x, index)` is prepared for the index, and called without it.
    arrangement = getattr(operator, "arrangement", None)
    if arrangement is not None:
        operator, f, rest, named = arrangement(f, x, *rest, **named)
    named["mode"] = AUTO if mode is None else mode
    prepared = operator.prepare(f, x, *rest, **named)
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
        if not makes_nan or findings:
            return
        name = equation.primitive.name
        run_watched_inside(equation, inputs, check, line, stack)
        # Compiled as a whole, a loop may round to NaN where its steps do not.
        if not findings:
            findings.append(_Finding(name, inputs, line, stack))

    arrays = list(map(jnp.asarray, jax.tree.leaves(moving)))
    if any(map(_has_nan, arrays)):
        return NaNOrigin("the arguments", "", "value", 0, "NaN", prepared.info.mode, ())
    run_watched(closed, arrays, check)
    name = prepared.info.mode
    if not findings:
        return NaNOrigin(None, "", "value", 0, "", name, (name,))
    finding = findings[0]
    # JAX notes in the name stack of an equation what has been done to it.
    order = finding.stack.count("jvp(")
    if order:
        part = "backward" if "transpose(" in finding.stack else "forward"
    else:
        # Series rules leave no note: there the value itself tells which of both it is.
        series = name == str(Taylor()) and not _value_has_nan(operator, f, x, rest)
        part = "series" if series else "value"
    return NaNOrigin(
        finding.primitive,
        finding.line,
        part,
        order,
        ", ".join(map(_words, finding.inputs)),
        name,
        _finite(operator, f, x, rest, named),
    )


def _value_has_nan(
    operator: TypedOperator[..., PyTree], f: Function, x: Point, rest: PyTree
) -> bool:
    assert isinstance(operator, Operator)
    args = rest[1:] if operator.definition.takes else rest
    return any(map(_has_nan, jax.tree.leaves(f(x, *args))))


def _finite(
    operator: TypedOperator[..., PyTree],
    f: Function,
    x: Point,
    rest: PyTree,
    named: dict[str, PyTree],
) -> tuple[str, ...]:
    """Return the names of the modes in which the result is finite."""
    accepted = operator.definition.modes if isinstance(operator, Operator) else ()
    modes = NESTINGS if Nested in accepted else (Forward(), Reverse())
    names = []
    for mode in modes:
        if not isinstance(mode, accepted):
            continue
        try:
            result = operator(f, x, *rest, **{**named, "mode": mode})
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
