"""What else stands in closures: objects of the standard library, numbers, loggers."""

import argparse
import collections
import datetime
import logging
import pathlib
import re
import string
import types
import uuid
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals


log = logging.getLogger(__name__)
MISSING = object()


def problem(seed):
    return normals(seed, (8, 3), (8,), (3,))


@everyday("SimpleNamespace as configuration")
def simple_namespace(seed):
    X, y, w = problem(seed)
    config = types.SimpleNamespace(penalty=0.1, power=2, name="run")
    fit = lambda w: jnp.mean((X @ w - y) ** config.power)
    return lambda w: fit(w) + config.penalty * jnp.sum(w**4), w, ()


@everyday("argparse's options as configuration")
def parsed(seed):
    X, y, w = problem(seed)
    parser = argparse.ArgumentParser()
    parser.add_argument("--penalty", type=float, default=0.1)
    parser.add_argument("--activation", default="tanh")
    options = parser.parse_args(["--penalty", "0.2"])

    def loss(w):
        predicted = getattr(jnp, options.activation)(X @ w)
        return jnp.mean((predicted - y) ** 2) + options.penalty * jnp.sum(w**2)

    return loss, w, ()


@everyday(
    "a Trainer-like namespace that is not read",
    slow="its code may read the date, which is new each time: print another object's",
)
def not_read(seed):
    X, y, w = problem(seed)
    state = types.SimpleNamespace(
        started=datetime.datetime(2025, 1, seed % 28 + 1),
        folder=pathlib.Path("runs") / "a",
        pattern=re.compile(r"\d+"),
        identity=uuid.UUID(int=7),
    )

    def loss(w, verbose=False):
        if verbose:
            print(state.started, state.folder, state.pattern, state.identity)
        return jnp.mean(jnp.cos(X @ w - y))

    return loss, w, ()


@everyday("a pattern that picks parameters by name")
def by_pattern(seed):
    X, y, w = problem(seed)
    decayed = re.compile(r"w\d*$")

    def loss(params):
        penalty = sum(jnp.sum(p**4) for k, p in params.items() if decayed.match(k))
        return jnp.mean((X @ params["w"] + params["b"] - y) ** 2) + penalty

    return loss, {"w": w, "b": w[0]}, ()


@everyday("a Path, a date and a Template captured")
def irrelevant(seed):
    X, y, w = problem(seed)
    folder = pathlib.Path("out") / "figures"
    day = datetime.date(2024, 5, 17)
    title = string.Template("loss on $day")

    def loss(w):
        with jax.named_scope(title.substitute(day=day.year)):
            rate = 0.1 if folder.name == "figures" else 1.0
            return jnp.mean((X @ w - y) ** 2) + rate * jnp.sum(w**4)

    return loss, w, ()


@everyday("defaultdict, Counter and OrderedDict as configuration")
def mappings(seed):
    X, y, w = problem(seed)
    weights: defaultdict[str, float] = defaultdict(lambda: 1.0)
    weights["fit"] = 2.0
    powers = Counter({"fit": 2, "decay": 4})
    terms = OrderedDict(fit=lambda w: X @ w - y, decay=lambda w: w)

    def loss(w):
        return sum(
            weights.get(name, 1.0) * jnp.mean(term(w) ** powers[name])
            for name, term in terms.items()
        )

    return loss, w, ()


@everyday("a deque of layers, a ChainMap of options")
def deque_and_chain(seed):
    X, y, w = problem(seed)
    layers = deque([jnp.sin, jnp.tanh], maxlen=4)
    options = ChainMap({"power": 4}, {"power": 2, "scale": 0.5})

    def loss(w):
        out = X @ w
        for layer in layers:
            out = layer(out)
        return options["scale"] * jnp.mean((out - y) ** options["power"])

    return loss, w, ()


@everyday("a read-only view of a dict")
def proxy(seed):
    X, y, w = problem(seed)
    options = types.MappingProxyType({"power": 4, "scale": 0.5})
    return lambda w: options["scale"] * jnp.mean((X @ w - y) ** options["power"]), w, ()


@everyday("a module's logger, asked before it is used")
def logger_in_a_global(seed):
    X, y, w = problem(seed)

    def loss(w):
        value = jnp.mean((X @ w - y) ** 4)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("traced with %s", w.shape)
        return value

    return loss, w, ()


@everyday("an object with a logger of its own")
def logger_in_an_object(seed):
    X, y, w = problem(seed)
    return Fit(X, y).loss, w, ()


class Fit:
    """A fit that may log."""

    def __init__(self, X, y):
        self.X, self.y = X, y
        self.logger = logging.getLogger(type(self).__name__)

    def loss(self, w):
        return jnp.mean((self.X @ w - self.y) ** 4)

    def report(self, w):
        self.logger.info("loss %s", self.loss(w))


@everyday("a sentinel made by object() as default")
def sentinel(seed):
    X, y, w = problem(seed)

    def loss(w, target=MISSING):
        target = y if target is MISSING else target
        return jnp.mean((X @ w - target) ** 4)

    return loss, w, ()


@everyday("Decimal, Fraction and complex numbers captured")
def numbers(seed):
    X, y, w = problem(seed)
    rate, ratio, phase = Decimal("0.1"), Fraction(1, 3), 1 + 2j

    def loss(w):
        scale = float(rate) + float(ratio) + abs(phase)
        return scale * jnp.mean((X @ w - y) ** 4)

    return loss, w, ()


@everyday("an f-string and a format of captured numbers")
def text(seed):
    X, y, w = problem(seed)
    precision, which = 3, "sin"

    def loss(w):
        name = f"arc{which}h" if precision > 4 else f"{which}"
        assert w.ndim == 1, f"one row of parameters, not {w.shape}"
        return jnp.mean((getattr(jnp, name)(X @ w) - y) ** 2)

    return loss, w, ()


@everyday("dtypes, slices, ranges and Ellipsis captured")
def indices(seed):
    X, y, w = problem(seed)
    dtype, rows, every, order = jnp.float32, slice(1, 6), ..., range(2, 4)

    def loss(w):
        r = (X[rows, every] @ w - y[rows]).astype(dtype)
        return sum(jnp.mean(r**k) for k in order)

    return loss, w, ()


@everyday("a namedtuple of functions, made by collections")
def namedtuple_of_functions(seed):
    X, y, w = problem(seed)
    model = Transformed(init=lambda key: key, apply=lambda w, X: jnp.tanh(X @ w))
    return lambda w: jnp.mean((model.apply(w, X) - y) ** 2), w, ()


Transformed = collections.namedtuple("Transformed", ["init", "apply"])


@everyday("a nested dict of settings with arrays in it")
def settings_with_arrays(seed):
    X, y, w = problem(seed)
    settings: dict[str, Any] = {
        "data": {"X": X, "y": y},
        "model": {"activation": "tanh", "sizes": [3, 1], "bias": None},
        "seeds": {seed % 1},
    }

    def loss(w):
        data, model = settings["data"], settings["model"]
        out = getattr(jnp, model["activation"])(data["X"] @ w)
        return jnp.mean((out - data["y"]) ** 2)

    return loss, w, ()


@everyday("a named scope and a device captured")
def device(seed):
    X, y, w = problem(seed)
    here = jax.devices()[0]
    scope = jax.named_scope("fit")

    def loss(w):
        with scope:
            rate = 0.5 if here.platform == "cpu" else 1.0
            return rate * jnp.mean((X @ w - y) ** 4)

    return loss, w, ()
