"""Guards: what a walk found, written down as straight-line code for the next time.

A walk asks of each captured thing what it is. A guard asks only whether all is as the
walk left it, and takes the arrays that are there now. It knows functions, containers
and simple values; what it cannot vouch for is walked again.
"""

import functools
import types
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from hotk._core import Function, PyTreeDef

from ._tree import NodeData, describe_call, moving_nodes, walk_all
from ._walk import Walk, metadata_of
from ._writer import Check, Unguarded, Writer


# As many structures take turns at one place of a program, by experience, at most.
_MOST_GUARDS = 4
# A function that is never the same twice, over a counter for instance, is walked.
_MOST_ATTEMPTS = 32


def check_of(
    f: Function, nodes: Sequence[NodeData], static_args: Sequence[object]
) -> Check:
    """Return the check of `f` and of all callables that run the same code.

    Args:
        f: The callable.
        nodes: Class and static data of each node of the arguments' tree.
        static_args: What is static among the arguments.
    """
    w = Writer()
    w.root = f
    describe_call(w, f, nodes, static_args)
    _ask_metadata(w)
    return w.compiled()


def _ask_metadata(w: Writer) -> None:
    """Write the check of names and docstrings, if they are read."""
    if not w.reads_metadata:
        return
    things = [v for v in w.alive if id(v) in w.things]
    if any(isinstance(v, type) for v in things):
        raise Unguarded  # a class is asked for less than for all that it holds
    for value in things:
        here = w.things[id(value)][0]
        w.same("{1}({0}) == {2}", here, metadata_of, metadata_of(value))


# A check, and the key that the walk found: that of all callables that pass the check.
Guard = tuple[Check, Sequence[Hashable]]


class CodeGuards:
    """The guards of all callables that run one code object first.

    Attributes:
        code: The code object, or what stands for it.
        guards: The last few guards, the newest first. A tuple that is replaced as a
            whole, so that other threads may read it meanwhile.
        attempts: How often a guard was made, or could not be.
    """

    __slots__ = ("attempts", "code", "guards")

    def __init__(self, code: object) -> None:
        self.code = code
        self.guards: tuple[Guard, ...] = ()
        self.attempts = 0

    def add(
        self,
        f: Function,
        nodes: Sequence[NodeData],
        static_args: Sequence[object],
    ) -> None:
        """Add a guard for `f` as it is now, if there can be one."""
        if self.attempts >= _MOST_ATTEMPTS:
            return
        self.attempts += 1
        try:
            check = check_of(f, nodes, static_args)
        except Exception:  # `Unguarded`, or what the walk will say better
            self.attempts += _MOST_ATTEMPTS // 4
            return
        walk = Walk()
        walk_all(walk, f, nodes, static_args)
        leaves = check(f, nodes, static_args)
        # A guard that finds other arrays than the walk is not used: whatever is wrong
        # with it costs a walk, and no derivative.
        if leaves is not None and are_same_arrays(leaves, walk.leaves):
            guard = (check, tuple(walk.key))
            self.guards = (guard, *self.guards[: _MOST_GUARDS - 1])


def are_same_arrays(leaves: Sequence[object], walked: Sequence[object]) -> bool:
    """Whether a guard found the arrays of a walk; NumPy's are copied by both."""
    if len(leaves) != len(walked):
        return False
    pairs = zip(leaves, walked, strict=True)
    return all(a is b or type(a) is type(b) is np.ndarray for a, b in pairs)


# What stands for the code of a callable object, by its class.
PLACES: dict[type, Callable[[Any], object]] = {}
# By the `id` of the code: hashing a code object would take longer than the guard.
_BY_CODE: dict[int, CodeGuards] = {}
_LIMIT = 4096


def key_and_arrays(
    f: Function,
    tree: PyTreeDef | None = None,
    static_args: Sequence[object] = (),
) -> tuple[Sequence[Hashable], list[Any], Walk | None]:
    """Return the key of a callable, its captured arrays, and the walk if there was one.

    This runs in each direct call, so it is written out, with one call of Python code
    for a function that passes its guard.

    Args:
        f: A callable.
        tree: The arguments' tree, if its nodes have to be looked at as well.
        static_args: What is static among the arguments.

    Raises:
        Opaque: If the callable can change unseen.
    """
    nodes = () if tree is None else moving_nodes(tree)
    code = f.__code__ if type(f) is FunctionType else _code_of(f)
    if code is not None:
        known = _BY_CODE.get(id(code))
        if known is not None and known.code is code:
            for check, key in known.guards:
                leaves = check(f, nodes, static_args)
                if leaves is not None:
                    return key, leaves, None
            known.add(f, nodes, static_args)
        else:  # most functions are never seen again: a guard waits for the second time
            if len(_BY_CODE) >= _LIMIT:
                _BY_CODE.clear()
            _BY_CODE[id(code)] = CodeGuards(code)
    walk = Walk()
    walk_all(walk, f, nodes, static_args)
    return walk.key, walk.leaves, walk


def _code_of(f: object) -> object:
    """Return the code that a method, a partial or a callable object runs first."""
    place = PLACES.get(type(f))
    if place is not None:
        return place(f)
    function: object
    if type(f) is types.MethodType:
        function = f.__func__
    elif type(f) is functools.partial:
        function = f.func
    else:
        function = vars(type(f)).get("__call__")
    return function.__code__ if type(function) is FunctionType else None
