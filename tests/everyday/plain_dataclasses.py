"""Parameters and settings: dataclasses, named tuples, registered classes, enums."""

import enum
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import vmap

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals


@dataclass
class Config:
    """Plain settings."""

    penalty: float = 0.1
    power: int = 4
    names: list[str] = field(default_factory=lambda: ["a", "b"])


@everyday("a plain dataclass as configuration")
def plain_dataclass(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    config = Config(power=2)

    def loss(w):
        return jnp.mean((X @ w - y) ** config.power) + config.penalty * jnp.sum(w**4)

    return loss, w, ()


@dataclass(frozen=True)
class Frozen:
    """Settings that do not change, of settings."""

    width: int
    inner: tuple[str, ...] = ("tanh", "sin")
    config: Any = None


@everyday("frozen dataclasses in each other, changed by replace")
def frozen(seed):
    W, x = normals(seed, (3, 3), (3,))
    config = replace(Frozen(3), config=Frozen(2, ("cos",)))

    def loss(x):
        for name in config.inner + config.config.inner:
            x = getattr(jnp, name)(W @ x) * config.width
        return jnp.sum(x**2)

    return loss, x, ()


@dataclass(slots=True)
class Slots:
    """A problem in slots."""

    A: jax.Array
    b: jax.Array
    scale: float = 0.5

    def residual(self, x):
        return self.scale * jnp.sin(self.A @ x) - self.b

    def loss(self, x):
        return jnp.sum(self.residual(x) ** 2)


@everyday("a dataclass with slots that holds arrays")
def slots(seed):
    A, b, x = normals(seed, (4, 3), (4,), (3,))
    return Slots(A, b).loss, x, ()


@partial(
    jax.tree_util.register_dataclass, data_fields=["W", "b"], meta_fields=["activation"]
)
@dataclass
class Dense:
    """A registered dataclass."""

    W: jax.Array
    b: jax.Array
    activation: str = "tanh"

    def __call__(self, x):
        return getattr(jnp, self.activation)(self.W @ x + self.b)


@everyday("a registered dataclass as parameters")
def registered_params(seed):
    W, b, X, y = normals(seed, (2, 3), (2,), (7, 3), (7, 2))
    return lambda m: jnp.mean((vmap(m)(X) - y) ** 2), Dense(W, b), ()


@everyday("a registered dataclass captured")
def registered_captured(seed):
    W, b, x = normals(seed, (2, 3), (2,), (3,))
    model = Dense(W, b, "sin")
    return lambda x: jnp.sum(model(x) ** 2), x, ()


@jax.tree_util.register_pytree_node_class
class Ellipse:
    """A registered class, with methods of its own."""

    def __init__(self, axes, center):
        self.axes, self.center = axes, center

    def tree_flatten(self):
        return (self.axes, self.center), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)

    def level(self, p):
        return jnp.sum(((p - self.center) / jnp.exp(self.axes)) ** 2)


@everyday("a registered class with flatten methods, fitted to points")
def fitted(seed):
    axes, center, points = normals(seed, (2,), (2,), (9, 2))
    loss = lambda e: jnp.mean((vmap(e.level)(points) - 1.0) ** 2)
    return loss, Ellipse(0.1 * axes, center), ()


class Params(NamedTuple):
    """Parameters by name."""

    weights: jax.Array
    bias: jax.Array


class Batch(NamedTuple):
    """A batch by name."""

    inputs: jax.Array
    targets: jax.Array


@everyday("NamedTuple parameters and a NamedTuple batch in the closure")
def named_tuples(seed):
    w, b, X, y = normals(seed, (3,), (), (8, 3), (8,))
    batch = Batch(inputs=X, targets=y)

    def loss(params):
        predicted = jnp.tanh(batch.inputs @ params.weights + params.bias)
        return jnp.mean((predicted - batch.targets) ** 2)

    return loss, Params(w, b), ()


class Reduction(enum.Enum):
    """How losses of rows become one."""

    SUM = "sum"
    MEAN = "mean"


class Activation(enum.StrEnum):
    """Names of functions."""

    TANH = enum.auto()
    SIN = enum.auto()


@everyday("choices by Enum and StrEnum")
def choices(seed):
    X, w = normals(seed, (8, 3), (3,))
    reduction, activation = Reduction.MEAN, Activation.SIN

    def loss(w):
        rows = getattr(jnp, activation)(X @ w) ** 2
        return rows.sum() if reduction is Reduction.SUM else rows.mean()

    return loss, w, ()
