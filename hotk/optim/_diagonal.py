"""`adahessian` and `sophia`: gradients over an estimate of the Hessian's diagonal."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

from hotk.curvature import AbstractLikelihood
from hotk.linop import space

from ._local import Local, Outcome, is_finite
from ._step import transformation


class DiagonalState(NamedTuple):
    """Moments of the gradient and of the Hessian's diagonal.

    Attributes:
        count: Updates so far.
        moment: The mean of gradients.
        diagonal: The mean of diagonals (`sophia`), or of their squares (`adahessian`).
        estimates: How many diagonals were estimated.
        key: The data of the random key of the next one.
        curvature: The smallest entry of the last estimate.
        outcome: An `Outcome`.
    """

    count: Any
    moment: Any
    diagonal: Any
    estimates: Any
    key: Any
    curvature: Any
    outcome: Any


def _first(params: Any, numbers: Any) -> DiagonalState:
    zero = jax.tree.map(jnp.zeros_like, space.widened(params))
    dtype = space.scalar_dtype(params)
    key = jax.random.key_data(jax.random.key(numbers["seed"].astype(jnp.uint32)))
    none = jnp.zeros((), int)
    return DiagonalState(
        none, zero, zero, none, key, jnp.zeros((), dtype), Outcome.accepted
    )


def _of_signs(local: Local, gradient: Any, key: Any) -> Any:
    """Return `u * H u` for a vector u of random signs.

    References:
        Bekas, Kokiopoulou and Saad (2007). An estimator for the diagonal of a matrix.
            Appl. Numer. Math. 57(11), 1214-1229.
    """
    signs = space.random(key, gradient, signs=True)
    product = local.linearized().hessian.mv(space.narrowed(signs, local.x))
    return jax.tree.map(lambda u, h: u * h.astype(u.dtype), signs, product)


def _of_squares(local: Local, gradient: Any, key: Any) -> Any:
    """Return the squares of the gradient of an objective that is `_Drawn`."""
    del gradient, key
    return jax.tree.map(lambda a: a * a, space.widened(local.gradient()))


@final
class _Drawn(eqx.Module):
    r"""A function whose squared gradient estimates the Gauss-Newton diagonal.

    Targets are drawn from the model; with the gradient g of the loss for them, the
    estimate is $g^2 / c$, c the factor of the loss: 1/N for a mean over N examples.
    """

    model: Any
    loss: Any
    key: Any

    def __call__(self, x: Any) -> Any:
        z = self.model(x)
        fixed = jax.lax.stop_gradient(z)
        key, _ = jax.random.split(jax.random.wrap_key_data(self.key))
        slope = self.loss.slope(fixed, self.loss.sample(key, fixed))
        slope = jax.lax.stop_gradient(slope)
        return jnp.asarray(self.loss.factor(z) ** 0.5, z.dtype) * jnp.sum(slope * z)


def _drawn(value_fn: Any, extra: Mapping[str, Any], state: DiagonalState) -> Any:
    del value_fn
    model, loss = extra.get("model_fn"), extra.get("loss_fn")
    if model is None or not isinstance(loss, AbstractLikelihood):
        raise TypeError(
            '`sophia(estimator="gnb").update`: give `model_fn=`, from the parameters '
            "to the outputs on the batch, and `loss_fn=`, a likelihood of "
            "`hotk.curvature`."
        )
    return _Drawn(model, loss, state.key)


_ESTIMATORS = {"hutchinson": _of_signs, "gnb": _of_squares}


def _estimated(
    local: Local,
    gradient: Any,
    state: DiagonalState,
    numbers: Any,
    merge: Any,
    estimator: str = "hutchinson",
) -> DiagonalState:
    """Estimate the diagonal if it is time to, and merge it with what is known."""

    def anew(state: DiagonalState) -> DiagonalState:
        now, later = jax.random.split(jax.random.wrap_key_data(state.key))
        found = _ESTIMATORS[estimator](local, gradient, now)
        usual = is_finite(found)
        # an estimate that is no number is none
        merged = space.choose(usual, merge(state.diagonal, found), state.diagonal)
        lowest = jnp.min(jnp.stack([jnp.min(a) for a in jax.tree.leaves(found)]))
        return state._replace(
            diagonal=merged,
            key=jax.random.key_data(later),
            estimates=state.estimates + usual.astype(int),
            curvature=lowest.astype(state.curvature.dtype),
        )

    every = jnp.maximum(numbers["every"].astype(int), 1)
    due = (state.count % every == 0) & is_finite(gradient)
    return jax.lax.cond(due, anew, lambda state: state, state)


def _moved(state: DiagonalState, gradient: Any, numbers: Any) -> DiagonalState:
    """Add a gradient to the mean, if it is finite."""
    usual = is_finite(gradient)
    mean = _mean(numbers["b1"], state.moment, space.widened(gradient))
    return state._replace(
        count=state.count + usual.astype(int),
        moment=space.choose(usual, mean, state.moment),
        outcome=Outcome.where(usual, Outcome.accepted, Outcome.not_finite),
    )


def _mean(decay: Any, old: Any, new: Any) -> Any:
    return jax.tree.map(
        lambda a, b: decay.astype(a.dtype) * a + (1 - decay).astype(a.dtype) * b,
        old,
        new,
    )


def _held(state: DiagonalState, step: Any) -> Any:
    """Return the step, or none where the gradient was not finite."""
    good = state.outcome == Outcome.accepted
    return space.choose(good, step, space.zeros(step))


def scale_by_adahessian(
    *,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    power: Any = 1.0,
    every: Any = 1,
    seed: Any = 0,
) -> optax.GradientTransformationExtraArgs:
    r"""Scale by moments of the gradient and of the Hessian's diagonal.

    With $D_t = u \odot H u$ for random signs u, and biases corrected as in Adam, the
    step is $\hat m_t / (\hat v_t^{k/2} + \epsilon)$ with $v_t = \beta_2 v_{t-1} + (1 -
    \beta_2) D_t^2$ [1] (equations 9 and 10, Algorithm 1). Departing from [1], diagonals
    are not averaged over blocks of parameters, as their shapes do not say what a block
    is.

    Args:
        b1: $\beta_1$, for the mean of gradients.
        b2: $\beta_2$, for the mean of squared diagonals.
        eps: $\epsilon$.
        power: k, the Hessian's power.
        every: A diagonal is estimated in every so many updates.
        seed: Of the random signs; the key travels in the state.

    Returns:
        A transformation. Its update takes `value_fn=`. Where the gradient is not
        finite, the step is zero and the moments stay.

    Raises:
        TypeError: If `value_fn` or `params` is missing in an update.

    Example:
        >>> f = lambda x: jnp.sum(jnp.array([1.0, 100.0]) * x**2)
        >>> transform = hotk.optim.scale_by_adahessian()
        >>> x = jnp.ones(2)
        >>> g = jax.grad(f)(x)
        >>> p, _ = transform.update(g, transform.init(x), x, value_fn=f)
        >>> p.round(4).tolist()  # both go the same part of their way
        [1.0, 1.0]

    References:
        [1] Yao, Gholami, Shen, Mustafa, Keutzer and Mahoney (2021). ADAHESSIAN: an
            adaptive second order optimizer for machine learning. AAAI.
            https://arxiv.org/abs/2006.00719
    """
    numbers = {
        "b1": b1,
        "b2": b2,
        "eps": eps,
        "power": power,
        "every": every,
        "seed": seed,
    }
    return transformation("adahessian", _first, _adahessian, numbers)


def _adahessian(
    local: Local, gradient: Any, state: DiagonalState, numbers: Any
) -> tuple[Any, DiagonalState]:
    square = lambda old, new: _mean(
        numbers["b2"], old, jax.tree.map(lambda a: a * a, new)
    )
    state = _estimated(local, gradient, state, numbers, square)
    state = _moved(state, gradient, numbers)

    def entry(m: Any, v: Any) -> Any:
        b1, b2, eps, power = (numbers[k].astype(m.dtype) for k in _ADAHESSIAN)
        count, estimates = state.count.astype(m.dtype), state.estimates.astype(m.dtype)
        first = m / (1 - b1 ** jnp.maximum(count, 1))
        second = v / (1 - b2 ** jnp.maximum(estimates, 1))
        return first / (second ** (power / 2) + eps)

    return _held(state, jax.tree.map(entry, state.moment, state.diagonal)), state


_ADAHESSIAN = ("b1", "b2", "eps", "power")


def adahessian(
    learning_rate: Any,
    *,
    b1: Any = 0.9,
    b2: Any = 0.999,
    eps: Any = 1e-8,
    power: Any = 1.0,
    every: Any = 1,
    seed: Any = 0,
) -> optax.GradientTransformationExtraArgs:
    """Minimize by AdaHessian: `scale_by_adahessian` with a learning rate.

    Args:
        learning_rate: A number or a schedule; the paper uses 0.15 where Adam uses 1e-3.
        b1: As for `scale_by_adahessian`, and so are all others.
        b2: For the mean of squared diagonals.
        eps: Added to the denominator.
        power: The Hessian's power.
        every: A diagonal is estimated in every so many updates.
        seed: Of the random signs.

    Returns:
        A transformation for `optax.apply_updates`.

    Example:
        >>> f = lambda x: jnp.sum(jnp.array([1.0, 100.0]) * x**2)
        >>> transform = hotk.optim.adahessian(0.1)
        >>> found = hotk.optim.minimize(f, jnp.ones(2), transform, max_steps=200)
        >>> bool(found.value < 1e-3)
        True
    """
    inner = scale_by_adahessian(
        b1=b1, b2=b2, eps=eps, power=power, every=every, seed=seed
    )
    return optax.chain(inner, optax.scale_by_learning_rate(learning_rate))


def scale_by_sophia(
    *,
    b1: Any = 0.965,
    b2: Any = 0.99,
    gamma: Any = 0.01,
    eps: Any = 1e-12,
    clip: Any = 1.0,
    every: Any = 10,
    estimator: Literal["hutchinson", "gnb"] = "hutchinson",
    seed: Any = 0,
) -> optax.GradientTransformationExtraArgs:
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
        "sophia", _first, _sophia, numbers, compose, estimator=estimator
    )


def _sophia(
    local: Local, gradient: Any, state: DiagonalState, numbers: Any, *, estimator: str
) -> tuple[Any, DiagonalState]:
    merge = lambda old, new: _mean(numbers["b2"], old, new)
    state = _estimated(local, gradient, state, numbers, merge, estimator)
    state = _moved(state, gradient, numbers)

    def entry(m: Any, h: Any) -> Any:
        gamma, eps, clip = (numbers[k].astype(m.dtype) for k in _SOPHIA)
        return jnp.clip(m / jnp.maximum(gamma * h, eps), -clip, clip)

    return _held(state, jax.tree.map(entry, state.moment, state.diagonal)), state


_SOPHIA = ("gamma", "eps", "clip")


def sophia(
    learning_rate: Any,
    *,
    b1: Any = 0.965,
    b2: Any = 0.99,
    gamma: Any = 0.01,
    eps: Any = 1e-12,
    clip: Any = 1.0,
    every: Any = 10,
    estimator: Literal["hutchinson", "gnb"] = "hutchinson",
    weight_decay: Any = 0.0,
    mask: Any = None,
    seed: Any = 0,
) -> optax.GradientTransformationExtraArgs:
    """Minimize by Sophia: `scale_by_sophia` with weight decay and a learning rate.

    Args:
        learning_rate: A number or a schedule.
        b1: As for `scale_by_sophia`, and so are all that follow.
        b2: For the mean of diagonals.
        gamma: The factor of the diagonal.
        eps: The least denominator.
        clip: The largest entry of a step.
        every: A diagonal is estimated in every so many updates.
        estimator: `"hutchinson"` or `"gnb"`.
        weight_decay: As for `optax.adamw`.
        mask: Which parameters decay, as for `optax.adamw`.
        seed: Of the random numbers.

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
    return optax.chain(
        inner,
        optax.add_decayed_weights(weight_decay, mask),
        optax.scale_by_learning_rate(learning_rate),
    )
