"""A warning for a captured number or string that changes from call to call."""

import warnings

from hotk._core import ChangingValueWarning, Function, function_name, function_place

from ._per_code import PerCode
from ._user_code import user_level


_MOST_PLACES = 64
_MISSES = 3


class _Place:
    """One captured value: the values that it had, and whether that was said."""

    def __init__(self) -> None:
        self.values: dict[str, None] = {}
        self.warned = False


_PLACES: PerCode[dict[str, _Place]] = PerCode(dict)


def note_change(
    function: Function, place: str, values: tuple[str, str], is_value: bool
) -> None:
    """Remember that a call is traced anew because one captured thing changed.

    Args:
        function: The function.
        place: Where the thing is.
        values: What it was, and what it is.
        is_value: Whether it is a number or a string: of others nothing is kept, as
            they may be other functions.
    """
    if not is_value and not values[0].endswith(" entries"):
        return
    with _PLACES.lock:
        places = _PLACES.of(function)
        if place not in places and len(places) >= _MOST_PLACES:
            return
        known = places.setdefault(place, _Place())
        if len(known.values) < _MISSES:
            # By value: one that comes again is traced no more
            # (`values_that_come_again_are_not_new`).
            known.values.update(dict.fromkeys(values))


def warn_if_changing(name: str, function: Function) -> None:
    """Warn once of each captured value for which a function was traced three times.

    Args:
        name: How the operator is called: `hvp(f, x, v)`.
        function: The function of the user.
    """
    with _PLACES.lock:
        found = [
            (place, known)
            for place, known in _PLACES.of(function).items()
            if len(known.values) >= _MISSES and not known.warned
        ]
        for _, known in found:
            known.warned = True
    for place, known in found:
        values = " -> ".join(list(known.values)[-_MISSES:])
        warnings.warn(
            f"`{name}`: `{function_name(function)}`{function_place(function)} is "
            f"traced anew for each new value of {place}: {values}. Pass it to the "
            "operator as a further argument of the function, or capture it as an array "
            "(`jnp.asarray`); of an index capture what it picks (`batch = X[i:j]`).",
            ChangingValueWarning,
            stacklevel=user_level(),
        )
