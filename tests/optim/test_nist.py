"""The regressions of NIST are those that are certified."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.optim.nist import REGRESSIONS, digits


# The data of Lanczos1 are exact: with eleven digits the gradient is not zero there.
@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", [name for name in REGRESSIONS if name != "Lanczos1"])
def test_certified_standard_errors(name):
    known = REGRESSIONS[name]
    potential = hotk.curvature.LeastSquares(known.residuals)
    mode = jnp.asarray(known.certified)
    freedom = len(known.residuals(mode)) - len(mode)
    found = hotk.laplace_approximation(
        potential, mode, scale=freedom / known.sum_of_squares
    )
    assert digits(found.standard_errors, known.standard_errors) >= 6


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", REGRESSIONS)
def test_the_certified_numbers_are_those_of_the_residuals(name):
    known = REGRESSIONS[name]
    b = jnp.asarray(known.certified)
    r = np.asarray(known.residuals(b))
    jacobian = np.asarray(jax.jacobian(known.residuals)(b))
    # Lanczos1 is exact: its 1e-25 needs more than the 11 digits of the parameters
    np.testing.assert_allclose(r @ r, known.sum_of_squares, rtol=1e-8, atol=1e-20)
    # the factor of J^T J without its product, whose condition is 1e20 and more
    scale = np.linalg.norm(jacobian, axis=0)
    inverse = np.linalg.inv(np.linalg.qr(jacobian / scale).R)
    variance = known.sum_of_squares / (len(r) - len(b))
    errors = variance**0.5 * np.linalg.norm(inverse, axis=1) / scale
    np.testing.assert_allclose(errors, known.standard_errors, rtol=1e-5)
    for start in known.starts:
        assert np.isfinite(known.residuals(jnp.asarray(start))).all()


@pytest.mark.exhaustive
def test_digits_are_those_of_the_worst_parameter():
    certified = np.array([1.0, -200.0])
    assert digits(certified, certified) == 11
    np.testing.assert_allclose(digits([1.0, -200.02], certified), 4)
    np.testing.assert_allclose(digits([1.001, -200.02], certified), 3)
    assert digits([1.0, 200.0], certified) == 0
    assert digits([np.nan, -200.0], certified) == 0


@pytest.mark.exhaustive
def test_terms_of_a_sum_may_change_places():
    lanczos = REGRESSIONS["Lanczos2"]
    assert lanczos.digits(lanczos.certified[[4, 5, 0, 1, 2, 3]]) == 11
    assert lanczos.digits(lanczos.certified[[1, 0, 2, 3, 4, 5]]) == 0
    gauss = REGRESSIONS["Gauss1"]
    b = gauss.certified[[0, 1, 5, 6, 7, 2, 3, 4]]
    b[4] *= -1
    assert gauss.digits(b) == 11
    assert len(REGRESSIONS) == 27


# What nothing here solves from its first start.
OUT_OF_REACH = {("MGH10", 0)}
WHOLE = {
    "trust_region": hotk.optim.trust_region(),
    "cubic_newton": hotk.optim.cubic_newton(),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("method", WHOLE)
@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_sum_of_squares_is_minimized_in_any_units(name, method, start):
    """Powers of ten from -4 to 4: right, or not called converged."""
    known = REGRESSIONS[name]
    drawn = np.random.default_rng(sum(map(ord, name)))
    unit = 10.0 ** drawn.integers(-4, 5, len(known.certified))
    f = hotk.curvature.LeastSquares(lambda p, u: known.residuals(p / u))
    begin = jnp.asarray(known.starts[start] * unit)
    args = (jnp.asarray(unit),)
    found = hotk.optim.minimize(f, begin, WHOLE[method], args=args)
    if (name, start) in OUT_OF_REACH:
        assert not found.converged
    else:
        assert found.converged
        assert known.digits(np.asarray(found.x) / unit) >= 4
