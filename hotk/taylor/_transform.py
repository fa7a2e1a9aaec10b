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
import jax.numpy as jnp

from hotk._core import ClosedJaxpr, bound, evaluate, jaxpr_as_fun, scan_counts

from ._rules import rule_for
from ._series import Series, constant, filled, is_inexact, scaled


Mask = tuple[bool, ...]


def series_of(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return `f` as a function of series: `g(primals, terms)`.

    Args:
        f: A function of trees of arrays that JAX can trace.

    Returns:
        A function of a tuple with the arguments, and of a list of as many such tuples
        as there are orders: the coefficients 1 to K. It returns the value and a list
        with its coefficients 1 to K, zeros where it does not move.
    """

    def run(primals: tuple[Any, ...], terms: list[Any]) -> tuple[Any, list[Any]]:
        closed, shape = jax.make_jaxpr(f, return_shape=True)(*primals)
        leaves, tree = jax.tree.flatten(primals)
        columns = [tree.flatten_up_to(term) for term in terms]
        inputs = [
            Series(
                leaf,
                tuple(c[i] if is_inexact(leaf) else None for c in columns),
            )
            for i, leaf in enumerate(leaves)
        ]
        made = run_series(closed, inputs, len(terms))
        structure = jax.tree.structure(shape)
        rows = [filled(series) for series in made]
        value = structure.unflatten(row[0] for row in rows)
        return value, [
            structure.unflatten(row[k] for row in rows)
            for k in range(1, len(terms) + 1)
        ]

    return run


def run_series(closed: Any, inputs: list[Series], order: int) -> list[Series]:
    """Evaluate a closed jaxpr on series."""
    held = lambda value: constant(value, order)
    step = lambda equation, inputs: _step(equation, inputs, order)
    return evaluate(closed, map(held, closed.consts), inputs, step, held)


def _step(equation: Any, inputs: list[Series], order: int) -> list[Series]:
    name = equation.primitive.name
    if not any(series.moves for series in inputs):
        return [constant(y, order) for y in bound(equation, _values(inputs))]
    structural = _STRUCTURAL.get(name)
    if structural is not None:
        return structural(equation, inputs, order)
    found = rule_for(equation, inputs)
    return _by_derivative(equation, inputs, order) if found is None else found


def _values(inputs: list[Series]) -> list[Any]:
    return [series.primal for series in inputs]


def _by_derivative(equation: Any, inputs: list[Series], order: int) -> list[Series]:
    """Evaluate the derivative of an operation on series that are one order lower."""
    moving = [i for i, series in enumerate(inputs) if series.moves]
    shapes = [_shape(series.primal) for series in inputs]

    def derivative(values: list[Any], tangents: list[Any]) -> tuple[Any, list[Any]]:
        def operation(*some: Any) -> list[Any]:
            whole = list(values)
            for i, value in zip(moving, some, strict=True):
                whole[i] = value
            return bound(equation, whole)

        point = [values[i] for i in moving]
        outputs, slopes = jax.jvp(operation, point, tangents)
        return outputs, [s for s in slopes if s.dtype != jax.dtypes.float0]

    tangents = [shapes[i] for i in moving]
    closed = jax.make_jaxpr(derivative)(shapes, tangents)
    lower = order - 1
    along = [inputs[i].derivative().cut(lower) for i in moving]
    made = run_series(closed, [*(s.cut(lower) for s in inputs), *along], lower)
    count = len(equation.outvars)
    slopes = iter(made[count:])
    return [
        _integrated(y.primal, next(slopes), order)
        if is_inexact(y.primal)
        else constant(y.primal, order)
        for y in made[:count]
    ]


def _integrated(first: Any, slope: Series, order: int) -> Series:
    terms = [slope.primal, *slope.terms]
    return Series(
        first, tuple(scaled(1 / k, terms[k - 1]) for k in range(1, order + 1))
    )


def _ruled(equation: Any, inputs: list[Series], order: int) -> list[Series]:
    """Apply the rule for series that a function of hotk has, if it has one."""
    function = equation.params["function"]
    if not function.has_series():
        return _by_derivative(equation, inputs, order)
    outputs = bound(equation, _values(inputs))
    rows = [filled(s) if s.moves else [s.primal] + [None] * order for s in inputs]
    terms = [[row[k] for row in rows] for k in range(1, order + 1)]
    made = function.series(outputs, _values(inputs), terms)
    return [Series(y, tuple(m[i] for m in made)) for i, y in enumerate(outputs)]


# ---- programs inside of equations


def _inner(parameter: str) -> Callable[..., list[Series]]:
    def rule(equation: Any, inputs: list[Series], order: int) -> list[Series]:
        return run_series(_closed(equation.params[parameter]), inputs, order)

    return rule


def _checkpoint(equation: Any, inputs: list[Series], order: int) -> list[Series]:
    closed = _closed(equation.params["jaxpr"])
    pack, unpack = _packing(inputs)
    masks: list[Any] = []

    def run(*arrays: Any) -> list[Any]:
        made = run_series(closed, unpack(arrays), order)
        masks[:] = [_mask(s) for s in made]
        return [a for s in made for a in _present(s)]

    options = {k: equation.params[k] for k in ("prevent_cse", "policy")}
    outputs = iter(jax.checkpoint(run, **options)(*pack))
    return [_from_mask(mask, outputs) for mask in masks]


def _cond(equation: Any, inputs: list[Series], order: int) -> list[Series]:
    index, *operands = inputs
    pack, unpack = _packing(operands)
    branches = [_closed(branch) for branch in equation.params["branches"]]
    masks = [_traced_masks(branch, operands, order) for branch in branches]
    joint = _either(*masks)

    def branch(closed: Any, *arrays: Any) -> list[Any]:
        return _filled_up(run_series(closed, unpack(arrays), order), joint)

    functions = [functools.partial(branch, closed) for closed in branches]
    outputs = iter(jax.lax.switch(index.primal, functions, *pack))
    return [_from_mask(mask, outputs) for mask in joint]


def _scan(equation: Any, inputs: list[Series], order: int) -> list[Series]:
    parameters = equation.params
    closed = _closed(parameters["jaxpr"])
    consts, carries = scan_counts(parameters)
    fixed, carry = inputs[:consts], inputs[consts : consts + carries]
    mapped = inputs[consts + carries :]
    rows = [_row(series) for series in mapped]
    start, masks, made = _settled(closed, fixed, carry, rows, order)
    carry_in, carry_out = _packing(start)
    rows_in, rows_out = _packing(mapped)

    def step(state: Any, row: Any) -> tuple[Any, Any]:
        made = run_series(closed, [*fixed, *carry_out(state), *rows_out(row)], order)
        after = _filled_up(made[:carries], masks)
        return after, [a for s in made[carries:] for a in _present(s)]

    last, columns = jax.lax.scan(
        step,
        carry_in,
        rows_in,
        length=parameters["length"],
        reverse=parameters["reverse"],
        unroll=parameters["unroll"],
    )
    last, columns = iter(last), iter(columns)
    carried = [_from_mask(mask, last) for mask in masks]
    return carried + [_from_mask(mask, columns) for mask in made[carries:]]


def _while(equation: Any, inputs: list[Series], order: int) -> list[Series]:
    parameters = equation.params
    test, body = (_closed(parameters[n]) for n in ("cond_jaxpr", "body_jaxpr"))
    ahead, inside = parameters["cond_nconsts"], parameters["body_nconsts"]
    asked, fixed = inputs[:ahead], inputs[ahead : ahead + inside]
    carry = inputs[ahead + inside :]
    start, masks, _ = _settled(body, fixed, carry, [], order)
    carry_in, carry_out = _packing(start)

    def go_on(state: Any) -> Any:
        values = [series.primal for series in (*asked, *carry_out(state))]
        return jaxpr_as_fun(test)(*values)[0]

    def step(state: Any) -> Any:
        made = run_series(body, [*fixed, *carry_out(state)], order)
        return _filled_up(made, masks)

    last = iter(jax.lax.while_loop(go_on, step, carry_in))
    return [_from_mask(mask, last) for mask in masks]


def _settled(
    closed: Any,
    fixed: list[Series],
    carry: list[Series],
    rows: list[Series],
    order: int,
) -> tuple[list[Series], list[Mask], list[Mask]]:
    """Find which coefficients a carry has: what moves may make more of it move.

    Returns:
        The carry with all of these, which they are, and those of what the body returns.
    """
    masks = [_mask(series) for series in carry]
    while True:
        start = [_with(s, mask) for s, mask in zip(carry, masks, strict=True)]
        made = _traced_masks(closed, [*fixed, *start, *rows], order)
        joint = _either(masks, made[: len(carry)])
        if joint == masks:
            return start, masks, made
        masks = joint


# ---- which coefficients there are


def _mask(series: Series) -> Mask:
    return tuple(term is not None for term in series.terms)


def _either(*masks: list[Mask]) -> list[Mask]:
    """Return for each value which coefficients it has in any of several lists."""
    columns = zip(*masks, strict=True)
    return [tuple(map(any, zip(*column, strict=True))) for column in columns]


def _with(series: Series, mask: Mask) -> Series:
    """Fill in zeros where a mask says that there is a coefficient."""
    rows = zip(series.terms, mask, strict=True)
    zero = lambda: jnp.zeros_like(series.primal)
    terms = tuple(zero() if t is None and there else t for t, there in rows)
    return Series(series.primal, terms)


def _filled_up(values: list[Series], masks: list[Mask]) -> list[Any]:
    """Return the arrays of series that have the coefficients of these masks."""
    pairs = zip(values, masks, strict=True)
    return [a for series, mask in pairs for a in _present(_with(series, mask))]


def _present(series: Series) -> list[Any]:
    return [series.primal, *(t for t in series.terms if t is not None)]


def _from_mask(mask: Mask, arrays: Any) -> Series:
    primal = next(arrays)
    return Series(primal, tuple(next(arrays) if there else None for there in mask))


def _packing(inputs: list[Series]) -> tuple[list[Any], Callable[[Any], list[Series]]]:
    """Return the arrays of series, and the way back."""
    masks = [_mask(series) for series in inputs]

    def unpack(arrays: Any) -> list[Series]:
        rest = iter(arrays)
        return [_from_mask(mask, rest) for mask in masks]

    return [a for series in inputs for a in _present(series)], unpack


def _traced_masks(closed: Any, inputs: list[Series], order: int) -> list[Mask]:
    """Find out which coefficients the outputs of a program have."""
    arrays, unpack = _packing(inputs)
    masks: list[Mask] = []

    def run(arrays: list[Any]) -> list[Any]:
        made = run_series(closed, unpack(arrays), order)
        masks[:] = [_mask(series) for series in made]
        return [series.primal for series in made]

    jax.eval_shape(run, [_shape(a) for a in arrays])
    return masks


def _row(series: Series) -> Series:
    """Return the shapes of one row of a mapped series."""
    first = lambda a: None if a is None else _first_row(a)
    return Series(first(series.primal), tuple(map(first, series.terms)))


def _first_row(a: Any) -> Any:
    shape = _shape(a)
    return jax.ShapeDtypeStruct(shape.shape[1:], shape.dtype)


def _shape(a: Any) -> Any:
    if isinstance(a, jax.ShapeDtypeStruct):
        return a
    kind = jax.typeof(a)
    return jax.ShapeDtypeStruct(
        kind.shape, kind.dtype, weak_type=getattr(kind, "weak_type", False)
    )


def _closed(program: Any) -> Any:
    if hasattr(program, "consts"):
        return program
    return ClosedJaxpr(program, ())


_STRUCTURAL = {
    "jit": _inner("jaxpr"),
    "pjit": _inner("jaxpr"),
    "closed_call": _inner("call_jaxpr"),
    "core_call": _inner("call_jaxpr"),
    "checkpoint": _checkpoint,
    "remat": _checkpoint,
    "remat2": _checkpoint,
    "cond": _cond,
    "hotk_ruled": _ruled,
    "scan": _scan,
    "while": _while,
}
