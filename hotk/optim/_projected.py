r"""Steps within bounds: conjugate gradients that follow the bounds they meet.

As in [1], the model is minimized along the projected gradient, and then on the face
that this has reached: by conjugate gradients, whose step is projected where it leaves
the bounds, if the model still decreases; what is at a bound then stays there, and they
start anew. Departing from [1], the first step of conjugate gradients is that along the
projected gradient. So without a bound in the way it is the method of Steihaug, product
for product; and the first projection comes as soon as one is met.

References:
    [1] Lin and More (1999). Newton's method for large bound-constrained optimization
        problems. SIAM J. Optim. 9(4), 1100-1127.
"""

from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hotk._core import Gradient, Point, Scalar, Tangent, Vector, cond, while_loop
from hotk.linop import AbstractOperator, AbstractSymmetricOperator, space

from ._bounds import Bounds
from ._globalized import (
    GlobalizedState,
    Trial,
    adapted_radius,
    first_length,
    globalized_step,
)
from ._linear_solver import LinearSolver
from ._local import AtPoint, Linearization, Numbers, farthest, relative_residual
from ._scaling import Rescaled
from ._subproblem import Metric


# The least share of the decrease along the gradient for a step that was projected, as
# in [1], and the shortest one that is tried before that to the first bound.
_SHARE = 0.01
_SHORTEST = 4.0**-5
_FEWEST = 20


class _ProjectedStep(NamedTuple):
    """A step so far, in units in which the gradient has length one.

    Attributes:
        step: The step.
        slope: The gradient of the model after it.
        direction: Where to go on.
        square: The squared norm of what is free in the slope.
        model: What the model changed by.
        image: The product with the direction, while a projection is tried.
        reach: How far along the direction it is, before it is projected.
        longest: How far without bounds.
        within: How far the direction stays in the bounds.
        projecting: Whether one is tried.
        done: Whether it is long or good enough.
        bounded: Whether the region ended it.
        curvature: The smallest one.
        products: How many there were.
    """

    step: Tangent
    slope: Gradient
    direction: Tangent
    square: Scalar
    model: Scalar
    image: Tangent
    reach: Scalar
    longest: Scalar
    within: Scalar
    projecting: Bool[Array, ""]
    done: Bool[Array, ""]
    bounded: Bool[Array, ""]
    curvature: Scalar
    products: Int[Array, ""]


def projected_trial(
    hessian: AbstractOperator,
    gradient: Gradient,
    bounds: Bounds,
    x: Point,
    tol: Scalar,
    max_steps: Any,
    radius: Scalar,
) -> Trial:
    """Propose a step within the bounds and the region.

    Args:
        hessian: The Hessian.
        gradient: The gradient.
        bounds: The bounds.
        x: The point, within.
        tol: The residual on the last face, relative to the projected gradient.
        max_steps: The most products.
        radius: The length of the step at most.
    """
    lower = space.widened(space.minus(bounds.lower, x))
    upper = space.widened(space.minus(bounds.upper, x))
    clip = lambda v: jax.tree.map(jnp.clip, v, lower, upper)
    wide = space.widened(gradient)
    free = bounds.projected(x, wide)
    size = space.norm(free)
    unit = 1 / jnp.where(size > 0, size, 1)
    dtype = size.dtype

    def inside(step: Tangent, v: Tangent) -> Tangent:
        keep = lambda s, v, low, high: jnp.where((s > low) & (s < high), v, 0)
        return jax.tree.map(keep, step, v, lower, upper)

    def ways(step: Tangent, direction: Tangent) -> Tangent:
        def one(s: Array, d: Array, low: Array, high: Array) -> Array:
            far = jnp.where(d < 0, low - s, high - s)
            return jnp.where(d != 0, far / jnp.where(d != 0, d, 1), jnp.inf)

        return jax.tree.map(one, step, direction, lower, upper)

    def ahead(s: _ProjectedStep, image: Tangent) -> _ProjectedStep:
        """Go along the direction, or find that this leaves the bounds."""
        curvature = space.inner(s.direction, image)
        slope = space.inner(s.slope, s.direction)
        own = space.inner(s.direction, s.direction)
        best = jnp.where(curvature > 0, -slope / curvature, jnp.inf)
        most = _to_region(s.step, s.direction, own, radius)
        reach = jnp.minimum(best, most)
        within = space.lowest(ways(s.step, s.direction)).astype(dtype)
        step = clip(space.plus(s.step, s.direction, reach))
        after = space.plus(s.slope, image, reach)
        rest = inside(step, after)
        square = space.inner(rest, rest)
        along = space.plus(space.times(-1, rest), s.direction, square / s.square)
        ended = most <= best
        fits = reach <= within
        of = lambda new, old: space.choose(fits, new, old)
        least = jnp.minimum(s.curvature, curvature / jnp.where(own > 0, own, 1))
        return s._replace(
            step=of(step, s.step),
            slope=of(after, s.slope),
            direction=of(inside(step, along), s.direction),
            square=of(square, s.square),
            model=of(s.model + reach * (slope + reach * curvature / 2), s.model),
            image=image,
            reach=reach,
            longest=reach,
            within=within,
            projecting=~fits,
            done=fits & (ended | (jnp.sqrt(square) <= tol)),
            bounded=s.bounded | ended,
            curvature=least,
        )

    def to_bound(s: _ProjectedStep) -> _ProjectedStep:
        """Go to the first bound along the direction: the model decreases there."""
        curvature = space.inner(s.direction, s.image)
        slope = space.inner(s.slope, s.direction)

        def one(p: Array, d: Array, way: Array, low: Array, high: Array) -> Array:
            moved = jnp.clip(p + s.within.astype(p.dtype) * d, low, high)
            # the bound itself: not what rounding makes of it
            return jnp.where(way <= s.within, jnp.where(d < 0, low, high), moved)

        way = ways(s.step, s.direction)
        step = jax.tree.map(one, s.step, s.direction, way, lower, upper)
        change = s.within * (slope + s.within * curvature / 2)
        after = space.plus(s.slope, s.image, s.within)
        return anew(s, step, after, s.model + change)

    def anew(
        s: _ProjectedStep, step: Tangent, slope: Gradient, model: Scalar
    ) -> _ProjectedStep:
        rest = inside(step, slope)
        square = space.inner(rest, rest)
        return s._replace(
            step=step,
            slope=slope,
            direction=space.times(-1, rest),
            square=square,
            model=model,
            projecting=jnp.zeros((), bool),
            done=jnp.sqrt(square) <= tol,
        )

    def projection(s: _ProjectedStep, v: Tangent, image: Tangent) -> _ProjectedStep:
        """Take a projected step, or a shorter one."""
        slope = space.inner(s.slope, v)
        change = slope + space.inner(v, image) / 2
        good = (slope < 0) & (change <= _SHARE * slope)
        step = clip(space.plus(s.step, s.direction, s.reach))
        taken = anew(s, step, space.plus(s.slope, image), s.model + change)
        shorter = s.reach / 4
        least = jnp.maximum(s.within, _SHORTEST * s.longest)
        again = s._replace(reach=shorter, bounded=jnp.zeros((), bool))
        other = space.choose(shorter > least, again, to_bound(s))
        return space.choose(good, taken, other)

    def advance(s: _ProjectedStep) -> _ProjectedStep:
        aside = clip(space.plus(s.step, s.direction, s.reach))
        aside = space.minus(aside, s.step)
        v = space.choose(s.projecting, aside, s.direction)
        image = hessian.mv(space.narrowed(v, hessian.like))
        image = space.times(unit, space.widened(image))
        there = projection(s, v, image)
        after = space.choose(s.projecting, there, ahead(s, image))
        return after._replace(products=s.products + 1)

    zero = jnp.zeros((), dtype)
    none = space.zeros(wide)
    free = space.times(unit, free)
    begin = _ProjectedStep(
        step=none,
        slope=space.times(unit, wide),
        direction=space.times(-1, free),
        square=space.inner(free, free).astype(dtype),
        model=zero,
        image=none,
        reach=zero,
        longest=zero,
        within=zero,
        projecting=jnp.zeros((), bool),
        done=~(size > 0),
        bounded=jnp.zeros((), bool),
        curvature=jnp.full((), jnp.inf, dtype),
        products=jnp.zeros((), int),
    )
    more = lambda s: ~s.done & (s.products < max_steps)
    end = while_loop(more, advance, begin)
    end = space.choose(end.projecting, to_bound(end), end)
    return Trial(
        end.step,
        end.model * size,
        end.bounded,
        end.products,
        end.curvature * size,
        zero,
        jnp.where(end.done & ~end.bounded, 0, jnp.inf),
    )


def _to_region(step: Tangent, direction: Tangent, own: Scalar, radius: Scalar) -> Any:
    """Return how far along a direction the region ends."""
    along, length = space.inner(step, direction), space.norm(step)
    room = jnp.maximum((radius - length) * (radius + length), 0)
    root = jnp.sqrt(along**2 + own * room)
    # the form of the root that does not cancel
    far = jnp.where(along > 0, room / (root + along), (root - along) / own)
    return jnp.where(own > 0, far, 0)


def projected_step(
    local: AtPoint,
    near: Linearization,
    gradient: Gradient,
    state: GlobalizedState,
    numbers: Numbers,
    bounds: Bounds,
    unit: Float[Array, " n"] | None = None,
) -> tuple[Any, GlobalizedState]:
    """Make a step of Newton's method within bounds, in a region.

    Args:
        local: The objective at the point.
        near: Its value, gradient and Hessian there, or what stands for that.
        gradient: Its gradient, or what stands for it.
        state: The last state.
        numbers: Those of `trust_region`, or of them those that there are.
        bounds: The bounds, as the point is.
        unit: What variables are measured with, if they are.
    """
    model = Rescaled.of(near.hessian, gradient, unit)
    x, limits = model.scaled(local.x), Bounds(*map(model.scaled, bounds))
    free = limits.projected(x, model.gradient)
    size = space.norm(free)
    dtype = size.dtype
    largest = numbers.get("max_radius", jnp.asarray(jnp.inf)).astype(dtype)
    begun = (state.control > 0) & jnp.isfinite(state.control)

    far = farthest(x).astype(dtype)
    first = lambda: jnp.minimum(first_length(model.hessian, free), far)
    radius = cond(begun, lambda: state.control.astype(dtype), first)
    most = jnp.maximum(2 * space.dimension(gradient), _FEWEST)
    tol, steepest = relative_residual(numbers, size, state.largest_gradient)
    steps = jnp.asarray(numbers.get("max_steps", most))

    def propose(radius: Scalar) -> Trial:
        scaled = model.hessian, model.gradient, limits, x
        trial = projected_trial(*scaled, tol, steps, radius)
        if unit is None:
            return trial

        def one(s: Array, d: Array, *sides: Array) -> Array:
            low, high, least, most = sides
            # the bound itself, and never beyond: not what rounding makes of it
            d = jnp.where(s <= low, least, jnp.where(s >= high, most, d))
            return jnp.clip(d, least, most)

        edges = (*limits, *bounds)
        ends = (x, x, local.x, local.x)
        ways = [space.widened(space.minus(*p)) for p in zip(edges, ends, strict=True)]
        step = space.widened(model.step(trial.step))
        return trial._replace(step=jax.tree.map(one, trial.step, step, *ways))

    def adapt(radius: Scalar, ratio: Scalar, trial: Trial) -> Scalar:
        length = space.norm(model.scaled(trial.step))
        return adapted_radius(radius, ratio, trial, length, largest)

    step, after = globalized_step(
        local,
        near,
        bounds.projected(local.x, gradient),
        jnp.minimum(radius, largest),
        propose,
        adapt,
        accept=numbers["accept"],
        max_rejections=numbers["max_rejections"],
        solver=LinearSolver.cg,
        bounds=bounds,
    )
    return step, after._replace(bounds=state.bounds, largest_gradient=steepest)


def bounded_step(
    local: AtPoint,
    near: Linearization,
    gradient: Gradient,
    state: GlobalizedState,
    numbers: Numbers,
    *,
    few: bool,
) -> tuple[Any, GlobalizedState]:
    """Make a step within bounds, of variables in what they are measured with.

    Args:
        local: The objective at the point.
        near: Its value, gradient and Hessian there.
        gradient: Its gradient, or what stands for it.
        state: The last state, with bounds.
        numbers: Those of `trust_region`.
        few: Whether the matrix of the Hessian is made: then it measures them.
    """
    assert state.bounds is not None
    bounds, scale = state.bounds.like(local.x), state.scale
    if scale is None or not few:  # none, or sizes that were given
        made = projected_step(local, near, gradient, state, numbers, bounds, scale)
        return made[0], made[1]._replace(scale=scale)
    matrix = near.hessian.matrix()
    matrix = matrix.astype(space.wide(matrix.dtype))
    diagonal, adapts = jnp.diagonal(matrix), numbers["adapts"]
    metric = Metric.of(near.hessian, diagonal, gradient, scale, adapts, local.x)
    begins = metric.is_another(scale, local.x)
    state = state._replace(control=jnp.where(begins, 0, state.control))
    # Conjugate gradients multiply with the matrix, as it is there.
    near = near._replace(hessian=_Matrix(matrix, near.hessian.like))
    step, after = projected_step(
        local, near, gradient, state, numbers, bounds, metric.unit
    )
    products = jnp.full_like(after.iterations, len(scale))
    scale = metric.scale.astype(scale.dtype)
    return step, after._replace(scale=scale, iterations=products)


@final
class _Matrix(AbstractSymmetricOperator):
    """A matrix as an operator on the space of the parameters."""

    entries: Float[Array, "n n"]
    point: Vector

    @property
    def like(self) -> Vector:
        """What a vector of the space looks like."""
        return self.point

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector."""
        wide = space.widened(v)
        flat = self.entries @ space.flattened(wide)
        return space.narrowed(space.unflattened(flat, wide), self.point)
