"""Functions that were split before: for the next operator they are not split again.

In a loop that makes operators, walking the function, copying what it captured and
asking JAX for its trace took most of the time.
"""

import functools
import weakref
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import jax
from jaxtyping import PyTree

from hotk._capture import Closure, Opaque, Skeleton, key_and_arrays
from hotk._core import ARRAY, Function, Point, trace_context

from ._number_arrays import Numbered


class _KnownSplit(NamedTuple):
    """A function that was split before.

    Attributes:
        key: The key of its guard: there is one such object for each guard.
        skeleton: What was made of it, as long as anything holds it.
        calls: By the types of what it captured and of its arguments the program that
            it shares with functions of other numbers there, if any.
    """

    key: Sequence[Hashable]
    skeleton: weakref.ref[Skeleton]
    calls: dict[Hashable, Numbered | None]


# By the `id` of the key of a guard. A function that passes the guard has equal parts.
_SPLITS: dict[int, _KnownSplit] = {}
_MOST_SPLITS = 256
_ARRAYS = frozenset({ARRAY})
# The first one of each key: the traces that JAX keeps hold it, so it lives as long.
_FIRST: weakref.WeakValueDictionary[Hashable, Skeleton] = weakref.WeakValueDictionary()


def _seen(leaves: Sequence[Any], treedef: Any) -> Hashable | None:
    """Return what a trace sees of arrays of JAX; `None` if there are others."""
    if not _ARRAYS.issuperset(map(type, leaves)):
        return None
    return treedef, *[a.aval for a in leaves], trace_context()


def known(
    f: Function, x: Point, args: tuple[PyTree, ...]
) -> tuple[Closure, Point, tuple[PyTree, ...]] | None:
    """Return a function as a closure, if it and such a call of it are known.

    Returns:
        The closure, and trees of the arguments that are no longer the user's.
    """
    try:
        key, captured, walk = key_and_arrays(f)
    except (Opaque, RecursionError):
        return None
    split = None if walk is not None else _SPLITS.get(id(key))
    skeleton = None if split is None else split.skeleton()
    if split is None or skeleton is None or not _ARRAYS.issuperset(map(type, captured)):
        return None
    leaves, treedef = jax.tree.flatten((x, args))
    call = _seen([*captured, *leaves], treedef)
    if call not in split.calls:
        return None
    shared = split.calls[call]
    join = shared.joined if shared else functools.partial(Closure.joined, skeleton)
    return join(captured), *treedef.unflatten(leaves)


def remember(
    f: Function,
    x: Point,
    args: tuple[PyTree, ...],
    closure: Closure,
    shared: Numbered | None,
) -> None:
    """Keep what a function was split to for the next one that passes its guard.

    Args:
        f: The function.
        x: The point.
        args: The further arguments.
        closure: The function, split.
        shared: The program that it shares with functions of other numbers, if any.
    """
    leaves, treedef = jax.tree.flatten((x, args))
    call = _seen([*closure.leaves, *leaves], treedef)
    skeleton = _FIRST.setdefault(closure.skeleton.key, closure.skeleton)
    if call is None or skeleton.opaque is not None:
        return
    try:
        key, leaves, walk = key_and_arrays(f)
    except (Opaque, RecursionError):
        return
    # What has statics besides, or is a program, has another key.
    if walk is not None or tuple(key) != skeleton.key or len(leaves) != skeleton.count:
        return
    split = _SPLITS.get(id(key))
    if split is None or split.skeleton() is not skeleton:
        if len(_SPLITS) >= _MOST_SPLITS:
            _SPLITS.clear()
        split = _KnownSplit(key, weakref.ref(skeleton), {})
        _SPLITS[id(key)] = split
    split.calls[call] = shared
