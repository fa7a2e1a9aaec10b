"""`series_of`: a function of arrays as one of their Taylor series.

A value is its coefficients. Equations that are linear, bilinear or elementary have
rules; loops and branches are gone into; any other operation p has the series that
follows from its derivative: if y = p(x) then y' = dp(x) x', so the coefficients of y
are those of that derivative, one order lower, over 1, 2, ..., and dp is a program.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import (
    CUSTOM,
    ClosedJaxpr,
    Function,
    JaxprEqn,
    Leaf,
    ProgramKind,
    bound,
    called_program,
    evaluate,
    is_divided_by_type,
    is_inexact,
    traits_of,
    varying_alike,
)
from hotk._primitive import held, held_in

from ._collapse import collapsed
from ._control import STRUCTURAL
from ._derivative import by_derivative, by_summed_derivative
from ._frame import Frame
from ._local import Local, Seeds, Value, dense
from ._local_rules import local_rule
from ._rules import has_rule, rule_for
from ._series import Series


def series_of(
    f: Function,
    *,
    many: int | None = None,
    weights: Array | None = None,
    limit: int | None = None,
) -> Callable[..., tuple[PyTree, list[PyTree]]]:
    """Return `f` as a function of series: `g(primals, terms)`.

    Args:
        f: A function of trees of arrays that JAX can trace.
        many: How many directions, if many: then the coefficients below the top one
            have a leading axis over them, and the top one is the sum over all. In place
            of the first ones there may be `Seeds`.
        weights: Of that sum, one for each direction; ones if left out.
        limit: Of how many numbers the coefficients of an array along all directions may
            be: with more of them a `TooManyNumbersError` is raised.

    Returns:
        A function of a tuple with the arguments, and of a list of as many such tuples
        as there are orders: the coefficients 1 to K, `None` for one that is zero. It
        returns the value and a list with its coefficients 1 to K: of many directions
        the last one, and `None` for the others.
    """

    def run(
        primals: tuple[PyTree, ...], terms: list[PyTree]
    ) -> tuple[PyTree, list[PyTree]]:
        leaves, tree = jax.tree.flatten(primals)
        none = [None] * len(leaves)
        columns = [none if t is None else tree.flatten_up_to(t) for t in terms]
        inputs = [
            _series(leaf, [c[i] if is_inexact(leaf) else None for c in columns])
            for i, leaf in enumerate(leaves)
        ]
        primals = tree.unflatten(series.primal for series in inputs)
        closed, shape = jax.make_jaxpr(f, return_shape=True)(*primals)
        frame = Frame(len(terms), many, weights, limit)
        outputs = run_series(closed, inputs, frame)
        structure = jax.tree.structure(shape)
        rows = [_filled(series, frame) for series in outputs]
        value = structure.unflatten(row[0] for row in rows)
        return value, [
            structure.unflatten(row[k] for row in rows)
            for k in range(1, len(terms) + 1)
        ]

    return run


def _series(leaf: Leaf, terms: list[Any]) -> Value:
    """Let an array and its coefficients vary along the same axes of a `shard_map`."""
    if terms and isinstance(terms[0], Seeds):
        return terms[0].series(leaf, terms[-1], len(terms))
    there = [t is not None for t in terms]
    arrays: list[Any] = [t for t in terms if t is not None]
    primal, *alike = varying_alike([leaf, *arrays])
    rest = iter(alike)
    return Series(primal, tuple(next(rest) if is_there else None for is_there in there))


def _filled(series: Value, frame: Frame) -> list[Any]:
    """Return value and coefficients; of many directions the top one alone."""
    if frame.many is None:
        assert isinstance(series, Series)
        return frame.filled(series)
    series = series.series if isinstance(series, Local) else series
    top = series.terms[-1]
    top = frame.zero(series.primal, frame.order) if top is None else top
    return [series.primal, *(None,) * (frame.order - 1), top]


def run_series(closed: ClosedJaxpr, inputs: Sequence[Value], frame: Frame) -> list[Any]:
    """Evaluate a closed jaxpr on series: each result is a `Value`."""
    held = frame.constant

    def step(equation: JaxprEqn, inputs: list[Any]) -> list[Any]:
        outputs = _step(equation, inputs, frame)
        for series in outputs:
            if isinstance(series, Series) and series.moves:
                frame.check(series.primal)
        return outputs

    return evaluate(closed, map(held, closed.consts), inputs, step, held)


def _step(equation: JaxprEqn, values: Sequence[Value], frame: Frame) -> list[Any]:
    traits = traits_of(equation)
    # An array without entries does not move, nor does what is computed from it.
    held = lambda s: s.moves and not np.size(s.primal)
    values = [frame.constant(s.primal) if held(s) else s for s in values]
    moves = any(series.moves for series in values)
    empty = not any(getattr(v.aval, "size", 1) for v in equation.outvars)
    if traits.constant or not moves or empty:
        primals = [series.primal for series in values]
        if moves and (derivatives := held_in(equation)):
            outputs = _held(primals, derivatives, frame)
        else:
            outputs = bound(equation, primals)
        return list(map(frame.constant, outputs))
    run = functools.partial(run_series, frame=frame)
    if traits.program is ProgramKind.CALL:
        program = called_program(equation)
        assert program is not None  # it is a call
        return run(program, values)
    local = any(isinstance(series, Local) for series in values)
    # Slots are cut and joined, which JAX refuses along explicitly divided axes.
    if local and not any(is_divided_by_type(series.primal) for series in values):
        outputs = local_rule(equation, list(values), frame, _step)
        if outputs is not None:
            return outputs
    inputs = [dense(series, frame) for series in values]
    structural = STRUCTURAL.get(traits.program)
    if structural is not None:
        return structural(equation, inputs, frame, run)
    if frame.many is not None:
        outputs = None
        if frame.order > 1 and _has_program(equation, inputs):
            outputs = by_summed_derivative(equation, inputs, frame, _step)
        return collapsed(equation, inputs, frame, _step) if outputs is None else outputs
    if equation.primitive.name == "hotk_ruled":
        return _ruled(equation, inputs, frame)
    outputs = rule_for(equation, inputs)
    return _by_derivative(equation, inputs, frame) if outputs is None else outputs


def _held(primals: list[Any], derivatives: int, frame: Frame) -> list[Any]:
    """Take arrays for constant, for as many derivatives as the order has.

    More of them are derivatives of what the first ones have left, along the same curve:
    a series has one coefficient for each order, and does not say which came first.
    """
    if frame.order > derivatives:
        raise NotImplementedError(  # the modes that nest, where there are any, are next
            "a Gauss-Newton matrix has no derivatives in Taylor mode: differentiate a "
            "product, as by `hotk.jvp` of `hotk.hvp`"
        )
    return held(primals, derivatives - frame.order)


def _has_program(equation: JaxprEqn, inputs: list[Series]) -> bool:
    """Whether the derivative is a program of the user, not one operation."""
    if equation.primitive.name == "hotk_ruled":
        return not equation.params["function"].has_series()
    return equation.primitive.name in CUSTOM and not has_rule(equation, inputs)


def _by_derivative(
    equation: JaxprEqn, inputs: list[Series], frame: Frame
) -> list[Series]:
    run = functools.partial(run_series, frame=Frame(frame.order - 1))
    return by_derivative(equation, inputs, frame, run)


def _ruled(equation: JaxprEqn, inputs: list[Series], frame: Frame) -> list[Series]:
    """Apply the rule for series that a function of hotk has, if it has one."""
    function = equation.params["function"]
    if not function.has_series():
        return _by_derivative(equation, inputs, frame)
    outputs = bound(equation, [series.primal for series in inputs])
    rows = [frame.filled(s) if s.moves else [s.primal, *s.terms] for s in inputs]
    terms = [[row[k] for row in rows] for k in range(1, frame.order + 1)]
    columns = function.series(outputs, [series.primal for series in inputs], terms)
    return [Series(y, tuple(m[i] for m in columns)) for i, y in enumerate(outputs)]
