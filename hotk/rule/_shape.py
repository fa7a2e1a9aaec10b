"""`Shape`: what is static in a call of a function with rules."""

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import numpy as np

from hotk.capture import Skeleton


Arrays = list[Any]


class Form(NamedTuple):
    """A tree without its arrays.

    Attributes:
        tree: Its structure.
        kept: For each leaf its type and value, or `None` where an array stands.
    """

    tree: Any
    kept: tuple[tuple[type, Hashable] | None, ...]

    def arrays(self) -> int:
        """Count the arrays."""
        return sum(k is None for k in self.kept)

    def join(self, arrays: Arrays) -> Any:
        """Return the tree with these arrays."""
        rest = iter(arrays)
        return self.tree.unflatten(next(rest) if k is None else k[1] for k in self.kept)

    def only(self, arrays: Arrays) -> Any:
        """Return the tree with these arrays and `None` at what is no array."""
        rest = iter(arrays)
        return self.tree.unflatten(next(rest) if k is None else None for k in self.kept)


class Split(NamedTuple):
    """A tree as its arrays and the rest."""

    form: Form
    arrays: Arrays


def split(tree: Any) -> Split:
    """Split a tree into its arrays and the rest."""
    leaves, structure = jax.tree.flatten(tree)
    moving = [
        isinstance(leaf, (jax.Array, np.ndarray, np.generic, float, complex))
        for leaf in leaves
    ]
    pairs = list(zip(leaves, moving, strict=True))
    kept = tuple(None if m else (type(leaf), leaf) for leaf, m in pairs)
    return Split(Form(structure, kept), [leaf for leaf, m in pairs if m])


@dataclasses.dataclass(frozen=True)
class Shape:
    """A function with rules, and what is static in its call: compared by value.

    Its arrays come in one list: those it captured, those built for it, then those it
    is called with.

    Attributes:
        skeleton: The function without the arrays that it captured.
        captured: How many those are.
        built: What was built for it, without arrays.
        given: Its arguments, without arrays.
    """

    skeleton: Skeleton
    captured: int
    built: Form
    given: Form

    @property
    def template(self) -> Any:
        """The function, with placeholders for what it captured."""
        return self.skeleton.template

    @property
    def start(self) -> int:
        """Where the arrays of the arguments begin."""
        return self.captured + self.built.arrays()

    def function(self, arrays: Arrays) -> tuple[Any, dict[str, Any]]:
        """Return the function with its captured arrays, and what was built for it."""
        held = arrays[: self.captured]
        function = self.skeleton.function(held) if held else self.template
        if self.template.build is None:
            return function, {}
        return function, {"built": self.built.join(arrays[self.captured : self.start])}

    def args(self, arrays: Arrays) -> tuple[Any, ...]:
        """Return the arguments."""
        return self.given.join(arrays[self.start :])

    def rule(
        self, name: str, arrays: Arrays, value: Callable[[], Any]
    ) -> functools.partial:
        """Return a rule with what it takes of the value and of what was built."""
        function, keywords = self.function(arrays)
        wanted = function.extras[name]
        if "y" in wanted:
            keywords["y"] = value()
        if "built" not in wanted:
            keywords.pop("built", None)
        return functools.partial(getattr(function, name), **keywords)

    def call(self, arrays: Arrays) -> Any:
        """Evaluate the function itself."""
        function, built = self.function(arrays)
        return function.f(*self.args(arrays), **built)
