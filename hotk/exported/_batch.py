"""A prepared operator, prepared again for batches of any size."""

import dataclasses

import jax
from jaxtyping import PyTree

from hotk._core import Function, function_name, leaf_name, message
from hotk.prepared import Prepared, PreparedInOrder, prepare_again


def for_any_batch(f: Function, batch: str) -> Prepared | PreparedInOrder:
    """Prepare again with a symbolic size for the first axis of the further arguments.

    Args:
        f: A prepared operator.
        batch: The name of the size.

    Raises:
        ValueError: If it is no name, the first axes are not one size, or `f` is not
            prepared.
    """
    call = f"hotk.export(..., batch={batch!r})"
    if not (isinstance(batch, str) and batch.isidentifier()):
        raise ValueError(f'`{call}`: `batch` is the name of a size, such as "N".')
    fix = (
        f'Write `(N,) = jax.export.symbolic_shape("{batch}")`, prepare with '
        "`jax.ShapeDtypeStruct((N, 8), dtype)` for what has that size, and leave "
        "`batch` out."
    )
    if not isinstance(f, (Prepared, PreparedInOrder)):
        raise ValueError(
            message(
                call,
                "it is not known which arguments of the function are a batch.",
                expected="a prepared operator, whose further arguments are the batch",
                got=function_name(f),
                fix=fix.replace("prepare with", "pass"),
            )
        )
    prepared = f.prepared if isinstance(f, PreparedInOrder) else f
    ahead = 2 if prepared.program.options.definition.takes else 1
    given = prepared.arguments
    named = len(f.arguments[1]) if isinstance(f, PreparedInOrder) else 0
    end = len(given) - named
    others = given[ahead:end]
    paths, _ = jax.tree_util.tree_flatten_with_path(others)
    sizes = {
        leaf_name("args", path): leaf.shape[0]
        for path, leaf in paths
        if _has_axis(leaf)
    }
    if len({*sizes.values()}) != 1:
        rows = ", ".join(f"{name}: {size}" for name, size in sizes.items())
        raise ValueError(
            message(
                call,
                "the further arguments have different numbers of examples.",
                expected="arrays whose first axes have the same size",
                got=rows or "no array",
                fix=fix,
            )
        )
    (size,) = jax.export.symbolic_shape(batch)

    def symbolic(leaf: PyTree) -> PyTree:
        if not _has_axis(leaf):
            return leaf
        shape = (size, *leaf.shape[1:])
        return jax.ShapeDtypeStruct(shape, leaf.dtype, weak_type=leaf.weak_type)

    others = jax.tree.map(symbolic, others)
    again = prepare_again(prepared, (*given[:ahead], *others, *given[end:]))
    if isinstance(f, PreparedInOrder):
        return dataclasses.replace(f, prepared=again)
    return again


def _has_axis(leaf: object) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) and len(leaf.shape) > 0
