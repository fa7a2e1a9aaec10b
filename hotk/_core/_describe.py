"""Short text for arrays, leaves and bytes, as it stands in messages and tables."""

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
