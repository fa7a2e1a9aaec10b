"""`sophia`: a clipped mean of gradients over a mean of diagonals."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, PyTree

from hotk._core import Function, Gradient, Point, Scalar, Where
from hotk.curvature import AbstractLikelihood
from hotk.linop import space

from ._extra_args import restricted
from ._local import AtPoint, Numbers
from ._moments import (
    LIKE_PARAMS,
    DiagonalState,
    estimated,
    first_moments,
    mean_of,
    of_signs,
    with_gradient,
    zero_unless_accepted,
)
from ._step import of_steps, transformation, with_keywords
from ._transformation import Chained, Transformation, scale_by_rate, transformation_of


def _of_squares(local: AtPoint, gradient: Gradient, key: Array) -> PyTree:
    """Return the squares of the gradient of an objective that is `_Drawn`."""
    del gradient, key
    return jax.tree.map(lambda a: a * a, space.widened(local.gradient()))


@final
class _Drawn(eqx.Module):
    r"""A function whose squared gradient estimates the Gauss-Newton diagonal.

    Targets are drawn from the model; with the gradient g of the loss for them, the
    estimate is $g^2 / c$, c the factor of the loss: 1/N for a mean over N examples.
    """

    model: Function
    loss: AbstractLikelihood
    key: Array

    def __call__(self, x: Point) -> Scalar:
        z = self.model(x)
        fixed = jax.lax.stop_gradient(z)
        key, _ = jax.random.split(jax.random.wrap_key_data(self.key))
        slope = self.loss.slope(fixed, self.loss.sample(key, fixed))
        slope = jax.lax.stop_gradient(slope)
        root = jnp.asarray(self.loss.factor(z) ** 0.5, z.dtype)
        return jnp.sum(root * slope * z)


def _drawn(
    value_fn: Function | None, extra: Mapping[str, Any], state: DiagonalState
) -> "_Drawn":
    del value_fn
    model, loss = with_keywords(extra.get("model_fn"), extra), extra.get("loss_fn")
    if model is None or not isinstance(loss, AbstractLikelihood):
        raise TypeError(
            '`sophia(estimator="gnb").update`: give `model_fn=`, from the parameters '
            "to the outputs on the batch, and `loss_fn=`, a likelihood of "
            "`hotk.curvature`."
        )
    return _Drawn(model, loss, state.key)


_ESTIMATORS = {"hutchinson": of_signs, "gnb": _of_squares}


@of_steps
def scale_by_sophia(
    *,
    b1: ArrayLike = 0.965,
    b2: ArrayLike = 0.99,
    gamma: ArrayLike = 0.01,
    eps: ArrayLike = 1e-12,
    clip: ArrayLike = 1.0,
    every: ArrayLike = 10,
    estimator: Literal["hutchinson", "gnb"] = "hutchinson",
    seed: ArrayLike = 0,
) -> Transformation[DiagonalState]:
    r"""Scale gradients by a mean of Hessian diagonals, and clip: Sophia.

    The step is $\operatorname{clip}(m_t / \max(\gamma h_t, \epsilon), \rho)$, where
    $m_t$ is the mean of gradients, and $h_t = \beta_2 h_{t-k} + (1 - \beta_2)\,\hat
    h_t$ in every k-th update [1] (equation 6, Algorithm 3). Hutchinson's estimate is
    $\hat h = u \odot H u$ (Algorithm 1); departing from [1], u has random signs in
    place of normal numbers, which has less variance. That of Gauss, Newton and Bartlett
    is $\hat h = g^2 / c$ (Algorithm 2), for the gradient g with targets that are drawn
    from the model; c is 1/N for the mean over N examples. Where the curvature is not
    positive, the entry is that of the momentum's sign.

    Args:
        b1: $\beta_1$.
        b2: $\beta_2$.
        gamma: $\gamma$.
        eps: $\epsilon$.
        clip: $\rho$.
        every: k.
        estimator: `"hutchinson"` or `"gnb"`.
        seed: Of the random numbers; the key travels in the state.

    Returns:
        A transformation. Its update takes `value_fn=`, for `"gnb"` instead `model_fn=`,
        from the parameters to the outputs on the batch, and `loss_fn=`, a likelihood of
        `hotk.curvature`. Where the gradient is not finite, the step is zero and the
        moments stay.

    Raises:
        ValueError: If there is no such estimator.
        TypeError: If a function or `params` is missing in an update.

    Example:
        >>> f = lambda x: jnp.sum(x**2)
        >>> transform = hotk.optim.scale_by_sophia(gamma=100.0, b1=0.0)
        >>> x = 0.5 * jnp.ones(2)
        >>> g = jax.grad(f)(x)
        >>> p, _ = transform.update(g, transform.init(x), x, value_fn=f)
        >>> p.round(4).tolist()  # of g / (100 * 0.01 * 2)
        [0.5, 0.5]

    References:
        [1] Liu, Li, Hall, Liang and Ma (2023). Sophia: a scalable stochastic second-
            order optimizer for language model pre-training.
            https://arxiv.org/abs/2305.14342
    """
    numbers = {
        "b1": b1,
        "b2": b2,
        "gamma": gamma,
        "eps": eps,
        "clip": clip,
        "every": every,
        "seed": seed,
    }
    if estimator not in _ESTIMATORS:
        known = " or ".join(map(repr, _ESTIMATORS))
        raise ValueError(f"`sophia`: estimator {estimator!r} is not {known}.")
    compose = _drawn if estimator == "gnb" else None
    return transformation(
        "sophia",
        first_moments,
        _sophia,
        numbers,
        compose,
        LIKE_PARAMS,
        estimator=estimator,
    )


def _sophia(
    local: AtPoint,
    gradient: Gradient,
    state: DiagonalState,
    numbers: Numbers,
    *,
    estimator: str,
) -> tuple[Any, DiagonalState]:
    merge = lambda old, new: mean_of(numbers["b2"], old, new)
    state = estimated(local, gradient, state, numbers, merge, _ESTIMATORS[estimator])
    state = with_gradient(state, gradient, numbers)

    def entry(m: Array, h: Array) -> Array:
        gamma, eps, clip = (numbers[k].astype(m.dtype) for k in _SOPHIA)
        return jnp.clip(m / jnp.maximum(gamma * h, eps), -clip, clip)

    return zero_unless_accepted(
        state, jax.tree.map(entry, state.moment, state.diagonal)
    ), state


_SOPHIA = ("gamma", "eps", "clip")


@of_steps
def sophia(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike = 0.965,
    b2: ArrayLike = 0.99,
    gamma: ArrayLike = 0.01,
    eps: ArrayLike = 1e-12,
    clip: ArrayLike = 1.0,
    every: ArrayLike = 10,
    estimator: Literal["hutchinson", "gnb"] = "hutchinson",
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: optax.Params | Callable[[optax.Params], optax.Params] | None = None,
    seed: ArrayLike = 0,
    where: Where = None,
) -> Chained[DiagonalState]:
    """Minimize by Sophia: `scale_by_sophia` with weight decay and a learning rate.

    Args:
        learning_rate: A number or a schedule.
        b1: For the mean of gradients.
        b2: For the mean of diagonals.
        gamma: The factor of the diagonal.
        eps: The least denominator.
        clip: The largest entry of a step.
        every: A diagonal is estimated in every so many updates.
        estimator: `"hutchinson"` or `"gnb"`.
        weight_decay: As for `optax.adamw`.
        mask: Which parameters decay, as for `optax.adamw`.
        seed: Of the random numbers.
        where: Which leaves to change; see `hotk.Where`. The others get a step of zero.

    Returns:
        A transformation for `optax.apply_updates`.

    Example:
        >>> f = lambda x: jnp.sum(x**2)
        >>> transform = hotk.optim.sophia(0.05, every=1)
        >>> found = hotk.optim.minimize(f, jnp.ones(2), transform, max_steps=100)
        >>> bool(found.value < 0.1)
        True
    """
    inner = scale_by_sophia(
        b1=b1,
        b2=b2,
        gamma=gamma,
        eps=eps,
        clip=clip,
        every=every,
        estimator=estimator,
        seed=seed,
    )
    chain = optax.chain(
        inner,
        optax.add_decayed_weights(weight_decay, mask),
        scale_by_rate(learning_rate),
    )

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        # Weights do not decay either where there is no step.
        step, after = chain.update(updates, state, params, **extra)
        none = space.zeros(step)
        return space.choose(space.is_finite(updates), step, none), after

    return restricted(transformation_of(chain.init, update), where)
