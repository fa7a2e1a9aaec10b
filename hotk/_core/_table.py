"""Small tables for the terminal and for Jupyter."""

import abc
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import equinox as eqx

from ._attributes import no_attribute


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> str:
    """Lay out rows in aligned columns under a header.

    Above `width` the widest columns are cut in front: a path ends in what matters.
    """
    table = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    while width and sum(widths) + 2 * len(widths) - 2 > width and max(widths) > 12:
        i = widths.index(max(widths))
        widths[i] -= 1
    for row in table:
        for i, cell in enumerate(row):
            if len(cell) > widths[i]:
                row[i] = "..." + cell[len(cell) - widths[i] + 3 :]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write rows as one small HTML table."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class AbstractReport(eqx.Module):
    """A result that shows as a small table, in a terminal and in a notebook."""

    _header: ClassVar[tuple[str, ...]] = ("field", "value")

    def _head(self) -> tuple[str, ...]:
        """Return the header."""
        return self._header

    @abc.abstractmethod
    def _rows(self) -> list[tuple[str, ...]]:
        """Return the rows below the header."""

    def _first_lines(self) -> list[str]:
        """Return what must be said first, above the table."""
        return []

    def _lines(self) -> list[str]:
        """Return what else there is to say, below the table."""
        return []

    if not TYPE_CHECKING:  # to which each name would exist

        def __getattr__(self, name):
            raise no_attribute(self, name)

    def __repr__(self) -> str:
        """Write the rows in one line, or those of a wider table below each other."""
        if len(self._head()) != 2:
            return str(self)
        try:
            what = ", ".join(f"{field}: {value}" for field, value in self._rows())
        except Exception:  # inside of a transformation there are no numbers yet
            return eqx.tree_pformat(self)
        return f"{type(self).__name__}({what})"

    def __str__(self) -> str:
        """Write one line a row."""
        try:
            table = text_table(self._head(), self._rows())
            return "\n".join([*self._first_lines(), table, *self._lines()])
        except Exception:  # inside of a transformation there are no numbers yet
            return eqx.tree_pformat(self)

    def _repr_html_(self) -> str:
        try:
            above, below = (
                [f"<p>{html.escape(line)}</p>" for line in lines]
                for lines in (self._first_lines(), self._lines())
            )
            table = html_table(self._head(), self._rows())
            return "".join([*above, table, *below])
        except Exception:  # inside of a transformation there are no numbers yet
            return f"<pre>{html.escape(eqx.tree_pformat(self))}</pre>"
