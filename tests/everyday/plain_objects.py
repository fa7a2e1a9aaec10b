"""Classes of the user: trainers, models, what they fill when first used."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

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


@everyday(
    "a basis in a cached_property",
    slow="each object fills its cache at the first call: read the property before",
)
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


@everyday(
    "an attribute filled when first used: if self.g is None",
    slow="each object fills its attribute at the first call: fill it before",
)
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
