"""A progress bar, if one is asked for."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from ._extra import extra


T = TypeVar("T")


def progress(items: Iterable[T], what: str, *, show: bool) -> Iterator[T]:
    """Iterate, with a bar in the terminal or the notebook if asked.

    Args:
        items: What to iterate over.
        what: What is done, in a word or two.
        show: Whether to show a bar.

    Raises:
        ImportError: If a bar is asked for and `tqdm` is not installed.
    """
    if not show:
        return iter(items)
    return iter(extra("tqdm.auto", "progress").tqdm(items, desc=what, leave=False))
