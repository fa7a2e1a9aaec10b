"""Which second-order method: a network for a differential equation, preconditioners.

The network has 1185 parameters and solves Poisson's equation on a square from 500
residuals; the loss is half the sum of their squares, in double precision. The logistic
regression has 500 columns whose sizes fall by a thousand. Seconds are those of the CPU,
of all steps, compiled before. Each method runs once to its target, step by step in
turns with the others, so that a busy machine hits all of them. Set
OPENBLAS_NUM_THREADS=1 on such a machine: the seconds of threads that wait count.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax

import hotk
from tests.benchmarks.table import Row, run


MOST = 12_000
TARGET = 1e-6
WIDTH = 32
RANKS = (50, 100, 200, 250)


class Run:
    """A method on its way to a target.

    Attributes:
        seconds: Of the CPU, of all steps.
        steps: How many there were.
        iterations: Products or factorizations, where the state counts them.
        done: Whether the target was reached.
    """

    def __init__(
        self, transform: Any, f: Callable[[Any], Any], start: Any, done: Any
    ) -> None:
        """Compile a step."""
        transform = optax.with_extra_args_support(transform)

        @jax.jit
        def step(p: Any, state: Any) -> Any:
            y, g = jax.value_and_grad(f)(p)
            updates, state = transform.update(g, state, p, value=y, grad=g, value_fn=f)
            size = optax.tree_utils.tree_norm(g)
            return optax.apply_updates(p, updates), state, y, size

        self._step, self._done = step, done
        self._at = start, transform.init(start)
        # a second time, as the types of a first state may be weak
        jax.block_until_ready(step(*step(*self._at)[:2]))
        self.seconds, self.steps, self.iterations, self.done = 0.0, 0, 0, False

    def advance(self, most: float) -> None:
        """Make steps for some seconds of the CPU, or to the target."""
        until = self.seconds + most
        while not self.done and self.seconds < until and self.steps < MOST:
            begin = time.process_time()
            *at, y, size = jax.block_until_ready(self._step(*self._at))
            self.seconds += time.process_time() - begin
            self.done = bool(self._done(y, size))
            if not self.done:
                self._at, self.steps = tuple(at), self.steps + 1
                self.iterations += int(getattr(at[1][0], "iterations", 0))

    @property
    def total(self) -> float:
        """The seconds to the target, infinity if it was not reached."""
        return self.seconds if self.done else math.inf


def together(runs: dict[str, Run]) -> None:
    """Let all reach their target, in turns."""
    before = None
    while before != (now := [r.steps for r in runs.values()]):
        before = now
        for each in runs.values():
            each.advance(0.2)


def network(p: Any, x: Any) -> Any:
    """Return u at one point."""
    for w, b in p[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = p[-1]
    return (x @ w + b)[0]


def interior(p: Any, x: Any) -> Any:
    """Return the residual of the equation."""
    source = -2 * jnp.pi**2 * jnp.prod(jnp.sin(jnp.pi * x))
    return (hotk.laplacian(lambda x: network(p, x), x) - source) / 20


def boundary(p: Any, x: Any) -> Any:
    """Return the residual of the boundary."""
    return network(p, x) / 10


def poisson() -> tuple[Any, Any, Any]:
    """Return start, objective with rows, and the plain objective."""
    keys = jax.random.split(jax.random.key(0), 5)
    dims = (2, WIDTH, WIDTH, 1)
    start = [
        (jax.random.normal(k, (m, n)) / (1 if m == 2 else m**0.5), jnp.zeros(n))
        for k, m, n in zip(keys, dims, dims[1:], strict=False)
    ]
    inside = jax.random.uniform(keys[3], (400, 2))
    t = jax.random.uniform(keys[4], (4, 25))
    zero, one = jnp.zeros(25), jnp.ones(25)
    sides = ((t[0], zero), (t[1], one), (zero, t[2]), (one, t[3]))
    edge = jnp.concatenate([jnp.stack(side, -1) for side in sides])
    f = hotk.curvature.LeastSquares((interior, boundary), (inside, edge))

    def plain(p: Any) -> Any:
        parts = ((interior, inside), (boundary, edge))
        squares = [
            jnp.sum(jax.vmap(lambda x, r=r: r(p, x))(xs) ** 2) for r, xs in parts
        ]
        return sum(squares) / 2

    return start, f, plain


def equation() -> Iterator[Row]:
    """Compare seconds to a loss on the network for the equation."""
    start, f, plain = poisson()
    reached = lambda y, size: y < TARGET
    lm = hotk.optim.levenberg_marquardt
    nystrom = functools.partial(hotk.linop.nystrom, rank=100)
    made = {
        "samples": (lm(system="samples"), f),
        "samples, no acceleration": (lm(system="samples", max_acceleration=0.0), f),
        "parameters": (lm(system="parameters"), f),
        "parameters, Nystrom 100": (
            lm(system="parameters", preconditioner=nystrom, update_every=5),
            f,
        ),
        "L-BFGS": (optax.lbfgs(), plain),
    }
    runs = {n: Run(t, g, start, reached) for n, (t, g) in made.items()}
    together(runs)
    for name, each in runs.items():
        note = f"{each.total:.3g} s, {each.iterations} products or factors"
        yield Row(
            f"Poisson, to {TARGET:g}: steps of {name}", each.steps, None, None, note
        )
    last = runs["L-BFGS"].seconds  # at least, where it does not get there
    for name, goal in (("samples", 0.15), ("parameters", 0.5)):
        what = f"Poisson, to {TARGET:g}: seconds, {name} / L-BFGS"
        yield Row(what, runs[name].total / last, goal)


def regression() -> Iterator[Row]:
    """Compare fits of an ill-conditioned logistic regression."""
    columns, rows = 500, 2000
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (rows, columns)) * jnp.logspace(0, -3, columns)
    x = x @ jnp.linalg.qr(jax.random.normal(keys[1], (columns, columns)))[0]
    y = jnp.sign(x @ jax.random.normal(keys[2], (columns,)))
    f = lambda w: jnp.mean(jnp.logaddexp(0.0, -y * (x @ w))) + 1e-6 / 2 * (w @ w)
    small = lambda y, size: size < 1e-8
    runs = {
        "none": Run(hotk.optim.newton_cg(max_tol=1e-3), f, jnp.zeros(columns), small)
    }
    for rank in RANKS:
        transform = hotk.optim.newton_cg(
            max_tol=1e-3,
            preconditioner=functools.partial(hotk.linop.nystrom, rank=rank),
            update_every=100,
        )
        runs[f"rank {rank}"] = Run(transform, f, jnp.zeros(columns), small)
    together(runs)
    plain = runs["none"]
    for name, each in runs.items():
        note = f"{each.iterations} products, {each.total:.3g} s, {each.steps} steps"
        what = f"logistic regression, {name}: products / without"
        goal = 0.2 if name == f"rank {max(RANKS)}" else None
        yield Row(what, each.iterations / plain.iterations, goal, None, note)
        goal = 0.6 if name == f"rank {max(RANKS)}" else None
        what = f"logistic regression, {name}: seconds / without"
        yield Row(what, each.total / plain.total, goal)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    with jax.enable_x64(True):
        yield from equation()
        yield from regression()


if __name__ == "__main__":
    run(str(__doc__), measure)
