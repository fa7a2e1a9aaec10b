"""`disabled`: functions without their rules, for a while."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax


# A context that JAX's own caches know: nothing traced with rules is run without them.
_CONTEXT = jax.make_user_context(frozenset())
_ALL = "all"


@contextlib.contextmanager
def disabled(*functions: Any) -> Iterator[None]:
    """Differentiate functions as if they had no rules, within a `with` block.

    Args:
        *functions: Functions made by `hotk.rule.custom`; without any, all of them.

    Example:
        >>> f = hotk.rule.custom(lambda x: x**2)
        >>> _ = f.def_jvp(lambda primals, tangents: 100 * tangents[0])
        >>> jax.grad(f)(3.0).item()
        100.0
        >>> with hotk.rule.disabled(f):
        ...     jax.grad(f)(3.0).item()
        6.0
    """
    more = frozenset(map(_identity, functions)) or frozenset((_ALL,))
    with _CONTEXT(_CONTEXT.value | more):
        yield


def is_disabled(function: Any) -> bool:
    """Whether a function is to be differentiated without its rules."""
    now = _CONTEXT.value
    return bool(now) and (_ALL in now or _identity(function) in now)


def _identity(function: Any) -> Any:
    """Return what copies of a function have in common, those in a program as well."""
    body = getattr(function, "f", function)
    return getattr(body, "__code__", body)
