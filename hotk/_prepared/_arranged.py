"""`arranged`: operators behind one name, chosen by arguments that are fixed."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, cast

from jaxtyping import PyTree

from hotk._core import Function, HotkError, Point, names_ours

from ._prepared import Prepared
from ._typed_operator import P, Results, TypedOperator


Arrangement: TypeAlias = tuple[
    TypedOperator[..., PyTree], Function, tuple[PyTree, ...], dict[str, PyTree]
]
"""An operator, a function, what follows the point, and keywords."""


class Arranged:
    """An operator some of whose arguments choose the program.

    It is called, and prepared, as any other.

    Attributes:
        arrangement: From the arguments of a call to the operator behind it, the
            function that it takes, what follows the point, and its keywords.
        words: The calls of the operators behind it as messages have them, each with
            the beginning of what stands for the name of its point.
    """

    def __init__(
        self, function: Callable[..., PyTree], words: Mapping[str, str]
    ) -> None:
        functools.update_wrapper(self, function)
        self.__signature__ = inspect.signature(function)
        kinds = [p.kind for p in self.__signature__.parameters.values()]
        is_open = inspect.Parameter.VAR_KEYWORD in kinds
        checked = function if is_open else names_ours(function)
        self.arrangement: Callable[..., Arrangement] = checked
        self.words = words

    def __call__(self, f: Function, x: Point, *rest: PyTree, **named: PyTree) -> PyTree:
        """Evaluate the operator at `x`."""
        operator, f, arguments, keywords = self.arrangement(f, x, *rest, **named)
        with self._called():
            return operator(f, x, *arguments, **keywords)

    def prepare(
        self,
        f: Function,
        x: Point,
        *rest: PyTree,
        on_mismatch: str = "raise",
        **named: PyTree,
    ) -> Prepared:
        """Trace and compile the operator once, for this function and signature.

        Args:
            f: The function, held as it is now.
            x: A point; only its structure, shapes and dtypes matter.
            *rest: As in a call.
            on_mismatch: `"raise"`, `"retrace"` or `"cast"`: what to do when it is
                called with another signature.
            **named: As in a call.

        Returns:
            An immutable module.
        """
        operator, f, arguments, keywords = self.arrangement(f, x, *rest, **named)
        with self._called():
            return operator.prepare(
                f, x, *arguments, on_mismatch=on_mismatch, **keywords
            )

    @contextlib.contextmanager
    def _called(self) -> Iterator[None]:
        """Let errors name the call that the user made, and its arguments."""
        try:
            yield
        except HotkError as error:
            text = str(error)
            for call, point in self.words.items():
                if text.startswith(call):
                    text = text.removeprefix(call).replace("`x", point)
                    names = list(
                        inspect.signature(self.arrangement).parameters.values()
                    )
                    given = [p.name for p in names if p.kind is p.POSITIONAL_OR_KEYWORD]
                    text = f"`{self.arrangement.__name__}({', '.join(given)})`{text}"
                    error.args = (text, *error.args[1:])
                    break
            raise

    def __reduce__(self) -> str:
        """Pickle it by its name, as a function: there is one of each."""
        return vars(self)["__qualname__"]

    def __repr__(self) -> str:
        """Show the name."""
        return f"<hotk operator {self.arrangement.__name__}>"


def arranged(
    *, words: Mapping[str, str] | None = None
) -> Callable[[Callable[P, Results]], TypedOperator[P, Results]]:
    """Make an operator of a function that arranges the call of another.

    The function leads from the arguments of a call to an operator, the function that
    it takes, what follows the point, and its keywords. Its signature and docstring are
    the operator's, so its annotations say what a caller of it gets.

    Args:
        words: How messages of the operators behind it are to be changed: see
            `Arranged.words`.
    """

    def make(
        function: Callable[P, Results],
    ) -> TypedOperator[P, Results]:
        made = Arranged(function, words or {})
        return cast("TypedOperator[P, Results]", made)

    return make
