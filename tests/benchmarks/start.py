"""CPU seconds until a first answer, each in a new process, nothing compiled before."""

import functools
import os
import subprocess
import sys
from collections.abc import Iterator

from tests.benchmarks.table import Row, run


# Statements that make `f`, `x` and `v`; nothing of them is timed.
COSH = """
f = lambda x: jnp.sum(jnp.cosh(x))
x, v = jnp.linspace(0.1, 1.0, {n}), jnp.ones({n})
"""
TRANSFORMER = """
from tests.benchmarks.subjects import transformer
subject = transformer()
f, x, v = subject.f, subject.x, subject.v
"""
CALLS = {
    "hvp": "hotk.hvp(f, x, v)",
    "jax.jit(jax.hessian)": "jax.jit(jax.hessian(f))(x)",
    "trace": "hotk.estimate.trace(hotk.HessianOperator(f, x), key)",
    "solve": "hotk.HessianOperator(f, x).solve(v)",
    "cholesky": "hotk.HessianOperator(f, x).cholesky()",
    "solve in 10 steps": "hotk.HessianOperator(f, x).solve(v, max_steps=10)",
    "inertia": "hotk.HessianOperator(f, x).inertia()",
    "eigh(2)": "hotk.HessianOperator(f, x).eigh(2)",
    "eigh(1), 2 restarts": "hotk.HessianOperator(f, x).eigh(1, max_restarts=2)",
    "spectrum": "hotk.estimate.spectrum(hotk.HessianOperator(f, x), key)",
    "logdet": "hotk.estimate.logdet(hotk.HessianOperator(f, x), key)",
}
# Of few products: what they take besides compiling is not what is measured.
LARGE = ("solve in 10 steps", "eigh(1), 2 restarts")
GOALS = {
    "trace": 0.2,
    "solve": 0.3,
    "cholesky": 0.3,
    "eigh(2)": 0.5,
    "spectrum": 0.6,
    "logdet": 0.6,
}
CODE = """
import resource
import jax, jax.numpy as jnp, hotk
key = jax.random.key(0)
{setup}
jax.block_until_ready((key, x, v))
before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
jax.block_until_ready(jax.tree.leaves({call}))
print(resource.getrusage(resource.RUSAGE_SELF).ru_utime - before)
"""
ENVIRONMENT = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}


def seconds(setup: str, call: str) -> float:
    """Return the user CPU time of one call in a process of its own."""
    code = CODE.format(setup=setup, call=call)
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return float(done.stdout.split()[-1])


def best(setup: str, call: str, rounds: int = 3) -> float:
    """Return the least of several such times: what else runs can only add to one."""
    return min(seconds(setup, call) for _ in range(rounds))


def small(n: int) -> Iterator[Row]:
    """Measure the first calls on a function that compiles at once."""
    of = functools.partial(best, COSH.format(n=n))
    for name, call in CALLS.items():
        if name in LARGE or (n > 4 and name == "jax.jit(jax.hessian)"):
            continue
        goal = GOALS.get(name) if n == 4 else None
        yield Row(f"first {name}, sum(cosh(x)), n={n}, seconds", of(call), goal)


def large() -> Iterator[Row]:
    """Compare the first solvers with the first product of a transformer block."""
    product = best(TRANSFORMER, CALLS["hvp"])
    yield Row("first hvp, transformer block, seconds", product)
    for name in LARGE:
        first = best(TRANSFORMER, CALLS[name])
        what = f"first {name} / first hvp, transformer block"
        yield Row(what, first / product, 1.5, note=f"{first:.3g} s")


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from small(4)
    yield from small(1000)
    yield from large()


if __name__ == "__main__":
    run(str(__doc__), measure)
