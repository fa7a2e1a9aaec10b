"""Short text for messages: arrays, leaves and bytes, and where two trees differ."""

from collections.abc import Callable
from types import CodeType
from typing import Any

import jax
import numpy as np
from jax.tree_util import KeyPath
from jax.typing import DTypeLike
from jaxtyping import PyTree

from ._compat import ShapedArray


_TYPED = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, ShapedArray)
_SHORT = {"float": "f", "complex": "c", "uint": "u", "int": "i", "bfloat": "bf"}


def peek(value: object, name: str) -> Any:
    """Read an attribute without running a `__getattr__` of the user, `None` if none."""
    try:
        return object.__getattribute__(value, name)
    except Exception:
        return None


def dtype_name(dtype: DTypeLike) -> str:
    """Shorten a dtype: `float32` is `f32`."""
    name = getattr(dtype, "name", "") or np.dtype(dtype).name  # keys have a name only
    for long, short in _SHORT.items():
        if name.startswith(long) and name[len(long) :].isdigit():
            return short + name[len(long) :]
    return name


def describe(leaf: object) -> str:
    """Describe a leaf: `f32[3,4]` for an array, the type's name otherwise."""
    if leaf is None:
        return "None"
    if isinstance(leaf, (bool, int, float, complex)):
        return f"Python {type(leaf).__name__}"
    if isinstance(leaf, _TYPED):
        prefix = "NumPy " if isinstance(leaf, (np.ndarray, np.generic)) else ""
        weak = " (weak)" if getattr(leaf, "weak_type", False) else ""
        shape = ",".join(map(str, leaf.shape))
        return f"{prefix}{dtype_name(leaf.dtype)}[{shape}]{weak}"
    return type(leaf).__name__


def float_scalar() -> str:
    """Describe one number of the default dtype: `f32[]`, or `f64[]`."""
    return describe(jax.ShapeDtypeStruct((), jax.dtypes.canonicalize_dtype(float)))


def leaf_name(root: str, path: KeyPath) -> str:
    """Name a leaf by its path: `x['w'][0]`."""
    return root + jax.tree_util.keystr(path)


def describe_tree(tree: PyTree, most: int = 8) -> str:
    """Describe a whole tree in one line, leaf by leaf, cut after eight or `most`."""
    leaves = jax.tree.leaves(tree)
    if jax.tree_util.tree_structure(tree) == jax.tree_util.tree_structure(0):
        return describe(leaves[0])
    shown = ", ".join(describe(leaf) for leaf in leaves[:most])
    more = f", ... ({len(leaves)} leaves)" if len(leaves) > most else ""
    return f"{type(tree).__name__} of {shown}{more}" if leaves else repr(tree)


def function_name(f: object) -> str:
    """Name a callable for a message: its qualified name, else its type's name."""
    inner = _wrapped(f)
    inner = peek(inner, "__func__") or inner
    name = peek(inner, "__qualname__") or peek(inner, "__name__")
    return name if isinstance(name, str) else type(f).__name__


def _wrapped(f: object) -> object:
    """Return the function inside of partial functions and of hotk's own wrappers."""
    for _ in range(8):  # an object may be its own `func`
        inner = peek(f, "func")
        if inner is None:
            break
        f = inner
    return f


def function_place(f: object) -> str:
    """Say where a callable was written, if Python knows: ` (file.py:12)`."""
    inner = _wrapped(f)
    inner = peek(inner, "__func__") or inner
    code = peek(inner, "__code__")
    if not isinstance(code, CodeType):
        return ""
    return f" ({file_name(code.co_filename)}:{code.co_firstlineno})"


def file_name(path: str) -> str:
    """Name a file of code by its last part; a cell of a notebook has none."""
    name = path.rsplit("/", 1)[-1]
    cell = "/ipykernel_" in path or name.startswith("<ipython-input")
    return "notebook cell" if cell else name


def number_name(a: object) -> str:
    """Write a number, or what is known of it inside of a transformation."""
    try:
        return f"{float(a):.6g}"  # pyright: ignore[reportArgumentType]
    except Exception:  # there are no numbers yet
        return describe(a)


def bytes_name(count: float) -> str:
    """Write a number of bytes with a binary unit: `1.5 MiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.4g} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def difference(
    name: str, ours: PyTree, theirs: PyTree, *, partial: bool = False
) -> dict[str, str]:
    """Return `expected` and `got` of a message: the first node that differs.

    It is the type of a node, a child that only one has, the shape of a leaf, or what a
    node holds beside its children. A dtype counts where nothing else differs.

    Args:
        name: What the second tree is called.
        ours: What was expected.
        theirs: What was given.
        partial: Whether `None` in the second tree may stand for anything.
    """
    found = None
    for of_leaf in (np.shape, describe):
        found = found or _search(ours, theirs, (), of_leaf, partial)
    path, expected, got = found or ((), describe_tree(ours), describe_tree(theirs))
    return {"expected": f"{expected} at `{leaf_name(name, path)}`", "got": got}


def _search(
    ours: PyTree,
    theirs: PyTree,
    path: KeyPath,
    of_leaf: Callable[[Any], object],
    partial: bool,
) -> tuple[KeyPath, str, str] | None:
    """Return the path of the first difference, and what both trees have there."""
    if partial and theirs is None:
        return None
    both = describe_tree(ours), describe_tree(theirs)
    is_leaf, other = (jax.tree_util.all_leaves([tree]) for tree in (ours, theirs))
    if is_leaf and other:
        return None if of_leaf(ours) == of_leaf(theirs) else (path, *both)
    if is_leaf or other or type(ours) is not type(theirs):
        return path, *both
    (children, node), (others, other_node) = map(_one_level, (ours, theirs))
    for key in {**children, **others}:
        below = (*path, key)
        if key not in others:
            return below, describe_tree(children[key]), "nothing"
        if key not in children:
            return below, "nothing", describe_tree(others[key])
        found = _search(children[key], others[key], below, of_leaf, partial)
        if found is not None:
            return found
    return None if node == other_node else (path, *_parted(str(node), str(other_node)))


def _one_level(tree: PyTree) -> tuple[dict[Any, PyTree], Any]:
    """Return the children of a node by their keys, and the node without them."""
    pairs, node = jax.tree_util.tree_flatten_with_path(tree, lambda a: a is not tree)
    return {path[0]: child for path, child in pairs}, node


def _parted(*texts: str) -> tuple[str, str]:
    """Return where two texts differ, with a little of what is before."""
    a, b = texts
    pairs = zip(a, b, strict=False)
    same = next((i for i, (p, q) in enumerate(pairs) if p != q), min(len(a), len(b)))
    start = max(same - 30, 0)
    cut = lambda text: ("... " if start else "") + text[start : same + 50]
    return cut(a), cut(b)
