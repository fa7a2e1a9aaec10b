"""`Closure`: a callable as a module of captured arrays and a static skeleton."""

from collections.abc import Hashable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import Function, PreparationError, function_name, message

from ._captured_type import StaticArrays, Trail, register, uncopied
from ._cause import Opaque, OpaqueReason, reason_of
from ._description import Description, opaque_if_it_fails
from ._guard import PLACES
from ._rebuild import Rebuild, survey
from ._walk import Placeholder, Walk


class Skeleton:
    """The static part of a callable: compared and hashed by its key.

    Attributes:
        key: What was captured besides arrays, flat and hashable.
        name: The callable's name, for messages.
        static_arrays: Which captured arrays are static by content.
        chosen: The numbers of others that are, among all captured arrays.
        opaque: Why the callable is opaque, or `None`.
        count: How many arrays were captured.
        user_classes: Whether a class of the user was met, which no copy holds as it
            was.
        place: An object of its own, by which guards of what holds it are found.
        template: The callable with placeholders where the arrays were.
    """

    __slots__ = (
        "__weakref__",
        "_hash",
        "chosen",
        "count",
        "key",
        "name",
        "opaque",
        "place",
        "static_arrays",
        "template",
        "user_classes",
    )

    def __init__(
        self,
        key: tuple[Hashable, ...],
        template: Function,
        *,
        name: str,
        static_arrays: StaticArrays = StaticArrays.NONE,
        chosen: tuple[int, ...] = (),
        count: int = 0,
        opaque: OpaqueReason | None = None,
        user_classes: bool = False,
    ) -> None:
        self.key = key
        self.template = template
        self.name = name
        self.static_arrays = static_arrays
        self.chosen = chosen
        self.opaque = opaque
        self.count = count
        self.user_classes = user_classes
        self.place = object()
        # Once: JAX hashes a static field each time that it looks a program up.
        self._hash = hash(key)

    def __eq__(self, other: object) -> bool:
        """Whether the other skeleton has the same key."""
        return self is other or (isinstance(other, Skeleton) and self.key == other.key)

    def __hash__(self) -> int:
        """Return the hash of the key."""
        return self._hash

    def __copy__(self) -> "Skeleton":
        """Return itself: nothing in it can change."""
        return self

    def __deepcopy__(self, memo: object) -> "Skeleton":
        """Return itself: nothing in it can change."""
        return self

    def __reduce__(self) -> str:
        """Refuse to be pickled: it has code, which pickle knows by its place only."""
        raise TypeError(
            message(
                self.name,
                "a function that was split into arrays and code cannot be pickled.",
                expected="use in the process that made it, or `copy.deepcopy`",
                got="`pickle`, or another process",
                fix="Send the function and the arguments, and make the operator in the "
                "other process.",
            )
        )

    def __repr__(self) -> str:
        """Show the callable's name."""
        return f"<skeleton of {self.name}>"

    def survey(self) -> tuple[Walk, Trail]:
        """Walk the template."""
        static, chosen = self.static_arrays, self.chosen
        return survey(self.template, static_arrays=static, chosen=chosen)

    def function(self, leaves: Sequence[object]) -> Function:
        """Rebuild the callable with these arrays in place of the captured ones."""
        if self.opaque is not None:
            return self.template
        # Anew each time: a copy may be written into by the function that it is in.
        try:
            walk, trail = self.survey()
        except Opaque as reason:  # of a class that was changed since
            problem = message(
                self.name,
                "it was split into arrays and code, and cannot be rebuilt.",
                expected="its classes as they were, or other values in them",
                got=str(reason),
                fix="Make the operator, or what else contains it, again.",
            )
            raise PreparationError(problem) from None
        numbers = {id(p): leaves[p.number] for p in walk.originals}
        return Rebuild(trail, numbers)(self.template)


class Closure(eqx.Module):
    """A callable as a module: captured arrays are leaves, the rest is static.

    Two closures with equal skeletons have the same code and the same captured
    structure; they differ in the values of their leaves only.

    Attributes:
        leaves: The captured arrays, in the order of the walk. NumPy arrays became JAX
            arrays of their own.
        skeleton: All else: static, hashable, compared by value.

    Example:
        >>> scale = jnp.array([1.0, 2.0])
        >>> closure = hotk.Closure.of(lambda x: jnp.sum(scale * x))
        >>> closure(jnp.ones(2)).item(), len(closure.leaves)
        (3.0, 1)
    """

    leaves: tuple[Any, ...]
    skeleton: Skeleton = eqx.field(static=True)

    # As of a `Prepared`: each direct call reads both.
    __getattribute__ = object.__getattribute__

    @property
    def func(self) -> Function:
        """What it is named after in messages, as a partial is."""
        return self.skeleton.template

    @staticmethod
    def of(
        f: Function,
        *,
        static_arrays: StaticArrays = StaticArrays.NONE,
        chosen: tuple[int, ...] = (),
    ) -> "Closure":
        """Split a callable into captured arrays and a skeleton.

        Args:
            f: Any callable. One that is opaque (see `hotk.explain`) has no leaves and
                is its own skeleton.
            static_arrays: Which captured arrays are static by content: parts of the
                skeleton instead of leaves. None unless Python code needs their values.
            chosen: The numbers of others that are, among all captured arrays.

        Returns:
            The closure, which computes what `f` computes now.
        """
        if isinstance(f, Closure):
            return f
        name = function_name(f)
        try:
            walk, trail = survey(f, static_arrays=static_arrays, chosen=chosen)
            walk.close()
            template = _template(f, walk, trail)
        except (Opaque, RecursionError) as error:
            skeleton = Skeleton((id(f),), f, name=name, opaque=reason_of(error))
            return Closure((), skeleton)
        skeleton = Skeleton(
            tuple(walk.key),
            template,
            name=name,
            static_arrays=static_arrays,
            chosen=chosen,
            count=len(walk.leaves),
            user_classes=walk.user_classes,
        )
        return Closure(tuple(map(_own, walk.leaves)), skeleton)

    @staticmethod
    def joined(skeleton: Skeleton, leaves: Sequence[object]) -> "Closure":
        """Put a skeleton together with captured arrays, without checks."""
        closure = object.__new__(Closure)
        vars(closure).update(leaves=tuple(leaves), skeleton=skeleton)
        return closure

    def __call__(self, *args: PyTree, **keywords: PyTree) -> PyTree:
        """Call the rebuilt callable."""
        return self.skeleton.function(self.leaves)(*args, **keywords)


def _template(f: Function, walk: Walk, trail: Trail) -> Function:
    """Rebuild a callable without its arrays: the static ones of NumPy as copies.

    So a closure keeps neither the arrays of the user alive nor what changes in place.
    """
    replacements: dict[int, Any] = trail.numpy_copies()
    replacements |= {id(a): Placeholder(i) for i, a in enumerate(walk.originals)}
    rebuilt = lambda: Rebuild(trail, replacements, every=True)(f)
    return opaque_if_it_fails(rebuilt)()


def _own(leaf: object) -> object:
    return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf


def _describe_skeleton(d: Description, value: Skeleton, here: str) -> None:
    """A function that was split: as it was, but its classes as they are now."""
    d.note(value)
    if value.user_classes or value.opaque is not None:
        d.unguarded()  # its classes may have changed
    if value.user_classes and value.opaque is None:
        # by itself: what stands for arrays in it is not an array of this walk
        now, _ = value.survey()
        d.note(tuple(now.key))
        d.user_classes = True
    if d.writes:
        d.identity(value, here)


register(uncopied(_describe_skeleton, "static"), Skeleton)
# All closures run one code, so they would share the few guards that it may have.
PLACES[Closure] = lambda closure: closure.skeleton.place
