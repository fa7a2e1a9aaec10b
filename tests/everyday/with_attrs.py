"""attrs: classes of settings and of models."""

import attrs
import jax
import jax.numpy as jnp

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals


@attrs.frozen
class Settings:
    """Settings that are checked when made."""

    penalty: float = attrs.field(default=0.1, validator=attrs.validators.gt(0))
    power: int = attrs.field(default=2, converter=int)


@attrs.define
class Model:
    """A model in slots, with arrays."""

    X: jax.Array
    y: jax.Array
    settings: Settings = attrs.field(factory=Settings)

    def loss(self, w):
        fit = jnp.mean((jnp.tanh(self.X @ w) - self.y) ** self.settings.power)
        return fit + self.settings.penalty * jnp.sum(w**2)


@everyday("attrs: frozen settings in the closure", library="attrs")
def settings(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    chosen = attrs.evolve(Settings(), power="4")
    return lambda w: chosen.penalty * jnp.mean((X @ w - y) ** chosen.power), w, ()


@everyday("attrs: the bound method of a class with slots", library="attrs")
def model(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    return Model(X, y).loss, w, ()
