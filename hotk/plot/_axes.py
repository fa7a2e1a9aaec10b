"""The axes to draw on, and what several kinds of plots share."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from hotk._core import describe, extra


if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable

T = TypeVar("T")


def axes(ax: "Axes | None", inches: tuple[float, float] | None = None) -> "Axes":
    """Return the axes that were given, or new ones, of a figure of their own.

    Args:
        ax: The axes.
        inches: Width and height of a new figure; those of matplotlib if left out.
    """
    if ax is not None:
        return ax
    # Without a layout `savefig` cuts off labels that are longer than a few letters. A
    # constrained one does so as well beside a square image: it takes the margins from
    # the slot of the axes, which is wider than the image.
    subplots = extra("matplotlib.pyplot", "plot").subplots
    return subplots(layout="compressed", figsize=inches)[1]


def by_name(
    call: str,
    given: T | Mapping[str, T],
    kinds: type | tuple[type, ...],
    expected: str,
) -> dict[str, T]:
    """Return a mapping as a dictionary, and one thing as that of the empty name.

    Args:
        call: What was called, for messages.
        given: One thing, or a mapping of several by name.
        kinds: The classes that each may have.
        expected: What these are, for messages.

    Raises:
        TypeError: If the mapping is empty, or one of the things has another class.
    """
    things = dict(given) if isinstance(given, Mapping) else {"": given}
    if not things:
        raise TypeError(f"`{call}`: the dictionary is empty; give {expected}.")
    for name, thing in things.items():
        if not isinstance(thing, kinds):
            place = f" at {name!r}" if name else ""
            raise TypeError(
                f"`{call}`: {describe(thing)}{place} is not {expected}; give one, or a "
                "dictionary of several by name."
            )
    return things


def colorbar(ax: "Axes", image: "ScalarMappable", label: str) -> None:
    """Add a colorbar about as high as the axes."""
    # The numbers with which a colorbar beside a square image has about its height.
    ax.figure.colorbar(image, ax=ax, label=label, fraction=0.046, pad=0.04)
