"""What happens, stage by stage, when a call does not find its program at once."""

from collections.abc import Callable
from typing import NamedTuple

from jaxtyping import PyTree

from hotk._capture import (
    CHANGED,
    KEEPS,
    Closure,
    Opaque,
    OpaqueReason,
    StaticArrays,
    Walk,
    is_static,
)
from hotk._core import (
    Function,
    ModeError,
    Point,
    Tracer,
    function_name,
    function_place,
    hides_frames,
    in_trace,
)

from ._call import Call
from ._checks import check_callable, note_deleted
from ._contents import ContentNeeded
from ._opaque import call_opaque, rule_fix
from ._options import Options
from ._plan import Fallback
from ._small import call_small
from ._store import STORE
from ._traced import call_traced
from .warnings import NEEDS_CONTENT, NUMPY_COMPUTES, note_line


# For each reason, which captured arrays to take as static in turn; in a direct call,
# which looks at their content each time, and in a `Prepared`, which holds them.
LEVELS = {
    NEEDS_CONTENT: (
        StaticArrays.INTEGERS,
        StaticArrays.SCALARS,
        StaticArrays.SMALL_NUMPY,
        StaticArrays.SMALL,
        StaticArrays.ALL_NUMPY,
        StaticArrays.ALL_NUMPY_AND_SMALL,
    ),
    NUMPY_COMPUTES: (
        StaticArrays.SMALL_NUMPY,
        StaticArrays.SMALL,
        StaticArrays.ALL_NUMPY,
    ),
}
# Beyond this a function is traced at each call: a digest takes long, and what is
# computed from the arrays is kept with the program.
MOST_BYTES = 1 << 20
HELD_LEVELS = (
    StaticArrays.NONE,
    StaticArrays.ALL_NUMPY,
    StaticArrays.ALL_NUMPY_AND_SMALL,
)
OPAQUE = 1 + max(StaticArrays)


class Stages(NamedTuple):
    """What to do in each stage.

    Attributes:
        traced: Captured arrays are tracers.
        small: Some are static by content.
        opaque: The function is run as it is.
    """

    traced: Callable[[Call], PyTree]
    small: Callable[[Call], PyTree]
    opaque: Callable[
        [Options, Function, Point, tuple[PyTree, ...], OpaqueReason], PyTree
    ]


RUN = Stages(call_traced, call_small, call_opaque)


@hides_frames
def call_slowly(
    options: Options,
    f: Function,
    x: Point,
    rest: tuple[PyTree, ...],
    walk: Walk | None = None,
    stages: Stages = RUN,
) -> PyTree:
    """Find or make the program of a call, and run it.

    Captured arrays are tracers, stage 0; or small ones are static by content, which
    ones is the stage; or the function is opaque. A stage that fails is not tried again
    once a later one worked.

    Args:
        options: The operator.
        f: The function.
        x: The point.
        rest: What follows it.
        walk: A walk through the function that was made for this call, if there was one.
        stages: What to do in each stage; `explain` does not run what it finds.
    """
    try:
        return _by_stages(options, f, x, rest, walk, stages)
    except RuntimeError as error:
        note_deleted(error, options.definition, x, rest, Closure.of(f).leaves)
        raise
    except TypeError as error:
        # Of a rule that was transposed only the compiler sees what it keeps.
        if "No constant handler" not in str(error):
            raise
        raise ModeError(
            f"`{options.definition.call()}`: `{function_name(f)}`{function_place(f)} "
            f"cannot be compiled. {rule_fix('')}"
        ) from error


def _by_stages(
    options: Options,
    f: Function,
    x: Point,
    rest: tuple[PyTree, ...],
    walk: Walk | None,
    stages: Stages,
) -> PyTree:
    check_callable(options.definition.call(), f)
    call, why = None, KEEPS
    try:
        call = Call(options, f, x, rest, static_arrays=StaticArrays.NONE, walk=walk)
        # Of a trace that has ended: JAX may have kept the program that it is in.
        if not in_trace() and any(isinstance(a, Tracer) for a in call.captured):
            call = None
    except Opaque as opaque:
        why = opaque.reason
    if call is None:  # outside of the handler: no error of the user's comes from here
        return stages.opaque(options, f, x, rest, why)
    entry = STORE.entries.get(call.store_key)
    stage = before = 0 if entry is None else entry.stage
    reason = OpaqueReason("") if entry is None else entry.reason
    if entry is not None:
        entry.used = STORE.clock()
    always = options.definition.static_arrays
    moving = (*call.captured, *call.inputs.arrays)
    decided = any(is_static(a, always) for a in moving) if always else False
    if stage == 0 or (stage != OPAQUE and decided):
        done, result = _traced(call, stages.traced, decided)
        if done:
            return result
        stage, reason = OPAQUE if decided else stage, result
    levels = LEVELS.get(reason, ())
    if stage:
        levels = levels[levels.index(stage) :] if stage in levels else ()
    for level in levels:
        # Without such an array this level would trace the same program once more.
        sizes = [getattr(a, "nbytes", 0) for a in moving if is_static(a, level)]
        if not (sizes or call.pinned) or sum(sizes) > MOST_BYTES:
            continue
        done, result = _try(
            stages.small, Call(options, f, x, rest, static_arrays=level)
        )
        if done:
            if stage != level:
                STORE.entry(call.store_key).postpone(level, reason)
            return result
    result = stages.opaque(options, f, x, rest, reason)
    # What another thread did is true of this call only.
    if before != OPAQUE and reason != CHANGED:
        STORE.entry(call.store_key).postpone(OPAQUE, reason)
    return result


def _traced(
    call: Call, run: Callable[[Call], PyTree], decided: bool
) -> tuple[bool, PyTree]:
    """Run a call whose captured arrays are tracers, but those that decide a structure.

    Args:
        call: The call, without any that are static by content.
        run: Runs it.
        decided: Whether it has some that always are.
    """
    entry = STORE.entries.get(call.store_key)
    numbers = set(() if entry is None else entry.chosen)
    whole = (*call.originals, *call.leaves)
    while True:
        here = call
        if decided or numbers:
            here = Call(
                call.options,
                call.f,
                call.x,
                call.rest,
                static_arrays=call.options.definition.static_arrays,
                chosen=frozenset(id(whole[i]) for i in numbers),
            )
        try:
            return _try(run, here)
        except ContentNeeded as needed:
            more = {i for i, a in enumerate(whole) if id(a) in needed.chosen}
            if more <= numbers:
                return False, needed.reason
            numbers |= more
            STORE.entry(call.store_key).chosen = tuple(sorted(numbers))


def _try(run: Callable[[Call], PyTree], call: Call) -> tuple[bool, PyTree]:
    """Run a call, or return why it cannot be traced this way."""
    try:
        return True, run(call)
    except ContentNeeded:
        raise
    except Fallback as fallback:
        note_line(call.f, fallback)
        return False, fallback.reason
