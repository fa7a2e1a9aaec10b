"""The type of an optimizer: a transformation of optax, and of which state."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import optax
from jaxtyping import PyTree


StateT = TypeVar("StateT")
UpdatesT = TypeVar("UpdatesT")

if TYPE_CHECKING:
    # To optax, parameters and states are trees of arrays and nothing else: an editor
    # then marks `state.damping`, and a module that is passed as `params`.

    class _Update(Protocol[StateT]):
        def __call__(
            self,
            updates: UpdatesT,
            state: StateT,
            params: PyTree | None = None,
            **extra_args: Any,
        ) -> tuple[UpdatesT, StateT]: ...

    class Transformation(optax.GradientTransformationExtraArgs, Generic[StateT]):
        """A transformation whose state a type checker knows."""

        init: Callable[[PyTree], StateT]  # pyright: ignore[reportIncompatibleVariableOverride]
        update: _Update[StateT]  # pyright: ignore[reportIncompatibleVariableOverride]

    Chained: TypeAlias = Transformation[tuple[StateT, *tuple[Any, ...]]]
    """With others behind it: its own state is the first."""
else:

    class _OfOptax:
        """When the program runs, `Transformation[State]` is the class of optax."""

        def __class_getitem__(cls, state):
            return optax.GradientTransformationExtraArgs

    Transformation = Chained = _OfOptax


def chained(
    inner: Transformation[StateT], *others: optax.GradientTransformation
) -> Chained[StateT]:
    """Return `optax.chain` of them, with the type of the first state."""
    made: Any = optax.chain(inner, *others)
    return made


def transformation_of(
    init: Callable[..., Any], update: Callable[..., Any]
) -> Transformation[Any]:
    """Return the transformation of two functions."""
    made: Any = optax.GradientTransformationExtraArgs(init, update)
    return made
