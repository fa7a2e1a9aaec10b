"""The type of an optimizer, how its state shows, and its learning rate."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from hotk._core import EnumerationItem, Tracer, describe, describe_tree, from_host, peek


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


def scale_by_rate(
    learning_rate: optax.ScalarOrSchedule,
) -> optax.GradientTransformation:
    """As `optax.scale_by_learning_rate`, with a number that another one may replace.

    A number of Python would be part of the program of `minimize`, which is compiled
    anew for each of them; an array is one of its arguments.
    """
    if callable(learning_rate):
        return optax.scale_by_learning_rate(learning_rate)
    return optax.scale(from_host(-learning_rate))


def show_state(self: Any) -> str:
    """Return the fields of a state: numbers by value, all other arrays by shape.

    The `__repr__` of a `NamedTuple` prints every array in full: the factors of K-FAC
    and the moments of `sophia` are as large as the model. Fields that are `None` are
    left out.
    """
    fields = ", ".join(
        f"{name}={_show(value)}"
        for name, value in zip(self._fields, self, strict=True)
        if value is not None
    )
    return f"{type(self).__name__}({fields})"


def _show(value: object) -> str:
    if isinstance(value, Tracer):
        return describe(value)
    if isinstance(value, jax.Array):
        number = value.ndim == 0 and not jnp.issubdtype(
            value.dtype, jax.dtypes.prng_key
        )
        return f"{value.item():.4g}" if number else describe(value)
    if isinstance(value, EnumerationItem) or peek(value, "_fields"):
        return str(value)
    return describe_tree(value)
