"""`weighted_sum`: several outputs as one number, for operators that take weights."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import Function

from ._checks import check_aux, check_output, match_direction


_CALL = "hvp(f, x, v, weights=u)"


def weighted_sum(f: Function, out: PyTree, weights: PyTree, has_aux: bool) -> PyTree:
    """Return the sum of the outputs of a function, each times its weight.

    Args:
        f: The function, for messages.
        out: What it returned.
        weights: A tree like its value. They are cast to the dtypes of the outputs:
            where they are arguments of a program, nothing tells NumPy's from JAX's.
        has_aux: Whether the function returns `(value, aux)`; then the sum does, too.

    Raises:
        StructureError: If the weights have another structure or shape.
        OutputError: If the outputs are not floating.
    """
    y, aux = check_aux(_CALL, f, out) if has_aux else (out, None)
    check_output(_CALL, f, y, "inexact")
    parts = match_direction(
        _CALL,
        ("y", "weights"),
        y,
        weights,
        castable=set(map(id, jax.tree.leaves(weights))),
        batched=False,
        differentiated=[True] * len(jax.tree.leaves(y)),
    )
    pairs = zip(parts, jax.tree.leaves(y), strict=True)
    rows = [jnp.sum(u * jnp.asarray(a)) for u, a in pairs]
    dtype = jnp.result_type(*rows)
    total = sum((row.astype(dtype) for row in rows[1:]), start=rows[0].astype(dtype))
    return (total, aux) if has_aux else total
