"""Linear programs run on sums of pieces; what is known is computed now."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import (
    COMPARISONS,
    LOGIC,
    MOVES,
    ORDERED,
    RING,
    SELECTED,
    ClosedJaxpr,
    JaxprEqn,
    Literal,
    ShapedArray,
    Tracer,
    Var,
    as_written,
    bound,
    crosses_devices,
    traits_of,
)
from hotk._prepared import ask_for_content

from . import (
    _across,
    _bilinear,
    _control,
    _elementwise,
    _indexing,
    _pooling,
    _reductions,
    _structure,
)
from ._by_matrix import by_matrix
from ._carried_values import while_by_pattern
from ._coefficients import is_concrete
from ._linear import (
    AbstractWatch,
    Budget,
    Context,
    Linear,
    Operand,
    Rule,
    TooDense,
    result_type,
)
from ._merge import merged
from ._positions import size_of
from ._scan import scan
from ._sums import coalesced


# Integer results of more entries are computed at run time.
_MOST_KNOWN = 100_000_000


# Each as JAX does it with integers and Booleans. An operation that is run by JAX would
# be compiled, for milliseconds, at each size.
_BY_NUMPY: dict[str, Callable[..., Any]] = {
    **MOVES,
    **COMPARISONS,
    **LOGIC,
    **RING,
    **ORDERED,
    **SELECTED,
    "pvary": lambda a, **_: a,
    "convert_element_type": lambda a, **_: a,  # the result is cast below
    "clamp": lambda low, a, high, **_: np.clip(a, low, high),
}


def is_integral(equation: JaxprEqn) -> bool:
    """Whether the results of an operation are integers or Booleans, not too many."""
    types = [v.aval for v in equation.outvars]
    return all(
        isinstance(t, ShapedArray) and _kind(t) in "iub" and t.size < _MOST_KNOWN
        for t in types
    )


def _kind(aval: ShapedArray) -> str:
    return getattr(aval.dtype, "kind", "V")  # random keys have none


def evaluated(equation: JaxprEqn, operands: Sequence[Any]) -> list[np.ndarray]:
    """Evaluate an operation whose operands are known and whose results are integers."""
    by_numpy, parameters = _BY_NUMPY.get(equation.primitive.name), equation.params
    if isinstance(by_numpy, np.ufunc):
        # A product has the dtype of its result as a parameter, mostly none.
        by_numpy = None if parameters.get("out_dtype") else by_numpy
        parameters = {}
    kinds = [np.asarray(a).dtype.kind for a in operands]
    if by_numpy is None or not set(kinds) <= set("iub"):
        with jax.ensure_compile_time_eval():
            return [np.asarray(a) for a in bound(equation, operands)]
    arrays = [np.asarray(a) for a in operands]
    with np.errstate(over="ignore"):  # integers wrap around, as those of JAX
        results = by_numpy(*arrays, **parameters)
    several = results if isinstance(results, list) else [results]
    types = [v.aval for v in equation.outvars]
    return [
        np.broadcast_to(np.asarray(a).astype(t.dtype), t.shape)  # type: ignore[attr-defined]
        for a, t in zip(several, types, strict=True)
    ]


RULES: dict[str, Rule] = {
    **_elementwise.RULES,
    **_structure.RULES,
    **_reductions.RULES,
    **_pooling.RULES,
    **_indexing.RULES,
    **_bilinear.RULES,
    **_control.RULES,
    **_across.RULES,
    "scan": scan,
    "while": while_by_pattern,
}


# Each piece is a few operations to compile: an array has at most `_FEW`, and one for
# each `_LONG` entries, whose time the compiled operations take as well.
_FEW, _LONG, _MOST = 8, 2000, 64


def evaluate_linear(
    program: ClosedJaxpr,
    arguments: Sequence[Operand],
    budget: Budget,
    columns: int,
    watch: AbstractWatch | None = None,
    sources: Sequence[Tracer] = (),
) -> list[Operand]:
    """Run a program on arrays that are linear in `v`.

    Args:
        program: A program that is linear in its linear arguments together.
        arguments: For each input a `Linear`, or an array that does not depend on `v`.
        budget: What entries are paid from.
        columns: The number of entries of `v`.
        watch: What looks at each operation.
        sources: What indices that are not known are computed from, if that may be.

    Raises:
        TooDense: If the budget does not suffice.
    """
    return _run(program, arguments, Context(budget, columns, _run, watch, sources))


def _run(
    program: ClosedJaxpr, arguments: Sequence[Operand], context: Context
) -> list[Operand]:
    jaxpr = program.jaxpr
    values: dict[Var, Operand] = dict(zip(jaxpr.constvars, program.consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    # Index arrays are large: each is let go after its last use.
    last: dict[Var, int] = {}
    for i, equation in enumerate(jaxpr.eqns):
        last.update((v, i) for v in equation.invars if isinstance(v, Var))
    last.update((v, -1) for v in jaxpr.outvars if isinstance(v, Var))

    def read(atom: Any) -> Operand:
        return atom.val if isinstance(atom, Literal) else values[atom]

    for i, equation in enumerate(jaxpr.eqns):
        operands = [read(atom) for atom in equation.invars]
        with as_written(equation):
            results = _watched(equation, operands, context)
        values.update(zip(equation.outvars, results, strict=True))
        for v in (*equation.invars, *equation.outvars):
            if isinstance(v, Var) and last.get(v, i) == i:
                values.pop(v, None)
    return [read(atom) for atom in jaxpr.outvars]


def _watched(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> Sequence[Operand]:
    """Evaluate an operation, and show it to what watches the program."""
    watch = context.watch
    if watch is None:
        return _step(equation, operands, context)
    name, has_program = equation.primitive.name, traits_of(equation).program is not None
    # What a loop does is more than what a step of it does.
    if has_program and name not in ("scan", "while"):
        with watch.inside(equation):
            return _step(equation, operands, context)
    try:
        with watch.inside(equation):
            results = _step(equation, operands, context)
    except TooDense:
        watch.gave_up(equation, size_of(result_type(equation)[0]))
        raise
    watch.saw(equation, operands, results)
    return results


def _step(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> Sequence[Operand]:
    if not any(isinstance(operand, Linear) for operand in operands):
        return independent(equation, operands)
    pieces = (len(a.pieces) for a in operands if isinstance(a, Linear))
    context.budget.take_steps(sum(pieces))
    rule = RULES.get(equation.primitive.name)
    if rule is None:
        rule = _control.call
    results = None if rule is None else rule(equation, operands, context)
    if results is None:
        if any(map(_is_unknown_index, operands)):
            ask_for_content(context.sources)
        results = by_matrix(equation, operands, context)
    return [
        _settled(a, result_type(equation, j)[1], context)
        if isinstance(a, Linear)
        else a
        for j, a in enumerate(results)
    ]


def _is_unknown_index(a: Operand) -> bool:
    return isinstance(a, Tracer) and jnp.issubdtype(a.dtype, jnp.integer)


def _settled(a: Linear, dtype: np.dtype, context: Context) -> Linear:
    """Merge the pieces of an array where there are many, or where they repeat."""
    budget, entries = context.budget, a.entries
    most = min(budget.many, max(2 * size_of(a.shape) * context.columns, _LONG))
    repeats = entries > most and a.pieces[0].values is None
    if not repeats and len(a.pieces) <= min(_FEW + entries // _LONG, _MOST):
        return a
    fewer = merged(a, dtype)
    if repeats or len(fewer.pieces) > min(_FEW + entries // _LONG, _MOST):
        fewer = coalesced(a, context.columns, dtype)
    if repeats:
        budget.left += entries - fewer.entries
        # Sorting takes long: not again before there are twice as many as are known to
        # be distinct.
        budget.many = max(budget.many, 2 * fewer.entries)
    return fewer


def independent(equation: JaxprEqn, operands: Sequence[Operand]) -> Sequence[Operand]:
    """Evaluate an operation on what does not depend on `v`: now, if all is known.

    Indices are computed in programs (wrapped, clipped, counted up), and the pattern
    is made of them.
    """
    known = all(map(is_concrete, operands)) and not crosses_devices(equation)
    if known and is_integral(equation):
        return evaluated(equation, operands)
    return bound(equation, operands)
