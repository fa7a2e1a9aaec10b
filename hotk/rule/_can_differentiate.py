"""`can_differentiate`: which nestings a function has, and which primitive has not."""

from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp

from hotk._core import (
    AbstractReport,
    OutputError,
    check_forward,
    function_name,
    inlined_equations,
    is_inexact,
    is_inexact_or_shape,
    jaxpr_as_fun,
    message,
    nothing_inexact,
    trace_once,
)
from hotk.mode import (
    NESTINGS,
    Forward,
    Nested,
    Reverse,
)
from hotk.primitive import check_linear, with_forward_rules


Modes = tuple[Any, ...]


@final
class Differentiability(AbstractReport):
    """Which modes a function has.

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
    f: Callable[..., Any], x: Any, *args: Any, order: int = 2
) -> Differentiability:
    """Find out which derivatives of a function exist, without computing any.

    The function is traced, and so are the derivatives of its program in each mode: what
    does not depend on `x` is computed, nothing else. Then each equation of its program
    that lacks a mode is looked for by itself.

    Args:
        f: Function `f(x, *args)` that returns a tree with floating arrays.
        x: Point: arrays, or `jax.ShapeDtypeStruct`s.
        *args: Further arguments of `f`, held fixed.
        order: Order of the derivative: 1 or 2, or more by forward mode over that.

    Returns:
        A table with a row for the function and one for each equation that lacks a mode;
        true if there is a mode. An equation may have a mode that the function has not,
        if others are in its way.

    Raises:
        ValueError: If the order is not positive.
        DtypeError: If nothing in `x` can be differentiated.
        OutputError: If nothing that `f` returns can be.

    Example:
        >>> f = lambda x: jax.lax.while_loop(lambda x: x < 9, lambda x: x * x, x)
        >>> found = hotk.can_differentiate(f, 2.0)
        >>> [str(mode) for mode in found.modes], found.missing[0][0]
        (['forward over forward'], 'while')
    """
    if order < 1:
        raise ValueError(
            f"`can_differentiate(f, x)`: `order` is {order}, not positive."
        )
    wanted = jax.tree.map(is_inexact_or_shape, x)
    if not any(jax.tree.leaves(wanted)):
        raise nothing_inexact("can_differentiate(f, x)", x)
    moving, kept = eqx.partition(x, wanted)

    def value(diff: Any) -> list[Any]:
        made = jax.tree.leaves(f(eqx.combine(diff, kept), *args))
        return [a for a in made if is_inexact(a)]

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
    whole = _existing(closed, order)
    missing = {}
    for equation, place in inlined_equations(closed.jaxpr):
        alone = _alone(equation)
        if alone is None:
            continue
        have = _existing(alone, order)
        if len(have) < len(_modes(order)):
            missing[equation.primitive.name, place, have] = None
    return Differentiability(function_name(f), order, whole, tuple(missing))


def _modes(order: int) -> Modes:
    return (Forward(), Reverse()) if order == 1 else NESTINGS


def _alone(equation: Any) -> Any:
    """Return the program of one equation, `None` if nothing flows through it."""
    ends = (*equation.invars, *equation.outvars)
    if not all(hasattr(v.aval, "dtype") for v in ends):
        return None
    moves = [is_inexact(v.aval) for v in equation.invars]
    if not any(moves) or not any(is_inexact(v.aval) for v in equation.outvars):
        return None
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    primitive = equation.primitive

    def run(*inputs: Any) -> Any:
        made = primitive.bind(*inputs, **primitive.get_bind_params(equation.params))
        made = made if primitive.multiple_results else [made]
        return [a for a in made if is_inexact(a)]

    try:
        return jax.make_jaxpr(run)(*shapes)
    except Exception:  # it needs its surroundings, such as a mesh
        return None


def _existing(closed: Any, order: int) -> Modes:
    """Return the modes in which a derivative of a program can be traced."""
    for by_body in (False, True):  # the body serves where nothing else does
        found = tuple(m for m in _modes(order) if _traces(closed, m, order, by_body))
        if found:
            return found
    return ()


def _traces(closed: Any, mode: Any, order: int, by_body: bool) -> bool:
    types = [v.aval for v in closed.jaxpr.invars]
    moves = [is_inexact(t) for t in types]
    run = with_forward_rules(jaxpr_as_fun(closed), by_body=by_body)

    def derivative(inputs: list[Any]) -> Any:
        point = [a for a, m in zip(inputs, moves, strict=True) if m]

        def scalar(point: list[Any]) -> tuple[Any, None]:
            rest = iter(point)
            pairs = zip(inputs, moves, strict=True)
            made = run(*(next(rest) if m else a for a, m in pairs))
            return sum(jnp.sum(jnp.abs(a) ** 2) for a in made) * 1.0, None

        if isinstance(mode, Nested):
            taken = lambda p: mode.product(scalar, p, point)[2]
        else:
            taken = lambda p: mode.gradient(scalar, p)[1]
        for _ in range(order - (2 if isinstance(mode, Nested) else 1)):
            taken = _pushed(taken)
        return taken(point)

    shapes = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    try:
        made = jax.make_jaxpr(derivative)(shapes)
        check_forward(made)
        check_linear(made)
    except Exception:
        return False
    return True


def _pushed(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda p: jax.jvp(function, (p,), (p,))[1]
