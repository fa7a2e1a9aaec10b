"""Equinox: modules, filtered transformations, layers, static fields."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax import vmap

from tests.everyday.corpus import everyday
from tests.everyday.draws import labels, normals


FREQUENCIES = jnp.arange(1.0, 4.0)


def inexact(model):
    return eqx.partition(model, eqx.is_inexact_array)


@everyday("eqx.nn.MLP split by partition, put together by combine")
def mlp(seed):
    X, y = normals(seed, (6, 3), (6,))
    model = eqx.nn.MLP(3, "scalar", 4, 1, activation=jnp.tanh, key=jr.PRNGKey(seed))
    params, static = inexact(model)

    def loss(params):
        model = eqx.combine(params, static)
        return jnp.mean((vmap(model)(X) - y) ** 2)

    return loss, params, ()


@everyday("a captured eqx.nn.MLP, the input differentiated")
def captured_mlp(seed):
    (x,) = normals(seed, (3,))
    model = eqx.nn.MLP(3, 2, 4, 2, jax.nn.softplus, key=jr.key(seed))
    return lambda x: jnp.sum(model(x) ** 2), x, ()


class Fourier(eqx.Module):
    """A module of the user with static fields, that reads an array of the module."""

    W: jax.Array
    depth: int = eqx.field(static=True)
    activation: Callable = eqx.field(static=True, default=jnp.sin)

    def __call__(self, x):
        for _ in range(self.depth):
            x = self.activation(self.W @ (FREQUENCIES * x))
        return x.sum()


@everyday("a module of the user with static fields and a module's array")
def user_module(seed):
    W, X = normals(seed, (3, 3), (5, 3))
    return lambda m: jnp.mean(vmap(m)(X) ** 2), Fourier(W, depth=2), ()


class Residual(eqx.Module):
    """Layers of Equinox in a module of the user."""

    layers: list
    norm: eqx.nn.LayerNorm
    scale: float = 0.5

    def __init__(self, key):
        k1, k2 = jr.split(key)
        self.layers = [eqx.nn.Linear(4, 4, key=k1), eqx.nn.Linear(4, 4, key=k2)]
        self.norm = eqx.nn.LayerNorm(4)

    def __call__(self, x):
        for layer in self.layers:
            x = x + self.scale * jnp.tanh(layer(self.norm(x)))
        return x


@everyday("residual blocks with LayerNorm, a filter on the trained part")
def residual(seed):
    X, y = normals(seed, (5, 4), (5, 4))
    model = Residual(jr.key(seed))
    spec = jax.tree.map(lambda _: False, model)
    spec = eqx.tree_at(lambda m: m.layers[1], spec, replace=True)
    trained, fixed = eqx.partition(model, spec)

    def loss(trained):
        return jnp.mean((vmap(eqx.combine(trained, fixed))(X) - y) ** 2)

    return loss, trained, ()


@everyday("eqx.filter_vmap made before, in a cell")
def filter_vmap(seed):
    X, y = normals(seed, (6, 3), (6, 2))
    params, static = inexact(eqx.nn.Linear(3, 2, key=jr.key(seed)))
    batched = eqx.filter_vmap(lambda m, x: jnp.tanh(m(x)), in_axes=(None, 0))

    def loss(params):
        return jnp.mean((batched(eqx.combine(params, static), X) - y) ** 2)

    return loss, params, ()


@eqx.filter_jit
def jitted_loss(model, X, y):
    return jnp.mean((vmap(model)(X) - y) ** 2)


@everyday("eqx.filter_jit around the loss of the module")
def filter_jit(seed):
    X, y = normals(seed, (6, 3), (6, 2))
    model = eqx.nn.MLP(3, 2, 3, 1, jnp.tanh, key=jr.key(seed))
    params, static = inexact(model)
    return lambda p: jitted_loss(eqx.combine(p, static), X, y), params, ()


@everyday("eqx.filter_jit made with the closure")
def filter_jit_inside(seed):
    X, y = normals(seed, (6, 3), (6, 2))
    params, static = inexact(eqx.nn.Linear(3, 2, key=jr.key(seed)))

    @eqx.filter_jit
    def loss(params):
        model = eqx.combine(params, static)
        return jnp.mean((jnp.sin(vmap(model)(X)) - y) ** 2)

    return loss, params, ()


@everyday("eqx.nn.Conv1d and pooling in a Sequential with Lambda")
def conv(seed):
    (X,) = normals(seed, (4, 1, 8))
    k1, k2 = jr.split(jr.key(seed))
    model = eqx.nn.Sequential(
        [
            eqx.nn.Conv1d(1, 2, kernel_size=3, key=k1),
            eqx.nn.Lambda(jax.nn.silu),
            eqx.nn.AvgPool1d(2, 2),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(6, 1, key=k2),
        ]
    )
    params, static = inexact(model)
    return lambda p: jnp.mean(vmap(eqx.combine(p, static))(X) ** 2), params, ()


@everyday("eqx.nn.GRUCell by scan over a sequence")
def recurrent(seed):
    (xs,) = normals(seed, (5, 2))
    params, static = inexact(eqx.nn.GRUCell(2, 3, key=jr.key(seed)))

    def loss(params):
        cell = eqx.combine(params, static)
        last, _ = jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(3), xs)
        return jnp.sum(last**2)

    return loss, params, ()


@everyday("an ensemble by filter_vmap over keys, evaluated by eqx.if_array")
def ensemble(seed):
    (X,) = normals(seed, (5, 2))
    make = eqx.filter_vmap(lambda k: eqx.nn.MLP(2, 1, 3, 1, jnp.tanh, key=k))
    params, static = inexact(make(jr.split(jr.key(seed), 3)))

    @eqx.filter_vmap(in_axes=(eqx.if_array(0), None))
    def evaluate(model, x):
        return model(x)

    def loss(params):
        each = lambda x: evaluate(eqx.combine(params, static), x)
        return jnp.var(vmap(each)(X)) + jnp.mean(vmap(each)(X) ** 2)

    return loss, params, ()


@everyday("dropout in inference and training with a captured key")
def dropout(seed):
    (X,) = normals(seed, (6, 4))
    key = jr.key(seed)
    params, static = inexact(eqx.nn.Linear(4, 4, key=key))
    drop = eqx.nn.Dropout(0.5)
    off = eqx.nn.inference_mode(drop)

    def loss(params):
        layer = eqx.combine(params, static)
        keys = jr.split(key, len(X))
        rows = vmap(lambda x, k: drop(jnp.sin(layer(x)), key=k))(X, keys)
        return jnp.mean(rows**2) + jnp.mean(off(vmap(layer)(X)) ** 4)

    return loss, params, ()


@everyday("attention and embedding layers, a token loss with NumPy labels")
def attention(seed):
    tokens = labels(seed, 5, 6)
    k1, k2 = jr.split(jr.key(seed))
    model = (eqx.nn.Embedding(6, 4, key=k1), eqx.nn.MultiheadAttention(2, 4, key=k2))
    params, static = inexact(model)

    def loss(params):
        embed, attend = eqx.combine(params, static)
        h = vmap(embed)(tokens)
        log_p = jax.nn.log_softmax(attend(h, h, h) @ embed.weight.T)
        return -jnp.mean(log_p[jnp.arange(5), tokens])

    return loss, params, ()


@everyday("the bound method of a module as the function")
def method(seed):
    W, x = normals(seed, (3, 3), (3,))
    return Quadratic(W).energy, x, ()


class Quadratic(eqx.Module):
    """An energy as a module."""

    W: jax.Array

    def energy(self, x):
        return jnp.log1p(jnp.sum((self.W @ x) ** 2))
