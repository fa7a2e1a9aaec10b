"""Random keys, sharded arrays, functions with derivative rules of the user."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import custom_jvp, custom_vjp, random, vmap
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals


def dropout(key, x, rate):
    keep = random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0.0)


@everyday("dropout by a raw key in the closure")
def raw_key(seed):
    X, W = normals(seed, (8, 4), (4, 3))
    key = random.PRNGKey(seed)
    return lambda W: jnp.mean(dropout(key, jnp.tanh(X @ W), 0.5) ** 2), W, ()


@everyday("dropout by a typed key, split and folded in")
def typed_key(seed):
    X, W = normals(seed, (8, 4), (4, 3))
    key = random.key(seed)

    def loss(W):
        first, second = random.split(key)
        h = dropout(first, jnp.tanh(X @ W), 0.2)
        return jnp.mean(
            (h + 0.1 * random.normal(random.fold_in(second, 3), h.shape)) ** 2
        )

    return loss, W, ()


@everyday("a key as an argument of the loss")
def key_argument(seed):
    X, W = normals(seed, (8, 4), (4, 3))

    def loss(W, key):
        return jnp.mean(dropout(key, jnp.sin(X @ W), 0.3) ** 2)

    return loss, W, (random.key(seed),)


@everyday("a batch sampled inside by a key: stochastic estimate")
def sampled(seed):
    X, y, w = normals(seed, (20, 3), (20,), (3,))
    key = random.key(seed)

    def estimate(w):
        rows = random.choice(key, len(y), (6,), replace=False)
        return jnp.mean((jnp.tanh(X[rows] @ w) - y[rows]) ** 2)

    return estimate, w, ()


class Keys:
    """A stream of keys; each loss gets its own."""

    def __init__(self, seed):
        self.key = random.key(seed)

    def __next__(self):
        self.key, key = random.split(self.key)
        return key


@everyday("keys from a stream object, drawn before the closure")
def stream(seed):
    X, w = normals(seed, (8, 3), (3,))
    keys = Keys(seed)
    noise, mask = next(keys), next(keys)

    def loss(w):
        out = jnp.sin(X @ w) + 0.1 * random.normal(noise, (8,))
        return jnp.mean(jnp.where(random.bernoulli(mask, 0.5, (8,)), out, 0.0) ** 2)

    return loss, w, ()


@everyday("parameters and data sharded over a mesh")
def sharded(seed):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    X, y = jax.device_put((X, y), rows)
    return lambda w: jnp.mean((jnp.tanh(X @ w) - y) ** 2), jax.device_put(w, whole), ()


@everyday("a sharding constraint of a captured mesh inside the loss")
def constrained(seed):
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    sharding = NamedSharding(mesh, P("data"))
    X, y, w = normals(seed, (8, 3), (8,), (3,))

    def loss(w):
        h = jax.lax.with_sharding_constraint(jnp.sin(X @ w), sharding)
        return jnp.mean((h - y) ** 2)

    return loss, w, ()


@custom_jvp
def log1pexp(x):
    return jnp.logaddexp(x, 0.0)


@log1pexp.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return log1pexp(x), jax.nn.sigmoid(x) * t


@everyday("a custom_jvp function of the module")
def global_rule(seed):
    A, x = normals(seed, (4, 4), (4,))
    return lambda x: jnp.sum(log1pexp(A @ x) ** 2), x, ()


@everyday("a custom_jvp function made with the closure")
def local_rule(seed):
    A, x = normals(seed, (4, 4), (4,))

    @partial(custom_jvp, nondiff_argnums=(0,))
    def power(n, y):
        return y**n

    @power.defjvp
    def power_jvp(n, primals, tangents):
        (y,), (t,) = primals, tangents
        return y**n, n * y ** (n - 1) * t

    return lambda x: jnp.sum(power(3, A @ x)), x, ()


@custom_vjp
def clipped(x, low, high):
    return jnp.clip(x, low, high) ** 2


def clipped_forward(x, low, high):
    return clipped(x, low, high), (x, low, high)


def clipped_backward(residuals, g):
    x, low, high = residuals
    return 2 * g * jnp.clip(x, low, high), None, None


clipped.defvjp(clipped_forward, clipped_backward)


@everyday("a custom_vjp function of the module")
def global_reverse_rule(seed):
    A, x = normals(seed, (4, 4), (4,))
    return lambda x: jnp.sum(jnp.exp(0.1 * clipped(A @ x, -9.0, 9.0))), x, ()


@everyday(
    "a custom_vjp function made with the closure, over an array",
    slow="its rule captures an array: give the array as an argument, or use "
    "`hotk.rule.custom`",
)
def local_reverse_rule(seed):
    A, x = normals(seed, (4, 4), (4,))

    @custom_vjp
    def energy(x):
        return jnp.sum(jnp.cos(A @ x))

    def forward(x):
        return energy(x), A @ x

    def backward(y, g):
        return (-g * A.T @ jnp.sin(y),)

    energy.defvjp(forward, backward)
    return lambda x: energy(x) ** 2, x, ()


@everyday("jax.nn.relu and softplus squared: rules of JAX's own")
def rules_of_jax(seed):
    A, x = normals(seed, (5, 4), (4,))

    def loss(x):
        y = A @ x
        return jnp.sum(jax.nn.relu(y) ** 2 + jax.nn.softplus(y) + jax.nn.relu6(y) ** 2)

    return loss, x, ()


@everyday("a straight-through estimator by stop_gradient")
def straight_through(seed):
    X, w = normals(seed, (7, 3), (3,))

    def quantize(z):
        return z + jax.lax.stop_gradient(jnp.round(z) - z)

    return lambda w: jnp.mean(quantize(jnp.sin(X @ w)) ** 2), w, ()


@everyday("random features by a key, mapped over rows")
def random_features(seed):
    X, y, w = normals(seed, (8, 2), (8,), (5,))
    W = random.normal(random.key(seed), (5, 2))
    feature = jax.jit(lambda x: jnp.cos(W @ x))
    return lambda w: jnp.mean((vmap(feature)(X) @ w - y) ** 4), w, ()
