"""A point of 64 bits where 64 bits are switched off, which JAX differentiates."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax


@contextlib.contextmanager
def in_dtypes_of(point: Any) -> Iterator[Any]:
    """Let a formula make arrays in the dtypes of the point, also where 64 bits are off.

    An array of 64 bits keeps them there, as in JAX; what is made for it must have them.
    What is given is called in the setting of before.
    """
    wide = any(leaf.dtype.itemsize > _width(leaf) for leaf in jax.tree.leaves(point))
    if not wide:
        yield lambda f: f
        return

    def as_before(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def narrow(x: Any) -> Any:
            with jax.enable_x64(False):
                return f(x)

        return narrow

    with jax.enable_x64(True):
        yield as_before


def _width(leaf: Any) -> int:
    return jax.dtypes.canonicalize_dtype(leaf.dtype).itemsize
