"""Sparse matrices from entries in any order, and for SciPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Array, Inexact

from hotk._core import StructureError, Tracer, describe, extra

from ._pattern import Pattern
from ._vectors import check_one


def summed(
    values: Inexact[Array, " k"],
    rows: npt.ArrayLike,
    cols: npt.ArrayLike,
    shape: tuple[int, int] | None,
    symmetric: bool,
) -> tuple[Inexact[Array, " nnz"], Pattern]:
    """Sort entries by row, then column, and add those of one position."""
    rows, cols = (_positions(each) for each in (rows, cols))
    if not rows.shape == cols.shape == values.shape or rows.ndim != 1:
        raise StructureError(
            "`SparseMatrix.from_coo(values, rows, cols)`: they must be three lists of "
            f"one length, not {describe(values)}, {describe(rows)}, {describe(cols)}."
        )
    size = lambda k: isinstance(k, (int, np.integer)) and k >= 0
    if shape is not None and not (
        isinstance(shape, (tuple, list)) and [*map(size, shape)] == [True, True]
    ):
        raise StructureError(
            "`SparseMatrix.from_coo(values, rows, cols, shape)`: `shape` is the "
            f"numbers of rows and columns, not {shape}."
        )
    if shape is None:
        shape = (int(rows.max(initial=-1)) + 1, int(cols.max(initial=-1)) + 1)
    outside = (rows < 0) | (rows >= shape[0]) | (cols < 0) | (cols >= shape[1])
    if outside.any():
        k = int(np.argmax(outside))
        raise StructureError(
            f"`SparseMatrix.from_coo(values, rows, cols)`: entry {k} stands at "
            f"({rows[k]}, {cols[k]}), outside of the shape {shape}."
        )
    key = rows * max(shape[1], 1) + cols
    if key.size < 2 or np.all(key[1:] > key[:-1]):
        return values, Pattern(rows, cols, shape, symmetric=symmetric)
    order = np.argsort(key, kind="stable").astype(np.int32)
    key, values = key[order], values[order]
    first = np.ones(key.size, bool)
    first[1:] = key[1:] != key[:-1]
    rows, cols = np.divmod(key[first], max(shape[1], 1))
    pattern = Pattern(rows, cols, shape, symmetric=symmetric)
    if not first.all():
        place = (np.cumsum(first) - 1).astype(np.int32)
        values = jax.ops.segment_sum(
            values, jnp.asarray(place), pattern.nnz, indices_are_sorted=True
        )
    return values, pattern


def _positions(given: npt.ArrayLike) -> np.ndarray:
    positions = np.asarray(given)
    if positions.size and positions.dtype.kind not in "iu":
        raise TypeError(
            f"`SparseMatrix.from_coo(values, rows, cols)`: {describe(given)} are no "
            "integers."
        )
    return positions.astype(np.int64)


def on_host(values: Array | np.ndarray, call: str) -> np.ndarray:
    """Return values as an array of NumPy.

    Raises:
        TypeError: If they are traced.
    """
    if isinstance(values, Tracer):
        raise TypeError(
            f"`{call}` needs numbers, and inside of a transformation there are none "
            "yet. Call it outside, or use `A.to_bcoo()`, which is made of JAX's arrays."
        )
    check_one(values)
    return np.array(values)


def to_scipy(pattern: Pattern, values: Array, format: str) -> Any:
    """Return a sparse array of SciPy, whose arrays are copies."""
    if format not in ("csr", "csc", "coo"):
        raise ValueError(
            f'`A.to_scipy(format)`: {format!r} must be "csr", "csc" or "coo"; SciPy '
            "makes other formats of these."
        )
    data = on_host(values, "A.to_scipy()")
    if format == "coo":
        found = extra("scipy.sparse").coo_array(
            (data, (pattern.rows.copy(), pattern.cols.copy())), shape=pattern.shape
        )
        found.has_canonical_format = True
        return found
    if format == "csr":
        return in_csr(pattern, data)
    return in_csc(pattern, data)


def in_csc(pattern: Pattern, data: np.ndarray) -> Any:
    """Return an array of SciPy in the order of the transpose."""
    order = pattern.transposed()[1]
    turned = pattern.T
    parts = (data[order], turned.cols.copy(), turned.starts.copy())
    return _canonical(extra("scipy.sparse").csc_array(parts, shape=pattern.shape))


def in_csr(pattern: Pattern, data: np.ndarray) -> Any:
    """Return an array of SciPy in the order of the pattern."""
    parts = (data, pattern.cols.copy(), pattern.starts.copy())
    return _canonical(extra("scipy.sparse").csr_array(parts, shape=pattern.shape))


def _canonical(matrix: Any) -> Any:
    # known, so that SciPy need not check it
    matrix.has_sorted_indices = True
    matrix.has_canonical_format = True
    return matrix
