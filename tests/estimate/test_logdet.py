"""The logarithm of a determinant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.estimate import logdet
from tests.counting import compiles
from tests.estimate.operators import Dense, Recording, hessian, square, symmetric, wide
from tests.helpers import close


KEY = jax.random.key(11)
OPTIONS = {"samples": 4, "steps": 8}


def positive(seed=0):
    return symmetric(np.geomspace(0.1, 10, 40), seed) + np.eye(40) / 2


@pytest.mark.exhaustive
def test_errors_cover_the_truth():
    a = positive()
    run = jax.vmap(lambda key: logdet(hessian(a), key, samples=10, steps=12))
    found = wide(jax.jit(run)(jax.random.split(KEY, 200)))
    off = np.abs(found.value - np.linalg.slogdet(a)[1])
    assert np.mean(off <= 2 * found.error) >= 0.9
    assert np.mean(found.error) < 1.5 * np.sqrt(np.mean(off**2))
    assert np.all(found.products == 120)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("value", [1.0, 0.25, 1e-20])
def test_of_a_multiple_of_the_identity_is_exact(value):
    found = logdet(hessian(value * np.eye(40)), KEY, **OPTIONS)
    close(found.value, np.float32(40 * np.log(value)), rtol=1e-5)
    assert found.error < 1e-5 * abs(found.value) + 1e-5


@pytest.mark.parametrize(
    ("values", "smallest"),
    [
        (np.linspace(-1, 2, 40), -1.0),
        (-np.ones(40), -1.0),
        (np.zeros(40), 0.0),
        (np.append(np.ones(30), np.zeros(10)), 0.0),
        (np.append(np.ones(39), 1e-9), 0.0),
    ],
    ids=["indefinite", "negative", "zero", "singular", "almost singular"],
)
def test_what_is_not_positive_definite_is_refused(values, smallest):
    with pytest.raises(hotk.NotPositiveDefiniteError, match="Identity") as caught:
        logdet(hessian(symmetric(values)), KEY, **OPTIONS)
    assert caught.value.smallest == pytest.approx(smallest, abs=0.05)


def test_inside_of_a_transformation_it_is_nan():
    run = jax.jit(lambda A: logdet(A, KEY, **OPTIONS))
    found = run(hessian(symmetric(np.linspace(-1, 2, 40))))
    assert np.isnan(found.value)
    assert np.isnan(found.error)
    good = run(hessian(positive()))
    close(good.value, logdet(hessian(positive()), KEY, **OPTIONS).value, rtol=1e-4)


def test_a_damped_operator_is_positive_definite():
    a = symmetric(np.linspace(0, 2, 40))
    A = hessian(a) + 0.5 * hotk.Identity()
    found = logdet(A, KEY, **OPTIONS)
    exact = np.linalg.slogdet(a + np.eye(40) / 2)[1]
    assert abs(float(found.value) - exact) < 4 * float(found.error)


def test_fresh_operators_compile_nothing():
    logdet(hessian(positive()), KEY, **OPTIONS)
    A = hessian(positive(1))
    with compiles() as count:
        logdet(A, KEY, **OPTIONS)
    assert count() == 0


def test_products_on_the_host():
    a = np.float32(positive())
    found = logdet(Recording(a, []), KEY, **OPTIONS)
    close(found.value, logdet(hessian(a), KEY, **OPTIONS).value, rtol=1e-4)
    with pytest.raises(hotk.NotPositiveDefiniteError):
        logdet(Recording(-a, []), KEY, **OPTIONS)


@pytest.mark.usefixtures("as_user")
def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="samples"):
        logdet(hessian(positive()), KEY, samples=0)
    with pytest.raises(TypeError, match="symmetric"):
        logdet(Dense(jnp.asarray(square(6)), False), KEY)


def tridiagonal(c, n):
    """Return a positive definite matrix of a parameter, and its derivative by hand."""
    diagonal = jnp.exp(c * jnp.linspace(0.5, 1.5, n))
    beside = 0.2 * c * jnp.ones(n - 1)
    return jnp.diag(diagonal) + jnp.diag(beside, 1) + jnp.diag(beside, -1)


@pytest.mark.parametrize("n", [2, 12])
def test_of_few_dimensions_it_is_exact_inside_of_transformations(n):
    def found(c):
        a = tridiagonal(c, n)
        A = hotk.HessianOperator(lambda x: x @ a @ x / 2, jnp.zeros(n))
        return logdet(A, KEY, samples=3)

    c, h = 0.7, 1e-4
    value = lambda c: found(c).value
    known = lambda c: np.linalg.slogdet(tridiagonal(c, n))[1]
    traced = jax.jit(found)(c)
    assert (traced.method, int(traced.products)) == ("exact", n)
    assert float(traced.error) == 0
    close(traced.value, known(c), rtol=1e-12)
    slope = (known(c + h) - known(c - h)) / (2 * h)
    for derivative in (jax.grad(value)(c), jax.jvp(value, (c,), (1.0,))[1]):
        close(derivative, slope, rtol=1e-6)
    bent = (known(c + h) - 2 * known(c) + known(c - h)) / h**2
    for second in (jax.hessian(value), jax.grad(jax.grad(value))):
        close(second(c), bent, rtol=1e-5)


def test_of_equal_eigenvalues_it_has_all_derivatives():
    value = lambda c: logdet(hotk.Diagonal(c * jnp.ones(6)), KEY).value
    close(jax.jit(value)(2.0), 6 * np.log(2))
    close(jax.grad(value)(2.0), 6 / 2)
    close(jax.hessian(value)(2.0), -6 / 4)
    assert jnp.isnan(jax.jit(value)(-1.0))
    assert jnp.isnan(jax.grad(value)(-1.0))


@pytest.mark.exhaustive
@pytest.mark.parametrize("n", [20])
def test_derivatives_in_both_modes(n):
    c, h = 0.7, 1e-5

    def estimates(c):
        a = tridiagonal(c, n)
        A = hotk.HessianOperator(lambda x: x @ a @ x / 2, jnp.zeros(n))
        return logdet(A, KEY, samples=30, steps=n - 1).value

    # the estimate is one of fixed vectors: its differences, and by NumPy the truth
    run = jax.jit(estimates)
    difference = (run(c + h) - run(c - h)) / (2 * h)
    grad = jax.grad(estimates)(c)
    close(grad, jax.jvp(estimates, (c,), (1.0,))[1], rtol=1e-8)
    close(grad, difference, rtol=1e-6)
    a, b = (np.linalg.slogdet(tridiagonal(c + s, n))[1] for s in (h, -h))
    assert abs(float(grad) - (a - b) / (2 * h)) < 0.2 * abs(a - b) / (2 * h)


@pytest.mark.exhaustive
def test_the_gradient_where_the_krylov_space_ends_early():
    """Two eigenvalues: after two steps of six there is no further direction."""
    share = jnp.arange(10) < 5

    def estimates(c):
        d = jnp.where(share, jnp.exp(c), jnp.exp(2 * c))
        return logdet(hotk.Diagonal(d), KEY, samples=2, steps=6).value

    # of weights p, 1 - p the estimate is n (p c + (1 - p) 2 c): linear in c
    c = 0.3
    close(jax.grad(estimates)(c), jax.jit(estimates)(c) / c, rtol=1e-8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", [7, 8])
def test_the_gradient_of_the_density(steps):
    def moment(c):
        a = tridiagonal(c, 8)
        A = hotk.HessianOperator(lambda x: x @ a @ x / 2, jnp.zeros(8))
        return (
            hotk.estimate.spectrum(A, KEY, samples=3, steps=steps)
            .integrate(jnp.square)
            .value
        )

    h = 1e-5
    run = jax.jit(moment)
    close(jax.grad(moment)(0.7), (run(0.7 + h) - run(0.7 - h)) / (2 * h), rtol=1e-6)
    if steps == 8:
        known = lambda c: float(np.sum(np.asarray(tridiagonal(c, 8)) ** 2))
        slope = (known(0.7 + h) - known(0.7 - h)) / (2 * h)
        close(jax.grad(moment)(0.7), slope, rtol=1e-7)


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_second_derivatives_of_any_size(size):
    """Of cosh(t) B it is n log cosh(t) and a constant, whatever the vectors are."""
    b = np.linspace(1, 3, 30, dtype=np.float32) * np.float32(size)

    def estimates(t):
        f = lambda x: jnp.cosh(t) * (x @ (b * x)) / 2
        H = hotk.HessianOperator(f, jnp.ones(30, jnp.float32))
        return logdet(H, KEY, samples=3, steps=5).value

    t = jnp.float32(0.6)
    close(jax.grad(estimates)(t), np.float32(30 * np.tanh(0.6)), rtol=1e-4)
    bent = np.float32(30 / np.cosh(0.6) ** 2)
    for nested in (jax.grad(jax.grad(estimates)), jax.jit(jax.hessian(estimates))):
        close(nested(t), bent, rtol=1e-3)


def of_few_examples(t, n=200, dtype=None):
    """Return ten rows and a damping: eleven eigenvalues, and log-determinants of n."""
    J = jnp.asarray(np.random.default_rng(0).normal(size=(10, n)) / np.sqrt(n), dtype)
    f = lambda x, t: (
        jnp.exp(t[0]) * jnp.sum((J @ x) ** 2) / 2 + jnp.exp(t[1]) * jnp.sum(x**2) / 20
    )
    return hotk.HessianOperator(f, jnp.ones(n, dtype), t)


@pytest.mark.exhaustive
@pytest.mark.parametrize("unit", [1.0, 1e-8, 1e8])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("steps", [8, 12, 50])
def test_derivatives_where_there_are_few_eigenvalues(steps, dtype, unit):
    """Rounding repeats nodes there; a factor of A adds n times its logarithm."""
    shift = jnp.asarray(np.log(unit), dtype)

    def f(t):
        A = of_few_examples(t + shift, dtype=dtype)
        return logdet(A, KEY, samples=6, steps=steps).value

    t = jnp.zeros(2, dtype)
    rtol = 2e-4 if dtype == jnp.float32 else 1e-8
    for gradient in (jax.grad(f)(t), jax.jacfwd(f)(t), hotk.gradient(f, t)):
        assert gradient.dtype == dtype
        close(jnp.sum(gradient), jnp.asarray(200, dtype), rtol=rtol)
    h = 0.03
    each = [h * jnp.eye(2, dtype=dtype)[i] for i in (0, 1)]
    central = [(f(t + e) - f(t - e)) / (2 * h) for e in each]
    close(gradient, jnp.stack(central), rtol=5e-3)
    second = jax.hessian(f)(t)
    slopes = [(jax.grad(f)(t + e) - jax.grad(f)(t - e)) / (2 * h) for e in each]
    close(second, jnp.stack(slopes), rtol=2e-2, atol=0.02)
    # along the factor it is zero, as that of n log c
    rest = float(jnp.max(jnp.abs(jnp.sum(second, axis=0))))
    assert rest < (0.01 if dtype == jnp.float32 else 1e-7)


@pytest.mark.exhaustive
def test_second_derivatives_where_the_space_ends_exactly():
    operator = lambda a: hotk.HessianOperator(
        lambda x, a: jnp.sum(a * x**2) / 2, jnp.ones(150), a
    )
    f = lambda a: logdet(operator(a), KEY, samples=3, steps=20).value
    close(jax.hessian(f)(2.0), -150 / 4, rtol=1e-5)
    close(jax.grad(jax.grad(jax.grad(f)))(2.0), 2 * 150 / 8, rtol=1e-5)
    close(hotk.second_derivative(f, 2.0), -150 / 4, rtol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", [12, 30])
def test_an_integral_over_a_spectrum_of_few_eigenvalues_has_derivatives(steps):
    """The trace of the inverse: minus itself, along a factor."""

    def f(t):
        A = of_few_examples(t, dtype=jnp.float64)
        found = hotk.estimate.spectrum(A, KEY, samples=5, steps=steps)
        return found.integrate(lambda nodes: 1 / nodes).value

    t = jnp.zeros(2)
    gradient = jax.grad(f)(t)
    close(jnp.sum(gradient), -f(t), rtol=1e-6)
    h = 1e-4
    central = [(f(t + h * e) - f(t - h * e)) / (2 * h) for e in jnp.eye(2)]
    close(gradient, jnp.stack(central), rtol=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("derivative", [jax.grad, jax.jacfwd])
def test_derivatives_of_what_is_not_positive_definite_are_nan(derivative):
    f = lambda x, a: a * jnp.sum(x**2) / 2 - 5 * x[0] ** 2
    operator = lambda a: hotk.HessianOperator(f, jnp.ones(30), a)
    value = lambda a: logdet(operator(a), KEY, **OPTIONS).value
    assert jnp.isnan(derivative(value)(1.0))
    close(derivative(value)(20.0), 29 / 20 + 1 / 10, rtol=0.3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", [3, 6, 12])
def test_second_derivatives_of_an_integral_are_right_or_nan(steps):
    """Three eigenvalues: with more steps rounding repeats nodes."""
    n = 20
    Q = jnp.asarray(np.linalg.qr(np.random.default_rng(5).normal(size=(n, n)))[0])

    def f(t):
        three = jnp.array([1, 1.7, 3]) * jnp.exp(jnp.array([1.0, 0.0, 2.0]) * t)
        each = three[np.repeat([0, 1, 2], [8, 6, 6])]
        g = lambda x, each: jnp.sum(each * (Q.T @ x) ** 2) / 2
        A = hotk.HessianOperator(g, jnp.ones(n), each)
        found = hotk.estimate.spectrum(A, KEY, samples=3, steps=steps)
        return found.integrate(jnp.sqrt).value

    h = 1e-3
    run = jax.jit(jax.grad(f))
    difference = float(run(h) - run(-h)) / (2 * h)
    for order in (jax.jacfwd(jax.grad(f)), jax.grad(jax.grad(f))):
        second = float(jax.jit(order)(0.0))
        assert np.isfinite(second) or steps > 3
        if np.isfinite(second):
            assert second == pytest.approx(difference, rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*progress")
def test_of_data_in_batches_it_is_exact_for_few_parameters():
    """It was an estimate, of ten times as many products."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 6))
    loss = lambda w, rows: jnp.mean((rows @ w) ** 2 + jnp.cosh(rows @ w))
    A = hotk.HessianOperator.over(loss, jnp.ones(6), [rows[:15], rows[15:]])
    weights = 2 + np.cosh(rows @ np.ones(6))
    dense = (rows.T * weights) @ rows / 30
    found = logdet(A, KEY)
    assert found.method == "exact"
    assert (int(found.products), float(found.error)) == (6, 0.0)
    np.testing.assert_allclose(found.value, np.linalg.slogdet(dense)[1], rtol=1e-10)
