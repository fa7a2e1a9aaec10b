"""Whether the end of a run that no given tolerance asked for is a minimum.

A gradient is small or not in the units of the function and of its parameters, and so is
what the default tolerance says. Newton's step, whole, has no unit. It is formed from
differences of gradients, by calls of the program of the loop, and by NumPy: programs of
it would take a third of the time again in which the loop is compiled.
"""

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from hotk._core import Point, from_host

from ._bounds import bounds_of_loop, held_at
from ._chunk import Iterate, Limits
from ._differences import sides
from ._full_step import Model, matrix_alone, verdict
from ._loop import Loop
from ._minimum import Stop
from ._step import BoundFormula, called, run


def confirmation(
    loop: Loop, end: Iterate, limits: Limits, first: float
) -> tuple[Iterate, Limits]:
    """Return the end of a chunk and the limits of the next one.

    If the run has come to a minimum the reason is `Stop.confirmed`. If not it goes on,
    to a smaller gradient, unless no step changed the point any more.

    Args:
        loop: The loop.
        end: The end of a chunk.
        limits: Its limits.
        first: The value at the start of the run.
    """
    stuck = str(end.reason) == str(Stop.stuck)
    if not stuck and str(end.reason) != str(Stop.small_gradient):
        return end, limits
    size, tol = float(end.size), float(limits.tol)
    eps = np.finfo(loop.dtype).eps
    model = _model(loop, end, limits, first)
    # where no step changes the value, what f sums is known no better
    beyond = stuck or size > tol
    model = model._replace(rounding=eps ** (2 / 3) if beyond else eps)
    found = verdict(np, model, eps**0.5)
    if not found.is_told and (beyond or tol < eps**0.5):
        # Not at the first time: most runs go on to where differences can tell.
        found = verdict(np, _exactly(loop, end, model), eps**0.5)
    if found.is_minimum:
        return end._replace(reason=Stop.confirmed), limits
    if stuck:
        return end, limits
    smaller = from_host(min(tol, size / 10), loop.dtype)
    none = from_host(0, int)
    goes_on = end._replace(reason=Stop.most_steps, done=np.False_, idle=none)
    return goes_on, limits._replace(tol=smaller)


def _model(loop: Loop, end: Iterate, limits: Limits, first: float) -> Model:
    """Return the model of a point by differences of gradients."""
    assert loop.around is not None
    x, start = _flat(end.x), np.asarray(loop.around.start)
    slope = np.asarray(end.slope)
    bounds = bounds_of_loop(loop.call, loop.state, loop.moving, given=False)
    lower, upper = (None, None) if bounds is None else map(_flat, bounds)
    held = np.zeros(len(x), bool)
    if lower is not None:
        held = held_at(x, slope, lower, upper)
    low, high = sides(np, x, start, lower, upper)
    around = loop.around._replace(
        asked=from_host(True), low=from_host(low), high=from_host(high)
    )
    # as if no step was made, which are as many as are allowed
    here = limits._replace(steps=loop.limits.steps, most=from_host(2**31 - 1))
    given, order = loop._replace(around=around).arguments(end.x, end.state, here)
    found = loop.run(*given, **order)
    value = np.asarray(end.y)
    eps = np.finfo(x.dtype).eps
    error = eps ** (2 / 3)
    return Model(
        *(np.asarray(found.sums), high - low, error, slope, x, start),
        *(value, first - value, eps, held),
    )


def _exactly(loop: Loop, end: Iterate, model: Model) -> Model:
    """Return the model with the Hessian itself, where its differences err too much."""
    point, order = eqx.combine(end.x, loop.rest), BoundFormula(matrix_alone, ())
    with called(loop.call):
        found = run(loop.f, point, (), *loop.args, order=order, where=loop.where)
    return model._replace(
        differences=np.asarray(found),
        widths=np.ones_like(model.widths),
        error=np.finfo(model.at.dtype).eps,
    )


def _flat(x: Point) -> Float[np.ndarray, " n"]:
    return np.concatenate([np.ravel(np.asarray(a)) for a in jax.tree.leaves(x)])
