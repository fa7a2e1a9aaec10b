"""`apply_gradients`: the objective for the optimizer in a training state."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self, TypeVar

import jax
import optax

from hotk._core import message

from ._extra_args import taking_keywords


# What the updates of optax and of hotk take.
_TAKEN = (
    *("value", "grad", "value_fn", "obj_fn"),
    *("model_fn", "loss_fn", "residual_fn", "full_params"),
)


class _TrainState(Protocol):
    """A `flax.training.train_state.TrainState`, or a class like it."""

    @property
    def tx(self) -> optax.GradientTransformation: ...
    def replace(self, **fields: Any) -> Self: ...
    def apply_gradients(self, *, grads: Any, **fields: Any) -> Self: ...


State = TypeVar("State", bound=_TrainState)


def apply_gradients(state: State, *, grads: optax.Updates, **keywords: Any) -> State:
    """Call `state.apply_gradients` with more keywords for the transformation.

    A `TrainState` of flax calls `tx.update(grads, opt_state, params)`, without the
    objective that second-order optimizers need.

    Args:
        state: A `flax.training.train_state.TrainState`, or a class like it.
        grads: The gradient with respect to `state.params`.
        **keywords: Those of the update: `value_fn=`, `model_fn=` and so on. Those that
            name a field of the state, such as `batch_stats=`, replace it.

    Returns:
        The state after the step.

    Raises:
        TypeError: If no update, and none of the passed functions, takes a keyword that
            is a function, or if a keyword looks like a misspelled one.

    Example:
        >>> from dataclasses import dataclass, replace
        >>> @dataclass
        ... class TrainState:  # as that of flax
        ...     params: jax.Array
        ...     opt_state: tuple
        ...     tx: optax.GradientTransformation
        ...     def replace(self, **fields):
        ...         return replace(self, **fields)
        ...     def apply_gradients(self, *, grads, **fields):
        ...         step, s = self.tx.update(grads, self.opt_state, self.params)
        ...         p = optax.apply_updates(self.params, step)
        ...         return self.replace(params=p, opt_state=s, **fields)
        >>> f = lambda p: jnp.sum((p - 2.0) ** 2)
        >>> p, transform = jnp.zeros(2), hotk.optim.newton_cg(1.0)
        >>> state = TrainState(p, transform.init(p), transform)
        >>> grads = jax.grad(f)(state.params)
        >>> state = hotk.optim.apply_gradients(state, grads=grads, value_fn=f)
        >>> state.params.tolist()
        [2.0, 2.0]
    """
    transform = state.tx
    names = getattr(type(state), "__dataclass_fields__", {})
    fields = {name: keywords[name] for name in keywords if name in names}
    extra = {name: keywords[name] for name in keywords if name not in names}
    _refuse_unknown(extra)

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
    ) -> tuple[optax.Updates, optax.OptState]:
        return taking_keywords(transform).update(updates, state, params, **extra)

    # The transformation is a static field: another one would be another program.
    bound = state.replace(tx=optax.GradientTransformation(transform.init, update))
    return bound.apply_gradients(grads=grads, **fields).replace(tx=transform)


def _refuse_unknown(keywords: Mapping[str, Any]) -> None:
    """Refuse what nobody takes: an update ignores keywords that it does not know.

    A transformation of the user may take other numbers and arrays; these pass.
    """
    is_function = {
        name: callable(given) and not isinstance(given, jax.Array)
        for name, given in keywords.items()
    }
    known = set(_TAKEN)
    for name in keywords:
        if name in _TAKEN and is_function[name]:
            known |= _parameters(keywords[name])
    for name in keywords.keys() - known:
        near = difflib.get_close_matches(name, _TAKEN, 1, 0.8)
        if is_function[name] or near:
            fix = f"Write `{near[0]}=`." if near else "The objective is `value_fn=`."
            raise TypeError(
                message(
                    "apply_gradients(state, grads=...)",
                    f"no update takes the keyword `{name}`.",
                    expected=", ".join(f"`{each}`" for each in _TAKEN)
                    + ", a field of the state, or what one of the functions takes",
                    got=f"{name}=",
                    fix=fix,
                )
            )


def _parameters(function: Callable[..., Any]) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()
