"""pydantic: models as configurations."""

from typing import Literal

import jax.numpy as jnp
from pydantic import BaseModel, ConfigDict, Field

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals


class Network(BaseModel):
    """Settings of a network."""

    activation: Literal["tanh", "sin"] = "tanh"
    scale: float = Field(default=0.5, gt=0)


class Training(BaseModel):
    """Settings that hold others and do not change."""

    model_config = ConfigDict(frozen=True)
    network: Network = Network()
    power: int = 2


@everyday("pydantic: a frozen model of models", library="pydantic")
def frozen(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    config = Training.model_validate({"power": 4, "network": {"activation": "sin"}})

    def loss(w):
        out = getattr(jnp, config.network.activation)(config.network.scale * X @ w)
        return jnp.mean((out - y) ** config.power)

    return loss, w, ()


@everyday("pydantic: a model that may change", library="pydantic")
def mutable(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    config = Network()
    config.scale = 0.25
    return lambda w: jnp.mean(jnp.cos(config.scale * (X @ w) - y)), w, ()
