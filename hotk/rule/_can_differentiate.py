"""`can_differentiate`: which nestings a function has, and which primitive has not."""

from collections.abc import Callable
from typing import TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    AbstractReport,
    ClosedJaxpr,
    Function,
    JaxprEqn,
    OutputError,
    Point,
    check_forward,
    check_settings,
    function_name,
    in_trace,
    inlined_equations,
    is_inexact,
    jaxpr_as_fun,
    message,
    nothing_inexact,
    split_point,
    trace_once,
    tracers_inside,
)
from hotk._mode import (
    NESTINGS,
    Forward,
    Nested,
    Reverse,
)
from hotk._primitive import NotTransposableError, check_linear, with_rules

from ._shape import shapes


Modes: TypeAlias = tuple[Forward | Reverse | Nested, ...]


@final
class Differentiability(AbstractReport):
    """Which modes a function has: what `hotk.can_differentiate` returns.

    Attributes:
        name: The function.
        order: The order of the derivative.
        modes: The modes in which it exists, for the whole function.
        missing: A row for each equation that lacks some: the primitive, the line that
            made it, and the modes that it has.
    """

    name: str
    order: int
    modes: Modes
    missing: tuple[tuple[str, str, Modes], ...]

    def __bool__(self) -> bool:
        """Whether there is a mode."""
        return bool(self.modes)

    def _head(self) -> tuple[str, ...]:
        return ("primitive", "line", *map(str, _modes(self.order)))

    def _rows(self) -> list[tuple[str, ...]]:
        every = _modes(self.order)
        mark = lambda have: tuple("yes" if m in have else "-" for m in every)
        rows = [(f"`{self.name}`", "", *mark(self.modes))]
        return rows + [(p, line, *mark(have)) for p, line, have in self.missing]


def can_differentiate(
    f: Function, x: Point, *args: PyTree, order: int = 2
) -> Differentiability:
    """List the modes in which a function has derivatives, without computing any.

    The function is traced, and so are the derivatives of its program in each mode. Only
    what does not depend on `x` is computed. Then each equation of the program is tried
    alone, to find those that lack a mode. It costs a few traces for each kind of
    equation, and no compilation.

    Args:
        f: Function `f(x, *args)` that returns a tree with floating arrays.
        x: Point: any pytree of arrays, or of `jax.ShapeDtypeStruct`s.
        *args: Further arguments of `f`, held fixed.
        order: Order of the derivative: 1 or 2, or more by forward mode over that.

    Returns:
        A table with a row for the function and one for each equation that lacks a mode;
        it is true if there is a mode. An equation may have a mode that the function
        lacks because of other equations.

    Raises:
        ValueError: If the order is not positive.
        DtypeError: If nothing in `x` can be differentiated.
        OutputError: If nothing that `f` returns can be differentiated.

    Example:
        >>> f = lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: x * x, x)
        >>> result = hotk.can_differentiate(f, 2.0)
        >>> [str(mode) for mode in result.modes], result.missing[0][0]
        (['forward over forward'], 'while')
    """
    check_settings("can_differentiate", order=order)
    moving, static = split_point(x, shapes=True)
    if not jax.tree.leaves(moving):
        raise nothing_inexact("can_differentiate(f, x)", x)

    def value(moving: Point) -> list[Array]:
        outputs = jax.tree.leaves(f(eqx.combine(moving, static), *args))
        return [a for a in outputs if is_inexact(a)]

    closed, _ = trace_once(value, moving, kept=True)
    if not closed.jaxpr.outvars:
        raise OutputError(
            message(
                "can_differentiate(f, x)",
                f"`{function_name(f)}` returns nothing that can be differentiated.",
                expected="a tree with floating-point arrays",
                got="integers, or nothing",
                fix="Return what the derivative is taken of.",
            )
        )
    of_whole = _existing(closed, order)
    # Keys of a dict: a row for each, in the order of the program.
    missing = {}
    for equation, place in inlined_equations(closed.jaxpr):
        program = _program_of(equation)
        if program is None:
            continue
        modes = _existing(program, order)
        if len(modes) < len(_modes(order)):
            missing[equation.primitive.name, place, modes] = None
    return Differentiability(function_name(f), order, of_whole, tuple(missing))


def _modes(order: int) -> Modes:
    return (Forward(), Reverse()) if order == 1 else NESTINGS


def _program_of(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the program of one equation, `None` if no derivative passes through it."""
    ends = (*equation.invars, *equation.outvars)
    if not all(hasattr(v.aval, "dtype") for v in ends):
        return None
    moves = [is_inexact(v.aval) for v in equation.invars]
    if not any(moves) or not any(is_inexact(v.aval) for v in equation.outvars):
        return None
    primitive = equation.primitive

    def run(*inputs: Array) -> list[Array]:
        outputs = primitive.bind(*inputs, **primitive.get_bind_params(equation.params))
        outputs = outputs if primitive.multiple_results else [outputs]
        return [a for a in outputs if is_inexact(a)]

    try:
        return jax.make_jaxpr(run)(*shapes([v.aval for v in equation.invars]))
    except Exception:  # it needs its surroundings, such as a mesh
        return None


def _existing(closed: ClosedJaxpr, order: int) -> Modes:
    """Return the modes in which a derivative of a program can be traced."""
    failures = {m: _failure(closed, m, order, by_body=False) for m in _modes(order)}
    if any(isinstance(error, _CapturesTracer) for error in failures.values()):
        return ()  # in other modes its rule captures it as well, unseen
    # As `hotk.Auto` does: bodies of custom_vjp functions where nothing else works, as
    # their rules cannot be transposed.
    if None not in failures.values() and any(
        isinstance(error, NotTransposableError) for error in failures.values()
    ):
        failures = {m: _failure(closed, m, order, by_body=True) for m in _modes(order)}
    return tuple(mode for mode, error in failures.items() if error is None)


def _failure(
    closed: ClosedJaxpr, mode: Forward | Reverse | Nested, order: int, *, by_body: bool
) -> Exception | None:
    """Return why a derivative cannot be traced, `None` if it can."""
    types = [v.aval for v in closed.jaxpr.invars]
    moves = [is_inexact(t) for t in types]
    run = with_rules(jaxpr_as_fun(closed), by_body=by_body)

    def derivative(inputs: list[Array]) -> PyTree:
        point = [a for a, m in zip(inputs, moves, strict=True) if m]

        # Squares, as a sum of linear outputs has a second derivative of zeros, which
        # exists in every mode.
        def scalar(point: list[Array]) -> tuple[Array | float, None]:
            rest = iter(point)
            pairs = zip(inputs, moves, strict=True)
            outputs = run(*(next(rest) if m else a for a, m in pairs))
            return sum(jnp.sum(jnp.abs(a) ** 2) for a in outputs) * 1.0, None

        if isinstance(mode, Nested):
            product = mode.product
            derived = lambda p: product(scalar, p, point)[2]
        else:
            gradient = mode.gradient
            derived = lambda p: gradient(scalar, p)[1]
        for _ in range(order - (2 if isinstance(mode, Nested) else 1)):
            derived = _pushed_forward(derived)
        return derived(point)

    try:
        program = jax.make_jaxpr(derivative)(shapes(types))
        check_forward(program)
        check_linear(program)
        if not in_trace() and tracers_inside(program):
            raise _CapturesTracer
    except Exception as error:  # rules raise what they like
        return error
    return None


class _CapturesTracer(Exception):
    """A derivative rule inside of a program captures a tracer."""


def _pushed_forward(
    function: Callable[[PyTree], PyTree],
) -> Callable[[PyTree], PyTree]:
    return lambda p: jax.jvp(function, (p,), (p,))[1]
