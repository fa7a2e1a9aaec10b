"""Matrices as images: their entries, the norms of their blocks, their pattern."""

from typing import TYPE_CHECKING, Literal, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Float, Real

from hotk._core import StructureError, describe, extra, message
from hotk.linop import AbstractOperator, Index
from hotk.sparse import Pattern, SparseMatrix

from ._axes import axes, colorbar
from ._patterns import draw_pattern


if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Names of more leaves than this overlap on axes of the usual size.
_MAX_NAMES = 30
# A matrix of more rows has cells of several entries, so that none falls between pixels.
_MOST_CELLS = 400
# Names beside each other, and letters of one, that take an inch.
_NAMES_PER_INCH, _LETTERS_PER_INCH = 5, 12

Matrix: TypeAlias = AbstractOperator | Real[Array, "n n"] | Real[np.ndarray, "n n"]


def matrix(
    operator: Matrix,
    index: Index | None = None,
    *,
    scale: Literal["linear", "log"] | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the entries of a matrix as an image, labelled with the paths of the leaves.

    Zero is white, positive entries are red, negative ones blue, on a symmetric scale.
    Lines separate the leaves of the point. Of a matrix of more than 400 rows each cell
    of the image shows the largest of several entries, so that none is lost between
    the pixels.

    Args:
        operator: An operator, whose dense matrix is computed (`n` products), or a real
            array of shape `(n, n)`.
        index: The ranges of the leaves in an array. An operator has its own.
        scale: `"linear"`, or `"log"` for a logarithmic scale of both signs, over three
            decades below the largest entry. If left out, it is logarithmic where half
            of the entries that are not zero are below a hundredth of the largest.
        ax: The matplotlib axes to draw on; new ones if left out.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: If matplotlib is not installed.
        StructureError: If `operator` is neither an operator nor a real square array, or
            `index` has another number of rows.
        TooLargeError: If the matrix of the operator exceeds `hotk.memory_budget()`.
        ValueError: If `scale` is something else.

    Example:
        >>> f = lambda p: p["b"] * jnp.sum(p["w"] ** 2)
        >>> H = hotk.HessianOperator(f, {"w": jnp.ones(3), "b": jnp.array(2.0)})
        >>> ax = hotk.plot.matrix(H)
        >>> [label.get_text() for label in ax.get_yticklabels()]
        ['b', 'w']
    """
    entries, index = _entries("matrix(operator)", operator, index)
    colors = extra("matplotlib.colors", "plot")
    largest = _largest(entries)
    if scale not in (None, "linear", "log"):
        raise ValueError(
            f'`matrix(operator, scale={scale!r})`: give "linear", "log" or None.'
        )
    if scale == "log" or (scale is None and _spans_decades(entries, largest)):
        # A power of ten: the ticks are at powers of ten, and one just above the linear
        # range would overlap with that of zero.
        power = 10.0 ** np.floor(np.log10(largest))
        norm = colors.SymLogNorm(power / 1e3, vmin=-largest, vmax=largest)
    else:
        norm = colors.Normalize(-largest, largest)
    n = len(entries)
    ax = axes(ax, _inches(index if index is None or len(index) <= _MAX_NAMES else None))
    image = ax.imshow(
        _cells(entries),
        cmap="RdBu_r",
        norm=norm,
        interpolation="nearest",
        extent=(-0.5, n - 0.5, n - 0.5, -0.5),
    )
    colorbar(ax, image, "entry")
    _name_leaves(ax, index, n)
    return ax


def blocks(
    operator: Matrix, index: Index | None = None, *, ax: "Axes | None" = None
) -> "Axes":
    r"""Draw the Frobenius norm of each block of a matrix, one for each pair of leaves.

    The norm is $\sqrt{\sum_{ij} H_{ij}^2}$ over the entries of the block: the squares
    of all norms sum to that of the matrix. The scale is logarithmic. With at most eight
    leaves, the norms are written into the blocks.

    Args:
        operator: An operator, whose dense matrix is computed (`n` products), or a real
            array of shape `(n, n)`.
        index: The ranges of the leaves in an array. An operator has its own.
        ax: The matplotlib axes to draw on; new ones if left out.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: If matplotlib is not installed.
        StructureError: If `operator` is neither an operator nor a real square array, or
            is an array without an index, or `index` has another number of rows.
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
                "an array has no index of the leaves.",
                expected="an operator, or an array and its `index`",
                got=f"{describe(operator)} alone",
                fix="Pass the operator itself, or `index=hotk.linop.Index.of(x)`.",
            )
        )
    parts = [part for _, part in index.items()]
    norms = np.array([[np.linalg.norm(entries[p, q]) for q in parts] for p in parts])
    colors = extra("matplotlib.colors", "plot")
    largest = _largest(norms)
    smallest = np.min(norms, where=norms > 0, initial=largest)
    # Below by a tenth: with one norm for all blocks the limits would be equal.
    norm = colors.LogNorm(max(float(smallest), largest / 1e6) / 1.1, largest)
    ax = axes(ax, _inches(index))
    cmap = extra("matplotlib", "plot").colormaps["viridis"]
    cmap = cmap.with_extremes(bad="white", under="white")
    image = ax.imshow(norms, cmap=cmap, norm=norm, interpolation="nearest")
    colorbar(ax, image, "Frobenius norm")
    names = list(index)
    ax.set_xticks(range(len(names)), names, rotation=90)
    ax.set_yticks(range(len(names)), names)
    if len(names) <= 8:
        shade = norm(norms)
        for i, j in np.ndindex(norms.shape):
            # Zero has no logarithm and is drawn white.
            dark = norms[i, j] > 0 and float(shade[i, j]) < 0.5
            text = f"{norms[i, j]:.2g}"
            color = "white" if dark else "black"
            ax.text(j, i, text, ha="center", va="center", color=color)
    return ax


def sparsity(
    operator: Matrix | Pattern | SparseMatrix,
    index: Index | None = None,
    *,
    tol: float = 0.0,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the sparsity pattern of a matrix: which entries are not zero at this point.

    This is the pattern of the values: an entry that is zero at this point may be
    nonzero at another. A `hotk.sparse.Pattern`, as of `hotk.sparsity`, holds at all
    points. It and a `hotk.SparseMatrix` may have any number of rows: where there are
    more than 400, a pixel is the darker the more of its entries are there.

    Args:
        operator: A pattern or a sparse matrix; an operator, whose dense matrix is
            computed (`n` products); or a real array of shape `(n, n)`.
        index: The ranges of the leaves in an array. All others have their own.
        tol: Entries up to this share of the largest absolute value count as zero.
        ax: The matplotlib axes to draw on; new ones if left out.

    Returns:
        The matplotlib axes. The label of the horizontal axis has the number of nonzero
        entries and their share.

    Raises:
        ImportError: If matplotlib is not installed.
        StructureError: If `operator` is neither an operator nor a real square array, or
            `index` has another number of rows.
        TooLargeError: If the matrix of the operator exceeds `hotk.memory_budget()`.

    Example:
        >>> f = lambda x: jnp.sum((x[1:] - x[:-1]) ** 2)
        >>> H = hotk.HessianOperator(f, jnp.ones(10))
        >>> hotk.plot.sparsity(H).get_xlabel()
        '28 of 100 entries (28 %)'
        >>> hotk.plot.sparsity(hotk.sparsity(f, jnp.ones(10))).get_xlabel()
        '28 of 100 entries (28 %)'
    """
    if isinstance(operator, (Pattern, SparseMatrix)):
        return draw_pattern(operator, tol, ax)
    entries, index = _entries("sparsity(operator)", operator, index)
    nonzero = np.abs(entries) > (tol * _largest(entries) if tol else 0.0)
    # No comparison with NaN is true.
    nonzero |= np.isnan(entries)
    ax = axes(ax, _inches(index if index is None or len(index) <= _MAX_NAMES else None))
    ax.imshow(nonzero, cmap="Greys", vmin=0, vmax=1, interpolation="nearest")
    _name_leaves(ax, index, len(entries))
    count = int(nonzero.sum())
    share = 100 * count / max(nonzero.size, 1)
    ax.set_xlabel(f"{count} of {nonzero.size} entries ({share:.3g} %)")
    return ax


def _entries(
    call: str, operator: Matrix, index: Index | None
) -> tuple[Float[np.ndarray, "n n"], Index | None]:
    """Return the entries of a matrix, and where the leaves stand in it."""
    if isinstance(operator, AbstractOperator):
        found = np.asarray(operator.matrix())
        # Norms of small or large numbers, and matplotlib, take no lower precision.
        return found if np.iscomplexobj(found) else found.astype(float), operator.index
    array = isinstance(operator, (jax.Array, np.ndarray))
    square = array and operator.ndim == 2 and operator.shape[0] == operator.shape[1]
    if not square or np.iscomplexobj(operator):
        raise StructureError(
            message(
                call,
                "`operator` must be an operator or a matrix.",
                expected="an operator, or a real array of shape (n, n)",
                got=describe(operator),
                fix="Pass `hotk.HessianOperator(f, x)`: it has the numbers of "
                "`hotk.hessian(f, x)` as one matrix.",
            )
        )
    rows = operator.shape[0] if index is None else max(s.stop for _, s in index.items())
    if rows != operator.shape[0]:
        raise StructureError(
            message(
                call,
                "`index` belongs to another matrix.",
                expected=f"an index of {operator.shape[0]} rows",
                got=f"an index of {rows} rows",
                fix="Pass the operator's `index`, or `hotk.linop.Index.of(x)`.",
            )
        )
    return np.asarray(operator).astype(float), index


def _largest(entries: Float[np.ndarray, "..."]) -> float:
    """Return the largest finite absolute value, or one if all are zero."""
    sizes = np.abs(entries)
    largest = float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))
    return largest if largest > 0 else 1.0


def _spans_decades(entries: Float[np.ndarray, "n n"], largest: float) -> bool:
    sizes = np.abs(entries)
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    return sizes.size > 0 and float(np.median(sizes)) < largest / 100


def _cells(entries: Float[np.ndarray, "n n"]) -> Float[np.ndarray, "k k"]:
    """Return the entry of largest size in each cell of an image."""
    n = len(entries)
    width = -(-n // _MOST_CELLS)
    if width <= 1:
        return entries
    # What is beyond the last row is smaller than all entries.
    margin = -n % width
    padded = np.pad(entries, (0, margin))
    k = len(padded) // width
    cells = padded.reshape(k, width, k, width).swapaxes(1, 2).reshape(k, k, -1)
    # NaN is the largest: it is not to be hidden.
    sizes = np.where(np.isnan(cells), np.inf, np.abs(cells))
    at = np.argmax(sizes, axis=-1)[..., None]
    return np.take_along_axis(cells, at, axis=-1)[..., 0]


def _inches(index: Index | None) -> tuple[float, float]:
    """Return the size of a figure in which the names of the leaves do not overlap."""
    names = [] if index is None else list(index)
    image = max(4.0, len(names) / _NAMES_PER_INCH)
    beside = max(map(len, names), default=0) / _LETTERS_PER_INCH
    # the colorbar and its label are as wide as an inch
    return image + beside + 1.4, image + beside + 0.4


def _name_leaves(ax: "Axes", index: Index | None, n: int) -> None:
    """Write the paths of the leaves beside rows and columns, and separate them."""
    if index is None:
        return
    leaves = [(name, part) for name, part in index.items() if part.stop > part.start]
    for _, part in leaves[1:]:
        ax.axhline(part.start - 0.5, color="grey", linewidth=0.5)
        ax.axvline(part.start - 0.5, color="grey", linewidth=0.5)
    if len(leaves) > _MAX_NAMES:
        # Only leaves with room for a name have one.
        leaves = [(k, p) for k, p in leaves if (p.stop - p.start) * _MAX_NAMES >= n]
    middles = [(part.start + part.stop - 1) / 2 for _, part in leaves]
    names = [name or "x" for name, _ in leaves]
    ax.set_xticks(middles, names, rotation=90)
    ax.set_yticks(middles, names)
