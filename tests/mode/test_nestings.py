"""Every nesting is right or refused, and `Auto` finds one wherever there is one."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import hotk
from tests import reference
from tests.cases import (
    SCENARIOS,
    components,
    cumulative_product,
    knowing,
    no_entries,
)
from tests.functions import POINT, SCALAR, VECTOR
from tests.helpers import close


each_nesting = pytest.mark.parametrize("nesting", reference.NESTINGS)

# --- cases known by hand -------------------------------------------------------------


@pytest.mark.thinned(7, "nesting")
@each_nesting
@knowing("hvp")
def test_hvp_known_by_hand(make, nesting):
    case = make()
    got = hotk.hvp(case.f, *case.inputs("hvp"), mode=getattr(hotk, nesting))
    close(got, case.hvp)


@pytest.mark.thinned(5, "nesting")
@each_nesting
@knowing("hessian", [*SCENARIOS, components, cumulative_product, no_entries])
def test_hessian_known_by_hand(make, nesting):
    case = make()
    got = hotk.hessian(case.f, *case.inputs("hessian"), mode=getattr(hotk, nesting))
    close(got, case.hessian)


@pytest.mark.thinned(13, "nesting")
@each_nesting
@knowing("second_derivative")
def test_second_derivative_known_by_hand(make, nesting):
    case = make()
    got = hotk.second_derivative(case.f, case.x, mode=getattr(hotk, nesting))
    close(got, case.second_derivative)


@pytest.mark.thinned(6)
@each_nesting
@knowing("quadratic_form", SCENARIOS)
def test_quadratic_form_known_by_hand(make, nesting):
    case = make()
    got = hotk.quadratic_form(case.f, case.x, case.v, mode=getattr(hotk, nesting))
    close(got, case.quadratic_form)


@pytest.mark.thinned(5, "nesting")
@each_nesting
@knowing("hessian_diagonal", SCENARIOS)
def test_hessian_diagonal_known_by_hand(make, nesting):
    case = make()
    got = hotk.hessian_diagonal(case.f, case.x, mode=getattr(hotk, nesting))
    close(got, case.hessian_diagonal)


# --- ordinary functions --------------------------------------------------------------

# What has no second derivative in JAX, in any nesting, and why.
WITHOUT_SECOND_DERIVATIVE = {
    "scalar gammainc in a": "the derivative by a is a primitive without a rule",
    "scalar betainc in a": "no derivative by a and b at all",
    "scalar sqrtm": "no rule for the Schur decomposition",
    "scalar schur": "no rule for the Schur decomposition",
    "scalar eigvals": "one derivative only: that of the eigenvectors is refused",
    "scalar eig": "eigenvectors of unsymmetric matrices: one derivative only",
    "scalar hessenberg": "no rule for the Hessenberg decomposition",
    "scalar svd with all vectors": "no rule for the full matrices",
    "scalar host callback": "JAX cannot look into it",
    "scalar next after": "no rule",
}
LEARNED_LATER = {"scalar next after"}  # by jax 0.12
# What JAX computes in single precision whatever comes in: tolerance of second
# derivatives.
SINGLE_PRECISION = {
    "vector single precision": 1e-5,
    "vector attention": 1e-5,
    "scalar attention": 1e-5,
}
# The same function without a rule of its own, where JAX has no forward over forward.
SAME_FUNCTION = {
    "vector custom vjp": jnp.sin,
    "vector custom vjp calling itself": jnp.sin,
}
# Whose derivative in JAX is, on purpose, not that of the values.
NOT_THE_DERIVATIVE_OF_VALUES = {
    "vector stop gradient",
    "scalar random gamma",
    "scalar random beta",
}
# Compilers need most of a minute for all nestings of one of these.
SLOW = {
    "vector expm",
    "scalar expm",
    "scalar random beta",
    "scalar zeta",
    "scalar gmres",
    "scalar lstsq",
}

SUBJECTS = [f"vector {name}" for name in VECTOR] + [f"scalar {name}" for name in SCALAR]
DIRECTION = np.array([0.7, -1.3, 0.45, 1.1, -0.6, 0.9])


def subjects(names):
    slow = pytest.mark.slow
    names = [pytest.param(name, marks=slow) if name in SLOW else name for name in names]
    return pytest.mark.parametrize("name", names)


class Subject(NamedTuple):
    f: Any
    x: Any
    v: Any


@functools.cache
def subject(name):
    """Return a function made real by a sum of its outputs and their squares."""
    kind, _, key = name.partition(" ")
    f, x, v = (
        (VECTOR[key], POINT, DIRECTION)
        if kind == "vector"
        else (*SCALAR[key], DIRECTION[0])
    )
    return Subject(_real(f), jnp.array(x), jnp.array(v))


def _real(f):
    def real(x):
        y = f(x)
        weights = jnp.sin(1.5 + jnp.arange(y.size, dtype=y.dtype) ** 2)
        return jnp.sum(weights.reshape(y.shape) * y) + jnp.sum(y * y) / 2

    return real


@functools.cache
def nestings_of_jax(name):
    """Return the nestings in which JAX alone has a Hessian-vector product."""
    f, x, v = subject(name)

    def exists(product):
        try:  # what cannot be done may show as late as in lowering
            jax.jit(functools.partial(product, f)).lower(x, v)
        except (NotImplementedError, TypeError, ValueError):
            return False
        return True

    return {name for name, hvp in reference.NESTINGS.items() if exists(hvp)}


@functools.cache
def expected(name):
    """Return the Hessian-vector product by two forward derivatives."""
    f, x, v = subject(name)
    if name in SAME_FUNCTION:
        f = _real(SAME_FUNCTION[name])
    if x.ndim == 0:  # no vmap, which not every function has
        one = jnp.ones_like(x)
        return jax.jit(lambda x, v: jvp_of_jvp(f, x, v, one))(x, v)
    return jax.jit(functools.partial(reference.forward_over_forward, f))(x, v)


def jvp_of_jvp(f, x, v, w):
    return reference.jvp(lambda x: reference.jvp(f, x, v), x, w)


def check(name, got):
    wanted = np.asarray(expected(name), subject(name).x.dtype)
    tolerance = SINGLE_PRECISION.get(name, 1e-10)
    close(got, wanted, rtol=0, atol=tolerance * max(1.0, np.abs(wanted).max()))


DIFFERENTIABLE = [name for name in SUBJECTS if name not in WITHOUT_SECOND_DERIVATIVE]


def _in_turn():
    """List all pairs; each function takes one of the nestings, the others are slow."""
    pairs, nestings = [], list(reference.NESTINGS)
    for i, name in enumerate(DIFFERENTIABLE):
        own = nestings[i % len(nestings)]
        for nesting in ("Auto", *nestings):
            marks = () if nesting in ("Auto", own) else pytest.mark.slow
            pairs.append(
                pytest.param(name, nesting, id=f"{name}-{nesting}", marks=marks)
            )
    return pairs


@pytest.mark.thinned(2, "nesting")
@pytest.mark.parametrize(("name", "nesting"), _in_turn())
def test_each_nesting_is_right_or_refused_and_auto_is_right(name, nesting):
    mode = hotk.Auto() if nesting == "Auto" else getattr(hotk, nesting)
    try:
        got = hotk.hvp(*subject(name), mode=mode)
    except hotk.ModeError:
        assert nesting != "Auto", f"JAX does it: {nestings_of_jax(name)}"
        assert nesting not in nestings_of_jax(name)
    else:
        check(name, got)


@pytest.mark.thinned(1)
@subjects(WITHOUT_SECOND_DERIVATIVE)
def test_what_jax_cannot_differentiate_is_refused(name):
    if nestings_of_jax(name):
        assert name in LEARNED_LATER, "JAX has learned it: strike it from the table"
        check(name, hotk.hvp(*subject(name)))
        return
    for nesting in reference.NESTINGS:
        with pytest.raises(hotk.ModeError):
            hotk.hvp(*subject(name), mode=getattr(hotk, nesting))
    with pytest.raises(hotk.ModeError):
        hotk.hvp(*subject(name))


# Weights of the second difference of order eight, from its middle.
STENCIL = np.array([-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560])


@pytest.mark.thinned(4)
@subjects(
    name
    for name in DIFFERENTIABLE
    if name not in NOT_THE_DERIVATIVE_OF_VALUES | SINGLE_PRECISION.keys()
)
def test_what_is_expected_is_the_second_derivative_of_the_values(name):
    f, x, v = subject(name)
    f, h = jax.jit(f), 0.004
    sides = [sum(float(f(x + s * h * k * v)) for s in (1, -1)) / 2 for k in range(5)]
    weights = np.append(STENCIL[0], 2 * STENCIL[1:])
    by_values = weights @ sides / h**2
    by_products = np.vdot(v, expected(name))
    np.testing.assert_allclose(by_products, by_values, rtol=1e-7, atol=1e-7)


@pytest.mark.exhaustive
def test_a_gamma_variate_is_differentiated_at_a_fixed_quantile():
    draw, a = SCALAR["random gamma"]
    with mpmath.workdps(30):
        x = mpmath.mpf(float(draw(a)))
        level = mpmath.gammainc(a, 0, x, regularized=True)

        def quantile(a):
            excess = lambda x: mpmath.gammainc(a, 0, x, regularized=True) - level
            return mpmath.findroot(excess, x)

        known = float(mpmath.diff(quantile, mpmath.mpf(a), 2))
    np.testing.assert_allclose(hotk.second_derivative(draw, a), known, rtol=1e-7)
