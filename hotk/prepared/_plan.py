"""`Plan`: the modes to try for a call, and the traces that decide among them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from hotk.capture import StaticArrays, facts_of
from hotk.mode import AbstractMode, Auto, Facts

from ._call import Call
from ._flat import kinks


ASKED = "asked for"


class Fallback(Exception):
    """The function cannot be traced with tracers in place of its captured arrays."""


class Plan(NamedTuple):
    """A mode to try, the reason for it, and how many directions at once.

    With `adopt`, functions of `jax.custom_vjp` get the forward rule that they lack: the
    transpose of their reverse rule, or with `by_body` the derivative of their body.
    `kinks` are the places where a function bends that bends nowhere else.
    """

    mode: AbstractMode
    why: str
    block: int | None
    adopt: bool = False
    by_body: bool = False
    kinks: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name the mode, and whether a rule is derived."""
        how = "by their bodies" if self.by_body else "by transposing"
        return f"{self.mode}, forward rules {how}" if self.adopt else str(self.mode)


def plans(call: Call, closed: Any, y: Any) -> list[Plan]:
    """List the modes to try for a call, best first."""
    kind, options = call.options.kind, call.options
    facts, block = Facts.of(closed.jaxpr), options.block_size
    if isinstance(options.mode, Auto):
        found = kind.candidates(facts, call.sizes(y))
    else:
        found = [(options.mode, ASKED)]
    bent = kinks(closed.jaxpr) if kind.curved(options.order) else ()
    made = [Plan(mode, why, block, kinks=bent) for mode, why in found]
    if not facts.custom_vjps:
        return made
    # The body may have another derivative than the rule: it comes last.
    what = f"; the forward rule of the custom_vjp at {facts.custom_vjps[0]} is "
    how = what + "the transpose of its reverse rule"
    adopted = [plan._replace(why=plan.why + how, adopt=True) for plan in made]
    if not isinstance(options.mode, Auto):
        return [made[0], adopted[0]]
    how = what + "the derivative of its body"
    last = [
        plan._replace(why=plan.why + how, adopt=True, by_body=True) for plan in made
    ]
    return [made[0], adopted[0], *made[1:], *adopted[1:], *last]


def may_try(plan: Plan, failures: Iterable[Exception]) -> bool:
    """Whether a mode may be tried after others have failed.

    A rule that raises is at fault itself: no derivative of the body stands in for it.
    """
    return not (plan.by_body and any(map(raised_by_user, failures)))


def raised_by_user(error: Exception) -> bool:
    """Whether an error was raised by code of the user, and not by a library."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not facts_of(trace.tb_frame.f_code).library


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return text if len(text) <= 160 else text[:160].rsplit(" ", 1)[0] + " ..."


NEEDS = "it needs the value of a captured array"
HOST = "a host callback keeps what it captured"
NUMPY = "NumPy computes with an array that it captured"
# For each reason, which captured arrays to take as static in turn; in a direct call,
# which looks at their content each time, and in a `Prepared`, which holds them.
LEVELS = {
    NEEDS: (
        StaticArrays.INTEGERS,
        StaticArrays.SCALARS,
        StaticArrays.SMALL_NUMPY,
        StaticArrays.SMALL,
        StaticArrays.ALL_NUMPY,
        StaticArrays.ALL_NUMPY_AND_SMALL,
    ),
    NUMPY: (StaticArrays.SMALL_NUMPY, StaticArrays.SMALL, StaticArrays.ALL_NUMPY),
}
# Beyond this a function is traced at each call: a digest takes long, and what is
# computed from the arrays is kept with the program.
MOST_BYTES = 1 << 20
HELD_LEVELS = (
    StaticArrays.NONE,
    StaticArrays.ALL_NUMPY,
    StaticArrays.ALL_NUMPY_AND_SMALL,
)
OPAQUE = 1 + StaticArrays.ALL_NUMPY_AND_SMALL
