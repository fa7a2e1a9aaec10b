"""Products with Gauss-Newton and Fisher matrices against dense ones by hand."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hotk
from hotk.curvature import (
    EmpiricalFisher,
    Fisher,
    GaussNewton,
    HuberLoss,
    PoissonLoss,
    SampledFisher,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    SquaredError,
)
from tests import reference
from tests.curvature.models import (
    BITS,
    CLASSES,
    COUNTS,
    INPUTS,
    NUMBERS,
    OUTPUTS,
    N,
    V,
    W,
    X,
    diagonals,
    jacobian,
    net,
    outputs,
    probabilities,
    sandwich,
    times,
)
from tests.helpers import close


z = outputs()
P = probabilities(z)
SIGMOID = 1 / (1 + np.exp(-z))
CURVATURES = {
    "squared": (SquaredError(NUMBERS), diagonals(np.ones_like(z))),
    "softmax": (
        SoftmaxCrossEntropy(CLASSES),
        diagonals(P) - P[:, :, None] * P[:, None, :],
    ),
    "sigmoid": (SigmoidCrossEntropy(BITS), diagonals(SIGMOID * (1 - SIGMOID))),
    "poisson": (PoissonLoss(COUNTS), diagonals(np.exp(z))),
    "huber": (
        HuberLoss(NUMBERS, 0.5),
        diagonals((np.abs(z - NUMBERS) <= 0.5).astype(float)),
    ),
}
each_loss = pytest.mark.parametrize("name", CURVATURES)
each_nesting = pytest.mark.parametrize("nesting", reference.NESTINGS)


def gauss_newton(name):
    return sandwich(CURVATURES[name][1]) / N


@pytest.mark.thinned(3)
@each_loss
def test_the_product_is_that_of_the_dense_matrix(name):
    loss, _ = CURVATURES[name]
    expected = times(gauss_newton(name), V)
    close(hotk.ggnvp(net, loss, W, V), expected)
    close(hotk.ggnvp(net, lambda z: loss(z), W, V), expected)


@pytest.mark.thinned(7)
@each_loss
@each_nesting
def test_all_nestings_give_the_same(name, nesting):
    loss, _ = CURVATURES[name]
    mode = getattr(hotk, nesting)
    expected = times(gauss_newton(name), V)
    close(hotk.hvp(GaussNewton(net, loss), W, V, mode=mode), expected)


@pytest.mark.thinned(1)
@each_loss
def test_dense_diagonal_and_form_are_operators_on_the_same_function(name):
    loss, _ = CURVATURES[name]
    f, dense = GaussNewton(net, loss), gauss_newton(name)
    shape = (INPUTS, OUTPUTS)
    close(hotk.hessian(f, W), jnp.asarray(dense.reshape(shape + shape)))
    close(hotk.hessian_diagonal(f, W), jnp.asarray(np.diag(dense).reshape(shape)))
    flat = np.asarray(V).ravel()
    close(hotk.quadratic_form(f, W, V), jnp.asarray(flat @ dense @ flat))


@each_loss
def test_value_and_gradient_are_those_of_the_composition(name):
    loss, _ = CURVATURES[name]
    value, gradient = jax.value_and_grad(lambda w: loss(net(w)))(W)
    got = hotk.value_gradient_and_hvp(GaussNewton(net, loss), W, V)
    close(got, (value, gradient, times(gauss_newton(name), V)))


@each_loss
def test_it_is_positive_semidefinite(name):
    loss, _ = CURVATURES[name]
    dense = hotk.hessian(GaussNewton(net, loss), W).reshape(W.size, W.size)
    values = np.linalg.eigvalsh(dense)
    assert values[0] > -1e-12 * values[-1]


def test_it_is_the_hessian_of_a_linear_model_and_not_of_another():
    loss = SquaredError(NUMBERS)
    linear = lambda w: X @ w
    close(
        hotk.ggnvp(linear, loss, W, V),
        jax.jvp(jax.grad(lambda w: loss(linear(w))), (W,), (V,))[1],
    )
    hessian = jax.jvp(jax.grad(lambda w: loss(net(w))), (W,), (V,))[1]
    assert np.abs(hotk.ggnvp(net, loss, W, V) - hessian).max() > 0.01


def test_several_directions_share_the_linearization():
    loss, _ = CURVATURES["softmax"]
    vs = jnp.stack([V, W, V - W])
    expected = jnp.stack([times(gauss_newton("softmax"), v) for v in vs])
    close(hotk.ggnvp(net, loss, W, vs, batched=True), expected)


@pytest.mark.exhaustive
def test_models_are_trees_of_any_kind():
    model = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0))
    f = lambda m: jax.vmap(m)(X)
    loss = SquaredError(jnp.zeros((N, 2)))
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    flat, unravel = ravel_pytree(arrays)
    jac = jax.jacobian(lambda p: f(eqx.combine(unravel(p), rest)).ravel())(flat)
    product = hotk.ggnvp(f, loss, model, model)
    got = ravel_pytree(eqx.filter(product, eqx.is_array))[0]
    close(got, jac.T @ (jac @ flat) / N)


def test_outputs_may_be_a_tree_and_arguments_follow():
    model = lambda w, c: {"a": c * w**2, "b": jnp.sin(w)}
    loss = lambda z: jnp.sum(z["a"] * z["b"])
    w, v, c = jnp.array([0.5, 1.0]), jnp.array([1.0, -2.0]), 3.0
    # J = [2 c w; cos w] and the loss' Hessian couples a with b
    expected = 2 * (2 * c * w) * jnp.cos(w) * v
    close(hotk.ggnvp(model, loss, w, v, c), expected)


def test_the_third_derivative_is_that_of_the_matrix():
    f = GaussNewton(lambda w: w**2, lambda z: jnp.sum(z**3))
    w, v = jnp.array([0.7]), jnp.array([1.0])
    # J' L'' J with J = 2 w: d/dw of (2 w)^2 6 w^2 = 24 w^4
    third = jax.jvp(lambda w: hotk.hvp(f, w, v), (w,), (v,))[1]
    close(third, 96 * w**3)


def test_fresh_models_and_batches_compile_nothing(default_settings):
    tick = itertools.count().__next__
    w = jnp.ones((3, 2))

    def step(k):
        inputs, labels = jnp.full((5, 3), 1.0 + k), jnp.array([0, 1, 0, 1, 1]) * (k % 2)

        def model(w):
            tick()
            return inputs @ w

        return hotk.ggnvp(model, SoftmaxCrossEntropy(labels), w, w)

    hotk.clear_cache()
    for k in range(5):
        step(k)
    traced = tick()
    info = hotk.cache_info()
    assert (info.compiles, info.traces) == (1, 1)
    step(7)
    assert tick() == traced + 1


def test_it_is_prepared_and_nests_as_other_functions():
    loss, _ = CURVATURES["softmax"]
    expected = times(gauss_newton("softmax"), V)
    prepared = hotk.hvp.prepare(GaussNewton(net, loss), W, V)
    close(prepared(W, V), expected)
    close(jax.jit(lambda w, v: hotk.ggnvp(net, loss, w, v))(W, V), expected)
    many = jax.vmap(lambda v: hotk.ggnvp(net, loss, W, v))(jnp.stack([V, 2.0 * V]))
    close(many, jnp.stack([expected, 2.0 * expected]))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["squared", "softmax", "sigmoid", "poisson"])
def test_the_exact_fisher_is_the_mean_over_the_model(name):
    loss, blocks = CURVATURES[name]
    close(hotk.fvp(net, loss, W, V), times(sandwich(blocks) / N, V))


def test_the_exact_softmax_fisher_is_a_sum_over_classes():
    blocks = np.zeros((N, OUTPUTS, OUTPUTS))
    for k in range(OUTPUTS):
        slope = P - np.eye(OUTPUTS)[k]
        blocks += P[:, k, None, None] * slope[:, :, None] * slope[:, None, :]
    loss = SoftmaxCrossEntropy(CLASSES)
    close(hotk.fvp(net, loss, W, V), times(sandwich(blocks) / N, V))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_empirical_fisher_is_a_sum_over_examples(reduction):
    slope = P - np.eye(OUTPUTS)[np.asarray(CLASSES)]
    dense = sandwich(slope[:, :, None] * slope[:, None, :])
    dense /= N if reduction == "mean" else 1
    loss = SoftmaxCrossEntropy(CLASSES, reduction=reduction)
    close(hotk.empirical_fvp(net, loss, W, V), times(dense, V))
    per_example = jax.vmap(
        lambda x, y: jax.grad(
            lambda w: -jax.nn.log_softmax(jnp.tanh(x @ w) + 0.1 * (x @ w) ** 2)[y]
        )(W).ravel()
    )(X, CLASSES)
    by_gradients = np.asarray(per_example).T @ np.asarray(per_example)
    by_gradients /= N if reduction == "mean" else 1
    np.testing.assert_allclose(dense, by_gradients, rtol=1e-10)


@pytest.mark.exhaustive
def test_the_sampled_fisher_has_the_exact_one_as_its_mean():
    loss = SoftmaxCrossEntropy(CLASSES)
    keys = jax.random.split(jax.random.key(1), 400)
    drawn = np.stack(
        [hotk.sampled_fvp(net, loss, W, V, key=key, samples=5) for key in keys]
    )
    error = drawn.std(axis=0) / np.sqrt(len(keys))
    exact = np.asarray(times(gauss_newton("softmax"), V))
    assert (np.abs(drawn.mean(axis=0) - exact) < 5 * error).all()


def test_a_key_is_one_matrix_of_the_rank_of_its_samples():
    loss = SquaredError(NUMBERS)
    f = SampledFisher(net, loss, jax.random.key(0), 1)
    dense = np.asarray(hotk.hessian(f, W)).reshape(W.size, W.size)
    np.testing.assert_allclose(dense, dense.T, rtol=1e-12, atol=1e-15)
    values = np.linalg.eigvalsh(dense)
    assert values[0] > -1e-12 * values[-1]
    assert (values > 1e-10 * values[-1]).sum() == N
    flat = np.asarray(V).ravel()
    close(
        hotk.sampled_fvp(net, loss, W, V, key=jax.random.key(0)),
        jnp.asarray((dense @ flat).reshape(V.shape)),
    )


def test_the_empirical_fisher_vanishes_where_all_is_fitted():
    loss = SquaredError(jnp.asarray(z))
    close(hotk.empirical_fvp(net, loss, W, V), jnp.zeros_like(W))
    dense = jacobian().T @ jacobian() / N
    close(hotk.fvp(net, loss, W, V), times(dense, V))


@pytest.mark.parametrize("make", [Fisher, lambda m, l: SampledFisher(m, l, KEY)])
def test_a_loss_without_a_density_has_no_fisher_matrix(make, as_user):
    for loss in (HuberLoss(NUMBERS), lambda z: jnp.sum(z)):
        with pytest.raises(TypeError, match="not a likelihood") as error:
            make(net, loss)
        assert "hotk.ggnvp" in str(error.value)


KEY = jax.random.key(0)


def test_samples_are_at_least_one(as_user):
    with pytest.raises(ValueError, match="not a positive integer"):
        SampledFisher(net, SquaredError(NUMBERS), KEY, 0)


def test_an_empirical_fisher_needs_the_gradients_of_examples(as_user):
    with pytest.raises(TypeError, match="single examples") as error:
        EmpiricalFisher(net, lambda z: jnp.sum(z))
    assert "hotk.ggnvp" in str(error.value)


def test_an_empirical_fisher_is_a_function_like_others():
    f = EmpiricalFisher(net, SoftmaxCrossEntropy(CLASSES))
    close(hotk.gradient(f, W), jax.grad(lambda w: f.loss(net(w)))(W))


@jax.custom_vjp
def without_forward_rule(z):
    return jnp.tanh(z)


without_forward_rule.defvjp(
    lambda z: (jnp.tanh(z), jnp.tanh(z)), lambda y, g: (g * (1 - y**2),)
)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("nesting", ["Auto", *reference.NESTINGS])
def test_a_model_with_a_reverse_rule_alone(nesting):
    a = np.random.default_rng(0).normal(size=(5, 3))
    x, v = np.array([0.3, -0.2, 1.0]), np.array([1.0, 2.0, -0.5])
    model = lambda x: jax.jit(without_forward_rule)(jnp.asarray(a) @ x)
    z = np.tanh(a @ x)
    J = (1 - z**2)[:, None] * a
    mode = hotk.Auto() if nesting == "Auto" else getattr(hotk, nesting)
    for loss, second in (
        (hotk.curvature.SquaredError(jnp.zeros(5)), np.full(5, 1 / 5)),
        (lambda z: jnp.sum(jnp.cosh(z)), np.cosh(z)),
    ):
        f = hotk.curvature.GaussNewton(model, loss)
        exact = J.T @ (second * (J @ v))
        close(hotk.hvp(f, jnp.asarray(x), jnp.asarray(v), mode=mode), exact)


def repeated(y, factor, count):
    body = lambda s: (s[0] + 1, s[1] * factor)
    return jax.lax.while_loop(lambda s: s[0] < count, body, (0, y))[1]


@jax.custom_vjp
def grown(y, count):
    """Twice `y`, `count` times: a reverse rule with a loop, as that of a solver."""
    return repeated(y, 2.0, count)


grown.defvjp(
    lambda y, count: (grown(y, count), count),
    lambda count, g: (repeated(g, 2.0, count), None),
)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("nesting", ["Auto", "FORWARD_OVER_REVERSE"])
def test_a_model_with_a_reverse_rule_that_jax_cannot_transpose(nesting):
    model = lambda x: grown(jnp.sin(x), 3)
    x, v = jnp.array([0.3, -0.2, 1.0]), jnp.array([1.0, 2.0, -0.5])
    f = hotk.curvature.GaussNewton(model, lambda z: jnp.sum(z**2) / 2)
    mode = hotk.Auto() if nesting == "Auto" else getattr(hotk, nesting)
    close(hotk.hvp(f, x, v, mode=mode), 64 * jnp.cos(x) ** 2 * v)
    close(hotk.gradient(f, x), 64 * jnp.sin(x) * jnp.cos(x))
    transform = hotk.optim.levenberg_marquardt()
    residual = lambda x: model(x) - 1.0
    objective = lambda x: jnp.sum(residual(x) ** 2) / 2
    step, _ = transform.update(
        jax.grad(objective)(x), transform.init(x), x, residual_fn=residual
    )
    assert objective(x + step) < objective(x)
