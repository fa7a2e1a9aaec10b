"""Guards: what a walk found, written down as straight-line code for the next time.

A walk asks of each captured thing what it is. A guard asks only whether all is as the
walk left it, and takes the arrays that are there now. It knows functions, containers
and simple values; what it cannot vouch for is walked again.
"""

import functools
import types
from collections.abc import Hashable, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from ._lines import check_of
from ._tree import moving_nodes, walk_all
from ._walk import Walk
from ._writer import Check


_MOST_GUARDS = 4
_MOST_TRIES = 32


# A check, and the key that the walk found.
Guard = tuple[Check, Sequence[Hashable]]


class Known:
    """What is known of all callables that run one code object first."""

    __slots__ = ("code", "guards", "tries")

    def __init__(self, code: types.CodeType) -> None:
        self.code = code
        self.guards: tuple[Guard, ...] = ()
        self.tries = 0

    def learn(self, f: Any, nodes: Sequence[Any], fixed: Sequence[Any]) -> None:
        """Add a guard for `f` as it is now, if there can be one."""
        if self.tries >= _MOST_TRIES:
            return
        self.tries += 1
        try:
            check = check_of(f, nodes, fixed)
        except Exception:  # `Unguarded`, or what the walk will say better
            self.tries += _MOST_TRIES // 4
            return
        walk = Walk()
        walk_all(walk, f, nodes, fixed)
        leaves = check(f, nodes, fixed)
        if leaves is not None and _are_same(leaves, walk.leaves):
            made = (check, tuple(walk.key))
            self.guards = (made, *self.guards[: _MOST_GUARDS - 1])


def _are_same(leaves: Sequence[Any], walked: Sequence[Any]) -> bool:
    """Whether a guard found the arrays of a walk; NumPy's are copied by both."""
    if len(leaves) != len(walked):
        return False
    pairs = zip(leaves, walked, strict=True)
    return all(a is b or type(a) is type(b) is np.ndarray for a, b in pairs)


_KNOWN: dict[int, Known] = {}
_LIMIT = 4096


def look(
    f: Any, tree: Any = None, fixed: Sequence[Any] = ()
) -> tuple[Sequence[Hashable], list[Any], Walk | None]:
    """Return the key of a callable, its captured arrays, and the walk if there was one.

    Args:
        f: A callable.
        tree: The arguments' tree, if its nodes have to be looked at as well.
        fixed: What is static among the arguments.

    Raises:
        Opaque: If the callable can change unseen.
    """
    nodes = () if tree is None else moving_nodes(tree)
    code = f.__code__ if type(f) is FunctionType else _code_of(f)
    if code is not None:
        known = _KNOWN.get(id(code))
        if known is not None and known.code is code:
            for check, key in known.guards:
                leaves = check(f, nodes, fixed)
                if leaves is not None:
                    return key, leaves, None
            known.learn(f, nodes, fixed)
        else:  # most functions are never seen again: learn at the second sight
            if len(_KNOWN) >= _LIMIT:
                _KNOWN.clear()
            _KNOWN[id(code)] = Known(code)
    walk = Walk()
    walk_all(walk, f, nodes, fixed)
    return walk.key, walk.leaves, walk


def _code_of(f: Any) -> types.CodeType | None:
    """Return the code that a method, a partial or a callable object runs first."""
    if type(f) is types.MethodType:
        f = f.__func__
    elif type(f) is functools.partial:
        f = f.func
    else:
        f = vars(type(f)).get("__call__")
    return f.__code__ if type(f) is FunctionType else None
