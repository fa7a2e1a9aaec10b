"""Programs evaluated with some of their equations computed otherwise."""

from collections.abc import Iterator
from typing import Any

import jax

from ._compat import (
    CUSTOM,
    ClosedJaxpr,
    Literal,
    as_written,
    equations,
    inlined_body,
    source_line,
    sub_jaxprs,
    transforms,
)


def run_replaced(closed: Any, arguments: Any, handlers: Any) -> list[Any]:
    """Evaluate a jaxpr, some of its equations otherwise, inside of loops as well.

    Args:
        closed: A closed jaxpr.
        arguments: Its arguments.
        handlers: For the name of a primitive a function from an equation and its inputs
            to its outputs.
    """
    environment: dict[Any, Any] = {}
    jaxpr = closed.jaxpr
    inputs = (*jaxpr.constvars, *jaxpr.invars)
    environment.update(zip(inputs, (*closed.consts, *arguments), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else environment[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        with as_written(equation):
            outputs = _run_one(equation, inputs, handlers)
        environment.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def run_watched(
    closed: Any, arguments: Any, see: Any, place: str = "", stack: str = ""
) -> list[Any]:
    """Evaluate a jaxpr, jitted functions in place, and show each equation with values.

    Args:
        closed: A closed jaxpr.
        arguments: Its arguments.
        see: Called with each equation, its inputs, its outputs, the line that made it
            and the transformations that it is inside of.
        place: The line of the call that the program is of.
        stack: The transformations of that call.
    """
    jaxpr = closed.jaxpr
    names = (*jaxpr.constvars, *jaxpr.invars)
    environment = dict(zip(names, (*closed.consts, *arguments), strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else environment[atom]

    for equation in jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        body = inlined_body(equation)
        here, inside = source_line(equation) or place, stack + transforms(equation)
        if body is not None:
            outputs = run_watched(body, inputs, see, here, inside)
        else:
            with as_written(equation):
                outputs = _run_one(equation, inputs, {})
            see(equation, inputs, outputs, here, inside)
        environment.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def inlined_equations(jaxpr: Any, place: str = "") -> Iterator[tuple[Any, str]]:
    """Yield the equations of a jaxpr and those inside of its jitted functions."""
    for equation in jaxpr.eqns:
        here = source_line(equation) or place
        inner = equation.params.get("jaxpr")
        if equation.primitive.name in ("jit", "pjit") and inner is not None:
            yield from inlined_equations(inner.jaxpr, here)
        else:
            yield equation, here


def _run_one(equation: Any, inputs: list[Any], handlers: Any) -> Any:
    name = equation.primitive.name
    if name in handlers:
        return handlers[name](equation, inputs)
    parameters = equation.params
    if name not in CUSTOM and _holds(parameters.values(), handlers):
        if name in ("jit", "pjit"):
            return run_replaced(parameters["jaxpr"], inputs, handlers)
        parameters = {
            key: _replaced(value, handlers) for key, value in parameters.items()
        }
    parameters = equation.primitive.get_bind_params(parameters)
    outputs = equation.primitive.bind(*inputs, **parameters)
    return outputs if equation.primitive.multiple_results else [outputs]


def _holds(parameters: Any, handlers: Any) -> bool:
    return any(
        inner.primitive.name in handlers
        for value in parameters
        for jaxpr in sub_jaxprs(value)
        for inner in equations(jaxpr)
    )


def _replaced(value: Any, handlers: Any) -> Any:
    """Trace a parameter of an equation anew, if it is a program that is concerned."""
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(item, handlers) for item in value)
    if not _holds((value,), handlers):
        return value
    closed = value if isinstance(value, ClosedJaxpr) else ClosedJaxpr(value, ())
    shapes = [
        jax.ShapeDtypeStruct(
            v.aval.shape, v.aval.dtype, weak_type=getattr(v.aval, "weak_type", False)
        )
        for v in closed.jaxpr.invars
    ]
    made = jax.make_jaxpr(lambda *a: run_replaced(closed, a, handlers))(*shapes)
    if isinstance(value, ClosedJaxpr):
        return made
    if made.consts:
        raise NotImplementedError("constants in a program that must have none")
    return made.jaxpr
