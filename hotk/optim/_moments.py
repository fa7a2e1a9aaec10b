"""Moments of the gradient, and of estimates of the Hessian's diagonal."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from hotk._core import Gradient, Point, Scalar, Tangent, cond, from_host
from hotk.linop import space

from ._local import AtPoint, Numbers, Outcome
from ._transformation import show_state


Estimate = Callable[[AtPoint, Any, Any], Any]


class DiagonalState(NamedTuple):
    """Moments of the gradient and of the Hessian's diagonal.

    Attributes:
        count: Updates so far.
        moment: The mean of gradients.
        diagonal: The mean of diagonals (`sophia`), or the root of the mean of their
            squares (`adahessian`).
        estimates: How many diagonals were estimated.
        key: The data of the random key of the next one.
        curvature: The smallest entry of the last estimate.
        outcome: An `Outcome`.
    """

    # A field of this name, as in the states of optax, hides the method of a tuple.
    count: Int[Array, ""]  # pyright: ignore[reportIncompatibleMethodOverride]
    moment: PyTree
    diagonal: PyTree
    estimates: Int[Array, ""]
    key: Array
    curvature: Scalar
    outcome: Outcome

    __repr__ = show_state


LIKE_PARAMS = ("moment", "diagonal")
"""The fields of a `DiagonalState` that have the structure of the parameters."""


def first_moments(params: Point, numbers: Numbers) -> DiagonalState:
    """Return the state before any update."""
    zero = jax.tree.map(jnp.zeros_like, space.widened(params))
    dtype = space.scalar_dtype(params)
    key = jax.random.key_data(jax.random.key(from_host(numbers["seed"], jnp.uint32)))
    none = from_host(0, int)
    return DiagonalState(
        none, zero, zero, none, key, from_host(0, dtype), Outcome.accepted
    )


def of_signs(local: AtPoint, gradient: Gradient, key: Array) -> PyTree:
    """Return `u * H u` for a vector u of random signs.

    References:
        Bekas, Kokiopoulou and Saad (2007). An estimator for the diagonal of a matrix.
            Appl. Numer. Math. 57(11), 1214-1229.
    """
    signs = space.random(key, gradient, signs=True)
    product = local.linearized().hessian.mv(space.narrowed(signs, local.x))
    return jax.tree.map(lambda u, h: u * h.astype(u.dtype), signs, product)


def estimated(
    local: AtPoint,
    gradient: Gradient,
    state: DiagonalState,
    numbers: Numbers,
    merge: Callable[[PyTree, PyTree], PyTree],
    estimate: Estimate,
) -> DiagonalState:
    """Estimate the diagonal if it is time to, and merge it with what is known."""

    def with_estimate(state: DiagonalState) -> DiagonalState:
        now, later = jax.random.split(jax.random.wrap_key_data(state.key))
        found = estimate(local, gradient, now)
        finite = space.is_finite(found)
        # an estimate that is not a number is none
        merged = space.choose(finite, merge(state.diagonal, found), state.diagonal)
        lowest = space.lowest(found)
        return state._replace(
            diagonal=merged,
            key=jax.random.key_data(later),
            estimates=state.estimates + finite.astype(int),
            curvature=lowest.astype(state.curvature.dtype),
        )

    every = jnp.maximum(numbers["every"].astype(int), 1)
    due = (state.count % every == 0) & space.is_finite(gradient)
    return cond(due, with_estimate, lambda state: state, state)


def with_gradient(
    state: DiagonalState, gradient: Gradient, numbers: Numbers
) -> DiagonalState:
    """Add a gradient to the mean, if it is finite."""
    finite = space.is_finite(gradient)
    mean = mean_of(numbers["b1"], state.moment, space.widened(gradient))
    return state._replace(
        count=state.count + finite.astype(int),
        moment=space.choose(finite, mean, state.moment),
        outcome=Outcome.where(finite, Outcome.accepted, Outcome.not_finite),
    )


def mean_of(decay: Array, old: PyTree, new: PyTree) -> PyTree:
    """Return `decay * old + (1 - decay) * new`, leaf by leaf."""
    return jax.tree.map(
        lambda a, b: decay.astype(a.dtype) * a + (1 - decay).astype(a.dtype) * b,
        old,
        new,
    )


def zero_unless_accepted(state: DiagonalState, step: Tangent) -> Tangent:
    """Return the step, or none where the gradient was not finite."""
    good = state.outcome == Outcome.accepted
    return space.choose(good, step, space.zeros(step))
