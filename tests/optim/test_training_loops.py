"""Loops of libraries: run, learn, compile nothing after the second step, and are right.

The oracle is the same step on a plain dict of the arrays (`plain_loops`), and for that
one the dense matrices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hotk
from hotk.linop import space
from tests.counting import compiles
from tests.helpers import close
from tests.optim.plain_loops import BATCHES, METHODS, network
from tests.optim.training_loops import LOOPS, dict_outputs, start


@pytest.fixture(autouse=True)
def _promotion():
    """Let the libraries promote dtypes and ranks: they do not work without."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def loops():
    for name, loop in LOOPS.items():
        marks = [pytest.mark.library] if loop.library else []
        yield pytest.param(loop, id=name, marks=marks)


def as_dict(loop, params):
    leaves = [a for a in jax.tree.leaves(params) if hasattr(a, "dtype")]
    return {str(i): a for i, a in enumerate(leaves)}


def loss_of_all(method, loop, p):
    X, y = (jnp.concatenate(a) for a in zip(*BATCHES, strict=True))
    return float(method.loss(network(loop.names, p, X), y)) / len(X)


@pytest.mark.thinned(1, "name")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("loop", list(loops()))
def test_a_loop_learns_compiles_nothing_and_equals_a_plain_dict(loop, name, compiled):
    method = METHODS[name]
    steps = loop.run(method, compiled)
    found = [next(steps) for _ in range(3)]
    traced = hotk.cache_info().traces
    with compiles() as counted:
        found.append(next(steps))
    found.append(next(steps))  # restored before this one
    with compiles() as counted_later:
        found += list(steps)
    if compiled or not loop.compiles:
        assert (counted(), counted_later()) == (0, 0)
    assert hotk.cache_info().traces == traced
    first, *found = [as_dict(loop, params) for params in found]
    known = loop.expected(method, loop.names, first)
    for got, wanted in zip(found, known, strict=True):
        close(got, wanted, rtol=1e-8, atol=1e-9)
    assert loss_of_all(method, loop, found[-1]) < loss_of_all(method, loop, first)


# ----- The step on a plain dict is the one of the dense matrices


def softmax_curvature(z):
    """Return the Hessian of the mean cross-entropy in the outputs, dense."""
    p = jax.nn.softmax(z)
    blocks = jnp.einsum("ni,ij->nij", p, jnp.eye(p.shape[1]))
    blocks = (blocks - jnp.einsum("ni,nj->nij", p, p)) / len(p)
    return jax.scipy.linalg.block_diag(*blocks)


def by_hand(name, x, outputs, value, y):
    """Return the first step from a vector, with the numbers of `METHODS`."""
    g, H, eye = jax.grad(value)(x), jax.hessian(value)(x), jnp.eye(len(x))
    J = jax.jacobian(lambda x: outputs(x).ravel())(x)
    if name == "newton_cg":
        return -jnp.linalg.solve(H + 0.5 * eye, g)
    if name == "natural_gradient":
        F = J.T @ softmax_curvature(outputs(x)) @ J
        return -jnp.linalg.solve(F + 0.3 * eye, g)
    if name == "levenberg_marquardt":
        G = J.T @ J
        damping = 0.1 * jnp.linalg.norm(G @ g) / jnp.linalg.norm(g)
        return -jnp.linalg.solve(G + damping * eye, g)
    key, _ = jax.random.split(jax.random.key(0))
    like = jax.tree.leaves(start())  # signs are drawn for leaves, in their order
    u = jnp.concatenate([a.ravel() for a in space.random(key, like, signs=True)])
    D = u * (H @ u)
    if name == "adahessian":
        return -0.1 * g / (jnp.abs(D) + 1e-8)
    mean, curvature = (1 - 0.965) * g, 0.01 * (1 - 0.99) * D
    return -0.05 * jnp.clip(mean / jnp.maximum(curvature, 1e-12), -1, 1)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", METHODS)
def test_the_first_step_by_hand(name):
    method, (X, y) = METHODS[name], BATCHES[0]
    x, tree = ravel_pytree(start())
    outputs = lambda x: dict_outputs(tree(x), X)
    value = lambda x: method.loss(outputs(x), y)
    steps = LOOPS["optax"].run(method, True)
    first, second = (ravel_pytree(next(steps))[0] for _ in range(2))
    expected = jax.jit(lambda x: by_hand(name, x, outputs, value, y))(x)
    close(second - first, np.asarray(expected), rtol=1e-8, atol=1e-10)


# ----- What a loop does not hand on


@pytest.mark.library
def test_a_train_state_without_the_objective_says_which_call_to_write():
    train_state = pytest.importorskip("flax.training.train_state")
    tx = hotk.optim.newton_cg(1.0)
    make = train_state.TrainState.create
    state = make(apply_fn=None, params=start(), tx=tx)
    with pytest.raises(TypeError, match=r"hotk\.optim\.apply_gradients\(state"):
        state.apply_gradients(grads=start())
    f = lambda p: sum(jnp.sum(a**2) for a in jax.tree.leaves(p))
    moved = hotk.optim.apply_gradients(
        state, grads=jax.grad(f)(start()), value_fn=f, apply_fn=f
    )
    assert (moved.step, moved.tx, moved.apply_fn) == (1, tx, f)
    close(moved.params, jax.tree.map(lambda a: np.zeros(a.shape), start()), atol=1e-6)


@pytest.mark.library
def test_an_objective_of_the_model_says_what_to_write_for_nnx():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, hotk.optim.newton_cg(1.0), wrt=nnx.Param)
    loss = lambda model: jnp.sum(model(jnp.ones((1, 2))) ** 2)
    with pytest.raises(TypeError, match="not callable") as caught:
        optimizer.update(model, nnx.grad(loss)(model), value_fn=loss)
    note = "".join(caught.value.__notes__)
    assert "nnx_step(optimizer, model, value_fn)" in note
    assert "nnx.merge(graphdef, p, rest)" in note
    with pytest.raises(TypeError, match=r"nnx_step\(optimizer, model, f\)"):
        optimizer.update(model, nnx.grad(loss)(model))
