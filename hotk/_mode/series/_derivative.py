"""The universal rule: the series of an operation from its derivative."""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array

from hotk._core import (
    Arrays,
    ClosedJaxpr,
    JaxprEqn,
    Leaf,
    ProgramKind,
    bound,
    called_program,
    evaluate,
    is_inexact,
    needed_for,
    traits_of,
    zeros_like,
)

from ._collapse import One, contracted, over_directions
from ._control import Run, linear_solve
from ._frame import Frame
from ._rules import joint_places, of_moving, term
from ._series import Coefficient, Series, scaled, times, total


def by_derivative(
    equation: JaxprEqn, inputs: list[Series], frame: Frame, run: Run
) -> list[Series]:
    """Evaluate the derivative of an operation on series that are one order lower."""
    closed, moving = _derivative(equation, inputs)
    count = len(equation.outvars)
    # Without the values, whose series the same rule would give one order lower: and so
    # on to order zero (`test_equations_grow_with_the_square_of_the_order`).
    slopes_alone = [i >= count for i in range(len(closed.jaxpr.outvars))]
    lower = frame.order - 1
    along = [inputs[i].derivative().cut(lower) for i in moving]
    point = [s.cut(lower) for s in inputs]
    found = run(needed_for(closed, slopes_alone), [*point, *along])
    slopes = ([s.primal, *s.terms] for s in found)
    values = bound(equation, [s.primal for s in inputs])
    return [
        _integrated(y, next(slopes)) if is_inexact(variable.aval) else frame.constant(y)
        for y, variable in zip(values, equation.outvars, strict=True)
    ]


def by_summed_derivative(
    equation: JaxprEqn, inputs: list[Series], frame: Frame, one: One
) -> list[Series] | None:
    r"""The same for many directions, whose top coefficients are summed.

    If $y = p(x)$ then $t\,y' = dp(x)\,w$ with $w = t\,x'$. This is linear in w, whose
    value is zero for all directions and whose k-th coefficient is $k\,x_k$; so the last
    one may be the sum over all directions, and x is needed up to the last but one.

    Returns:
        `None` if the program for $dp(x)\,w$ is not seen to be linear in w.
    """
    closed, moving = _derivative(equation, inputs)
    point = [series.cut(frame.order - 1) for series in inputs]
    along = [
        Series(None, tuple(scaled(k, a) for k, a in enumerate(inputs[i].terms, 1)))
        for i in moving
    ]
    try:
        outputs = _Linear(frame, one).run(closed, [*point, *along])
    except _NotLinearError:
        return None
    values, slopes = _split(equation, outputs)
    formally = all(y.primal is not None for y in values)
    if not formally or any(s is not None and s.primal is not None for s in slopes):
        return None  # a value that depends on w, or a slope that does not
    return [
        frame.constant(y.primal) if s is None else _integrated(y.primal, s.terms)
        for y, s in zip(values, slopes, strict=True)
    ]


def _derivative(
    equation: JaxprEqn, inputs: list[Series]
) -> tuple[ClosedJaxpr, list[int]]:
    """Return the program from a point and a direction to value and derivative."""
    moving = [i for i, series in enumerate(inputs) if series.moves]
    values = [series.primal for series in inputs]

    def derivative(values: Arrays, tangents: Arrays) -> tuple[Arrays, Arrays]:
        operation = of_moving(equation, values, moving)
        point = [values[i] for i in moving]
        outputs, slopes = jax.jvp(operation, point, tangents)
        return outputs, [s for s in slopes if s.dtype != jax.dtypes.float0]

    return jax.make_jaxpr(derivative)(values, [values[i] for i in moving]), moving


def _split(
    equation: JaxprEqn, outputs: list[Series]
) -> tuple[list[Series], list[Series | None]]:
    """Return the values of the outputs, and the derivative of each that has one."""
    count = len(equation.outvars)
    slopes = iter(outputs[count:])
    inexact = [is_inexact(variable.aval) for variable in equation.outvars]
    return outputs[:count], [next(slopes) if there else None for there in inexact]


def _integrated(first: Leaf, slope: Iterable[Coefficient]) -> Series:
    return Series(first, tuple(scaled(1 / k, a) for k, a in enumerate(slope, 1)))


class _NotLinearError(Exception):
    """A program is not seen to be linear."""


class _Linear:
    """A program that is linear in some of its arguments, on series of directions.

    What depends on these has `None` for its value, which is zero, and all coefficients
    up to the order of the frame; anything else is one order lower. What a step adds to
    them that does not depend on them must cancel at the end, so it is left out.
    """

    def __init__(self, frame: Frame, one: One) -> None:
        self.frame, self.below, self.one = frame, Frame(frame.order - 1), one

    def run(self, closed: ClosedJaxpr, inputs: list[Series]) -> list[Series]:
        """Evaluate a closed jaxpr."""
        held = self.below.constant
        return evaluate(closed, map(held, closed.consts), inputs, self.step, held)

    def step(self, equation: JaxprEqn, inputs: list[Series]) -> list[Series]:
        """Evaluate one equation."""
        traits = traits_of(equation)
        along = [i for i, series in enumerate(inputs) if series.primal is None]
        if not along:
            return over_directions(equation, inputs, self.below, self.one)
        if traits.constant:
            raise _NotLinearError
        if traits.program is ProgramKind.CALL:
            program = called_program(equation)
            assert program is not None  # it is a call
            return self.run(program, inputs)
        if traits.bilinear and len(along) == 1:
            return [self.product(equation, *inputs)]
        one = len(equation.outvars) == 1
        solves = traits.program is ProgramKind.SOLVE
        if solves and one and along == [len(inputs) - 1]:
            return linear_solve(equation, inputs, self.frame, self.run)
        if equation.primitive.name == "div" and along == [0]:
            unit = self.below.constant(jnp.ones_like(inputs[1].primal))
            pair = [unit, inputs[1]]
            [inverse] = over_directions(equation, pair, self.below, self.one)
            return [self.product(None, inputs[0], inverse)]
        places = joint_places(equation)
        held = [s for i, s in enumerate(inputs) if i not in places]
        if any(series.moves or series.primal is None for series in held):
            raise _NotLinearError
        return self.each(equation, inputs, places)

    def product(self, equation: JaxprEqn | None, a: Series, b: Series) -> Series:
        """Multiply a series that depends on these arguments with one that does not.

        Args:
            equation: The product; entry by entry if `None`.
            a: The first factor.
            b: The second.
        """
        turned = a.primal is not None
        w, x = (b, a) if turned else (a, b)
        turn = lambda p, q: [q, p] if turned else [p, q]
        one = lambda p, q: p * q if equation is None else bound(equation, turn(p, q))[0]
        held, each = jax.vmap(one, (0, None)), jax.vmap(one)
        order = self.frame.order
        terms = [
            total(
                [
                    times(w[k], x.primal, held),
                    *(times(w[j], x[k - j], each) for j in range(1, k)),
                ]
            )
            for k in range(1, order)
        ]
        pairs = (turn(w[j], x[order - j]) for j in range(1, order))
        curved = (contracted(equation, p, q, self.frame) for p, q in pairs)
        top = total([times(w[order], x.primal, one), *curved])
        return Series(None, (*terms, top))

    def each(
        self, equation: JaxprEqn, inputs: list[Series], places: Sequence[int]
    ) -> list[Series]:
        """Apply a linear operation to each coefficient."""
        values = [s.primal if s.primal is not None else _zero(s) for s in inputs]
        apply = lambda terms: term(equation, values, places, terms)
        columns = []
        for k in range(1, self.frame.order + 1):
            terms = [None if s.primal is not None else s[k] for s in inputs]
            if all(t is None for t in terms):
                columns.append([None] * len(equation.outvars))
            else:
                summed = k == self.frame.order
                columns.append(apply(terms) if summed else jax.vmap(apply)(terms))
        if not all(is_inexact(variable.aval) for variable in equation.outvars):
            raise _NotLinearError  # rounded
        return [Series(None, column) for column in zip(*columns, strict=True)]


def _zero(series: Series) -> Array:
    """Return the value of a series, which is zero."""
    *lower, top = series.terms
    if top is not None:
        return zeros_like(top)
    return next(zeros_like(a[0]) for a in lower if a is not None)
