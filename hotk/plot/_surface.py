"""The values of a function on a line or a plane through a point."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import StructureError, describe_tree, message
from hotk.linop import HessianOperator
from hotk.prepared import jitted

from ._axes import axes, colorbar


def surface(
    f: Callable[..., Any],
    x: Any,
    directions: Any,
    *args: Any,
    span: float = 1.0,
    points: int = 41,
    ax: Any = None,
) -> Any:
    """Draw a function along one direction, or over the plane of two.

    It is `f(x + a v, *args)` over `a`, or `f(x + a v + b w, *args)` over `a` and `b`,
    from `-span` to `span` in lengths of the directions; the cross is the point itself.
    The values are computed one by one in one compiled loop, which a new closure over
    other arrays does not compile again.

    Args:
        f: Function `f(x, *args)` that returns one real number.
        x: The point: any pytree.
        directions: A tree like `x` with one leading axis of length one or two in each
            floating leaf, such as the `vectors` of `H.eigh(2)`.
        *args: Further arguments of `f`.
        span: How far to go to each side, in lengths of the directions.
        points: How many values along each direction.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is not installed.
        StructureError: If the directions do not fit the point, or are more than two.

    Example:
        >>> f, x = lambda x: jnp.sum(x**2), jnp.zeros(3)
        >>> ax = hotk.plot.surface(f, x, jnp.eye(3)[:1], points=3)
        >>> ax.lines[0].get_ydata().tolist()
        [1.0, 0.0, 1.0]
    """
    H = HessianOperator(f, x, *args)
    directions = eqx.filter(directions, eqx.is_inexact_array_like)
    rows = _rows(H.like, directions)
    along = np.linspace(-span, span, points)
    grid = np.stack(np.meshgrid(*[along] * rows, indexing="ij"), axis=-1)
    grid = np.append(grid.reshape(-1, rows), np.zeros((1, rows)), axis=0)
    directions = jax.tree.map(lambda a, v: jnp.asarray(v, a.dtype), H.like, directions)
    *values, middle = np.asarray(_values(H, directions, jnp.asarray(grid, float)))
    ax = axes(ax)
    if rows == 1:
        ax.plot(along, values)
        ax.plot(0, middle, "k+")
        ax.set(xlabel="along the direction", ylabel="value")
        return ax
    filled = ax.contourf(
        along, along, np.reshape(values, (points, points)).T, levels=20
    )
    colorbar(ax, filled, "value")
    ax.plot(0, 0, "k+")
    ax.set(xlabel="along the first direction", ylabel="along the second direction")
    return ax


@jitted
def _values(H: Any, directions: Any, grid: Any) -> Any:
    """Return the function at `x + sum_i c_i v_i` for each row `c` of a grid."""

    def value(c: Any) -> Any:
        move = lambda a, v: a + jnp.tensordot(c.astype(a.dtype), v, 1)
        moved = jax.tree.map(move, H.like, directions)
        still = eqx.filter(H.x, eqx.is_inexact_array, inverse=True)
        return H.f(eqx.combine(moved, still), *H.args)

    return jax.lax.map(value, grid)


def _rows(like: Any, directions: Any) -> int:
    """Return how many directions there are, once they fit."""
    shapes = lambda tree: [jnp.shape(a) for a in jax.tree.leaves(tree)]
    found = shapes(directions)
    rows = found[0][0] if found and found[0] else 0
    fits = found == [(rows, *shape) for shape in shapes(like)]
    fits = fits and jax.tree.structure(directions) == jax.tree.structure(like)
    if rows not in (1, 2) or not fits:
        raise StructureError(
            message(
                "surface(f, x, directions)",
                "`directions` must be one or two directions, with one leading axis.",
                expected=f"{describe_tree(like)}, and an axis of length 1 or 2 before",
                got=describe_tree(directions),
                fix="Take `jax.tree.map(lambda a: a[-2:], H.eigh(k).vectors)`, or "
                "`jax.tree.map(lambda a: a[None], v)` for one direction.",
            )
        )
    return rows
