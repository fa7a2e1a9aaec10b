"""Gradients of functions that have no reverse mode, such as those with `while_loop`."""

import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import FunctionWithAux, Point
from hotk.dense import dimension
from hotk.mode import Forward

from ._entries import entries
from ._linear import Budget, TooDense
from ._linear_program import linear_program
from ._vectors import unflattened
from ._work import entries_worth


def forward_gradient(
    f: FunctionWithAux, x: Point, mode: Forward
) -> tuple[PyTree, PyTree, PyTree]:
    """Return `y`, the gradient of a scalar function, and `aux`.

    Products along all directions would be dense: that most derivatives of an
    intermediate result are zero is only known to the algebra.
    """
    linear = linear_program(f, x, mode)
    n = dimension(linear.inputs)
    try:
        budget = Budget(entries_worth(linear.program.jaxpr, n))
        found = entries(linear, budget, valued=True)
    except TooDense:
        return mode.gradient(f, x)
    assert found.values is not None
    flat = jnp.zeros(n, found.values.dtype)
    flat = flat.at[found.cols].set(found.values, unique_indices=True)
    return linear.value, unflattened(flat, linear.inputs), linear.aux
