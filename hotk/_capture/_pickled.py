"""Closures for other processes: functions by their names, captured arrays by value."""

import io
import pickle
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from hotk._core import (
    JITTED,
    StructureError,
    describe_tree,
    function_name,
    function_place,
    message,
    peek,
)

from ._captured_type import StaticArrays
from ._closure import Closure
from ._rebuild import Rebuild, survey
from ._walk import Placeholder


# What `pickle` raises for what it does not know; it follows what holds itself as well.
_REFUSALS = (pickle.PicklingError, AttributeError, TypeError, RecursionError)


def pickled(closure: Closure) -> bytes:
    """Return a closure as bytes, for `unpickled` in this process or another one.

    Raises:
        TypeError: If it has a function that is not found by its name, such as a lambda.
    """
    skeleton = closure.skeleton
    choice = int(skeleton.static_arrays), skeleton.chosen
    parts = (skeleton.template, list(closure.leaves), *choice)
    stream = io.BytesIO()
    try:
        _Pickler(stream).dump(parts)
    except _REFUSALS as error:
        raise TypeError(
            message(
                skeleton.name,
                "it cannot be pickled with its operator: `pickle` stores functions by "
                "their names.",
                expected="a function that is found as `module.name`, and what it holds",
                got=str(error).strip().splitlines()[0],
                fix="Define it by `def` at the top of a module, and pass what it "
                "captures as further arguments, as in `HessianOperator(f, x, *args)`; "
                "or send the arguments, and make the operator there.",
            )
        ) from error
    return stream.getvalue()


def unpickled(data: bytes) -> Closure:
    """Return the closure that `pickled` was given.

    Functions are those of this process; captured arrays are those of the other one.

    Raises:
        StructureError: If the functions of this process capture other arrays.
    """
    template, leaves, level, chosen = pickle.loads(data)
    level = StaticArrays(level)
    walk, trail = survey(template, static_arrays=level, chosen=chosen)
    # A function that is found by its name has arrays where others have placeholders.
    held = [a for a in walk.originals if isinstance(a, Placeholder)]
    numbers = {id(a): leaves[a.number] for a in held}
    f = Rebuild(trail, numbers)(template)
    closure = Closure.of(f, static_arrays=level, chosen=chosen)
    if list(map(_type, closure.leaves)) != list(map(_type, leaves)):
        raise StructureError(
            message(
                closure.skeleton.name,
                "it captures other arrays than when the operator was pickled.",
                expected=describe_tree(leaves),
                got=describe_tree(list(closure.leaves)),
                fix="Pickle the operator again, or make it in this process.",
            )
        )
    return Closure(tuple(leaves), closure.skeleton)


def _type(leaf: Any) -> tuple[tuple[int, ...], str]:
    return np.shape(leaf), str(leaf.dtype)


class _Pickler(pickle.Pickler):
    """Stores functions by their names, also those that a template has copies of."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, (FunctionType, JITTED)):
            return NotImplemented
        module, name = peek(obj, "__module__"), peek(obj, "__qualname__")
        if module in sys.modules and isinstance(name, str):
            try:
                named = _wrapped(_named(module, name))
            except AttributeError:  # of a lambda, or a function inside of another
                named = []
            if named and named[0] is obj:
                return NotImplemented  # `pickle` does so by itself
            for depth, found in enumerate(named):
                if _is_same(found, obj):
                    return _find, (module, name, depth)
            # Under another name than its own, as of `jitted = jax.jit(function)`.
            for other, found in list(vars(sys.modules[module]).items()):
                if _is_same(found, obj):
                    return _find, (module, other, 0)
        raise pickle.PicklingError(f"`{function_name(obj)}`{function_place(obj)}")


def _find(module: str, name: str, depth: int) -> Callable[..., Any]:
    __import__(module)
    return _wrapped(_named(module, name))[depth]


def _named(module: str, name: str) -> Any:
    found: Any = sys.modules[module]
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _wrapped(found: Any) -> list[Any]:
    """List what stands under a name: a function, or what decorators made of one."""
    chain = [found]
    while len(chain) < 8 and callable(peek(chain[-1], "__wrapped__")):
        chain.append(chain[-1].__wrapped__)
    return chain


def _is_same(found: Any, function: Any) -> bool:
    """Whether a function is another one, or what a template has in its place."""
    if type(found) is not type(function):
        return False
    if isinstance(found, JITTED):
        found, function = _wrapped(found)[-1], _wrapped(function)[-1]
    code = peek(found, "__code__")
    if code is None or peek(function, "__code__") != code:
        return False
    # What a decorator made has its code, and another function in a cell.
    cells = zip(found.__closure__ or (), function.__closure__ or (), strict=True)
    contents = [[peek(cell, "cell_contents") for cell in pair] for pair in cells]
    return all(a is b or _is_same(a, b) for a, b in contents)
