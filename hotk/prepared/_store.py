"""The one bounded store behind direct calls."""

import contextlib
import html
import itertools
import threading
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar
from weakref import WeakValueDictionary

from hotk._core import bytes_name, html_table, text_table

from ._evaluator import Evaluator
from ._family import Bound, Family
from ._program import Primal, Program, Runner, Types
from .warnings import clear_notes


_MAX_ENTRIES = 512
_MAX_BYTES = 1 << 30
# XLA does not say how much memory a compiled program takes on the host: an estimate.
_BYTES_A_PROGRAM = 1 << 20


Key: TypeAlias = tuple[Hashable, ...]
"""What a direct call is looked up by; it begins with its options."""
Signed: TypeAlias = tuple[Types, Hashable]
"""Types of what goes in, and the settings of JAX that a trace depends on."""


class Entry:
    """What is known under one key: programs by signature, or how to go on.

    Attributes:
        only: What runs a call, while one signature is known: a direct call takes it
            without asking for types, which JAX compares in C++.
        runners: What runs a call, by types and settings.
        by_content: The same where some captured arrays are static by content.
        programs: The programs of the function itself, by types and settings.
        shared: Whether `only` is another function's program: to be run, and not to be
            differentiated.
        stage: The stage that works: 0 until one has failed.
        reason: Why the ones before do not.
        used: When it was used last, by the clock of the store.
    """

    __slots__ = (
        "by_content",
        "only",
        "programs",
        "reason",
        "runners",
        "shared",
        "stage",
        "used",
    )

    def __init__(self) -> None:
        self.only: Runner | None = None
        self.programs: dict[Signed, Program] = {}
        self.runners: dict[Signed, Runner] = {}
        self.by_content: dict[Signed, Runner] = {}
        self.shared = False
        self.stage = 0
        self.reason = ""
        self.used = 0

    def postpone(self, stage: int, reason: str) -> None:
        """Remember that only a later stage works, and why."""
        self.stage = stage
        self.reason = reason


class Clearable(Protocol):
    """A table of another floor that is emptied together with the store."""

    def clear(self) -> object:
        """Drop everything."""
        ...


class Dated(Protocol):
    """Something that knows when it was used last."""

    used: int


_K = TypeVar("_K", bound=Hashable)
_D = TypeVar("_D", bound=Dated)


class CacheInfo(NamedTuple):
    """What the store holds and has done since it was cleared.

    Attributes:
        hits: Direct calls that found their program by the key alone.
        misses: Direct calls that did not: a new structure, signature or setting of JAX,
            or an opaque function.
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
        self.entries: dict[Key, Entry] = {}
        self.primals: dict[Hashable, Primal] = {}
        self.evaluators: dict[Hashable, Evaluator] = {}
        self.families: dict[Hashable, Family] = {}
        # By what they compute; they live as long as an entry has them.
        self.prints: WeakValueDictionary[Hashable, Program] = WeakValueDictionary()
        self.others: list[Clearable] = []  # tables of floors above, cleared with these
        self.lock = threading.Lock()
        self.clock = itertools.count(1).__next__
        self.hits = self.misses = self.compiles = self.shared = self.evictions = 0
        self.traces_before = self.opaque_traces = 0
        self.reasons: deque[str] = deque(maxlen=32)
        self.max_entries = _MAX_ENTRIES
        self.max_bytes = _MAX_BYTES

    def entry(self, key: Key) -> Entry:
        """Return the entry of a key, a new one if there is none."""
        with self.lock:
            entry = self.entries.setdefault(key, Entry())
            entry.used = self.clock()  # before `trim`, which drops the oldest
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

    def evaluator(self, key: Hashable, new: Evaluator) -> Evaluator:
        """Return the evaluator with this key, which is `new` if there was none."""
        with self.lock:
            found = self.evaluators.setdefault(key, new)
            found.used = self.clock()
            if found is new:
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

    def _drop(self, table: dict[_K, _D]) -> None:
        # Linear in the table, but only when it is full; a direct call writes a number.
        oldest = min(table, key=lambda key: table[key].used)
        dropped = table.pop(oldest)
        self.evictions += 1
        if isinstance(dropped, Primal):
            self.traces_before += dropped.traces

    def bytes(self) -> int:
        """Estimate the memory of all compiled programs and of what they hold."""
        programs = len(self._programs()) + len(self.evaluators)
        constants = sum(
            getattr(array, "nbytes", 0)
            for entry in self.entries.values()
            for runner in entry.by_content.values()
            for array in (runner.extra if isinstance(runner, Bound) else ())
        )
        return programs * _BYTES_A_PROGRAM + constants

    def _programs(self) -> set[int]:
        """Return the identities of the programs that entries hold, each once."""
        identities: set[int] = set()
        for entry in self.entries.values():
            identities.update(map(id, entry.programs.values()))
            both = (*entry.runners.values(), *entry.by_content.values())
            identities.update(id(getattr(runner, "program", runner)) for runner in both)
        return identities

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

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Keep and count nothing of what is done meanwhile."""
        counted = ("hits", "misses", "compiles", "shared", "evictions")
        counted = (*counted, "traces_before", "opaque_traces")
        numbers = {name: getattr(self, name) for name in counted}
        tables: Any = (self.entries, self.primals, self.evaluators, self.families)
        before, reasons = [dict(table) for table in tables], list(self.reasons)
        traces = {primal: primal.traces for primal in self.primals.values()}
        try:
            yield
        finally:
            with self.lock:
                vars(self).update(numbers)
                for table, known in zip(tables, before, strict=True):
                    for key in [key for key in table if key not in known]:
                        del table[key]
                for primal, count in traces.items():
                    primal.traces = count
                self.reasons.clear()
                self.reasons.extend(reasons)

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
            clear_notes()
            self.hits = self.misses = self.compiles = self.shared = 0
            self.evictions = self.traces_before = self.opaque_traces = 0
            self.reasons.clear()


STORE = Store()


def cache_info() -> CacheInfo:
    """Return the statistics of the cache of direct calls.

    A direct call such as `hotk.hvp(f, x, v)` finds its compiled program by the code of
    `f` and by what it captures besides arrays. Use this to see whether a loop
    recompiles, and why. It counts from the start of the process or from the last
    `hotk.clear_cache()`.

    Returns:
        A `NamedTuple` of `hits`, `misses`, `traces`, `compiles`, `shared`, `entries`,
        `bytes`, `evictions` and `reasons`, the reasons of the last 32 misses. It prints
        as a small table.

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
    """Empty the cache of direct calls and count from zero.

    The next direct call of each function traces and compiles again. Operators prepared
    with `.prepare` hold their programs themselves and keep working. The caches of JAX
    are not emptied; that is `jax.clear_caches()`.

    Example:
        >>> hotk.clear_cache()
        >>> hotk.cache_info().entries
        0
    """
    STORE.clear()
