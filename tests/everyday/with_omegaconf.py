"""omegaconf: a DictConfig in the closure."""

from dataclasses import dataclass

import jax.numpy as jnp
from omegaconf import OmegaConf

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals


@dataclass
class Optimization:
    """A structured configuration."""

    power: int = 4
    scale: float = 0.5


@everyday(
    "omegaconf: a DictConfig with interpolation",
    library="omegaconf",
    slow="omegaconf writes caches into the object when it is read: use "
    "`OmegaConf.to_container` before",
)
def created(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    config = OmegaConf.create(
        {"model": {"activation": "sin"}, "penalty": 0.1, "decay": "${penalty}"}
    )

    def loss(w):
        out = getattr(jnp, config.model.activation)(X @ w)
        return jnp.mean((out - y) ** 2) + config.decay * jnp.sum(w**2)

    return loss, w, ()


@everyday(
    "omegaconf: a structured configuration",
    library="omegaconf",
    slow="omegaconf writes caches into the object when it is read: use "
    "`OmegaConf.to_container` before",
)
def structured(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    config = OmegaConf.merge(OmegaConf.structured(Optimization), {"scale": 0.25})
    return lambda w: config.scale * jnp.mean((X @ w - y) ** config.power), w, ()
