"""Functions as Python makes them: decorators, closures, partials, caches."""

import functools
import operator
import time
from functools import cache, lru_cache, partial, reduce, singledispatch, wraps
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import jit, vmap

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals, numpy_normals


def timed(function):
    """Take the time of each call."""

    @wraps(function)
    def inner(*args, **kwargs):
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            elapsed = time.perf_counter() - start
            if elapsed > 1e9:
                raise TimeoutError(function.__name__)

    return inner


@everyday("a decorator with wraps that takes the time")
def with_timer(seed):
    A, x = normals(seed, (4, 4), (4,))

    @timed
    def loss(x):
        return jnp.sum(jnp.sin(A @ x) ** 2)

    return loss, x, ()


def scaled(factor):
    """A decorator with an argument."""

    def decorate(function):
        @wraps(function)
        def inner(*args, **kwargs):
            return factor * function(*args, **kwargs)

        return inner

    return decorate


@everyday("two decorators with arguments, one on the other")
def with_arguments(seed):
    A, x = normals(seed, (4, 4), (4,))

    @scaled(0.5)
    @scaled(factor=3)
    def loss(x, power=4):
        return jnp.sum((A @ x) ** power)

    return loss, x, ()


LOSSES = {}


def register(name):
    """Enter a loss into the table of losses."""

    def decorate(function):
        LOSSES[name] = function
        return function

    return decorate


@register("mse")
def mean_squared(predicted, target):
    return jnp.mean((predicted - target) ** 2)


@register("log_cosh")
def log_cosh(predicted, target):
    return jnp.mean(jnp.logaddexp(predicted - target, target - predicted))


@everyday("a loss from a registry, by its name")
def from_a_registry(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    name = "log_cosh"
    return lambda w: LOSSES[name](X @ w, y) + LOSSES["mse"](X @ w, y), w, ()


class Registry:
    """Functions by name, as attributes of a class."""

    entries: ClassVar[dict] = {}

    @classmethod
    def add(cls, function):
        cls.entries[function.__name__] = function
        return function

    @classmethod
    def named(cls, name):
        return cls.entries[name]


@Registry.add
def quartic(x):
    return jnp.sum(x**4)


@Registry.add
def cosine(x):
    return jnp.sum(jnp.cos(x))


@everyday("terms from a registry that is a class")
def from_a_class(seed):
    A, x = normals(seed, (3, 3), (3,))
    terms = [Registry.named(name) for name in ("quartic", "cosine")]
    return lambda x: sum(term(A @ x) for term in terms), x, ()


@everyday("a registry that is a class, read beside an array of NumPy")
def class_beside_numpy(seed):
    A, x = normals(seed, (3, 3), (3,))
    A = np.asarray(A)
    return lambda x: Registry.named("quartic")(x @ A), x, ()


@everyday("a registry that is a class, read inside the loss")
def class_read_inside(seed):
    A, x = normals(seed, (3, 3), (3,))
    return lambda x: Registry.named("quartic")(A @ x), x, ()


def objective(w, X, y, *, penalty=0.0, power=2):
    residual = X @ w - y
    return jnp.mean(jnp.abs(residual) ** power) + penalty * jnp.sum(w**2)


@everyday("a partial of a loss over data and keywords")
def partial_keywords(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    return partial(objective, X=X, y=y, penalty=0.1, power=4), w, ()


@everyday("a partial of a partial, in a reduce over terms")
def reduced(seed):
    A, x = normals(seed, (3, 3), (3,))
    clipped = partial(jnp.clip, min=-1.0)
    terms = (jnp.sin, partial(clipped, max=1.0), jnp.square)

    def loss(x):
        return reduce(operator.add, [term(A @ x).sum() for term in terms]) ** 2

    return loss, x, ()


@everyday("composition by reduce over a tuple of layers")
def composed(seed):
    W1, W2, x = normals(seed, (4, 3), (2, 4), (3,))
    layers = (lambda h: W1 @ h, jnp.tanh, lambda h: W2 @ h)

    def compose(*functions):
        return reduce(lambda f, g: lambda x: g(f(x)), functions)

    model = compose(*layers)
    return lambda x: jnp.sum(model(x) ** 2), x, ()


@lru_cache(maxsize=32)
def grid(n):
    return jnp.linspace(0.0, 1.0, n)


@everyday(
    "a grid of jnp.linspace behind lru_cache",
    slow="what a cache will return cannot be seen: compute it before, or "
    "without a cache",
)
def cached_grid(seed):
    target, c = normals(seed, (11,), (3,))

    def loss(c):
        t = grid(11)
        return jnp.sum((jnp.polyval(c, t) ** 2 - target) ** 2)

    return loss, c, ()


@cache
def quadrature(n):
    import numpy as np

    nodes, weights = np.polynomial.legendre.leggauss(n)
    return jnp.asarray(nodes), jnp.asarray(weights)


@everyday(
    "quadrature nodes of NumPy behind functools.cache",
    slow="what a cache will return cannot be seen: compute it before, or "
    "without a cache",
)
def cached_quadrature(seed):
    (c,) = normals(seed, (4,))

    def loss(c):
        nodes, weights = quadrature(6)
        return jnp.sum(weights * jnp.exp(jnp.polyval(c, nodes)))

    return loss, c, ()


CONSTANTS: dict[int, jax.Array] = {}


def difference_matrix(n):
    if n not in CONSTANTS:
        CONSTANTS[n] = jnp.eye(n) - jnp.eye(n, k=1)
    return CONSTANTS[n]


@everyday("a matrix kept in a module's dict, made when first used")
def cached_in_a_dict(seed):
    (x,) = normals(seed, (5,))
    return lambda x: jnp.sum((difference_matrix(5) @ x) ** 4), x, ()


@singledispatch
def energy(term, x):
    raise NotImplementedError(type(term))


@energy.register
def _(term: float, x):
    return term * jnp.sum(x**4)


@energy.register(tuple)
def _(term, x):
    return sum(energy(each, x) for each in term)


@energy.register(str)
def _(term, x):
    return getattr(jnp, term)(x).sum()


@everyday("singledispatch over kinds of terms")
def dispatched(seed):
    A, x = normals(seed, (3, 3), (3,))
    terms = (0.5, "sin", (2.0, "cos"))
    return lambda x: energy(terms, A @ x), x, ()


def make_losses(X, y):
    """Yield a loss for each power."""
    for power in (2, 4, 6):
        yield lambda w, power=power: jnp.mean((X @ w - y) ** power)


@everyday("closures from a generator, one taken")
def from_a_generator(seed):
    X, y, w = normals(seed, (6, 3), (6,), (3,))
    losses = make_losses(X, y)
    next(losses)
    return next(losses), w, ()


@everyday("a sum over closures from a generator")
def sum_of_generated(seed):
    X, y, w = normals(seed, (6, 3), (6,), (3,))
    losses = list(make_losses(X, y))
    return lambda w: sum(loss(w) for loss in losses), w, ()


@everyday("a recursive function over a nested configuration")
def recursive(seed):
    A, x = normals(seed, (3, 3), (3,))
    spec = ("sum", ("sin", "x"), ("mul", ("cos", "x"), ("mul", "x", "x")))

    def evaluate(node, x):
        match node:
            case "x":
                return A @ x
            case ("sum", left, right):
                return evaluate(left, x) + evaluate(right, x)
            case ("mul", left, right):
                return evaluate(left, x) * evaluate(right, x)
            case (name, inner):
                return getattr(jnp, name)(evaluate(inner, x))

    return lambda x: evaluate(spec, x).sum(), x, ()


@everyday("operator.itemgetter, attrgetter and methodcaller captured")
def getters(seed):
    X, y, w, b = normals(seed, (8, 3), (8,), (3,), ())
    pick = operator.itemgetter("w", "b")
    total = operator.methodcaller("sum")

    def loss(params):
        w, b = pick(params)
        return total((X @ w + b - y) ** 2)

    return loss, {"w": w, "b": b}, ()


def logged(function=None, *, every=10):
    """A decorator with or without arguments, that counts nothing when not asked."""
    if function is None:
        return partial(logged, every=every)

    @wraps(function)
    def inner(*args):
        return function(*args)

    inner.every = every
    inner.original = function
    return inner


@everyday("a decorated function with attributes of its own")
def with_attributes(seed):
    A, x = normals(seed, (4, 4), (4,))

    @logged(every=5)
    def loss(x):
        return jnp.sum(jnp.exp(jnp.sin(A @ x)))

    return loss, x, ()


@everyday("jit, vmap and wraps stacked as decorators")
def stacked(seed):
    X, w = normals(seed, (7, 3), (3,))

    @jit
    @partial(vmap, in_axes=(None, 0))
    @timed
    def per_row(w, x):
        return jnp.sin(x @ w) ** 2

    return lambda w: per_row(w, X).sum(), w, ()


@everyday("keyword-only defaults, *args and **kwargs handed on")
def handed_on(seed):
    X, y, w = numpy_normals(seed, (8, 3), (8,), (3,))

    def base(w, X, y, *, power=2, **rest):
        return rest["scale"] * jnp.mean((X @ w - y) ** power)

    def loss(*args, **kwargs):
        options = {"scale": 0.5, "power": 4, "name": "unused"} | kwargs
        return base(*args, **options)

    return loss, jnp.asarray(w), (X, y)


@everyday("functools.partialmethod and a static method of a class")
def partial_method(seed):
    A, x = normals(seed, (3, 3), (3,))
    problem = Problem(A)
    return lambda x: problem.sextic(x) + Problem.bump(x), x, ()


class Problem:
    """A problem with one method for each power."""

    def __init__(self, A):
        self.A = A

    def power(self, n, x):
        return jnp.sum((self.A @ x) ** n)

    sextic = functools.partialmethod(power, 6)

    @staticmethod
    def bump(x):
        return jnp.exp(-jnp.sum(x**2))
