"""flax.nnx: modules split and merged, states, modules in closures."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import vmap

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals, numpy_normals


class MLP(nnx.Module):
    """Two layers and a name."""

    def __init__(self, sizes, *, rngs):
        m, hidden, n = sizes
        self.first = nnx.Linear(m, hidden, rngs=rngs)
        self.second = nnx.Linear(hidden, n, rngs=rngs)
        self.name = "mlp"

    def __call__(self, x):
        return self.second(nnx.tanh(self.first(x)))


@everyday("nnx: split, and merge(graphdef, state) inside", library="flax")
def split_and_merge(seed):
    X, y = normals(seed, (6, 3), (6, 2))
    graphdef, state = nnx.split(MLP((3, 4, 2), rngs=nnx.Rngs(seed)))

    def loss(state):
        model = nnx.merge(graphdef, state)
        return jnp.mean((model(X) - y) ** 2)

    return loss, state, ()


@everyday("nnx: parameters apart from the rest by nnx.Param", library="flax")
def filtered(seed):
    X, y = numpy_normals(seed, (6, 3), (6, 2))
    model = nnx.Sequential(
        nnx.Linear(3, 4, rngs=nnx.Rngs(seed)),
        nnx.LayerNorm(4, rngs=nnx.Rngs(seed)),
        nnx.swish,
        nnx.Linear(4, 2, rngs=nnx.Rngs(seed + 1)),
    )
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params):
        out = nnx.merge(graphdef, params, rest)(X)
        return jnp.mean((out - y) ** 2)

    return loss, params, ()


@everyday("nnx: a module in the closure, the input differentiated", library="flax")
def in_a_closure(seed):
    (x,) = normals(seed, (3,))
    model = MLP((3, 4, 2), rngs=nnx.Rngs(seed))
    return lambda x: jnp.sum(model(x) ** 2), x, ()


@everyday("nnx: nnx.state as a pure dict, replaced inside", library="flax")
def pure_state(seed):
    X, y = normals(seed, (6, 3), (6, 2))
    model = MLP((3, 4, 2), rngs=nnx.Rngs(seed))
    graphdef, state = nnx.split(model)
    params = nnx.to_pure_dict(state)

    def loss(params):
        fresh = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(fresh, params)
        return jnp.mean((nnx.merge(graphdef, fresh)(X) - y) ** 2)

    return loss, params, ()


class Energy(nnx.Module):
    """An energy with a parameter and a constant."""

    def __init__(self, W, power=4):
        self.W = nnx.Param(W)
        self.center = nnx.Variable(jnp.ones(W.shape[1]))
        self.power = power

    def energy(self, x):
        return jnp.sum((self.W[...] @ (x - self.center[...])) ** self.power)


@everyday("nnx: the bound method of a module of the user", library="flax")
def bound_method(seed):
    W, x = normals(seed, (3, 3), (3,))
    return Energy(W).energy, x, ()


@everyday("nnx: dropout and batch norm in evaluation, vmap by name", library="flax")
def evaluation(seed):
    (X,) = normals(seed, (5, 3))
    rngs = nnx.Rngs(seed)
    model = nnx.Sequential(
        nnx.Linear(3, 3, rngs=rngs),
        nnx.BatchNorm(3, rngs=rngs),
        nnx.Dropout(0.5, rngs=rngs),
    )
    model.eval()
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(params):
        apply = lambda x: nnx.merge(graphdef, params, rest)(x)
        return jnp.mean(vmap(apply)(X) ** 2)

    return loss, params, ()
