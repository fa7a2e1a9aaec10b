"""`series_of`: a function of arrays as one of their Taylor series.

A value is its coefficients. Equations that are linear, bilinear or elementary have
rules; loops and branches are gone into; any other operation p has the series that
follows from its derivative: if y = p(x) then y' = dp(x) x', so the coefficients of y
are those of that derivative, one order lower, over 1, 2, ..., and dp is a program.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import Array, PyTree

from hotk._core import (
    CUSTOM,
    ClosedJaxpr,
    Function,
    JaxprEqn,
    Leaf,
    Program,
    bound,
    evaluate,
    is_inexact,
    traits_of,
    varying_alike,
)

from ._collapse import along_units, collapsed
from ._control import STRUCTURAL
from ._derivative import by_derivative, by_summed_derivative
from ._frame import Frame
from ._rules import has_rule, rule_for
from ._series import Coefficient, Series, Units


def series_of(
    f: Function, *, many: int | None = None, weights: Array | None = None
) -> Callable[..., tuple[PyTree, list[PyTree]]]:
    """Return `f` as a function of series: `g(primals, terms)`.

    Args:
        f: A function of trees of arrays that JAX can trace.
        many: How many directions, if many: then the coefficients below the top one
            have a leading axis over them, and the top one is the sum over all.
        weights: Of that sum, one for each direction; ones if left out.

    Returns:
        A function of a tuple with the arguments, and of a list of as many such tuples
        as there are orders: the coefficients 1 to K, `None` for one that is zero. It
        returns the value and a list with its coefficients 1 to K.
    """

    def run(
        primals: tuple[PyTree, ...], terms: list[PyTree]
    ) -> tuple[PyTree, list[PyTree]]:
        leaves, tree = jax.tree.flatten(primals)
        none = [None] * len(leaves)
        columns = [none if t is None else tree.flatten_up_to(t) for t in terms]
        inputs = [
            _alike(leaf, [c[i] if is_inexact(leaf) else None for c in columns])
            for i, leaf in enumerate(leaves)
        ]
        primals = tree.unflatten(series.primal for series in inputs)
        closed, shape = jax.make_jaxpr(f, return_shape=True)(*primals)
        frame = Frame(len(terms), many, weights)
        outputs = run_series(closed, inputs, frame)
        structure = jax.tree.structure(shape)
        rows = [frame.filled(series) for series in outputs]
        value = structure.unflatten(row[0] for row in rows)
        return value, [
            structure.unflatten(row[k] for row in rows)
            for k in range(1, len(terms) + 1)
        ]

    return run


def _alike(leaf: Leaf, terms: list[Coefficient | Units]) -> Series:
    """Let an array and its coefficients vary along the same axes of a `shard_map`."""
    there = [t is not None and not isinstance(t, Units) for t in terms]
    arrays: list[Any] = [
        t for t, is_there in zip(terms, there, strict=True) if is_there
    ]
    primal, *alike = varying_alike([leaf, *arrays])
    rest = iter(alike)
    pairs = zip(terms, there, strict=True)
    return Series(primal, tuple(next(rest) if is_there else t for t, is_there in pairs))


def run_series(closed: ClosedJaxpr, inputs: list[Series], frame: Frame) -> list[Series]:
    """Evaluate a closed jaxpr on series."""
    held = frame.constant
    step = lambda equation, inputs: _step(equation, inputs, frame)
    return evaluate(closed, map(held, closed.consts), inputs, step, held)


def _step(equation: JaxprEqn, inputs: list[Series], frame: Frame) -> list[Series]:
    traits = traits_of(equation)
    if traits.constant or not any(series.moves for series in inputs):
        outputs = bound(equation, [series.primal for series in inputs])
        return list(map(frame.constant, outputs))
    if traits.program is not Program.CALL:
        outputs = along_units(equation, inputs) if frame.many is not None else None
        if outputs is not None:
            return outputs
        inputs = [series.with_arrays() for series in inputs]
    structural = STRUCTURAL.get(traits.program)
    if structural is not None:
        run = functools.partial(run_series, frame=frame)
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
