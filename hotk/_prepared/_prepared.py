"""`Prepared`: an operator bound to a closure and a signature, compiled once."""

import html
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
from jax.tree_util import tree_flatten
from jaxtyping import Array, PyTree

from hotk._capture import (
    Closure,
    Signature,
    SignatureField,
    SignatureLeaf,
    Skeleton,
    chosen_of,
)
from hotk._core import (
    ARRAY,
    Function,
    Leaf,
    Point,
    PreparationError,
    message,
    signature_count,
    trace_context,
)

from ._call import Call
from ._checks import note_deleted
from ._info import Info, info_of
from ._mismatch import (
    StaticLeaves,
    answer_mismatch,
    convert_leaves,
    mismatch_error,
    same_shardings,
)
from ._plan import derive
from ._program import Program
from ._reasons import compared
from ._traced_jit import Mismatch, Varies


_ARRAYS = frozenset({ARRAY})

R = TypeVar("R", covariant=True)


class Prepared(eqx.Module, Generic[R]):
    """An operator traced and compiled once, for one function and one signature.

    `hotk.hvp.prepare(f, x, v)` makes one, and likewise every other operator. It is
    called as `prepared(x, [v], *args)`. It is immutable, a pytree whose leaves are the
    arrays that the function captured, and works under `jit`, `vmap`, `jvp`, `vjp`,
    `scan`, `shard_map` and inside another `Prepared`. It holds the function as it was
    when prepared: what changes in it afterwards has no effect.

    Attributes:
        leaves: The captured arrays, with those of functions among the arguments.
        skeleton: The static part of the function.
        program: The program.
        signature: The signature that it was prepared for.
        statics: Arguments that are not arrays; a call has to pass equal ones.
        operator: The operator.
        on_mismatch: What a call with another signature does: `"raise"`, `"retrace"` or
            `"cast"`.
        ahead: How many arrays of functions among the arguments come before those of the
            function.

    Example:
        >>> f = lambda x: jnp.sum(x**3)
        >>> product = hotk.hvp.prepare(f, jnp.zeros(2), jnp.zeros(2))
        >>> product(jnp.array([1.0, 2.0]), jnp.ones(2)).tolist()
        [6.0, 12.0]
        >>> product.info.mode
        'forward over reverse'
    """

    leaves: tuple[Array, ...]
    skeleton: Skeleton = eqx.field(static=True)
    program: Program = eqx.field(static=True)
    signature: Signature = eqx.field(static=True)
    statics: StaticLeaves = eqx.field(static=True)
    operator: Callable[..., PyTree] = eqx.field(static=True)
    on_mismatch: str = eqx.field(static=True)
    ahead: int = eqx.field(static=True, default=0)

    # Equinox turns bound methods into pytrees on every read of an attribute, which
    # costs 0.5 us a read; the call reads six.
    __getattribute__ = object.__getattribute__
    # By identity, as functions are: `jax.jit(prepared)` needs a hash.
    __hash__ = object.__hash__
    __eq__ = object.__eq__

    def __call__(self, x: Point, *rest: PyTree) -> R:
        """Evaluate the operator at `x`.

        Args:
            x: The point.
            *rest: The direction, if the operator takes one, and further arguments.

        Returns:
            What the operator returns: results of the same structure, shapes and dtypes
            in each call.

        Raises:
            PreparationError: If the arguments have another signature than the one
                prepared for.
        """
        program = self.program
        arrays: Sequence[Leaf] | None = [x, *rest]
        plain = len(arrays) == program.flat
        for array in arrays:  # faster than a set for a few
            plain = plain and type(array) is ARRAY
        if not plain:
            leaves, tree = tree_flatten((x, rest))
            if tree != program.tree:
                return answer_mismatch(self, x, rest)
            arrays = leaves
            if self.statics.by_number or not _ARRAYS.issuperset(map(type, leaves)):
                arrays = convert_leaves(self, leaves)
            if arrays is None:
                return answer_mismatch(self, x, rest)
        run, elsewhere = program.held, False
        if program.away is not None and trace_context() != program.context:
            run, elsewhere = program.away, True
        result: Any = None
        try:
            result = run(*self.leaves, *arrays)
        except Mismatch as mismatch:
            differs, varies = True, isinstance(mismatch, Varies)
        except RuntimeError as error:
            note_deleted(error, program.options.definition, x, rest, self.leaves)
            raise
        else:
            differs = varies = False
            # JAX's cache of a program compares neither where arrays lie nor how random
            # keys are made. Both are asked for only until one signature is verified,
            # and again once JAX has seen a second one (`test_mismatch_is_loud`).
            if elsewhere or not program.verified or signature_count(program.jit) > 1:
                differs = not self.holds_for(arrays)
                program.verified = not (program.seeded or differs)
        if not differs:
            return result
        if not elsewhere and trace_context() != program.context:
            program.open_away()
            return self(x, *rest)
        if varies and not program.unlike(trace_context()):
            return self.vary(arrays)
        return answer_mismatch(self, x, rest)

    def holds_for(self, arrays: Sequence[Leaf]) -> bool:
        """Whether what JAX's cache of a program knows nothing of is as prepared."""
        if self.program.seeded and self.program.unlike(trace_context()):
            return False
        return same_shardings(self, arrays)

    def vary(self, arrays: Sequence[Leaf]) -> PyTree:
        """Evaluate the operator on arrays that vary by device, within `shard_map`.

        The function that is held is traced for these types, of which the program knows
        nothing.
        """
        program, skeleton = self.program, self.skeleton
        if skeleton.opaque is not None:
            assert program.first is not None
            try:
                return program.first(self.leaves, arrays)
            except ValueError as error:
                if "varying manual axes" not in str(error):
                    raise
                raise _cannot_vary(self) from error
        moving, statics = iter(arrays), self.statics.by_number
        count = program.tree.num_leaves
        leaves = [statics[i] if i in statics else next(moving) for i in range(count)]
        x, rest = program.tree.unflatten(leaves)
        f = skeleton.function(self.leaves[self._own])
        # What is static among the arguments stays what it is.
        chosen = chosen_of(f, skeleton.chosen) | frozenset(map(id, statics.values()))
        call = Call(
            program.options,
            f,
            x,
            rest,
            static_arrays=skeleton.static_arrays,
            chosen=chosen,
            check_nodes=False,
        )
        return derive(call, None, call.captured, call.inputs.arrays, program.plan)

    def bind(self, f: Function) -> "Prepared[R]":
        """Give the same program the captured arrays of another function.

        For a loop that makes a function of the same code for each batch.

        Args:
            f: A function with the same skeleton: the same code and captured structure.

        Returns:
            A `Prepared` for `f`, without tracing or compiling.

        Raises:
            PreparationError: If the skeleton of `f`, or the shape or dtype of one of
                its captured arrays, is another one.
        """
        static, chosen = self.skeleton.static_arrays, self.skeleton.chosen
        closure = Closure.of(f, static_arrays=static, chosen=chosen)
        same = closure.skeleton == self.skeleton and self.skeleton.opaque is None
        rows = [
            SignatureField(same, "function", self.skeleton.name, closure.skeleton.name)
        ]
        if not same:
            rows = [
                SignatureField(False, *compared(self.skeleton, closure.skeleton, f))
            ]
        mine = Signature.of((self.closure.leaves,), ("captured",))
        rows += mine.compare(Signature.of((closure.leaves,), ("captured",)))
        if not all(row.same for row in rows):
            raise mismatch_error(self, rows, "Prepare again for the other function.")
        leaves = list(self.leaves)
        leaves[self._own] = closure.leaves
        return Prepared(
            tuple(leaves),
            self.skeleton,
            self.program,
            self.signature,
            self.statics,
            self.operator,
            self.on_mismatch,
            self.ahead,
        )

    @property
    def _own(self) -> slice:
        """Where the arrays of the function are among the leaves."""
        return slice(self.ahead, self.ahead + self.skeleton.count)

    @property
    def closure(self) -> Closure:
        """The function, as it was when prepared."""
        return Closure(self.leaves[self._own], self.skeleton)

    @property
    def arguments(self) -> tuple[PyTree, ...]:
        """The arguments prepared for, with `jax.ShapeDtypeStruct`s for the arrays."""
        statics = self.statics.by_number
        leaves = [
            statics[i] if i in statics else _shape_of(leaf)
            for i, leaf in enumerate(self.signature.leaves)
        ]
        return self.signature.structure.unflatten(leaves)

    @property
    def info(self) -> Info:
        """Mode and why, equations, flops, bytes, and seconds to trace and compile."""
        return info_of(self.program)

    def __copy__(self) -> "Prepared[R]":
        """Return itself: nothing in it can change."""
        return self

    def __deepcopy__(self, memo: object) -> "Prepared[R]":
        """Return itself: nothing in it can change."""
        return self

    def __reduce__(self) -> str:
        """Refuse to be pickled: a compiled program belongs to its process."""
        raise TypeError(
            message(
                repr(self).partition(" at ")[0],
                "a compiled program cannot be pickled.",
                expected="use in the process that prepared it",
                got="`pickle`, or another process",
                fix="Send the function and the arguments, and prepare it there; "
                "or write its program to a file by `hotk.export`.",
            )
        )

    def __repr__(self) -> str:
        """Show operator, function, mode and signature."""
        name = self.program.options.definition.name
        text = "; ".join(str(self.signature).splitlines()[:6])
        what = f"{name} of {self.skeleton.name} [{self.program.mode}]"
        return f"Prepared {what} at {text}"

    def _repr_html_(self) -> str:
        text = html.escape(repr(self))
        return f"<p><code>{text}</code></p>{self.info._repr_html_()}"


def _cannot_vary(prepared: Prepared) -> PreparationError:
    call = prepared.program.options.definition.call()
    return PreparationError(
        message(
            call,
            f"`{prepared.skeleton.name}` is opaque, and was prepared outside of "
            "`shard_map`: it cannot be traced again for arrays that vary by device.",
            expected="a direct call within `shard_map`, or a function that is not "
            "opaque (`hotk.explain`)",
            got="arrays that vary along the axes of a mesh",
            fix=f"Write `hotk.{call}` inside of `shard_map`, or give `shard_map` the "
            "keyword `check_vma=False`.",
        )
    )


def _shape_of(leaf: SignatureLeaf) -> jax.ShapeDtypeStruct:
    shape, dtype, weak = leaf.aval
    return jax.ShapeDtypeStruct(shape, dtype, weak_type=weak, sharding=leaf.sharding)
