"""dm-haiku: transformed functions, with and without keys and state."""

import haiku as hk
import jax
import jax.numpy as jnp

from tests.everyday.corpus import everyday
from tests.everyday.draws import labels, normals, numpy_normals


def forward(x):
    return hk.nets.MLP([4, 2], activation=jnp.tanh)(x)


@everyday("haiku: transform and without_apply_rng", library="haiku")
def transformed(seed):
    X, y = normals(seed, (6, 3), (6, 2))
    network = hk.without_apply_rng(hk.transform(forward))
    params = network.init(jax.random.PRNGKey(seed), X)

    def loss(params):
        return jnp.mean((network.apply(params, X) - y) ** 2)

    return loss, params, ()


class Head(hk.Module):
    """A layer of the user with parameters by name."""

    def __init__(self, size, name=None):
        super().__init__(name=name)
        self.size = size

    def __call__(self, x):
        w = hk.get_parameter(
            "w", [x.shape[-1], self.size], init=hk.initializers.RandomNormal()
        )
        return x @ w


@everyday("haiku: a module of the user, dropout by hk.next_rng_key", library="haiku")
def with_key(seed):
    (X,) = numpy_normals(seed, (6, 3))
    y = labels(seed, 6, 2)
    key = jax.random.PRNGKey(seed)

    def net(x):
        x = jax.nn.softplus(Head(4, name="head")(x))
        return Head(2)(hk.dropout(hk.next_rng_key(), 0.2, x))

    network = hk.transform(net)
    params = network.init(key, X)

    def cross_entropy(params):
        log_p = jax.nn.log_softmax(network.apply(params, key, X))
        return -jnp.mean(log_p[jnp.arange(6), y])

    return cross_entropy, params, ()


@everyday("haiku: transform_with_state and batch norm", library="haiku", x64=True)
def with_state(seed):
    X, y = normals(seed, (6, 3), (6, 2))

    @hk.transform_with_state
    def network(x, is_training):
        x = hk.Linear(2)(x)
        return hk.BatchNorm(True, True, 0.9)(x, is_training)

    params, state = network.init(jax.random.PRNGKey(seed), X, True)

    def loss(params):
        out, _ = network.apply(params, state, None, X, is_training=True)
        return jnp.mean((out - y) ** 2)

    return loss, params, ()


@everyday("haiku: a recurrent core by dynamic_unroll", library="haiku")
def recurrent(seed):
    (X,) = normals(seed, (4, 2, 3))

    def unroll(X):
        core = hk.GRU(2)
        out, _ = hk.dynamic_unroll(core, X, core.initial_state(2))
        return out

    network = hk.without_apply_rng(hk.transform(unroll))
    params = network.init(jax.random.PRNGKey(seed), X)
    return lambda p: jnp.mean(network.apply(p, X) ** 2), params, ()
