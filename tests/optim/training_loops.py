"""Training loops as the libraries' own pages write them, with a second-order step.

Each is a generator: it yields its parameters before the first step and after each one.
What differs from the loop with `optax.adam` is the call of the update, marked "here".
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest

import hotk
from tests.optim import plain_loops
from tests.optim.plain_loops import (
    BATCHES,
    CLASSES,
    CLIP,
    DECAY,
    HIDDEN,
    PLAIN,
    schedule,
)


# ----- optax


def start():
    key = jax.random.key(0)
    normal = lambda i, shape: jax.random.normal(jax.random.fold_in(key, i), shape)
    return {
        "w1": normal(1, (16, HIDDEN)) / 4,
        "b1": jnp.zeros(HIDDEN),
        "w2": normal(2, (HIDDEN, CLASSES)) / 2,
        "b2": jnp.zeros(CLASSES),
    }


DICT = ("b1", "b2", "w1", "w2")


def dict_outputs(params, X):
    hidden = jnp.tanh(X @ params["w1"] + params["b1"][None])
    return hidden @ params["w2"] + params["b2"][None]


def optax_loop(method, compiled, tx=None, restored=None):
    params, tx = start(), method.make(method.rate) if tx is None else tx
    opt_state = tx.init(params)

    def train_step(params, opt_state, X, y):
        loss_fn = lambda params: method.loss(dict_outputs(params, X), y)
        loss, grads = jax.value_and_grad(loss_fn)(params)
        keywords = method.keywords(lambda p: dict_outputs(p, X), y)
        updates, opt_state = tx.update(grads, opt_state, params, **keywords)  # here
        return optax.apply_updates(params, updates), opt_state, loss

    train_step = jax.jit(train_step) if compiled else train_step
    yield params
    for k, (X, y) in enumerate(BATCHES):
        params, opt_state, _ = train_step(params, opt_state, X, y)
        yield params
        if restored is not None and k == 2:
            params, opt_state = restored((params, opt_state))


# ----- equinox


class Network(eqx.Module):
    """Two layers, as a user writes them."""

    layers: list
    activation: Callable

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.layers = [
            eqx.nn.Linear(16, HIDDEN, key=first),
            eqx.nn.Linear(HIDDEN, CLASSES, key=second),
        ]
        self.activation = jnp.tanh

    def __call__(self, x):
        return self.layers[1](self.activation(self.layers[0](x)))


EQUINOX = ("w1.T", "b1", "w2.T", "b2")


def equinox_loop(method, compiled, saved=False):
    model, optim = Network(jax.random.key(1)), method.make(method.rate)
    opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))

    def make_step(model, opt_state, X, y):
        loss = lambda model: method.loss(jax.vmap(model)(X), y)
        _, grads = eqx.filter_value_and_grad(loss)(model)
        keywords = method.keywords(lambda model: jax.vmap(model)(X), y)
        updates, opt_state = optim.update(grads, opt_state, model, **keywords)  # here
        return eqx.apply_updates(model, updates), opt_state

    make_step = eqx.filter_jit(make_step) if compiled else make_step
    yield model
    for k, (X, y) in enumerate(BATCHES):
        model, opt_state = make_step(model, opt_state, X, y)
        yield model
        if saved and k == 2:
            model, opt_state = _serialised((model, opt_state), Network, optim)


def _serialised(trained, make, optim):
    """Save, and load into what another process would make."""
    model = make(jax.random.key(9))
    fresh = model, optim.init(eqx.filter(model, eqx.is_inexact_array))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trained.eqx"
        eqx.tree_serialise_leaves(path, trained)
        return eqx.tree_deserialise_leaves(path, fresh)


def equinox_filtered_loop(method, compiled):
    """The loop of equinox's pages, that hands on `eqx.filter(model, eqx.is_array)`."""
    model, optim = Network(jax.random.key(1)), method.make(method.rate)
    opt_state = optim.init(eqx.filter(model, eqx.is_array))

    def make_step(model, opt_state, X, y):
        loss = lambda model: method.loss(jax.vmap(model)(X), y)
        _, grads = eqx.filter_value_and_grad(loss)(model)
        keywords = method.keywords(lambda model: jax.vmap(model)(X), y)
        params = eqx.filter(model, eqx.is_array)
        updates, opt_state = optim.update(
            grads, opt_state, params, full_params=model, **keywords
        )  # here
        return eqx.apply_updates(model, updates), opt_state

    make_step = eqx.filter_jit(make_step) if compiled else make_step
    yield model
    for X, y in BATCHES:
        model, opt_state = make_step(model, opt_state, X, y)
        yield model


# ----- flax and haiku


def linen_loop(method, compiled):
    linen = pytest.importorskip("flax.linen")
    train_state = pytest.importorskip("flax.training.train_state")

    class MLP(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.tanh(linen.Dense(HIDDEN, param_dtype=float)(x))
            return linen.Dense(CLASSES, param_dtype=float)(x)

    model = MLP()
    params = model.init(jax.random.key(2), BATCHES[0][0])["params"]
    state = train_state.TrainState.create(
        apply_fn=model.apply, params=params, tx=method.make(method.rate)
    )

    def train_step(state, X, y):
        outputs = lambda params: state.apply_fn({"params": params}, X)
        grads = jax.grad(lambda params: method.loss(outputs(params), y))(state.params)
        keywords = method.keywords(outputs, y)
        return hotk.optim.apply_gradients(state, grads=grads, **keywords)  # here

    train_step = jax.jit(train_step) if compiled else train_step
    yield state.params
    for X, y in BATCHES:
        state = train_step(state, X, y)
        yield state.params


def nnx_loop(method, compiled, of_modules=False):
    nnx = pytest.importorskip("flax.nnx")

    class MLP(nnx.Module):
        def __init__(self, rngs):
            made = {"rngs": rngs, "param_dtype": float}
            self.first = nnx.Linear(16, HIDDEN, **made)
            self.second = nnx.Linear(HIDDEN, CLASSES, **made)

        def __call__(self, x):
            return self.second(nnx.tanh(self.first(x)))

    model = MLP(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, method.make(method.rate), wrt=nnx.Param)

    def train_step(model, optimizer, X, y):
        graphdef, _, rest = nnx.as_pure(nnx.split(model, nnx.Param, ...))  # here
        grads = nnx.grad(lambda model: method.loss(model(X), y))(model)
        outputs = lambda p: nnx.merge(graphdef, p, rest)(X)
        optimizer.update(model, grads, **method.keywords(outputs, y))  # and here

    def step_of_modules(model, optimizer, X, y):
        keywords = method.keywords(lambda model: model(X), y)
        keywords = {"value_fn": lambda model: method.loss(model(X), y), **keywords}
        hotk.optim.nnx_step(optimizer, model, **keywords)

    train_step = step_of_modules if of_modules else train_step
    train_step = nnx.jit(train_step) if compiled else train_step
    params = lambda: nnx.as_pure(nnx.state(model, nnx.Param))
    yield params()
    for X, y in BATCHES:
        train_step(model, optimizer, X, y)
        yield params()


FLAX = ("b1", "w1", "b2", "w2")


def haiku_loop(method, compiled):
    haiku = pytest.importorskip("haiku")

    def net_fn(X):
        layers = [haiku.Linear(HIDDEN), jnp.tanh, haiku.Linear(CLASSES)]
        return haiku.Sequential(layers)(X)

    network = haiku.without_apply_rng(haiku.transform(net_fn))
    params = network.init(jax.random.key(3), BATCHES[0][0])
    optimiser = method.make(method.rate)
    opt_state = optimiser.init(params)

    def update(params, opt_state, X, y):
        outputs = lambda params: network.apply(params, X)
        grads = jax.grad(lambda params: method.loss(outputs(params), y))(params)
        updates, opt_state = optimiser.update(
            grads, opt_state, params, **method.keywords(outputs, y)
        )  # here
        return optax.apply_updates(params, updates), opt_state

    update = jax.jit(update) if compiled else update
    yield params
    for X, y in BATCHES:
        params, opt_state = update(params, opt_state, X, y)
        yield params


# ----- Wrappers of optax around the first loop


def accumulating(method):
    return optax.MultiSteps(method.make(method.rate), 2, accumulator_dtype=float)


def chain(method):
    return optax.chain(
        optax.clip_by_global_norm(CLIP),
        method.direction(),
        optax.add_decayed_weights(DECAY),
        optax.scale_by_learning_rate(schedule(method.rate)),
    )


def injecting(method):
    return optax.inject_hyperparams(method.make)(learning_rate=schedule(method.rate))


def scheduled(method):
    return method.make(schedule(method.rate))


def finite_only(method):
    return optax.apply_if_finite(method.make(method.rate), 3)


WEIGHTS = {"w1": True, "w2": True, "b1": False, "b2": False}


def masked(method):
    """As the pages of optax freeze: what the mask leaves out is set to zero."""
    frozen = {k: not yes for k, yes in WEIGHTS.items()}
    return optax.chain(
        hotk.optim.with_params(optax.masked(method.make(method.rate), WEIGHTS)),
        optax.masked(optax.set_to_zero(), frozen),
    )


def filtered(method):
    return method.make(method.rate, where=lambda a: a.ndim == 2)


def partitioned(method):
    parts = {True: method.make(method.rate), False: optax.sgd(PLAIN)}
    return hotk.optim.with_params(optax.multi_transform(parts, WEIGHTS))


def flattened(method):
    return hotk.optim.with_params(optax.flatten(method.make(method.rate)))


# ----- Saved and restored in the middle


def orbax_loop(method, compiled):
    ocp = pytest.importorskip("orbax.checkpoint")
    tx = method.make(method.rate)

    def restored(trained):
        fresh = start()
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, (fresh, tx.init(fresh)))
        with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as c:
            path = Path(folder) / "trained"
            c.save(path, trained)
            c.wait_until_finished()
            return tuple(c.restore(path, like))

    yield from optax_loop(method, compiled, tx, restored)


# ----- All of them


class Loop(NamedTuple):
    """A loop, and what it should do.

    Attributes:
        run: `run(method, compiled)`, the loop, its step compiled as a whole or not.
        names: Its arrays, in the order of its leaves; `.T` if they are transposed.
        expected: The same on a plain dict, from `plain_loops`.
        library: The library it needs.
        compiles: Whether a step compiles each time if it is not compiled as a whole.
    """

    run: Callable[..., Any]
    names: tuple[str, ...]
    expected: Callable[..., Any] = plain_loops.as_it_is
    library: str = ""
    compiles: bool = False


def _wrapped(wrapper, expected, **more):
    run = lambda method, compiled: optax_loop(method, compiled, wrapper(method))
    return Loop(run, DICT, expected, **more)


LOOPS = {
    "optax": Loop(optax_loop, DICT),
    "equinox": Loop(equinox_loop, EQUINOX),
    "equinox, parameters filtered": Loop(equinox_filtered_loop, EQUINOX),
    # The objective captures a `TrainState`, whose `step` is a number of Python.
    "flax linen": Loop(linen_loop, FLAX, library="flax"),
    "flax nnx": Loop(nnx_loop, FLAX, library="flax"),
    "flax nnx, nnx_step": Loop(
        partial(nnx_loop, of_modules=True), FLAX, library="flax"
    ),
    "haiku": Loop(haiku_loop, FLAX, library="haiku"),
    # `lax.cond` of functions that are new each time
    "MultiSteps": _wrapped(accumulating, plain_loops.accumulated, compiles=True),
    "apply_if_finite": _wrapped(finite_only, plain_loops.as_it_is, compiles=True),
    # one program (tests/optim/test_start.py), but with a model as a keyword
    "MultiSteps in with_params": _wrapped(
        lambda method: hotk.optim.with_params(accumulating(method)),
        plain_loops.accumulated,
        compiles=True,
    ),
    "apply_if_finite in with_params": _wrapped(
        lambda method: hotk.optim.with_params(finite_only(method)),
        plain_loops.as_it_is,
        compiles=True,
    ),
    "chain": _wrapped(chain, plain_loops.chained),
    "inject_hyperparams": _wrapped(injecting, plain_loops.injected),
    "schedule": _wrapped(scheduled, plain_loops.injected),
    "masked": _wrapped(masked, plain_loops.only_weights),
    "where": _wrapped(filtered, plain_loops.only_weights),
    "multi_transform": _wrapped(partitioned, plain_loops.weights_and_biases),
    "flatten": _wrapped(flattened, plain_loops.one_vector),
    "saved by equinox": Loop(partial(equinox_loop, saved=True), EQUINOX),
    "saved by orbax": Loop(orbax_loop, DICT, library="orbax"),
}
