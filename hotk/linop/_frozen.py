"""A function that an operator keeps: split once, never changed, never opaque."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._capture import Closure, Opaque, Snapshot, Staged, survey
from hotk._core import (
    NEEDS_VALUE,
    Function,
    ModeError,
    Point,
    Vector,
    Where,
    differentiated,
    function_name,
    in_trace,
    map_free,
    message,
    note_list,
    nothing_inexact,
    selection,
    split_point,
)
from hotk._prepared import as_input
from hotk.rule import over_axis

from ._number_arrays import numbered
from ._splits import known, remember


class StaticParts:
    """The parts of a point and of further arguments that are not arrays.

    All are equal and have one hash: they are a static field of `WithStatics`, and two
    operators are told apart by the function beside them, which has them in its key or
    in its program. Compared by value they would need an `==` that works, which a part
    may lack; compared by identity each new operator would compile anew.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: PyTree) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        """Whether the other one is of this class."""
        return isinstance(other, StaticParts)

    def __hash__(self) -> int:
        """Return the one hash of all."""
        return hash(StaticParts)


@final
class WithStatics(eqx.Module):
    """A function of arrays, made of one whose arguments have other parts as well.

    Attributes:
        f: The function.
        statics: The parts that are not arrays, `None` in the place of an array; all
            `None` if the function is a program that has them.
        original: The parts as they were given, for `at` to compare with.
    """

    f: Function
    statics: PyTree
    original: StaticParts = eqx.field(static=True)

    @property
    def func(self) -> Function:
        """The function, by the name that `functools.partial` has for it.

        Messages find the name of the user's function by it.
        """
        return self.f

    def __call__(self, x: Point, *args: PyTree) -> PyTree:
        """Call the function with arrays and other parts put together."""
        x, args = eqx.combine((x, args), self.statics)
        return self.f(x, *args)


def _as_array(value: object) -> object:
    # NumPy arrays are copied: the user may write to one after the operator was made.
    # Numbers of Python become arrays, so that `at` with another one compiles nothing.
    # What JAX has no numbers for, such as an array of strings, stays what it is.
    array = None if isinstance(value, jax.Array) else as_input(value)
    return value if array is None else jnp.asarray(array)


def inputs_of(tree: PyTree) -> PyTree:
    """Return the arrays of a tree for one call of a program: NumPy's are copies."""
    return jax.tree.map(_as_given, tree)


def _as_given(value: object) -> object:
    if isinstance(value, jax.Array):
        return value
    array = as_input(value)
    is_numpy = array is None or isinstance(array, np.ndarray)
    return array if is_numpy else jnp.asarray(array)


def arrays_of(tree: PyTree) -> PyTree:
    """Return the arrays of a tree, NumPy's copied; `None` in place of other leaves."""
    return eqx.filter(jax.tree.map(_as_array, tree), _is_array)


def _is_array(leaf: object) -> bool:
    # An array that is still one of NumPy has what JAX has no numbers for; JAX would cut
    # integers beyond 32 bits (`test_integers_that_jax_has_no_room_for_are_not_cut`).
    return isinstance(leaf, jax.Array)


Selected: TypeAlias = tuple[bool, ...] | None
"""For each array of a point whether it is differentiated, if a filter was given."""


AxisName: TypeAlias = str | Sequence[str] | None
"""The axes of a mesh over which a function is a mean, if it is one."""


_KEEPS_TYPES: ContextVar[bool] = ContextVar("keeps_types", default=True)


@contextlib.contextmanager
def other_types() -> Iterator[None]:
    """Keep functions that are frozen within for arguments of other shapes as well.

    The batches of data differ in length, and a program is one for its shapes. So the
    function itself is kept; `with_numbers` makes a program for those of one length.
    """
    token = _KEEPS_TYPES.set(False)
    try:
        yield
    finally:
        _KEEPS_TYPES.reset(token)


def freeze(
    call: str,
    f: Function,
    x: Point,
    args: tuple[PyTree, ...],
    where: Where,
    axis_name: AxisName = None,
) -> tuple[Closure, Point, tuple[PyTree, ...], Selected]:
    """Split a function and its arguments into modules whose leaves are arrays.

    What the user changes afterwards does not reach the operator.

    Args:
        call: The call, for messages.
        f: The function.
        x: The point.
        args: The further arguments.
        where: Which leaves of the point are differentiated.
        axis_name: The axes over which the function is a mean.

    Returns:
        The function as a closure, the point, and the further arguments, with `None` in
        the places of parts that cannot change: those belong to the closure. Then for
        each array of the point whether the filter selects it.

    Raises:
        DtypeError: If nothing in the point is differentiated.
    """
    if axis_name is not None:
        f = over_axis(f, axis_name)
    keeps_types = _KEEPS_TYPES.get()
    split = known(f, x, args) if where is None and keeps_types else None
    if split is not None:
        return *split, None
    chosen = selection(call, x, where)
    if not any(differentiated(*jax.tree.flatten(x), chosen)):
        raise nothing_inexact(call, x, selected=chosen)
    closure, arrays, rest = _freeze(f, x, args, chosen)
    if keeps_types and not in_trace():
        held = lambda program: _with_parts_of(closure, program)
        shared = None
        if axis_name is None:
            shared = numbered(f, closure, (arrays, *rest), held)
        if chosen is None:
            remember(f, x, args, closure, shared)
        if shared is not None:
            closure = shared.joined(closure.leaves)
    selected: Selected = None
    if chosen is not None:
        parts = jax.tree.structure(x).flatten_up_to(arrays)
        pairs = zip(chosen, parts, strict=True)
        selected = tuple(yes for yes, part in pairs if part is not None)
    return closure, arrays, rest, selected


def with_numbers(closure: Closure, arguments: PyTree) -> Closure:
    """Return a closure as a program for one call, with captured numbers as arrays.

    Args:
        closure: A frozen function.
        arguments: A tuple of its arguments, whose leaves are arrays.

    Returns:
        The same closure if there is none yet that differs from it in numbers.
    """
    if closure.skeleton.opaque is not None or in_trace():
        return closure
    held = lambda program: _with_parts_of(closure, program)
    f = closure.skeleton.function(closure.leaves)
    shared = numbered(f, closure, arguments, held)
    return closure if shared is None else shared.joined(closure.leaves)


def moving(x: Point, selected: Selected) -> Vector:
    """Return the differentiated part of the arrays of a point, `None` elsewhere."""
    arrays, treedef = jax.tree.flatten(x)
    flags = [True] * len(arrays) if selected is None else selected
    return treedef.unflatten(
        a if yes and eqx.is_inexact_array(a) else None
        for a, yes in zip(arrays, flags, strict=True)
    )


def _freeze(
    f: Function, x: Point, args: tuple[PyTree, ...], selected: Selected
) -> tuple[Closure, Point, tuple[PyTree, ...]]:
    """Split a function and its arguments into modules whose leaves are arrays.

    A function that is opaque is traced to its program. If Python needs the value of an
    array besides the point, to branch by it or to count up to it, the arrays are part
    of the program.
    """
    whole = (map_free(_as_array, x), jax.tree.map(_as_array, args))
    arrays, statics = eqx.partition(whole, _is_array)
    try:
        return (_as_closure(f, arrays, statics), *arrays)
    except Exception:
        # Python may need the value of an array (`tests/linop/test_frozen.py`, NEEDS):
        # then only the differentiated leaves of the point may be tracers. If that is
        # not why, the same error comes again below.
        moved, held = split_point(whole[0], selected)
        nothing = jax.tree.map(lambda a: None, whole[1])
        given = (nothing, whole[1])
        if not _KEEPS_TYPES.get():  # each batch has its own
            given = (arrays[1], statics[1])
        arrays, statics = (moved, given[0]), (held, given[1])
    try:
        return (Closure.of(_as_program(f, arrays, statics)), *arrays)
    except NEEDS_VALUE as error:
        if in_trace():  # the value asked for may be that of a tracer of an outer trace
            raise
        raise _needs_point(f, error) from error


def _as_closure(f: Function, arrays: PyTree, statics: PyTree) -> Closure:
    """Return a function of arrays as a closure, by its program if it is opaque."""
    has_statics = jax.tree.leaves(statics)
    of_arrays = WithStatics(f, statics, StaticParts(statics)) if has_statics else f
    closure = Closure.of(of_arrays)
    if closure.skeleton.opaque is None:
        try:
            _call.eval_shape(closure, *arrays)
            return closure
        except Opaque:  # it cannot be rebuilt, or writes to what it captured
            pass
    return Closure.of(_as_program(f, arrays, statics))


# Traced where the operator is made, so that a function that cannot be kept as a closure
# is found now, and not at its first product. JAX keeps the trace by the skeleton, so a
# fresh lambda over new data costs none: see
# `test_making_an_operator_of_known_code_traces_nothing`.
@jax.jit
def _call(closure: Closure, x: Point, args: tuple[PyTree, ...]) -> PyTree:
    """Call a function, and see that it writes to nothing that it captured."""
    f = closure.skeleton.function(closure.leaves)
    snapshot = Snapshot(*survey(f), ())
    try:
        result = f(x, *args)
    finally:
        reason = snapshot.restore()
    if reason is not None:
        raise Opaque(reason)
    return result


def _as_program(f: Function, arrays: PyTree, statics: PyTree) -> WithStatics:
    """Trace a function now, with the parts that cannot change."""

    def run(arrays: PyTree) -> PyTree:
        x, args = eqx.combine(arrays, statics)
        try:
            return f(x, *args)
        except Exception as error:
            note_list(error, x)
            raise

    program = Staged.of(run, arrays)
    without = jax.tree.map(lambda part: None, statics)
    return WithStatics(program, without, StaticParts(statics))


def _with_parts_of(closure: Closure, program: Function) -> Function:
    """Return a program of a closure with the parts of its arguments, for `at`."""
    template = closure.skeleton.template
    if not isinstance(template, WithStatics):
        return program
    without = jax.tree.map(lambda part: None, template.statics)
    return WithStatics(program, without, template.original)


def _needs_point(f: Function, error: Exception) -> ModeError:
    of = "the point" if _KEEPS_TYPES.get() else "the point, or of a batch"
    return ModeError(
        message(
            "HessianOperator(f, x)",
            f"`{function_name(f)}` needs the value of {of}.",
            expected="operations of `jax.numpy` on what depends on `x`",
            got=str(error).strip().splitlines()[0],
            fix="Use `jnp.where` or `jax.lax.cond` for `if`, `jnp` for `np`, and keep "
            "`float(x)`, `int(x)` and `x.item()` outside.",
        )
    )
