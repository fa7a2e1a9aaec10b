"""Series of elementary and special functions: their values, and what they cost."""

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import mpmath
import numpy as np
import pytest
import scipy.special
from jax import lax

import hotk
from hotk._core import equations
from tests.helpers import close


# ---- values to order twelve


def scaled_bessel(degree):
    """Return the function on the side of zero that its argument is on."""

    def f(x):
        sign = 1 if mpmath.re(x) > 0 else -1
        return mpmath.exp(-sign * x) * mpmath.besseli(degree, x)

    return f


GAMMA = [1e-6, 0.01, 0.7, 2.3, 9.5, 40.0, 1e4, -0.3, -0.5, -3.7, -25.4]
ABOVE = [0.01, 0.7, 2.3, 40.0]
EXACT = {
    "lgamma": (lax.lgamma, mpmath.loggamma, GAMMA),
    "digamma": (lax.digamma, mpmath.digamma, GAMMA),
    "polygamma 1": (
        lambda x: special.polygamma(1, x),
        lambda x: mpmath.psi(1, x),
        GAMMA,
    ),
    "polygamma 3": (
        lambda x: special.polygamma(3, x),
        lambda x: mpmath.psi(3, x),
        GAMMA,
    ),
    "zeta 3": (
        lambda x: lax.zeta(jnp.full_like(x, 3), x),
        lambda x: mpmath.zeta(3, x),
        [*ABOVE, -3.7],
    ),
    "zeta 2.5": (
        lambda x: lax.zeta(jnp.full_like(x, 2.5), x),
        lambda x: mpmath.zeta(2.5, x),
        ABOVE,
    ),
    "bessel_i0e": (
        lax.bessel_i0e,
        scaled_bessel(0),
        [1e-3, 0.7, 5.0, 39.0, 41.0, 300.0, -0.7, -60.0],
    ),
    "bessel_i1e": (
        lax.bessel_i1e,
        scaled_bessel(1),
        [1e-3, 0.7, 5.0, 39.0, 41.0, 300.0, -0.7, -60.0],
    ),
    "tan": (jnp.tan, mpmath.tan, [0.3, 1.2, -2.0]),
    "cbrt": (
        jnp.cbrt,
        lambda x: mpmath.sign(mpmath.re(x)) * mpmath.cbrt(x * mpmath.sign(x)),
        [0.3, 1e-3, 50.0, -2.0],
    ),
    "erf_inv": (lax.erf_inv, mpmath.erfinv, [0.3, -0.8, 0.99]),
    "ndtri": (
        special.ndtri,
        lambda p: mpmath.sqrt(2) * mpmath.erfinv(2 * p - 1),
        [0.02, 0.3, 0.9],
    ),
    "power": (lambda x: x**1.7, lambda x: x ** mpmath.mpf(1.7), [0.3, 1e-3, 7.0]),
    "power of a base": (lambda x: 1.7**x, lambda x: mpmath.mpf(1.7) ** x, [0.3, -7.0]),
    "power of itself": (lambda x: x**x, lambda x: x**x, [0.3, 7.0]),
    "softplus": (
        jax.nn.softplus,
        lambda x: mpmath.log1p(mpmath.exp(x)),
        [0.3, -7.0, 20.0],
    ),
    "logaddexp": (
        lambda x: jnp.logaddexp(x, x * x),
        lambda x: mpmath.log(mpmath.exp(x) + mpmath.exp(x * x)),
        [0.3, -2.0],
    ),
    "log_ndtr": (
        special.log_ndtr,
        lambda x: mpmath.log(mpmath.ncdf(x)),
        [0.3, 2.0],
    ),
}


def known(f, points, order):
    with mpmath.workdps(80):
        columns = [mpmath.taylor(f, mpmath.mpf(x), order) for x in points]
        return [[float(mpmath.re(c[k])) for c in columns] for k in range(1, order + 1)]


def found(f, points, order):
    x = jnp.array(points)
    return np.array(hotk.taylor(f, x, jnp.ones_like(x), order=order)[1:])


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", EXACT)
def test_coefficients_to_order_twelve(name):
    f, exact, points = EXACT[name]
    if name == "ndtri" and "custom_jvp" not in str(jax.make_jaxpr(f)(0.3)):
        pytest.skip("this JAX differentiates its approximation of the function")
    expected = known(exact, points, 12)
    np.testing.assert_allclose(found(f, points, 12), expected, rtol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["lgamma", "tan", "cbrt", "erf_inv", "power"])
def test_coefficients_along_a_curve(name):
    f, exact, _ = EXACT[name]
    curve = lambda x: exact(x * x + mpmath.sin(x))
    coefficients = found(lambda x: f(x * x + jnp.sin(x)), [0.3, 0.5], 10)
    expected = known(curve, [0.3, 0.5], 10)
    np.testing.assert_allclose(coefficients, expected, rtol=1e-12)


@pytest.mark.thinned(2)
@pytest.mark.counts  # plain JAX has a kink there
@pytest.mark.parametrize(
    ("f", "expected"),
    [
        (special.i0, [1.0, 0.0, 1 / 2, 0.0, 3 / 8]),
        (special.i1, [0.0, 1 / 2, 0.0, 3 / 8, 0.0]),
        (lambda k: jnp.log(special.i0e(k)) + k, [0.0, 0.0, 1 / 2, 0.0, -3 / 8]),
    ],
)
def test_bessel_functions_at_zero(f, expected):
    close(jnp.array(hotk.derivatives(f, 0.0, 1.0, order=4)), np.array(expected))
    close(hotk.laplacian(f, 0.0), expected[2])


def test_a_whole_power_at_zero_that_the_program_does_not_know():
    cube = lambda x, r: x**r
    derivatives = hotk.derivatives(cube, 0.0, 1.0, jnp.asarray(3.0), order=5)
    close(jnp.array(derivatives), np.array([0.0, 0.0, 0.0, 6.0, 0.0, 0.0]))


def test_the_exponent_of_a_power_has_derivatives_of_its_own():
    third = lambda r: hotk.derivatives(lambda x: x**r, 0.7, 1.0, order=3)[3]
    # r (r - 1) (r - 2) x^(r - 3) at r = 2
    close(jax.grad(third)(jnp.asarray(2.0)), 2 / 0.7)


def test_derivatives_of_log_gamma_have_gradients_at_whole_numbers():
    third = lambda x: hotk.derivatives(lax.lgamma, x, 1.0, order=3)[3]
    close(jax.grad(third)(2.0), scipy.special.polygamma(3, 2.0))


def test_a_laplacian_of_log_gamma():
    f = lambda x: lax.lgamma(x @ x)
    x = jnp.array([0.3, 0.8, -0.6])
    square = float(x @ x)
    first, second = (scipy.special.polygamma(k, square) for k in (0, 1))
    close(hotk.laplacian(f, x), 4 * square * second + 6 * first)


def test_log_gamma_in_single_precision():
    with jax.enable_x64(False):
        x = jnp.array([0.7, -3.7, 40.0], jnp.float32)
        top = hotk.derivatives(lax.lgamma, x, jnp.ones_like(x), order=4)[4]
        assert top.dtype == jnp.float32
    expected = [float(mpmath.psi(3, float(a))) for a in x]
    np.testing.assert_allclose(top, expected, rtol=2e-5)


# ---- what they cost


NAMES = """
acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log1p logistic
rsqrt sin sinh sqrt tanh
"""
FUNCTIONS = {
    **{name: f for name, (f, _, _) in EXACT.items()},
    **{name: getattr(lax, name) for name in NAMES.split()},
    "atan2": lambda x: jnp.arctan2(x, x * x + 1),
    "betainc": lambda x: special.betainc(1.5, 2.5, x),
    "betaln": lambda x: special.betaln(x, x + 1),
    "exp1": special.exp1,
    "expi": special.expi,
    "gamma": special.gamma,
    "gelu": jax.nn.gelu,
    "i0": special.i0,
    "igamma": lambda x: lax.igamma(1.5, x),
    "igammac": lambda x: lax.igammac(1.5, x),
    "integer_pow": lambda x: x**-3,
    "log_softmax": lambda x: jax.nn.log_softmax(jnp.stack([x, x * x]))[0],
    "logsumexp": lambda x: special.logsumexp(jnp.stack([x, x * x])),
    "mish": jax.nn.mish,
    "sinc": jnp.sinc,
    "xlogy": lambda x: special.xlogy(x, x + 1),
    "zeta": lambda x: special.zeta(3.0, x),
}


def size(f, order):
    derivatives = lambda x: hotk.derivatives(f, x, 1.0, order=order)
    return sum(1 for _ in equations(jax.make_jaxpr(derivatives)(0.41).jaxpr))


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_equations_grow_with_the_square_of_the_order(name):
    small, middle, large = (size(FUNCTIONS[name], order) for order in (4, 8, 12))
    # Of a K^2 + b K + c the differences are at most as 80 to 48 if b is not negative,
    # of (K - 2)^2 as 2 to 1; those of K^3 are as 2.7 to 1.
    assert large - middle <= 2 * (middle - small)
