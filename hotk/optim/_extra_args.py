"""What wrappers and training loops keep from a transformation, or hand it too much."""

import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from hotk._core import (
    StructureError,
    Where,
    describe,
    differentiated,
    message,
    nothing_inexact,
    selection,
    split_point,
)

from ._parameters import (
    AllParameters,
    all_parameters,
    is_masked,
    parts_like,
    within_flatten,
)
from ._transformation import StateT, Transformation, transformation_of
from ._whole import compiled


def with_params(
    inner: optax.GradientTransformation, where: Where = None
) -> Transformation[Any]:
    """Pass all parameters to transformations that get only some of them.

    `optax.masked` and `optax.partition` hide some of the parameters, and
    `optax.flatten` passes one vector of them, but the objective needs all parameters,
    as they are. Put `with_params` around these. It also hides parameters without a
    gradient (`None`), and those that a filter does not select, so `inner` can be any
    transformation, such as weight decay, a line search or adam.

    If all arguments except `value_fn=` are arrays on one device, an update outside of
    `jax.jit` is one program. `optax.MultiSteps` and `optax.apply_if_finite`, which
    otherwise compile in each update, then compile once.

    Args:
        inner: Any transformation.
        where: Which leaves of the parameters to change; see `hotk.Where`. The others
            get a step of zero, or `None` where that is their gradient, and have no
            state.

    Returns:
        A transformation that passes `full_params=params` to all inside.

    Raises:
        DtypeError: If `where` selects nothing.
        StructureError: If `where` does not fit the parameters, or is within
            `optax.flatten`.
        TypeError: If `where` is no filter.

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
    return compiled(_with_params(inner, where))


def _with_params(
    inner: optax.GradientTransformation, where: Where
) -> Transformation[Any]:
    given = taking_keywords(inner)

    def init(params: optax.Params) -> optax.OptState:
        flags = _selection("init(params)", params, where)
        if flags is None:
            return given.init(params)
        part, _ = split_point(params, flags)
        if not jax.tree.leaves(part):
            call = "with_params(...).init(params)"
            raise nothing_inexact(call, params, name="params", selected=flags)
        return given.init(part)

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        if params is None:
            return given.update(updates, state, params, **extra)
        known = all_parameters(extra.get("full_params"))
        if known is None and not is_masked(params) and not within_flatten(params):
            # Where they are not all, the error is that of the optimizer inside.
            known = all_parameters(params)
        flags = _selection("update(updates, state, params)", params, where)
        points, treedef = jax.tree.flatten(params)
        slopes = parts_like(_CALL, params, updates)
        moves = list(map(eqx.is_array_like, slopes))
        if flags is not None:
            could = differentiated(points, treedef, flags)
            moves = [a and b for a, b in zip(moves, could, strict=True)]
        kept = lambda leaves: treedef.unflatten(
            [leaf if yes else None for leaf, yes in zip(leaves, moves, strict=True)]
        )
        hides = not all(moves)
        if known is not None:
            part = kept(points) if hides else known.part
            extra["full_params"] = AllParameters(known.full, part)
        if not hides:
            return given.update(updates, state, params, **extra)
        made, state = given.update(kept(slopes), state, kept(points), **extra)
        steps = treedef.flatten_up_to(made)
        for i, yes in enumerate(moves):
            if not yes:
                slope = slopes[i]
                steps[i] = jnp.zeros_like(slope) if eqx.is_array(slope) else slope
        return treedef.unflatten(steps), state

    return transformation_of(init, update)


_CALL = "with_params(...).update(updates, state, params)"


def taking_keywords(
    inner: optax.GradientTransformation,
) -> optax.GradientTransformationExtraArgs:
    """Return a transformation that may be given keywords, read or not."""
    # It passes keywords on, but is of no type of which optax knows that.
    if isinstance(inner, optax.MultiSteps):
        return optax.GradientTransformationExtraArgs(inner.init, inner.update)
    return optax.with_extra_args_support(inner)


def _selection(
    call: str, params: optax.Params, where: Where
) -> tuple[bool, ...] | None:
    """Return for each leaf whether it is selected, `None` if all are."""
    if where is not None and within_flatten(params):
        raise StructureError(
            message(
                f"with_params(...).{call}",
                "`where=` selects leaves, and `optax.flatten` leaves one vector.",
                expected="the parameters as they are",
                got=f"`params` as {describe(params)}",
                fix="Put it around: `hotk.optim.with_params(optax.flatten(...), "
                "where=...)`.",
            )
        )
    if isinstance(where, (bool, jax.Array)):
        raise TypeError(
            message(
                f"with_params(...).{call}",
                "`where` is one truth value for all leaves.",
                expected="a function of a leaf, a class, or a tree of `True` and "
                "`False`",
                got=describe(where),
                fix="`optax.inject_hyperparams` calls a function as a schedule: give "
                'it `static_args="where"`.',
            )
        )
    return selection(f"with_params(...).{call}", params, where)


def restricted(
    transform: Transformation[StateT], where: Where
) -> Transformation[StateT]:
    """Return a transformation of some leaves; without a filter the same one."""
    if where is None:
        return transform
    made = _with_params(transform, where)
    _UNRESTRICTED[made.update] = transform, where
    return made


# By their updates: what a loop makes of some leaves, it makes without the others.
_UNRESTRICTED: weakref.WeakKeyDictionary[
    Callable[..., Any], tuple[optax.GradientTransformationExtraArgs, Where]
] = weakref.WeakKeyDictionary()


def unrestricted(
    transform: optax.GradientTransformation,
) -> tuple[optax.GradientTransformation, Where]:
    """Return what `restricted` was given; a transformation of all leaves as it is.

    A loop over the leaves that move does not wait for the gradient of the others, and
    knows by which ones a minimum has derivatives. The state is the same.
    """
    return _UNRESTRICTED.get(transform.update, (transform, None))


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
    inner = taking_keywords(inner)

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        kept = {name: extra[name] for name in _OPTAX if name in extra}
        return inner.update(updates, state, params, **kept)

    return optax.GradientTransformationExtraArgs(inner.init, update)
