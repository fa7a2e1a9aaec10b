"""How far a point is from a minimum: by the whole step of Newton's method."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import ArrayLike, Bool

from hotk._core import Gradient, Point, Scalar
from hotk._dense import columns
from hotk._mode import Nested
from hotk.linop import space

from ._local import AtPoint


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
    of_flat = lambda v: f(space.unflattened(v, x))
    product = AtPoint(of_flat, at, mode).linearized().hessian.mv
    [[hessian]] = columns(product, at, None)
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


def is_affordable(x: Point) -> bool:
    """Whether a matrix of these parameters is formed to confirm or to fit.

    Not of half precision, which LAPACK does not factorize.
    """
    narrow = any(jnp.finfo(leaf.dtype).bits < 32 for leaf in jax.tree.leaves(x))
    few = space.dimension(x) <= _MOST_PARAMETERS
    return few and not (narrow or space.has_shards(x))
