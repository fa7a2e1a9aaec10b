"""Programs evaluated with some of their equations computed otherwise."""

from typing import Any

import jax

from ._compat import CUSTOM, ClosedJaxpr, Literal, as_written, equations, sub_jaxprs


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
