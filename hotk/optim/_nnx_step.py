"""`nnx_step`: a step of an `nnx.Optimizer`, with functions of the module."""

from collections.abc import Callable
from typing import Any, Literal, Protocol, overload

import optax
from jaxtyping import PyTree

from hotk._core import Scalar, extra, message


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
