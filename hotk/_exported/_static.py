"""What an exported program was traced with beside arrays, as trees anyone can make."""

import dataclasses
import functools
import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, CellType, CodeType, ModuleType
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, default_registry, keystr
from jaxtyping import PyTree

from hotk._capture import Skeleton, is_library_file
from hotk._core import (
    PreparationError,
    describe,
    function_name,
    function_place,
    message,
    peek,
)
from hotk.sparse import Pattern


def plain(tree: PyTree, leaf: Callable[[object], object]) -> PyTree:
    """Return a tree with dicts, lists and tuples in place of all other nodes.

    A node whose children have names becomes a dict of these names: the fields of a
    module, a dataclass or a named tuple. Any other becomes a tuple.

    Args:
        tree: The tree.
        leaf: What stands for a leaf; called in the order of `jax.tree.leaves`.
    """
    if tree is None:
        return None
    children = _children(tree)
    if children is None:
        return leaf(tree)
    values = [plain(child, leaf) for _, child in children]
    if type(tree) in (list, tuple):
        return type(tree)(values)
    names = [name for name, _ in children]
    return tuple(values) if names[:1] == [0] else dict(zip(names, values, strict=True))


def nodes(tree: PyTree, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Return what `plain` leaves out: the class of each other node, and its statics.

    Args:
        tree: The tree.
        path: Where it stands in a plain tree.

    Yields:
        The place of the node in the plain tree as a text, then the name of its class
        and what it has besides its children.
    """
    children = None if tree is None else _children(tree)
    if children is None:
        return
    if type(tree) not in (dict, list, tuple):
        statics = default_registry.flatten_one_level(tree)[1]
        yield keystr(path), (type(tree).__qualname__, statics)
    for name, child in children:
        key = DictKey(name) if isinstance(name, str) else SequenceKey(name)
        yield from nodes(child, (*path, key))


def _children(tree: PyTree) -> list[tuple[str | int, Any]] | None:
    """Return the children of a node by name or by number, `None` of a leaf."""
    paths, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: node is not tree
    )
    if len(paths) == 1 and not paths[0][0]:
        return None
    children = [child for _, child in paths]
    names = [_name(path[0]) for path, _ in paths]
    numbered = type(tree) in (list, tuple) or None in names
    if numbered or len({*names}) < len(names):
        return list(enumerate(children))
    return list(zip(map(str, names), children, strict=True))


def _name(key: Any) -> str | None:
    if isinstance(key, GetAttrKey):
        return key.name
    return key.key if isinstance(key, DictKey) and isinstance(key.key, str) else None


# Before the path of a node: what it is has a text beside those of its leaves.
_NODE = "node "
# `jax.export.deserialize` reads no further than the program.
_MARK = b"\nhotk: static arguments "


def with_statics(
    data: bytes, given: PyTree, is_argument: Callable[[object], bool]
) -> bytes:
    """Return a program with the texts of the arguments that are part of it.

    Args:
        data: The program.
        given: Its arguments.
        is_argument: Whether a leaf is an argument of the program.
    """
    texts = {
        path: _text(leaf) for path, leaf in _leaves(given) if not is_argument(leaf)
    }
    texts |= {_NODE + path: _text(node) for path, node in nodes(given)}
    return data + _MARK + json.dumps(texts).encode() if texts else data


def statics_of(data: bytes | bytearray) -> dict[str, str]:
    """Return the texts by path, none for a program without any."""
    _, found, texts = bytes(data).rpartition(_MARK)
    return json.loads(texts) if found else {}


def without_statics(call: str, texts: Mapping[str, str], given: PyTree) -> PyTree:
    """Return the arguments as a program takes them, `None` for what is part of it.

    Args:
        call: The call, for the message.
        texts: The texts by path.
        given: The arguments.

    Raises:
        PreparationError: If one is another than the program was traced with.
    """
    for path, leaf in _leaves(given):
        if path in texts or not is_number(leaf):
            what = "an argument that is not an array"
            fix = "pass `None` there for what was exported."
            _compare(call, what, texts.get(path, "arrays alone"), _text(leaf), fix)
    taken = lambda path, leaf: None if jax.tree_util.keystr(path) in texts else leaf
    return jax.tree_util.tree_map_with_path(taken, plain(given, lambda leaf: leaf))


def check_nodes(call: str, texts: Mapping[str, str], given: PyTree) -> None:
    """Raise if a node has another class or other statics than was exported.

    Dicts, lists and tuples stand for any node: they have none.

    Args:
        call: The call, for the message.
        texts: The texts by path.
        given: The arguments.

    Raises:
        PreparationError: If one is another than the program was traced with.
    """
    for path, node in nodes(given):
        expected = texts.get(_NODE + path)
        if expected is not None:
            fix = "pass a dict of its fields, if what was exported is meant."
            _compare(
                call, f"what is not an array of `{path}`", expected, _text(node), fix
            )


def _compare(call: str, what: str, expected: str, got: str, fix: str) -> None:
    if expected != got:
        raise PreparationError(
            message(
                call,
                f"{what} is another than was exported.",
                expected=expected,
                got=got,
                fix=f"Export again for it, or {fix}",
            )
        )


def is_number(leaf: object) -> bool:
    """Whether it is an array or a number, and so an argument of a program."""
    return hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex))


def _leaves(given: PyTree) -> list[tuple[str, object]]:
    flat, _ = jax.tree_util.tree_flatten_with_path(plain(given, lambda leaf: leaf))
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in flat]


Seen: TypeAlias = dict[int, tuple[object, str]]
"""Things, held so that no other gets their identity, with their texts."""

# A longer text is replaced by its digest.
_LONGEST = 500


def _text(thing: object, seen: Seen | None = None) -> str:
    """Return a text that is the same in another process, with all that a thing holds.

    Of a function it has the name and the place of its code, and what it captured.
    """
    seen = {} if seen is None else seen
    if id(thing) not in seen:
        seen[id(thing)] = thing, "..."
        text = _written(thing, seen)
        if len(text) > _LONGEST:
            text = f"{text[:_LONGEST]}... {_digest(text.encode())}"
        seen[id(thing)] = thing, text
    return seen[id(thing)][1]


def _written(thing: object, seen: Seen) -> str:
    inner = functools.partial(_text, seen=seen)
    if isinstance(thing, type):  # `dtype` of one is the property of its objects
        return f"{function_name(thing)}{function_place(thing)}"
    if hasattr(thing, "dtype") and hasattr(thing, "shape"):
        return _text_of_array(thing)
    if isinstance(thing, (list, tuple)):
        return f"({', '.join(map(inner, thing))})"
    if isinstance(thing, (set, frozenset)):  # in another process in another order
        return f"{{{', '.join(sorted(map(inner, thing)))}}}"
    if isinstance(thing, dict):
        pairs = (f"{inner(key)}: {inner(value)}" for key, value in thing.items())
        return f"{{{', '.join(pairs)}}}"
    if callable(thing):
        name = f"{function_name(thing)}{function_place(thing)}{_column(thing)}"
    else:
        text = repr(thing) if _says_all(thing) else ""
        if text and " at 0x" not in text:
            return text
        name = type(thing).__qualname__
    held = _held(thing)
    return f"{name} with {inner(held)}" if held else name


def _column(f: object) -> str:
    """Return where in its line a lambda begins: several may stand in one."""
    code = peek(f, "__code__")
    if not isinstance(code, CodeType) or code.co_name != "<lambda>":
        return ""
    # The first instruction is no part of the text.
    places = [(line, c) for line, _, c, end in code.co_positions() if c != end]
    columns = [c for line, c in places if line == code.co_firstlineno and c is not None]
    return f" column {min(columns)}" if columns else ""


def _says_all(thing: object) -> bool:
    """Whether two things of one `repr` are taken for equal.

    Those of Python and of libraries are. That of a dataclass leaves out parts of large
    arrays, and that of a pattern or a skeleton of hotk its content.
    """
    cls = type(thing)
    if cls.__repr__ is object.__repr__ or dataclasses.is_dataclass(thing):
        return False
    if cls.__module__.partition(".")[0] in ("hotk", "__main__"):
        return False
    found = sys.modules.get(cls.__module__)
    file = getattr(found, "__file__", None)
    return file is None or is_library_file(file)


def _held(thing: object) -> dict[str, object]:
    """Return what a function captured, or what an object has."""
    if isinstance(thing, functools.partial):
        return {"func": thing.func, "args": thing.args, **thing.keywords}
    if inspect.ismethod(thing):
        return {"self": thing.__self__, "func": thing.__func__}
    if isinstance(thing, (ModuleType, BuiltinFunctionType)) or _has_a_name(thing):
        return {}
    if isinstance(thing, Skeleton):
        return {"function": thing.template}
    if isinstance(thing, Pattern):
        return {n: getattr(thing, n) for n in ("rows", "cols", "shape", "symmetric")}
    held: dict[str, object] = {}
    if inspect.isfunction(thing):
        nonlocals = zip(
            thing.__code__.co_freevars, thing.__closure__ or (), strict=True
        )
        held = {name: _content(cell) for name, cell in nonlocals}
        defaults = thing.__defaults__, thing.__kwdefaults__
        held |= {"defaults": defaults} if any(defaults) else {}
    elif not hasattr(thing, "__wrapped__"):
        slots = (getattr(c, "__slots__", ()) for c in type(thing).__mro__)
        names = [
            n for some in slots for n in ((some,) if isinstance(some, str) else some)
        ]
        held = {n: getattr(thing, n) for n in names if hasattr(thing, n)}
        held |= getattr(thing, "__dict__", {})
        # What is computed of the others at first use is no difference.
        cached = lambda n: isinstance(peek(type(thing), n), functools.cached_property)
        held = {
            name: value
            for name, value in held.items()
            if not name.startswith("__") and not cached(name)
        }
    if hasattr(thing, "__wrapped__"):
        held["__wrapped__"] = peek(thing, "__wrapped__")
    return held


def _has_a_name(thing: object) -> bool:
    """Whether a function or a class is found under its name in its module."""
    found: Any = sys.modules.get(str(peek(thing, "__module__")))
    for name in str(peek(thing, "__qualname__")).split("."):
        found = peek(found, name)
    return found is thing


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return None


def _text_of_array(array: Any) -> str:
    data = array
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(array)
    return f"{describe(array)} {_digest(np.asarray(data).tobytes())}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
