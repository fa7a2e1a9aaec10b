"""Matrices as images: their entries, the norms of their blocks, their pattern."""

from typing import Any, Literal

import jax
import numpy as np

from hotk._core import StructureError, describe, extra, message
from hotk.linop import AbstractOperator, Index

from ._axes import axes, colorbar


# More names than this do not stand beside one another.
_MOST_NAMES = 30


def matrix(
    operator: Any,
    index: Index | None = None,
    *,
    scale: Literal["linear", "log"] = "linear",
    ax: Any = None,
) -> Any:
    """Draw the entries of a matrix as an image, with the paths of the leaves.

    White is zero, red positive, blue negative; the scale is the same to both sides.
    Lines part the leaves of the point from each other.

    Args:
        operator: An operator, whose matrix is computed (n products), or an array of
            shape `(n, n)`.
        index: Where the leaves stand in an array; an operator knows it.
        scale: `"linear"`; or `"log"` for both signs by logarithms, over three decades
            below the largest entry.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is not installed.
        StructureError: If it is neither an operator nor a square array.
        TooLargeError: If the matrix of the operator exceeds `hotk.memory_budget()`.

    Example:
        >>> f = lambda p: p["b"] * jnp.sum(p["w"] ** 2)
        >>> H = hotk.HessianOperator(f, {"w": jnp.ones(3), "b": jnp.array(2.0)})
        >>> ax = hotk.plot.matrix(H)
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['b', 'w']
    """
    entries, index = _entries("matrix(operator)", operator, index)
    colors = extra("matplotlib.colors", "plot")
    most = _largest(entries)
    if scale == "log":
        power = 10.0 ** np.floor(np.log10(most))  # so that no tick is close to zero
        norm = colors.SymLogNorm(power / 1e3, vmin=-most, vmax=most)
    else:
        norm = colors.Normalize(-most, most)
    ax = axes(ax)
    image = ax.imshow(entries, cmap="RdBu_r", norm=norm, interpolation="nearest")
    colorbar(ax, image, "entry")
    _name_leaves(ax, index, len(entries))
    return ax


def blocks(operator: Any, index: Index | None = None, *, ax: Any = None) -> Any:
    r"""Draw the Frobenius norm of each block of a matrix, one for two leaves.

    The norm is $\sqrt{\sum_{ij} H_{ij}^2}$ over the entries of the block: their squares
    sum up to that of the whole. Its colour is by logarithm.

    Args:
        operator: An operator, whose matrix is computed (n products), or an array of
            shape `(n, n)`.
        index: Where the leaves stand in an array; an operator knows it.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is not installed.
        StructureError: If it is neither an operator nor a square array, or an array
            comes without an index.
        TooLargeError: If the matrix of the operator exceeds `hotk.memory_budget()`.

    Example:
        >>> f = lambda p: jnp.sum(p["w"] ** 2) + p["b"] ** 2
        >>> H = hotk.HessianOperator(f, {"w": jnp.ones(4), "b": jnp.array(2.0)})
        >>> hotk.plot.blocks(H).images[0].get_array().tolist()
        [[2.0, 0.0], [0.0, 4.0]]
    """
    call = "blocks(operator)"
    entries, index = _entries(call, operator, index)
    if index is None:
        raise StructureError(
            message(
                call,
                "an array does not know where its leaves stand.",
                expected="an operator, or an array and its `index`",
                got=f"{describe(operator)} alone",
                fix="Give the operator itself, or `hotk.linop.Index.of(x)`.",
            )
        )
    parts = [part for _, part in index.items()]
    norms = np.array([[np.linalg.norm(entries[p, q]) for q in parts] for p in parts])
    colors = extra("matplotlib.colors", "plot")
    most = _largest(norms)
    least = np.min(norms, where=norms > 0, initial=most)
    norm = colors.LogNorm(max(float(least), most / 1e6) / 1.1, most)
    ax = axes(ax)
    cmap = extra("matplotlib", "plot").colormaps["viridis"]
    cmap = cmap.with_extremes(bad="white", under="white")
    image = ax.imshow(norms, cmap=cmap, norm=norm, interpolation="nearest")
    colorbar(ax, image, "Frobenius norm")
    names = list(index)
    ax.set_xticks(range(len(names)), names, rotation=90)
    ax.set_yticks(range(len(names)), names)
    if len(names) <= 8:
        middle = norm(norms)
        for i, j in np.ndindex(norms.shape):
            dark = norms[i, j] > 0 and float(middle[i, j]) < 0.5
            text = f"{norms[i, j]:.2g}"
            color = "white" if dark else "black"
            ax.text(j, i, text, ha="center", va="center", color=color)
    return ax


def sparsity(
    operator: Any, index: Index | None = None, *, tol: float = 0.0, ax: Any = None
) -> Any:
    """Draw which entries of a matrix are not zero at this point.

    An entry that is zero here may be another number elsewhere: this is the pattern of
    the values, not that of the program.

    Args:
        operator: An operator, whose matrix is computed (n products), or an array of
            shape `(n, n)`.
        index: Where the leaves stand in an array; an operator knows it.
        tol: An entry counts from more than this share of the largest one on.
        ax: Where to draw.

    Returns:
        The axes. The label below says how many entries count, and their share.

    Raises:
        ImportError: If matplotlib is not installed.
        StructureError: If it is neither an operator nor a square array.
        TooLargeError: If the matrix of the operator exceeds `hotk.memory_budget()`.

    Example:
        >>> f = lambda x: jnp.sum((x[1:] - x[:-1]) ** 2)
        >>> H = hotk.HessianOperator(f, jnp.ones(10))
        >>> hotk.plot.sparsity(H).get_xlabel()
        '28 of 100 entries (28 %)'
    """
    entries, index = _entries("sparsity(operator)", operator, index)
    seen = np.abs(entries) > (tol * _largest(entries) if tol else 0.0)
    seen |= np.isnan(entries)
    ax = axes(ax)
    ax.imshow(seen, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    _name_leaves(ax, index, len(entries))
    count, all_of_them = int(seen.sum()), max(seen.size, 1)
    share = 100 * count / all_of_them
    ax.set_xlabel(f"{count} of {seen.size} entries ({share:.3g} %)")
    return ax


def _entries(call: str, operator: Any, index: Any) -> tuple[Any, Index | None]:
    """Return the entries of a matrix, and where the leaves stand in it."""
    if isinstance(operator, AbstractOperator):
        return np.asarray(operator.matrix()), operator.index
    array = isinstance(operator, (jax.Array, np.ndarray))
    square = array and operator.ndim == 2 and operator.shape[0] == operator.shape[1]
    if not square or np.iscomplexobj(operator):
        raise StructureError(
            message(
                call,
                "this is no matrix.",
                expected="an operator, or a real array of shape (n, n)",
                got=describe(operator),
                fix="Draw `hotk.HessianOperator(f, x)`: it has the numbers of "
                "`hotk.hessian(f, x)` as one matrix.",
            )
        )
    rows = operator.shape[0] if index is None else max(s.stop for _, s in index.items())
    if rows != operator.shape[0]:
        raise StructureError(
            message(
                call,
                "the index is that of another matrix.",
                expected=f"an index of {operator.shape[0]} rows",
                got=f"one of {rows}",
                fix="Take that of the operator, or `hotk.linop.Index.of(x)`.",
            )
        )
    return np.asarray(operator).astype(float), index


def _largest(entries: Any) -> float:
    """Return the largest finite absolute value, or one if all are zero."""
    sizes = np.abs(entries)
    most = float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))
    return most if most > 0 else 1.0


def _name_leaves(ax: Any, index: Index | None, n: int) -> None:
    """Write the path of each leaf beside its rows and columns, and part them."""
    if index is None:
        return
    rows = [(name, part) for name, part in index.items() if part.stop > part.start]
    for _, part in rows[1:]:
        ax.axhline(part.start - 0.5, color="grey", linewidth=0.5)
        ax.axvline(part.start - 0.5, color="grey", linewidth=0.5)
    if len(rows) > _MOST_NAMES:  # the names of the small ones would not be readable
        rows = [r for r in rows if (r[1].stop - r[1].start) * _MOST_NAMES >= n]
    middles = [(part.start + part.stop - 1) / 2 for _, part in rows]
    names = [name or "x" for name, _ in rows]
    ax.set_xticks(middles, names, rotation=90)
    ax.set_yticks(middles, names)
