"""Random programs with sparse derivatives, drawn operation by operation.

`python -m tests.sparse.random_programs 10000` compares as many with `jax.hessian` and
`jax.jacobian`, and prints those of which an entry is wrong or missing; with a further
number they begin at that seed. Those from a million on have more kinds of operations.
"""

import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import hotk
from tests.sparse.more_operations import MORE


N = 12
FURTHER = 1_000_000  # programs with these seeds draw from more operations
TOGETHER = 4  # programs that are compiled as one


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


def _drawn(first):
    """Return some programs together: one function of them all, and their values."""
    programs = [program(first + i) for i in range(TOGETHER)]
    outputs = lambda x: [f(x) for f in programs]
    total = lambda x: sum(
        jnp.sum(jnp.sin(y) * (i + 1.5)) for i, y in enumerate(outputs(x))
    )
    x = jnp.asarray(np.random.default_rng(first).normal(size=N))
    exact = jax.jit(lambda x: (jax.hessian(total)(x), jax.jacfwd(outputs)(x)))
    hessian, jacobians = exact(x)
    jacobian = np.concatenate([np.asarray(j).reshape(-1, N) for j in jacobians])
    return total, outputs, x, np.asarray(hessian), jacobian


def errors(first):
    """Compare the programs that begin with a seed; return the largest errors."""
    total, outputs, x, hessian, jacobian = _drawn(first)
    H, J = hotk.sparse_hessian(total, x), hotk.sparse_jacobian(outputs, x)
    return _error(H, hessian), _error(J, jacobian)


def missing(first):
    """Count the entries that the patterns of the programs lack."""
    total, outputs, x, hessian, jacobian = _drawn(first)
    patterns = hotk.sparsity(total, x), hotk.sparsity(outputs, x, of="jacobian")
    count = 0
    for pattern, exact in zip(patterns, (hessian, jacobian), strict=True):
        outside = np.ones(pattern.shape, bool)
        outside[pattern.rows, pattern.cols] = False
        count += int((np.abs(exact[outside]) > 1e-13).sum())
    return count


def _error(matrix, exact):
    full = np.zeros(matrix.shape)
    np.add.at(full, (matrix.rows, matrix.cols), np.asarray(matrix.values))
    return np.abs(full - exact).max(initial=0.0) / max(
        1.0, np.abs(exact).max(initial=0)
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    jax.config.update("jax_enable_x64", True)
    count, begin = (int(word) for word in [*sys.argv[1:], 0][:2])
    wrong = 0
    for first in range(begin, begin + count, TOGETHER):
        lacking = missing(first)
        # Values are compiled, which takes longer: those of every tenth group.
        found = errors(first) if first % (10 * TOGETHER) == 0 else (0.0, 0.0)
        if lacking or not max(found) < 1e-12:
            wrong += 1
            end = first + TOGETHER - 1
            print(f"programs {first} to {end}: {lacking} missing, errors {found}")
        hotk.clear_cache()
        jax.clear_caches()
    print(f"{count} programs, {wrong} groups with an entry missing or wrong")
