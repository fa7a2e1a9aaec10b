"""Functions with derivatives where those of the plain ones are NaN."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import hotk
from hotk import safe
from tests import reference
from tests.helpers import close


NESTINGS = [getattr(hotk, name) for name in reference.NESTINGS]
each_nesting = pytest.mark.parametrize("mode", NESTINGS, ids=reference.NESTINGS)
Z = jnp.zeros(3)


@pytest.mark.thinned(2)
@each_nesting
def test_norms_at_zero(mode):
    got = hotk.hessian(lambda x: jnp.exp(-(safe.norm(x) ** 2)), Z, mode=mode)
    close(got, -2 * np.eye(3))
    close(hotk.hessian(lambda x: safe.norm(x) ** 2, Z, mode=mode), 2 * np.eye(3))
    close(hotk.gradient(safe.norm, Z), np.zeros(3))
    # the plain one is what the test would otherwise not see
    assert np.isnan(jax.hessian(lambda x: jnp.linalg.norm(x) ** 2)(Z)).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_norms_at_zero_in_low_precision(dtype, default_settings):
    z = jnp.zeros(2, dtype)
    got = hotk.hessian(lambda x: safe.norm(x) ** 2, z)
    close(got, 2 * np.eye(2).astype(dtype), rtol=1e-2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_higher_derivatives_of_norms_at_zero(dtype):
    v = jnp.array([1.0, 0.5], dtype)
    orders = range(1, 5 if dtype == "float64" else 4)
    for power, known in ((2, [0, 2.5, 0, 0]), (4, [0, 0, 0, 37.5])):
        f = lambda x, power=power: safe.norm(x) ** power
        for order in orders:
            f = lambda x, f=f: jax.jvp(f, (x,), (v,))[1]
            found = f(jnp.zeros(2, dtype))
            close(float(found), known[order - 1], rtol=0, atol=1e-12)


# g, and its second and fourth derivative at 0 by hand; None where there is no fourth
RADIAL = {
    "Matern 3/2": (lambda r: (1 + r) * jnp.exp(-r), -1, None),
    "Matern 5/2": (
        lambda r: (1 + 5**0.5 * r + 5 * r**2 / 3) * jnp.exp(-(5**0.5) * r),
        -5 / 3,
        25,
    ),
    "sinc": (jnp.sinc, -(np.pi**2) / 3, np.pi**4 / 5),
    "r - log1p(r)": (lambda r: r - jnp.log1p(r), 1, None),
    "cosine": (jnp.cos, -1, 1),
    "fourth power": (lambda r: r**4, 0, 24),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [0.0, 1e-30])
@pytest.mark.parametrize("name", RADIAL)
def test_radial_functions_at_zero_and_near_it(name, size):
    g, second, fourth = RADIAL[name]
    z, v = size * jnp.array([1.0, -2.0]), jnp.array([1.0, 0.5])
    f = lambda x: safe.radial(x, g)
    near = {"rtol": 1e-12, "atol": 1e-14}
    close(f(z), np.asarray(g(jnp.linalg.norm(z))), atol=1e-15)
    for mode in NESTINGS[:1] if size else NESTINGS:
        close(hotk.hessian(f, z, mode=mode), second * np.eye(2), **near)
    close(hotk.laplacian(f, z), 2 * second, **near)
    close(hotk.hessian_diagonal(f, z), second * np.ones(2), **near)
    close(hotk.partial(f, z, (2, 0)), second, **near)
    # what a Gaussian process has at one point: the covariance of two gradients
    mixed = hotk.cross_hessian(lambda x, y: f(x - y), z, jnp.zeros(2))
    close(mixed, -second * np.eye(2), **near)
    if fourth is not None:
        # D^4 of c_4 |x|^4 along v is 24 c_4 |v|^4; its bi-Laplacian 64 c_4
        found = hotk.derivatives(f, z, v, order=4)[4]
        close(found, fourth * 1.25**2, rtol=1e-11)
        close(hotk.biharmonic(f, z), 64 * fourth / 24, rtol=1e-11)
        nested = jax.jacfwd(jax.jacrev(jax.jacfwd(jax.jacrev(f))))(z)
        close(nested[0, 0, 1, 1], fourth / 3, rtol=1e-11, atol=1e-11)


@pytest.mark.exhaustive
def test_radial_functions_far_from_zero_along_axes_and_by_what_they_capture():
    rows = np.array([[0.3, -0.4], [0.0, 0.0], [3.0, 4.0]])
    kernel = lambda x, scale: safe.radial(x, lambda r: jnp.cosh(r / scale), axis=-1)
    plain = lambda x, scale: jnp.cosh(jnp.linalg.norm(x) / scale)
    close(kernel(rows, 2.0), np.cosh(np.linalg.norm(rows, axis=1) / 2))
    for x in rows[::2]:
        close(hotk.hessian(kernel, x, 2.0), np.asarray(jax.hessian(plain)(x, 2.0)))
        slope = jax.grad(plain, argnums=1)(x, 2.0)
        close(hotk.gradient(kernel, x, 2.0, argnums=1), np.asarray(slope))
    # at 0 the Hessian is I / scale^2, and its derivative by the scale -2 I / scale^3
    curved = lambda scale: hotk.hessian(kernel, jnp.zeros(2), scale)
    close(jax.jacfwd(curved)(2.0), -0.25 * np.eye(2))
    close(jax.vmap(lambda x: hotk.laplacian(kernel, x, 2.0))(rows)[1], 0.5)
    close(safe.radial(np.array([3 + 4j]), jnp.exp), np.exp(5.0))


@pytest.mark.parametrize("r", [1e-7, 1e-6, 1e-4])
def test_third_derivatives_near_a_zero_of_the_function(r):
    f = lambda t: safe.radial(jnp.stack([t, 0.0 * t]), lambda s: jnp.log(jnp.cosh(s)))
    third = jax.grad(jax.grad(jax.grad(f)))(r)
    close(third, -2 * np.tanh(r) / np.cosh(r) ** 2, rtol=1e-6)


def test_radial_functions_with_a_kink_are_those_of_the_safe_norm(default_settings):
    f, z = lambda x: safe.radial(x, lambda r: jnp.exp(-r)), jnp.zeros(2, "float32")
    assert hotk.gradient(f, z).tolist() == [0, 0]
    assert not hotk.laplacian(f, z) > -1e6  # minus infinity: as huge as may be
    matern = lambda x: safe.radial(x, lambda r: (1 + r) * jnp.exp(-r))
    close(hotk.hessian(matern, z), -np.eye(2, dtype="float32"))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("r", [1e-3, 0.3, 2.0])
def test_radial_functions_that_are_flat_at_zero(r):
    # no second derivative at 0 says how far their series is right
    x = r * np.array([0.6, 0.8])
    powers = lambda k: (r**k, k**2 * r ** (k - 2))  # value, and Laplacian in the plane
    laplacian = lambda d1, d2: d2 + d1 / r
    cosine = laplacian(
        -2 * r * np.sin(r**2), -2 * np.sin(r**2) - 4 * r**2 * np.cos(r**2)
    )
    far = max(r - 1, 0.0)
    for g, (value, curved) in [
        (lambda r: r**8, powers(8)),
        (lambda r: r**3, powers(3)),
        (lambda r: jnp.cos(r**2), (np.cos(r**2), cosine)),
        (lambda r: jax.nn.relu(r - 1) ** 3, (far**3, laplacian(3 * far**2, 6 * far))),
    ]:
        f = lambda x, g=g: safe.radial(x, g)
        close(f(x), value)
        close(hotk.laplacian(f, x), curved, rtol=1e-6)
        close(jnp.trace(jax.hessian(f)(x)), curved, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_norms_of_any_size(size):
    x = size * np.array([3.0, 4.0])
    close(safe.norm(x), 5 * size, rtol=1e-14)
    close(hotk.gradient(safe.norm, x), np.array([0.6, 0.8]))
    hessian = np.array([[0.64, -0.48], [-0.48, 0.36]]) / (5 * size)
    close(hotk.hessian(safe.norm, x), hessian, atol=0)


@pytest.mark.exhaustive
def test_norms_along_axes_and_of_complex_numbers():
    x = np.arange(6.0).reshape(2, 3)
    for axis in (None, 0, 1, (0, 1)):
        for keepdims in (False, True):
            expected = np.linalg.norm(x, axis=axis, keepdims=keepdims)
            close(safe.norm(x, axis, keepdims=keepdims), np.asarray(expected))
    close(safe.norm(np.array([3 + 4j])), 5.0)


@pytest.mark.thinned(2)
@each_nesting
def test_powers_at_zero(mode):
    third = lambda f: hotk.second_derivative(jax.grad(f), 0.0, mode=mode)
    close(third(lambda x: safe.power(x, 2.0)), 0.0)
    close(third(lambda x: safe.power(x, 3.0)), 6.0)
    close(hotk.second_derivative(lambda x: safe.power(x, 2), 0.0, mode=mode), 2.0)
    two = jnp.asarray(2.0)
    close(hotk.second_derivative(lambda x: safe.power(x, two), 0.0, mode=mode), 2.0)


@each_nesting
def test_powers_elsewhere(mode):
    close(
        hotk.second_derivative(lambda x: safe.power(x, 2.5), 2.0, mode=mode),
        3.75 * 2**0.5,
    )
    by_y = hotk.second_derivative(
        lambda y: safe.power(jnp.asarray(2.0), y), 3.0, mode=mode
    )
    close(by_y, 8 * np.log(2) ** 2)


@pytest.mark.thinned(12, "mode")
@each_nesting
@pytest.mark.parametrize("x", [-40.0, -1.0, 0.0, 2.0, 40.0, 300.0])
def test_softplus_and_sigmoid_keep_their_digits(x, mode):
    with mpmath.workdps(200):
        sigmoid = 1 / (1 + mpmath.exp(-mpmath.mpf(x)))
        softplus = sigmoid * (1 - sigmoid)
        expected = float(softplus), float(softplus * (1 - 2 * sigmoid))
    close(hotk.second_derivative(safe.softplus, x, mode=mode), expected[0], atol=0)
    close(hotk.second_derivative(safe.sigmoid, x, mode=mode), expected[1], atol=0)


@pytest.mark.thinned(1)
@each_nesting
def test_logsumexp_without_some_of_its_terms(mode):
    x = jnp.array([0.0, -jnp.inf, 0.0])
    expected = np.array([[1, 0, -1], [0, 0, 0], [-1, 0, 1]]) / 4
    close(hotk.hessian(safe.logsumexp, x, mode=mode), expected)
    nothing = jnp.full(2, -jnp.inf)
    close(hotk.hessian(safe.logsumexp, nothing, mode=mode), np.zeros((2, 2)))
    assert safe.logsumexp(nothing) == -jnp.inf
    assert safe.logsumexp(jnp.array([1e4, 1e4])) == 1e4 + np.log(2)


@pytest.mark.thinned(3)
@each_nesting
def test_quotients_and_branches(mode):
    quotient = lambda x: jnp.sum(safe.divide(x**3, x))
    got = hotk.hessian(quotient, jnp.array([0.0, 2.0]), mode=mode)
    close(got, np.diag([0.0, 2.0]))
    branch = lambda x: safe.apply_where(x > 0, jnp.log, x, 5.0)
    close(hotk.second_derivative(branch, 0.0, mode=mode), 0.0)
    close(hotk.second_derivative(branch, 2.0, mode=mode), -0.25)
    assert branch(0.0) == 5.0


@each_nesting
@pytest.mark.parametrize("y", [0.0, 0.5, 1.0, 3.0])
def test_powers_by_both_arguments(mode, y):
    z = np.array([2.0, y])
    f = lambda z: safe.power(z[0], z[1])
    x, log = 2.0, np.log(2.0)
    by_x = y * (y - 1) * x ** (y - 2)
    mixed = x ** (y - 1) * (1 + y * log)
    known = np.array([[by_x, mixed], [mixed, x**y * log**2]])
    close(hotk.hessian(f, z, mode=mode), known)


@pytest.mark.exhaustive
def test_higher_derivatives_of_x_to_the_x():
    f = lambda x: safe.power(x, x)
    with mpmath.workdps(30):
        known = [float(mpmath.diff(lambda x: x**x, 2, k)) for k in range(1, 5)]
    for order in range(4):
        f = jax.grad(f)
        close(f(2.0), known[order], rtol=1e-12)


@pytest.mark.parametrize("x", [-1.0, 0.0])
@pytest.mark.parametrize("y", [0.0, 1.0, 2.0])
def test_powers_of_what_is_not_positive_have_no_derivative_by_the_exponent(x, y):
    found = hotk.hessian(lambda z: safe.power(z[0], z[1]), np.array([x, y]))
    close(found, np.diag([2.0 if y == 2 else 0.0, 0.0]))


@pytest.mark.parametrize("y", [2, np.int64(2), np.array(2)])
def test_integers_as_exponents(y):
    with jax.numpy_dtype_promotion("standard"):
        close(hotk.gradient(safe.power, 3.0, y), 6.0)
        close(jax.jit(jax.grad(safe.power))(3.0, y), 6.0)


@pytest.mark.parametrize("x", [2, np.int32(2), np.array(2), jnp.array([2, 2])])
def test_integers_as_bases(x):
    slope = 8 * np.log(2) * np.size(x)
    with jax.numpy_dtype_promotion("standard"):
        power = lambda y: jnp.sum(safe.power(x, y))
        close(power(jnp.array(3.0)), 8.0 * np.size(x))
        close(hotk.gradient(power, 3.0), slope)
        close(hotk.second_derivative(power, 3.0), slope * np.log(2))
        close(jax.jit(jax.grad(power))(3.0), slope)
    two = jnp.array(2, jnp.bfloat16)
    assert safe.power(2, two).dtype == jnp.bfloat16
    assert safe.power(2, jnp.array(3)).dtype == jnp.array(3).dtype


def test_nan_stays_and_infinity_does():
    assert np.isnan(safe.logsumexp(jnp.array([jnp.nan, 1.0])))
    assert np.isnan(safe.logsumexp(jnp.array([jnp.inf, jnp.nan])))
    assert safe.logsumexp(jnp.array([jnp.inf, 1.0])) == jnp.inf


@pytest.mark.parametrize("name", ["sqrt", "norm", "sigmoid", "softplus", "logsumexp"])
def test_integers_are_refused(name):
    with pytest.raises(hotk.DtypeError, match=f"safe.{name}"):
        getattr(safe, name)(jnp.array([1, 2]))
    for narrow in ("sqrt", "norm"):
        with pytest.raises(hotk.DtypeError, match="float16"):
            getattr(safe, narrow)(jnp.array([1.0], "float16"))
