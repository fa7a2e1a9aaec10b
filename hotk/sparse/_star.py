"""Star colorings, all vertices of a class at once."""

import numpy as np
from jaxtyping import Int32

from hotk._core import extra


# The paths of length two that are looked at: a second at most.
_MOST_PATHS = 30_000_000


def star_colors(
    rows: np.ndarray, cols: np.ndarray, classes: Int32[np.ndarray, " n"]
) -> Int32[np.ndarray, " n"] | None:
    """Color a symmetric pattern so that each entry or its mirror image can be read.

    A vertex gets the smallest color that no neighbor has, nor a neighbor x of a
    neighbor w that has no color yet or a larger one than x [1]. That depends on what
    is at most two edges away, so vertices that are further from each other are
    colored at once, as if one by one.

    Args:
        rows: Rows of the entries, both halves.
        cols: Their columns.
        classes: Classes of vertices that are more than two edges from each other;
            -1 for vertices without entries.

    Returns:
        The colors, -1 where the class is, or `None` if that takes too long.

    References:
        [1] Gebremedhin, Tarafdar, Manne and Pothen (2007). New acyclic and star
            coloring algorithms with application to computing Hessians. SIAM Journal
            on Scientific Computing 29(3), 1042-1072.
    """
    n = classes.size
    off = rows != cols
    graph = extra("scipy.sparse").csr_array(
        (np.ones(int(off.sum()), np.int8), (rows[off], cols[off])), shape=(n, n)
    )
    starts, neighbors = graph.indptr, graph.indices
    degrees = np.diff(starts)
    if int(degrees[neighbors].sum()) > _MOST_PATHS:
        return None
    colors = np.full(n, -1, np.int32)
    for k in range(int(classes.max(initial=-1)) + 1):
        vertices = np.flatnonzero(classes == k)
        which, near = _spread(starts, neighbors, vertices)
        among, far = _spread(starts, neighbors, near)
        of, by = colors[far], colors[near][among]
        # all neighbors of a neighbor without a color, `by` being -1
        forbidden = (of >= 0) & ((by < 0) | (of < by))
        taken = np.zeros((vertices.size, int(colors.max(initial=-1)) + 3), bool)
        # the last column stands for no color
        taken[which, colors[near]] = True
        taken[which[among][forbidden], of[forbidden]] = True
        colors[vertices] = np.argmin(taken[:, :-1], axis=1)
    return colors


def _spread(
    starts: np.ndarray, neighbors: np.ndarray, vertices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """List the neighbors of vertices: the number of the vertex, and the neighbor."""
    counts = starts[vertices + 1] - starts[vertices]
    which = np.repeat(np.arange(vertices.size), counts)
    within = np.arange(which.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return which, neighbors[starts[vertices][which] + within]
