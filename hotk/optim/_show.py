"""`show_state`: the state of an optimizer in one line."""

from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import EnumerationItem, Tracer, describe, describe_tree, peek


def show_state(self: Any) -> str:
    """Return the fields of a state: numbers by value, all other arrays by shape.

    The `__repr__` of a `NamedTuple` prints every array in full: the factors of K-FAC
    and the moments of `sophia` are as large as the model. Fields that are `None` are
    left out.
    """
    fields = ", ".join(
        f"{name}={_show(value)}"
        for name, value in zip(self._fields, self, strict=True)
        if value is not None
    )
    return f"{type(self).__name__}({fields})"


def _show(value: object) -> str:
    if isinstance(value, Tracer):
        return describe(value)
    if isinstance(value, jax.Array):
        number = value.ndim == 0 and not jnp.issubdtype(
            value.dtype, jax.dtypes.prng_key
        )
        return f"{value.item():.4g}" if number else describe(value)
    if isinstance(value, EnumerationItem) or peek(value, "_fields"):
        return str(value)
    return describe_tree(value)
