"""Losses that use optax: its losses, trees, projections, schedules and optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import value_and_grad
from optax.losses import softmax_cross_entropy_with_integer_labels

from tests.everyday.corpus import everyday


def batch_of(seed, rows=10, columns=4, kinds=3):
    rng = np.random.default_rng(seed)
    return {
        "image": rng.normal(size=(rows, columns)).astype(np.float32),
        "label": rng.integers(0, kinds, rows),
    }


def linear(columns=4, kinds=3):
    w = 0.1 * jnp.sin(jnp.arange(columns * kinds, dtype=jnp.float32))
    return {"w": w.reshape(columns, kinds), "b": jnp.zeros(kinds)}


@everyday("cross entropy with integer labels by name, weight decay")
def cross_entropy(seed):
    batch = batch_of(seed)

    def loss(params):
        logits = batch["image"] @ params["w"] + params["b"]
        nll = softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        return nll.mean() + 1e-2 * optax.tree.norm(params, squared=True)

    return loss, linear(), ()


@everyday("smoothed labels and a batch as an argument")
def smoothed(seed):
    batch = batch_of(seed)

    def loss(params, batch):
        logits = batch["image"] @ params["w"] + params["b"]
        hot = jax.nn.one_hot(batch["label"], 3)
        return optax.softmax_cross_entropy(logits, optax.smooth_labels(hot, 0.1)).mean()

    return loss, linear(), (batch,)


@everyday("Huber loss of a regression")
def huber(seed):
    batch = batch_of(seed)
    targets = np.random.default_rng(seed).normal(size=10)

    def loss(w):
        predictions = jnp.asarray(batch["image"]) @ w
        return optax.huber_loss(predictions, targets, delta=1.3).mean()

    return loss, jnp.array([0.3, -0.1, 0.2, 0.5]), ()


@everyday(
    "focal loss with a schedule of the module's kind",
    slow="the schedule turns its number of steps into a float at the first "
    "call: give it as a float",
)
def focal(seed):
    batch = batch_of(seed, kinds=2)
    schedule = optax.cosine_decay_schedule(init_value=1.0, decay_steps=100)

    def loss(w, step):
        logits = batch["image"] @ w
        losses = optax.sigmoid_focal_loss(logits, batch["label"], gamma=2.0)
        return schedule(step) * losses.mean()

    return loss, jnp.array([0.3, -0.1, 0.2, 0.5]), (jnp.array(3),)


@everyday("loss after an inner step of adam")
def inner_adam(seed):
    batch, other = batch_of(seed), batch_of(seed + 100)
    optimizer = optax.adam(1e-2)

    def loss(params, batch):
        logits = batch["image"] @ params["w"] + params["b"]
        labels = batch["label"]
        return softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    state = optimizer.init(linear())

    def meta(params):
        _, grads = value_and_grad(loss)(params, batch)
        updates, _ = optimizer.update(grads, state, params)
        return loss(optax.apply_updates(params, updates), other)

    return meta, linear(), ()


@everyday("chain of transformations with a captured state")
def chain(seed):
    batch = batch_of(seed)
    transform = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(),
        optax.add_decayed_weights(1e-3),
        optax.scale_by_schedule(optax.linear_schedule(0.1, 0.01, 10)),
    )
    start = linear()["w"]
    grads = jax.tree.map(jnp.ones_like, start)
    _, state = transform.update(grads, transform.init(start), start)

    def after_update(w):
        gradient = jax.grad(lambda w: jnp.mean(jnp.tanh(batch["image"] @ w) ** 2))(w)
        updates, _ = transform.update(gradient, state, w)
        return jnp.sum((w - updates) ** 2)

    return after_update, start, ()


@everyday("projection onto a simplex inside the loss")
def projected(seed):
    returns = np.random.default_rng(seed).normal(size=(12, 4))

    def risk(w):
        shares = optax.projections.projection_simplex(w)
        return jnp.var(jnp.asarray(returns) @ shares) + 0.1 * jnp.sum(w**2)

    return risk, jnp.array([0.4, 0.3, 0.2, 0.3]), ()


@everyday("teacher as a moving average of parameters")
def teacher(seed):
    batch = batch_of(seed)
    average = optax.ema(0.9, debias=True)
    _, state = average.update(linear(), average.init(linear()))

    def consistency(params):
        mean, _ = average.update(params, state)
        student = batch["image"] @ params["w"]
        taught = batch["image"] @ mean["w"]
        return (
            optax.kl_divergence(
                jax.nn.log_softmax(student), jax.nn.softmax(taught)
            ).mean()
            + optax.l2_loss(params["b"] - mean["b"] + 1.0).sum()
        )

    return consistency, linear(), ()


@everyday("CTC loss of short sequences")
def ctc(seed):
    rng = np.random.default_rng(seed)
    frames = jnp.asarray(rng.normal(size=(2, 6, 3)))
    labels = jnp.asarray(rng.integers(1, 4, (2, 3)))
    paddings = jnp.zeros((2, 6)), jnp.zeros((2, 3))

    def loss(w):
        return optax.ctc_loss(frames @ w, paddings[0], labels, paddings[1]).mean()

    return loss, 0.2 * jnp.cos(jnp.arange(12.0)).reshape(3, 4), ()


@everyday("optimizer with labels for parts of the parameters")
def partitioned(seed):
    batch = batch_of(seed)
    optimizer = optax.partition(
        {"fast": optax.sgd(0.5, momentum=0.9), "slow": optax.sgd(0.05)},
        {"w": "slow", "b": "fast"},
    )
    state = optimizer.init(linear())

    def loss(params):
        def inner(p):
            return jnp.mean((batch["image"] @ p["w"] + p["b"]) ** 4)

        updates, _ = optimizer.update(jax.grad(inner)(params), state)
        return inner(optax.tree.add(params, updates))

    return loss, linear(), ()
