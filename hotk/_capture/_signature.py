"""`Signature`: structure, shapes, dtypes, weak types and shardings of a call."""

import contextlib
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import AxisType, Sharding, SingleDeviceSharding
from jaxtyping import PyTree

from hotk._core import (
    ARRAY,
    PyTreeDef,
    Tracer,
    configuration,
    describe,
    leaf_name,
    varying_axes,
)


class SignatureField(NamedTuple):
    """One field of a comparison of two signatures."""

    same: bool
    field: str
    prepared: str
    called: str


class SignatureLeaf(NamedTuple):
    """What a signature keeps of one leaf.

    Attributes:
        text: The leaf in words, for the table of a mismatch.
        aval: Shape, dtype and weak type; of a static leaf `"static"` and its value.
        sharding: How an array lies on several devices, `None` of all else.
    """

    text: str
    aval: tuple[Any, ...]
    sharding: Sharding | None


class Signature(NamedTuple):
    """Structure, shapes, dtypes, weak types and shardings of the arguments of a call.

    Attributes:
        structure: The tree structure of the arguments.
        names: The name of each leaf, such as `x['w']`.
        leaves: Shape, dtype and weak type of each leaf, and its sharding where it lies
            on several devices; static leaves by their value.
    """

    structure: PyTreeDef
    names: tuple[str, ...]
    leaves: tuple[SignatureLeaf, ...]

    @staticmethod
    def of(arguments: tuple[PyTree, ...], roots: tuple[str, ...]) -> "Signature":
        """Take the signature of arguments that are called by the names in `roots`."""
        names, leaves = [], []
        for root, argument in zip(roots, arguments, strict=True):
            paths, tree = jax.tree_util.tree_flatten_with_path(argument)
            own = [leaf for _, leaf in paths]
            # Numbers of a module stay what they are in the point alone.
            fixed = configuration(own, tree) if root == "x" else ()
            names += [leaf_name(root, path) for path, _ in paths]
            leaves += [_leaf(leaf, i in fixed) for i, leaf in enumerate(own)]
        return Signature(jax.tree.structure(arguments), tuple(names), tuple(leaves))

    def compare(self, other: "Signature") -> list[SignatureField]:
        """List every field with whether it is the same, and both values."""
        rows = []
        if self.structure != other.structure:
            rows.append(
                SignatureField(
                    False, "structure", str(self.structure), str(other.structure)
                )
            )
        mine = dict(zip(self.names, self.leaves, strict=True))
        theirs = dict(zip(other.names, other.leaves, strict=True))
        for name in dict.fromkeys((*self.names, *other.names)):
            a, b = mine.get(name), theirs.get(name)
            rows.append(
                SignatureField(
                    a == b, name, a.text if a else "missing", b.text if b else "missing"
                )
            )
        return rows

    def __str__(self) -> str:
        """Write one line a leaf."""
        pairs = zip(self.names, self.leaves, strict=True)
        return "\n".join(f"{name}: {leaf.text}" for name, leaf in pairs)


class Aval(NamedTuple):
    """The type of what goes into a program, as JAX sees it.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        weak: Whether it is weakly typed.
        split: How it is divided along the explicit axes of a mesh, and of which mesh;
            `None` if there are none. JAX's rules and programs hold it.
        varying: Along which axes of a `shard_map` it varies.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    weak: bool
    split: Hashable
    varying: frozenset[str]

    @staticmethod
    def of(aval: Any) -> "Aval":
        """Read a type of JAX."""
        sharding = aval.sharding
        explicit = AxisType.Explicit in sharding.mesh.axis_types
        split = sharding if explicit else None
        weak, varying = aval.weak_type, varying_axes(aval)
        return Aval(aval.shape, aval.dtype, weak, split, varying)


def aval_of(leaf: object) -> Aval:
    """Return the type of an array, a tracer or a Python number."""
    # What an array on several devices keeps for its type may lack explicit axes of its
    # mesh (jax 0.10). Asking JAX takes ten times as long.
    if isinstance(leaf, jax.Array) and (
        type(leaf) is not ARRAY or isinstance(leaf.sharding, SingleDeviceSharding)
    ):
        return Aval.of(leaf.aval)
    return Aval.of(jax.typeof(leaf))


def sharding_of(leaf: object) -> Sharding | None:
    """Return the sharding of an array on several devices, `None` of all else."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return None
    sharding = leaf.sharding
    return sharding if len(sharding.device_set) > 1 else None


def _leaf(leaf: object, fixed: bool) -> SignatureLeaf:
    aval = None
    # `jax.typeof` of a shape is that of an array, but it is called with neither.
    if not (fixed or isinstance(leaf, jax.ShapeDtypeStruct)):
        # It is not an array, or an integer that JAX has no room for.
        with contextlib.suppress(TypeError, OverflowError):
            aval = aval_of(leaf)
    if aval is None:
        return SignatureLeaf(
            f"{describe(leaf)} {leaf!r}"[:60], ("static", _value(leaf)), None
        )
    shape, dtype, weak, *_ = aval
    sharding = sharding_of(leaf)
    text = describe(jax.ShapeDtypeStruct(shape, dtype)) + (" (weak)" if weak else "")
    if sharding is not None:
        text += f" {getattr(sharding, 'spec', sharding)}"
    return SignatureLeaf(text, (shape, dtype, weak), sharding)


def _value(leaf: object) -> Hashable:
    try:
        hash(leaf)
    except TypeError:
        return id(leaf)
    return leaf
