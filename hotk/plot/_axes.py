"""The axes to draw on, and what is drawn on more than one kind of picture."""

from collections.abc import Mapping
from typing import Any

from hotk._core import describe, extra


def axes(ax: Any) -> Any:
    """Return the axes that were given, or new ones."""
    return extra("matplotlib.pyplot", "plot").subplots()[1] if ax is None else ax


def named(call: str, given: Any, kind: Any, wanted: str) -> dict[str, Any]:
    """Return one thing, without a name, or a mapping of several as a dictionary.

    Raises:
        TypeError: If there is something else among them.
    """
    things = dict(given) if isinstance(given, Mapping) else {"": given}
    if not things:
        raise TypeError(f"`{call}`: there is nothing in it; give {wanted}.")
    for key, thing in things.items():
        if not isinstance(thing, kind):
            raise TypeError(
                f"`{call}`: {describe(thing)}{f' at {key!r}' if key else ''} is not "
                f"{wanted}; give that, or a dictionary of several by name."
            )
    return things


def colorbar(ax: Any, image: Any, label: str) -> None:
    """Put a bar with the scale of an image beside it."""
    ax.figure.colorbar(image, ax=ax, label=label, fraction=0.046, pad=0.04)
