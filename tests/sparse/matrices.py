"""Random sparse matrices, and their dense twins."""

import numpy as np

import hotk


def scattered(rng, m, n, k, dtype=np.float64, symmetric=False):
    """Return a random matrix with about `k` entries, and its dense twin."""
    dense = np.zeros((m, n), dtype)
    rows, cols = rng.integers(0, m, k), rng.integers(0, n, k)
    values = rng.normal(size=k)
    if np.issubdtype(dtype, np.complexfloating):
        values = values + 1j * rng.normal(size=k)
    dense[rows, cols] = values
    if symmetric:
        dense = dense + dense.T
    rows, cols = np.nonzero(dense)
    values = dense[rows, cols]
    shape = dense.shape
    matrix = hotk.SparseMatrix.from_coo(values, rows, cols, shape, symmetric=symmetric)
    return matrix, dense
