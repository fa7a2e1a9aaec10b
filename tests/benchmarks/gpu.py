"""Products and dense results on a GPU: `python -m tests.benchmarks --gpu`.

A GPU runs behind the host, so a time is that of a block of calls in a row until the
last result is ready, long enough for the device to be what is waited for. Memory is
what XLA plans for the temporary arrays of a program.
"""

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
from jaxtyping import Array

import hotk
from tests.benchmarks.interleaved import compare
from tests.benchmarks.table import Row, of_ratio


BLOCK = 0.05  # seconds of work in a row
SIZES = {"gpu": (2048, 8192, 1024), "cpu": (64, 64, 64)}


def temporary(call: Callable[..., Array], *args: Array) -> int:
    """Return the bytes of the temporary arrays of a program."""
    memory = jax.jit(call).lower(*args).compile().memory_analysis()
    return memory.temp_size_in_bytes


def measure() -> Iterator[Row]:
    """Compare with hand-written JAX on the device that JAX has chosen."""
    width, examples, n = SIZES.get(jax.default_backend(), SIZES["gpu"])
    keys = jax.random.split(jax.random.key(0), 4)
    X = jax.random.normal(keys[0], (examples, width))
    w = jax.random.normal(keys[1], (width, width)) / width**0.5
    v = jax.random.normal(keys[2], (width, width))
    loss = lambda w, X: jnp.mean(jnp.tanh(jnp.tanh(X @ w) @ w) ** 2)

    by_hand = jax.jit(
        lambda w, v, X: jax.jvp(lambda w: jax.grad(loss)(w, X), (w,), (v,))[1]
    )
    ratio = compare(
        lambda: hotk.hvp(loss, w, v, X), lambda: by_hand(w, v, X), batch=BLOCK
    )
    yield of_ratio("hvp / hand-written jit, two layers", ratio, 1.05)

    rows = jax.random.normal(keys[3], (examples, n)) / n**0.5
    x = jnp.ones(n)
    logistic = lambda x: jnp.mean(jnp.logaddexp(0.0, rows @ x))
    dense = jax.jit(jax.hessian(logistic))
    ratio = compare(lambda: hotk.hessian(logistic, x), lambda: dense(x), batch=BLOCK)
    yield of_ratio(f"hessian / jax.hessian, logistic, n = {n}", ratio, 1.0)
    ours = temporary(lambda x: hotk.hessian(logistic, x), x)
    theirs = temporary(jax.hessian(logistic), x)
    yield Row("hessian / jax.hessian, temporary bytes", ours / theirs, 1.0)

    H = hotk.HessianOperator(logistic, x)
    text = jax.jit(lambda H: H.eigh(n)).lower(H).compile().as_text()
    calls = text.count("custom_call_target")
    yield Row("eigh of all: calls of the library of the platform", calls)
    matrix = jax.jit(lambda x: jnp.linalg.eigvalsh(dense(x)))
    values = jax.jit(lambda x: hotk.HessianOperator(logistic, x).eigh(n).values)
    ratio = compare(lambda: values(x), lambda: matrix(x), batch=BLOCK)
    yield of_ratio("eigh of all / eigvalsh(jax.hessian)", ratio)
