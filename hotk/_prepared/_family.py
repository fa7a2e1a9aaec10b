"""`Family`: functions whose programs differ in arrays and written numbers alone.

A loop over batches makes a function for each of them, `lambda p: loss(p, *batches[i])`,
and annealing one for each temperature. Their programs are one program of other arrays,
or with another number in it: it is compiled once, and what differs is an argument.
"""

import threading
import weakref
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, PyTree

from hotk._capture import aval_of, own_copy, rule_key
from hotk._core import (
    CanonicalForm,
    ClosedJaxpr,
    Function,
    Leaf,
    Number,
    PyTreeDef,
    Unrecognized,
    canonical_form,
    inlined,
    inner_constants,
    jaxpr_as_fun,
    pruned,
    with_numbers,
)

from ._call import Call
from ._program import Program
from ._traced_jit import Mismatch


# After so many programs of one family, all numbers are arguments of the next.
_MOST_VARIANTS = 3


class Member(NamedTuple):
    """One function of a family.

    Attributes:
        closed: Its program.
        form: The canonical form of it.
        captured: How many arrays the function has captured.
    """

    closed: ClosedJaxpr
    form: CanonicalForm
    captured: int

    @staticmethod
    def of(closed: ClosedJaxpr, count: int, *, only_run: bool = False) -> "Member":
        """Read a program whose first `count` inputs are captured arrays.

        Args:
            closed: The program.
            count: How many arrays are captured.
            only_run: Whether nothing differentiates it, so that its rules do not count.

        Raises:
            Unrecognized: If the program has no canonical form.
        """
        # What is only run keeps nothing of the rules alive, which are the user's.
        if only_run or inner_constants(closed):
            closed = inlined(closed, keep_rules=not only_run)
            if inner_constants(closed):
                raise Unrecognized("a rule that has captured an array")
        rules = None if only_run else rule_key
        return Member(closed, canonical_form(closed, count, rules), count)

    def is_plain(self) -> bool:
        """Whether the program takes all captured arrays in order, and has no others."""
        return (
            self.form.inputs == tuple(range(self.captured)) and not self.closed.consts
        )


class Variant:
    """A program of a family: some of its numbers are fixed, the others arguments.

    Attributes:
        open: Which numbers are arguments, by their place in the canonical form.
        fixed: The bits of the others.
        closed: The program, of captured arrays, numbers and arguments.
        programs: Operators made of it, by what is asked for; an entry of the store
            keeps them alive.
    """

    def __init__(self, member: Member, opened: frozenset[int]) -> None:
        self.open = tuple(sorted(opened))
        self.fixed = _bits(member, opened)
        # Weakly: evicting an entry of the store has to free the compiled program
        # (`promises/test_bounded_memory`).
        self.programs: weakref.WeakValueDictionary[Hashable, Program] = (
            weakref.WeakValueDictionary()
        )
        # Without the captured arrays that are not used: functions that differ in those
        # alone are one (`unused_arrays_are_left_out`).
        closed = pruned(member.closed, member.captured, member.form.inputs)
        if opened:
            paths = [member.form.numbers[i].path for i in self.open]
            closed = with_numbers(closed, paths, len(member.form.inputs))
        self.closed = closed
        self.run = jaxpr_as_fun(closed)

    def fits(self, member: Member) -> bool:
        """Whether the program is the member's."""
        return self.fixed == _bits(member, frozenset(self.open))

    def numbers(self, member: Member) -> list[Number]:
        """Return the numbers of a member that are arguments."""
        return [member.form.numbers[i] for i in self.open]


class SharedFunction(NamedTuple):
    """A function of the user as its program: the innermost call of an operator's.

    Attributes:
        variant: The program.
        out_tree: The structure of what it returns.
    """

    variant: Variant
    out_tree: PyTreeDef

    def __call__(
        self,
        call: Call,
        captured: Sequence[Leaf],
        x: Sequence[Leaf],
        args: Sequence[Leaf],
    ) -> tuple[PyTree, PyTree]:
        """Evaluate the function; a `Primal` is called alike."""
        del call
        return self.out_tree.unflatten(self.variant.run(*captured, *x, *args))


class Family:
    """Functions of one canonical form, and their programs."""

    __slots__ = ("__weakref__", "lock", "used", "variants")

    def __init__(self) -> None:
        self.variants: tuple[Variant, ...] = ()
        self.lock = threading.Lock()
        self.used = 0

    def variant(self, member: Member) -> Variant:
        """Return the program of a member: one that is there, or one with more open."""
        for known in self.variants:
            if known.fits(member):
                return known
        new = Variant(member, self._opened(member))
        with self.lock:
            for known in self.variants:  # of another thread, meanwhile
                if known.fits(member):
                    return known
            self.variants = (*self.variants, new)
        return new

    def _opened(self, member: Member) -> frozenset[int]:
        """Return the numbers in which a member differs from those before it."""
        known = self.variants
        # The first has its numbers in the program, where XLA simplifies by them.
        if not known:
            return frozenset()
        every = range(len(member.form.numbers))
        if len(known) >= _MOST_VARIANTS:
            return frozenset(every)
        # The first variant has all its numbers fixed, so it knows the bits of each.
        bits = dict(known[0].fixed)
        differs = (i for i in every if member.form.numbers[i].bits != bits[i])
        return frozenset(known[-1].open).union(differs)


def _bits(member: Member, opened: frozenset[int]) -> tuple[tuple[int, bytes], ...]:
    # Bits, as `-0.0 == 0.0` and a NaN is not equal to itself
    # (`numbers_are_told_apart_bit_by_bit`).
    numbers = enumerate(member.form.numbers)
    return tuple((i, number.bits) for i, number in numbers if i not in opened)


def _own(constant: Leaf) -> Leaf:
    if isinstance(constant, np.ndarray):
        return jax.device_put(own_copy(constant))  # `jnp.asarray` would compile
    return constant


def _as_array(number: Number) -> Array:
    """Return a number as the argument that takes its place."""
    dtype, weak = number.kind
    if weak:
        python_type = {"f": float, "c": complex, "i": int, "u": int}[dtype.kind]
        array = jax.device_put(python_type(np.asarray(number.value).item()))
        if array.dtype != dtype:  # weak numbers of another width cannot be made
            raise Unrecognized(f"a weak number of {dtype}")
        return array
    return jax.device_put(np.asarray(number.value, dtype))


class Bound:
    """A shared program with what one function brings into it.

    Attributes:
        count: How many arrays the function has captured.
        places: Where the inputs of the program besides the arguments are, in the
            captured arrays followed by the constants and the numbers of the function.
        extra: Those constants and numbers.
        unused: Which captured arrays it leaves out, and of which type they were: a
            function may read a shape and no number. JAX looks at those that go in.
        program: The program of the operator.
    """

    __slots__ = ("__weakref__", "count", "extra", "places", "program", "unused")

    program: Program

    def __init__(
        self,
        member: Member,
        variant: Variant,
        captured: Sequence[Leaf],
        pinned: Sequence[Leaf],
    ) -> None:
        used = set(member.form.inputs)
        self.count = member.captured
        self.unused = tuple(
            (i, aval_of(a)) for i, a in enumerate(captured) if i not in used
        )
        numbers = [_as_array(n) for n in variant.numbers(member)]
        # The arrays of classes stay theirs: not kept alive, and the key has them.
        of_classes = set(map(id, pinned))
        constants = [
            weakref.ref(c) if id(c) in of_classes else _own(c)
            for c in member.closed.consts
        ]
        self.extra = [*constants, *numbers]
        begin = member.captured + len(member.closed.consts)
        # In the order of the canonical form, not of capture
        # (`arrays_in_another_order_are_not_mixed_up`).
        self.places = (*member.form.inputs, *range(begin, begin + len(numbers)))

    def bind(self, program: Program) -> "Bound":
        """Set the program of an operator, and return itself."""
        self.program = program
        return self

    def arrange(self, captured: Sequence[Leaf]) -> list[Leaf]:
        """Return what the program takes in place of the captured arrays.

        Raises:
            Mismatch: If one that is left out is not like that of before.
        """
        for i, type_ in self.unused:
            if aval_of(captured[i]) != type_:
                raise Mismatch
        # A weak reference is to an array of a class, which the function holds now.
        extra: list[PyTree] = [
            a() if isinstance(a, weakref.ref) else a for a in self.extra
        ]
        every = (*captured, *extra)
        return [every[i] for i in self.places]

    def jit(self, *flat: Leaf) -> PyTree:
        """Compute; arguments as those of a `Program`."""
        count = self.count
        return self.program.jit(*self.arrange(flat[:count]), *flat[count:])

    def compile(self, f: Function) -> bool:
        """Compile once, whoever comes first; return whether it was this call."""
        return self.program.compile(f)
