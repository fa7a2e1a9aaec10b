"""`nnx_step`, and K-FAC of a module, against least squares and the loops of flax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hotk
from tests.helpers import close


nnx = pytest.importorskip("flax.nnx")
pytestmark = pytest.mark.library

RNG = np.random.default_rng(4)
X = jnp.array(RNG.normal(size=(9, 3)))
Y = jnp.array(RNG.normal(size=(9, 2)))
LOSS = hotk.curvature.SquaredError(Y)


@pytest.fixture(autouse=True)
def _promotion():
    """Let the libraries promote dtypes and ranks: they do not work without."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Model(nnx.Module):
    """A linear model, with a part that holds its layer and one that has none."""

    def __init__(self, columns=3):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([nnx.Linear(columns, 2, rngs=rngs, param_dtype=float)])
        self.dropout = nnx.Dropout(0.0, rngs=rngs)

    def __call__(self, x):
        return self.dropout(self.layers[0](x))


def least_squares():
    columns = np.concatenate([X, np.ones((9, 1))], axis=1)
    return np.linalg.lstsq(columns, np.asarray(Y), rcond=None)[0]


def curvature(form, model, inputs=X):
    """Return the factors at the parameters in one of their forms."""
    if form == "module":
        call = lambda model, x: model(x)
        return hotk.KFACOperator(call, LOSS, model, inputs, where=nnx.Param)
    split = nnx.split(model, nnx.Param, ...)
    graph, params, rest = nnx.as_pure(split) if form == "pure" else split
    call = lambda p, x: nnx.merge(graph, p, rest)(x)
    return hotk.KFACOperator(call, LOSS, params, inputs)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("form", ["module", "split", "pure"])
def test_kfac_takes_the_parameters_in_every_form(form):
    model = Model()
    model.eval()
    transform = hotk.optim.kfac(curvature(form, model), damping=1e-16)
    optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        return hotk.optim.nnx_step(
            optimizer,
            model,
            lambda model: LOSS(model(X)),
            model_fn=lambda model, x: model(x),
            loss_fn=LOSS,
            inputs=(X,),
        )

    step(model, optimizer)
    # K-FAC of a linear model is exact: one step solves the problem.
    weights, layer = least_squares(), model.layers[0]
    close(
        np.concatenate([layer.kernel[...], layer.bias[...][None]]), weights, rtol=1e-5
    )


@pytest.mark.parametrize("form", ["module", "split", "pure"])
def test_other_parameters_of_a_module_are_named(form, as_user):
    model, other = Model(), Model(columns=4)
    model.eval()
    transform = hotk.optim.kfac(curvature(form, model))
    place = r"`params\[layers\]\[0\]\[kernel\]`"
    differs = rf"expected: shape \(3, 2\) at {place}\n  got:      shape \(4, 2\) at"
    with pytest.raises(hotk.StructureError, match=differs):
        nnx.Optimizer(other, transform, wrt=nnx.Param)


def test_functions_of_the_model_in_kfac_say_which_step_to_write(as_user):
    model = Model()
    model.eval()
    transform = hotk.optim.kfac(curvature("module", model))
    optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)
    gradient = nnx.grad(lambda model: LOSS(model(X)))(model)
    given = {"model_fn": lambda model, x: model(x), "loss_fn": LOSS, "inputs": (X,)}
    with pytest.raises(TypeError, match="not callable") as caught:
        optimizer.update(model, gradient, **given)
    assert "nnx_step(optimizer, model, value_fn)" in "".join(caught.value.__notes__)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["adam", "lbfgs"])
def test_transformations_of_optax_step_as_on_plain_arrays(name):
    transform = {"adam": optax.adam(0.1), "lbfgs": optax.lbfgs()}[name]
    model = Model()
    optimizer = nnx.Optimizer(model, transform, wrt=nnx.Param)
    layer = model.layers[0]
    plain = {"bias": layer.bias[...], "kernel": layer.kernel[...]}
    f = lambda p: jnp.mean((X @ p["kernel"] + p["bias"] - Y) ** 2)
    state = transform.init(plain)
    of_model = lambda model: (jnp.mean((model(X) - Y) ** 2), model(X).shape)
    for _ in range(2):
        value, gradient = jax.value_and_grad(f)(plain)
        extra = {"value": value, "grad": gradient, "value_fn": f}
        extra = extra if name == "lbfgs" else {}
        step, state = transform.update(gradient, state, plain, **extra)
        plain = optax.apply_updates(plain, step)
        found, shape = hotk.optim.nnx_step(optimizer, model, of_model, has_aux=True)
        assert shape == (9, 2)
        close(found, value)
        close({"bias": layer.bias[...], "kernel": layer.kernel[...]}, plain)


def test_parameters_that_are_not_selected_stay():
    kernels = nnx.All(nnx.Param, nnx.PathContains("kernel"))
    model = Model()
    optimizer = nnx.Optimizer(
        model, hotk.optim.newton_cg(1.0, max_tol=1e-9), wrt=kernels
    )
    before = model.layers[0].bias[...]
    hotk.optim.nnx_step(optimizer, model, lambda model: LOSS(model(X)))
    close(model.layers[0].bias[...], before)
    expected = np.linalg.lstsq(np.asarray(X), np.asarray(Y - before), rcond=None)[0]
    close(model.layers[0].kernel[...], expected, rtol=1e-4)


def test_another_optimizer_is_refused(as_user):
    with pytest.raises(TypeError, match=r"nnx\.Optimizer\(model, transformation"):
        hotk.optim.nnx_step(hotk.optim.newton_cg(), Model(), lambda model: 0.0)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_model_in_training_mode_is_refused_by_kfac(compiled, as_user):
    """In a batch of one the activations that batch normalization returns are zero."""

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.last = nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(jnp.tanh(self.norm(self.first(x))))

    net = Network(nnx.Rngs(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)), jnp.float32)
    call = lambda net, x: net(x)
    loss = hotk.curvature.SquaredError(jnp.ones((6, 2), jnp.float32))
    net.eval()
    K = hotk.KFACOperator(call, loss, net, x, where=nnx.Param)
    optimizer = nnx.Optimizer(net, hotk.optim.kfac(K, damping=0.1), wrt=nnx.Param)

    def step(net, optimizer, x):
        f = lambda net: loss(net(x))
        given = {"model_fn": call, "loss_fn": loss, "inputs": (x,)}
        return hotk.optim.nnx_step(optimizer, net, f, **given)

    run = nnx.jit(step) if compiled else step
    values = [float(run(net, optimizer, x)) for _ in range(8)]
    assert values[-1] < 0.5 * values[0]
    net.train()
    with pytest.raises(ValueError, match="depends on the other examples") as caught:
        run(net, optimizer, x)
    assert "`model.eval()`" in str(caught.value)
    assert not any("hands on" in note for note in caught.value.__notes__)


def test_a_filter_that_takes_a_path_is_explained(as_user):
    net = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    where = nnx.All(nnx.Param, nnx.PathContains("kernel"))
    with pytest.raises(TypeError) as caught:
        hotk.gradient(lambda net: jnp.sum(net(jnp.ones(3)) ** 2), net, where=where)
    assert any(
        "nnx.split(model, filter, ...)" in note for note in caught.value.__notes__
    )
