"""Packages that hotk does not need: imported where they are used. Progress bars."""

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar


def extra(package: str, name: str = "") -> Any:
    """Import an optional package.

    Args:
        package: Its name, or that of a module of it.
        name: The extra of hotk that brings it; the package's own name if left out.

    Raises:
        ImportError: If it is not installed; the message says how to.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        top = package.partition(".")[0]
        raise ImportError(
            f'This needs the package `{top}`: pip install "hotk[{name or top}]"',
            name=top,
        ) from error


T = TypeVar("T")


def _tqdm(*items: Iterable[Any], **options: Any) -> Any:
    auto = extra("tqdm.auto", "progress")
    # `None` is off where the output is no terminal, as it is for tqdm in notebooks.
    is_notebook = auto.notebook_tqdm is not auto.std_tqdm
    disable = False if is_notebook else None
    return auto.tqdm(*items, leave=False, disable=disable, **options)


def progress(items: Iterable[T], what: str, *, show: bool) -> Iterator[T]:
    """Iterate, with a bar in a terminal or a notebook if asked.

    Args:
        items: What to iterate over.
        what: What is done, in a word or two.
        show: Whether to show a bar.

    Raises:
        ImportError: If a bar is asked for and `tqdm` is not installed.
    """
    if not show:
        return iter(items)
    return iter(_tqdm(items, desc=what))


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
    with _tqdm(total=total, desc=what) as it:

        def advance(count: int, text: str) -> None:
            it.set_postfix_str(text, refresh=False)
            it.update(count)

        yield advance
