"""`adahessian`: gradients over the root of a mean of squared diagonals."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike

from hotk._core import Gradient, Where

from ._extra_args import restricted
from ._local import AtPoint, Numbers, Outcome
from ._moments import (
    LIKE_PARAMS,
    DiagonalState,
    estimated,
    first_moments,
    of_signs,
    with_gradient,
    zero_unless_accepted,
)
from ._step import of_steps, transformation
from ._transformation import Chained, Transformation, chained, scale_by_rate


@of_steps
def scale_by_adahessian(
    *,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    power: ArrayLike = 1.0,
    every: ArrayLike = 1,
    seed: ArrayLike = 0,
) -> Transformation[DiagonalState]:
    r"""Scale by moments of the gradient and of the Hessian's diagonal.

    With $D_t = u \odot H u$ for random signs u, and biases corrected as in Adam, the
    step is $\hat m_t / (\hat v_t^{k/2} + \epsilon)$ with $v_t = \beta_2 v_{t-1} + (1 -
    \beta_2) D_t^2$ [1] (equations 9 and 10, Algorithm 1). Departing from [1], diagonals
    are not averaged over blocks of parameters, as their shapes do not say what a block
    is; and an entry without any curvature so far does not move, where [1] divides by
    $\epsilon$.

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
    return transformation(
        "adahessian", first_moments, _adahessian, numbers, like_params=LIKE_PARAMS
    )


def _adahessian(
    local: AtPoint, gradient: Gradient, state: DiagonalState, numbers: Numbers
) -> tuple[Any, DiagonalState]:
    def mean_square(old: Any, new: Any) -> Any:
        # by roots: squares overflow, or vanish, where these do not
        a, b = jnp.sqrt(numbers["b2"]), jnp.sqrt(1 - numbers["b2"])
        root = lambda o, n: jnp.hypot(a.astype(o.dtype) * o, b.astype(o.dtype) * n)
        return jax.tree.map(root, old, new)

    state = estimated(local, gradient, state, numbers, mean_square, of_signs)
    state = with_gradient(state, gradient, numbers)

    def entry(m: Array, v: Array) -> Array:
        b1, b2, eps, power = (numbers[k].astype(m.dtype) for k in _ADAHESSIAN)
        count, estimates = state.count.astype(m.dtype), state.estimates.astype(m.dtype)
        first = m / (1 - b1 ** jnp.maximum(count, 1))
        root = v / jnp.sqrt(1 - b2 ** jnp.maximum(estimates, 1))
        return jnp.where(v > 0, first / (root**power + eps), 0)

    estimated_once = state.estimates > 0
    state = state._replace(
        outcome=Outcome.where(estimated_once, state.outcome, Outcome.not_finite)
    )
    return zero_unless_accepted(
        state, jax.tree.map(entry, state.moment, state.diagonal)
    ), state


_ADAHESSIAN = ("b1", "b2", "eps", "power")


@of_steps
def adahessian(
    learning_rate: optax.ScalarOrSchedule,
    *,
    b1: ArrayLike = 0.9,
    b2: ArrayLike = 0.999,
    eps: ArrayLike = 1e-8,
    power: ArrayLike = 1.0,
    every: ArrayLike = 1,
    seed: ArrayLike = 0,
    where: Where = None,
) -> Chained[DiagonalState]:
    """Minimize by AdaHessian: `scale_by_adahessian` with a learning rate.

    Args:
        learning_rate: A number or a schedule; the paper uses 0.15 where Adam uses 1e-3.
        b1: For the mean of gradients.
        b2: For the mean of squared diagonals.
        eps: Added to the denominator.
        power: The Hessian's power.
        every: A diagonal is estimated in every so many updates.
        seed: Of the random signs.
        where: Which leaves to change; see `hotk.Where`. The others get a step of zero.

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
    return restricted(chained(inner, scale_by_rate(learning_rate)), where)
