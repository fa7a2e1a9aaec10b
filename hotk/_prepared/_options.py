"""What an operator is besides its function: a definition, and its keywords."""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import jax
from jaxtyping import PyTree

from hotk._capture import Closure, StaticArrays
from hotk._core import Function, ModeError, Point, message
from hotk._dense import Block, By, Division, Sizes, split_over
from hotk._mode import AbstractMode, Auto, Facts, Forward, Reverse


Candidates = Callable[[Facts, Sizes], Sequence[tuple[AbstractMode, str]]]
"""From what limits the modes, and how many numbers go in and come out, to the modes to
try, best first, each with the reason for it."""

USER_CALL: ContextVar[str] = ContextVar("USER_CALL", default="")
"""The call of the user that runs a formula which is no derivative, for messages."""


class Definition:
    """The fixed part of an operator.

    Attributes:
        name: Its public name.
        takes: What follows the point: `"v"`, a direction; `"u"`, a cotangent; `"vs"`, a
            tuple of directions; `"c"`, arrays of any shape; or `""`, nothing.
        wants: What `f` must return: `"scalar"`, one real number; `"single"`, the same
            or with one axis of length one; `"inexact"`, a tree; `"pair"`, a real number
            and a tree of real arrays; `"outputs"`, a tree, or one real number as for
            `"single"`.
        formula: The operator for a function of one argument. It returns its results,
            then `aux`; the value of `f`, if it is among them, comes first.
        value: Whether the value is among the results.
        candidates: From facts and sizes to the modes to try, best first.
        modes: The classes of mode that it accepts.
        sized: Whether it works in blocks.
        divides: Whether it has a dense result, which may be divided among devices.
        choice: The class of its keyword `order`: `int`, another that hotk itself gives,
            or `None` if it has no such keyword.
        curved: From `order`, whether all results but the value are derivatives of
            second order or higher.
        static_arrays: Which arrays are always static by content: `ALL_INTEGERS` if the
            structure of the result is that of the indices in `f`.
        weighted: Whether it takes `weights` of the outputs.
        iterates: Whether its programs are loops of many small operations, for which the
            compiler takes longer than for the function.
    """

    __slots__ = (
        "candidates",
        "choice",
        "curved",
        "divides",
        "formula",
        "iterates",
        "modes",
        "name",
        "sized",
        "static_arrays",
        "takes",
        "value",
        "wants",
        "weighted",
    )

    def __init__(
        self,
        name: str,
        *,
        takes: str,
        wants: str,
        formula: Callable[..., PyTree],
        value: bool,
        candidates: Candidates,
        modes: tuple[type[AbstractMode], ...],
        sized: bool,
        divides: bool = False,
        choice: type | None,
        curved: Callable[..., bool],
        static_arrays: StaticArrays,
        weighted: bool = False,
        iterates: bool = False,
    ) -> None:
        self.name = name
        self.takes = takes
        self.wants = wants
        self.formula = formula
        self.value = value
        self.candidates = candidates
        self.modes = modes
        self.sized = sized
        self.divides = divides
        self.choice = choice
        self.curved = curved
        self.static_arrays = static_arrays
        self.weighted = weighted
        self.iterates = iterates

    def call(self) -> str:
        """Write the call as it stands in messages: `hvp(f, x, v)`.

        Of a formula that is no derivative it is the call that the user made.
        """
        if self.iterates and (of_user := USER_CALL.get()):
            return of_user
        direction = f", {self.takes}" if self.takes else ""
        return f"{self.name}(f, x{direction})"

    def roots(self, count: int) -> tuple[str, ...]:
        """Name the arguments of a call that has `count` of them after `f`."""
        named = ("x", *((self.takes,) if self.takes else ()))
        further = tuple(f"args[{i}]" for i in range(count - len(named)))
        return named[:count] + further


class Options:
    """An operator with its keywords.

    Each combination exists once, so it is hashed and compared by identity: a key of the
    store begins with it, and is hashed at every direct call.

    Attributes:
        definition: The operator.
        mode: How the derivatives are taken.
        has_aux: Whether `f` returns `(value, aux)`.
        batched: Whether the direction is a batch of directions.
        block_size: How many directions at once, and how the result is divided.
        order: The order of the derivative, or what else chooses the program.
        selected: For each leaf of the point whether `where` selects it; `None` for all.
    """

    __slots__ = (
        *("batched", "block_size", "definition", "has_aux", "mode", "order"),
        "selected",
    )

    def __init__(
        self,
        definition: Definition,
        mode: AbstractMode,
        has_aux: bool,
        batched: bool,
        block_size: Block,
        order: object,
        selected: tuple[bool, ...] | None = None,
    ) -> None:
        self.definition = definition
        self.order = order
        self.mode = mode
        self.has_aux = has_aux
        self.batched = batched
        self.block_size = block_size
        self.selected = selected

    def evaluate(
        self,
        f: Callable[[Point], tuple[PyTree, PyTree]],
        x: Point,
        v: PyTree,
        mode: AbstractMode,
        block: Block,
    ) -> Sequence[PyTree]:
        """Return the results of the formula: the value if it is one, `aux` last."""
        formula = self.definition.formula
        keywords: dict[str, Any] = {"mode": mode}
        if self.definition.sized:
            keywords["block_size"] = (
                block.size if isinstance(block, Division) else block
            )
        if isinstance(block, Division):
            keywords["split"] = block
        if self.definition.choice is not None:
            keywords["order"] = self.order
        if not self.definition.takes:
            return formula(f, x, **keywords)
        if self.batched:
            return _over_directions(lambda v: formula(f, x, v, **keywords), v)
        return formula(f, x, v, **keywords)

    def arrange(self, results: Sequence[PyTree]) -> PyTree:
        """Return the results of the formula as the caller gets them."""
        *found, aux = results
        if self.has_aux and self.definition.value:
            return ((found[0], aux), *found[1:])
        result = tuple(found) if len(found) > 1 else found[0]
        return (result, aux) if self.has_aux else result

    def __repr__(self) -> str:
        """Show the operator's name."""
        return f"<{self.definition.name}>"


def _over_directions(formula: Callable[[PyTree], PyTree], v: PyTree) -> PyTree:
    """Map over a batch of directions; only the last result depends on them.

    The value and the auxiliary output are not mapped, so they are computed once.
    """

    def split(v: PyTree) -> tuple[PyTree, tuple[PyTree, PyTree]]:
        *shared, product, aux = formula(v)
        return product, (tuple(shared), aux)

    product, (shared, aux) = jax.vmap(split, out_axes=(0, None))(v)
    return (*shared, product, aux)


def divide(
    definition: Definition,
    keywords: tuple[By | None, str | None],
    mode: AbstractMode,
    block: Block,
    f: Function,
    arguments: PyTree,
) -> tuple[AbstractMode, Block]:
    """Return the mode of a call, and how its result is divided among devices.

    Args:
        definition: The operator.
        keywords: `split` and `mesh_axis`.
        mode: The mode that is asked for.
        block: How many directions at once, and how the result is divided already, as
            for a `Prepared` that traces itself again.
        f: The function.
        arguments: What goes in besides.

    Raises:
        TypeError: If the result of the operator is not a matrix.
        ValueError: If `split` is neither of the two, or `mesh_axis` comes alone.
        StructureError: If there is no mesh, or no such axis of it.
        ModeError: If the mode computes the other of rows and columns.
    """
    by, axis = keywords
    call = definition.call()
    if (by is None and axis is None) or isinstance(block, Division):
        return mode, block
    if not definition.divides:
        raise TypeError(
            f"`{call}` has no dense result: `split` and `mesh_axis` are not for it."
        )
    closure = Closure.of(f)
    arrays = [*closure.leaves, *jax.tree.leaves(arguments)]
    known = closure.skeleton.opaque is None
    split = split_over(call, by, axis, block, arrays, all_known=known)
    if Forward not in definition.modes:
        return mode, split
    # Of first order: columns by forward mode, rows by reverse mode.
    wanted = Forward() if by == "columns" else Reverse()
    if not isinstance(mode, Auto) and mode != wanted:
        raise ModeError(
            message(
                call,
                f"this mode does not compute {by}.",
                expected=f"`mode=hotk.{wanted!r}` for `split={by!r}`",
                got=repr(mode),
                fix="Leave `mode` out, or ask for the other split.",
            )
        )
    return wanted, split
