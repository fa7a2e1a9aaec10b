"""Every optimizer in every wrapper of optax, eager and jitted, on a quadratic."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hotk
from tests.counting import compiles
from tests.helpers import close
from tests.optim.optimizers import OPTIMIZERS, START, A, newton, quadratic, slope


@pytest.fixture(autouse=True)
def _promotion():
    """Let optax promote dtypes: its own wrappers do not work without."""
    with jax.numpy_dtype_promotion("standard"):
        yield


def injected(factory):
    return optax.inject_hyperparams(factory)(learning_rate=0.5)


def in_parts(factory):
    labels = {"w": "first", "b": "second"}
    parts = {"first": factory(0.5), "second": factory(0.5)}
    return hotk.optim.with_params(optax.partition(parts, labels))


WRAPPERS = {
    "alone": lambda factory: factory(0.5),
    "chain": lambda factory: optax.chain(
        optax.clip(1e9), factory(1.0), optax.scale(0.5)
    ),
    "named_chain": lambda factory: optax.named_chain(
        ("clip", optax.clip_by_global_norm(1e9)), ("step", factory(0.5))
    ),
    "masked": lambda factory: hotk.optim.with_params(
        optax.masked(factory(0.5), {"w": True, "b": True})
    ),
    "partition": in_parts,
    "MultiSteps": lambda factory: optax.MultiSteps(factory(0.5), 1),
    "inject_hyperparams": injected,
    "apply_if_finite": lambda factory: optax.apply_if_finite(factory(0.5), 3),
    "schedule": lambda factory: factory(optax.constant_schedule(0.5)),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_step_on_a_quadratic(name, wrapper, jitted):
    _, factory, expected, _ = OPTIMIZERS[name]
    transform = WRAPPERS[wrapper](factory)

    def update(p, state):
        return transform.update(slope(p), state, p, value_fn=quadratic)

    update = jax.jit(update) if jitted else update
    state = transform.init(START)
    found, state = update(START, state)
    tolerance = 1e-6 if name == "cubic_newton" else 1e-10
    close(found, jax.tree.map(np.asarray, expected(0.5)), rtol=tolerance, atol=1e-12)
    update(optax.apply_updates(START, found), state)
    if jitted:
        assert update._cache_size() == 1


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fresh_objective_is_not_compiled_again(name):
    transform = OPTIMIZERS[name].exact(0.5)
    p, state = START, transform.init(START)

    def step(p, state, batch):
        f = lambda p: quadratic(p, batch)
        updates, state = transform.update(slope(p), state, p, value_fn=f)
        return optax.apply_updates(p, updates), state

    for k in range(2):
        p, state = step(p, state, jnp.asarray(float(k)))
    with compiles() as counted:
        for k in range(3):
            p, state = step(p, state, jnp.asarray(2.0 + k))
    assert counted() == 0


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_hyperparameters_are_not_compiled(name):
    factory = OPTIMIZERS[name].exact
    results = []
    for rate in (0.5, 0.25, 0.125):
        transform = factory(rate)
        with compiles() as counted:
            found, _ = transform.update(
                slope(START), transform.init(START), START, value_fn=quadratic
            )
        results.append(found["w"])
    assert counted() == 0
    close(results[1], np.asarray(results[0] / 2), rtol=1e-9)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_in_a_scan_and_in_low_precision(name):
    transform = OPTIMIZERS[name].exact(0.5)
    start = jax.tree.map(lambda a: a.astype(jnp.bfloat16), START)

    def value(p):
        return quadratic(jax.tree.map(lambda a: a.astype(jnp.float32), p))

    def step(carry, _):
        p, state = carry
        y, g = jax.value_and_grad(value)(p)
        updates, state = transform.update(g, state, p, obj_fn=value)
        return (optax.apply_updates(p, updates), state), y

    (p, _), values = jax.lax.scan(step, (start, transform.init(start)), length=6)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(p)} == {"bfloat16"}
    assert values[-1] < values[0]


def test_only_some_parameters():
    plain = {"second": optax.sgd(0.1), "first": hotk.optim.newton_cg(1.0, max_tol=1e-9)}
    transform = optax.partition(plain, {"w": "first", "b": "second"})
    f = lambda p: quadratic(p) + 0.0 * p["b"]
    state = transform.init(START)
    with pytest.raises(hotk.StructureError, match="with_params"):
        transform.update(slope(START), state, START, value_fn=f)
    whole = hotk.optim.with_params(transform)
    for found, _ in (
        whole.update(slope(START), state, START, value_fn=f),
        transform.update(slope(START), state, START, value_fn=f, full_params=START),
    ):
        close(found["w"], np.asarray(-slope(START)["w"] / A["w"]))
        close(found["b"], np.asarray(-0.1 * slope(START)["b"]))


def test_keywords_of_the_objective_and_none():
    transform = hotk.optim.newton_cg(1.0, max_tol=1e-9)
    f = lambda p, scale, *, shift: scale * quadratic(p, shift)
    state = transform.init(START)
    g = jax.tree.map(lambda a: 3 * a, slope(START))
    found, _ = transform.update(
        g, state, START, value_fn=f, scale=3.0, shift=1.0, loss=7.0
    )
    close(found, jax.tree.map(np.asarray, newton(1.0)))
    with pytest.raises(TypeError, match="value_fn"):
        transform.update(g, state, START)
    with pytest.raises(TypeError, match="params"):
        transform.update(g, state, value_fn=f)


def test_accumulated_gradients_make_the_step_of_their_mean():
    transform = optax.MultiSteps(hotk.optim.newton(1.0), 2)
    state = transform.init(START)
    g = slope(START)
    first, state = transform.update(g, state, START, value_fn=quadratic)
    close(first, jax.tree.map(lambda a: np.zeros(a.shape), START))
    second, _ = transform.update(
        jax.tree.map(jnp.zeros_like, g), state, START, value_fn=quadratic
    )
    close(second, jax.tree.map(np.asarray, newton(0.5)))


# ----- `apply_gradients`


@dataclasses.dataclass
class State:
    """As a `TrainState` of flax."""

    params: jax.Array
    opt_state: Any
    tx: optax.GradientTransformation
    count: int = 0

    def replace(self, **fields):
        return dataclasses.replace(self, **fields)

    def apply_gradients(self, *, grads, **fields):
        step, after = self.tx.update(grads, self.opt_state, self.params)
        moved = optax.apply_updates(self.params, step)
        return self.replace(params=moved, opt_state=after, **fields)


def applied(**keywords):
    p, transform = jnp.zeros(2), hotk.optim.newton_cg(1.0)
    state = State(p, transform.init(p), transform)
    grads = -2 * jnp.ones(2)
    return hotk.optim.apply_gradients(state, grads=grads, **keywords)


def squares(p, shift=1.0):
    return jnp.sum((p - shift) ** 2)


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"shift": 1.0},  # of the objective
        {"count": 3},  # a field
        {"scale": jnp.ones(2)},  # perhaps of a transformation of the user
    ],
    ids=["none", "of the objective", "a field", "a number"],
)
def test_keywords_that_somebody_takes_pass(keywords):
    state = applied(value_fn=squares, **keywords)
    np.testing.assert_allclose(state.params, np.ones(2), rtol=1e-6)
    assert state.count == keywords.get("count", 0)


@pytest.mark.parametrize(
    ("keywords", "fix"),
    [
        ({"value_fun": squares}, "Write `value_fn=`."),
        ({"model_fun": squares}, "Write `model_fn=`."),
        ({"valuefn": 1.0}, "Write `value_fn=`."),
        ({"objective": squares}, "The objective is `value_fn=`."),
    ],
    ids=["value_fun", "model_fun", "no function", "another name"],
)
def test_keywords_that_nobody_takes_are_errors(keywords, fix):
    [name] = keywords
    with pytest.raises(TypeError) as error:
        applied(value_fn=squares, **keywords)
    assert f"no update takes the keyword `{name}`" in str(error.value)
    assert str(error.value).endswith(fix)
