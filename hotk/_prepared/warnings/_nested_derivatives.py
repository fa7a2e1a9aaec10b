"""A warning for derivatives that are nested by hand above the third order."""

import warnings

from hotk._core import (
    Function,
    Jaxpr,
    NestedDerivativesWarning,
    function_name,
    function_place,
    inner_jaxprs,
)

from ._user_code import user_level


_HIGHEST = 3
# Equations below which nothing is lost: derivatives of solutions, or of short formulas.
_SHORT = 250


def warn_if_nested(
    name: str, function: Function, jaxpr: Jaxpr, inner: int, outer: int
) -> None:
    """Warn if a function holds operators, and this one makes the order too high.

    A short program does not trigger the warning, as nothing is lost.

    Args:
        name: How the operator is called: `hvp(f, x, v)`.
        function: The function of the user.
        jaxpr: Its program.
        inner: The order of the derivatives that the function nests already.
        outer: How many more there are now; none in Taylor mode.
    """
    order = inner + outer
    if not inner or not outer or order <= _HIGHEST:
        return
    count = _count(jaxpr)
    if count < _SHORT:
        return
    warnings.warn(
        f"`{name}`: derivatives of order {order} by nesting: the program of "
        f"`{function_name(function)}`{function_place(function)} has {count} "
        "equations already, and each further order makes it two to four times longer. "
        "If all of them are by the same variable, Taylor mode has them in one pass: "
        f"`hotk.derivatives(f, x, v, order={order})` along a direction, "
        f"`hotk.derivative_tensor(f, x, order={order})` for all entries, "
        "`hotk.partial(f, x, index)` or `hotk.tvp(f, x, v1, v2, ...)` for one, "
        "`hotk.laplacian` and `hotk.differential_operator` for sums of them. The "
        "result is right as it is.",
        NestedDerivativesWarning,
        stacklevel=user_level(),
    )


def _count(jaxpr: Jaxpr) -> int:
    """Count equations, but for those of solvers: see `nested_order`."""
    return len(jaxpr.eqns) + sum(
        _count(inner)
        for equation in jaxpr.eqns
        if equation.primitive.name != "while"
        for inner in inner_jaxprs(equation.params.values())
    )
