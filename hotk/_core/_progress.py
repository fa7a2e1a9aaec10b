"""A progress bar, if one is asked for."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
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


@contextlib.contextmanager
def bar(what: str, total: int, *, show: bool) -> Iterator[Callable[[int, str], None]]:
    """Give a function that advances a bar by a count, and says how it goes.

    Args:
        what: What is done, in a word or two.
        total: The count of all.
        show: Whether to show a bar.

    Raises:
        ImportError: If a bar is asked for and `tqdm` is not installed.
    """
    if not show:
        yield lambda count, text: None
        return
    with extra("tqdm.auto", "progress").tqdm(total=total, desc=what, leave=False) as it:

        def advance(count: int, text: str) -> None:
            it.set_postfix_str(text, refresh=False)
            it.update(count)

        yield advance
