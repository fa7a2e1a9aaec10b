"""`Family`: functions whose programs differ in arrays and written numbers alone.

A loop over batches makes a function for each of them, `lambda p: loss(p, *batches[i])`,
and annealing one for each temperature. Their programs are one program of other arrays,
or with another number in it: it is compiled once, and what differs is an argument.
"""

import threading
import weakref
from typing import Any, NamedTuple

import jax
import numpy as np

from hotk._core import (
    CanonicalForm,
    Number,
    Unrecognized,
    canonical_form,
    jaxpr_as_fun,
    pruned,
    with_numbers,
)
from hotk.capture import aval_of, own_copy, rule_key

from ._call import Mismatch


# After so many programs of one family, all numbers are arguments of the next.
_MOST_VARIANTS = 3


class Member(NamedTuple):
    """One function of a family.

    Attributes:
        closed: Its program.
        form: The canonical form of it.
        captured: How many arrays the function has captured.
    """

    closed: Any
    form: CanonicalForm
    captured: int

    @staticmethod
    def of(closed: Any, count: int) -> "Member":
        """Read a program whose first `count` inputs are captured arrays.

        Raises:
            Unrecognized: If the program has no canonical form.
        """
        return Member(closed, canonical_form(closed, count, rule_key), count)

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
        self.programs: Any = weakref.WeakValueDictionary()
        closed = pruned(member.closed, member.captured, member.form.inputs)
        if opened:
            paths = [member.form.numbers[i].path for i in self.open]
            closed = with_numbers(closed, paths, len(member.form.inputs))
        self.jit = jax.jit(lambda *arrays: jaxpr_as_fun(closed)(*arrays))

    def fits(self, member: Member) -> bool:
        """Whether the program is the member's."""
        return self.fixed == _bits(member, frozenset(self.open))

    def numbers(self, member: Member) -> list[Number]:
        """Return the numbers of a member that are arguments."""
        return [member.form.numbers[i] for i in self.open]


class Function(NamedTuple):
    """A function of the user as its program: the innermost call of an operator's.

    Attributes:
        variant: The program.
        out_tree: The structure of what it returns.
    """

    variant: Variant
    out_tree: Any

    def __call__(self, call: Any, captured: Any, x: Any, args: Any) -> Any:
        """Evaluate the function; a `Primal` is called alike."""
        del call
        return self.out_tree.unflatten(self.variant.jit(*captured, *x, *args))


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
        made = Variant(member, self._opened(member))
        with self.lock:
            for known in self.variants:
                if known.fits(member):
                    return known
            self.variants = (*self.variants, made)
        return made

    def _opened(self, member: Member) -> frozenset[int]:
        """Return the numbers in which a member differs from those before it."""
        known = self.variants
        if not known:
            return frozenset()
        every = range(len(member.form.numbers))
        if len(known) >= _MOST_VARIANTS:
            return frozenset(every)
        first = dict(known[0].fixed)
        differs = (i for i in every if member.form.numbers[i].bits != first[i])
        return frozenset(known[-1].open).union(differs)


def _bits(member: Member, opened: frozenset[int]) -> tuple[tuple[int, bytes], ...]:
    numbers = enumerate(member.form.numbers)
    return tuple((i, number.bits) for i, number in numbers if i not in opened)


def _own(constant: Any) -> Any:
    if isinstance(constant, np.ndarray):
        return jax.device_put(own_copy(constant))  # `jnp.asarray` would compile
    return constant


def _as_array(number: Number) -> Any:
    """Return a number as the argument that takes its place."""
    dtype, weak = number.kind  # type: ignore[misc]
    if weak:
        kind = {"f": float, "c": complex, "i": int, "u": int}[dtype.kind]
        made = jax.device_put(kind(np.asarray(number.value).item()))
        if made.dtype != dtype:  # weak numbers of another width cannot be made
            raise Unrecognized(f"a weak number of {dtype}")
        return made
    return jax.device_put(np.asarray(number.value, dtype))


class Bound:
    """A shared program with what one function brings into it.

    Attributes:
        places: Where its inputs besides the arguments are, in the captured arrays
            followed by the constants and the numbers of the function.
        extra: Those constants and numbers.
        unused: Which captured arrays it leaves out, and what they were like: a function
            may read a shape and no number. JAX looks at those that go in.
        program: The program of the operator.
    """

    __slots__ = ("__weakref__", "extra", "places", "program", "unused")

    def __init__(
        self, member: Member, variant: Variant, captured: Any, pinned: Any
    ) -> None:
        used = set(member.form.inputs)
        self.unused = tuple(
            (i, aval_of(a)) for i, a in enumerate(captured) if i not in used
        )
        numbers = [_as_array(n) for n in variant.numbers(member)]
        # The arrays of classes stay theirs: not kept alive, and the key has them.
        held = set(map(id, pinned))
        constants = [
            weakref.ref(c) if id(c) in held else _own(c) for c in member.closed.consts
        ]
        self.extra = [*constants, *numbers]
        first = member.captured + len(member.closed.consts)
        self.places = (*member.form.inputs, *range(first, first + len(numbers)))
        self.program: Any = None

    def to(self, program: Any) -> "Bound":
        """Bind the program of an operator."""
        self.program = program
        return self

    def captured(self, captured: Any) -> list[Any]:
        """Return what the program takes in place of the captured arrays.

        Raises:
            Mismatch: If one that is left out is not like that of before.
        """
        for i, kind in self.unused:
            if aval_of(captured[i]) != kind:
                raise Mismatch
        extra = [a() if type(a) is weakref.ref else a for a in self.extra]
        every = (*captured, *extra)
        return [every[i] for i in self.places]

    def jit(self, captured: Any, arrays: Any) -> Any:
        """Compute; arguments as those of a `Program`."""
        return self.program.jit(self.captured(captured), arrays)

    def run(self, source: Any, captured: Any, arrays: Any) -> Any:
        """Compute; `source` tells the function if JAX has to trace it again."""
        return self.program.run(source, self.captured(captured), arrays)

    def compile(self, source: Any, captured: Any, arrays: Any) -> bool:
        """Compile once, whoever comes first; return whether it was this call."""
        return self.program.compile(source, self.captured(captured), arrays)
