"""`solve`: systems with a sparse matrix, by factors on the host, and differentiable."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, PyTree

from hotk._core import StructureError, Tracer, called_on_host, varying_alike
from hotk._dense import promoted, unflattened

from ._factor_errors import check_regular
from ._factors import factors
from ._pattern import Pattern
from ._vectors import check_one, flat_side, product


def solve(
    pattern: Pattern,
    values: Inexact[Array, " nnz"],
    b: PyTree,
    *,
    nan_if_singular: bool = False,
) -> Any:
    """Solve `A x = b`, differentiable by the values and the right-hand side.

    Args:
        pattern: The pattern of A.
        values: Its entries.
        b: The right-hand side.
        nan_if_singular: Whether the solution is NaN where A is singular, not an error.
    """
    check_one(values)
    check_square(pattern, "A.solve(b)")
    flat, tree = flat_side(pattern.output, b, "A.solve(b)")
    dtype = promoted(values.dtype, flat.dtype, jnp.float32)
    values, flat = values.astype(dtype), flat.astype(dtype)

    def host(values: Array, b: Array, turned: bool) -> np.ndarray:
        data, right = np.array(values), np.asarray(b)
        if not np.isfinite(data).all():
            return np.full(right.shape, np.nan, dtype)  # as JAX's dense solver does
        try:
            found = factors(pattern, data, "A.solve(b)")
            check_regular(pattern, found, data.dtype, "A.solve(b)")
        except RuntimeError:
            if nan_if_singular:
                return np.full(right.shape, np.nan, dtype)
            raise
        return found.solve(right, "T" if turned else "N").astype(dtype)

    if not isinstance(values, Tracer) and not isinstance(flat, Tracer):
        # A callback of JAX would hide what is raised behind an error of its own.
        found = jnp.asarray(host(values, flat, False))
        return found if tree is None else unflattened(found, pattern.input)

    # `custom_linear_solve` lets all that its programs read vary by device once a part
    # does, and fails at what has been traced otherwise.
    values, flat, *at = varying_alike([values, flat, pattern.rows, pattern.cols])

    def solver(turned: bool) -> Any:
        return lambda _, b: called_on_host(
            lambda v, b: host(v, b, turned),
            jax.ShapeDtypeStruct(b.shape, dtype),
            values,
            b,
        )

    found = jax.lax.custom_linear_solve(
        lambda v: product(pattern, values, v, at),
        flat,
        solver(False),
        transpose_solve=solver(True),
    )
    return found if tree is None else unflattened(found, pattern.input)


def check_square(pattern: Pattern, call: str) -> None:
    """Refuse a system that is not square."""
    if pattern.shape[0] != pattern.shape[1]:
        raise StructureError(
            f"`{call}`: a system needs a square matrix, and this one has the shape "
            f"{pattern.shape}. `A.T @ A` is square."
        )
