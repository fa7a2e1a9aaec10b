"""The checker passes what is right, and names what is wrong."""

import jax
import jax.numpy as jnp
import pytest

import hotk
import hotk.testing


X = jnp.array([0.3, 0.7, 1.2])


def good():
    f = hotk.rule.custom(lambda x: jnp.sum(jnp.sin(x)) + jnp.prod(x))
    f.def_vjp(lambda p, u: (u * (jnp.cos(p[0]) + jnp.prod(p[0]) / p[0]),))
    return f


def with_wrong_jvp():
    f = good()
    f.def_jvp(
        lambda p, t: 1.001 * jnp.sum((jnp.cos(p[0]) + jnp.prod(p[0]) / p[0]) * t[0])
    )
    return f


def with_wrong_hvp():
    f = good()
    f.def_hvp(lambda p, t, u: (u * t[0] * p[0],))
    return f


def unsymmetric():
    f = good()
    weights = jnp.array([[1.0, 2.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    f.def_hvp(lambda p, t, u: (u * (weights @ t[0]),))
    return f


def test_right_rules_pass():
    found = hotk.testing.check(good(), X)
    assert found.passed
    assert len(found.rows) > 12
    assert "symmetry" in str(found)


def test_functions_without_rules_pass():
    hotk.testing.check(
        lambda p, c: c * jnp.sum(p["w"] ** 3) * p["n"], {"w": X, "n": 3}, 2.0
    )
    hotk.testing.check(jnp.sin, 0.5, order=1)


def test_modes_that_do_not_exist_are_said():
    loop = lambda x: jax.lax.while_loop(
        lambda y: y < 9, lambda y: y * y, jnp.sin(x) + 2
    )
    found = hotk.testing.check(loop, 2.0)
    assert "does not exist" in str(found)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (with_wrong_jvp, "gradient, forward mode"),
        (with_wrong_hvp, "product and differences"),
        (unsymmetric, "symmetry"),
    ],
)
def test_wrong_rules_are_named(make, what):
    with pytest.raises(AssertionError) as caught:
        hotk.testing.check(make(), X)
    failed = [line for line in str(caught.value).splitlines() if "FAILED" in line]
    assert any(line.startswith(what) for line in failed), caught.value


def test_a_custom_vjp_with_another_derivative_on_purpose():
    step = jax.custom_vjp(lambda x: jnp.sum(jnp.round(x)))
    step.defvjp(lambda x: (step(x), x), lambda x, u: (u * jnp.ones_like(x),))
    with pytest.raises(AssertionError, match="gradient and differences"):
        hotk.testing.check(step, X, order=1)
