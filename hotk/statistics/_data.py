"""The data of a fit, and what they must be."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten_with_path
from jaxtyping import Array, ArrayLike, Float, PyTree

from hotk._core import (
    DtypeError,
    Function,
    RealNumber,
    StructureError,
    Tracer,
    describe,
    from_host,
    leaf_name,
    message,
)

from ._regression import CALL, LOSSES, Loss, Regression, as_data


def regression_of(
    model: Function,
    x: PyTree,
    y: ArrayLike,
    sigma: ArrayLike | None,
    loss: Loss,
    f_scale: RealNumber,
    absolute_sigma: bool,
) -> Regression:
    """Check the data."""
    if not callable(model):
        raise TypeError(f"`{CALL}`: `model` is {describe(model)}, not a function.")
    if loss not in LOSSES:
        raise ValueError(f"`{CALL}`: loss {loss!r} is not one of {list(LOSSES)}.")
    if absolute_sigma and loss != "linear":
        raise ValueError(
            f"`{CALL}`: with `loss={loss!r}` the errors have another distribution than "
            "the normal one, and their scale is estimated: leave `absolute_sigma` out."
        )
    x = as_data(x)
    y = _as_real("y", y)
    for path, leaf in tree_flatten_with_path(x)[0]:
        if hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.inexact):
            refuse_entries(leaf_name("x", path), leaf, np.isnan, "no NaN")
    refuse_entries("y", y, lambda a: ~np.isfinite(a), "finite numbers")
    if sigma is not None:
        sigma = _scale(sigma, y)
    return Regression(model, x, y, sigma, from_host(f_scale, y.dtype), LOSSES[loss])


def refuse_units(regression: Regression) -> None:
    """Refuse data whose squares are too small for their dtype: of them is the value."""
    y, sigma = regression.y, regression.sigma
    if isinstance(y, Tracer) or isinstance(sigma, Tracer) or not y.size:
        return
    # by NumPy, which compiles nothing
    sizes = np.asarray(y, np.float64)
    if sigma is not None:
        wide = np.asarray(sigma, np.float64)
        alike = wide.shape in ((), sizes.shape)
        sizes = sizes / wide if alike else np.linalg.solve(wide, sizes.ravel())
    largest, info = float(np.max(np.abs(sizes))), jnp.finfo(y.dtype)
    least = (_OF_TINY * float(info.tiny)) ** 0.5
    if 0 < largest < least:
        raise ValueError(
            message(
                CALL,
                f"the squares of data of this size are zero in {y.dtype}.",
                expected=f"`y`, in units of `sigma`, of {least:.2g} or more",
                got=f"{largest:.6g} at most",
                fix="Fit it in another unit: divide `y`, `sigma` and `f_scale` by a "
                "number of that size, in the model as well. Or use 64 bits.",
            )
        )


# The squares of residuals of a thousandth of the data have digits still.
_OF_TINY = 1e5


def _as_real(name: str, a: ArrayLike) -> Float[Array, "..."]:
    array: Any = a if isinstance(a, jax.Array) else from_host(np.asarray(a))
    if jnp.iscomplexobj(array):
        raise DtypeError(
            f"`{CALL}`: `{name}` is complex. Fit real and imaginary parts: "
            "`jnp.stack([y.real, y.imag])`, in the model as well."
        )
    real = jnp.issubdtype(array.dtype, jnp.floating)
    return array if real else from_host(array, jnp.result_type(float))


_LEAVE_OUT = "Leave these rows out, of `x`, `y` and `sigma` alike."


def refuse_entries(
    name: str, a: Any, is_wrong: Any, expected: str, fix: str = _LEAVE_OUT
) -> None:
    """Refuse an array with entries of a kind; the first of them is named."""
    if isinstance(a, Tracer):
        return
    array = np.asarray(a)
    places = np.argwhere(is_wrong(array.astype(np.float64)))
    if not len(places):
        return
    first = tuple(places[0].tolist())
    at = f"[{', '.join(map(str, first))}]" if first else ""
    count = f", and {len(places) - 1} more" if len(places) > 1 else ""
    raise ValueError(
        message(
            CALL,
            f"a fit needs {expected} in `{name}`.",
            expected=expected,
            got=f"{array[first]} in `{name}{at}`{count}",
            fix=fix,
        )
    )


def _scale(sigma: ArrayLike, y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return errors, or the lower factor of their covariance."""
    array = _as_real("sigma", sigma)
    if array.shape in ((), y.shape):
        wrong = lambda a: ~(np.isfinite(a) & (a > 0))
        refuse_entries("sigma", array, wrong, "positive numbers")
        return array
    if array.shape != (y.size, y.size):
        raise StructureError(
            message(
                CALL,
                "`sigma` has another shape than `y`.",
                expected=f"a number, an array of shape {y.shape}, or a covariance of "
                f"shape {(y.size, y.size)}",
                got=f"shape {array.shape}",
                fix="Broadcast it: `np.broadcast_to(sigma, y.shape)`.",
            )
        )
    if isinstance(array, Tracer):
        return jnp.linalg.cholesky(array)
    refuse_entries("sigma", array, lambda a: ~np.isfinite(a), "finite numbers")
    matrix = np.asarray(array, np.float64)
    try:
        # An inverse, as of a precision, is symmetric up to rounding of its variances.
        size = np.sqrt(np.maximum(np.diag(matrix), 0))
        rounding = max(1e-6, float(jnp.finfo(array.dtype).eps) ** 0.5)
        if np.any(abs(matrix - matrix.T) > rounding * np.outer(size, size)):
            raise np.linalg.LinAlgError
        return from_host(np.linalg.cholesky(matrix), array.dtype)
    except np.linalg.LinAlgError:
        raise ValueError(
            f"`{CALL}`: the matrix `sigma` is not a covariance: it must be symmetric "
            "and positive definite."
        ) from None
