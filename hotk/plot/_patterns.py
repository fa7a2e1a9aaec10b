"""Sparsity patterns of large sparse matrices as images."""

from typing import TYPE_CHECKING

import numpy as np

from hotk.sparse import Pattern, SparseMatrix

from ._axes import axes


if TYPE_CHECKING:
    from matplotlib.axes import Axes


# An image of more cells shows no more: each may stand for several entries.
_MOST_CELLS = 400


def pattern_image(matrix: SparseMatrix | Pattern, ax: "Axes | None") -> "Axes":
    """Draw the positions of the entries; a cell is black if one of them is in it."""
    pattern = matrix.pattern if isinstance(matrix, SparseMatrix) else matrix
    m, n = pattern.shape
    height, width = (min(max(k, 1), _MOST_CELLS) for k in (m, n))
    image = np.zeros((height, width), bool)
    rows, cols = pattern.rows.astype(np.int64), pattern.cols.astype(np.int64)
    image[rows * height // max(m, 1), cols * width // max(n, 1)] = True
    ax = axes(ax)
    extent = (-0.5, max(n, 1) - 0.5, max(m, 1) - 0.5, -0.5)
    ax.imshow(image, "Greys", vmin=0, vmax=1, interpolation="nearest", extent=extent)
    share = f"{100 * pattern.density:.3g} %"
    ax.set_xlabel(f"{pattern.nnz} of {m * n} entries ({share})")
    return ax
