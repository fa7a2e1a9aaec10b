"""`prepare`: from a function and a signature to a `Prepared`."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._capture import (
    Closure,
    Opaque,
    OpaqueReason,
    Signature,
    Skeleton,
    StaticArrays,
    Walk,
    chosen_of,
    dict_orders,
    in_orders,
    sharding_of,
)
from hotk._core import (
    Function,
    Leaf,
    Point,
    PreparationError,
    Tangent,
    Tracer,
    describe_tree,
    function_name,
    hides_frames,
    in_trace,
    is_inexact,
    message,
)

from ._call import Call
from ._checks import check_callable
from ._contents import ContentNeeded
from ._direct import HELD_LEVELS
from ._inputs import as_input
from ._mismatch import StaticLeaves
from ._opaque import OpaqueCall, first_that_works
from ._options import Options
from ._plan import Fallback, Plan
from ._prepared import Prepared
from ._program import Program, types_of
from ._store import STORE
from ._traced import find_program
from ._watch import WATCH, FirstResult


_SHAPE = jax.ShapeDtypeStruct
_ANSWERS = ("raise", "retrace", "cast")


@hides_frames
def prepare(
    operator: Callable[..., PyTree],
    options: Options,
    f: Function,
    x: Point,
    rest: tuple[PyTree, ...],
    on_mismatch: str,
) -> Prepared:
    """Make the `Prepared` of an operator; see `Operator.prepare`."""
    if on_mismatch not in _ANSWERS:
        raise ValueError(
            message(
                f"{options.definition.name}.prepare(...)",
                "`on_mismatch` is not one of the three.",
                expected=" or ".join(map(repr, _ANSWERS)),
                got=repr(on_mismatch),
                fix="Leave it out: then a call with another signature is an error.",
            )
        )
    check_callable(options.definition.call(), f)
    if any(map(_is_symbolic, jax.tree.leaves((x, rest)))):
        return _prepare_symbolic(operator, options, f, x, rest, on_mismatch)
    typed = _typed_direction(options, x, rest)
    x, rest = in_orders(jax.tree.map(_as_jax, typed), dict_orders(typed))
    closure, call, program = _find_or_make(options, f, x, rest)
    # with those of functions among the further arguments, which come first
    opaque = closure.skeleton.opaque is not None
    captured = list(closure.leaves if opaque else call.captured)
    ahead = 0 if len(captured) == len(closure.leaves) else len(_arrays_ahead(call))
    arrays = call.inputs.arrays
    traced = in_trace() or any(isinstance(a, Tracer) for a in (*captured, *arrays))
    if not traced and program.compile(f):
        STORE.compiled()
    roots = options.definition.roots(1 + len(rest))
    made = Prepared(
        tuple(captured),
        closure.skeleton,
        program,
        Signature.of((x, *rest), roots),
        StaticLeaves.of(call.inputs.statics),
        operator,
        on_mismatch,
        ahead,
    )
    if WATCH.by is not None:
        program.held = FirstResult(made)
    return made


def prepare_again(prepared: Prepared, arguments: tuple[PyTree, ...]) -> Prepared:
    """Prepare the same operator of the same function for other arguments."""
    f = prepared.closure
    x, *rest = arguments
    options, answer = prepared.program.options, prepared.on_mismatch
    return prepare(prepared.operator, options, f, x, tuple(rest), answer)


def _prepare_symbolic(
    operator: Callable[..., PyTree],
    options: Options,
    f: Function,
    x: Point,
    rest: tuple[PyTree, ...],
    on_mismatch: str,
) -> Prepared:
    """Make the `Prepared` for shapes with symbolic sizes, of which no array exists.

    Tracers of these shapes stand for arrays, as in a `prepare` inside of `jax.jit`.
    """
    if options.definition.static_arrays is StaticArrays.ALL_INTEGERS:
        raise PreparationError(
            message(
                f"{options.definition.name}.prepare(...)",
                "a sparsity pattern cannot be found for symbolic sizes.",
                expected="sizes that are numbers",
                got=describe_tree((x, *rest)),
                fix="Prepare once for each size; or take products, `hotk.hvp`, which "
                "work for symbolic sizes.",
            )
        )
    leaves, tree = jax.tree.flatten((x, rest))
    shapes = {i: a for i, a in enumerate(leaves) if isinstance(a, _SHAPE)}
    made: list[Prepared] = []

    def trace(tracers: dict[int, Tracer]) -> None:
        point, others = tree.unflatten(
            [tracers.get(i, a) for i, a in enumerate(leaves)]
        )
        made.append(prepare(operator, options, f, point, others, on_mismatch))

    jax.eval_shape(trace, shapes)
    (prepared,) = made
    if prepared.skeleton.opaque is not None:
        raise PreparationError(
            message(
                f"{options.definition.name}.prepare(...)",
                "an opaque function cannot be prepared for symbolic sizes.",
                expected="a function whose captured arrays are found",
                got=f"{function_name(f)}, which is traced at every call",
                fix="`hotk.explain(f)` shows what is in the way; or prepare for sizes "
                "that are numbers.",
            )
        )
    return prepared


def _is_symbolic(leaf: object) -> bool:
    """Whether a leaf is a shape with a size that is not a number."""
    return isinstance(leaf, _SHAPE) and not all(isinstance(n, int) for n in leaf.shape)


def _find_or_make(
    options: Options, f: Function, x: Point, rest: tuple[PyTree, ...]
) -> tuple[Closure, Call, Program]:
    """Return closure, call and program, with as few arrays static as can be."""
    before = None
    levels = [options.definition.static_arrays, *HELD_LEVELS[1:]]
    needed: frozenset[int] = frozenset()
    while levels:
        level, numbers = levels.pop(0), _numbers(f, needed)
        closure = Closure.of(f, static_arrays=level, chosen=numbers)
        if closure.skeleton.opaque is not None:
            break
        if closure.skeleton == before:
            continue
        before = closure.skeleton
        # A closure of hotk's own is walked as what it was made of.
        g = before.function(closure.leaves) if closure is f else f
        try:
            call = Call(
                options,
                g,
                x,
                rest,
                static_arrays=before.static_arrays,
                chosen=chosen_of(g, before.chosen) | needed,
                check_nodes=False,
            )
            others = {*map(id, _arrays_ahead(call))}
            if others and not others.isdisjoint(map(id, _originals([g], level))):
                # Each has its own, so that `bind` replaces those of the function alone.
                copies = [jnp.array(a, copy=True) for a in closure.leaves]
                g = before.function(copies)
                call = Call(
                    options,
                    g,
                    x,
                    rest,
                    static_arrays=before.static_arrays,
                    chosen=chosen_of(g, before.chosen) | needed,
                    check_nodes=False,
                )
            types = types_of(call.captured, call.inputs.arrays)
            given = (*call.captured, *call.inputs.arrays)
            placed = tuple(map(sharding_of, given))
            placed = placed if any(placed) else ()
            return closure, call, find_program(call, types, placed)
        except ContentNeeded as more:
            if closure is not f and not more.chosen <= needed:
                needed |= more.chosen
                levels.insert(0, level)
                before = None
        except (Fallback, Opaque):
            continue
    return _prepare_opaque(options, f, x, rest)


def _numbers(f: Function, chosen: frozenset[int]) -> tuple[int, ...]:
    """Return the numbers of some arrays among all that a function captured."""
    if not chosen or isinstance(f, Closure):
        return ()
    found = _originals([f], StaticArrays.NONE)
    return tuple(i for i, a in enumerate(found) if id(a) in chosen)


def _arrays_ahead(call: Call) -> list[Leaf]:
    """Return the arrays that functions among the arguments have captured."""
    return _originals(call.inputs.visited, call.static_arrays)


def _originals(things: Iterable[object], level: StaticArrays) -> list[Leaf]:
    walk = Walk(static_arrays=level, copy_numpy=False)
    for thing in things:
        walk.visit(thing)
    return walk.originals


def _prepare_opaque(
    options: Options, f: Function, x: Point, rest: tuple[PyTree, ...]
) -> tuple[Closure, Call, Program]:
    call = OpaqueCall(options, f, x, rest, reused=True)
    call.trace()
    arrays = call.inputs.arrays

    def attempt(plan: Plan) -> Program:
        types = types_of([], arrays)
        program = Program(options, None, call.tree, plan, None, types)
        program.seeded = True  # what was computed at once cannot be read in it
        program.trace(call, [], arrays)
        return program

    _, program = first_that_works(call, attempt)
    skeleton = Skeleton(
        (id(f),), f, name=function_name(f), opaque=OpaqueReason("held as it was")
    )
    return Closure((), skeleton), call, program


def _typed_direction(
    options: Options, x: Point, rest: tuple[PyTree, ...]
) -> tuple[Point, tuple[PyTree, ...]]:
    """Give a direction of NumPy arrays or Python numbers the dtypes of the point."""
    takes = options.definition.takes
    if takes not in ("v", "vs"):
        return x, rest
    try:
        typed = [_typed_like(x, v) for v in (rest[0] if takes == "vs" else rest[:1])]
    except (ValueError, TypeError, KeyError):
        return x, rest  # the trace says what is wrong
    return x, (tuple(typed) if takes == "vs" else typed[0], *rest[1:])


def _typed_like(x: Point, v: Tangent) -> Tangent:
    points, treedef = jax.tree.flatten(x)
    parts = treedef.flatten_up_to(v)
    typed = [
        jnp.asarray(np.array(part, dtype=jnp.result_type(leaf), copy=True))
        if is_inexact(leaf) and _castable(part, leaf)
        else part
        for leaf, part in zip(points, parts, strict=True)
    ]
    return treedef.unflatten(typed)


def _as_jax(leaf: object) -> Any:
    """Make a NumPy array or a shape what it is in every call: an array of JAX."""
    if isinstance(leaf, _SHAPE):
        if leaf.weak_type and leaf.dtype == jnp.result_type(leaf.dtype.type(0).item()):
            return jnp.broadcast_to(leaf.dtype.type(0).item(), leaf.shape)
        return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)
    if not isinstance(leaf, (np.ndarray, np.generic)):
        return leaf
    array = as_input(leaf)  # a copy; none of integers that JAX has no room for
    return leaf if array is None else jnp.asarray(array)


def _castable(part: object, leaf: Leaf) -> bool:
    if not isinstance(part, (np.ndarray, np.generic, bool, int, float, complex)):
        return False
    complex_part = np.iscomplexobj(part)
    return not complex_part or jnp.issubdtype(
        jnp.result_type(leaf), jnp.complexfloating
    )
