"""Random sparse matrices, and their dense twins."""

import jax.numpy as jnp
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


def free_framework(n, seed=0):
    """Return the energy of springs between points of the plane, and the points.

    Nothing holds it: two shifts and a rotation change no length.
    """
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(n, 2))
    i = np.repeat(np.arange(n), 5)
    j = (i + np.tile([1, 2, 3, 5, 8], n)) % n
    lengths = np.linalg.norm(points[i] - points[j], axis=1)
    stiffness = 10 ** rng.uniform(-1, 1, i.size)

    def energy(x):
        k, rest = (jnp.asarray(a, x.dtype) for a in (stiffness, lengths))
        return jnp.sum(k * (jnp.sqrt(jnp.sum((x[i] - x[j]) ** 2, axis=1)) - rest) ** 2)

    return energy, points
