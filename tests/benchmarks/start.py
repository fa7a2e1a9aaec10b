"""CPU seconds until a first answer, each in a new process, nothing compiled before."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp

import hotk
from tests.benchmarks.interleaved import compare
from tests.benchmarks.table import Row, of_ratio, run


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
LANGUAGE_MODEL = """
from tests.benchmarks.subjects import language_model
subject = language_model()
f, x, v = subject.f, subject.x, subject.v
"""
# A step of an optimizer, from the gradient `v`.
STEP = "(lambda t: t.update(v, t.init(x), x, value_fn=f)[0])(hotk.optim.{})"
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
    "minimize, newton_cg": "hotk.optim.minimize(f, x, hotk.optim.newton_cg()).x",
    "minimize, trust_region": "hotk.optim.minimize(f, x, hotk.optim.trust_region()).x",
    "eigh(1), 5 products": "hotk.HessianOperator(f, x).eigh("
    "1, window=5, max_restarts=0)",
    "direction of newton_cg": STEP.format("scale_by_newton_cg(max_steps=3)"),
    "step of newton_cg": STEP.format("newton_cg(max_steps=3)"),
    "step of trust_region": STEP.format("trust_region(max_steps=3)"),
}
# Of few products: what they take besides compiling is not what is measured.
LARGE = (
    "solve in 10 steps",
    "eigh(1), 2 restarts",
    "direction of newton_cg",
    "step of newton_cg",
    "step of trust_region",
)
LARGER = (
    "solve in 10 steps",
    "eigh(1), 5 products",
    "direction of newton_cg",
    "step of newton_cg",
)
GOALS = {
    "trace": 0.2,
    "solve": 0.3,
    "cholesky": 0.3,
    "eigh(2)": 0.5,
    "spectrum": 0.6,
    "logdet": 0.6,
    "minimize, newton_cg": 0.5,
    "minimize, trust_region": 0.5,
}
CODE = """
import resource
import jax, jax.numpy as jnp, hotk
key = jax.random.key(0)
{setup}
jax.block_until_ready((key, x, v))
before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
jax.block_until_ready(jax.tree.leaves({call}))
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime - before, 1024 * used.ru_maxrss)
"""
ENVIRONMENT = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}


class Used(NamedTuple):
    """What a process used: user CPU seconds of the call, and bytes at its peak."""

    seconds: float
    bytes: float


def used(setup: str, call: str) -> Used:
    """Return what one call in a process of its own uses."""
    code = CODE.format(setup=setup, call=call)
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    return Used(*map(float, done.stdout.split()[-2:]))


def best(setup: str, call: str, rounds: int = 3) -> float:
    """Return the least of several such times: what else runs can only add to one."""
    return min(used(setup, call).seconds for _ in range(rounds))


def small(n: int) -> Iterator[Row]:
    """Measure the first calls on a function that compiles at once."""
    of = functools.partial(best, COSH.format(n=n))
    for name, call in CALLS.items():
        if name in (*LARGE, *LARGER) or (n > 4 and name == "jax.jit(jax.hessian)"):
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


def larger() -> Iterator[Row]:
    """Compare time and memory on a transformer with 3.4e6 parameters and 21 leaves."""
    vector = 4 * 3.4e6
    product = used(LANGUAGE_MODEL, CALLS["hvp"])
    yield Row("first hvp, transformer of 3.4e6, seconds", product.seconds)
    yield Row("the same: memory of the process, vectors", product.bytes / vector)
    for name in LARGER:
        first = used(LANGUAGE_MODEL, CALLS[name])
        what = f"first {name} / first hvp, transformer of 3.4e6"
        note = f"{first.seconds:.3g} s"
        yield Row(what, first.seconds / product.seconds, 1.5, note=note)
        yield Row("the same: memory of the process, vectors", first.bytes / vector)


def inline() -> Iterator[Row]:
    """Compare transformations that are made in the call with those that are kept."""
    f, x = (lambda x: jnp.sum(jnp.cosh(x))), jnp.linspace(0.1, 1.0, 4)
    step = lambda t: hotk.optim.minimize(f, x, t, max_steps=20)
    for name in ("trust_region", "newton_cg"):
        make = getattr(hotk.optim, name)
        kept = make()
        calls = functools.partial(_call, step, make), functools.partial(step, kept)
        ratio = compare(*calls, rounds=25)
        yield of_ratio(f"minimize, {name}() inline / kept, n=4", ratio, 1.2)


def _call(step: Callable[..., Any], make: Callable[[], Any]) -> Any:
    return step(make())


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from inline()
    yield from small(4)
    yield from small(1000)
    yield from large()
    yield from larger()


if __name__ == "__main__":
    run(str(__doc__), measure)
