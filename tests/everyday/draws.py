"""Data for makers: random arrays from a seed."""

import jax
import jax.numpy as jnp
import numpy as np


def numpy_normals(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    """Return NumPy arrays of normal numbers in single precision."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def normals(seed: int, *shapes: tuple[int, ...]) -> list[jax.Array]:
    """Return JAX arrays of normal numbers, in the default precision."""
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=shape)) for shape in shapes]


def labels(seed: int, n: int, classes: int) -> np.ndarray:
    """Return random classes, as a NumPy array of 32-bit integers."""
    return np.random.default_rng(seed).integers(0, classes, n).astype(np.int32)
