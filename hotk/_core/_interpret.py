"""Programs read and evaluated equation by equation."""

import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ._axes import varying_along, varying_as
from ._compat import (
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Var,
    as_written,
    equations,
    inner_jaxprs,
    shape_of,
    source_line,
)
from ._primitives import CUSTOM, TRAITS, traits_of
from ._programs import scan_counts, transforms
from ._types import Leaf, is_inexact


V = TypeVar("V")
Changes: TypeAlias = Mapping[Atom, Callable[[Any], Leaf]]
Handlers: TypeAlias = Mapping[str, Callable[[JaxprEqn, list[Leaf]], Sequence[Leaf]]]


def placed_equations(jaxpr: Jaxpr, place: str = "") -> Iterator[tuple[JaxprEqn, str]]:
    """Yield all equations, each with the user's line that made it.

    One that a library made has the line of the call that it is inside of.
    """
    for equation in jaxpr.eqns:
        here = source_line(equation) or place
        yield equation, here
        for inner in inner_jaxprs(equation.params.values()):
            yield from placed_equations(inner, here)


def inlined_equations(jaxpr: Jaxpr, place: str = "") -> Iterator[tuple[JaxprEqn, str]]:
    """Yield the equations of a jaxpr and those inside of its jitted functions."""
    for equation in jaxpr.eqns:
        here, inner = source_line(equation) or place, jitted(equation)
        if inner is None:
            yield equation, here
        else:
            yield from inlined_equations(inner.jaxpr, here)


_ORDER = re.compile(r"hotk(\d+)_")


def order_name(name: str, order: int) -> str:
    """Return the name of an operator's program, which tells by how much it derives."""
    return f"hotk{order}_{name}"


def nested_order(jaxpr: Jaxpr) -> int:
    """Return the order of the derivatives that programs of operators nest in another.

    Derivatives that JAX takes by itself leave no trace. What a loop with a stopping
    rule holds counts for none: it is a solver, whose steps are not differentiated.
    """
    deepest = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "while":
            continue
        inner = inner_jaxprs(equation.params.values())
        own = _ORDER.match(str(equation.params.get("name", "")))
        below = max(map(nested_order, inner), default=0)
        deepest = max(deepest, below + (int(own[1]) if own else 0))
    return deepest


def run_jaxpr(
    closed: ClosedJaxpr,
    constants: Iterable[Leaf],
    arguments: Iterable[Leaf],
    *,
    keep_rules: bool = False,
) -> list[Leaf]:
    """Evaluate a jaxpr whose outermost constants are given as arguments.

    Functions with their own derivative rule are run by their body, unless they are to
    be kept, so that the program made of this keeps nothing of the user's rules alive.
    """

    def step(equation: JaxprEqn, inputs: list[Leaf]) -> Sequence[Leaf]:
        body = jitted(equation) if keep_rules else _inlined(equation)
        if body is not None:
            return run_jaxpr(body, body.consts, inputs, keep_rules=keep_rules)
        return bound(equation, inputs)

    return evaluate(closed, constants, arguments, step)


def run_replaced(
    closed: ClosedJaxpr,
    arguments: Iterable[Leaf],
    handlers: Handlers,
    changes: Changes = types.MappingProxyType({}),
) -> list[Leaf]:
    """Evaluate a jaxpr, some of its equations otherwise, inside of loops as well.

    Args:
        closed: A closed jaxpr.
        arguments: Its arguments.
        handlers: For the name of a primitive a function from an equation and its inputs
            to its outputs.
        changes: For variables, of programs that `handlers` are for, a function from the
            value to what is used in its place.
    """

    def changed(variables: Iterable[Var], values: Iterable[Leaf]) -> list[Leaf]:
        pairs = zip(variables, values, strict=True)
        return [changes[v](a) if v in changes else a for v, a in pairs]

    def step(equation: JaxprEqn, inputs: list[Leaf]) -> Sequence[Leaf]:
        return changed(equation.outvars, outputs_of(equation, inputs))

    def outputs_of(equation: JaxprEqn, inputs: list[Leaf]) -> Sequence[Leaf]:
        name, parameters = equation.primitive.name, equation.params
        if name in handlers:
            return handlers[name](equation, inputs)
        # What a program means inside of an operation of another library is not known.
        known = name in TRAITS and name not in CUSTOM
        if not known or not _holds(parameters.values(), handlers):
            return bound(equation, inputs)
        inner = jitted(equation)
        if inner is not None:
            return run_replaced(inner, inputs, handlers, changes)
        traced = {key: _replaced(v, handlers, changes) for key, v in parameters.items()}
        return bound(equation, inputs, traced)

    constants = changed(closed.jaxpr.constvars, closed.consts)
    arguments = changed(closed.jaxpr.invars, arguments)
    return evaluate(closed, constants, arguments, step)


def run_watched(
    closed: ClosedJaxpr,
    arguments: Iterable[Leaf],
    see: Callable[[JaxprEqn, list[Leaf], Sequence[Leaf], str, str], None],
    place: str = "",
    stack: str = "",
) -> list[Leaf]:
    """Evaluate a jaxpr, jitted functions in place, and show each equation with values.

    Args:
        closed: A closed jaxpr.
        arguments: Its arguments.
        see: Called with each equation, its inputs, its outputs, the line that made it
            and the transformations that it is inside of.
        place: The line of the call that the program is of.
        stack: The transformations of that call.
    """

    def step(equation: JaxprEqn, inputs: list[Leaf]) -> Sequence[Leaf]:
        here, inside = source_line(equation) or place, stack + transforms(equation)
        body = _inlined(equation)
        if body is not None:
            return run_watched(body, inputs, see, here, inside)
        outputs = bound(equation, inputs)
        see(equation, inputs, outputs, here, inside)
        return outputs

    return evaluate(closed, closed.consts, arguments, step)


def run_watched_inside(
    equation: JaxprEqn,
    inputs: Sequence[Leaf],
    see: Callable[[JaxprEqn, list[Leaf], Sequence[Leaf], str, str], None],
    place: str,
    stack: str,
) -> None:
    """Run a loop step by step, or a branch, and show the equations inside with values.

    A `while_loop` is run until it has a NaN, with which it might not end.

    Args:
        equation: The `scan`, `while` or `cond`; of others nothing is shown.
        inputs: Its inputs.
        see: As for `run_watched`.
        place: The line of the call that it is inside of.
        stack: The transformations of that call.
    """
    parameters, name = equation.params, equation.primitive.name
    watched = lambda closed, a: run_watched(closed, a, see, place, stack)
    if name == "cond":
        branch = parameters["branches"][int(jnp.asarray(inputs[0]))]
        watched(branch, inputs[1:])
    if name == "while":
        of_test, of_body = parameters["cond_nconsts"], parameters["body_nconsts"]
        test, own = inputs[:of_test], inputs[of_test:][:of_body]
        carry = list(inputs[of_test + of_body :])
        while bool(watched(parameters["cond_jaxpr"], [*test, *carry])[0]):
            carry = watched(parameters["body_jaxpr"], [*own, *carry])
            if any(is_inexact(a) and bool(jnp.isnan(a).any()) for a in carry):
                break
    if name != "scan":
        return
    constants, carries = scan_counts(parameters)
    fixed, carry = inputs[:constants], list(inputs[constants:][:carries])
    rows = list(map(jnp.asarray, inputs[constants + carries :]))
    steps = range(parameters["length"])
    for i in reversed(steps) if parameters["reverse"] else steps:
        row = [a[i] for a in rows]
        arguments = (*fixed, *carry, *row)
        carry = watched(parameters["jaxpr"], arguments)[:carries]


def inner_constants(closed: ClosedJaxpr) -> bool:
    """Whether a jitted function inside a program has captured arrays."""
    for equation in closed.jaxpr.eqns:
        body = _inlined(equation)
        if body is not None and (body.consts or inner_constants(body)):
            return True
    return False


def inlined(closed: ClosedJaxpr, *, keep_rules: bool = False) -> ClosedJaxpr:
    """Run jitted functions in place, so that all their constants are the program's.

    Args:
        closed: A closed jaxpr.
        keep_rules: Whether functions with their own derivative stay what they are;
            else they are run by their body as well.
    """
    run = lambda *a: run_jaxpr(closed, closed.consts, a, keep_rules=keep_rules)
    return jax.make_jaxpr(run)(*_shapes(closed.jaxpr))


def evaluate(
    closed: ClosedJaxpr,
    constants: Iterable[V],
    arguments: Iterable[V],
    step: Callable[[JaxprEqn, list[V]], Sequence[V]],
    literal: Callable[[Any], V] = lambda value: value,
) -> list[V]:
    """Evaluate a jaxpr, whatever its values are made of.

    Args:
        closed: A closed jaxpr.
        constants: In place of its constants.
        arguments: Its arguments.
        step: From an equation and its inputs to its outputs.
        literal: From a number in the program to what it is among the values.
    """
    jaxpr = closed.jaxpr
    names = (*jaxpr.constvars, *jaxpr.invars)
    environment = dict(zip(names, (*constants, *arguments), strict=True))

    def read(atom: Atom) -> V:
        return literal(atom.val) if isinstance(atom, Literal) else environment[atom]

    for equation in jaxpr.eqns:
        with as_written(equation):
            outputs = step(equation, [read(atom) for atom in equation.invars])
        environment.update(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def bound(
    equation: JaxprEqn,
    inputs: Sequence[Leaf],
    parameters: Mapping[str, Any] | None = None,
) -> list[Array]:
    """Apply the operation of an equation, with its own parameters or with others."""
    primitive = equation.primitive
    chosen = equation.params if parameters is None else parameters
    inputs = varying_as([v.aval for v in equation.invars], inputs)
    if primitive.name == "pvary":  # of constants that have become arguments, some do
        return varying_along(inputs, chosen["axes"])
    outputs = primitive.bind(*inputs, **primitive.get_bind_params(chosen))
    return list(outputs) if primitive.multiple_results else [outputs]


def jitted(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the program of a jitted function that is called, or `None`."""
    called = equation.primitive.name == "jit"
    return equation.params.get("jaxpr") if called else None


def called_program(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the program that an operation runs once, `None` if it does more."""
    if not traits_of(equation).is_inlined:
        return None
    parameters = equation.params
    program = parameters["jaxpr" if "jaxpr" in parameters else "call_jaxpr"]
    return program if hasattr(program, "consts") else ClosedJaxpr(program, ())


def _inlined(equation: JaxprEqn) -> ClosedJaxpr | None:
    """Return the body of a call that is run in place, or `None`."""
    if equation.primitive.name not in CUSTOM:
        return jitted(equation)
    body = equation.params.get("call_jaxpr")
    return body if isinstance(body, ClosedJaxpr) else None


def _holds(parameters: Iterable[object], handlers: Handlers) -> bool:
    return any(
        inner.primitive.name in handlers
        for jaxpr in inner_jaxprs(parameters)
        for inner in equations(jaxpr)
    )


def _replaced(value: object, handlers: Handlers, changes: Changes) -> object:
    """Trace a parameter of an equation anew, if it is a program that is concerned."""
    if isinstance(value, (tuple, list)):
        # `_make`: the programs of `custom_linear_solve` are a named tuple.
        make = getattr(value, "_make", type(value))
        return make([_replaced(item, handlers, changes) for item in value])
    if not _holds((value,), handlers):
        return value
    assert isinstance(value, (Jaxpr, ClosedJaxpr))  # as it holds equations
    closed = value if isinstance(value, ClosedJaxpr) else ClosedJaxpr(value, ())
    run = lambda *a: run_replaced(closed, a, handlers, changes)
    traced = jax.make_jaxpr(run)(*_shapes(closed.jaxpr))
    if isinstance(value, ClosedJaxpr):
        return traced
    if traced.consts:
        raise NotImplementedError("constants in a program that must have none")
    return traced.jaxpr


def _shapes(jaxpr: Jaxpr) -> list[jax.ShapeDtypeStruct]:
    return [shape_of(variable.aval) for variable in jaxpr.invars]
