"""Batches: NumPy arrays, slices, indices of a loop, numbers that are annealed."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import vmap
from jax.nn import log_softmax, one_hot
from jax.scipy.special import logsumexp
from scipy.spatial.distance import cdist

from tests.everyday.corpus import everyday
from tests.everyday.draws import labels, normals, numpy_normals


def model(p, X):
    return jnp.tanh(X @ p["W"] + p["b"])


def loss(p, X, y):
    return jnp.mean((model(p, X) - y) ** 2)


def parameters(seed):
    W, b = normals(seed, (3, 2), (2,))
    return {"W": W, "b": b}


COUNT = 12
ALL_X, ALL_Y = numpy_normals(7, (COUNT * 10, 3), (COUNT * 10, 2))
BATCHES = [
    (jnp.asarray(X), jnp.asarray(y))
    for X, y in zip(
        ALL_X.reshape(COUNT, 10, 3), ALL_Y.reshape(COUNT, 10, 2), strict=True
    )
]


@everyday("the index of a loop in the closure: loss(p, *batches[i])", traces=1)
def loop_index(seed):
    i = seed % COUNT
    return lambda p: loss(p, *BATCHES[i]), parameters(seed), ()


@everyday("a list of batches in the closure and the index of a loop", traces=1)
def local_batches(seed):
    i = seed % COUNT
    Xs, ys = normals(seed, (COUNT, 10, 3), (COUNT, 10, 2))
    batches = list(zip(Xs, ys, strict=True))
    return lambda p: loss(p, *batches[i]), parameters(seed), ()


@everyday("a slice by the index of a loop: X[i * 10 : i * 10 + 10]", traces=1)
def slice_by_index(seed):
    i, size = seed % COUNT, 10
    X, y = jnp.asarray(ALL_X), jnp.asarray(ALL_Y)
    batch = lambda A: A[i * size : i * size + size]
    return lambda p: loss(p, batch(X), batch(y)), parameters(seed), ()


@everyday("the same slice of NumPy arrays of the module", traces=1)
def numpy_slice_by_index(seed):
    i = seed % COUNT

    def on_batch(p):
        rows = slice(i * 10, i * 10 + 10)
        return loss(p, ALL_X[rows], ALL_Y[rows])

    return on_batch, parameters(seed), ()


@everyday("an annealed number in the closure: beta = 0.1 * i", traces=1)
def annealed(seed):
    X, y = normals(seed, (10, 3), (10, 2))
    beta = 0.1 * seed + 0.05

    def elbo(p):
        return loss(p, X, y) + beta * sum(jnp.sum(q**2) for q in jax.tree.leaves(p))

    return elbo, parameters(seed), ()


@everyday("an annealed number by partial and keyword", traces=1)
def annealed_partial(seed):
    X, y = normals(seed, (10, 3), (10, 2))

    def tempered(p, temperature=1.0):
        return jnp.exp(loss(p, X, y) / temperature)

    return partial(tempered, temperature=1.0 / (seed + 1)), parameters(seed), ()


@everyday("a step counter that a schedule reads", traces=1)
def warmed_up(seed):
    X, y = normals(seed, (10, 3), (10, 2))
    step, warmup = seed + 1, 10
    ramp = lambda t: min(1.0, t / warmup)
    return lambda p: ramp(step) * loss(p, X, y), parameters(seed), ()


@everyday("a slice of a batch taken before the closure")
def sliced_before(seed):
    start = 10 * (seed % COUNT)
    Xb, yb = ALL_X[start : start + 10], ALL_Y[start : start + 10]
    return lambda p: loss(p, Xb, yb), parameters(seed), ()


@everyday("a NumPy batch with labels: out[jnp.arange(n), y]")
def picked(seed):
    (X,), y = numpy_normals(seed, (12, 3)), labels(seed, 12, 2)

    def cross_entropy(p):
        out = log_softmax(X @ p["W"] + p["b"])
        return -jnp.mean(out[jnp.arange(len(y)), y])

    return cross_entropy, parameters(seed), ()


@everyday("NumPy labels through one_hot and take_along_axis")
def hot(seed):
    (X,), y = numpy_normals(seed, (12, 3)), labels(seed, 12, 2)

    def cross_entropy(p):
        logits = model(p, X)
        chosen = jnp.take_along_axis(logits, y[:, None], axis=1)[:, 0]
        smooth = 0.9 * one_hot(y, 2) + 0.05
        return jnp.mean(logsumexp(logits, axis=1) - chosen) - jnp.mean(smooth * logits)

    return cross_entropy, parameters(seed), ()


@everyday("NumPy targets with a new axis: y[:, None]")
def new_axis(seed):
    X, y = numpy_normals(seed, (12, 3), (12,))
    return lambda p: jnp.mean((model(p, X) - y[:, None]) ** 2), parameters(seed), ()


@everyday("the first rows of a NumPy batch: X[:50]")
def first_rows(seed):
    X, y = numpy_normals(seed, (70, 3), (70, 2))
    return lambda p: loss(p, X[:50], y[:50]), parameters(seed), ()


@everyday("NumPy labels compared: (y == c) as a mask")
def masks(seed):
    (X,), y = numpy_normals(seed, (12, 3)), labels(seed, 12, 2)

    def centers(p):
        out = model(p, X)
        masses = [jnp.where((y == c)[:, None], out, 0.0).sum(0) for c in range(2)]
        return sum(jnp.sum(mass**2) for mass in masses)

    return centers, parameters(seed), ()


@everyday(
    "NumPy's sine of a captured array of 90 numbers",
    slow="NumPy computes in it from data of the closure, by its own rules: "
    "write `jnp`, or compute that before",
)
def numpy_sine(seed):
    X, y = numpy_normals(seed, (30, 3), (30, 2))
    return lambda p: loss(p, np.sin(X), y), parameters(seed), ()


@everyday(
    "normalized by NumPy inside: (X - X.mean(0)) / X.std(0)",
    slow="NumPy computes in it from data of the closure, by its own rules: "
    "write `jnp`, or compute that before",
)
def numpy_normalized(seed):
    X, y = numpy_normals(seed, (30, 3), (30, 2))

    def normalized(p):
        return loss(p, (X - X.mean(0)) / X.std(0), y)

    return normalized, parameters(seed), ()


@everyday("entries of a NumPy array: A[1], A[1, 2]")
def numpy_entries(seed):
    A, x = numpy_normals(seed, (3, 3), (3,))

    def loss(x):
        return jnp.sum(A[1] * x**3) + A[1, 2] * jnp.sum(jnp.sin(x)) + A[0] @ x

    return loss, jnp.asarray(x), ()


@everyday("entries of a NumPy array in a loop over its rows")
def rows_in_a_loop(seed):
    A, x = numpy_normals(seed, (4, 3), (3,))
    return lambda x: sum(jnp.tanh(row @ x) ** 2 for row in A), jnp.asarray(x), ()


@everyday("a batch as a dict of NumPy arrays with labels")
def dict_of_numpy(seed):
    X, image = numpy_normals(seed, (12, 3), (12, 2))
    batch = {"image": X, "label": labels(seed, 12, 2), "target": image}

    def total(p):
        logits = model(p, batch["image"])
        nll = -jnp.mean(log_softmax(logits)[jnp.arange(12), batch["label"]])
        return nll + jnp.mean((logits - batch["target"]) ** 2)

    return total, parameters(seed), ()


@everyday("a batch of an iterator, unpacked before the closure")
def from_an_iterator(seed):
    X, y = numpy_normals(seed, (40, 3), (40, 2))

    def batches():
        for start in itertools.count(0, 10):
            yield X[start : start + 10], y[start : start + 10]

    Xb, yb = next(batches())
    return lambda p: jnp.sum(vmap(loss, (None, 0, 0))(p, Xb, yb)), parameters(seed), ()


@everyday("a permutation by NumPy's generator, used as an index")
def permuted(seed):
    X, y = normals(seed, (20, 3), (20, 2))
    rows = np.random.default_rng(seed).permutation(20)[:8]
    return lambda p: loss(p, X[rows], y[rows]), parameters(seed), ()


@everyday(
    "distances by SciPy, stress of an embedding",
    slow="NumPy squares the captured distances: capture `jnp.asarray(distances)`",
)
def stress(seed):
    (points,) = numpy_normals(seed, (6, 4))
    distances = cdist(points, points)

    def loss(Z):
        squared = jnp.sum((Z[:, None] - Z[None, :]) ** 2, -1)
        return jnp.sum((squared - distances**2) ** 2)

    return loss, normals(seed, (6, 2))[0], ()
