"""What is exported: a function of arrays, its captured arrays, its arguments."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from jaxtyping import Array, PyTree

from hotk._capture import Closure
from hotk._core import Function, function_name, message
from hotk._prepared import Prepared, PreparedInOrder


class Request(NamedTuple):
    """A function of arrays, with the arguments that it is exported for.

    Attributes:
        call: From captured arrays, arguments and keyword arguments to the result.
        captured: The arrays that the function captures, if they are taken apart.
        arguments: Trees of arrays, shapes (`jax.ShapeDtypeStruct`) and static leaves.
        named: The same by keyword.
        name: The name of the function, for messages and programs.
        prepared: Whether it is a prepared operator, whose arguments are shapes, or
            static.
    """

    call: Callable[[Sequence[Array], Sequence[PyTree], Mapping[str, PyTree]], PyTree]
    captured: tuple[Array, ...]
    arguments: tuple[PyTree, ...]
    named: Mapping[str, PyTree]
    name: str
    prepared: bool = False


def request_of(f: Function, arguments: tuple[PyTree, ...], *, apart: bool) -> Request:
    """Take a prepared operator, or a function with its arguments.

    Args:
        f: What is exported.
        arguments: The arguments of a function; none of a prepared operator.
        apart: Whether captured arrays are to be arguments of the program.
    """
    if isinstance(f, (Prepared, PreparedInOrder)):
        return _of_prepared(f, arguments, apart)
    if not callable(f) or not arguments:
        raise TypeError(
            message(
                "hotk.export(f, *args)",
                "there is no function with arguments to export.",
                expected="a prepared operator, or a function and its arguments",
                got=f"{function_name(f)} and {len(arguments)} arguments",
                fix="Write `hotk.export(hotk.hvp.prepare(f, x, v))` or "
                "`hotk.export(solve, w, b)`; `jax.ShapeDtypeStruct`s stand for arrays.",
            )
        )
    if not apart:
        call = lambda leaves, args, named: f(*args)
        return Request(call, (), arguments, {}, function_name(f))
    closure = Closure.of(f)
    skeleton = closure.skeleton
    if skeleton.opaque is not None:
        raise ValueError(
            message(
                'hotk.export(..., captured="arguments")',
                "what the function captures cannot be seen.",
                expected="a function whose captured arrays are found",
                got=f"{skeleton.name}: {skeleton.opaque}",
                fix='Pass the arrays as arguments, or write `captured="constants"`; '
                "`hotk.explain(f)` shows what is in the way.",
            )
        )
    call = lambda leaves, args, named: Closure(tuple(leaves), skeleton)(*args)
    return Request(call, closure.leaves, arguments, {}, skeleton.name)


def _of_prepared(
    f: Prepared | PreparedInOrder, arguments: tuple[PyTree, ...], apart: bool
) -> Request:
    if arguments:
        raise TypeError(
            message(
                "hotk.export(prepared)",
                "a prepared operator has its arguments already.",
                expected="no arguments",
                got=str(len(arguments)),
                fix="Leave them out, or prepare for the arguments that you mean.",
            )
        )
    in_order = isinstance(f, PreparedInOrder)
    prepared = f.prepared if in_order else f
    by_position, named = f.arguments if in_order else (f.arguments, {})

    def call(
        leaves: Sequence[Array], args: Sequence[PyTree], named: Mapping[str, PyTree]
    ) -> PyTree:
        if not apart:
            return f(*args, **named)
        own = dataclasses.replace(prepared, leaves=tuple(leaves))
        return (dataclasses.replace(f, prepared=own) if in_order else own)(
            *args, **named
        )

    captured = prepared.leaves if apart else ()
    name = prepared.program.options.definition.name
    return Request(call, captured, by_position, named, name, prepared=True)
