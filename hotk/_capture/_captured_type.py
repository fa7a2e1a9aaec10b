"""`CapturedType`: all that hotk knows about one type of captured thing, in one record.

A new captured type is one record, next to the functions that it names: `register` it
for its classes there. Only a family of classes that no list can name, such as all
subclasses of one, needs a line in `_dispatch.py` as well. An example from beginning to
end stands in `docs/contributing.md`.

With it what a walk notes: `Trail`, and which arrays are static, `StaticArrays`.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import Tracer


Treatment = Literal["leaf", "traversed", "static", "static by identity"]
# The first argument is a `Description` or a `Rebuild`, and the second one is of the
# captured type. Those two classes stand on this record, so it cannot name them.
Describe = Callable[[Any, Any, str], None]
Rebuilder = Callable[[Any, Any], Any]


@dataclass(frozen=True, eq=False, kw_only=True, slots=True)
class CapturedType:
    """How one type of captured thing is handled. No field may be left out.

    Attributes:
        describe: Says of a thing what must be the same and what is inside, given a
            `Description`, the thing and the name of the variable that holds it.
        rebuild: Makes a copy with other arrays inside, given a `Rebuild` and the thing;
            `None` if the thing stays what it is.
        treatment: What `hotk.explain` says of it.
        mutable: Whether a function could write into it: then each trace gets a copy,
            so that the write is found and the thing of the user is unharmed.
    """

    describe: Describe
    rebuild: Rebuilder | None
    treatment: Treatment
    mutable: bool


def uncopied(describe: Describe, treatment: Treatment) -> CapturedType:
    """Return the record of a type whose objects hold no leaves and never change."""
    return CapturedType(
        describe=describe,
        rebuild=None,
        treatment=treatment,
        mutable=False,
    )


CAPTURED_TYPES: dict[type, CapturedType] = {}
# The same, the descriptions alone: one look-up less for each captured thing of a call.
DESCRIPTIONS: dict[type, Describe] = {}


def register(captured: CapturedType, *classes: type) -> None:
    """Handle objects of exactly these classes as the record says.

    Raises:
        ValueError: If a class is registered already.
    """
    for cls in classes:
        if cls in CAPTURED_TYPES:
            raise ValueError(f"{cls.__qualname__} is registered already")
        CAPTURED_TYPES[cls] = captured
        DESCRIPTIONS[cls] = captured.describe


class SameThing:
    """Stands in a key for a thing without a hash: equal to that of the same thing.

    It does not keep the thing alive; once that is gone it is equal to itself alone.
    """

    __slots__ = ("_hash", "reference")

    def __init__(self, value: object) -> None:
        self.reference = weakref.ref(value)
        self._hash = hash((SameThing, id(value)))

    def __eq__(self, other: object) -> bool:
        """Whether the other one stands for the same thing, which is alive."""
        if self is other:
            return True
        mine = self.reference()
        same = isinstance(other, SameThing) and mine is other.reference()
        return same and mine is not None

    def __hash__(self) -> int:
        """Return the hash of the identity."""
        return self._hash


class Node:
    """One visited thing, recorded when a walk is asked to leave a trail.

    Attributes:
        value: The thing.
        path: Where it was met first.
        captured: How its type is handled.
        treatment: What became of it, in words: that of its type, or why it is opaque.
        parents: The nodes from which it was reached.
    """

    __slots__ = ("captured", "parents", "path", "treatment", "value")

    def __init__(
        self, value: object, path: str, captured: CapturedType, treatment: str
    ) -> None:
        self.value = value
        self.path = path
        self.captured = captured
        self.treatment = treatment
        self.parents: list[Node] = []


class Trail:
    """The nodes of a walk in the order of visit, with their parents.

    Attributes:
        nodes: The nodes by the `id` of what they stand for.
        stack: The nodes that the walk is inside of.
        visits: Each visit: from which length of the key to which, the path, the node. A
            small integer is one object at many places, so a node has more than one.
        static: What was reached through a class or a static field.
        read: The names of the attributes that count of an object; one that counts as a
            whole is not in it.
    """

    __slots__ = ("nodes", "read", "stack", "static", "visits")

    def __init__(self) -> None:
        self.read: dict[int, set[str]] = {}
        self.nodes: dict[int, Node] = {}
        self.stack: list[Node] = []
        self.visits: list[tuple[int, int, str, Node]] = []
        self.static: list[object] = []

    def numpy_copies(self) -> dict[int, np.ndarray]:
        """Return a copy of each array of NumPy, by the `id` of the array."""
        values = [node.value for node in self.nodes.values()]
        return {id(a): a.copy("K") for a in values if type(a) is np.ndarray}


# Of so many numbers at most an array may be static by content in a direct call, where
# the content is read and compared each time.
SMALL_SIZE = 64


class StaticArrays(IntEnum):
    """Which captured arrays are static by content, and not leaves of a program.

    A function whose Python code needs the value of an array is traced with that array
    as a constant, and anew when its content changes. Which arrays Python needs cannot
    be told, so several choices are tried in turn (`LEVELS` in `hotk._prepared`).
    """

    NONE = 0
    """All captured arrays are leaves."""
    INTEGERS = 1
    """Integer scalars."""
    SCALARS = 2
    """All scalars."""
    SMALL = 3
    """All arrays of at most 64 numbers."""
    SMALL_NUMPY = 4
    """Those of NumPy among these."""
    ALL_NUMPY = 5
    """Arrays of NumPy of any size."""
    ALL_NUMPY_AND_SMALL = 6
    """Arrays of NumPy of any size, and all of at most 64 numbers."""
    ALL_INTEGERS = 7
    """Integers and Booleans of any size, for operators whose results have a structure
    that indices decide."""


def is_static(value: object, which: StaticArrays) -> bool:
    """Whether an array or a number is static by content."""
    if isinstance(value, Tracer):
        return False
    if which == StaticArrays.ALL_INTEGERS:
        return _is_integral(value)
    numpy = isinstance(value, (np.ndarray, np.generic))
    if numpy and which >= StaticArrays.ALL_NUMPY:
        return True
    if which == StaticArrays.ALL_NUMPY:
        return False
    if which == StaticArrays.SMALL_NUMPY and not numpy:
        return False
    # The size of a `Placeholder` is a number too: it has no array's shape.
    size = np.size(value)  # pyright: ignore[reportArgumentType, reportCallIssue]
    if size > (SMALL_SIZE if which >= StaticArrays.SMALL else 1):
        return False
    if which >= StaticArrays.SCALARS or isinstance(value, (bool, int)):
        return True
    known = isinstance(value, (jax.Array, np.ndarray, np.generic))
    return known and not jnp.issubdtype(value.dtype, jnp.inexact)


def _is_integral(value: object) -> bool:
    """Whether a value is an integer, a Boolean, or an array of them."""
    if isinstance(value, (jax.Array, np.ndarray, np.generic)):
        return getattr(value.dtype, "kind", "V") in "biu"  # random keys have no kind
    return isinstance(value, (bool, int))
