"""flax.linen: layers, modules in both styles, training states, collections."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from flax.core import freeze
from flax.training import train_state
from jax import random, vmap

from tests.everyday.corpus import everyday
from tests.everyday.draws import labels, normals, numpy_normals


class MLP(nn.Module):
    """A network in compact style."""

    features: Sequence[int]
    activation: Any = nn.tanh

    @nn.compact
    def __call__(self, x):
        for size in self.features[:-1]:
            x = self.activation(nn.Dense(size)(x))
        return nn.Dense(self.features[-1])(x)


class Autoencoder(nn.Module):
    """A network in setup style, with methods of its own."""

    hidden: int = 2

    def setup(self):
        self.encoder = nn.Dense(self.hidden)
        self.decoder = nn.Dense(4, name="out")

    def encode(self, x):
        return nn.softplus(self.encoder(x))

    def __call__(self, x):
        return self.decoder(self.encode(x))


class Block(nn.Module):
    """Convolution, norms and dropout."""

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.Conv(2, kernel_size=(3,))(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.LayerNorm()(nn.silu(x))
        return nn.Dropout(0.3, deterministic=not train)(x)


@everyday("linen: nn.Dense, its apply in the loss", library="flax")
def dense(seed):
    X, y = normals(seed, (6, 3), (6, 2))
    model = nn.Dense(features=2)
    params = model.init(random.key(seed), X)

    def mse(params):
        def squared_error(x, y):
            return jnp.inner(model.apply(params, x) - y, y) ** 2

        return jnp.mean(vmap(squared_error)(X, y), axis=0)

    return mse, params, ()


@everyday("linen: Sequential and NumPy data", library="flax")
def sequential(seed):
    X, y = numpy_normals(seed, (6, 3), (6, 1))
    model = nn.Sequential([nn.Dense(4), nn.tanh, nn.Dense(1)])
    params = model.init(random.PRNGKey(seed), X)
    return lambda p: jnp.mean((model.apply(p, X) - y) ** 2), params, ()


@everyday("linen: a module in compact style", library="flax")
def compact(seed):
    X = normals(seed, (6, 3))[0]
    y = jnp.asarray(labels(seed, 6, 2))
    model = MLP(features=(4, 2))
    params = model.init(random.key(seed), X)["params"]

    def loss(params):
        logits = model.apply({"params": params}, X)
        one_hot = jax.nn.one_hot(y, 2)
        return optax.softmax_cross_entropy(logits, one_hot).mean()

    return loss, params, ()


@everyday("linen: a module in setup style, a method by name", library="flax")
def setup_style(seed):
    (X,) = normals(seed, (6, 4))
    model = Autoencoder(hidden=3)
    params = model.init(random.key(seed), X)

    def loss(params):
        code = model.apply(params, X, method="encode")
        return jnp.mean((model.apply(params, X) - X) ** 2) + 0.1 * jnp.mean(code**2)

    return loss, params, ()


@everyday("linen: Net().apply bound and jitted", library="flax")
def bound_apply(seed):
    X, y = normals(seed, (6, 3), (6, 2))
    apply = jax.jit(MLP((4, 2)).apply)
    params = MLP((4, 2)).init(random.key(seed), X)
    return lambda p: jnp.mean((apply(p, X) - y) ** 2), params, ()


@everyday("linen: partial(model.apply, ...) over a batch", library="flax")
def partial_apply(seed):
    X, y = normals(seed, (6, 3), (6, 2))
    model = MLP([4, 2], activation=nn.gelu)
    variables = freeze(model.init(random.key(seed), X))

    def loss(variables):
        forward = partial(model.apply, variables)
        return jnp.mean((vmap(forward)(X) - y) ** 2)

    return loss, variables, ()


@everyday("linen: a TrainState in the closure, st.apply_fn", library="flax")
def training_state(seed):
    X, y = normals(seed, (6, 3), (6, 2))
    model = MLP((3, 2))
    state = train_state.TrainState.create(
        apply_fn=model.apply,
        params=model.init(random.key(seed), X)["params"],
        tx=optax.adam(1e-3),
    )

    def loss(params):
        predicted = state.apply_fn({"params": params}, X)
        return jnp.mean(optax.l2_loss(predicted, y))

    return loss, state.params, ()


@everyday(
    "linen: BatchNorm, dropout with rngs, mutable statistics", library="flax", x64=True
)
def batch_norm(seed):
    X, y = normals(seed, (3, 5, 2), (3, 5, 2))
    model = Block()
    key, dropout_key = random.split(random.key(seed))
    variables = model.init(key, X, train=False)
    params, stats = variables["params"], variables["batch_stats"]

    def loss(params):
        out, _ = model.apply(
            {"params": params, "batch_stats": stats},
            X,
            train=True,
            mutable=["batch_stats"],
            rngs={"dropout": dropout_key},
        )
        return jnp.mean((out - y) ** 2)

    return loss, params, ()


# In 64 bits as the one above: LayerNorm of two features takes differences of what is
# nearly equal, and how they round depends on how XLA compiles.
@everyday("linen: running statistics captured, no dropout", library="flax", x64=True)
def evaluation(seed):
    X, y = normals(seed, (3, 5, 2), (3, 5, 2))
    model = Block()
    variables = model.init(random.key(seed), X, train=False)
    rest = {k: v for k, v in variables.items() if k != "params"}

    def loss(params):
        out = model.apply({"params": params, **rest}, X, train=False)
        return jnp.mean((out - y) ** 2)

    return loss, variables["params"], ()


@everyday("linen: a recurrent cell by nn.RNN", library="flax")
def recurrent(seed):
    (X,) = normals(seed, (2, 4, 3))
    model = nn.RNN(nn.GRUCell(features=2))
    params = model.init(random.key(seed), X)
    return lambda p: jnp.mean(model.apply(p, X) ** 2), params, ()


@struct.dataclass
class Fit:
    """A flax.struct dataclass with data and functions."""

    X: jax.Array
    y: jax.Array
    apply: Any = struct.field(pytree_node=False)
    power: int = struct.field(pytree_node=False, default=4)

    def loss(self, params):
        return jnp.mean((self.apply(params, self.X) - self.y) ** self.power)


@everyday("flax.struct: a dataclass with a method, captured", library="flax")
def struct_captured(seed):
    X, y, w = normals(seed, (6, 3), (6,), (3,))
    fit = Fit(X, y, apply=lambda w, X: jnp.tanh(X @ w)).replace(power=2)
    return lambda w: fit.loss(w), w, ()


@struct.dataclass
class State:
    """Parameters as a flax.struct dataclass."""

    position: jax.Array
    log_scale: jax.Array


@everyday("flax.struct: a dataclass as parameters", library="flax")
def struct_params(seed):
    data, position = normals(seed, (7, 2), (2,))

    def nll(state):
        z = (data - state.position) * jnp.exp(-state.log_scale)
        return 0.5 * jnp.mean(jnp.sum(z**2, -1)) + state.log_scale.sum()

    return nll, State(position, 0.1 * position), ()
