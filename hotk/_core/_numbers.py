"""Programs whose written numbers are arguments: one program for all of their values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from ._compat import (
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    as_written,
    shape_of,
)
from ._fingerprint import Path
from ._interpret import bound
from ._primitives import ProgramKind, traits_of
from ._programs import scan_counts
from ._types import Leaf


Values = Mapping[Path, Leaf]


class InnerProgram(Protocol):
    """From the place of a program in the parameters of an operation to that program."""

    def __call__(self, label: str, *more: int) -> Callable[..., list[Leaf]]: ...


def with_numbers(closed: ClosedJaxpr, paths: list[Path], count: int) -> ClosedJaxpr:
    """Return a program with some of its numbers as arguments.

    Args:
        closed: A closed jaxpr without constants.
        paths: Where the numbers stand, as `canonical_form` says.
        count: After how many of its inputs the numbers follow.
    """
    types = [v.aval for v in closed.jaxpr.invars]
    kinds = dict.fromkeys(paths)  # each once, in order

    def run(*arrays: Array) -> list[Leaf]:
        numbers = arrays[count : count + len(paths)]
        rest = (*arrays[:count], *arrays[count + len(paths) :])
        values = dict(zip(paths, numbers, strict=True))
        return _run(closed.jaxpr, (), rest, (), values)

    shapes = [shape_of(t) for t in types]
    number_shapes = [_number_shape(closed, path) for path in kinds]
    return jax.make_jaxpr(run)(*shapes[:count], *number_shapes, *shapes[count:])


def _number_shape(closed: ClosedJaxpr, path: Path) -> jax.ShapeDtypeStruct:
    """Return the type of the number at a path."""
    if "start" in path[-2:]:
        return jax.ShapeDtypeStruct((), jnp.int32)
    jaxpr = closed.jaxpr
    *way, last = path
    steps: Iterator[Any] = iter(way)
    equation: Any = None
    for step in steps:
        if step == "out":
            return shape_of(jaxpr.outvars[last].aval)
        equation = jaxpr.eqns[step]
        label = next(steps, None)
        if label is None:
            break
        inner = equation.params[label]
        while isinstance(inner, (tuple, list)):
            inner = inner[next(steps)]
        jaxpr = getattr(inner, "jaxpr", inner)
    return shape_of(equation.invars[last].aval)


def _run(
    jaxpr: Jaxpr,
    constants: Sequence[Leaf],
    arguments: Sequence[Leaf],
    path: Path,
    values: Values,
) -> list[Leaf]:
    """Evaluate a program with other numbers at some of its places."""
    names = (*jaxpr.constvars, *jaxpr.invars)
    environment = dict(zip(names, (*constants, *arguments), strict=True))

    def read(atom: Atom, where: Path) -> Leaf:
        if isinstance(atom, Literal):
            return values.get(where, atom.val)
        return environment[atom]

    for at, equation in enumerate(jaxpr.eqns):
        here = (*path, at)
        with as_written(equation):
            inputs = [read(a, (*here, i)) for i, a in enumerate(equation.invars)]
            outputs = _apply(equation, inputs, here, values)
        environment.update(zip(equation.outvars, outputs, strict=True))
    return [read(a, (*path, "out", i)) for i, a in enumerate(jaxpr.outvars)]


def _apply(
    equation: JaxprEqn, inputs: list[Leaf], here: Path, values: Values
) -> Sequence[Leaf]:
    """Apply an operation; a number inside of it comes in as a captured array."""
    size = len(here)
    inside = {p for p in values if len(p) > size + 1 and p[:size] == here}
    # Only what holds a number is traced anew: the rest keeps its equation as it is.
    if not inside:
        return bound(equation, inputs)
    kind, parameters = traits_of(equation).program, equation.params

    def program(label: str, *more: int) -> Callable[..., list[Leaf]]:
        inner = parameters[label]
        for step in more:
            inner = inner[step]
        constants = getattr(inner, "consts", ())
        jaxpr = getattr(inner, "jaxpr", inner)
        return lambda *a: _run(jaxpr, constants, a, (*here, label, *more), values)

    if equation.primitive.name == "slice":
        return [_slice(inputs[0], parameters, here, values)]
    if kind in (
        ProgramKind.CALL,
        ProgramKind.RULED,
    ):  # the latter if rules do not count
        # In place: as a captured array, the number has no place among its operands.
        return program("jaxpr" if "jaxpr" in parameters else "call_jaxpr")(*inputs)
    if kind is ProgramKind.CHECKPOINT:
        policy, cse = parameters["policy"], parameters["prevent_cse"]
        run = jax.checkpoint(program("jaxpr"), policy=policy, prevent_cse=cse)
        return list(run(*inputs))
    if kind is ProgramKind.COND:
        count = len(parameters["branches"])
        branches = [program("branches", i) for i in range(count)]
        return list(jax.lax.switch(inputs[0], branches, *inputs[1:]))
    if kind is ProgramKind.WHILE:
        return _while(parameters, inputs, program)
    return _scan(parameters, inputs, program("jaxpr"))


def _slice(
    array: Leaf, parameters: Mapping[str, Any], here: Path, values: Values
) -> Array:
    """Cut a window at a place that is not known.

    Each place comes from a `slice`, which JAX has checked to lie within the array, so
    `dynamic_slice` never moves the window.
    """
    known = parameters["start_indices"]
    starts = [values.get((*here, "start", i), s) for i, s in enumerate(known)]
    pairs = zip(known, parameters["limit_indices"], strict=True)
    sizes = [limit - start for start, limit in pairs]
    starts = [jnp.asarray(s, jnp.int32) for s in starts]
    return jax.lax.dynamic_slice(jnp.asarray(array), starts, sizes)


def _while(
    parameters: Mapping[str, Any], inputs: list[Leaf], program: InnerProgram
) -> list[Leaf]:
    first = parameters["cond_nconsts"]
    last = first + parameters["body_nconsts"]
    ahead, constants, start = inputs[:first], inputs[first:last], inputs[last:]
    holds, step = program("cond_jaxpr"), program("body_jaxpr")
    return list(
        jax.lax.while_loop(
            lambda carry: holds(*ahead, *carry)[0],
            lambda carry: step(*constants, *carry),
            list(start),
        )
    )


def _scan(
    parameters: Mapping[str, Any],
    inputs: list[Leaf],
    step: Callable[..., list[Leaf]],
) -> list[Leaf]:
    consts, carries = scan_counts(parameters)
    constants = inputs[:consts]
    start, along = inputs[consts : consts + carries], inputs[consts + carries :]

    def body(carry: PyTree, row: PyTree) -> tuple[PyTree, PyTree]:
        outputs = step(*constants, *carry, *row)
        return outputs[:carries], outputs[carries:]

    carry, stacked = jax.lax.scan(
        body,
        list(start),
        list(along),
        length=parameters["length"],
        reverse=parameters["reverse"],
        unroll=parameters["unroll"],
        # Part of how it is differentiated, and no public argument yet.
        _split_transpose=parameters.get("_split_transpose", False),
    )
    return [*carry, *stacked]
