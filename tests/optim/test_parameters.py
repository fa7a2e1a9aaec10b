"""Parameters that a wrapper hides, filters or flattens, and states of other leaves."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hotk
from hotk import optim
from tests.counting import compiles
from tests.helpers import close
from tests.optim.optimizers import OPTIMIZERS, START, A, newton, quadratic, slope


@pytest.fixture(autouse=True)
def _promotion():
    """Let optax promote dtypes: its own wrappers do not work without."""
    with jax.numpy_dtype_promotion("standard"):
        yield


# ----- where=


P = {"w": jnp.array([[0.3, -0.7], [1.1, 0.4]]), "b": jnp.array([0.2, -0.5])}
C = jnp.array([0.9, -0.4])


def convex(p, c=C):
    z = p["w"] @ c + p["b"] * p["w"][0]
    return jnp.sum(jnp.cosh(z)) + jnp.sum(p["b"] ** 2) + jnp.sum(p["w"] ** 2)


FILTERS = {
    "a function": lambda a: a.ndim == 1,
    "a tree": {"w": False, "b": True},
}
FACTORIES = {
    "newton": functools.partial(optim.newton, 0.5),
    "newton, line search": optim.newton,
    "newton_cg": functools.partial(optim.newton_cg, 0.5, max_tol=1e-12),
    "newton_cg, line search": functools.partial(optim.newton_cg, max_tol=1e-12),
    "trust_region": optim.trust_region,
    "cubic_newton": optim.cubic_newton,
    "levenberg_marquardt": optim.levenberg_marquardt,
    "natural_gradient": functools.partial(optim.natural_gradient, 0.5, tol=1e-12),
    "sophia": functools.partial(optim.sophia, 0.02, weight_decay=0.1),
    "adahessian": functools.partial(optim.adahessian, 0.1),
}


def two_steps(transform, f, p):
    state = transform.init(p)
    steps = []
    for _ in range(2):
        step, state = transform.update(jax.grad(f)(p), state, p, value_fn=f)
        p = optax.apply_updates(p, step)
        steps.append(step)
    return steps, state


@pytest.mark.thinned(2)
@pytest.mark.parametrize("where", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("name", FACTORIES)
def test_a_filter_equals_the_function_closed_over_the_rest(name, where):
    make = FACTORIES[name]
    closed = lambda part: convex({"w": P["w"], **part})
    expected, state = two_steps(make(), closed, {"b": P["b"]})
    steps, filtered = two_steps(make(where=where), convex, P)
    for step, known in zip(steps, expected, strict=True):
        close(step["b"], np.asarray(known["b"]), rtol=1e-12, atol=1e-14)
        assert not step["w"].any()
    shapes = [[a.shape for a in jax.tree.leaves(tree)] for tree in (filtered, state)]
    assert shapes[0] == shapes[1]


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", FACTORIES)
def test_a_filter_traces_and_compiles_no_more(name):
    make, counts = FACTORIES[name], []
    for transform in (make(), make(where=FILTERS["a tree"])):
        hotk.clear_cache()
        two_steps(transform, convex, P)
        counts.append(hotk.cache_info()[:4])
        with compiles() as counted:
            two_steps(transform, convex, P)
        assert counted() == 0
    assert counts[0] == counts[1]


def test_frozen_leaves_have_no_step_whatever_their_gradient():
    transform = optim.newton_cg(1.0, where={"w": False, "b": True})
    state = transform.init(P)
    g = jax.grad(convex)(P)
    step, _ = transform.update(g, state, P, value_fn=convex)
    assert not step["w"].any()
    with pytest.raises(hotk.DtypeError, match="selects none"):
        optim.newton_cg(1.0, where=lambda a: a.ndim == 3).init(P)
    none, _ = transform.update({**g, "w": None}, state, P, value_fn=convex)
    assert none["w"] is None
    close(none["b"], np.asarray(step["b"]))


def test_a_filter_around_any_transformation():
    """Weight decay and moments of optax see what is selected, and nothing else."""
    inner = optax.chain(optim.newton(1.0), optax.add_decayed_weights(-0.1))
    transform = optim.with_params(inner, where=lambda a: a.ndim == 1)
    step, _ = two_steps(transform, convex, P)
    assert not step[0]["w"].any()
    adam = optim.with_params(optax.adam(0.1), lambda a: a.ndim == 1)
    assert adam.init(P)[0].mu["w"] is None
    steps, _ = two_steps(adam, convex, P)
    assert steps[0]["b"].all()
    assert not steps[0]["w"].any()


def test_numbers_of_modules_are_no_obstacle():
    class Scaled(eqx.Module):
        weight: jax.Array
        shift: jax.Array
        activation: object
        rate: float = 0.5

        def __call__(self, t):
            return self.activation(self.rate * self.weight * t + self.shift)

    model = Scaled(jnp.ones(2), jnp.ones(2), jnp.tanh)
    loss = lambda model: jnp.sum((model(C) - 0.2) ** 2)
    # Gradients of all arrays, frozen ones and all: `init` takes the model as it is.
    tree = eqx.tree_at(lambda m: m.shift, jax.tree.map(lambda _: False, model), True)
    for where in (tree, lambda a: a is model.shift):
        transform = optim.sophia(0.1, where=where)
        g = eqx.filter_grad(loss)(model)
        step, _ = transform.update(g, transform.init(model), model, value_fn=loss)
        moved = eqx.apply_updates(model, step)
        close(moved.weight, np.ones(2))
        assert (moved.shift != 1).all()
        assert moved.rate == 0.5


def test_injected_hyperparameters_and_a_filter():
    make = optax.inject_hyperparams(optim.newton, static_args="where")
    transform = make(learning_rate=0.5, where=lambda a: a.ndim == 1)
    step, _ = two_steps(transform, convex, P)
    assert not step[0]["w"].any()
    wrong = optax.inject_hyperparams(optim.newton)(0.5, where=lambda a: a.ndim == 1)
    with pytest.raises(TypeError, match='static_args="where"'):
        wrong.init(P)


# ----- flatten


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_flatten(name):
    _, factory, expected, _ = OPTIMIZERS[name]
    transform = optim.with_params(optax.flatten(factory(0.5)))
    found, _ = transform.update(
        slope(START), transform.init(START), START, value_fn=quadratic
    )
    tolerance = 1e-6 if name == "cubic_newton" else 1e-10
    close(found, jax.tree.map(np.asarray, expected(0.5)), rtol=tolerance, atol=1e-12)


def test_flatten_in_chains_under_jit_and_of_several_dtypes():
    start = {"w": START["w"].astype(jnp.float32), "b": START["b"]}

    def f(p):
        assert p["w"].dtype == jnp.float32
        return quadratic({"w": p["w"].astype(float), "b": p["b"]})

    inner = optim.newton_cg(1.0, max_tol=1e-9)
    chain = optax.chain(optax.clip(1e9), optax.apply_if_finite(inner, 3))
    transform = optim.with_params(optax.flatten(chain))
    step = jax.jit(
        lambda p, state: transform.update(jax.grad(f)(p), state, p, value_fn=f)[0]
    )
    close(step(start, transform.init(start))["b"], np.asarray(newton(1.0)["b"]))
    g = slope(START)
    inner = optax.flatten(optim.newton_cg(1.0, max_tol=1e-9))
    found, _ = inner.update(
        g, inner.init(START), START, value_fn=quadratic, full_params=START
    )
    close(found, jax.tree.map(np.asarray, newton(1.0)))


def test_flatten_of_an_equinox_model():
    model = eqx.nn.MLP(2, "scalar", 3, 1, key=jax.random.key(0))
    loss = lambda model: (model(C) - 1.0) ** 2
    p, rest = eqx.partition(model, eqx.is_inexact_array)
    g = eqx.filter_grad(loss)(model)
    plain = optim.newton(1.0, damping=1.0)
    expected, _ = plain.update(g, plain.init(p), model, value_fn=loss)
    flat = optax.flatten(plain)
    found, _ = flat.update(g, flat.init(p), p, value_fn=loss, full_params=model)
    close(found, jax.tree.map(np.asarray, expected), rtol=1e-8)
    with pytest.raises(hotk.StructureError, match="not of the numbers"):
        flat.update(g, flat.init(p), p, value_fn=loss, full_params={"a": 1.0})
    del rest


def test_a_filter_around_flatten():
    where = lambda a: a.ndim == 1
    plain, _ = two_steps(optim.newton(1.0, where=where), convex, P)
    flat = optax.flatten(optim.newton(1.0))
    found, _ = two_steps(optim.with_params(flat, where), convex, P)
    close(found, jax.tree.map(np.asarray, plain), rtol=1e-10)
    for inside in (
        optax.flatten(optim.newton(1.0, where=where)),
        optim.with_params(optax.flatten(optim.newton(1.0, where=where))),
    ):
        with pytest.raises(hotk.StructureError, match="Put it around"):
            two_steps(inside, convex, P)


def test_a_transformation_that_needs_no_objective_may_be_masked_or_flattened():
    adam = optim.with_params(optax.adam(0.1))
    for inside in (optax.masked(adam, {"w": True, "b": False}), optax.flatten(adam)):
        steps, _ = two_steps(inside, convex, P)
        assert steps[0]["w"].all()


FUNCTIONS = {
    "a dict": (quadratic, START),
    # the vector is a matrix product, an item, a sum as well: wrong, and no error
    "a tuple": (lambda p: jnp.sum(p[0] ** 2), (jnp.ones(3),)),
    "a matrix": (lambda p: jnp.sum(jnp.sin(C @ p)), jnp.eye(2)),
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("inner", ["alone", "apply_if_finite", "MultiSteps"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_flatten_is_refused_where_it_would_be_wrong(name, inner):
    f, p = FUNCTIONS[name]
    transform = optim.newton_cg(1.0)
    if inner == "apply_if_finite":
        transform = optax.apply_if_finite(transform, 3)
    if inner == "MultiSteps":
        steps = optax.MultiSteps(transform, 1)
        transform = optax.GradientTransformationExtraArgs(steps.init, steps.update)
    transform = optax.flatten(transform)
    with pytest.raises(hotk.StructureError, match=r"with_params\(optax.flatten"):
        transform.update(jax.grad(f)(p), transform.init(p), p, value_fn=f)


@pytest.mark.exhaustive
def test_an_objective_that_runs_an_optimizer_of_vectors_may_be_flattened():
    inner = optim.newton(1.0)

    def f(p):
        x = jnp.zeros(2)
        g = lambda x: jnp.sum((x - p["w"]) ** 2)
        step, _ = inner.update(jax.grad(g)(x), inner.init(x), x, value_fn=g)
        return quadratic({"w": step, "b": p["b"]})

    transform = optim.with_params(optax.flatten(optim.newton_cg(1.0, max_tol=1e-9)))
    found, _ = transform.update(slope(START), transform.init(START), START, value_fn=f)
    close(found, jax.tree.map(np.asarray, newton(1.0)), rtol=1e-6)


# ----- States of other leaves


@pytest.mark.parametrize("make", [optim.sophia, optim.adahessian])
def test_a_state_of_other_leaves_is_refused_by_name(make):
    transform, g = make(0.1), slope(START)
    update = lambda g, init, p=START: transform.update(
        g, transform.init(init), p, value_fn=quadratic
    )
    with pytest.raises(hotk.StructureError, match=r"params\['b'\].*no gradient.*\n.*"):
        update({**g, "b": None}, START)
    with pytest.raises(hotk.StructureError, match=r"params\['b'\].*initialized witho"):
        update(g, {"w": START["w"], "b": None})
    with pytest.raises(hotk.StructureError, match=r"params\['w'\].*another shape"):
        update(g, {**START, "w": jnp.ones(3)})
    with pytest.raises(hotk.StructureError, match="other nodes"):
        transform.update(
            tuple(g[name] for name in START),
            transform.init(list(START.values())),
            tuple(START.values()),
            value_fn=lambda p: quadratic(dict(zip(START, p, strict=True))),
        )
    frozen = make(0.1, where={"w": True, "b": False})
    step, _ = frozen.update(g, frozen.init(START), START, value_fn=quadratic)
    assert step["b"] == 0
    assert step["w"].all()
    assert A["w"].all()


# ----- Keywords


def test_multi_steps_keep_their_keywords():
    transform = optim.with_params(optax.MultiSteps(optim.newton(1.0), 1))
    found, _ = transform.update(
        slope(START), transform.init(START), START, value_fn=quadratic
    )
    close(found, jax.tree.map(np.asarray, newton(1.0)), rtol=1e-6)


def test_an_auxiliary_output_is_taken_off():
    f = lambda p: (quadratic(p), {"statistics": p["w"]})
    transform = optim.newton(1.0)
    state, g = transform.init(START), slope(START)
    with pytest.raises(hotk.OutputError, match=r"lambda p: f\(p\)\[0\]"):
        transform.update(g, state, START, value_fn=f)
    found, _ = transform.update(g, state, START, value_fn=lambda p: f(p)[0])
    close(found, jax.tree.map(np.asarray, newton(1.0)))


@pytest.mark.parametrize("name", [*OPTIMIZERS, "line search", "kfac"])
def test_gradients_of_another_structure_are_refused(name, as_user):
    f, x = lambda x: jnp.sum((x - 1.0) ** 4), jnp.zeros(3)
    more = {"value_fn": f}
    if name == "kfac":
        model, loss = lambda x, a: a @ x, hotk.curvature.SquaredError(jnp.ones(2))
        inputs = jnp.ones((2, 3))
        transform = hotk.optim.kfac(hotk.KFACOperator(model, loss, x, inputs))
        more = {"model_fn": model, "loss_fn": loss, "inputs": inputs}
    elif name == "line search":
        transform = hotk.optim.scale_by_line_search()
    else:
        transform = OPTIMIZERS[name].make()
    g, state = jax.grad(f)(x), transform.init(x)
    for wrong in ({"a": g}, [g], (g,), [[g, g]], g[:, None], g[:2], g[0], 1.0):
        with pytest.raises(hotk.StructureError, match="structure and the shapes"):
            transform.update(wrong, state, x, **more)
