"""Random programs with sparse derivatives, drawn operation by operation.

`python -m tests.sparse.random_programs 10000` compares as many with `jax.hessian` and
`jax.jacobian`, and prints those of which an entry is wrong or missing; with a further
number they begin at that seed. Those from a million on have more kinds of operations.
"""

import sys
import warnings
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.linalg import block_diag

import hotk
from tests import compilation
from tests.sparse.more_operations import MORE


N = 12
FURTHER = 1_000_000  # programs with these seeds draw from more operations
TOGETHER = 4  # programs that are compiled as one
STEP = 1e-2  # of differences
TINY = 1e-12  # a difference that is rounded


def _elementwise(rng, a):
    kinds = [jnp.sin, jnp.tanh, jnp.square, lambda a: a, lambda a: jnp.exp(-(a**2))]
    return kinds[rng.integers(len(kinds))](a)


def _masked(rng, a):
    mask = jnp.asarray(rng.random(a.shape) < 0.6)
    return (
        jnp.where(mask, a, 0.5 * a**2)
        if rng.random() < 0.5
        else a * mask.astype(a.dtype)
    )


def _shifted(rng, a):
    axis = int(rng.integers(a.ndim))
    return a * jnp.roll(a, int(rng.integers(1, 4)), axis)


def _gathered(rng, a):
    flat = a.reshape(-1)
    shape = [(5,), (3, 2), (4,)][rng.integers(3)]
    return flat[jnp.asarray(rng.integers(-flat.size, flat.size, shape))]


def _scattered(rng, a):
    flat = a.reshape(-1)
    at = jnp.asarray(rng.integers(0, 9, flat.size))
    target = jnp.zeros(9, a.dtype)
    if rng.random() < 0.5:
        return target.at[at].add(flat)
    return jnp.ones(9).at[jnp.asarray(rng.permutation(9)[:4])].set(flat[:1])


def _sliced(rng, a):
    axis = int(rng.integers(a.ndim))
    step = int(rng.integers(1, 3))
    first = int(rng.integers(0, max(a.shape[axis] - 1, 1)))
    return lax.slice_in_dim(a, first, a.shape[axis], step, axis)


def _padded(rng, a):
    margins = [tuple(int(k) for k in rng.integers(-1, 2, 2)) for _ in range(a.ndim)]
    margins = [
        (max(low, 0), max(high, 0), int(rng.integers(2))) for low, high in margins
    ]
    return lax.pad(a, jnp.zeros((), a.dtype), margins)


def _turned(rng, a):
    a = a.reshape(-1)
    rows = [k for k in (1, 2, 3, 4) if a.size % k == 0]
    a = a.reshape(rows[rng.integers(len(rows))], -1)
    return a.T if rng.random() < 0.5 else a[::-1]


def _reduced(rng, a):
    axis = int(rng.integers(a.ndim))
    total = jnp.sum(a, axis, keepdims=True)
    return a * total if rng.random() < 0.5 else jnp.atleast_1d(jnp.sum(a, axis))


def _multiplied(rng, a):
    a = a.reshape(-1)[: a.size // 2 * 2].reshape(-1, 2)
    matrix = rng.normal(size=(2, 3)) * (rng.random((2, 3)) < 0.7)
    return a @ jnp.asarray(matrix) if a.size else a.reshape(-1)


def _joined(rng, a):
    flat = a.reshape(-1)
    parts = [flat, flat[:3] ** 2, jnp.ones(2)]
    return jnp.concatenate([parts[i] for i in rng.permutation(3)])


def _cumulated(rng, a):
    return lax.cumsum(a, int(rng.integers(a.ndim)), reverse=bool(rng.integers(2)))


def _convolved(rng, a):
    kernel = jnp.asarray(rng.normal(size=3))
    return jnp.convolve(
        a.reshape(-1), kernel, ["same", "valid", "full"][rng.integers(3)]
    )


def _scanned(rng, a):
    flat = a.reshape(-1)
    factors = jnp.asarray(rng.integers(0, 2, flat.size).astype(float))

    def step(carry, row):
        u, factor = row
        one, other = carry
        return (u * factor, one + u), one * other + u

    start = (jnp.zeros(()), flat[0])
    reverse = bool(rng.integers(2))
    carry, rows = lax.scan(step, start, (flat, factors), reverse=reverse)
    return jnp.concatenate([rows, jnp.stack(carry)])


def _branched(rng, a):
    return lax.cond(a.reshape(-1)[0] > 0, lambda a: a**2, lambda a: a[::-1] * 2, a)


def _mapped(rng, a):
    flat = a.reshape(-1)
    at = jnp.asarray(rng.integers(0, flat.size, (4, 2)))
    return jax.vmap(lambda i: flat[i[0]] * jnp.cos(flat[i[1]]))(at)


def _updated(rng, a):
    flat = a.reshape(-1)
    k = int(rng.integers(0, flat.size))
    return lax.dynamic_update_slice(flat, flat[:1] ** 2, (k,))


OPERATIONS = (
    *(_elementwise, _masked, _shifted, _gathered, _scattered, _sliced, _padded),
    *(_turned, _reduced, _multiplied, _joined, _cumulated, _convolved, _scanned),
    *(_branched, _mapped, _updated),
)


def program(seed):
    """Return a function of twelve numbers that gives a few, drawn by a seed."""
    operations = (*OPERATIONS, *MORE, *MORE) if seed >= FURTHER else OPERATIONS

    def f(x):
        rng = np.random.default_rng(seed)
        a = x
        for _ in range(rng.integers(2, 6)):
            a = jnp.tanh(operations[rng.integers(len(operations))](rng, a))
            a = a.reshape(-1)[:60] if a.size > 60 and seed >= FURTHER else a
            a = a if a.size else x
            a = a if a.ndim else a[None]
            if rng.random() < 0.3:
                b = operations[rng.integers(len(operations))](rng, x).reshape(-1)
                k = min(a.size, b.size)
                a = a.reshape(-1)[:k] * b[:k] if k else a
        return a

    return f


class Drawn(NamedTuple):
    """Programs that are compiled as one, each with variables of its own.

    Attributes:
        outputs: From one row for each program to what each returns.
        sums: Likewise to one number for each.
        x: The rows.
    """

    outputs: Callable
    sums: Callable
    x: jax.Array

    def total(self, x):
        """Return the sum of all, whose Hessian has a block for each program."""
        return sum(self.sums(x))


def drawn(first):
    """Return the programs that begin with a seed."""
    programs = [program(first + i) for i in range(TOGETHER)]
    outputs = lambda x: [f(x[i]).reshape(-1) for i, f in enumerate(programs)]
    sums = lambda x: [jnp.sum(jnp.sin(y) * (i + 1.5)) for i, y in enumerate(outputs(x))]
    x = np.random.default_rng(first).normal(size=(TOGETHER, N))
    return Drawn(outputs, sums, jnp.asarray(x))


def _by_jax(programs, x):
    """Return Hessian and Jacobian as matrices, by the derivatives of JAX."""
    exact = jax.jit(
        lambda x: (jax.hessian(programs.total)(x), jax.jacfwd(programs.outputs)(x))
    )
    hessian, jacobians = exact(x)
    jacobian = np.concatenate([np.asarray(j).reshape(-1, x.size) for j in jacobians])
    return np.asarray(hessian).reshape(x.size, x.size), jacobian


def errors(first):
    """Compare the programs that begin with a seed; return the largest errors."""
    programs = drawn(first)
    hessian, jacobian = _by_jax(programs, programs.x)
    H = hotk.sparse_hessian(programs.total, programs.x)
    J = hotk.sparse_jacobian(programs.outputs, programs.x)
    return _error(H, hessian), _error(J, jacobian)


def missing(first):
    """Count the entries that the patterns of the programs lack.

    Differences of values say which entries there are. They are compiled in a tenth of
    the time of second derivatives; what they find outside of a pattern may be a kink
    between two points, so it counts only if the derivatives of JAX have it.
    """
    programs = drawn(first)
    hessian = hotk.sparsity(programs.total, programs.x)
    jacobian = hotk.sparsity(programs.outputs, programs.x, of="jacobian")
    points = (programs.x, programs.x * 0.6 - 0.3)
    patterns = (hessian, jacobian)
    if not any(map(_outside, patterns, _seen(programs, points))):
        return 0
    exact = [[np.abs(a) > 1e-13 for a in _by_jax(programs, x)] for x in points]
    return max(sum(map(_outside, patterns, at)) for at in exact)


def _seen(programs, points):
    """Return where differences of first and second order are not zero."""
    moves = np.eye(N) * STEP
    i, j = np.triu_indices(N)
    # x, x + h e_i, x + h (e_i + e_j)
    offsets = np.concatenate([np.zeros((1, N)), moves, moves[i] + moves[j]])
    rows = [np.asarray(x)[None] + offsets[:, None] for x in points]
    run = jax.jit(
        lambda all: lax.map(lambda x: (programs.sums(x), programs.outputs(x)), all)
    )
    sums, outputs = run(jnp.asarray(np.concatenate(rows)))
    blocks, slopes = [], []
    for s, y in zip(sums, outputs, strict=True):
        s = np.asarray(s).reshape(len(points), -1)
        y = np.asarray(y).reshape(len(points), len(offsets), -1)
        slopes.append((np.abs(y[:, 1 : N + 1] - y[:, :1]) > TINY).any(0).T)
        single, double = s[:, 1 : N + 1], s[:, N + 1 :]
        second = double - single[:, i] - single[:, j] + s[:, :1]
        block = np.zeros((N, N), bool)
        block[i, j] = block[j, i] = (np.abs(second) > TINY).any(0)
        blocks.append(block)
    return block_diag(*blocks).astype(bool), block_diag(*slopes).astype(bool)


def _outside(pattern, there):
    """Count the entries that are not in a pattern."""
    there = there.copy()
    there[pattern.rows, pattern.cols] = False
    return int(there.sum())


def _error(matrix, exact):
    full = np.zeros(matrix.shape)
    np.add.at(full, (matrix.rows, matrix.cols), np.asarray(matrix.values))
    return np.abs(full - exact).max(initial=0.0) / max(
        1.0, np.abs(exact).max(initial=0)
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    compilation.optimize_little()
    jax.config.update("jax_enable_x64", True)
    count, begin = (int(word) for word in [*sys.argv[1:], 0][:2])
    wrong = 0
    for group in range(count // TOGETHER):
        first = begin + group * TOGETHER
        lacking = missing(first)
        # Values are compiled, which takes longer.
        found = errors(first) if group % 40 == 0 else (0.0, 0.0)
        if lacking or not max(found) < 1e-10:
            wrong += 1
            end = first + TOGETHER - 1
            print(f"programs {first} to {end}: {lacking} missing, errors {found}")
        if group % 25 == 24:
            print(
                f"{(group + 1) * TOGETHER} programs, {wrong} groups wrong", flush=True
            )
            hotk.clear_cache()
            jax.clear_caches()
    print(f"{count} programs, {wrong} groups with an entry missing or wrong")
