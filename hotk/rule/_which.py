"""`which`: the rules that a derivative uses."""

from collections.abc import Callable

from jaxtyping import PyTree

from hotk._core import DtypeError, ModeError, function_name, message
from hotk._mode import AbstractMode, Forward, Nested, Reverse

from ._custom import Custom, is_disabled
from ._derivative import rules_of


def which(f: Callable[..., PyTree], mode: AbstractMode | type[AbstractMode]) -> str:
    """Say which rule of a function applies in a mode.

    Nothing is computed or traced.

    Args:
        f: A function made by `hotk.rule.custom` or `hotk.rule.external`.
        mode: `hotk.Forward()`, `hotk.Reverse()` or a `hotk.Nested`.

    Returns:
        For a mode of first order `"jvp"`, `"vjp"`, one of them `"transposed"`, or
        `"body"` if the function itself is differentiated. For a nesting also what its
        derivative is: `"hvp"`, or the derivative of the rule.

    Raises:
        DtypeError: If `f` has no rules of hotk.
        ModeError: If `mode` is none of these.

    Example:
        >>> f = hotk.rule.custom(jnp.sin)
        >>> _ = f.def_vjp(lambda primals, u: (jnp.cos(primals[0]) * u,))
        >>> hotk.rule.which(f, hotk.Reverse())
        'vjp'
        >>> hotk.rule.which(f, hotk.Forward())
        'vjp, transposed'
        >>> hotk.rule.which(f, hotk.FORWARD_OVER_REVERSE)
        'vjp, then its derivative in forward mode'
    """
    if not isinstance(f, Custom):
        raise DtypeError(
            message(
                "rule.which(f, mode)",
                f"expected a function with rules, got `{function_name(f)}`.",
                expected="what `hotk.rule.custom` or `hotk.rule.external` returns",
                got=type(f).__name__,
                fix="JAX's own rules are those of one mode: `custom_jvp` of forward, "
                "`custom_vjp` of reverse.",
            )
        )
    if isinstance(mode, type) and issubclass(mode, (Forward, Reverse)):
        mode = mode()
    if not isinstance(mode, (Forward, Reverse, Nested)):
        raise ModeError(
            message(
                "rule.which(f, mode)",
                "`mode` must be a mode of first or second order.",
                expected="hotk.Forward(), hotk.Reverse() or a hotk.Nested",
                got=repr(mode),
                fix="Take `hotk.FORWARD_OVER_REVERSE` for second order.",
            )
        )
    inner = mode.inner if isinstance(mode, Nested) else mode
    first_order = _first_order(f, isinstance(inner, Forward))
    if not isinstance(mode, Nested):
        return first_order
    if not is_disabled(f) and f.hvp is not None:
        return f"{first_order}, then hvp" + "".join(f" ({note})" for note in f.notes)
    outer = "forward" if isinstance(mode.outer, Forward) else "reverse"
    return f"{first_order}, then its derivative in {outer} mode"


def _first_order(f: Custom, forward: bool) -> str:
    if is_disabled(f):
        return "body"
    rules, own = rules_of(f), "jvp" if forward else "vjp"
    name = rules.forward if forward else rules.backward
    return name if name in (own, "body") else f"{name}, transposed"
