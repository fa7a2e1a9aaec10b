"""ml_collections: a ConfigDict, plain and frozen, in the closure."""

import jax.numpy as jnp
from ml_collections import ConfigDict, FrozenConfigDict, config_dict

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals


def default_config():
    config = ConfigDict()
    config.model = ConfigDict({"activation": "tanh", "sizes": (3, 1)})
    config.penalty = 0.1
    config.name = config_dict.placeholder(str)
    return config


@everyday("ml_collections: a nested ConfigDict", library="ml_collections")
def plain(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    config = default_config()

    def loss(w):
        out = getattr(jnp, config.model.activation)(X @ w)
        return jnp.mean((out - y) ** 2) + config.penalty * jnp.sum(w**2)

    return loss, w, ()


@everyday("ml_collections: a FrozenConfigDict", library="ml_collections")
def frozen(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    config = FrozenConfigDict(default_config())
    return lambda w: config.penalty * jnp.mean(jnp.cos(X @ w - y)), w, ()
