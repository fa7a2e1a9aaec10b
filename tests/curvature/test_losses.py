"""Losses: values by NumPy, Hessians in closed form against differentiation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import hotk
import hotk.testing
from hotk.curvature import (
    AbstractLikelihood,
    GammaLoss,
    HuberLoss,
    NegativeBinomialLoss,
    OrdinalCrossEntropy,
    PoissonLoss,
    SigmoidCrossEntropy,
    SoftmaxCrossEntropy,
    SquaredError,
    StudentTLoss,
)
from tests.curvature.models import (
    BITS,
    CLASSES,
    COUNTS,
    NUMBERS,
    RNG,
    W,
    X,
    net,
    outputs,
    probabilities,
    sandwich,
)
from tests.helpers import close


Z = jnp.asarray(RNG.normal(size=NUMBERS.shape))
U = jnp.asarray(RNG.normal(size=NUMBERS.shape))
z = np.asarray(Z)
POSITIVE = np.exp(RNG.normal(size=NUMBERS.shape))
THRESHOLDS = np.array([-1.0, 0.2, 1.5])
GRADES = RNG.integers(0, 4, size=NUMBERS.shape)


def against(log_density):
    """Return a loss that is zero for z = 0, by another library's density."""
    return log_density(np.zeros_like(z)) - log_density(z)


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
    # Of SciPy, minus what does not depend on z.
    "gamma": (
        functools.partial(GammaLoss, shape=2.5),
        POSITIVE,
        against(lambda z: stats.gamma.logpdf(POSITIVE, 2.5, scale=np.exp(z) / 2.5)),
    ),
    "negative binomial": (
        functools.partial(NegativeBinomialLoss, size=1.5),
        COUNTS,
        against(lambda z: stats.nbinom.logpmf(COUNTS, 1.5, 1.5 / (1.5 + np.exp(z)))),
    ),
    "student": (
        functools.partial(StudentTLoss, degrees=3.0, scale=0.5),
        NUMBERS,
        -stats.t.logpdf(NUMBERS, 3.0, z, 0.5) + stats.t.logpdf(0.0, 3.0, 0.0, 0.5),
    ),
    "ordinal": (
        functools.partial(OrdinalCrossEntropy, thresholds=THRESHOLDS),
        GRADES,
        -np.log(
            special.expit(np.append(THRESHOLDS, np.inf)[GRADES] - z)
            - special.expit(np.append(-np.inf, THRESHOLDS)[GRADES] - z)
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
    loss = kind(targets, reduction=reduction)
    # The losses leave out what does not depend on z.
    zero = loss(jnp.zeros_like(Z)) if name in ("gamma", "negative binomial") else 0
    close(loss(Z) - zero, jnp.asarray(expected))


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


def over_draws(name, slope):
    """Sum over all targets, or integrate: the mean under the model at one output."""
    if name == "gamma":
        of = lambda y, z: stats.gamma.pdf(y, 2.5, scale=np.exp(z) / 2.5)
        sums = lambda f: integrate.quad(f, 0, np.inf, epsabs=1e-12, epsrel=1e-12)[0]
    elif name == "student":
        of = lambda y, z: stats.t.pdf(y, 3.0, z, 0.5)
        sums = lambda f: integrate.quad(f, -np.inf, np.inf, epsabs=1e-12, limit=400)[0]
    elif name == "negative binomial":
        of = lambda y, z: stats.nbinom.pmf(y, 1.5, 1.5 / (1.5 + np.exp(z)))
        sums = lambda f: sum(f(y) for y in range(400))
    else:
        high, low = np.append(THRESHOLDS, np.inf), np.append(-np.inf, THRESHOLDS)
        of = lambda y, z: special.expit(high[y] - z) - special.expit(low[y] - z)
        sums = lambda f: sum(f(y) for y in range(4))
    return lambda z: sums(lambda y: of(y, z) * slope(y, z) ** 2)


SLOPES = {
    "gamma": lambda y, z: 2.5 * (1 - y * np.exp(-z)),
    "negative binomial": lambda y, z: (y + 1.5) / (1 + 1.5 * np.exp(-z)) - y,
    "student": lambda y, z: 4 * (z - y) / (0.75 + (z - y) ** 2),
    "ordinal": lambda y, z: (
        special.expit(z - np.append(THRESHOLDS, np.inf)[y])
        - special.expit(np.append(-np.inf, THRESHOLDS)[y] - z)
    ),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", SLOPES)
def test_the_fisher_matrix_is_the_expectation_by_quadrature(name):
    kind, targets, _ = LOSSES[name]
    loss = kind(targets, reduction="sum")
    mean = over_draws(name, SLOPES[name])
    expected = np.vectorize(mean)(z) * np.asarray(U)
    close(loss.fisher_product(Z, U), jnp.asarray(expected), rtol=1e-7)
    # By the model, through `fvp`; the Hessian of the loss is another matrix.
    product = hotk.fvp(lambda w: w, loss, Z, U)
    close(product, jnp.asarray(expected), rtol=1e-7)
    assert not np.allclose(loss.hessian_product(Z, U), expected, rtol=1e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", [n for n in LOSSES if n not in ("huber", "soft labels")]
)
def test_methods_belong_to_one_density(name):
    kind, targets, _ = LOSSES[name]
    checked = hotk.testing.check_likelihood(kind(targets), Z)
    assert checked.passed
    assert len(str(checked).splitlines()) == 4


class LogMean(AbstractLikelihood):
    """A Gamma loss as a user writes it, without its Fisher matrix."""

    targets: jax.Array
    reduction: str = "mean"

    def each(self, z):
        return z + self.targets * jnp.exp(-z)

    def slope(self, z, targets):
        return 1 - targets * jnp.exp(-z)

    def hessian_product(self, z, u):
        return self.factor(z) * self.targets * jnp.exp(-z) * u

    def sample(self, key, z):
        return jax.random.exponential(key, z.shape) * jnp.exp(z)


class Declared(LogMean):
    natural = True


class Defined(LogMean):
    def fisher_product(self, z, u):
        return self.factor(z) * u


@pytest.mark.exhaustive
def test_a_likelihood_that_does_not_say_its_fisher_matrix_is_refused(as_user):
    y, w = jnp.array([0.5, 1.0, 2.0]), jnp.ones(3)
    for call in (hotk.fvp, lambda *a: hotk.FisherOperator(*a[:3]) @ a[3]):
        with pytest.raises(TypeError, match="fisher_product"):
            call(lambda w: w, LogMean(y), w, w)
        close(call(lambda w: w, Defined(y), w, w), jnp.full(3, 1 / 3))
    with pytest.raises(TypeError, match="natural = True"):
        hotk.testing.check_likelihood(LogMean(y), w)
    hotk.testing.check_likelihood(Defined(y), w)
    with pytest.raises(
        AssertionError, match=r"Fisher matrix and drawn targets .* FAILED"
    ):
        hotk.testing.check_likelihood(Declared(y), w)
    # Sampled matrices do not need it.
    sampled = hotk.sampled_fvp(
        lambda w: w, LogMean(y), w, w, key=jax.random.key(0), samples=100_000
    )
    close(sampled, jnp.full(3, 1 / 3), rtol=0.02)


@pytest.mark.exhaustive
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


@pytest.mark.parametrize("name", LOSSES)
def test_targets_are_never_broadcast_against_outputs(name, as_user):
    kind, targets, _ = LOSSES[name]
    loss = kind(targets)
    shapes = [Z[:, :, None], Z[:1], jnp.zeros(())]
    if name != "softmax":  # of which this is one with a single class
        shapes.append(Z[:, :1])
    for wrong in shapes:
        with pytest.raises(hotk.StructureError, match="shape of the outputs"):
            loss(wrong)
    with pytest.raises(hotk.StructureError, match="never broadcasts"):
        hotk.ggnvp(lambda z: z[:, :, None], loss, Z, U)


def test_a_loss_without_a_density_is_no_likelihood(as_user):
    with pytest.raises(TypeError, match="HuberLoss"):
        hotk.testing.check_likelihood(HuberLoss(NUMBERS), Z)


@pytest.mark.parametrize("name", LOSSES)
def test_complex_outputs_and_targets_are_refused(name, as_user):
    kind, targets, _ = LOSSES[name]
    turn = lambda z: jax.lax.complex(z, 2 * z)
    loss, turned = kind(targets), turn(Z)
    calls = [
        lambda: loss(turned),
        lambda: loss.each(turned),
        lambda: loss.slope(turned, loss.targets),
        lambda: loss.gradient(turned),
        lambda: loss.hessian_product(turned, U),
        lambda: hotk.ggnvp(turn, loss, Z, U),
        lambda: hotk.GGNOperator(turn, loss, Z).matrix(),
        lambda: hotk.EmpiricalFisherOperator(turn, loss, Z).matrix(),
    ]
    if jnp.issubdtype(loss.targets.dtype, jnp.floating):
        calls.append(lambda: kind(turn(jnp.asarray(targets)))(Z))
    for call in calls:
        with pytest.raises(hotk.OutputError, match="complex"):
            call()


def test_real_and_imaginary_parts_as_two_outputs_have_the_matrix_of_both():
    # |(1 + 2i) w|^2 / 2 has the second derivative 5
    model = lambda w: jnp.stack([w, 2 * w], axis=-1)
    found = hotk.GGNOperator(model, SquaredError(jnp.zeros((1, 2))), jnp.ones(1))
    close(found.matrix(), jnp.array([[5.0]]))


WEIGHTS = np.array([2.0, 0.0, 1.0, 0.0, 3.0, 1.0, 1.0])


@pytest.mark.thinned(3)
@each_loss
@each_reduction
def test_a_weight_counts_an_example_as_often(name, reduction):
    kind, targets, _ = LOSSES[name]
    rows = np.repeat(np.arange(len(z)), WEIGHTS.astype(int))
    repeated = kind(np.asarray(targets)[rows], reduction=reduction)
    loss = kind(targets, reduction=reduction, example_weights=WEIGHTS)
    close(loss(Z), repeated(Z[rows]))
    by_row = lambda a: jnp.zeros_like(Z).at[rows].add(a)
    close(loss.gradient(Z), by_row(repeated.gradient(Z[rows])))
    product = repeated.hessian_product(Z[rows], U[rows])
    close(loss.hessian_product(Z, U), by_row(product))
    if isinstance(loss, AbstractLikelihood):
        product = repeated.fisher_product(Z[rows], U[rows])
        close(loss.fisher_product(Z, U), by_row(product))


@pytest.mark.parametrize("kind", [hotk.GGNOperator, hotk.FisherOperator])
@pytest.mark.parametrize("given", [WEIGHTS, WEIGHTS > 0])
def test_matrices_of_weighted_examples_by_hand(kind, given):
    blocks = [np.diag(q) - np.outer(q, q) for q in probabilities(outputs())]
    share = given / given.sum()
    expected = sandwich(share[:, None, None] * np.stack(blocks))
    loss = SoftmaxCrossEntropy(CLASSES, example_weights=given)
    close(kind(net, loss, W).matrix(), jnp.asarray(expected).reshape(12, 12))


def test_the_empirical_fisher_of_weighted_examples_by_hand():
    errors = outputs() - np.asarray(NUMBERS)
    blocks = np.einsum("n,ni,nj->nij", WEIGHTS / WEIGHTS.sum(), errors, errors)
    loss = SquaredError(NUMBERS, example_weights=WEIGHTS)
    found = hotk.EmpiricalFisherOperator(net, loss, W).matrix()
    close(found, jnp.asarray(sandwich(blocks)).reshape(12, 12))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", ["fisher", "empirical", "sampled", "squares"])
def test_rows_of_weighted_examples_are_those_of_the_matrix(kind):
    model = hotk.curvature.PerExample(lambda w, x: jnp.tanh(x @ w), X)
    loss = SquaredError(NUMBERS, example_weights=WEIGHTS)
    f = {
        "fisher": hotk.curvature.Fisher(model, loss),
        "empirical": hotk.curvature.EmpiricalFisher(model, loss),
        "sampled": hotk.curvature.SampledFisher(model, loss, jax.random.key(0), 2),
        "squares": hotk.curvature.GaussNewton(model, loss),
    }[kind]
    found = hotk.curvature.rows_program(f, W).compute()
    rows = found.rows.reshape(len(found.rows), -1)
    close(rows.T @ rows, hotk.hessian(f, W).reshape(12, 12))
    if found.weights is not None:
        close(rows.T @ found.weights, hotk.gradient(f, W).reshape(12))


def test_targets_of_weight_zero_do_not_count():
    kept, ignored = jnp.array([0, 2]), jnp.array([0, -100, 2])
    z = jnp.array([[1.0, 2.0, 0.5], [3.0, 1.0, 0.0], [0.3, 0.1, 0.7]])
    loss = SoftmaxCrossEntropy(ignored, example_weights=ignored >= 0)
    expected = SoftmaxCrossEntropy(kept)(z[jnp.array([0, 2])])
    close(loss(z), expected)
    close(hotk.hvp(loss, z, z)[1], jnp.zeros(3))
    close(
        jax.jit(lambda y, z: SoftmaxCrossEntropy(y, example_weights=y >= 0)(z))(
            ignored, z
        ),
        expected,
    )


@pytest.mark.parametrize(
    ("kind", "targets", "expected"),
    [
        (SoftmaxCrossEntropy, [0, -1], "from 0 to inf"),
        (SoftmaxCrossEntropy, [[0.5, -0.5]], "from 0 to 1"),
        (SoftmaxCrossEntropy, [[1.5, 0.5]], "from 0 to 1"),
        (SigmoidCrossEntropy, [0.0, 2.0], "from 0 to 1"),
        (SigmoidCrossEntropy, [0, -1], "from 0 to 1"),
        (PoissonLoss, [3, -2], "from 0 to inf"),
        (GammaLoss, [3.0, -2.0], "from 0 to inf"),
        (NegativeBinomialLoss, [3, -2], "from 0 to inf"),
        (functools.partial(OrdinalCrossEntropy, thresholds=[0.0, 1.0]), [3], "0 to 2"),
        (functools.partial(OrdinalCrossEntropy, thresholds=[0.0, 1.0]), [-1], "0 to 2"),
    ],
)
def test_impossible_targets_are_refused(kind, targets, expected, as_user):
    for given in (np.array(targets), jnp.array(targets)):
        with pytest.raises(ValueError, match=expected):
            kind(given)
    with pytest.raises(
        ValueError, match="example_weights="
    ):  # the other ones are left out
        kind(np.array(targets), example_weights=np.ones(len(targets)))
    kind(np.array(targets), example_weights=np.zeros(len(targets)))


def test_a_class_beyond_the_logits_is_refused_or_nan(as_user):
    labels, z = jnp.array([1, 4]), jnp.zeros((2, 4))
    with pytest.raises(ValueError, match="from 0 to 3"):
        SoftmaxCrossEntropy(labels)(z)
    assert jnp.isnan(jax.jit(lambda y, z: SoftmaxCrossEntropy(y)(z))(labels, z))
    product = hotk.ggnvp(lambda z: z, SoftmaxCrossEntropy(labels), z, z + 1)
    assert jnp.isnan(product[1]).all()
    assert jnp.isfinite(product[0]).all()


def test_there_is_one_weight_for_each_example(as_user):
    with pytest.raises(hotk.StructureError, match="one weight for each example"):
        SquaredError(NUMBERS, example_weights=np.ones(2))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("label", [jnp.array(2), jnp.eye(3)[2]], ids=["class", "row"])
def test_logits_of_one_example_are_refused(label, reduction):
    z = jnp.array([0.5, -1.0, 0.25])
    p = jax.nn.softmax(z)
    of_one = hotk.curvature.SoftmaxCrossEntropy(label[None], reduction=reduction)
    close(of_one(z[None]), -jnp.log(p[2]))
    close(hotk.hessian(lambda z: of_one(z[None]), z), jnp.diag(p) - jnp.outer(p, p))
    loss = hotk.curvature.SoftmaxCrossEntropy(label, reduction=reduction)
    fisher = lambda z: hotk.EmpiricalFisherOperator(jnp.sin, loss, z) @ z
    for call in (loss, fisher):
        with pytest.raises(hotk.StructureError, match="no axis of examples"):
            call(z)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_number_is_no_axis_of_examples(reduction, as_user):
    loss, x = SquaredError(3.0, reduction=reduction), jnp.array([2.0, 0.5])
    product = lambda x: hotk.ggnvp(lambda x: x[0] * x[1], loss, x, x)
    for call in (lambda x: loss(x[0] * x[1]), product):
        with pytest.raises(hotk.StructureError, match="no axis of examples"):
            call(x)
