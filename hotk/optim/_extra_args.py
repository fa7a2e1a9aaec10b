"""What wrappers of optax keep from a transformation, or hand it too much of."""

from typing import Any

import optax


def with_params(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Hand all parameters on to transformations that see only some.

    `optax.masked` and `optax.partition` hide the parameters of others, which the
    objective needs as well. Put it around them:

    Args:
        inner: Any transformation.

    Returns:
        The same, which gives `full_params=params` to all inside.

    Example:
        >>> labels = {"w": "curved", "b": "plain"}
        >>> inner = {"curved": hotk.optim.newton_cg(1.0), "plain": optax.sgd(0.1)}
        >>> transform = hotk.optim.with_params(optax.partition(inner, labels))
        >>> f = lambda p: jnp.sum((p["w"] - 3.0) ** 2) + p["b"] ** 2
        >>> p = {"w": jnp.zeros(2), "b": 1.0}
        >>> state = transform.init(p)
        >>> step, state = transform.update(jax.grad(f)(p), state, p, value_fn=f)
        >>> optax.apply_updates(p, step)["w"].round(5).tolist()
        [3.0, 3.0]
    """
    inner = optax.with_extra_args_support(inner)

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        extra.setdefault("full_params", params)
        return inner.update(updates, state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)


_OPTAX = ("value", "grad", "value_fn")


def strip_extra_args(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Keep keywords from a transformation that refuses them.

    The line searches of optax hand each keyword of an update on to the objective, and
    refuse those that it does not take, such as `model_fn` or `full_params`.

    Args:
        inner: Any transformation.

    Returns:
        The same, given no keywords but `value`, `grad` and `value_fn`.

    Example:
        >>> search = optax.scale_by_backtracking_linesearch(20)
        >>> transform = optax.chain(
        ...     hotk.optim.natural_gradient(1.0), hotk.optim.strip_extra_args(search)
        ... )
        >>> loss = hotk.curvature.SquaredError(jnp.ones(2), reduction="sum")
        >>> model = lambda w: 3 * w
        >>> f = lambda w: loss(model(w))
        >>> w = jnp.zeros(2)
        >>> value, g = jax.value_and_grad(f)(w)
        >>> step, _ = transform.update(
        ...     g, transform.init(w), w, value=value, grad=g, value_fn=f,
        ...     model_fn=model, loss_fn=loss,
        ... )
        >>> bool(f(w + step) < f(w))
        True
    """
    inner = optax.with_extra_args_support(inner)

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        kept = {name: extra[name] for name in _OPTAX if name in extra}
        return inner.update(updates, state, params, **kept)

    return optax.GradientTransformationExtraArgs(inner.init, update)
