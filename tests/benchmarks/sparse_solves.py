"""Systems with sparse Hessians: by factors, by conjugate gradients, and densely.

`python -m tests.benchmarks.sparse_solves`; the membrane has 100 000 unknowns.
"""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse.linalg

import hotk
from tests.benchmarks import sparse_problems as problems
from tests.benchmarks.interleaved import compare
from tests.benchmarks.table import Row, of_ratio, run


N = 100_000


def operator(make, n):
    """Return the Hessian of a problem at a point without special values."""
    f, n = make(n)
    x = 0.1 * np.random.default_rng(0).normal(size=n)
    return hotk.HessianOperator(f, jnp.asarray(x))


def newton_step() -> Iterator[Row]:
    """Compare one Newton step by factors with products of conjugate gradients."""
    for name, make in (
        ("membrane", problems.minimal_surface),
        ("Rosenbrock chain", problems.rosenbrock),
    ):
        H = operator(make, N)
        b = jnp.ones(H.size)
        step = lambda H=H, b=b: H.solve(b, method="sparse").x
        twenty = lambda H=H, b=b: hotk.linop.cg(H, b, tol=0.0, max_steps=20).x
        ratio = compare(step, twenty, rounds=5)
        yield of_ratio(f"a step by factors, {name} / 20 products", ratio)


def kept_order() -> Iterator[Row]:
    """Compare factors in the order of their pattern with a search for an order."""
    for name, make in (
        ("membrane", problems.minimal_surface),
        ("Rosenbrock chain", problems.rosenbrock),
        ("arrow with a hub", problems.arrow),
    ):
        A = operator(make, N).sparse()
        shift = 10 * float(jnp.abs(A.values).max()) * hotk.sparse.identity(A)
        A = (A + shift).symmetrized()
        searched = functools.partial(
            scipy.sparse.linalg.splu,
            A.to_scipy("csc"),
            "MMD_AT_PLUS_A",
            diag_pivot_thresh=0.0,
            options={"SymmetricMode": True},
        )
        ratio = compare(A.factorize, searched, rounds=3)
        yield of_ratio(f"factors again, {name} / SuperLU with its search", ratio, 1.5)


def forms() -> Iterator[Row]:
    """Compare matrix and diagonal of an operator with those by products."""
    H = operator(problems.rosenbrock, 4_000)
    for name in ("matrix", "diagonal"):
        form = getattr(H, name)
        by_products = functools.partial(form, block_size=64)
        ratio = compare(form, by_products, rounds=5)
        yield of_ratio(f"H.{name}(), n=4000 / by products", ratio, 1.0)


def of_log_determinant(side, dense=False):
    """Return the log-determinant of a grid as a function of three numbers."""
    off, on = np.full(side - 1, -1.0), np.full(side, 2.1)
    line = scipy.sparse.diags_array([off, on, off], offsets=[-1, 0, 1])
    one = scipy.sparse.eye_array(side)
    parts = [(line, one), (one, line), (one, one)]
    terms = [scipy.sparse.csr_array(scipy.sparse.kron(*pair)) for pair in parts]
    if dense:
        stack = jnp.asarray(np.stack([term.toarray() for term in terms]))
        return lambda t: jnp.linalg.slogdet(jnp.tensordot(jnp.exp(t), stack, 1))[1]
    ours = [hotk.SparseMatrix.from_scipy(term, symmetric=True) for term in terms]
    scaled = lambda t: [
        jnp.exp(each) * term for each, term in zip(t, ours, strict=True)
    ]
    return lambda t: sum(scaled(t)[1:], scaled(t)[0]).symmetrized().logdet()


def log_determinants() -> Iterator[Row]:
    """Compare the Hessian of a log-determinant with its gradient, and with JAX's."""
    t = jnp.array([0.3, -0.2, -1.0])
    hessian = lambda f: functools.partial(jax.jit(jax.hessian(f)), t)
    gradient = lambda f: functools.partial(jax.jit(jax.grad(f)), t)
    ours = of_log_determinant(30)
    ratio = compare(
        hessian(ours), hessian(of_log_determinant(30, dense=True)), rounds=5
    )
    yield of_ratio("Hessian of a log-determinant, n=900 / dense", ratio, 1.0)
    for side in (30, 100):
        f = of_log_determinant(side)
        ratio = compare(hessian(f), gradient(f), rounds=5)
        n = side * side
        yield of_ratio(f"Hessian of a log-determinant, n={n} / gradient", ratio)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    run(__doc__, newton_step, kept_order, forms, log_determinants)
