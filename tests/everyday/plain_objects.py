"""Classes of the user: trainers, models, configurations, parameters."""

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import vmap

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals, numpy_normals


WEIGHTS = jnp.array([0.5, 1.0, 1.5, 2.0])
KNOTS = np.linspace(0, 1, 5)


class Trainer:
    """Counts its steps, keeps a history, calls callbacks."""

    def __init__(self, X, y, callbacks=()):
        self.X, self.y = X, y
        self.scale = WEIGHTS[: X.shape[1]]
        self.step = 0
        self.history = []
        self.callbacks = list(callbacks)

    def loss(self, w):
        return jnp.mean((self.X @ (self.scale * w) - self.y) ** 4)

    def update(self, w, value):
        self.step += 1
        self.history.append({"step": self.step, "loss": value})
        for callback in self.callbacks:
            callback(self)


@everyday("a trainer with step counter, history and callbacks")
def trainer(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    made = Trainer(X, y, callbacks=[lambda t: t.history[-10:], print])
    made.callbacks.pop()
    for value in range(seed):
        made.update(w, float(value))
    return made.loss, w, ()


@everyday("one trainer through its steps, a lambda around its method")
def one_trainer(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    made = Trainer(X, y)
    made.update(w, 1.0)
    return lambda w: made.loss(w) + 0.01 * jnp.sum(w**2), w, ()


class Weighted:
    """A model whose method reads an array of the module."""

    def __init__(self, power):
        self.power = power

    def energy(self, x):
        return jnp.sum(WEIGHTS * x**self.power)

    def __call__(self, x):
        return self.energy(jnp.sin(x))


@everyday("a bound method that reads an array of the module")
def bound_method(seed):
    return Weighted(4).energy, normals(seed, (4,))[0], ()


@everyday("an object with __call__ that reads an array of the module")
def callable_object(seed):
    return Weighted(3), normals(seed, (4,))[0], ()


class Linear:
    """A layer of arrays, called."""

    def __init__(self, W, b, activation=jnp.tanh):
        self.W, self.b, self.activation = W, b, activation

    def __call__(self, x):
        return self.activation(self.W @ x + self.b)


class Sequential:
    """Layers one after the other."""

    def __init__(self, *layers):
        self.layers = layers

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@everyday("layers as objects with __call__, the input differentiated")
def layers(seed):
    W1, b1, W2, b2, x = normals(seed, (4, 3), (4,), (2, 4), (2,), (3,))
    model = Sequential(Linear(W1, b1), Linear(W2, b2, jax.nn.softplus))
    return lambda x: jnp.sum(model(x) ** 2), x, ()


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


class AbstractLoss(ABC):
    """What every loss has."""

    def __init__(self, target):
        self.target = target

    @abstractmethod
    def per_row(self, predicted):
        """Return one number for each row."""

    def __call__(self, predicted):
        return jnp.mean(self.per_row(predicted))


class PseudoHuber(AbstractLoss):
    """A smooth absolute value."""

    def per_row(self, predicted):
        return jnp.sqrt(1 + (predicted - self.target) ** 2)


@everyday("a subclass of an abstract class")
def abstract(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    criterion = PseudoHuber(y)
    return lambda w: criterion(X @ w), w, ()


class Regularizer(Protocol):
    """Anything with a penalty."""

    def penalty(self, w: jax.Array) -> jax.Array: ...


class Quartic:
    """A penalty that fits the protocol."""

    strength = 0.1

    def penalty(self, w):
        return self.strength * jnp.sum(w**4)


@everyday("a Protocol and a class that fits it")
def protocol(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    regularizers: list[Regularizer] = [Quartic(), Quartic()]
    data = lambda w: jnp.mean((X @ w - y) ** 2)
    return lambda w: data(w) + sum(r.penalty(w) for r in regularizers), w, ()


class Spline:
    """A basis that is made when it is first asked for."""

    def __init__(self, knots, target):
        self.knots, self.target = knots, target

    @cached_property
    def basis(self):
        return jnp.vander(self.knots, 3)

    def loss(self, c):
        return jnp.sum((self.basis @ c - self.target) ** 4)


@everyday("a basis in a cached_property")
def cached(seed):
    knots, target, c = normals(seed, (6,), (6,), (3,))
    return Spline(knots, target).loss, c, ()


class Lazy:
    """An attribute that is None until it is needed."""

    def __init__(self, points):
        self.points = points
        self._distances = None

    def distances(self):
        if self._distances is None:
            gap = self.points[:, None] - self.points[None, :]
            self._distances = jnp.abs(gap)
        return self._distances

    def stress(self, x):
        return jnp.sum((self.distances() - (x[:, None] - x[None, :]) ** 2) ** 2)


@everyday("an attribute filled when first used: if self.g is None")
def lazy(seed):
    points, x = normals(seed, (5,), (5,))
    return Lazy(points).stress, x, ()


class Interpolation:
    """A model that reads a NumPy array of the module."""

    def __call__(self, values):
        fine = jnp.linspace(0.0, 1.0, 9)
        return jnp.interp(fine, jnp.asarray(KNOTS, jnp.float32), values)


@everyday("a model that reads a NumPy array of the module")
def module_array(seed):
    target, values = normals(seed, (9,), (5,))
    model = Interpolation()
    return lambda v: jnp.sum((model(v) - target) ** 4), values, ()


class Base:
    """A model with a template method, class attributes and a property."""

    activation = staticmethod(jnp.tanh)
    depth = 2

    def __init__(self, W):
        self.W = W

    @property
    def scale(self):
        return 1.0 / self.depth

    def forward(self, x):
        for _ in range(self.depth):
            x = self.activation(self.W @ x)
        return self.scale * x


class Deeper(Base):
    """The same with another depth, and super()."""

    depth = 3

    def forward(self, x):
        return x + super().forward(x)


@everyday("inheritance with super(), properties and class attributes")
def inherited(seed):
    W, x = normals(seed, (3, 3), (3,))
    model = Deeper(W)
    return lambda x: jnp.sum(model.forward(x) ** 2), x, ()


@everyday("a dict of objects by name, a loop over its items")
def objects_in_a_dict(seed):
    W, b, x = numpy_normals(seed, (3, 3), (3,), (3,))
    terms = {"one": Linear(W, b), "two": Linear(W.T, b, jnp.sin)}

    def loss(x):
        return sum(w * jnp.sum(terms[k](x) ** 2) for w, k in enumerate(terms, start=1))

    return loss, jnp.asarray(x), ()
