"""What can be differentiated: floating and complex numbers."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from ._compat import AbstractValue
from ._describe import describe_tree
from ._errors import DtypeError, message


_ARRAYS = (jax.Array, np.ndarray, np.generic, AbstractValue)


def is_inexact(leaf: object) -> bool:
    """Whether a number, an array or the type of one is floating or complex.

    Anything else is not, whatever attributes it has: asking a user's object for its
    `dtype` may run code. A `jax.ShapeDtypeStruct` in a tree is such an object too.
    """
    if isinstance(leaf, (float, complex)):
        return True
    return isinstance(leaf, _ARRAYS) and _has_inexact_dtype(leaf)


def is_inexact_or_shape(leaf: object) -> bool:
    """The same where a `jax.ShapeDtypeStruct` stands for an array of its dtype."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _has_inexact_dtype(leaf)
    return is_inexact(leaf)


def _has_inexact_dtype(array: object) -> bool:
    dtype = getattr(array, "dtype", None)  # a token or a reference has none
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))


def nothing_inexact(
    call: str,
    x: PyTree,
    *,
    name: str = "x",
    kinds: str = "floating or complex",
    got: str | None = None,
    selected: Sequence[bool] | None = None,
) -> DtypeError:
    """Return the error for a point in which there is nothing to differentiate.

    Args:
        call: The call, as the user knows it.
        x: The point.
        name: What the user calls it.
        kinds: What can be differentiated here.
        got: What the point is, in words; a description of it by default.
        selected: For each leaf whether a filter selects it, if there is one.
    """
    fix = f"Convert the leaf to a float, as in `{name}.astype(float)` or `3.0`."
    if selected is not None and not any(selected):
        got, fix = "`where=` selects none of them", "Select at least one floating leaf."
    return DtypeError(
        message(
            call,
            f"`{name}` has no leaf that can be differentiated.",
            expected=f"at least one {kinds} array or Python float",
            got=describe_tree(x) if got is None else got,
            fix=fix,
        )
    )
