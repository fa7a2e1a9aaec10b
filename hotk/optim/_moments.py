"""Moments of the gradient, and of estimates of the Hessian's diagonal."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hotk.linop import space

from ._local import Local, Outcome, is_finite


Estimate = Callable[[Local, Any, Any], Any]


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


def first_moments(params: Any, numbers: Any) -> DiagonalState:
    """Return the state before any update."""
    zero = jax.tree.map(jnp.zeros_like, space.widened(params))
    dtype = space.scalar_dtype(params)
    key = jax.random.key_data(jax.random.key(numbers["seed"].astype(jnp.uint32)))
    none = jnp.zeros((), int)
    return DiagonalState(
        none, zero, zero, none, key, jnp.zeros((), dtype), Outcome.accepted
    )


def of_signs(local: Local, gradient: Any, key: Any) -> Any:
    """Return `u * H u` for a vector u of random signs.

    References:
        Bekas, Kokiopoulou and Saad (2007). An estimator for the diagonal of a matrix.
            Appl. Numer. Math. 57(11), 1214-1229.
    """
    signs = space.random(key, gradient, signs=True)
    product = local.linearized().hessian.mv(space.narrowed(signs, local.x))
    return jax.tree.map(lambda u, h: u * h.astype(u.dtype), signs, product)


def estimated(
    local: Local,
    gradient: Any,
    state: DiagonalState,
    numbers: Any,
    merge: Any,
    estimate: Estimate,
) -> DiagonalState:
    """Estimate the diagonal if it is time to, and merge it with what is known."""

    def anew(state: DiagonalState) -> DiagonalState:
        now, later = jax.random.split(jax.random.wrap_key_data(state.key))
        found = estimate(local, gradient, now)
        usual = is_finite(found)
        # an estimate that is no number is none
        merged = space.choose(usual, merge(state.diagonal, found), state.diagonal)
        lowest = jnp.min(
            jnp.stack([jnp.min(a, initial=jnp.inf) for a in jax.tree.leaves(found)])
        )
        return state._replace(
            diagonal=merged,
            key=jax.random.key_data(later),
            estimates=state.estimates + usual.astype(int),
            curvature=lowest.astype(state.curvature.dtype),
        )

    every = jnp.maximum(numbers["every"].astype(int), 1)
    due = (state.count % every == 0) & is_finite(gradient)
    return jax.lax.cond(due, anew, lambda state: state, state)


def moved(state: DiagonalState, gradient: Any, numbers: Any) -> DiagonalState:
    """Add a gradient to the mean, if it is finite."""
    usual = is_finite(gradient)
    mean = mean_of(numbers["b1"], state.moment, space.widened(gradient))
    return state._replace(
        count=state.count + usual.astype(int),
        moment=space.choose(usual, mean, state.moment),
        outcome=Outcome.where(usual, Outcome.accepted, Outcome.not_finite),
    )


def mean_of(decay: Any, old: Any, new: Any) -> Any:
    """Return `decay * old + (1 - decay) * new`, leaf by leaf."""
    return jax.tree.map(
        lambda a, b: decay.astype(a.dtype) * a + (1 - decay).astype(a.dtype) * b,
        old,
        new,
    )


def held(state: DiagonalState, step: Any) -> Any:
    """Return the step, or none where the gradient was not finite."""
    good = state.outcome == Outcome.accepted
    return space.choose(good, step, space.zeros(step))
