"""Arrays whose content an operator needs, as indices decide the structure of a result.

Captured floating arrays are leaves. Where indices are computed from them, as by
`jnp.interp`, an operator asks for the content of those, and of no others: the call
starts again with these static by content.
"""

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hotk._core import Leaf, Tracer

from ._call import Call
from ._plan import Fallback
from .warnings import NEEDS_CONTENT


class ContentNeeded(Fallback):
    """The content of some arrays decides the structure of a result.

    Attributes:
        chosen: Their `id`s, as the user holds them.
    """

    def __init__(self, chosen: frozenset[int]) -> None:
        super().__init__(NEEDS_CONTENT)
        self.chosen = chosen


class _Given(NamedTuple):
    """What a trace of an operator is given, and what it stands for."""

    tracers: Sequence[Leaf]
    originals: Sequence[object]


_GIVEN: contextvars.ContextVar[_Given | None] = contextvars.ContextVar(
    "given", default=None
)


@contextlib.contextmanager
def given(
    call: Call, captured: Sequence[Leaf], arrays: Sequence[Leaf]
) -> Iterator[None]:
    """Let an operator ask for content while it is traced.

    Args:
        call: The call.
        captured: What stands for the captured arrays.
        arrays: What stands for those of the arguments.
    """
    leaves = (a for i, a in enumerate(call.leaves) if i not in call.inputs.statics)
    token = _GIVEN.set(_Given((*captured, *arrays), (*call.originals, *leaves)))
    try:
        yield
    finally:
        _GIVEN.reset(token)


def ask_for_content(tracers: Sequence[Tracer]) -> None:
    """Start again with some arrays static by content, if these stand for arrays.

    Args:
        tracers: What stands for them in the trace of an operator.

    Raises:
        ContentNeeded: Unless one of them is a tracer of the user's.
    """
    now = _GIVEN.get()
    if now is None or not tracers:
        return
    known = {id(t): a for t, a in zip(now.tracers, now.originals, strict=True)}
    found = [known.get(id(t)) for t in tracers]
    if not any(a is None or isinstance(a, Tracer) for a in found):
        raise ContentNeeded(frozenset(map(id, found)))
