"""`disabled`: functions without their rules, for a while."""

import contextlib
from collections.abc import Callable, Iterator

from jaxtyping import PyTree

from hotk._core import WITHOUT_RULES, function_name


_ALL = "all"


@contextlib.contextmanager
def disabled(*functions: Callable[..., PyTree]) -> Iterator[None]:
    """Differentiate functions as if they had no rules, within a `with` block.

    To find out whether a rule is right, or what it costs. A function of
    `hotk.rule.external` has no body that JAX can differentiate, and raises there.

    Args:
        *functions: Functions made by `hotk.rule`: `custom`, `external`, `root`,
            `minimum`, `fixed_point`; without any, all of them. Those of one `def` or
            `lambda` with other captured values count as one function.

    Returns:
        A context manager. What is traced inside of it has no rules, in this thread.

    Raises:
        TypeError: If one of them has no rules.

    Example:
        >>> f = hotk.rule.custom(lambda x: x**2)
        >>> _ = f.def_jvp(lambda primals, tangents: 100 * tangents[0])
        >>> jax.grad(f)(3.0).item()
        100.0
        >>> with hotk.rule.disabled(f):
        ...     jax.grad(f)(3.0).item()
        6.0
    """
    for function in functions:
        if not hasattr(function, "origin"):
            raise TypeError(
                f"`rule.disabled(...)`: `{function_name(function)}` has no rules of "
                "hotk; give what `hotk.rule.custom`, `root` or the like returned."
            )
    more = frozenset(map(_identity, functions)) or frozenset((_ALL,))
    with WITHOUT_RULES(WITHOUT_RULES.value | more):
        yield


def is_disabled(function: object) -> bool:
    """Whether a function is to be differentiated without its rules."""
    now = WITHOUT_RULES.value
    return bool(now) and (_ALL in now or _identity(function) in now)


def _identity(function: object) -> object:
    """Return what copies of a function have in common, those in a program as well."""
    # By its code: a prepared program holds a copy with tracers in its cells.
    origin = getattr(function, "origin", function)
    return getattr(origin, "__code__", origin)
