"""Networks: K-FAC beside Adam and L-BFGS, in seconds of the CPU.

An autoencoder with 2.8e6 parameters on images of digits, in batches: how long K-FAC
takes to the loss of Adam after 30 seconds, each with the best of some settings. And a
classifier of digits, all of them in each step, to a loss of 0.005. Seconds are those of
the CPU, of all steps, compiled before; a busy machine changes them little.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import hotk
from hotk.curvature import AbstractLikelihood, SigmoidCrossEntropy, SoftmaxCrossEntropy
from tests.benchmarks.kfac import SIZES, autoencoder, decoded
from tests.benchmarks.subjects import normal
from tests.benchmarks.table import Row, run


L2 = 1e-5
BUDGET = 30.0
TARGET = 0.005


class Task(NamedTuple):
    """A network with its data.

    Attributes:
        model: From parameters and inputs to outputs.
        loss: From targets to the loss.
        start: The first parameters.
        inputs: The inputs.
        targets: The targets.
    """

    model: Callable[..., Any]
    loss: Callable[[Any], AbstractLikelihood]
    start: Any
    inputs: Any
    targets: Any

    def value(self, p: Any, x: Any, y: Any) -> Any:
        """Return the regularized loss."""
        squares = sum(jnp.sum(a * a) for a in jax.tree.leaves(p))
        return self.loss(y)(self.model(p, x)) + L2 / 2 * squares

    def batches(self, size: int) -> Iterator[tuple[Any, Any]]:
        """Return batches for ever, all examples once in each pass."""
        count = len(self.inputs)
        if size >= count:
            yield from itertools.repeat((self.inputs, self.targets))
        random = np.random.default_rng(0)
        while True:
            order = random.permutation(count)
            for i in range(0, count - size + 1, size):
                rows = order[i : i + size]
                yield self.inputs[rows], self.targets[rows]


class Method(NamedTuple):
    """An optimizer with the size of its batches.

    Attributes:
        transform: The transformation.
        batch: The number of examples of a batch.
        takes: The keywords of its update.
    """

    transform: Any
    batch: int
    takes: tuple[str, ...] = ()


OF_SEARCH = ("value", "grad", "value_fn")
OF_KFAC = ("model_fn", "loss_fn", "inputs")


def images() -> Task:
    """Make an autoencoder of digits, drawn with 28 x 28 pixels and moved a little."""
    small = jnp.asarray(load_digits().images / 16, "float32")
    large = jax.image.resize(small, (len(small), 28, 28), "linear")
    moves = np.random.default_rng(0).integers(-2, 3, (len(small), 2))
    moved = np.stack(
        [np.roll(a, move, (0, 1)) for a, move in zip(large, moves, strict=True)]
    )
    x = jnp.concatenate([large, jnp.asarray(moved)]).reshape(-1, SIZES[0])
    return Task(decoded, SigmoidCrossEntropy, autoencoder(1)[0], x, x)


def classes() -> Task:
    """Make a network of one hidden layer of 32 on the digits."""
    digits = load_digits()
    start = [
        (normal(0, 64, 32) / 8, jnp.zeros(32)),
        (normal(1, 32, 10) / 6, jnp.zeros(10)),
    ]
    x = jnp.asarray(digits.data / 16, "float32")
    return Task(decoded, SoftmaxCrossEntropy, start, x, jnp.asarray(digits.target))


def kfac(task: Task, batch: int, **options: Any) -> Method:
    """Make K-FAC with one target drawn for each example."""
    x, y = next(task.batches(batch))
    key = jax.random.key(1)
    K = hotk.KFACOperator(
        task.model, task.loss(y), task.start, x, estimate="sampled", key=key
    )
    return Method(hotk.optim.kfac(K, l2=L2, **options), batch, OF_KFAC)


def path(
    task: Task,
    method: Method,
    budget: float,
    target: float = -np.inf,
    interval: float = 0.3,
) -> tuple[float, float, int]:
    """Return seconds, the loss of all data then, and the steps, at the first that ends.

    The loss is evaluated after each interval of seconds, which does not count.
    """
    transform = optax.with_extra_args_support(method.transform)

    @jax.jit
    def step(p: Any, state: Any, x: Any, y: Any) -> Any:
        f = lambda p: task.value(p, x, y)
        value, g = jax.value_and_grad(f)(p)
        known = {
            "value": value,
            "grad": g,
            "value_fn": f,
            "model_fn": task.model,
            "loss_fn": task.loss(y),
            "inputs": (x,),
        }
        taken = {name: known[name] for name in method.takes}
        updates, state = transform.update(g, state, p, **taken)
        return optax.apply_updates(p, updates), state

    whole = jax.jit(lambda p: task.value(p, task.inputs, task.targets))
    p, state = task.start, transform.init(task.start)
    batches = task.batches(method.batch)
    jax.block_until_ready(step(*step(p, state, *next(batches)), *next(batches)))
    jax.block_until_ready(whole(p))
    seconds, looked, steps = 0.0, 0.0, 0
    while True:
        batch = jax.block_until_ready(next(batches))
        start = time.process_time()
        p, state = jax.block_until_ready(step(p, state, *batch))
        seconds += time.process_time() - start
        steps += 1
        if seconds >= budget or seconds - looked > interval:
            looked, loss = seconds, float(whole(p))
            if seconds >= budget or loss <= target:
                return seconds, loss, steps


def reconstruction() -> Iterator[Row]:
    """How long K-FAC takes to what Adam reaches."""
    task = images()
    adam = {rate: Method(optax.adam(rate), 256) for rate in (3e-4, 1e-3)}
    found = {rate: path(task, method, BUDGET) for rate, method in adam.items()}
    rate = min(found, key=lambda rate: found[rate][1])
    _, target, steps = found[rate]
    note = f"loss {target:.4g} after {steps} steps of adam({rate})"
    yield Row("autoencoder, adam: seconds", BUDGET, note=note)
    for damping, fraction in ((1.0, 1.0), (0.1, 0.25), (1.0, 0.25), (10.0, 0.25)):
        options = {
            "damping": damping,
            "factors_every": 5,
            "inverses_every": 20,
            "factors_fraction": fraction,
            "model_fraction": fraction,
        }
        method = kfac(task, 512, **options)
        seconds, loss, steps = path(task, method, 2 * BUDGET, target)
        what = f"damping {damping:g}, fractions {fraction:g}"
        note = f"{seconds:.3g} s, {steps} steps, loss {loss:.4g}"
        row = f"autoencoder, kfac to the loss of adam / adam, {what}"
        yield Row(row, seconds / BUDGET, 0.7, note=note)


def classifiers(task: Task) -> dict[str, list[Method]]:
    """Return what to compare on the digits, each with its settings to choose from."""
    every = len(task.inputs)
    return {
        "lbfgs": [Method(optax.lbfgs(), every, OF_SEARCH)],
        "lbfgs, the best of three rates": [
            Method(optax.lbfgs(rate, linesearch=None), every) for rate in (0.1, 0.3, 1)
        ],
        "adam, the best of three rates": [
            Method(optax.adam(rate), every) for rate in (0.01, 0.03, 0.1)
        ],
        "kfac": [kfac(task, every, damping=0.1)],
        "kfac, batch 256": [kfac(task, 256, damping=0.1)],
        "kfac, fractions": [
            kfac(
                task,
                every,
                damping=0.01,
                inverses_every=10,
                factors_fraction=0.125,
                model_fraction=0.5,
            )
        ],
    }


def classification() -> Iterator[Row]:
    """How long each takes to a loss of 0.005."""
    task = classes()
    for name, choices in classifiers(task).items():
        paths = [path(task, method, 10.0, TARGET, 0.005) for method in choices]
        seconds, loss, steps = min(paths, key=lambda found: (found[1] > TARGET, *found))
        note = f"loss {loss:.3g} after {steps} steps"
        yield Row(f"digits 64-32-10, {name}: seconds to 0.005", seconds, note=note)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from classification()
    yield from reconstruction()


if __name__ == "__main__":
    run(str(__doc__), measure)
