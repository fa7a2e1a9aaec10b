"""chex: dataclasses as trees, assertions inside of losses."""

import chex
import jax.numpy as jnp

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals


@chex.dataclass
class Params:
    """Parameters by name."""

    w: chex.Array
    b: chex.Array


@chex.dataclass(frozen=True)
class Config:
    """Settings that do not change."""

    penalty: float = 0.1
    power: int = 2


@everyday("chex: a dataclass as parameters, assertions inside", library="chex")
def parameters(seed):
    X, y, w, b = normals(seed, (8, 3), (8,), (3,), ())

    def loss(params):
        chex.assert_rank([X, params.w], [2, 1])
        predicted = jnp.tanh(X @ params.w + params.b)
        chex.assert_equal_shape([predicted, y])
        return jnp.mean((predicted - y) ** 2)

    return loss, Params(w=w, b=b), ()


@everyday("chex: a frozen dataclass as configuration", library="chex")
def configuration(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    config = Config(power=4)
    fit = lambda w: jnp.mean((X @ w - y) ** config.power)
    return lambda w: fit(w) + config.penalty * jnp.sum(w**2), w, ()
