"""The one bounded store behind direct calls."""

import html
import itertools
import threading
from collections import deque
from collections.abc import Hashable
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from hotk._core import bytes_name, html_table, text_table

from ._family import Family
from ._program import Evaluator, Primal, Program


_MAX_ENTRIES = 512
_MAX_BYTES = 1 << 30
_BYTES_A_PROGRAM = 1 << 20


class Entry:
    """What is known under one key: programs by signature, or how to go on."""

    __slots__ = (
        "constant",
        "first",
        "programs",
        "ready",
        "reason",
        "shared",
        "stage",
        "used",
    )

    def __init__(self) -> None:
        self.first: Any = None
        self.programs: dict[Any, Program] = {}
        self.ready: dict[Any, Any] = {}
        self.constant: dict[Hashable, Any] = {}
        self.shared: Hashable = None  # the configuration a foreign program is for
        self.stage = 0
        self.reason = ""
        self.used = 0

    def postpone(self, stage: int, reason: str) -> None:
        """Remember that only a later stage works, and why."""
        self.stage = stage
        self.reason = reason


class CacheInfo(NamedTuple):
    """What the store holds and has done since it was cleared.

    Attributes:
        hits: Direct calls that found their program by the key alone.
        misses: Direct calls that did not: a new structure, signature or configuration,
            or an opaque callable.
        traces: How often the body of a user's function was traced.
        compiles: How many programs were compiled.
        shared: Misses whose traced program was there already: nothing was compiled.
        entries: Keys in the store.
        bytes: Estimated memory of the compiled programs.
        evictions: Keys dropped to stay within the bounds.
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


class Store:
    """Programs by key, the least recently used dropped first.

    Reading takes no lock; what is written is written under one, and no code of the
    user runs while it is held.
    """

    def __init__(self) -> None:
        self.entries: dict[Hashable, Entry] = {}
        self.primals: dict[Hashable, Primal] = {}
        self.evaluators: dict[Hashable, Evaluator] = {}
        self.families: dict[Hashable, Family] = {}
        # Programs live as long as an entry has them.
        self.prints: WeakValueDictionary[Hashable, Program] = WeakValueDictionary()
        self.others: list[Any] = []  # tables of floors above, cleared with these
        self.lock = threading.Lock()
        self.clock = itertools.count(1).__next__
        self.hits = self.misses = self.compiles = self.shared = self.evictions = 0
        self.traces_before = self.opaque_traces = 0
        self.reasons: deque[str] = deque(maxlen=32)
        self.max_entries = _MAX_ENTRIES
        self.max_bytes = _MAX_BYTES

    def entry(self, key: Hashable) -> Entry:
        """Return the entry of a key, a new one if there is none."""
        with self.lock:
            entry = self.entries.setdefault(key, Entry())
            entry.used = self.clock()
        self.trim()
        return entry

    def primal(self, key: Hashable) -> Primal:
        """Return the function traced under a key, a new one if there is none."""
        with self.lock:
            primal = self.primals.get(key)
            if primal is None:
                primal = self.primals[key] = Primal()
            primal.used = self.clock()
            if len(self.primals) > self.max_entries:
                self._drop(self.primals)
        return primal

    def family(self, key: Hashable) -> Family:
        """Return the family of functions of a canonical form, a new one if none is."""
        with self.lock:
            family = self.families.get(key)
            if family is None:
                family = self.families[key] = Family()
            family.used = self.clock()
            if len(self.families) > self.max_entries:
                self._drop(self.families)
        return family

    def joined(self) -> None:
        """Count a miss whose program was there already."""
        with self.lock:
            self.shared += 1

    def forget(self, key: Hashable, primal: Primal) -> None:
        """Drop a function that could not be traced, or that holds arrays of a class."""
        with self.lock:
            if self.primals.get(key) is primal:
                del self.primals[key]
                self.traces_before += primal.traces

    def compiled(self) -> None:
        """Count a compilation."""
        with self.lock:
            self.compiles += 1

    def remember(self, key: Hashable, program: Program) -> Program:
        """Return the program with this print, which is `program` if it is new."""
        with self.lock:
            found = self.prints.setdefault(key, program)
            self.shared += found is not program
        return found

    def evaluator(self, key: Hashable, made: Evaluator) -> Evaluator:
        """Return the evaluator with this key, which is `made` if it is new."""
        with self.lock:
            found = self.evaluators.setdefault(key, made)
            found.used = self.clock()
            if found is made:
                self.compiles += 1
            else:
                self.shared += 1
            if len(self.evaluators) > self.max_entries:
                self._drop(self.evaluators)
        return found

    def missed(self, reason: str) -> None:
        """Count a miss and keep its reason."""
        self.misses += 1
        self.reasons.append(reason)

    def trim(self) -> None:
        """Drop the least recently used entries until the bounds hold."""
        with self.lock:
            while len(self.entries) > 1 and (
                len(self.entries) > self.max_entries or self.bytes() > self.max_bytes
            ):
                self._drop(self.entries)

    def _drop(self, table: dict[Any, Any]) -> None:
        oldest = min(table, key=lambda key: table[key].used)
        dropped = table.pop(oldest)
        self.evictions += 1
        if isinstance(dropped, Primal):
            self.traces_before += dropped.traces

    def bytes(self) -> int:
        """Estimate the memory of all compiled programs and of what they hold."""
        programs = len(self._held()) + len(self.evaluators)
        kept = sum(
            getattr(array, "nbytes", 0)
            for entry in self.entries.values()
            for ready in entry.constant.values()
            for array in getattr(ready, "extra", ())
        )
        return programs * _BYTES_A_PROGRAM + kept

    def _held(self) -> set[int]:
        """Return the identities of the programs that entries hold, each once."""
        held: set[int] = set()
        for entry in self.entries.values():
            held.update(map(id, entry.programs.values()))
            both = (*entry.ready.values(), *entry.constant.values())
            held.update(id(getattr(ready, "program", ready)) for ready in both)
        return held

    def info(self) -> CacheInfo:
        """Say what the store holds and has done."""
        with self.lock:
            traces = sum(primal.traces for primal in self.primals.values())
            return CacheInfo(
                self.hits,
                self.misses,
                traces + self.traces_before + self.opaque_traces,
                self.compiles,
                self.shared,
                len(self.entries),
                self.bytes(),
                self.evictions,
                tuple(self.reasons),
            )

    def clear_programs(self) -> None:
        """Drop the programs of operators; functions stay traced."""
        with self.lock:
            for table in (self.entries, self.evaluators, self.prints, self.families):
                table.clear()

    def clear(self) -> None:
        """Drop everything and count from zero."""
        with self.lock:
            for table in (
                *(self.entries, self.primals, self.families),
                *(self.evaluators, self.prints),
            ):
                table.clear()
            for table in self.others:
                table.clear()
            self.hits = self.misses = self.compiles = self.shared = 0
            self.evictions = self.traces_before = self.opaque_traces = 0
            self.reasons.clear()


STORE = Store()


def cache_info() -> CacheInfo:
    """Tell what the store of direct calls holds and has done.

    Returns:
        Hits, misses, traces, compiles, entries, bytes and the reasons of the last
        misses; it prints as a small table.

    Example:
        >>> hotk.clear_cache()
        >>> for scale in (jnp.ones(2), jnp.zeros(2)):
        ...     _ = hotk.gradient(lambda x: jnp.sum(scale * x**2), jnp.ones(2))
        >>> info = hotk.cache_info()
        >>> info.hits, info.misses, info.compiles
        (1, 1, 1)
    """
    return STORE.info()


def clear_cache() -> None:
    """Drop all programs of direct calls and count from zero.

    Operators prepared with `.prepare` hold their programs themselves and go on working.

    Example:
        >>> hotk.clear_cache()
        >>> hotk.cache_info().entries
        0
    """
    STORE.clear()
