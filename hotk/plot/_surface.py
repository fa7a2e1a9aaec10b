"""The values of a function on a line or a plane through a point."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from hotk._core import (
    Function,
    Point,
    StructureError,
    Tangent,
    describe_tree,
    message,
)
from hotk._prepared import jitted
from hotk.linop import HessianOperator

from ._axes import axes, colorbar


if TYPE_CHECKING:
    from matplotlib.axes import Axes


def surface(
    f: Function,
    x: Point,
    directions: PyTree,
    *args: PyTree,
    span: float = 1.0,
    points: int = 41,
    ax: "Axes | None" = None,
) -> "Axes":
    r"""Draw a loss surface: a function along one direction, or over the plane of two.

    Draws $f(x + a v)$ over $a$ as a line, or $f(x + a v + b w)$ over $a$ and $b$ as
    filled contours, from `-span` to `span` in units of the directions. A cross marks
    the point. The values are computed one by one in one compiled loop: `points` or
    `points**2` evaluations of $f$. A new closure over other arrays of the same shapes
    does not compile again.

    Args:
        f: Function `f(x, *args)` that returns one real number.
        x: Point: any pytree.
        directions: A list of one or two trees like `x`, such as `[v, w]`; or one tree
            like `x` whose floating leaves have one more axis in front, of length one
            or two, such as the `vectors` of `H.eigh(2)`.
        *args: Further arguments of `f`.
        span: The range to each side, in units of the directions.
        points: The number of values along each direction.
        ax: The matplotlib axes to draw on; new ones if left out.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: If matplotlib is not installed.
        StructureError: If the directions do not have the structure and shapes of the
            point, or are not one or two.

    Example:
        >>> f, x = lambda x: jnp.sum(x**2), jnp.zeros(3)
        >>> ax = hotk.plot.surface(f, x, jnp.eye(3)[:1], points=3)
        >>> ax.lines[0].get_ydata().tolist()
        [1.0, 0.0, 1.0]
    """
    H = HessianOperator(f, x, *args)
    directions = _stacked(H.like, directions)
    count = _count_directions(H.like, directions)
    along = np.linspace(-span, span, points)
    grid = np.stack(np.meshgrid(*[along] * count, indexing="ij"), axis=-1)
    # The point itself is the last: an even number of points does not meet it.
    grid = np.append(grid.reshape(-1, count), np.zeros((1, count)), axis=0)
    directions = jax.tree.map(lambda a, v: jnp.asarray(v, a.dtype), H.like, directions)
    *values, middle = np.asarray(_values(H, directions, jnp.asarray(grid, float)))
    ax = axes(ax)
    if count == 1:
        ax.plot(along, values)
        ax.plot(0, middle, "k+")
        ax.set(xlabel="along the direction", ylabel="value")
        return ax
    # matplotlib takes rows for the vertical axis, the grid for the first direction.
    heights = np.reshape(values, (points, points)).T
    contours = ax.contourf(along, along, heights, levels=20)
    colorbar(ax, contours, "value")
    ax.plot(0, 0, "k+")
    ax.set(xlabel="along the first direction", ylabel="along the second direction")
    return ax


# The function is a leaf of the operator, split into arrays and code: closures over
# other arrays share a program (`test_a_surface_over_other_data_compiles_nothing`).
@jitted
def _values(
    H: HessianOperator, directions: PyTree, grid: Float[Array, "values k"]
) -> Float[Array, "values"]:
    """Return the function at `x + sum_i c_i v_i` for each row `c` of a grid."""

    def value(c: Float[Array, "k"]) -> Float[Array, ""]:
        move = lambda a, v: a + jnp.tensordot(c.astype(a.dtype), v, 1)
        moved = jax.tree.map(move, H.like, directions)
        constants = eqx.filter(H.x, eqx.is_inexact_array, inverse=True)
        return H.f(eqx.combine(moved, constants), *H.args)

    # Not `vmap`, which would hold the intermediate arrays of all points at once.
    return jax.lax.map(value, grid)


def _stacked(like: Tangent, directions: PyTree) -> PyTree:
    """Return a list of directions as one tree with one more axis in front."""
    floating = lambda tree: eqx.filter(tree, eqx.is_inexact_array_like)
    types = lambda tree: (
        jax.tree.structure(tree),
        [jnp.shape(a) for a in jax.tree.leaves(tree)],
    )
    if isinstance(directions, (list, tuple)):
        each = [floating(direction) for direction in directions]
        if each and all(types(v) == types(like) for v in each):
            return jax.tree.map(lambda *parts: jnp.stack(parts), *each)
    return floating(directions)


def _count_directions(like: Tangent, directions: PyTree) -> int:
    """Return how many directions there are, once they fit."""
    shapes = lambda tree: [jnp.shape(a) for a in jax.tree.leaves(tree)]
    given = shapes(directions)
    count = given[0][0] if given and given[0] else 0
    fits = given == [(count, *shape) for shape in shapes(like)]
    fits = fits and jax.tree.structure(directions) == jax.tree.structure(like)
    if count not in (1, 2) or not fits:
        raise StructureError(
            message(
                "surface(f, x, directions)",
                "`directions` must be a list of one or two directions, or have one "
                "more axis in front.",
                expected=f"[v] or [v, w] of {describe_tree(like)}, or that with a "
                "first axis of length 1 or 2",
                got=describe_tree(directions),
                fix="Pass `[v, w]`, or take the last two eigenvectors by "
                "`jax.tree.map(lambda a: a[-2:], H.eigh(k).vectors)`.",
            )
        )
    return count
