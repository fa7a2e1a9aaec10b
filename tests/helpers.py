"""Compare results, and collect warnings."""

import contextlib
import numbers
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


# Relative to the expected entry, and absolute near zero. In double precision this is
# the number promised for classical problems; otherwise a few hundred roundings.
TOLERANCE = {
    "float8_e5m2": 3e-1,
    "float8_e4m3fn": 2e-1,
    "bfloat16": 5e-2,
    "float16": 5e-3,
    "float32": 5e-5,
    "float64": 1e-10,
}


def tolerance(dtype: Any) -> float:
    """Return the tolerance for results of this dtype; zero if they must be exact."""
    dtype = jnp.dtype(dtype)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    return TOLERANCE[jnp.finfo(dtype).dtype.name]  # a complex number has its parts'


def close(
    got: Any, expected: Any, *, rtol: float | None = None, atol: float | None = None
) -> bool:
    """Assert that two trees agree in structure, shapes, dtypes and values.

    A Python number in `expected` stands for a scalar of any dtype. NaN equals NaN and
    an infinity itself. Returns `True`, so that `assert close(...)` may be written.
    """
    [*got_leaves], got_tree = jax.tree_util.tree_flatten_with_path(got)
    leaves, tree = jax.tree.flatten(expected)
    assert got_tree == tree, f"structure\n  expected: {tree}\n  got:      {got_tree}"
    for (path, leaf), wanted in zip(got_leaves, leaves, strict=True):
        _close_leaf(jax.tree_util.keystr(path), leaf, wanted, rtol, atol)
    return True


def _close_leaf(where, got, expected, rtol, atol):
    if hasattr(expected, "dtype"):
        dtype = getattr(got, "dtype", type(got))
        assert str(dtype) == str(expected.dtype), (
            f"{where} dtype: expected {expected.dtype}, got {dtype}"
        )
    elif not isinstance(expected, numbers.Number):
        assert got == expected, f"{where}: expected {expected!r}, got {got!r}"
        return
    if jnp.issubdtype(jnp.result_type(got), jax.dtypes.prng_key):
        got, expected = jax.random.key_data(got), jax.random.key_data(expected)
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape, (
        f"{where} shape: expected {expected.shape}, got {got.shape}"
    )
    tol = tolerance(got.dtype)
    if tol:  # NumPy does not compute in every dtype that JAX has
        complex_ = jnp.iscomplexobj(got) or jnp.iscomplexobj(expected)
        wide = np.complex128 if complex_ else np.float64
        got, expected = got.astype(wide), expected.astype(wide)
    np.testing.assert_allclose(
        got,
        expected,
        rtol=tol if rtol is None else rtol,
        atol=tol if atol is None else atol,
        err_msg=where,
    )


@contextlib.contextmanager
def recorded(category):
    """Collect the warnings of a category."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found
    found[:] = [w for w in found if w.category is category]
