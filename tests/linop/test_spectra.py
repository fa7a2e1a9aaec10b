"""Spectra of grids, graphs and crystals, known in closed form with all their copies."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk


def springs(pairs):
    """Return the energy of springs between pairs of points: a Laplacian of a graph."""
    i, j = jnp.asarray(np.array(pairs).T)
    return lambda x: jnp.sum((x[i] - x[j]) ** 2) / 2


def torus(*sides):
    """Return the energy of springs on a periodic grid, and its eigenvalues."""

    def energy(x):
        u = x.reshape(sides)
        return sum(jnp.sum((u - jnp.roll(u, 1, a)) ** 2) for a in range(u.ndim)) / 2

    values = np.zeros(1)
    for n in sides:
        line = 2 - 2 * np.cos(2 * np.pi * np.arange(n) / n)
        values = (values[:, None] + line).ravel()
    return energy, values


def box(*sides):
    """Return the energy of springs on a grid with fixed ends, and its eigenvalues."""

    def energy(x):
        total = jnp.zeros((), x.dtype)
        for a in range(len(sides)):
            wide = [(1, 1) if a == b else (0, 0) for b in range(len(sides))]
            u = jnp.pad(x.reshape(sides), wide)
            total = total + jnp.sum(jnp.diff(u, axis=a) ** 2) / 2
        return total

    values = np.zeros(1)
    for n in sides:
        line = 2 - 2 * np.cos(np.pi * np.arange(1, n + 1) / (n + 1))
        values = (values[:, None] + line).ravel()
    return energy, values


def crystal(cells):
    """Return harmonic bonds of a simple cubic crystal, in all three directions.

    A bond along an axis has stiffness 1 along it and 1/4 across: each of the three
    polarizations is a scalar torus of unequal stiffness, so all values have copies.
    """
    stiff = np.full((3, 3), 0.25) + 0.75 * np.eye(3)

    def energy(x):
        u = x.reshape(cells, cells, cells, 3)
        bonds = (
            (u - jnp.roll(u, 1, a)) ** 2 @ jnp.asarray(stiff[a], x.dtype)
            for a in range(3)
        )
        return sum(map(jnp.sum, bonds)) / 2

    line = 2 - 2 * np.cos(2 * np.pi * np.arange(cells) / cells)
    grid = np.stack(np.meshgrid(line, line, line), axis=-1).reshape(-1, 3)
    return energy, (grid @ stiff).ravel()


def hypercube(d):
    n = 2**d
    pairs = [(a, a ^ (1 << b)) for a in range(n) for b in range(d) if a < a ^ (1 << b)]
    copies = [math.comb(d, k) for k in range(d + 1)]
    return springs(pairs), np.repeat(2.0 * np.arange(d + 1), copies)


def star(n):
    return springs([(0, i) for i in range(1, n)]), np.array([0, *[1] * (n - 2), n])


def bipartite(a, b):
    pairs = [(i, a + j) for i in range(a) for j in range(b)]
    return springs(pairs), np.array([0, *[b] * (a - 1), *[a] * (b - 1), a + b])


def cliques(count, size):
    """Return graphs without a connection, whose zero has as many copies."""
    one = [(i, j) for i in range(size) for j in range(i)]
    pairs = [(c * size + i, c * size + j) for c in range(count) for i, j in one]
    return springs(pairs), np.repeat([0.0, size], [count, count * (size - 1)])


def diagonal(values):
    d = jnp.asarray(values)
    return lambda x: jnp.sum(d.astype(x.dtype) * x**2) / 2, np.asarray(values)


def spread(gap, n):
    """Return values with five near each end, with this gap."""
    values = np.linspace(0.5, 3.0, n)
    values[:5], values[-5:] = 0.5 + gap * np.arange(5), 3 - gap * np.arange(5)
    return values


SPECTRA = {
    "identity": lambda: diagonal(np.ones(1000)),
    "zero": lambda: diagonal(np.zeros(1000)),
    "projection": lambda: diagonal(np.repeat([0.0, 1.0], [400, 300])),
    "one number": lambda: diagonal(np.array([-2.0])),
    "gaps of 1e-3": lambda: diagonal(spread(1e-3, 150)),
    "gaps of 1e-6": lambda: diagonal(spread(1e-6, 150)),
    "gaps of 1e-10": lambda: diagonal(spread(1e-10, 150)),
    "square torus": lambda: torus(14, 14),
    "cubic torus": lambda: torus(6, 6, 6),
    "square box": lambda: box(13, 13),
    "cubic box": lambda: box(6, 6, 6),
    "crystal": lambda: crystal(5),
    "hypercube": lambda: hypercube(9),
    "star": lambda: star(400),
    "bipartite": lambda: bipartite(80, 70),
    "cliques": lambda: cliques(5, 40),
}
LARGE = {
    "identity": lambda: diagonal(np.ones(100_000)),
    "projection": lambda: diagonal(np.repeat([0.0, 1.0], [40_000, 60_000])),
    "cubic torus": lambda: torus(46, 46, 46),
    "square box": lambda: box(316, 316),
    "crystal": lambda: crystal(32),
    "hypercube": lambda: hypercube(14),
}


def extreme(values, k, which):
    """Return what is asked for: both ends in order, or magnitudes."""
    values = np.sort(values)
    if which == "LM":
        return np.sort(np.abs(values))[-k:]
    low = {"LA": 0, "SA": k, "BE": k // 2}[which]
    return np.concatenate([values[:low], values[len(values) - (k - low) :]])


def said_or_right(spectrum, k, which, dtype, seed, **options):
    """Whether nothing is said to be missing; then compare with all copies."""
    energy, values = spectrum
    n = len(values)
    k = min(k, n)
    H = hotk.HessianOperator(energy, jnp.zeros(n, dtype))
    pairs = H.eigh(k, which, key=jax.random.key(seed), **options)
    if not (pairs.complete and pairs.converged.all()):
        return False
    found = np.asarray(pairs.values, float)
    found = np.sort(np.abs(found)) if which == "LM" else found
    # twice the default tolerance for the residual: the square root of the precision
    atol = 2 * float(jnp.finfo(dtype).eps) ** 0.5 * np.abs(values).max()
    np.testing.assert_allclose(found, extreme(values, k, which), atol=atol)
    return True


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SPECTRA)
def test_no_copy_is_missed_without_being_said(name):
    """Sixteen searches for each of sixteen spectra; of each at most two give up."""
    spectrum = SPECTRA[name]()
    cases = [
        (k, which, dtype)
        for k in (3, 8)
        for which in ("LA", "SA", "LM", "BE")
        for dtype in (jnp.float32, jnp.float64)
    ]
    right = [said_or_right(spectrum, *case, i) for i, case in enumerate(cases)]
    assert sum(right) >= len(cases) - 2


@pytest.mark.slow
@pytest.mark.parametrize("which", ["LA", "SA"])
@pytest.mark.parametrize("name", LARGE)
def test_no_copy_of_a_large_operator_is_missed_without_being_said(name, which):
    spectrum = LARGE[name]()
    for dtype in (jnp.float32, jnp.float64):
        said_or_right(spectrum, 4, which, dtype, 0, max_restarts=30)
