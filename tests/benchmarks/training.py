"""Second-order optimizers on real data, beside Adam and L-BFGS of optax.

Each minimizes the regularized training loss over the whole data set until it is near
the best known one: for logistic regression within 1e-3 and 1e-5 of it, for the network
below 0.05 and 0.005. Adam has the best of seven learning rates, L-BFGS its line search
or the best of three rates. Seconds are those of the steps, compiled before; every step
is one jitted call from a Python loop, as users train.
"""

import functools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_breast_cancer, load_digits

import hotk
from tests.benchmarks.interleaved import compare
from tests.benchmarks.subjects import normal
from tests.benchmarks.table import Row, of_ratio, run


MOST = 2000
CONVEX = (-1e-3, -1e-5)


class Task(NamedTuple):
    """A model with its data.

    Attributes:
        model: From parameters to outputs on the data set.
        loss: The loss of outputs.
        decay: The factor of half the squared parameters.
        start: The first parameters.
        targets: The losses to reach, or by how much the best one may be exceeded if
            they are negative.
    """

    model: Callable[[Any], Any]
    loss: Any
    decay: float
    start: Any
    targets: tuple[float, float]

    def value(self, p: Any) -> Any:
        """Return the regularized loss."""
        return self.loss(self.model(p)) + self.penalty(p)

    def objective(self, name: str) -> Callable[[Any], Any]:
        """Return the loss with the curvature that an optimizer is for."""
        kinds = {
            "levenberg_marquardt": hotk.curvature.GaussNewton,
            "natural_gradient": hotk.curvature.Fisher,
        }
        if name not in kinds:
            return self.value
        curved = kinds[name](self.model, self.loss)
        return lambda p: curved(p) + self.penalty(p)

    def penalty(self, p: Any) -> Any:
        """Return the regularizer."""
        return self.decay / 2 * sum(jnp.sum(a**2) for a in jax.tree.leaves(p))


def standardized(x: Any) -> Any:
    """Return columns of mean zero and deviation one."""
    spread = x.std(axis=0)
    return jnp.asarray(
        (x - x.mean(axis=0)) / np.where(spread > 0, spread, 1), "float32"
    )


def breast_cancer() -> Task:
    """Make a logistic regression on 569 tumours of 30 features."""
    x, y = load_breast_cancer(return_X_y=True)
    x = standardized(x)
    model = lambda p: x @ p["w"] + p["b"]
    loss = hotk.curvature.SigmoidCrossEntropy(jnp.asarray(y, "float32"))
    return Task(model, loss, 1e-3, {"w": jnp.zeros(30), "b": jnp.zeros(())}, CONVEX)


def digits_regression() -> Task:
    """Make a softmax regression on 1797 digits of 64 pixels."""
    x, y = load_digits(return_X_y=True)
    x = standardized(x)
    model = lambda p: x @ p["w"] + p["b"]
    loss = hotk.curvature.SoftmaxCrossEntropy(jnp.asarray(y))
    return Task(
        model, loss, 1e-3, {"w": jnp.zeros((64, 10)), "b": jnp.zeros(10)}, CONVEX
    )


def digits_network() -> Task:
    """Make a network of one hidden layer of 32 on the digits."""
    x, y = load_digits(return_X_y=True)
    x = standardized(x)
    model = lambda p: jnp.tanh(x @ p["a"]) @ p["b"] + p["c"]
    loss = hotk.curvature.SoftmaxCrossEntropy(jnp.asarray(y))
    start = {"a": normal(0, 64, 32) / 8, "b": normal(1, 32, 10) / 6, "c": jnp.zeros(10)}
    return Task(model, loss, 1e-5, start, (0.05, 0.005))


TASKS = {
    "breast cancer, logistic": breast_cancer,
    "digits, logistic": digits_regression,
    "digits, network": digits_network,
}


def sophia(every: int = 10) -> Any:
    """Return Sophia with the hyperparameters of all rows."""
    return hotk.optim.sophia(0.03, gamma=0.05, b2=0.9, every=every)


def second_order() -> dict[str, Any]:
    """Return the optimizers of hotk, as they come."""
    optim = hotk.optim
    return {
        "newton_cg": optim.newton_cg(),
        "trust_region": optim.trust_region(),
        "levenberg_marquardt": optim.levenberg_marquardt(),
        "natural_gradient": optim.natural_gradient(1.0, damping=1e-2, max_steps=30),
        "sophia": sophia(),
        "adahessian": optim.adahessian(0.15),
    }


def first_order() -> dict[str, dict[Any, Any]]:
    """Return those of optax, with the rates to choose from."""
    adam = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
    rates = (None, 0.1, 0.3, 1.0)
    lbfgs = {
        rate: optax.lbfgs() if rate is None else optax.lbfgs(rate, linesearch=None)
        for rate in rates
    }
    return {"adam": {rate: optax.adam(rate) for rate in adam}, "lbfgs": lbfgs}


class Path(NamedTuple):
    """How the loss went.

    Attributes:
        losses: Before each step.
        seconds: Of one step, the median.
    """

    losses: list[float]
    seconds: float

    def steps(self, target: float) -> float:
        """Return the steps to a loss, infinity if it was not reached."""
        found = [k for k, y in enumerate(self.losses) if y <= target]
        return found[0] if found else math.inf


def train(task: Task, name: str, transform: Any, target: float) -> Path:
    """Make steps until the target is reached."""
    transform = optax.with_extra_args_support(transform)
    objective = task.objective(name)

    @jax.jit
    def step(p: Any, state: Any) -> Any:
        y, g = jax.value_and_grad(task.value)(p)
        updates, state = transform.update(
            g, state, p, value=y, grad=g, value_fn=objective
        )
        return optax.apply_updates(p, updates), state, y

    p, state = task.start, transform.init(task.start)
    p, state, first = jax.block_until_ready(step(p, state))
    losses, times = [float(first)], []
    for _ in range(MOST):
        begin = time.perf_counter()
        p, state, y = jax.block_until_ready(step(p, state))
        times.append(time.perf_counter() - begin)
        losses.append(float(y))
        if losses[-1] <= target or not math.isfinite(losses[-1]):
            break
    return Path(losses, float(np.median(times)))


def paths(task: Task) -> tuple[list[float], dict[str, dict[float, Path]]]:
    """Return the targets, and for each the path of each optimizer at its best rate."""
    targets = list(task.targets)
    if targets[0] < 0:
        best = hotk.optim.minimize(
            task.value, task.start, hotk.optim.newton_cg(), tol=1e-6, max_steps=200
        ).value
        targets = [float(best) * (1 - share) for share in targets]
    last = min(targets)
    found = {}
    for name, transform in second_order().items():
        found[name] = dict.fromkeys(targets, train(task, name, transform, last))
    for name, rates in first_order().items():
        tried = [train(task, name, transform, last) for transform in rates.values()]
        found[name] = {
            y: min(tried, key=lambda path, y=y: path.steps(y) * path.seconds)
            for y in targets
        }
    return targets, found


def training(figure: str | None = None) -> Iterator[Row]:
    """Compare steps and seconds to a loss."""
    drawn = {}
    for name, make in TASKS.items():
        targets, found = paths(make())
        drawn[name] = targets, found
        for y in targets:
            yield from _compared(name, y, {n: path[y] for n, path in found.items()})
    if figure is not None:
        draw(drawn, figure)


def _compared(name: str, target: float, found: dict[str, Path]) -> Iterator[Row]:
    total = {n: p.steps(target) * p.seconds for n, p in found.items()}
    where = f"{name}, to a loss of {target:.4g}"
    for n, path in found.items():
        steps = path.steps(target)
        note = f"{total[n]:.3g} s" if math.isfinite(steps) else "not reached"
        note += f", {path.seconds * 1e3:.3g} ms a step"
        yield Row(f"{where}: steps of {n}", min(steps, MOST), None, None, note)
    theirs, ours = OPTAX, [n for n in total if n not in OPTAX]
    best = min(ours, key=lambda n: total[n])
    first = min(theirs, key=lambda n: total[n])
    goal = 1.0 if "logistic" in name else None
    yield Row(f"{where}: seconds, {best} / {first}", total[best] / total[first], goal)
    few, least = (min(found[n].steps(target) for n in some) for some in (ours, theirs))
    goal = 1.0 if "network" in name else None
    yield Row(f"{where}: steps, best of ours / best of optax", few / least, goal)


OPTAX = ("adam", "lbfgs")


def draw(drawn: Any, figure: str) -> None:
    """Draw the losses over the seconds, convex ones above the best."""
    import matplotlib.pyplot as plt  # of the extra `plot`

    plots, axes = plt.subplots(1, len(drawn), figsize=(11, 3.6), layout="constrained")
    for ax, (name, (targets, found)) in zip(axes, drawn.items(), strict=True):
        convex = "logistic" in name
        best = min(targets) / (1 - CONVEX[1]) if convex else 0.0
        for n, at in found.items():
            path = at[min(targets)]
            seconds = path.seconds * np.arange(len(path.losses))
            style = "--" if n in OPTAX else "-"
            above = np.maximum(np.array(path.losses) - best, 1e-8)
            ax.plot(np.maximum(seconds, path.seconds / 2), above, style, label=n)
        for target in targets:
            ax.axhline(target - best, color="grey", linewidth=0.8)
        low = "training loss - best" if convex else "training loss"
        ax.set(title=name, xlabel="seconds", ylabel=low, xscale="log", yscale="log")
        ax.set_ylim(bottom=(min(targets) - best) / 3)
    handles, names = axes[0].get_legend_handles_labels()
    plots.legend(handles, names, fontsize=8, loc="outside right center")
    plots.savefig(figure, dpi=90)


def steps() -> Iterator[Row]:
    """Measure one step of each in gradients, on the network."""
    task = digits_network()
    gradient = jax.jit(jax.value_and_grad(task.value))
    _, g = gradient(task.start)
    dense = {
        "trust_region, exact": hotk.optim.trust_region(subproblem="exact"),
        "newton": hotk.optim.newton(),
        "cubic_newton": hotk.optim.cubic_newton(),
    }
    timed = second_order() | {"sophia, each with an estimate": sophia(every=1)} | dense
    for name, transform in timed.items():
        state = transform.init(task.start)
        objective = task.objective(name)
        update = jax.jit(functools.partial(transform.update, value_fn=objective))
        state = update(g, state, task.start)[1]
        ratio = compare(
            lambda update=update, state=state: update(g, state, task.start),
            lambda: gradient(task.start),
            rounds=3 if name in dense else 9,
        )
        yield of_ratio(f"one step of {name} / value and gradient", ratio)
    for name, transform in {
        "sophia": sophia(every=1),
        "newton_cg": hotk.optim.newton_cg(),
    }.items():
        yield eager(name, transform, task)


def eager(name: str, transform: Any, task: Task) -> Row:
    """Measure a step with a new closure in a loop without `jit`."""
    p, state = task.start, transform.init(task.start)
    gradient = jax.jit(jax.grad(task.value))
    times = []
    for k in range(12):
        shift = jnp.asarray(float(k))
        f = lambda p, shift=shift: task.value(p) + 0.0 * shift
        g = jax.block_until_ready(gradient(p))
        begin = time.perf_counter()
        updates, state = transform.update(g, state, p, value_fn=f)
        jax.block_until_ready(updates)
        times.append(time.perf_counter() - begin)
        p = optax.apply_updates(p, updates)
    note = f"the first {times[0]:.3g} s"
    what = f"eager update of {name} with a new closure, ms"
    return Row(what, 1e3 * float(np.median(times[2:])), None, None, note)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from steps()
    yield from training()


if __name__ == "__main__":
    import sys

    path = None
    if "--figure" in sys.argv:
        place = sys.argv.index("--figure")
        path = sys.argv[place + 1]
        del sys.argv[place : place + 2]
    run(str(__doc__), steps, functools.partial(training, path))
