"""`jitted`: `jax.jit` for functions of hotk, whose compilations are counted."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from hotk._core import is_outermost

from ._store import STORE


def jitted(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Jit a function of hotk; `hotk.cache_info` counts what is compiled.

    Its body runs when JAX traces it, which is before it is compiled, or inside of
    another program, which takes it in.

    Args:
        function: The function; without it, a decorator is returned.
        **options: Keywords of `jax.jit`.
    """
    if function is None:
        return functools.partial(jitted, **options)

    @functools.wraps(function)
    def body(*args: Any, **keywords: Any) -> Any:
        if is_outermost():
            STORE.compiled()
        return function(*args, **keywords)

    return jax.jit(body, **options)
