"""`TracedProgram`, and functions as such programs; by what their rules are known."""

import functools
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType, MethodType
from typing import Any, final

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PyTree

from hotk._core import (
    CUSTOM,
    ClosedJaxpr,
    Function,
    Jaxpr,
    Leaf,
    Literal,
    PyTreeDef,
    StructureError,
    Unrecognized,
    describe_tree,
    equations,
    fingerprint,
    inner_jaxprs,
    is_type,
    jaxpr_as_fun,
    message,
    rule_functions,
    shape_of,
    trace_context,
    trace_once,
    unkeyed_setting,
)

from ._arrays import own_copy
from ._cause import Opaque
from ._declared import static
from ._library import is_library_file, is_permanent
from ._walk import Walk


_DEEPEST = 12
_TREEDEF = type(jax.tree.structure(0))
_PLAIN = (type(None), bool, int, str, bytes, type, np.dtype, _TREEDEF)


def rule_key(equation: Any, *, own: bool = False) -> Hashable:
    """Return what the rules of a function with its own derivative are known by.

    Rules of installed libraries are what their code says. One of the user may read
    what changes: it is known by what a walk of it finds now.

    Args:
        equation: The call of such a function.
        own: Whether rules of the user may be known: only where each program is derived
            with its own rules, as they may change after the first was made.

    Raises:
        Unrecognized: If a rule holds what cannot be compared.
    """
    try:
        parts, mapped = rule_functions(equation)
    except Exception as error:  # JAX keeps its rules elsewhere
        raise Unrecognized("a derivative rule that is not found") from error
    try:
        return (mapped, *(_part_key(part, 0) for part in parts))
    except Unrecognized:
        if not own:
            raise
    walk = Walk()
    try:
        for part in parts:
            walk.visit(part)
        walk.close()
    except (Opaque, RecursionError) as error:
        raise Unrecognized("a derivative rule that no walk sees through") from error
    # An array in a rule would be known by its number alone, and not by its value.
    if walk.leaves:
        raise Unrecognized("a derivative rule that has captured an array")
    return (mapped, *walk.key)


def _part_key(part: object, depth: int) -> Hashable:
    if depth > _DEEPEST:
        raise Unrecognized("a derivative rule that is nested too deeply")
    below = depth + 1
    if isinstance(part, FunctionType):
        code = part.__code__
        # What it reads besides may change, and is not in this key.
        if not is_library_file(code.co_filename):
            raise Unrecognized("a derivative rule of the user")
        if part.__closure__ is not None and is_permanent(part):
            return ("permanent", part)
        try:
            cells = [cell.cell_contents for cell in part.__closure__ or ()]
        except ValueError as error:
            raise Unrecognized("a derivative rule with an empty cell") from error
        defaults = (part.__defaults__ or (), part.__kwdefaults__ or {})
        held = _part_key((cells, defaults), below)
        return (code, part.__module__, held)
    if isinstance(part, (tuple, list)):
        return (type(part), *(_part_key(item, below) for item in part))
    if isinstance(part, dict):
        names = tuple(part)
        return (dict, names, _part_key(list(part.values()), below))
    if isinstance(part, functools.partial):
        return ("partial", _part_key((part.func, part.args, part.keywords), below))
    if isinstance(part, MethodType):
        return ("method", _part_key((part.__func__, part.__self__), below))
    if isinstance(part, (float, complex)):
        return (type(part), repr(part))
    if type(part) in _PLAIN or isinstance(part, type):
        return (type(part), part)
    if is_type(part):
        return (type(part), part)
    if is_permanent(part):
        return ("permanent", type(part), id(part))
    raise Unrecognized(f"a derivative rule that holds a {type(part).__name__}")


@static
class TracedProgram:
    """A program as JAX traced it, with the structure of what it returns.

    Attributes:
        closed: The equations, closed over the constants.
        out_tree: The structure of the result.
        identity: What tells the equations from others; `None` if that is not known, or
            was not asked for. The program is then equal to itself alone.
    """

    __slots__ = ("_hash", "closed", "identity", "out_tree")

    def __init__(
        self,
        closed: ClosedJaxpr,
        out_tree: PyTreeDef,
        identity: Hashable = None,
    ) -> None:
        self.closed = closed
        self.out_tree = out_tree
        self.identity = identity
        self._hash = id(self) if identity is None else hash(identity)

    @staticmethod
    def of(
        f: Callable[..., PyTree], *arguments: PyTree, kept: bool = False
    ) -> "TracedProgram":
        """Trace a function now; what does not depend on the arguments is computed.

        Args:
            f: The function.
            *arguments: Trees of arrays and numbers, like those it will be called with.
            kept: Whether the program is run more than once: then it calls the host.
        """
        closed, shapes = trace_once(f, *arguments, kept=kept)
        return TracedProgram(closed, jax.tree.structure(shapes))

    @property
    def constants(self) -> list[Any]:
        """The arrays that the function had captured."""
        return self.closed.consts

    @property
    def shapes(self) -> PyTree[jax.ShapeDtypeStruct]:
        """Shapes and dtypes of the result."""
        found = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in self.closed.out_avals]
        return self.out_tree.unflatten(found)

    def with_constants(self, constants: Sequence[Leaf]) -> "TracedProgram":
        """Return the program with other constants."""
        closed = self.closed.replace(consts=list(constants))
        return TracedProgram(closed, self.out_tree)

    def with_own_constants(self) -> "TracedProgram":
        """Return the program with copies of the NumPy arrays among its constants.

        JAX would share their memory, and the user may write into them after the call
        (`no_program_shares_the_memory_of_a_numpy_array`).
        """
        _own_literals(self.closed.jaxpr)
        arrays = [
            own_copy(c) if isinstance(c, np.ndarray) else c for c in self.constants
        ]
        return self.with_constants(arrays)

    def without_constants(self) -> "TracedProgram":
        """Return the equations alone: equal to those that compute the same."""
        closed = self.closed.replace(consts=[None] * len(self.constants))
        return TracedProgram(closed, self.out_tree, self._identity())

    def _identity(self) -> Hashable:
        """Return what tells it from others, to be differentiated as well as run.

        It is the program without its constants, and the rules of the functions in it
        that have a derivative of their own. `None` if it cannot be told.
        """
        try:
            key, _ = fingerprint(self.closed, lift=True)
            rules = [
                rule_key(equation, own=True)
                for equation in equations(self.closed.jaxpr)
                if equation.primitive.name in CUSTOM
            ]
            settings = (trace_context(), unkeyed_setting())
            identity = (*settings, self.out_tree, key, *rules)
            hash(identity)
        except (Unrecognized, TypeError):
            return None
        return identity

    def __copy__(self) -> "TracedProgram":
        """Return itself: nothing in it can change."""
        return self

    def __deepcopy__(self, memo: object) -> "TracedProgram":
        """Return itself: nothing in it can change."""
        return self

    def __reduce__(self) -> str:
        """Refuse to be pickled: what JAX traced has functions of this process."""
        raise TypeError(
            "a traced program: the function is opaque, or needs the value of an array "
            "in Python; see `hotk.explain`"
        )

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Run the program on trees whose leaves are its inputs, in order.

        Raises:
            StructureError: If they have other shapes than it was traced for: numbers in
                it, as those of a mean, are those of its shapes.
        """
        leaves = jax.tree.leaves(arguments)
        shapes = [shape_of(type_) for type_ in self.closed.in_avals]
        if [a.shape for a in shapes] != [np.shape(a) for a in leaves]:
            raise StructureError(
                message(
                    "a traced function",
                    "it is called with arrays of other shapes than it was traced for.",
                    expected=describe_tree(shapes),
                    got=describe_tree(leaves),
                    fix="Use equal shapes, as for all batches but a short last one. "
                    "`hotk.explain(f)` says why a function is kept as a program; one "
                    "that is not takes arrays of any shape.",
                )
            )
        return self.out_tree.unflatten(jaxpr_as_fun(self.closed)(*leaves))

    def __eq__(self, other: object) -> bool:
        """Whether the other one computes the same and has the same derivatives."""
        if self is other:
            return True
        if not isinstance(other, TracedProgram) or self.identity is None:
            return False
        return self.identity == other.identity

    def __hash__(self) -> int:
        """Return the hash of what tells it from others."""
        return self._hash


def _own_literals(jaxpr: Jaxpr) -> None:
    """Copy the numbers of a program: one of a NumPy array shares its memory as well."""
    read = (atom for equation in jaxpr.eqns for atom in equation.invars)
    for atom in (*jaxpr.outvars, *read):
        if isinstance(atom, Literal) and isinstance(atom.val, np.ndarray):
            atom.val = atom.val.copy()
    for equation in jaxpr.eqns:
        for inner in inner_jaxprs(equation.params.values()):
            _own_literals(inner)


def with_copies(run: Callable[[], PyTree]) -> PyTree:
    """Call a function as its program, with copies of the NumPy arrays that it holds.

    Those may be written to, while a program that is kept reads them: JAX shares their
    memory, and remembers a converted one for as long as a program of it lives.
    """
    closed, shapes = jax.make_jaxpr(run, return_shape=True)()
    return TracedProgram(closed, jax.tree.structure(shapes)).with_own_constants()()


@final
class Staged(eqx.Module):
    """A function as the program that it was when it was traced.

    What cannot be split into arrays and the rest is held this way.

    Attributes:
        constants: The arrays that it had captured.
        program: The program, without them.
    """

    constants: list[Array]
    program: TracedProgram = eqx.field(static=True)

    @staticmethod
    def of(f: Function, *arguments: PyTree) -> "Staged":
        """Trace a function now; what does not depend on the arrays is computed.

        Args:
            f: The function.
            *arguments: Trees of arrays and numbers, like those it will be called with.
        """
        traced = TracedProgram.of(f, *arguments, kept=True)
        return Staged(list(traced.constants), traced.without_constants())

    def __call__(self, *arguments: PyTree) -> PyTree:
        """Run the program."""
        return self.program.with_constants(self.constants)(*arguments)
