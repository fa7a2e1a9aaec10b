"""Training loops of flax: `apply_gradients` for linen, `nnx_step` for nnx."""

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, Self, TypeVar, overload

import jax
import optax
from jaxtyping import PyTree

from hotk._core import Scalar, extra, message

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


# Of the keywords of an update, the functions whose first argument is the model.
_OF_MODEL = ("obj_fn", "model_fn", "residual_fn")


class _Optimizer(Protocol):
    """An `nnx.Optimizer`, or a class like it."""

    tx: optax.GradientTransformation
    wrt: Any

    def update(self, model: Any, grads: Any, /, **keywords: Any) -> Any: ...


@overload
def nnx_step(
    optimizer: _Optimizer,
    model: Any,
    value_fn: Callable[[Any], Any],
    *,
    has_aux: Literal[False] = ...,
    **keywords: Any,
) -> Scalar: ...


@overload
def nnx_step(
    optimizer: _Optimizer,
    model: Any,
    value_fn: Callable[[Any], Any],
    *,
    has_aux: bool,
    **keywords: Any,
) -> tuple[Scalar, PyTree]: ...


def nnx_step(
    optimizer: _Optimizer,
    model: Any,
    value_fn: Callable[[Any], Any],
    *,
    has_aux: bool = False,
    **keywords: Any,
) -> Scalar | tuple[Scalar, PyTree]:
    """Take one step of an `nnx.Optimizer`, from functions of the module.

    It is `nnx.value_and_grad` followed by `optimizer.update`, which changes the module
    and the optimizer. `optimizer.update` passes the state of the parameters to
    `value_fn`, and this passes the module with these parameters. The module is as it
    was before the gradient was computed: `nnx.Dropout` has the same mask in the
    objective as in the gradient, and statistics are updated once.

    Call it under `nnx.jit`, as any step.

    Args:
        optimizer: An `nnx.Optimizer` with any transformation of optax or hotk. Its
            `wrt` selects the parameters.
        model: The module.
        value_fn: The objective, a function of the module.
        has_aux: Whether `value_fn` returns `(value, aux)`.
        **keywords: Further keywords of the update. `model_fn=` and `residual_fn=` are
            functions of the module as well; all others, such as `loss_fn=` and
            `inputs=`, are passed on as they are. A transformation that takes no
            keywords, such as `optax.adam`, gets none.

    Returns:
        The value at the parameters before the step; with `has_aux`, `(value, aux)`.

    Raises:
        TypeError: If `optimizer` is no `nnx.Optimizer`.
        ImportError: If flax is not installed.

    Example:
        >>> from flax import nnx
        >>> net = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
        >>> optimizer = nnx.Optimizer(net, hotk.optim.newton_cg(), wrt=nnx.Param)
        >>> @nnx.jit
        ... def step(net, optimizer, X, y):
        ...     loss = lambda net: jnp.mean((net(X) - y) ** 2)
        ...     return hotk.optim.nnx_step(optimizer, net, loss)
        >>> X, y = jnp.eye(5, 3), jnp.arange(5.0)[:, None]
        >>> values = [step(net, optimizer, X, y).item() for _ in range(3)]
        >>> values[-1] < values[0]
        True
    """
    nnx = extra("flax.nnx", "everyday")
    if not isinstance(optimizer, nnx.Optimizer):
        raise TypeError(
            message(
                "nnx_step(optimizer, model, value_fn)",
                "`optimizer` must be an optimizer of nnx.",
                expected="nnx.Optimizer(model, transformation, wrt=nnx.Param)",
                got=type(optimizer).__name__,
                fix="Make it from a transformation, as `hotk.optim.newton_cg()`.",
            )
        )
    graph = getattr(optimizer, "graph", None)  # older optimizers have no such choice
    how = {} if graph is None else {"graph": graph}
    graphdef, _, rest = nnx.as_pure(nnx.split(model, optimizer.wrt, ..., **how))

    def of_parameters(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda params, *args: f(nnx.merge(graphdef, params, rest), *args)

    selected = nnx.DiffState(0, optimizer.wrt)
    derive = nnx.value_and_grad(value_fn, argnums=selected, has_aux=has_aux, **how)
    result, grads = derive(model)
    known = {"value": result[0] if has_aux else result, "grad": grads}
    objective = (lambda model: value_fn(model)[0]) if has_aux else value_fn
    given = {**known, "value_fn": objective, **keywords}
    for name in ("value_fn", *_OF_MODEL):
        if given.get(name) is not None:
            given[name] = of_parameters(given[name])
    optimizer.update(model, grads, **(given if _takes_keywords(optimizer.tx) else {}))
    return result


def _takes_keywords(transform: optax.GradientTransformation) -> bool:
    several = optax.GradientTransformationExtraArgs, optax.MultiSteps
    return isinstance(transform, several)
