"""Operators whose functions differ in captured numbers alone share programs.

Solvers are compiled for the skeleton of a function, which has the captured numbers of
Python in it. From the second function of a code on, an operator keeps the program of
its function, as direct calls do: the numbers in which it differs from those before it
are further arrays.
"""

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, final

import equinox as eqx
from jaxtyping import PyTree

from hotk._capture import Closure, Skeleton, TracedProgram
from hotk._core import Function, Unrecognized, trace_context, unkeyed_setting
from hotk._prepared import STORE, Bound, Member, PerCode, Variant, code_of


@final
class WithNumbers(eqx.Module):
    """A function as a program whose numbers are arrays.

    Attributes:
        captured: The arrays that the function captured, its constants and its numbers.
        program: The program, of these and the arguments.
        name: The name of the function, for messages.
    """

    captured: list[Any]
    program: TracedProgram = eqx.field(static=True)
    name: str = eqx.field(static=True)

    @property
    def __name__(self) -> str:  # pyright: ignore  # messages name a function by it
        return self.name

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Run the program."""
        return self.program(self.captured, *arguments)


class Numbered(NamedTuple):
    """A closure as a program, and what becomes of the captured arrays of another one.

    Attributes:
        skeleton: The skeleton of the program.
        bound: What it takes besides the arguments.
    """

    skeleton: Skeleton
    bound: Bound

    def joined(self, captured: Sequence[Any]) -> Closure:
        """Return the program with the arrays that a function of its kind captured."""
        return Closure.joined(self.skeleton, self.bound.arrange(captured))


# The first skeleton of each code, by the class that holds it, as `GaussNewton` and
# `Fisher` of one model are two. It keeps its numbers: most have no second.
_FIRST: PerCode[dict[type, weakref.ref[Skeleton]]] = PerCode(dict)


def numbered(
    f: Function,
    closure: Closure,
    arguments: PyTree,
    held: Callable[[Function], Function],
) -> Numbered | None:
    """Return a closure as a program with numbers as arrays; `None` for the first one.

    Args:
        f: The function.
        closure: The same as a closure.
        arguments: A tuple of its arguments, whose leaves are arrays.
        held: From a program of the closure to what an operator holds of it.
    """
    local = _local(f)
    if local is None:
        return None
    with _FIRST.lock:
        known = _FIRST.of(local)
        first = known[type(f)]() if type(f) in known else None
        if first is None:
            known[type(f)] = weakref.ref(closure.skeleton)
            return None
    if first == closure.skeleton:
        return None
    try:
        # With the first, the numbers that it does not share are known at the second.
        if first.count == closure.skeleton.count:
            _member_of(Closure.joined(first, closure.leaves), arguments)
    except Exception:
        pass  # its arrays have other types; it computed something, so it is right
    try:
        member, variant, out_tree = _member_of(closure, arguments)
        bound = Bound(member, variant, closure.leaves, ())
    except Unrecognized:
        return None
    program = TracedProgram(variant.closed, out_tree, (variant, out_tree))
    arrays = bound.arrange(closure.leaves)
    name = closure.skeleton.name
    skeleton = Closure.of(held(WithNumbers(arrays, program, name))).skeleton
    # The leaves are these arrays in order, but one that stands there twice is one leaf.
    return Numbered(skeleton, bound) if skeleton.count == len(arrays) else None


def _local(f: object) -> Function | None:
    """Return a function that no name leads to: what it is, or what a module holds.

    What is found by its name can be pickled with its operator, and a program cannot.
    """
    if callable(f) and "<" in getattr(code_of(f), "co_qualname", ""):
        return f
    if not isinstance(f, eqx.Module):
        return None
    return next(filter(None, map(_local, vars(f).values())), None)


def _member_of(closure: Closure, arguments: PyTree) -> tuple[Member, Variant, Any]:
    """Find or make the program of a closure among those that differ in numbers."""
    run = lambda leaves, arguments: Closure.joined(closure.skeleton, leaves)(*arguments)
    traced = TracedProgram.of(run, closure.leaves, arguments, kept=True)
    member = Member.of(traced.closed, len(closure.leaves))
    context: Hashable = (trace_context(), unkeyed_setting())
    family = STORE.family((*context, member.form.key))  # that of direct calls, too
    return member, family.variant(member), traced.out_tree
