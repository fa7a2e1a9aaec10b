"""`Shape`: what is static in a call of a function with rules."""

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import jax
import numpy as np
from jaxtyping import PyTree

from hotk._capture import Skeleton
from hotk._mode import Forward, Reverse


Arrays: TypeAlias = list[Any]
"""Arrays of a call in one list: of JAX or NumPy, numbers, tracers, or their types."""

Rule: TypeAlias = Callable[..., PyTree]
"""A rule as a user writes it: `rule(primals, tangents)` and the like."""

Modes: TypeAlias = tuple[type[Forward] | type[Reverse], ...]


class ArrayType(Protocol):
    """The type of an array, as `jax.typeof` returns it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Its dtype."""
        ...


class FunctionWithRules(Protocol):
    """What the derivative of a function asks it for; `Custom` is one."""

    f: Callable[..., PyTree]
    build: Callable[..., PyTree] | None
    jvp: Rule | None
    vjp: Rule | None
    hvp: Rule | None
    taylor: Rule | None
    jvp_modes: Modes
    vjp_modes: Modes
    notes: tuple[str, ...]
    transposable: bool

    @property
    def extras(self) -> dict[str, tuple[str, ...]]:
        """For each rule which of the keywords `y` and `built` it takes."""
        ...

    def __call__(self, *args: PyTree, **keywords: PyTree) -> PyTree:
        """Evaluate the function, so that its derivatives follow the rules."""
        ...

    def rules(self) -> dict[str, Rule]:
        """Return the rules that were given, by name."""
        ...


class Form(NamedTuple):
    """A tree without its arrays.

    Attributes:
        tree: Its structure.
        static: For each leaf its type and value, or `None` where an array stands. The
            type, as 1, 1.0 and True are equal and give different programs.
    """

    tree: Any  # JAX's `PyTreeDef`, which is not a type to type checkers
    static: tuple[tuple[type, Hashable] | None, ...]

    def arrays(self) -> int:
        """Count the arrays."""
        return sum(leaf is None for leaf in self.static)

    def join(self, arrays: Arrays) -> PyTree:
        """Return the tree with these arrays."""
        rest = iter(arrays)
        leaves = (next(rest) if leaf is None else leaf[1] for leaf in self.static)
        return self.tree.unflatten(leaves)

    def only(self, arrays: Arrays) -> PyTree:
        """Return the tree with these arrays and `None` for all else."""
        rest = iter(arrays)
        leaves = (next(rest) if leaf is None else None for leaf in self.static)
        return self.tree.unflatten(leaves)


class Split(NamedTuple):
    """A tree as its arrays and the rest."""

    form: Form
    arrays: Arrays


def split(tree: PyTree) -> Split:
    """Split a tree into its arrays and the rest.

    Python integers are not arrays: they count and choose, as an axis does, and a rule
    that got a tracer for one could not.
    """
    leaves, structure = jax.tree.flatten(tree)
    is_array = [
        isinstance(leaf, (jax.Array, np.ndarray, np.generic, float, complex))
        for leaf in leaves
    ]
    pairs = list(zip(leaves, is_array, strict=True))
    static = tuple(None if a else (type(leaf), leaf) for leaf, a in pairs)
    return Split(Form(structure, static), [leaf for leaf, a in pairs if a])


def shapes(types: Arrays) -> list[jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of these types."""
    return [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]


@dataclasses.dataclass(frozen=True)
class Shape:
    """A function with rules, and what is static in its call: compared by value.

    Its arrays come in one list: those it captured, those built for it, then those it
    is called with.

    Attributes:
        skeleton: The function without the arrays that it captured.
        captured: How many those are.
        built: What was built for it, without arrays.
        arguments: Its arguments, without arrays.
    """

    skeleton: Skeleton
    captured: int
    built: Form
    arguments: Form

    @property
    def template(self) -> FunctionWithRules:
        """The function, with placeholders for what it captured."""
        return cast(FunctionWithRules, self.skeleton.template)

    @property
    def start(self) -> int:
        """Where the arrays of the arguments begin."""
        return self.captured + self.built.arrays()

    def function(self, arrays: Arrays) -> tuple[FunctionWithRules, dict[str, PyTree]]:
        """Return the function with its captured arrays, and what was built for it."""
        captured = arrays[: self.captured]
        function = self.template
        if captured:
            function = cast(FunctionWithRules, self.skeleton.function(captured))
        if self.template.build is None:
            return function, {}
        return function, {"built": self.built.join(arrays[self.captured : self.start])}

    def args(self, arrays: Arrays) -> tuple[PyTree, ...]:
        """Return the arguments."""
        return self.arguments.join(arrays[self.start :])

    def rule(
        self, name: str, arrays: Arrays, value: Callable[[], PyTree]
    ) -> functools.partial[PyTree]:
        """Return a rule with what it takes of the value and of what was built."""
        function, keywords = self.function(arrays)
        extras = function.extras[name]
        if "y" in extras:
            keywords["y"] = value()
        if "built" not in extras:
            keywords.pop("built", None)
        return functools.partial(getattr(function, name), **keywords)

    def call(self, arrays: Arrays) -> PyTree:
        """Evaluate the function itself."""
        function, built = self.function(arrays)
        return function.f(*self.args(arrays), **built)
