"""A warning for a captured number or string that changes from call to call."""

import warnings
from typing import Any

from hotk._core import ChangingValueWarning, function_name, function_place

from ._level import user_level
from ._per_code import PerCode


_MOST_PLACES = 64
_MISSES = 3


class _Place:
    """One captured value: the values that it had, and whether that was said."""

    def __init__(self) -> None:
        self.values: dict[str, None] = {}
        self.warned = False


_PLACES: PerCode[dict[str, _Place]] = PerCode(dict)


def note_change(f: Any, place: str, values: tuple[str, str], is_value: bool) -> None:
    """Remember that a call is traced anew because one captured thing changed.

    Args:
        f: The function.
        place: Where the thing is.
        values: What it was, and what it is.
        is_value: Whether it is a number or a string: of others nothing is kept, as
            they may be other functions.
    """
    if not is_value and not values[0].endswith(" entries"):
        return
    with _PLACES.lock:
        places = _PLACES.of(f)
        if place not in places and len(places) >= _MOST_PLACES:
            return
        known = places.setdefault(place, _Place())
        if len(known.values) < _MISSES:
            known.values.update(dict.fromkeys(values))


def warn_if_changing(call: Any) -> None:
    """Warn once of each captured value for which a function was traced three times."""
    with _PLACES.lock:
        found = [
            (place, known)
            for place, known in _PLACES.of(call.f).items()
            if len(known.values) >= _MISSES and not known.warned
        ]
        for _, known in found:
            known.warned = True
    for place, known in found:
        values = " -> ".join(list(known.values)[-_MISSES:])
        warnings.warn(
            f"`{call.options.kind.call()}`: `{function_name(call.f)}`"
            f"{function_place(call.f)} is traced anew for each new value of {place}: "
            f"{values}. Give it to the operator as a further argument of the function, "
            "or capture it as an array (`jnp.asarray`); of an index capture what it "
            "picks (`batch = X[i:j]`).",
            ChangingValueWarning,
            stacklevel=user_level(),
        )
