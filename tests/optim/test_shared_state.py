"""Statistics and keys that a model keeps: the recipes of `docs/optimizers.md` run.

Each model normalizes over the batch and drops out: with the statistics or the key of
another evaluation the objective would not be the function that the gradient is of. The
oracle is the step by JAX's dense Hessian of that function.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import hotk
from tests.helpers import close


X = jax.random.normal(jax.random.key(0), (12, 3))
Y = jnp.sin(X[:, 0])
KEYS = list(jax.random.split(jax.random.key(7), 3))
DAMPING = 8.0


@pytest.fixture(autouse=True)
def _promotion():
    """Let the libraries promote dtypes and ranks: they do not work without."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def transform():
    return hotk.optim.newton_cg(1.0, damping=DAMPING, max_tol=1e-12)


def check(f, before, after):
    """Compare with a damped step of Newton's method by dense matrices."""
    x, tree = ravel_pytree(before)
    value = lambda x: f(tree(x))

    @jax.jit
    def step(x):
        H = jax.hessian(value)(x) + DAMPING * jnp.eye(len(x))
        return jnp.linalg.solve(H, jax.grad(value)(x)), jnp.linalg.eigvalsh(H)[0]

    expected, lowest = step(x)
    assert lowest > 0
    assert jnp.linalg.norm(expected) > 1e-3
    close(ravel_pytree(after)[0], np.asarray(x - expected), rtol=1e-8, atol=1e-9)


@pytest.mark.exhaustive
@pytest.mark.library
def test_flax_linen():
    linen = pytest.importorskip("flax.linen")
    train_state = pytest.importorskip("flax.training.train_state")

    class Model(linen.Module):
        @linen.compact
        def __call__(self, x):
            z = linen.Dense(4, param_dtype=float)(x)
            z = linen.BatchNorm(use_running_average=False, param_dtype=float)(z)
            z = linen.Dropout(0.5, deterministic=False)(linen.tanh(z))
            return linen.Dense(1, param_dtype=float)(z)[:, 0]

    class TrainState(train_state.TrainState):
        batch_stats: object

    model = Model()
    first = model.init({"params": KEYS[0], "dropout": KEYS[0]}, X)
    state = TrainState.create(apply_fn=model.apply, tx=transform(), **first)

    def loss_fn(params, batch_stats, key):
        variables = {"params": params, "batch_stats": batch_stats}
        rngs = {"dropout": key}
        out, updates = model.apply(variables, X, mutable=["batch_stats"], rngs=rngs)
        return jnp.mean((out - Y) ** 2), updates

    @jax.jit
    def train_step(state, key):
        f = lambda params: loss_fn(params, state.batch_stats, key)
        (_, updates), grads = jax.value_and_grad(f, has_aux=True)(state.params)
        return hotk.optim.apply_gradients(
            state,
            grads=grads,
            batch_stats=updates["batch_stats"],
            value_fn=lambda params: f(params)[0],
        )

    for key in KEYS:
        before, state = state, train_step(state, key)
        f = lambda p, s=before, k=key: loss_fn(p, s.batch_stats, k)
        check(lambda p, f=f: f(p)[0], before.params, state.params)
        known = f(before.params)[1]["batch_stats"]
        close(state.batch_stats, jax.tree.map(np.asarray, known))


@pytest.mark.library
# Its statistics have 32 bits, whatever the parameters have.
@pytest.mark.filterwarnings("ignore:scatter inputs:FutureWarning")
@pytest.mark.exhaustive
@pytest.mark.parametrize("by_hand", [False, True], ids=["nnx_step", "update"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_flax_nnx(compiled, by_hand):
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self, rngs):
            made = {"rngs": rngs, "param_dtype": float}
            self.first = nnx.Linear(3, 4, **made)
            self.norm = nnx.BatchNorm(4, **made)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)
            self.second = nnx.Linear(4, 1, **made)

        def __call__(self, x):
            z = self.dropout(nnx.tanh(self.norm(self.first(x))))
            return self.second(z)[:, 0]

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, transform(), wrt=nnx.Param)
    loss_fn = lambda model: jnp.mean((model(X) - Y) ** 2)

    def train_step(model, optimizer):
        if not by_hand:
            hotk.optim.nnx_step(optimizer, model, loss_fn)
            return
        # Before the gradient, which changes statistics and counts of the model.
        graphdef, _, rest = nnx.as_pure(nnx.split(model, nnx.Param, ...))
        grads = nnx.grad(loss_fn)(model)
        value_fn = lambda params: loss_fn(nnx.merge(graphdef, params, rest))
        optimizer.update(model, grads, value_fn=value_fn)

    train_step = nnx.jit(train_step) if compiled else train_step
    for k in range(3):
        graphdef, before, rest = nnx.as_pure(nnx.split(model, nnx.Param, ...))
        train_step(model, optimizer)
        f = lambda p, g=graphdef, r=rest: loss_fn(nnx.merge(g, p, r))
        check(f, before, nnx.as_pure(nnx.state(model, nnx.Param)))
        assert model.dropout.rngs.count[...] == k + 1
        mean = 0.01 * jnp.mean(model_input(before, X), axis=0)
        close(
            model.norm.mean[...] - 0.99 * rest["norm"]["mean"],
            np.asarray(mean, np.float32),
            rtol=1e-5,
            atol=1e-8,
        )


def model_input(p, X):
    return X @ p["first"]["kernel"] + p["first"]["bias"]


class Model(eqx.Module):
    """A model of equinox with statistics and dropout."""

    first: eqx.nn.Linear
    norm: eqx.nn.BatchNorm
    dropout: eqx.nn.Dropout
    second: eqx.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.first = eqx.nn.Linear(3, 4, key=first)
        self.norm = eqx.nn.BatchNorm(4, "batch", mode="batch")
        self.dropout = eqx.nn.Dropout(0.5)
        self.second = eqx.nn.Linear(4, "scalar", key=second)

    def __call__(self, x, state, key):
        z, state = self.norm(self.first(x), state)
        return self.second(self.dropout(jnp.tanh(z), key=key)), state


@pytest.mark.exhaustive
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_equinox(compiled):
    model, state = eqx.nn.make_with_state(Model)(jax.random.key(1))
    optim = transform()
    opt_state = optim.init(eqx.filter(model, eqx.is_inexact_array))

    def compute_loss(model, state, key):
        keys = jax.random.split(key, len(X))
        run = jax.vmap(
            model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None)
        )
        out, state = run(X, state, keys)
        return jnp.mean((out - Y) ** 2), state

    def make_step(model, state, opt_state, key):
        f = lambda model: compute_loss(model, state, key)
        (_, later), grads = eqx.filter_value_and_grad(f, has_aux=True)(model)
        updates, opt_state = optim.update(
            grads, opt_state, model, value_fn=lambda model: f(model)[0]
        )
        return eqx.apply_updates(model, updates), later, opt_state

    make_step = eqx.filter_jit(make_step) if compiled else make_step
    for key in KEYS:
        p, rest = eqx.partition(model, eqx.is_inexact_array)
        f = lambda p, r=rest, s=state, k=key: compute_loss(eqx.combine(p, r), s, k)
        model, state, opt_state = make_step(model, state, opt_state, key)
        check(lambda p, f=f: f(p)[0], p, eqx.filter(model, eqx.is_inexact_array))
        expected = jax.tree.leaves(f(p)[1])
        close(jax.tree.leaves(state), list(map(np.asarray, expected)))


@pytest.mark.exhaustive
def test_keys_in_an_optax_loop():
    """A key for the gradient and the objective, another one for each step."""
    tx = transform()
    p = {"w": jnp.array([0.5, -0.3, 0.2])}
    state = tx.init(p)

    def loss_fn(p, key):
        keep = jax.random.bernoulli(key, 0.5, X.shape)
        return jnp.mean((jnp.where(keep, X, 0.0) @ p["w"] - Y) ** 2)

    hotk.clear_cache()
    for key in KEYS:
        grads = jax.grad(loss_fn)(p, key)
        updates, state = tx.update(grads, state, p, value_fn=loss_fn, key=key)
        later = optax.apply_updates(p, updates)
        check(lambda p, key=key: loss_fn(p, key), p, later)
        p = later
    assert hotk.cache_info().compiles == 1
