"""`Description`: what a captured type says of its things, once for all who ask.

A type is described by one function of a description, a thing, and the name of the
variable that holds the thing in a guard::

    def _describe_deque(d, value, here):
        if d.met(value, here):
            return
        d.same("type({0}) is {1} and len({0}) == {2}", here, deque, len(value))
        for i, item in enumerate(list(value)):
            d.part(item, "[{}]", i, here)

Two classes run it. A `Walk` puts the constants of each line into a key, in order, and
collects the arrays on the way; a `Writer` writes the lines, which ask whether all is as
that walk found it. So a guard cannot ask for less than what the key says, unless a
description says so itself, by `note`.
"""

import abc
import functools
from collections.abc import Callable, Container, Hashable, Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType, TracebackType
from typing import Any, ClassVar, ParamSpec, TypeVar

import equinox as eqx

from hotk._core import JITTED, Tracer

from ._captured_type import CapturedType, Describe, StaticArrays, Trail, is_static
from ._cause import Opaque, OpaqueCause


_P = ParamSpec("_P")
_T = TypeVar("_T")

# How a guard reads a part of a thing: of the variable and of a name or a number.
ITEM = "{0}[{1!r}]"
ATTRIBUTE = "{0}.{1}"
# Another record than that of a thing's type, and what describes the thing.
SeenAs = tuple[CapturedType, Describe]


def opaque_if_it_fails(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a class that cannot be taken apart or made anew make a function opaque."""

    @functools.wraps(function)
    def run(*args: _P.args, **keywords: _P.kwargs) -> _T:
        try:
            return function(*args, **keywords)
        except Exception as error:
            reason = OpaqueCause.DEPTH.says(f"a copy of it cannot be made: {error}")
            raise Opaque(reason) from error

    return run


class _Fixed:
    """What is described inside of it is reached through a class or a static field."""

    __slots__ = ("_description",)

    # A class: a generator would take longer, and a walk enters many.
    def __init__(self, description: "Description") -> None:
        self._description = description

    def __enter__(self) -> None:
        self._description.static_depth += 1

    def __exit__(
        self,
        cls: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._description.static_depth -= 1


class Description(abc.ABC):
    """What the description of a captured type may say of a thing.

    The texts of lines are formats: of the variable `here`, which is `{0}`, and of the
    constants after it. In a walk there are no variables, and no text is put together.

    Attributes:
        writes: Whether lines of a guard are written: what only these need is skipped
            otherwise.
        whole: The objects of which all attributes count, by `id`.
        entered: The methods that were gone into, each with its object.
        static_depth: How many classes and static fields the description is inside of.
        static_arrays: Which captured arrays are static by content.
        chosen: The `id`s of others that are.
        user_classes: Whether a class of the user was met.
        pins_numpy: Whether a NumPy array is a constant of the program, by its content.
        reads_metadata: Whether code was met that reads names or docstrings.
        trail: Where each thing is recorded, if that is asked for.
        root: The function whose code is known already.
        spaces: The variables of a class and of the namespaces of its bases, by the `id`
            of the class; where lines are written.
    """

    # Set by `_dispatch`, for classes that are not registered by themselves.
    find: Callable[[object], CapturedType]
    writes: ClassVar[bool] = False
    # What most walks leave as it is stands in the class: a walk is made in each call.
    reads_by_name = hidden_names = reads_metadata = False
    user_classes = False
    pins_numpy = False
    static_depth = 0
    static_arrays = StaticArrays.NONE
    chosen: Container[int] = ()
    trail: Trail | None = None
    root: object = None
    whole: set[int]
    entered: set[tuple[int, int]]
    spaces: dict[int, tuple[str, dict[type, str]]]

    # ----- What is the same as before, or is not

    @abc.abstractmethod
    def same(self, text: str, here: str, *constants: Any) -> None:
        """Say that a line holds, of these constants, which are hashable."""

    @abc.abstractmethod
    def ask(self, text: str, here: str, *constants: Any) -> None:
        """Write a line that follows from what is in the key, or asks for more."""

    @abc.abstractmethod
    def note(self, *constants: Hashable) -> None:
        """Put what other lines ask for into the key."""

    @abc.abstractmethod
    def piece(
        self, of: Callable[[Any], tuple[Hashable, ...]], value: object, here: str
    ) -> None:
        """Say that a thing is of the same type, and that `of` makes the same of it."""

    @abc.abstractmethod
    def identity(self, value: object, here: str) -> None:
        """Say that it is this very thing, which is not kept alive."""

    def library(self, value: Hashable, here: str) -> None:
        """Say that it is this very thing, of an installed library: it is kept alive."""
        self.note(type(value))  # `jnp.float32 == np.float32`
        self.same("{0} is {1}", here, value)

    @abc.abstractmethod
    def unguarded(self) -> None:
        """Say that no line can ask for it: then a walk looks in each call."""

    # ----- What is inside

    @abc.abstractmethod
    def let(self, value: object, text: str, here: str, *constants: Any) -> str:
        """Return the variable of what a text reads."""

    @abc.abstractmethod
    def part(
        self,
        value: object,
        how: str = "",
        name: Any = "",
        here: str = "",
        read: str = ITEM,
        at: Any = None,
        seen_as: SeenAs | None = None,
    ) -> None:
        """Describe a part of a thing.

        Args:
            value: The part.
            how: How the user would write it, a format of `name`.
            name: Its name or number.
            here: The variable of the thing.
            read: How it is read, a format of `here` and of `at`.
            at: By what it is read, if not by its name.
            seen_as: How it is described, if not as its type is.
        """

    def attribute(self, value: object, name: str, here: str) -> None:
        """Describe an attribute of a thing of Python's own."""
        self.part(getattr(value, name), ".{}", name, here, ATTRIBUTE)

    def fixed(self) -> _Fixed:
        """Return a context for what is reached through a class or a static field."""
        return _Fixed(self)

    @abc.abstractmethod
    def attempt(self, describe: Describe, value: object, here: str) -> bool:
        """Whether a description meets nothing opaque; one that does says nothing."""

    # ----- Arrays

    def by_content(self, value: object) -> bool:
        """Whether an array that was captured is static by content."""
        level = self.static_arrays
        if level and is_static(value, level):
            return True
        return id(value) in self.chosen and not isinstance(value, Tracer)

    @abc.abstractmethod
    def leaf(self, value: object, here: str) -> None:
        """Take a captured array of JAX."""

    @abc.abstractmethod
    def numpy_leaf(
        self, value: Any, copied: Callable[..., tuple[Any, bool]], here: str
    ) -> None:
        """Take a captured array of NumPy.

        Args:
            value: The array.
            copied: Makes its copy, and says whether it holds small integers only.
            here: Its variable.
        """

    @abc.abstractmethod
    def pin(self, value: object, here: str) -> None:
        """Take an array that a class reaches, as a constant of the program."""

    # ----- What was met

    @abc.abstractmethod
    def met(self, value: object, here: str, group: object = None) -> bool:
        """Whether a thing was met before, and which one it is, if so.

        Args:
            value: The thing.
            here: Its variable.
            group: What is shared by all things that it could be, if not its type.

        Raises:
            Opaque: If the thing is mutable and met through a class as well: its copy
                would not be seen by the class.
        """

    def met_static(self, value: object, here: str) -> bool:
        """Whether a thing was met before that is never copied, wherever it is met."""
        depth, self.static_depth = self.static_depth, 1
        try:
            return self.met(value, here)
        finally:
            self.static_depth = depth

    def counts_whole(self, value: object) -> bool:
        """Note that all attributes of an object count; whether that was noted before.

        Some of them may have been read by then.
        """
        if id(value) in self.whole:
            return True
        self.whole.add(id(value))
        if self.trail is not None:
            self.trail.read.pop(id(value), None)
        return False

    def counts_by(self, value: object, *names: str) -> None:
        """Note that these attributes of an object count."""
        if self.trail is not None:
            self.trail.read.setdefault(id(value), set()).update(names)

    @contextmanager
    def inside(self, _module: ModuleType, _path: str) -> Iterator[None]:
        """Record a module that is only passed through on the way to what it holds."""
        yield

    def by_name(self, *, reads: bool = False, hidden: bool = False) -> None:
        """Note code that reads attributes by name, or a name that a walk leaves out.

        Raises:
            Opaque: If both were met: they may belong together.
        """
        self.reads_by_name = self.reads_by_name or reads
        self.hidden_names = self.hidden_names or hidden
        if self.reads_by_name and self.hidden_names:
            text = "it may read by `getattr` what hotk cannot track"
            raise OpaqueCause.LOOKED_UP.opaque(text)


def is_mutable(value: object) -> bool:
    """Whether a thing may change in place, besides classes and functions."""
    if isinstance(value, eqx.Module):
        return False
    settings = getattr(type(value), "__dataclass_params__", None)
    if settings is not None and settings.frozen:
        return False
    return not isinstance(value, (type, FunctionType, tuple, JITTED))
