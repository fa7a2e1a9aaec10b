"""`CacheInfo`: what the store says of itself."""

import html
from typing import NamedTuple

from hotk._core import bytes_name, html_table, text_table


class CacheInfo(NamedTuple):
    """What the store holds and has done since it was cleared.

    Attributes:
        hits: Direct calls that found their program by the key alone.
        misses: Direct calls that did not: a new structure, signature or setting of JAX,
            or an opaque function.
        traces: How often the body of a user's function was traced.
        compiles: How many programs were compiled.
        shared: Misses whose traced program was there already: nothing was compiled.
        entries: How many signatures of functions are known, over all functions.
        bytes: Estimated memory of the compiled programs.
        evictions: Entries dropped to stay within the bounds.
        reasons: The last misses, newest last: operator, function and why, as in
            "hvp(loss): cell `rate`: 0.1 -> 0.2".
    """

    hits: int
    misses: int
    traces: int
    compiles: int
    shared: int
    entries: int
    bytes: int
    evictions: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """Write a small table and the reasons of the last misses."""
        return "\n".join((text_table(*self._table()), *self.reasons[-5:]))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = map(html.escape, self.reasons[-5:])
        return html_table(*self._table()) + "".join(f"<p>{line}</p>" for line in lines)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        values = [str(value) for value in self[:6]]
        values += [bytes_name(self.bytes), str(self.evictions)]
        return list(self._fields[:8]), [values]
