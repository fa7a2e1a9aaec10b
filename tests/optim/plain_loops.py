"""What training loops do, on a plain dict of their arrays, by hand.

Each reference is a generator: it yields the dict after each step. The data are digits,
another batch each step; `METHODS` are the five transformations.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import sklearn.datasets

import hotk


STEPS = 6
BATCH = 100
HIDDEN = 5
CLASSES = 10


def _digits():
    """Return digits of 4 x 4 pixels, in batches of another one each step."""
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    pooled = images.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(-1, 16) / 16
    cut = lambda a: [jnp.asarray(a[k * BATCH : (k + 1) * BATCH]) for k in range(STEPS)]
    return list(zip(cut(pooled), cut(labels), strict=True))


BATCHES = _digits()


# ----- The five transformations


def cross_entropy(z, y):
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(z, y))


def residuals(z, y):
    return (z - jax.nn.one_hot(y, CLASSES, dtype=z.dtype)).ravel()


def half_square(z, y):
    return jnp.sum(residuals(z, y) ** 2) / 2


class Method(NamedTuple):
    """A transformation, and what its update asks for.

    Attributes:
        make: Makes it from a learning rate.
        direction: Makes its `scale_by_...`.
        rate: A learning rate.
        loss: From outputs and labels to a number.
        keywords: From the outputs, as a function of the parameters, and the labels to
            the keywords of an update.
    """

    make: Callable[..., Any]
    direction: Callable[[], Any]
    rate: float
    loss: Callable[[Any, Any], Any]
    keywords: Callable[[Callable[[Any], Any], Any], dict[str, Any]]


def of_values(outputs, y):
    return {"value_fn": lambda p: cross_entropy(outputs(p), y)}


def of_residuals(outputs, y):
    return {"residual_fn": lambda p: residuals(outputs(p), y)}


def of_a_model(outputs, y):
    return {"model_fn": outputs, "loss_fn": hotk.curvature.SoftmaxCrossEntropy(y)}


def _method(name, rate, loss=cross_entropy, keywords=of_values, **numbers):
    make, direction = (getattr(hotk.optim, start + name) for start in ("", "scale_by_"))
    made = partial(make, **numbers), partial(direction, **numbers)
    return Method(*made, rate, loss, keywords)


# Tolerances are small, so that steps of other trees agree to rounding.
METHODS = {
    "newton_cg": _method("newton_cg", 1.0, damping=0.5, max_tol=1e-12),
    "sophia": _method("sophia", 0.05, every=2),
    "adahessian": _method("adahessian", 0.1),
    "levenberg_marquardt": _method(
        "levenberg_marquardt",
        1.0,
        half_square,
        of_residuals,
        damping=0.1,
        max_tol=1e-13,
    ),
    "natural_gradient": _method(
        "natural_gradient", 1.0, cross_entropy, of_a_model, damping=0.3, tol=1e-13
    ),
}


# ----- The network on a plain dict of the arrays, by hand


def network(names, p, X):
    """Return the outputs of two layers whose arrays have these names, in this order."""
    a = dict(zip(names, (p[str(i)] for i in range(4)), strict=True))
    turned = lambda name: a[name] if name in a else a[name + ".T"].T
    hidden = jnp.tanh(X @ turned("w1") + a["b1"][None])
    return hidden @ turned("w2") + a["b2"][None]


def plain_update(method, names, p, batch):
    """Return the gradient and the keywords of an update."""
    X, y = batch
    outputs = lambda p: network(names, p, X)
    g = jax.grad(lambda p: method.loss(outputs(p), y))(p)
    return g, method.keywords(outputs, y)


def plain(transform, method, names, p):
    """Make the steps of a transformation, and nothing else."""
    state = transform.init(p)

    @jax.jit
    def step(p, state, batch):
        g, keywords = plain_update(method, names, p, batch)
        updates, state = transform.update(g, state, p, **keywords)
        return jax.tree.map(jnp.add, p, updates), state

    for batch in BATCHES:
        p, state = step(p, state, batch)
        yield p


def as_it_is(method, names, p):
    """Make the steps of the transformation alone."""
    yield from plain(method.make(method.rate), method, names, p)


def accumulated(method, names, p):
    """Step along the mean of two gradients, with the objective of the second one."""
    transform = method.make(method.rate)
    state = transform.init(p)

    @jax.jit
    def step(p, state, first, second):
        g, _ = plain_update(method, names, p, first)
        h, keywords = plain_update(method, names, p, second)
        mean = jax.tree.map(lambda a, b: (a + b) / 2, g, h)
        updates, state = transform.update(mean, state, p, **keywords)
        return jax.tree.map(jnp.add, p, updates), state

    for k in range(0, STEPS, 2):
        yield p
        p, state = step(p, state, *BATCHES[k : k + 2])
        yield p


CLIP, DECAY, PLAIN = 0.5, 1e-2, 1e-3


def schedule(rate):
    """Return a learning rate that falls to nothing."""
    # The quotient of an integer of 32 bits would have 32 bits, in optax's loops alone.
    return lambda count: rate * (1 - jnp.asarray(count, float) / 10)


def chained(method, names, p):
    """Clip, take the direction, add the decay, and go so far down."""
    transform = method.direction()
    state = transform.init(p)

    @jax.jit
    def step(p, state, batch, rate):
        g, keywords = plain_update(method, names, p, batch)
        norm = jnp.sqrt(sum(jnp.sum(a**2) for a in g.values()))
        g = {k: a * jnp.minimum(1, CLIP / norm) for k, a in g.items()}
        s, state = transform.update(g, state, p, **keywords)
        return {k: p[k] - rate * (s[k] + DECAY * p[k]) for k in p}, state

    for k, batch in enumerate(BATCHES):
        p, state = step(p, state, batch, schedule(method.rate)(k))
        yield p


def injected(method, names, p):
    """Make a transformation with the rate of each step."""
    transform = method.make(method.rate)
    state = transform.init(p)

    @jax.jit
    def step(p, state, batch, rate):
        g, keywords = plain_update(method, names, p, batch)
        updates, state = method.make(rate).update(g, state, p, **keywords)
        return jax.tree.map(jnp.add, p, updates), state

    for k, batch in enumerate(BATCHES):
        p, state = step(p, state, batch, schedule(method.rate)(k))
        yield p


def only_weights(method, names, p):
    """Make the steps of the objective closed over the biases."""
    transform = method.make(method.rate)
    free = [str(i) for i, name in enumerate(names) if name.startswith("w")]
    rest = {k: a for k, a in p.items() if k not in free}
    part = {k: p[k] for k in free}
    state = transform.init(part)

    @jax.jit
    def step(part, state, batch):
        X, y = batch
        outputs = lambda part: network(names, {**rest, **part}, X)
        g = jax.grad(lambda part: method.loss(outputs(part), y))(part)
        updates, state = transform.update(g, state, part, **method.keywords(outputs, y))
        return jax.tree.map(jnp.add, part, updates), state

    for batch in BATCHES:
        part, state = step(part, state, batch)
        yield {**rest, **part}


def one_vector(method, names, p):
    """Make the steps of one vector of all parameters."""
    flat, tree = jax.flatten_util.ravel_pytree(p)
    transform = method.make(method.rate)
    state = transform.init(flat)

    @jax.jit
    def step(flat, state, batch):
        X, y = batch
        outputs = lambda flat: network(names, tree(flat), X)
        g = jax.grad(lambda flat: method.loss(outputs(flat), y))(flat)
        updates, state = transform.update(g, state, flat, **method.keywords(outputs, y))
        return flat + updates, state

    for batch in BATCHES:
        flat, state = step(flat, state, batch)
        yield tree(flat)


def weights_and_biases(method, names, p):
    """Step the weights, and let the biases follow their gradient."""
    weights = [str(i) for i, name in enumerate(names) if name.startswith("w")]
    transform = method.make(method.rate)
    state = transform.init({k: p[k] for k in weights})

    @jax.jit
    def step(p, state, batch):
        X, y = batch
        rest = {k: a for k, a in p.items() if k not in weights}
        part = {k: p[k] for k in weights}
        outputs = lambda part: network(names, {**rest, **part}, X)
        g, _ = plain_update(method, names, p, batch)
        updates, state = transform.update(
            {k: g[k] for k in part}, state, part, **method.keywords(outputs, y)
        )
        moved = {k: part[k] + updates[k] for k in part}
        return {**{k: a - PLAIN * g[k] for k, a in rest.items()}, **moved}, state

    for batch in BATCHES:
        p, state = step(p, state, batch)
        yield p
