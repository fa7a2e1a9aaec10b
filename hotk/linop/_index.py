"""`Index`: where each leaf of a tree stands in a matrix."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.tree_util import keystr, tree_flatten_with_path

from hotk._core import describe, html_table, text_table


class Index:
    """Ranges of rows and columns, by the paths of leaves.

    A path is written as the code that reads it, `['w']` or `.layers[0].weight`, or as
    words, `w` or `layers/0/weight`. One that names a subtree stands for all of it. The
    empty path is the whole.
    """

    __slots__ = ("_rows",)

    def __init__(self, rows: tuple[tuple[str, str, slice, str], ...]) -> None:
        self._rows = rows

    @staticmethod
    def of(tree: Any) -> "Index":
        """Lay out the leaves of a tree one after the other.

        A complex leaf has its real parts first, then its imaginary parts.
        """
        rows, start = [], 0
        for path, leaf in tree_flatten_with_path(tree)[0]:
            stop = start + leaf.size * (2 if jnp.iscomplexobj(leaf) else 1)
            code, words = keystr(path), keystr(path, simple=True, separator="/")
            rows.append((code, words, slice(start, stop), describe(leaf)))
            start = stop
        return Index(tuple(rows))

    def __getitem__(self, path: Any) -> slice:
        """Return the range of a leaf or a subtree.

        Raises:
            KeyError: If there is no such path.
        """
        if isinstance(path, tuple):
            path = keystr(path)
        path = str(path)
        found = [
            part
            for code, words, part, _ in self._rows
            if not path
            or _begins(code, path, "[.")
            or _begins(code.lstrip("."), path, "[.")
            or _begins(words, path, "/")
        ]
        if not found:
            known = ", ".join(repr(words) for _, words, _, _ in self._rows[:12])
            more = ", ..." if len(self._rows) > 12 else ""
            raise KeyError(f"no leaf at {path!r}: there are {known}{more}")
        return slice(found[0].start, found[-1].stop)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the paths."""
        return iter([words for _, words, _, _ in self._rows])

    def __len__(self) -> int:
        """Return the number of leaves."""
        return len(self._rows)

    def items(self) -> list[tuple[str, slice]]:
        """List paths and ranges."""
        return [(words, part) for _, words, part, _ in self._rows]

    def _table(self) -> Any:
        rows = [(w, f"{p.start}:{p.stop}", d) for _, w, p, d in self._rows]
        return ("path", "range", "leaf"), rows

    def __repr__(self) -> str:
        """Show a row a leaf."""
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        return html_table(*self._table())


def _begins(whole: str, path: str, separators: str) -> bool:
    rest = whole[len(path) :]
    return whole.startswith(path) and (not rest or rest[0] in separators)


def leaf_numbers(tree: Any, part: slice) -> list[int]:
    """List the numbers of the leaves that a range of an index covers."""
    found, start = [], 0
    for i, leaf in enumerate(jax.tree.leaves(tree)):
        stop = start + leaf.size * (2 if jnp.iscomplexobj(leaf) else 1)
        if part.start <= start and stop <= part.stop:
            found.append(i)
        start = stop
    return found
