"""Sparse Hessians against the same derived and written by hand.

`python -m tests.benchmarks.sparse_by_hand`; G is one jitted gradient. By hand a Hessian
is a few diagonals, which cost least one after the other. hotk sorts entries by row,
which a program by hand does with a gather whose indices it has.
"""

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import hotk
from tests.benchmarks import sparse_problems as problems
from tests.benchmarks.interleaved import compare
from tests.benchmarks.table import Row, of_ratio, run


N = 100_000
Diagonals = dict[int, Array]
"""The diagonal of a symmetric matrix, and those below it by their distance."""


def rosenbrock(x: Array) -> Diagonals:
    """Derive the chained Rosenbrock function."""
    a, b = x[:-1], x[1:]
    above = jnp.pad(1200 * a**2 - 400 * b + 2, (0, 1))
    return {0: above + jnp.pad(jnp.full(a.shape, 200.0), (1, 0)), 1: -400 * a}


def broyden_tridiagonal(x: Array) -> Diagonals:
    """Derive Broyden's tridiagonal equations as least squares."""
    n, z = x.size, jnp.pad(x, 1)
    r = (3 - 2 * x) * x - z[:-2] - 2 * z[2:] + 1
    slope = 3 - 4 * x
    others = np.full(n, 10.0)
    others[0], others[-1] = 2.0, 8.0
    return {
        0: 2 * slope**2 + others - 8 * r,
        1: -4 * slope[:-1] - 2 * slope[1:],
        2: jnp.full(n - 2, 4.0),
    }


def broyden_banded(x: Array) -> Diagonals:
    """Derive Broyden's banded equations as least squares."""
    n, near = x.size, (-1, 1, 2, 3, 4, 5)
    s, c, d = x * (1 + x), -(1 + 2 * x), 2 + 15 * x**2
    r = x * (2 + 5 * x**2) + 1
    before = lambda k: max(k, 0)
    shifted = lambda a, k: jnp.pad(
        a[before(-k) : n - before(k)], (before(k), before(-k))
    )
    r = r - sum(shifted(s, k) for k in near)
    found = {}
    for k in range(7):
        j = np.arange(n - k)
        rows = [j + i for i in near if i - k in near]
        both = sum(((i >= 0) & (i < n)).astype(float) for i in rows)
        found[k] = 2 * both * c[: n - k] * c[k:]
        if k in near:
            found[k] = found[k] + 2 * c[: n - k] * d[k:]
        if k == 1:
            found[k] = found[k] + 2 * d[:-1] * c[1:]
    bent = sum(shifted(r, -k) for k in near)
    found[0] = found[0] + 2 * d**2 + 60 * r * x - 4 * bent
    return found


def minimal_surface(x: Array) -> Diagonals:
    """Derive the area of a surface over a grid, cell by cell."""
    side = int(np.sqrt(x.size))
    u, h2 = x.reshape(side, side), 1 / (side - 1) ** 2
    a, b = u[:-1, :-1] - u[1:, 1:], u[1:, :-1] - u[:-1, 1:]
    root = jnp.sqrt(1 + (a * a + b * b) / (2 * h2))
    of_a, of_b = ((0.5 / root - c * c / (4 * h2 * root**3)) for c in (a, b))
    mixed = -a * b / (4 * h2 * root**3)
    at = lambda c, i, j: jnp.pad(c, ((i, 1 - i), (j, 1 - j)))
    flat = lambda c, k: c.reshape(-1)[: x.size - k]
    # From each node to the one beside it, below it, and to both on its diagonals.
    diagonal = at(of_a, 0, 0) + at(of_a, 1, 1) + at(of_b, 1, 0) + at(of_b, 0, 1)
    beside = -(at(mixed, 0, 0) + at(mixed, 1, 0))
    below = at(mixed, 0, 0) + at(mixed, 0, 1)
    return {
        0: diagonal.reshape(-1),
        1: flat(beside, 1),
        side - 1: flat(at(-of_b, 0, 1), side - 1),
        side: flat(below, side),
        side + 1: flat(at(-of_a, 0, 0), side + 1),
    }


BY_HAND = {
    "Rosenbrock chain": (problems.rosenbrock, rosenbrock),
    "Broyden tridiagonal": (problems.broyden_tridiagonal, broyden_tridiagonal),
    "minimal surface": (problems.minimal_surface, minimal_surface),
    "Broyden banded": (problems.broyden_banded, broyden_banded),
}


def concatenated(diagonals: Diagonals) -> Array:
    """Return all entries of both halves, diagonal by diagonal."""
    whole = [a for k, a in diagonals.items() for _ in range(1 if k == 0 else 2)]
    return jnp.concatenate(whole)


def order_by_row(
    distances: tuple[int, ...], pattern: hotk.sparse.Pattern
) -> np.ndarray:
    """Return which of the concatenated entries each entry of a pattern is."""
    n, where = pattern.shape[0], np.empty(pattern.nnz, np.int32)
    begin = 0
    for k in distances:
        for sign in (0,) if k == 0 else (1, -1):
            here = np.flatnonzero(pattern.rows - pattern.cols == sign * k)
            where[here] = begin + np.minimum(pattern.rows, pattern.cols)[here]
            begin += n - k
    return where


def ratios() -> Iterator[Row]:
    """Compare values with those of the programs by hand."""
    in_turns = functools.partial(compare, rounds=25)
    for name, (make, derive) in BY_HAND.items():
        f, n = make(N)
        x = jnp.asarray(np.random.default_rng(0).normal(size=n))
        prepared = hotk.sparse_hessian.prepare(f, x)
        H = prepared(x)
        order = order_by_row(tuple(derive(x)), H.pattern)
        unsorted = jax.jit(lambda x, derive=derive: concatenated(derive(x)))
        gather = jax.jit(
            lambda x, at, derive=derive: (
                concatenated(derive(x)).at[at].get(mode="promise_in_bounds")
            )
        )
        by_row = functools.partial(gather, x, jnp.asarray(order))
        scale = float(jnp.abs(H.values).max())
        assert float(jnp.abs(by_row() - H.values).max()) < 1e-12 * scale, name
        gradient = jax.jit(jax.grad(f))
        ours: Callable[[], object] = functools.partial(prepared, x)
        yield of_ratio(f"{name}: hotk / by hand, by row", in_turns(ours, by_row), 1.1)
        both = in_turns(ours, functools.partial(unsorted, x))
        yield of_ratio(f"{name}: hotk / by hand, unsorted", both)
        least = in_turns(functools.partial(unsorted, x), functools.partial(gradient, x))
        yield of_ratio(f"{name}: by hand, unsorted / G", least)


def element_by_element(
    material: Callable[..., Any], n: int, pattern: hotk.sparse.Pattern
) -> Callable[[Array], Array]:
    """Write the assembly by hand: the Hessian of each element, added to its entries."""
    _, cells = problems.block_of_tetrahedra(n)
    unknowns = (3 * cells[:, :, None] + np.arange(3)).reshape(len(cells), 12)
    keys = unknowns[:, :, None] * pattern.shape[0] + unknowns[:, None, :]
    ours = pattern.rows.astype(np.int64) * pattern.shape[0] + pattern.cols
    place = jnp.asarray(np.searchsorted(ours, keys.ravel()))
    given = problems.shapes(n)
    one = jax.hessian(lambda u, *at: material(u.reshape(4, 3), *at))

    @jax.jit
    def assembled(x: Array) -> Array:
        blocks = jax.vmap(one)(x[jnp.asarray(unknowns)], *given)
        return jnp.zeros(pattern.nnz).at[place].add(blocks.ravel())

    return assembled


def meshes() -> Iterator[Row]:
    """Compare with loops over the elements of a mesh."""
    for material in (problems.linear_elastic, problems.hyperelastic):
        f, n = problems.solid(material, N)
        x = jnp.asarray(0.005 * np.random.default_rng(0).normal(size=n))
        start = time.process_time()
        prepared = hotk.sparse_hessian.prepare(f, x)
        H = jax.block_until_ready(prepared(x))
        first = time.process_time() - start
        start = time.process_time()
        by_hand = element_by_element(material, N, H.pattern)
        jax.block_until_ready(by_hand(x))
        other = time.process_time() - start
        scale = float(jnp.abs(H.values).max())
        assert float(jnp.abs(by_hand(x) - H.values).max()) < 1e-10 * scale
        both = functools.partial(prepared, x), functools.partial(by_hand, x)
        note = f"first {first:.2g} and {other:.2g} CPU s"
        name = f"{material.__name__} block, n = {n}: hotk / element by element"
        yield of_ratio(name, compare(*both, rounds=7), 1.5, note=note)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    run(__doc__, ratios, meshes)
