"""Sparse Hessians and Jacobians, in gradients.

`python -m tests.benchmarks.sparse`; G is one jitted gradient. Page faults dominate
above some megabytes: `MALLOC_MMAP_THRESHOLD_` and `MALLOC_TRIM_THRESHOLD_` of glibc are
printed, and hold for all contestants.
"""

import functools
import os
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import hotk
from tests.benchmarks import sparse_problems as problems
from tests.benchmarks.interleaved import compare
from tests.benchmarks.table import Row, of_ratio, run


N = 100_000
GOALS = {
    "Rosenbrock chain": (problems.rosenbrock, 1.5),
    "Broyden tridiagonal": (problems.broyden_tridiagonal, 1.5),
    "arrow with a hub": (problems.arrow, 1.5),
    "minimal surface": (problems.minimal_surface, 2.0),
    "windows of log-sum-exp": (problems.windows, 2.0),
    "partially separable": (problems.separable, 2.0),
    "springs": (problems.springs, 4.0),
    "finite elements": (problems.elements, 4.0),
    "Broyden banded": (problems.broyden_banded, 4.0),
    "shooting by scan": (problems.shooting, 4.0),
    "transcription": (problems.transcription, 8.0),
}


def point(n):
    """Return a point without special values."""
    return jnp.asarray(np.random.default_rng(0).normal(size=n))


def values() -> Iterator[Row]:
    """Compare values with one gradient."""
    for name, (make, goal) in GOALS.items():
        f, n = make(N)
        x = point(n)
        hotk.clear_cache()
        start = time.perf_counter()
        pattern = hotk.sparsity(f, x)
        found = time.perf_counter() - start
        start = time.perf_counter()
        prepared = hotk.sparse_hessian.prepare(f, x)
        built = time.perf_counter() - start
        gradient = jax.jit(jax.grad(f))
        ratio = compare(
            functools.partial(prepared, x), functools.partial(gradient, x), rounds=9
        )
        note = f"{pattern.nnz} entries; pattern {found:.2g} s, prepare {built:.2g} s"
        yield of_ratio(f"sparse_hessian, {name} / G", ratio, goal, note)


def jacobian() -> Iterator[Row]:
    """Compare a Jacobian with one evaluation of the function."""
    f, n = problems.broyden_residuals(N)
    x = point(n)
    prepared, plain = hotk.sparse_jacobian.prepare(f, x), jax.jit(f)
    ratio = compare(functools.partial(prepared, x), functools.partial(plain, x))
    yield of_ratio("sparse_jacobian, Broyden tridiagonal / f", ratio)


def dense() -> Iterator[Row]:
    """Compare dense networks with `hotk.hessian`, and the time of the decision."""
    for n in (144, 900, 3600):
        f, n = problems.network(n)
        x = point(n)
        prepared = hotk.sparse_hessian.prepare(f, x)
        full = hotk.hessian.prepare(f, x)
        ratio = compare(
            functools.partial(prepared, x), functools.partial(full, x), rounds=5
        )
        yield of_ratio(f"sparse_hessian, dense network n={n} / hessian", ratio, 1.1)
        start = time.process_time()
        hotk.clear_cache()
        jax.make_jaxpr(lambda x, f=f: hotk.sparse_hessian(f, x))(x)
        yield Row(
            f"dense network n={n}: seconds to decide", time.process_time() - start, 0.5
        )


def trajectories() -> Iterator[Row]:
    """Compare the first Hessian of a multiple shooting with the first product."""
    f, n = problems.multiple_shooting(200, 10)
    x = point(n)
    seconds = {}
    for operator, args in ((hotk.hvp, (x,)), (hotk.sparse_hessian, ())):
        hotk.clear_cache()
        jax.clear_caches()
        start = time.process_time()
        jax.block_until_ready(operator(f, x, *args))
        seconds[operator] = time.process_time() - start
    first = seconds[hotk.sparse_hessian]
    ratio = first / seconds[hotk.hvp]
    name = "multiple shooting, 200 x 10 steps of RK4: first sparse_hessian / first hvp"
    yield Row(name, ratio, 3.0, note=f"{first:.2g} CPU s")


def bundles() -> Iterator[Row]:
    """Compare the Gauss-Newton matrix of a bundle adjustment with its Jacobian."""
    for cameras, points in ((50, 10_000), (200, 50_000)):
        residuals, x = problems.bundle(cameras, points)
        hotk.clear_cache()
        start = time.process_time()
        loss = lambda r: jnp.sum(r**2) / 2
        matrix = hotk.sparse_ggn.prepare(residuals, loss, x)
        built = time.process_time() - start
        jacobian = hotk.sparse_jacobian.prepare(residuals, x)
        ratio = compare(
            functools.partial(matrix, x), functools.partial(jacobian, x), rounds=5
        )
        name = f"sparse_ggn, {cameras} cameras and {points} points / sparse_jacobian"
        yield of_ratio(name, ratio, note=f"prepare {built:.2g} CPU s")


def conditions() -> Iterator[Row]:
    """Time the inertia of the conditions of a minimum under constraints."""
    # the first one imports SciPy
    for n, goal in ((40, None), (2_000, 0.1), (20_000, 2.0)):
        f, size = problems.constrained(n)
        H = hotk.sparse_hessian(f, point(size))
        start = time.process_time()
        found = H.factorize().inertia()
        seconds = time.process_time() - start
        name = f"inertia of {n} conditions, CPU s"
        yield Row(name, seconds, goal, note=f"{found}")


def lagrangians() -> Iterator[Row]:
    """Compare all derivatives of a problem with constraints with those one by one."""
    f, x = problems.swung_up(2_000)
    multipliers = jax.tree.map(jnp.ones_like, f(x)[1])
    u = (1.0, multipliers)

    def lagrangian(x, u):
        y, g = f(x)
        terms = jax.tree.map(jnp.vdot, u[1], g)
        return u[0] * y + sum(jax.tree.leaves(terms))

    hotk.clear_cache()
    start = time.process_time()
    joint = hotk.sparse_lagrangian.prepare(f, x, u)
    built = time.process_time() - start
    start = time.process_time()
    gradient = hotk.value_and_gradient.prepare(lambda x: f(x)[0], x)
    jacobian = hotk.value_and_sparse_jacobian.prepare(lambda x: f(x)[1], x)
    hessian = hotk.sparse_hessian.prepare(lagrangian, x, u)
    apart = time.process_time() - start
    ratio = compare(
        functools.partial(joint, x, u),
        lambda: (gradient(x), jacobian(x), hessian(x, u)),
        rounds=15,
    )
    note = f"prepare {built:.2g} and {apart:.2g} CPU s"
    name = "sparse_lagrangian, 10 005 variables / three calls"
    yield of_ratio(name, ratio, 1.0, note=note)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    settings = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    print({name: os.environ.get(name, "default") for name in settings})
    run(
        __doc__, values, jacobian, dense, trajectories, bundles, conditions, lagrangians
    )
