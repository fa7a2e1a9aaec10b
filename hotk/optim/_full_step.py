"""How far a point is from a minimum: by the whole step of Newton's method."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float

from hotk._core import Gradient, Point, Scalar
from hotk.dense import columns
from hotk.linop import space
from hotk.mode import Nested

from ._differences import AnyArray
from ._local import Local


# Of so many parameters a whole matrix is cheap beside what it decides.
_MOST_PARAMETERS = 300


class Distance(NamedTuple):
    r"""What a quadratic model says of a point, without a unit.

    Attributes:
        step: The largest entry of the step $H^{-1} g$, relative to that of the point.
        decrease: $g^T |H|^{-1} g / 2$ relative to the value.
    """

    step: Scalar
    decrease: Scalar

    def is_within(self, tol: ArrayLike) -> Bool[Any, ""]:
        """Whether the minimum is as near, or nearer than the rounding of f can tell."""
        return (self.step <= tol) | (self.decrease <= jnp.finfo(self.step.dtype).eps)


class Model(NamedTuple):
    """A quadratic model of a function at a point, from differences of gradients.

    Attributes:
        differences: The differences of the gradients at two values of each parameter: a
            Hessian times the widths below, not quite symmetric, which tells how much
            its entries err.
        widths: How far these two are from each other.
        error: The relative error of an entry of the Hessian, at least.
        gradient: The gradient.
        at: The point.
        start: The start of the run.
        value: The value.
        gained: What the value at the start was more.
        rounding: The relative change of the value that is none.
        held: What does not move, as it is at a bound: it has no part in it.
    """

    differences: Float[AnyArray, "n n"]
    widths: Float[AnyArray, " n"]
    error: ArrayLike
    gradient: Float[AnyArray, " n"]
    at: Float[AnyArray, " n"]
    start: Float[AnyArray, " n"]
    value: ArrayLike
    gained: ArrayLike
    rounding: ArrayLike
    held: Bool[AnyArray, " n"]


def distance(
    f: Callable[[Point], tuple[Scalar, Any]],
    x: Point,
    value: Scalar,
    gradient: Gradient,
    mode: Nested,
    held: Bool[Any, " n"] | None = None,
) -> Distance:
    """Form the Hessian at a point, in units in which its diagonal is one, and solve.

    A step of a method may be short because a region, a damping or an iteration that was
    stopped made it so. The whole step has none of these, and no unit.

    Args:
        f: The objective, which returns `(y, aux)`.
        x: The point.
        value: Its value there.
        gradient: Its gradient there.
        mode: How second derivatives are taken.
        held: What does not move, as it is at a bound: it has no part in it.
    """
    at, g = space.flattened(x), space.flattened(gradient)
    hessian = matrix(f, x, mode)
    if held is not None:
        at, g = jnp.where(held, 0, at), jnp.where(held, 0, g)
        one = jnp.eye(len(at), dtype=hessian.dtype)
        hessian = jnp.where(held[:, None] | held[None], one, hessian)
    eps = jnp.finfo(hessian.dtype).eps
    diagonal = jnp.sqrt(jnp.abs(jnp.diagonal(hessian)))
    unit = jnp.where(diagonal > 0, diagonal, 1)
    values, vectors = jnp.linalg.eigh(hessian / unit[:, None] / unit[None])
    real = jnp.abs(values) > len(at) * eps * jnp.max(jnp.abs(values))
    slopes, size = vectors.T @ (g / unit), jnp.linalg.norm(unit * at)
    along = jnp.where(real, slopes, 0)
    whole = along / jnp.where(real, values, 1)
    # Where f does not bend, its slope must be the rounding of f along the whole point.
    least = eps ** (2 / 3) * jnp.abs(value)
    ends = jnp.all(real | (slopes == 0) | (jnp.abs(slopes) * size <= least))
    s, reach = jnp.abs(vectors @ whole), jnp.abs(unit * at) + eps**0.5 * size
    decrease = jnp.sum(jnp.abs(along * whole)) / 2
    found = Distance(
        jnp.max(jnp.where(s > 0, s / reach, 0)),
        jnp.where(decrease > 0, decrease / jnp.abs(value), 0),
    )
    told = ends & jnp.all(jnp.isfinite(values)) & jnp.all(jnp.isfinite(slopes))
    return Distance(*(jnp.where(told, a, jnp.inf) for a in found))


def matrix(f: Callable[[Point], Any], x: Point, mode: Nested) -> Float[Array, "n n"]:
    """Return the Hessian of a function that returns `(y, aux)`."""
    at = space.flattened(x)
    of_flat = lambda v: f(space.unflattened(v, x))
    product = Local(of_flat, at, mode).linearized().hessian.mv
    [[hessian]] = columns(product, at, None)
    return hessian


def matrix_alone(
    f: Callable[..., Any], x: Point, c: Any, mode: Nested
) -> Float[Array, "n n"]:
    """Return the same as a program of its own: the formula of a `BoundFormula`."""
    del c
    return matrix(f, x, mode)


class Verdict(NamedTuple):
    """Whether a point is a minimum.

    Attributes:
        is_minimum: Whether the model says so.
        is_told: Whether the errors of the model are small enough to tell.
    """

    is_minimum: Any
    is_told: Any


def verdict(xp: Any, model: Model, tol: ArrayLike) -> Verdict:
    """Return what a quadratic model says of a point.

    No number in it has a unit. The whole step is negligible if it is below `tol` in
    each entry, or decreases f by no more than its rounding; or, as where both go to
    zero, if its length and what it decreases f by are beside those of the whole run.

    Args:
        xp: `numpy` or `jax.numpy`.
        model: The model.
        tol: The largest relative step.
    """
    eps = np.finfo(model.gradient.dtype).eps
    widths = xp.where(model.widths > 0, model.widths, 1)
    hessian = model.differences / widths[:, None]
    told = xp.all(xp.isfinite(hessian)) & xp.all(xp.isfinite(model.gradient))
    n, held = len(model.at), model.held
    clear = lambda a: xp.where(held | ~told, 0, a)
    at, start, g = (clear(a) for a in (model.at, model.start, model.gradient))
    one = xp.eye(n, dtype=g.dtype)
    hessian = xp.where(held[:, None] | held[None] | ~told, one, hessian)
    diagonal = xp.sqrt(xp.abs(xp.diagonal(hessian)))
    unit = xp.where(diagonal > 0, diagonal, 1)
    scaled = hessian / unit[:, None] / unit[None]
    # What a Hessian has not, its differences have by their errors
    error = xp.linalg.norm(scaled - scaled.T) + n * model.error
    values, vectors = xp.linalg.eigh((scaled + scaled.T) / 2)
    real = xp.abs(values) > 4 * error
    slopes = vectors.T @ (g / unit)
    along = xp.where(real, slopes, 0)
    whole = along / xp.where(real, values, 1)
    s, point = xp.abs(vectors @ whole), xp.abs(unit * at)
    size = xp.linalg.norm(point)
    far = size + xp.linalg.norm(unit * start)
    value, gained = xp.abs(model.value), xp.maximum(model.gained, 0)
    # Where f does not bend, its slope along the whole point must be rounding.
    flat = xp.maximum(eps ** (2 / 3) * value, eps * gained)
    ends = xp.all(real | (xp.abs(slopes) * far <= flat))
    decrease = xp.sum(xp.abs(along * whole)) / 2
    short = xp.all(s <= tol * (point + eps**0.5 * size))
    beside = (decrease <= eps * gained) & (xp.linalg.norm(s) <= tol * far)
    negligible = short | (decrease <= model.rounding * value) | beside
    known = told & ends
    return Verdict(known & negligible & xp.all(values > -4 * error), known)


def is_affordable(x: Point) -> bool:
    """Whether a matrix of these parameters is formed to confirm or to fit.

    Not of half precision, which LAPACK does not factorize.
    """
    narrow = any(jnp.finfo(leaf.dtype).bits < 32 for leaf in jax.tree.leaves(x))
    few = space.dimension(x) <= _MOST_PARAMETERS
    return few and not (narrow or space.has_shards(x))
