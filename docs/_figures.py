"""Measure and draw the picture of the README: `python docs/_figures.py`.

A loop takes one Hessian-vector product for each batch, in three ways: `jax.jit` of a
new lambda for each batch, `hotk.hvp` of the same lambdas, and one jitted function that
takes the batch as an argument. Drawn are the seconds of CPU since the start of the
loop, which do not depend on what else the machine does.
"""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt

import hotk


BATCHES = 30
HERE = Path(__file__).parent / "figures"


def loss(w, X, y):
    """Return the mean cross entropy of a network with two hidden layers."""
    for layer in w[:-1]:
        X = jnp.tanh(X @ layer)
    return -jnp.mean(jnp.sum(y * jax.nn.log_softmax(X @ w[-1]), axis=1))


def setting():
    """Return parameters and batches."""
    keys = iter(jax.random.split(jax.random.key(0), 3 + 2 * BATCHES))
    w = [
        jax.random.normal(next(keys), shape) / 8
        for shape in ((64, 128), (128, 128), (128, 10))
    ]
    batches = [
        (
            jax.random.normal(next(keys), (32, 64)),
            jax.nn.one_hot(jax.random.randint(next(keys), (32,), 0, 10), 10),
        )
        for _ in range(BATCHES)
    ]
    return w, batches


def by_a_new_jit(f, w, X, y):
    """Jit the product of a closure, which is a new function for each batch."""
    del X, y
    return jax.jit(lambda w, v: jax.jvp(jax.grad(f), (w,), (v,))[1])(w, w)


def by_hotk(f, w, X, y):
    """Call the operator with that closure."""
    del X, y
    return hotk.hvp(f, w, w)


@jax.jit
def jitted_by_hand(w, v, X, y):
    """Return the product, with the batch as an argument."""
    return jax.jvp(jax.grad(lambda w: loss(w, X, y)), (w,), (v,))[1]


def by_hand(f, w, X, y):
    """Call the one jitted function that was written for this loop."""
    del f
    return jitted_by_hand(w, w, X, y)


def elapsed(product, w, batches):
    """Return the seconds of CPU from the start to the end of each batch."""
    hotk.clear_cache()
    jax.clear_caches()
    start, seconds = time.process_time(), []
    for X, y in batches:
        f = lambda w, X=X, y=y: loss(w, X, y)
        jax.block_until_ready(product(f, w, X, y))
        seconds.append(time.process_time() - start)
    return seconds


def draw():
    """Measure the three loops and draw them."""
    ways = {
        "jax.jit of a new lambda for each batch": (by_a_new_jit, "#d1495b", "-"),
        "hotk.hvp of a new lambda for each batch": (by_hotk, "#1d6fa5", "-"),
        "one jax.jit, the batch as an argument": (by_hand, "#777777", "--"),
    }
    w, batches = setting()
    numbers = range(1, BATCHES + 1)
    plt.rcParams |= {"svg.hashsalt": "hotk", "font.size": 10}
    figure, axes = plt.subplots(figsize=(7.2, 2.7), layout="constrained")
    for name, (product, color, style) in ways.items():
        seconds = elapsed(product, w, batches)
        axes.plot(numbers, seconds, style, color=color, linewidth=2.2, label=name)
        print(f"{name}: {seconds[0]:.3f} s, then {seconds[-1]:.3f} s")
    axes.set(
        xlabel="batch",
        ylabel="CPU seconds",
        xlim=(1, BATCHES),
        ylim=(0, None),
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    axes.set_title("A Hessian-vector product for each of 30 batches", fontsize=11)
    figure.savefig(HERE / "batches.svg", metadata={"Date": None})


if __name__ == "__main__":
    draw()
