"""The one bounded store behind direct calls."""

import contextlib
import itertools
import operator
import threading
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar

from hotk._capture import OpaqueReason

from ._family import Bound, Family
from ._info import CacheInfo
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


class Specialization:
    """An operator of a function at one signature.

    Attributes:
        program: The program of the function itself.
        runner: What runs a call: that program, or one that is shared with others.
        shared: Whether the runner is another function's program: to be run, and not to
            be differentiated.
        used: When it was used last, by the clock of the store.
    """

    __slots__ = ("program", "runner", "shared", "used")

    def __init__(self) -> None:
        self.program: Program | None = None
        self.runner: Runner | None = None
        self.shared = False
        self.used = 0


class Entry:
    """What is known under one key: a program for each signature, or how to go on.

    Attributes:
        only: What runs a call, while one signature is known: a direct call takes it
            without asking for types, which JAX compares in C++.
        specializations: What is known of each signature, by types and settings.
        stage: The stage that works: 0 until one has failed.
        reason: Why the ones before do not.
        chosen: The numbers of floating arrays whose content is needed, among those that
            were captured and the leaves of the arguments.
        used: When it was looked up last, by the clock of the store.
    """

    __slots__ = ("chosen", "only", "reason", "specializations", "stage", "used")

    def __init__(self) -> None:
        self.only: Specialization | None = None
        self.specializations: dict[Signed, Specialization] = {}
        self.stage = 0
        self.reason = OpaqueReason("")
        self.chosen: tuple[int, ...] = ()
        self.used = 0

    def postpone(self, stage: int, reason: OpaqueReason) -> None:
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


class Store:
    """Programs by key and signature, the least recently used dropped first.

    Reading takes no lock; what is written is written under one, and no code of the
    user runs while it is held.
    """

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.primals: dict[Hashable, Primal] = {}
        self.families: dict[Hashable, Family] = {}
        self.others: list[Clearable] = []  # tables of floors above, cleared with these
        self.lock = threading.Lock()
        self.clock = itertools.count(1).__next__
        self.hits = self.misses = self.compiles = self.shared = self.evictions = 0
        self.traces = 0
        self.reasons: deque[str] = deque(maxlen=32)
        self.max_entries = _MAX_ENTRIES
        self.max_bytes = _MAX_BYTES
        self.most_entries = self.most_bytes = 0  # there are no more than these

    def entry(self, key: Key) -> Entry:
        """Return the entry of a key, a new one if there is none."""
        with self.lock:
            entry = self.entries.setdefault(key, new := Entry())
            entry.used = self.clock()  # before `_grown`, which drops the oldest
        if entry is new:
            self._grown()
        return entry

    def known(self, key: Key, signed: Signed) -> Specialization | None:
        """Return what is known of a signature, which counts as a use of it."""
        entry = self.entries.get(key)
        found = None if entry is None else entry.specializations.get(signed)
        if found is not None:
            found.used = self.clock()
        return found

    def add(
        self,
        key: Key,
        signed: Signed,
        *,
        program: Program | None = None,
        runner: Runner | None = None,
    ) -> Specialization:
        """Add what is known of a signature; of two programs the first one stays."""
        with self.lock:
            entry = self.entries.setdefault(key, Entry())
            found = entry.specializations.setdefault(signed, Specialization())
            before = found.runner, found.program
            entry.used = found.used = self.clock()
            found.program = found.program or program
            if runner is not None:
                found.shared = runner is not found.program
                found.runner = runner
            each = entry.specializations.values()
            running = [one for one in each if one.runner is not None]
            entry.only = running[0] if len(running) == 1 else None
        if found.runner is not before[0] or found.program is not before[1]:
            self._grown(_BYTES_A_PROGRAM + _constant_bytes(found))
        return found

    def primal(self, key: Hashable) -> Primal | None:
        """Return the function that was traced under a key."""
        primal = self.primals.get(key)
        if primal is not None:
            primal.used = self.clock()
        return primal

    def keep(self, primal: Primal) -> Primal:
        """Keep a function that was traced; of two the first one stays."""
        with self.lock:
            primal = self.primals.setdefault(primal.key, primal)
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

    def forget(self, primal: Primal) -> None:
        """Drop a function whose program holds arrays of a class, or a tracer."""
        with self.lock:
            if self.primals.get(primal.key) is primal:
                del self.primals[primal.key]

    def compiled(self) -> None:
        """Count a compilation."""
        with self.lock:
            self.compiles += 1

    def missed(self, reason: str) -> None:
        """Count a miss and keep its reason."""
        self.misses += 1
        self.reasons.append(reason)

    def _grown(self, more: int = 0) -> None:
        """Drop what was used longest ago if the bounds do not hold any more.

        A signature counts as a whole function does: one function of arrays of many
        shapes has as many programs as many functions have. Looking at all of them takes
        longer than a call, so what is added is counted, and more than needed dropped.
        """
        entries, size = (n - n // 16 for n in (self.max_entries, self.max_bytes))
        dropped: list[object] = []  # let go of without the lock: it may hold the user's
        with self.lock:
            self.most_entries += 1
            self.most_bytes += more
            few = self.most_entries <= self.max_entries
            if few and self.most_bytes <= self.max_bytes:
                return
            ages = sorted(self._ages(), key=operator.itemgetter(0), reverse=True)
            while len(ages) > 1 and (len(ages) > entries or self.bytes() > size):
                _, table, key = ages.pop()
                if table is not self.entries and len(table) == 1:
                    continue  # the last one goes with its entry, at another time
                dropped.append(oldest := table.pop(key))
                self.evictions += 1
                if isinstance(oldest, Specialization):
                    oldest.runner = None  # `only` of its entry runs it no more
            self.most_entries, self.most_bytes = len([*self._ages()]), self.bytes()

    def _ages(self) -> Iterator[tuple[int, dict[Any, Any], Hashable]]:
        """Return when each thing that holds a program was used, and where it stands."""
        for key, entry in self.entries.items():
            each = entry.specializations
            used = max([entry.used, *(one.used for one in each.values())])
            if len(each) > 1:
                yield from ((one.used, each, signed) for signed, one in each.items())
            else:
                yield used, self.entries, key

    def _drop(self, table: dict[_K, _D]) -> None:
        # Linear in the table, but only when it is full; a direct call writes a number.
        oldest = min(table, key=lambda key: table[key].used)
        del table[oldest]
        self.evictions += 1

    def bytes(self) -> int:
        """Estimate the memory of all compiled programs and of what they hold."""
        constants = sum(map(_constant_bytes, self._specializations()))
        return len(self._programs()) * _BYTES_A_PROGRAM + constants

    def _specializations(self) -> list[Specialization]:
        entries = self.entries.values()
        return [one for entry in entries for one in entry.specializations.values()]

    def _programs(self) -> set[int]:
        """Return the identities of the programs that entries hold, each once."""
        every = self._specializations()
        runners = [getattr(one.runner, "program", one.runner) for one in every]
        held = [*runners, *(one.program for one in every)]
        return {id(program) for program in held if program is not None}

    def info(self) -> CacheInfo:
        """Say what the store holds and has done."""
        with self.lock:
            return CacheInfo(
                self.hits,
                self.misses,
                self.traces,
                self.compiles,
                self.shared,
                sum(len(e.specializations) or 1 for e in self.entries.values()),
                self.bytes(),
                self.evictions,
                tuple(self.reasons),
            )

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Keep and count nothing of what is done meanwhile."""
        counted = ("hits", "misses", "traces", "compiles", "shared", "evictions")
        numbers = {name: getattr(self, name) for name in counted}
        tables: Any = (self.entries, self.primals, self.families)
        before, reasons = [dict(table) for table in tables], list(self.reasons)
        try:
            yield
        finally:
            with self.lock:
                vars(self).update(numbers)
                for table, known in zip(tables, before, strict=True):
                    for key in [key for key in table if key not in known]:
                        del table[key]
                self.reasons.clear()
                self.reasons.extend(reasons)

    def clear_programs(self) -> None:
        """Drop the programs of operators; functions stay traced."""
        with self.lock:
            self.entries.clear()
            self.families.clear()

    def clear(self) -> None:
        """Drop everything and count from zero."""
        with self.lock:
            for table in (self.entries, self.primals, self.families, *self.others):
                table.clear()
            clear_notes()
            self.hits = self.misses = self.compiles = self.shared = 0
            self.evictions = self.traces = 0
            self.most_entries = self.most_bytes = 0
            self.reasons.clear()


def _constant_bytes(one: Specialization) -> int:
    extra = one.runner.extra if isinstance(one.runner, Bound) else ()
    return sum(getattr(array, "nbytes", 0) for array in extra)


STORE = Store()


def cache_info() -> CacheInfo:
    """Return the statistics of the cache of direct calls.

    A direct call such as `hotk.hvp(f, x, v)` finds its compiled program by the code of
    `f` and by what it captures besides arrays. Use this to see whether a loop
    recompiles, and why. It counts from the start of the process or from the last
    `hotk.clear_cache()`. The logger `hotk` of `logging` reports each compilation with
    its time at the level INFO, and `hotk.explain` what a function captures.

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
