"""`Prepared`: an operator bound to a closure and a signature, compiled once."""

import html
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_flatten

from hotk._core import (
    ARRAY,
    Tracer,
    function_name,
    hides_frames,
    in_trace,
    is_inexact,
    message,
    trace_context,
    varies_by_device,
)
from hotk.capture import (
    Closure,
    Opaque,
    Row,
    Signature,
    Skeleton,
    dict_orders,
    in_orders,
    is_numeric,
    own_copy,
)

from ._call import SLOT, Call, Mismatch
from ._checks import check_callable
from ._info import Info, info_of
from ._mismatch import Held, answer, make_ready, mismatch_error, same_shardings
from ._opaque import OpaqueCall, first_that_works
from ._options import Options
from ._plan import HELD_LEVELS, Fallback
from ._program import Program, derive, kinds_of
from ._reasons import compared
from ._store import STORE
from ._traced import find_program


_ARRAYS = frozenset({ARRAY})
_ANSWERS = ("raise", "retrace", "cast")


class Prepared(eqx.Module):
    """An operator traced and compiled once, for one function and one signature.

    Called as `prepared(x, [v], *args)`. It is immutable, a pytree whose leaves are the
    arrays that the function captured, and works under `jit`, `vmap`, `jvp`, `vjp`,
    `scan`, `shard_map` and inside another `Prepared`. It holds the function as it was
    when prepared.

    Attributes:
        leaves: The captured arrays.
        skeleton: The static part of the function.
        program: The program.
        signature: The signature that it was prepared for.
        on_mismatch: What a call with another signature does.

    Example:
        >>> f = lambda x: jnp.sum(x**3)
        >>> product = hotk.hvp.prepare(f, jnp.zeros(2), jnp.zeros(2))
        >>> product(jnp.array([1.0, 2.0]), jnp.ones(2)).tolist()
        [6.0, 12.0]
        >>> product.info.mode
        'forward over reverse'
    """

    leaves: tuple[Any, ...]
    skeleton: Skeleton = eqx.field(static=True)
    program: Program = eqx.field(static=True)
    signature: Signature = eqx.field(static=True)
    statics: Held = eqx.field(static=True)
    operator: Any = eqx.field(static=True)
    on_mismatch: str = eqx.field(static=True)

    # Equinox turns bound methods into pytrees on every read of an attribute, which
    # costs 0.5 us a read; the call reads six.
    __getattribute__ = object.__getattribute__
    # By identity, as functions are: `jax.jit(prepared)` needs a hash.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __call__(self, x: Any, *rest: Any) -> Any:
        """Evaluate the operator at `x`.

        Args:
            x: The point.
            *rest: The direction, if the operator takes one, and further arguments.

        Raises:
            PreparationError: If the arguments have another signature than the one
                prepared for.
        """
        program = self.program
        arrays = [x, *rest]
        plain = len(arrays) == program.flat
        for array in arrays:  # faster than a set for a few
            plain = plain and type(array) is ARRAY
        if not plain:
            leaves, tree = tree_flatten((x, rest))
            if tree != program.tree:
                return answer(self, x, rest)
            ready = leaves
            if self.statics.by_number or not _ARRAYS.issuperset(map(type, leaves)):
                ready = make_ready(self, leaves)
            if ready is None:
                return answer(self, x, rest)
            arrays = ready
        run, elsewhere = program.jit, False
        if program.away is not None and trace_context() != program.context:
            run, elsewhere = program.away, True
        SLOT.call = self
        result = None
        try:
            result = run(list(self.leaves), arrays)
        except Mismatch:
            differs = True
        else:
            differs = False
            if elsewhere or not program.verified or program.signatures() > 1:
                differs = not self._holds_for(arrays)
                program.verified = not (program.seeded or differs)
        finally:
            SLOT.call = None
        if not differs:
            return result
        if not elsewhere and trace_context() != program.context:
            if program.away is None:
                program.away = jax.jit(_away(program))
            return self(x, *rest)
        return answer(self, x, rest)

    def _holds_for(self, arrays: list[Any]) -> bool:
        """Whether what JAX's cache of a program knows nothing of is as prepared."""
        if self.program.seeded and self.program.unlike(trace_context()):
            return False
        return same_shardings(self, arrays)

    def replay(self, captured: Any, arrays: Any) -> Any:
        """Run the program as it was traced, because JAX traces its caller anew."""
        program, skeleton = self.program, self.skeleton
        if skeleton.opaque is not None or not varies_by_device((*captured, *arrays)):
            assert program.replay is not None
            return program.replay.replay(captured, arrays)
        # For the types of `shard_map` the function that is held is traced anew.
        moving, statics = iter(arrays), self.statics.by_number
        count = program.tree.num_leaves
        leaves = [statics[i] if i in statics else next(moving) for i in range(count)]
        x, rest = program.tree.unflatten(leaves)
        f = skeleton.function(captured)
        call = Call(
            program.options,
            f,
            x,
            rest,
            static_arrays=skeleton.static_arrays,
            trust=True,
        )
        inputs = call.inputs.arrays
        return derive(call, None, call.captured, inputs, program.plan)

    def bind(self, f: Callable[..., Any]) -> "Prepared":
        """Give the same program the captured arrays of another function.

        Args:
            f: A function with the same skeleton: the same code and captured structure.

        Returns:
            A `Prepared` for `f`, without tracing or compiling.

        Raises:
            PreparationError: If the skeleton of `f`, or the shape or dtype of one of
                its captured arrays, is another one.
        """
        closure = Closure.of(f, static_arrays=self.skeleton.static_arrays)
        same = closure.skeleton == self.skeleton and self.skeleton.opaque is None
        rows = [Row(same, "function", self.skeleton.name, closure.skeleton.name)]
        if not same:
            rows = [Row(False, *compared(self.skeleton, closure.skeleton, f))]
        first = len(self.leaves) - self.skeleton.count
        mine = Signature.of((self.leaves[first:],), ("captured",))
        rows += mine.compare(Signature.of((closure.leaves,), ("captured",)))
        if not all(row.same for row in rows):
            raise mismatch_error(self, rows, "Prepare again for the other function.")
        leaves = (*self.leaves[:first], *closure.leaves)
        return Prepared(
            leaves,
            self.skeleton,
            self.program,
            self.signature,
            self.statics,
            self.operator,
            self.on_mismatch,
        )

    @property
    def info(self) -> Info:
        """Mode and why, equations, flops, bytes, and seconds to trace and compile."""
        return info_of(self.program)

    def __copy__(self) -> "Prepared":
        """Return itself: nothing in it can change."""
        return self

    def __deepcopy__(self, memo: Any) -> "Prepared":
        """Return itself: nothing in it can change."""
        return self

    def __reduce__(self) -> Any:
        """Refuse to be pickled: a compiled program belongs to its process."""
        raise TypeError(
            message(
                repr(self).partition(" at ")[0],
                "a compiled program cannot be pickled.",
                expected="use in the process that prepared it",
                got="`pickle`, or another process",
                fix="Send the function and the arguments, and prepare it there.",
            )
        )

    def __repr__(self) -> str:
        """Show operator, function, mode and signature."""
        kind = self.program.options.kind
        text = "; ".join(str(self.signature).splitlines()[:6])
        what = f"{kind.name} of {self.skeleton.name} [{self.program.mode}]"
        return f"Prepared {what} at {text}"

    def _repr_html_(self) -> str:
        text = html.escape(repr(self))
        return f"<p><code>{text}</code></p>{self.info._repr_html_()}"


def _away(program: Program) -> Callable[..., Any]:
    """Make the function that runs a program under other settings than its own."""

    def body(captured: Any, arrays: Any) -> Any:
        source, SLOT.call = SLOT.call, None
        if source is None or kinds_of(captured, arrays) != program.kinds:
            raise Mismatch
        if program.unlike(trace_context()):
            raise Mismatch
        return source.replay(captured, arrays)

    return body


@hides_frames
def prepare(
    operator: Any,
    options: Options,
    f: Callable[..., Any],
    x: Any,
    rest: Any,
    on_mismatch: str,
) -> Prepared:
    """Make the `Prepared` of an operator; see `Operator.prepare`."""
    if on_mismatch not in _ANSWERS:
        raise ValueError(
            message(
                f"{options.kind.name}.prepare(...)",
                "`on_mismatch` is not one of the three.",
                expected=" or ".join(map(repr, _ANSWERS)),
                got=repr(on_mismatch),
                fix="Leave it out: then a call with another signature is an error.",
            )
        )
    check_callable(options.kind.call(), f)
    strong = _strong(options, x, rest)
    x, rest = in_orders(jax.tree.map(_as_jax, strong), dict_orders(strong))
    closure, call, program = _held(options, f, x, rest)
    captured, arrays = list(closure.leaves), call.inputs.arrays
    traced = in_trace() or any(isinstance(a, Tracer) for a in (*captured, *arrays))
    if not traced and program.compile(call, captured, arrays):
        STORE.compiled()
    roots = options.kind.roots(1 + len(rest))
    return Prepared(
        closure.leaves,
        closure.skeleton,
        program,
        Signature.of((x, *rest), roots),
        Held.of(call.inputs.statics),
        operator,
        on_mismatch,
    )


def _held(options: Options, f: Any, x: Any, rest: Any) -> Any:
    """Return closure, call and program, with as few arrays static as can be."""
    tried = None
    for level in HELD_LEVELS:
        closure = Closure.of(f, static_arrays=level)
        if closure.skeleton.opaque is not None:
            break
        if closure.skeleton == tried:
            continue
        tried = closure.skeleton
        # A closure of hotk's own is walked as what it was made of.
        g = tried.function(closure.leaves) if closure is f else f
        try:
            call = Call(
                options, g, x, rest, static_arrays=tried.static_arrays, trust=True
            )
            kinds = kinds_of(call.captured, call.inputs.arrays)
            return closure, call, find_program(call, kinds)
        except (Fallback, Opaque):
            continue
    return _prepare_opaque(options, f, x, rest)


def _prepare_opaque(options: Options, f: Any, x: Any, rest: Any) -> Any:
    call = OpaqueCall(options, f, x, rest, held=True)
    call.trace()
    arrays = call.inputs.arrays

    def attempt(plan: Any) -> Program:
        program = Program(options, None, call.tree, plan, None, kinds_of([], arrays))
        program.seeded = True  # what was computed at once cannot be read in it
        program.trace(call, [], arrays)
        return program

    _, program = first_that_works(call, attempt)
    skeleton = Skeleton((id(f),), f, name=function_name(f), opaque="held as it was")
    return Closure((), skeleton), call, program


def _strong(options: Options, x: Any, rest: Any) -> tuple[Any, Any]:
    """Give a direction of NumPy arrays or Python numbers the dtypes of the point."""
    takes = options.kind.takes
    if takes not in ("v", "vs"):
        return x, rest
    try:
        made = [_strong_one(x, v) for v in (rest[0] if takes == "vs" else rest[:1])]
    except (ValueError, TypeError, KeyError):
        return x, rest  # the trace tells what is wrong
    return x, (tuple(made) if takes == "vs" else made[0], *rest[1:])


def _strong_one(x: Any, v: Any) -> Any:
    points, treedef = jax.tree.flatten(x)
    parts = treedef.flatten_up_to(v)
    made = [
        jnp.asarray(np.array(part, dtype=jnp.result_type(leaf), copy=True))
        if is_inexact(leaf) and _castable(part, leaf)
        else part
        for leaf, part in zip(points, parts, strict=True)
    ]
    return treedef.unflatten(made)


def _as_jax(leaf: Any) -> Any:
    """Make a NumPy array or a shape what it is in every call: an array of JAX."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding)
    numpy = isinstance(leaf, (np.ndarray, np.generic)) and is_numeric(leaf.dtype)
    return jnp.array(own_copy(np.asarray(leaf))) if numpy else leaf


def _castable(part: Any, leaf: Any) -> bool:
    if not isinstance(part, (np.ndarray, np.generic, bool, int, float, complex)):
        return False
    complex_part = np.iscomplexobj(part)
    return not complex_part or jnp.issubdtype(
        jnp.result_type(leaf), jnp.complexfloating
    )
