"""Losses: values by NumPy, Hessians in closed form against differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.curvature import (
    HuberLoss,
    PoissonLoss,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    SquaredError,
)
from tests.curvature.models import BITS, CLASSES, COUNTS, NUMBERS, RNG, probabilities
from tests.helpers import close


Z = jnp.asarray(RNG.normal(size=NUMBERS.shape))
U = jnp.asarray(RNG.normal(size=NUMBERS.shape))
z = np.asarray(Z)
LOSSES = {
    "squared": (SquaredError, NUMBERS, (z - NUMBERS) ** 2 / 2),
    "softmax": (
        SoftmaxCrossEntropy,
        CLASSES,
        -np.log(probabilities(z))[np.arange(len(z)), CLASSES],
    ),
    "soft labels": (
        SoftmaxCrossEntropy,
        jnp.asarray(probabilities(np.asarray(NUMBERS))),
        -(probabilities(np.asarray(NUMBERS)) * np.log(probabilities(z))),
    ),
    "sigmoid": (SigmoidCrossEntropy, BITS, np.log1p(np.exp(z)) - np.asarray(BITS) * z),
    "poisson": (PoissonLoss, COUNTS, np.exp(z) - np.asarray(COUNTS) * z),
    "huber": (
        HuberLoss,
        NUMBERS,
        np.where(
            np.abs(z - NUMBERS) <= 1, (z - NUMBERS) ** 2 / 2, np.abs(z - NUMBERS) - 0.5
        ),
    ),
}
each_loss = pytest.mark.parametrize("name", LOSSES)
each_reduction = pytest.mark.parametrize("reduction", ["mean", "sum"])


@each_loss
@each_reduction
def test_the_value_is_the_mean_or_the_sum_over_examples(name, reduction):
    kind, targets, each = LOSSES[name]
    expected = np.sum(each) / (len(z) if reduction == "mean" else 1)
    close(kind(targets, reduction=reduction)(Z), jnp.asarray(expected))


@pytest.mark.thinned(4)
@each_loss
@each_reduction
def test_gradient_and_hessian_are_those_of_the_value(name, reduction):
    kind, targets, _ = LOSSES[name]
    loss = kind(targets, reduction=reduction)
    value = lambda z: loss.factor(z) * jnp.sum(loss.each(z))
    close(loss.gradient(Z), jax.grad(value)(Z))
    close(loss.hessian_product(Z, U), jax.jvp(jax.grad(value), (Z,), (U,))[1])


def test_the_softmax_hessian_is_the_covariance_of_one_draw():
    p = probabilities(z)
    blocks = np.stack([np.diag(q) - np.outer(q, q) for q in p]) / len(z)
    expected = np.einsum("nij,nj->ni", blocks, np.asarray(U))
    close(SoftmaxCrossEntropy(CLASSES).hessian_product(Z, U), jnp.asarray(expected))


@each_loss
def test_large_outputs_give_finite_numbers(name):
    kind, targets, _ = LOSSES[name]
    loss, far = kind(targets), jnp.full_like(Z, 300.0)
    assert np.isfinite(loss(far))
    assert np.isfinite(loss.gradient(far)).all()
    assert np.isfinite(loss.hessian_product(far, U)).all()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["squared", "softmax", "sigmoid", "poisson"])
def test_samples_have_the_mean_of_the_model(name):
    kind, targets, _ = LOSSES[name]
    loss = kind(targets)
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = jax.vmap(lambda k: loss.slope(Z, loss.sample(k, Z)))(keys)
    # the mean slope is zero, its covariance the loss' Hessian for one example
    error = np.asarray(drawn.std(axis=0)) / np.sqrt(len(keys))
    assert (np.abs(drawn.mean(axis=0)) < 5 * error + 1e-12).all()
    along = jnp.sum(drawn * U[None], axis=-1, keepdims=True)
    products = jnp.mean(drawn * along, axis=0)
    exact = len(z) * loss.hessian_product(Z, U)
    spread = np.asarray((drawn * along).std(axis=0)) / np.sqrt(len(keys))
    assert (np.abs(products - exact) < 5 * spread).all()


def test_another_reduction_is_refused(as_user):
    with pytest.raises(ValueError, match="'median', not 'mean' or 'sum'"):
        SquaredError(NUMBERS, reduction="median")


def test_targets_are_leaves_and_no_part_of_the_program(default_settings):
    f = lambda loss, w: hotk.ggnvp(lambda w: w * 2, loss, w, w)
    w = jnp.ones((3, 2))
    hotk.clear_cache()
    for k in range(4):
        f(SquaredError(jnp.full((3, 2), float(k))), w)
    assert hotk.cache_info().compiles == 1


def test_numpy_targets_are_copied(as_user):
    given = np.ones((2, 1))
    loss = SquaredError(given)
    given[:] = 5.0
    close(loss(jnp.zeros((2, 1))), jnp.asarray(0.5))
    close(SquaredError([[1.0], [3.0]])(jnp.zeros((2, 1))), jnp.asarray(2.5))
