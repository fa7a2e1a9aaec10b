"""`explain`: what a callable captures, and what a direct call of it does."""

import html
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._capture import (
    WRITES,
    Opaque,
    OpaqueReason,
    StaticArrays,
    Walk,
    captures,
    changes,
)
from hotk._core import Function, Point, function_name, html_table, text_table
from hotk._mode import (
    AUTO,
    AbstractMode,
    Forward,
    Reverse,
    reverse_first,
)

from ._call import Call
from ._direct import OPAQUE, Stages, call_slowly
from ._opaque import OpaqueCall, first_that_works, staged
from ._options import Definition, Options
from ._program import types_of
from ._small import find_small
from ._store import STORE, Key
from ._traced import find_program
from .warnings import is_known_to_write, place_of


_NOT_GIVEN: Any = object()
_AS_IT_IS = "read at each trace"
_HEAD = ("where", "what", "treated as")


class Explanation(NamedTuple):
    """What a callable captures: one row a thing.

    Attributes:
        name: The callable's name.
        rows: Where each thing was found, what it is, and how it is treated.
        opaque: Why the callable is opaque, or `None`; what `hotk.cache_info().reasons`
            says of its calls.
        changes: What differs from the callable it was compared with.
        place: Where the cause of that is.
        constant: Why some captured arrays are static by content, or `None`.
        certain: Whether a trace has shown all this: that of a call, or of `at=`.
    """

    name: str
    rows: tuple[tuple[str, str, str], ...]
    opaque: OpaqueReason | None
    changes: tuple[str, ...] = ()
    place: str = ""
    constant: str | None = None
    certain: bool = False

    def __str__(self) -> str:
        """Write the table and one sentence on what it means."""
        table = text_table(_HEAD, self.rows)
        return "\n".join((table, self._verdict(), *self.changes))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        table = html_table(_HEAD, self.rows)
        lines = map(html.escape, (self._verdict(), *self.changes))
        return table + "".join(f"<p>{line}</p>" for line in lines)

    def _verdict(self) -> str:
        if self.opaque is not None:
            why = f"{self.place}: {self.opaque}" if self.place else self.opaque
            return (
                f"`{self.name}` is opaque ({why}): it is traced at every call "
                "and compiled only when its program is new.\n"
                f"To make it fast: {self.opaque.cause.fix}."
            )
        arrays = sum(row[2] == "leaf" for row in self.rows)
        found = f"`{self.name}` has {arrays} captured array(s) as leaves; "
        if self.constant is not None:
            why = f"{self.place}: {self.constant}" if self.place else self.constant
            return (
                f"{found}some are static by content ({why}): it is traced again when "
                "that or another static thing changes."
            )
        found += "all else is static: it is traced again when a static thing changes."
        if not self.certain:
            found += " This is without a trace: `hotk.explain(f, at=x)` may find more."
        return found


def explain(
    f: Function,
    other: Function | None = None,
    *,
    at: Point = _NOT_GIVEN,
    args: tuple[PyTree, ...] = (),
    has_aux: bool = False,
) -> Explanation:
    """List what a function captures, and say whether a direct call of it recompiles.

    What is captured is listed without running anything. Some things only a trace finds:
    that the value of a captured array is needed, that NumPy computes with one, or that
    something is written. For a function that was called before, the last call shows
    them. For any other pass a point as `at`: the function is traced there, with its
    first derivative. It runs as in a call, and whatever it raises is raised. Nothing is
    compiled, and a later call finds the trace. Arguments that make a call opaque are
    found with `at` only. `hotk.cache_info` counts what was compiled, and the logger
    `hotk` of `logging` reports each compilation with its time at the level INFO.

    Args:
        f: Any callable.
        other: Another callable to compare with. What differs between the two is the
            reason why the second one is traced again.
        at: A point at which to trace `f`.
        args: Its further arguments there.
        has_aux: Whether `f` returns `(y, aux)`.

    Returns:
        An `Explanation`: a table that prints itself, in a terminal and in Jupyter. A
        `leaf` is an array whose values may change without a trace. A `static` thing is
        compared at each call, and a new value of it is traced once more. An `opaque`
        thing makes each call trace `f`.

    Raises:
        Exception: With `at`, what `f` raises, and what an operator raises for a
            function that returns no arrays.

    Example:
        >>> scale = jnp.ones(3)
        >>> table = hotk.explain(lambda x: jnp.sum(scale * x))
        >>> [row[2] for row in table.rows if "scale" in row[0]]
        ['leaf']
        >>> writes = lambda x, seen=[]: seen.append(1) or jnp.sum(x)
        >>> hotk.explain(writes, at=jnp.ones(3)).opaque
        'it changes an argument or what it captured'
    """
    rows, reason, place = captures(f)
    if at is not _NOT_GIVEN:
        stage, cause = _traced_at(_OPTIONS[bool(has_aux)], f, at, args)
        if stage == 0:  # another operator may have come to something else
            stage, cause = _remembered(f) or (stage, cause)
    elif reason is not None:
        stage, cause = OPAQUE, reason
    else:
        stage, cause = _remembered(f) or (None, OpaqueReason(""))
    if stage and cause != reason:
        place = place_of(f, cause)
    if stage == OPAQUE:
        rows = tuple((*row[:2], row[2].replace("leaf", _AS_IT_IS)) for row in rows)
    elif stage:
        rows = captures(f, StaticArrays(stage))[0]
    return Explanation(
        function_name(f),
        rows,
        cause if stage == OPAQUE else None,
        () if other is None else changes(f, other),
        place,
        cause if stage not in (None, 0, OPAQUE) else None,
        stage is not None,
    )


def _traced_at(
    options: Options, f: Function, x: Point, args: tuple[PyTree, ...]
) -> tuple[int, OpaqueReason]:
    """Take a call through its stages, and return the one that works and why."""
    reached: list[tuple[int, OpaqueReason]] = []

    def traced(call: Call) -> None:
        find_program(call, types_of(call.captured, call.inputs.arrays))

    def small(call: Call) -> None:
        find_small(call)
        reached.append((call.static_arrays, OpaqueReason("")))

    def opaque(
        options: Options,
        f: Function,
        x: Point,
        rest: tuple[PyTree, ...],
        reason: OpaqueReason,
    ) -> None:
        call = OpaqueCall(options, f, x, rest)
        call.trace()
        # A function that raises here is not known to be opaque, as after a call.
        first_that_works(call, lambda plan: staged(call, plan))
        reached.append((OPAQUE, reason))

    stages = Stages(traced, small, opaque)
    call_slowly(options, f, x, tuple(args), stages=stages)
    stage, reason = reached[0] if reached else (0, OpaqueReason(""))
    if stage and not reason:
        key = Call(
            options, f, x, tuple(args), static_arrays=StaticArrays.NONE
        ).store_key
        reason = STORE.entries[key].reason
    return stage, reason


def _remembered(f: Function) -> tuple[int, OpaqueReason] | None:
    """Return what the last call of a function came to, `None` if there was none."""
    walk = Walk()
    try:
        walk.visit(f)
    except (Opaque, RecursionError):
        return None
    mine = tuple(walk.key)
    known = [e for key, e in list(STORE.entries.items()) if _holds(key, mine)]
    known = [e for e in known if e.stage or e.specializations]
    if not known:
        return (OPAQUE, WRITES) if is_known_to_write(f) else None
    last = max(known, key=lambda entry: entry.used)
    return last.stage, last.reason


def _holds(key: Key, walked: Key) -> bool:
    """Whether the key of a call is that of this function, with any arguments."""
    count = len(walked)
    return any(key[i : i + count] == walked for i in range(len(key) - count, -1, -1))


def _formula(
    f: Function, x: Point, *, mode: AbstractMode = AUTO
) -> tuple[PyTree, PyTree]:
    """Take a first derivative of any function, in the mode that it has."""
    if isinstance(mode, Forward):
        _, derivative, aux = mode.along(f, x, jax.tree.map(jnp.ones_like, x))
        return derivative, aux
    y, pull, aux = jax.vjp(f, x, has_aux=True)
    return pull(jax.tree.map(jnp.ones_like, y))[0], aux


_DEFINITION = Definition(
    "explain",
    takes="",
    wants="inexact",
    formula=_formula,
    value=False,
    candidates=reverse_first,
    modes=(Forward, Reverse),
    sized=False,
    choice=None,
    curved=lambda order: False,
    static_arrays=StaticArrays.NONE,
)
_OPTIONS = [Options(_DEFINITION, AUTO, aux, False, None, None) for aux in (False, True)]
