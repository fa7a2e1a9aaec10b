"""Sparsity patterns of any size as images: how many entries fall into each pixel."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Integer

from hotk._core import extra
from hotk.linop import Index
from hotk.sparse import Pattern, SparseMatrix

from ._axes import axes


if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Pixels of axes of the usual size: with more, single entries are not drawn at all.
_MOST_PIXELS = 400


def draw_pattern(
    given: Pattern | SparseMatrix, tol: float, ax: "Axes | None"
) -> "Axes":
    """Draw the positions of a pattern, or of the entries of a matrix above `tol`."""
    pattern = given if isinstance(given, Pattern) else given.pattern
    rows, cols = pattern.rows, pattern.cols
    if isinstance(given, SparseMatrix):
        sizes = np.abs(np.asarray(given.values, np.complex128))
        largest = float(np.max(sizes, where=np.isfinite(sizes), initial=0.0))
        shown = ~(sizes <= tol * largest)  # NaN is shown
        rows, cols = rows[shown], cols[shown]
    ax = axes(ax)
    m, n = pattern.shape
    image = raster(rows, cols, pattern.shape)
    # A pixel with one entry of thousands is grey enough to be seen.
    norm = extra("matplotlib.colors", "plot").PowerNorm(0.3, 0, max(image.max(), 1e-9))
    extent = (-0.5, max(n, 1) - 0.5, max(m, 1) - 0.5, -0.5)
    # Axes with fewer pixels than the image leave none of its pixels out.
    ax.imshow(
        image, cmap="Greys", norm=norm, interpolation="antialiased", extent=extent
    )
    share = 100 * rows.size / max(m * n, 1)
    ax.set_xlabel(f"{rows.size} of {m * n} entries ({share:.3g} %)")
    _name(ax, pattern.row_index, rows=True)
    _name(ax, pattern.col_index, rows=False)
    return ax


def raster(
    rows: Integer[np.ndarray, " nnz"],
    cols: Integer[np.ndarray, " nnz"],
    shape: tuple[int, int],
) -> Float[np.ndarray, "height width"]:
    """Return the share of the entries of each pixel that are there."""
    sizes = [min(max(count, 1), _MOST_PIXELS) for count in shape]
    pixels = [
        places.astype(np.int64) * size // max(count, 1)
        for places, size, count in zip((rows, cols), sizes, shape, strict=True)
    ]
    number = pixels[0] * sizes[1] + pixels[1]
    counts = np.bincount(number, minlength=sizes[0] * sizes[1])
    # as many indices as fall into a pixel: some pixels have one more than others
    height, width = (
        np.bincount(np.arange(max(count, 1)) * size // max(count, 1), minlength=size)
        for size, count in zip(sizes, shape, strict=True)
    )
    return counts.reshape(sizes) / np.outer(height, width)


def _name(ax: "Axes", index: Index, *, rows: bool) -> None:
    """Write the paths of several leaves beside the rows, or below the columns."""
    leaves = [(name, part) for name, part in index.items() if part.stop > part.start]
    if len(leaves) < 2:
        return
    total = leaves[-1][1].stop
    line, ticks = (ax.axhline, ax.set_yticks) if rows else (ax.axvline, ax.set_xticks)
    for _, part in leaves[1:]:
        line(part.start - 0.5, color="grey", linewidth=0.5)
    # Only leaves with room for a name have one.
    roomy = [(k, p) for k, p in leaves if (p.stop - p.start) * 30 >= total]
    middles = [(part.start + part.stop - 1) / 2 for _, part in roomy]
    ticks(middles, [name for name, _ in roomy], rotation=0 if rows else 90)
