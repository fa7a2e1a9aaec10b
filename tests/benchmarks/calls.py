"""What one call costs: prepared, direct, of a fresh closure, of 400 leaves."""

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hotk
from tests import counting
from tests.benchmarks.interleaved import compare
from tests.benchmarks.subjects import hvp_by_hand, normal, rosenbrock
from tests.benchmarks.table import Row, of_ratio, run


N = 10


def quartic(x: jax.Array, target: jax.Array) -> jax.Array:
    """Compute a small function of a point and a target."""
    return jnp.sum((x - target) ** 4)


def targets() -> Iterator[jax.Array]:
    """Return arrays of one shape in turn, a new one each time as far as anyone sees."""
    return itertools.cycle([normal(i, N) for i in range(64)])


def counted(what: str, call: Callable[[], Any], calls: int = 100) -> Iterator[Row]:
    """Count the traces and compiles of `calls` calls after the first."""
    jax.block_until_ready(call())
    with counting.traces() as traces, counting.compiles() as compiles:
        for _ in range(calls):
            jax.block_until_ready(call())
    yield Row(f"{what}: traces in {calls} calls", traces(), 0)
    yield Row(f"{what}: compiles in {calls} calls", compiles(), 0)


def same_function() -> Iterator[Row]:
    """One function, again and again: prepared and direct."""
    f, x = rosenbrock(N)
    v = jnp.ones(N)
    by_hand, prepared = hvp_by_hand(f), hotk.hvp.prepare(f, x, v)
    theirs = lambda: by_hand(x, v)
    yield of_ratio(
        "prepared hvp / jax.jit, n=10", compare(lambda: prepared(x, v), theirs), 1.2
    )
    yield of_ratio(
        "direct hvp, same f / jax.jit, n=10",
        compare(lambda: hotk.hvp(f, x, v), theirs),
        1.4,
    )


def fresh_closure() -> Iterator[Row]:
    """A new lambda over a new array at each call."""
    x, v, mine, yours = jnp.zeros(N), jnp.ones(N), targets(), targets()
    by_hand = hvp_by_hand(quartic)

    def ours():
        target = next(mine)
        return hotk.hvp(lambda x: quartic(x, target), x, v)

    what = "direct hvp, fresh closure over a new array"
    ratio = compare(ours, lambda: by_hand(x, v, next(yours)))
    yield of_ratio(f"{what} / jax.jit", ratio, 1.4)
    yield from counted(what, ours)


def fresh_global() -> Iterator[Row]:
    """The same as in a notebook: a lambda that reads a global, in a cell run anew."""
    cell = compile(
        "target = next(targets)\n"
        "product = hotk.hvp(lambda x: jnp.sum((x - target) ** 4), x, v)",
        "<cell>",
        "exec",
    )
    hand = compile(
        "target = next(targets)\nproduct = by_hand(x, v, target)", "<cell>", "exec"
    )
    space = {
        "__name__": "__main__",
        "jnp": jnp,
        "hotk": hotk,
        "targets": targets(),
        "x": jnp.zeros(N),
    }
    space |= {"v": jnp.ones(N), "by_hand": hvp_by_hand(quartic)}

    def in_a_cell(code):
        def call():
            exec(code, space)
            return space["product"]

        return call

    what = "direct hvp, fresh lambda reading a global"
    ratio = compare(in_a_cell(cell), in_a_cell(hand))
    yield of_ratio(f"{what} / jax.jit", ratio, 1.6)
    yield from counted(what, in_a_cell(cell))


class Opaque:
    """A callable of which nobody can tell what it will read next."""

    def __init__(self, f: Callable[..., jax.Array], *captured: Any):
        self.f = f
        self.captured = captured
        self.lock = threading.Lock()

    def __call__(self, x: Any) -> jax.Array:
        """Evaluate it."""
        with self.lock:
            return self.f(x, *self.captured)


def network(layers: list[jax.Array], inputs: jax.Array) -> jax.Array:
    """Compute the loss of a small network on a batch."""
    for layer in layers:
        inputs = jnp.tanh(inputs @ layer)
    return jnp.mean(inputs**2)


def opaque() -> Iterator[Row]:
    """An opaque callable: traced each time, compiled once."""
    layers, f = [normal(i, 8, 8) for i in range(4)], Opaque(network, normal(9, 16, 8))
    vs = [jnp.ones((8, 8))] * 4

    def traced():  # a new function each time, or JAX remembers the trace
        return jax.make_jaxpr(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1])(
            layers, vs
        )

    yield of_ratio(
        "direct hvp, opaque network / jax.make_jaxpr of it",
        compare(lambda: hotk.hvp(f, layers, vs), traced),
        1.3,
    )
    x, v, f = jnp.zeros(N), jnp.ones(N), Opaque(quartic, normal(0, N))
    rows = list(counted("opaque callable", lambda: hotk.hvp(f, x, v)))
    traced = int(rows[0].measured)
    yield rows[1]._replace(note=f"{traced} traces of functions in these calls")


def changing() -> Iterator[Row]:
    """A number in the closure that is another one at each call."""
    layers, rows = [normal(i, 8, 8) for i in range(3)], normal(9, 50_000, 8)
    vs, at = [jnp.ones((8, 8))] * 3, itertools.count().__next__
    held = np.asarray(rows)

    def annealed():
        beta = 1e-4 * at()
        f = lambda x: beta * network(x, rows[:16]) + (1 - beta) * jnp.sum(x[0] ** 2)
        return f

    def window():
        i = at()
        return lambda x: network(x, rows[i : i + 16])

    def window_of_numpy():
        i = at()
        return lambda x: network(x, held[i : i + 16])

    for what, make in (
        ("an annealed number", annealed),
        ("a window of an array", window),
        ("a window of a NumPy array", window_of_numpy),
    ):
        eager = lambda make=make: jax.jvp(jax.grad(make()), (layers,), (vs,))[1]
        ours = lambda make=make: hotk.hvp(make(), layers, vs)
        for _ in range(3):
            jax.block_until_ready(ours())
        name = f"direct hvp, {what} in the closure, new at each call"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hotk.ChangingValueWarning)
            yield of_ratio(f"{name} / plain JAX without jit", compare(ours, eager), 1)
        before = hotk.cache_info()
        for _ in range(100):
            jax.block_until_ready(ours())
        after = hotk.cache_info()
        traces, compiled = (
            after.traces - before.traces,
            after.compiles - before.compiles,
        )
        note = f"{traces} traces of functions in these calls"
        yield Row(f"{name}: compiles in 100 calls", compiled, 0)._replace(note=note)


def large_tree() -> Iterator[Row]:
    """A tree of 400 small arrays."""
    x = [normal(i, 3) for i in range(400)]
    f = lambda x: sum(jnp.sum(leaf**4) for leaf in x)
    v = [jnp.ones(3) for _ in x]
    by_hand, prepared = hvp_by_hand(f), hotk.hvp.prepare(f, x, v)
    ratio = compare(lambda: prepared(x, v), lambda: by_hand(x, v))
    yield of_ratio("prepared hvp / jax.jit, tree of 400 leaves", ratio, 1.1)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from same_function()
    yield from fresh_closure()
    yield from fresh_global()
    yield from changing()
    yield from opaque()
    yield from large_tree()


if __name__ == "__main__":
    run(str(__doc__), measure)
