"""The checker passes what is right, and names what is wrong."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import hotk
import hotk.testing
from hotk._core import _compiler_flags


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


@pytest.mark.exhaustive
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


@pytest.mark.exhaustive
def test_modes_that_do_not_exist_are_said():
    loop = lambda x: jax.lax.while_loop(
        lambda y: y < 9, lambda y: y * y, jnp.sin(x) + 2
    )
    found = hotk.testing.check(loop, 2.0)
    assert "does not exist" in str(found)


@pytest.mark.thinned(1)
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


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("f", "x"),
    [
        (lambda x: jnp.sum(jnp.cos(x)), jnp.zeros(2)),
        (lambda x: jnp.sum((x - 1) ** 2) + 7.3, jnp.ones(2)),
        (lambda x: jnp.sum((x - 1) ** 2), jnp.ones(3)),
        (lambda x: jnp.exp(-(hotk.safe.norm(x) ** 2)), jnp.zeros(2)),
        (lambda x: jnp.sum(0 * x) + 3.0, jnp.ones(2)),
    ],
)
def test_right_functions_pass_where_they_are_stationary(f, x):
    assert hotk.testing.check(f, x).passed


def test_a_wrong_rule_is_seen_beside_a_large_value():
    f = hotk.rule.custom(lambda x: x**3 + 100.0)
    f.def_jvp(lambda p, t: 3.0003 * p[0] ** 2 * t[0])
    with pytest.raises(AssertionError, match="gradient and differences"):
        hotk.testing.check(f, 2.0)


@pytest.mark.exhaustive
def test_a_solver_that_has_no_derivatives_without_its_rule():
    def newton(x0, a):
        far = lambda x: jnp.abs(x**2 - a) > 1e-15 * a
        return jax.lax.while_loop(far, lambda x: (x + a / x) / 2, x0)

    square_root = hotk.rule.root(lambda x, a: x**2 - a, newton)
    assert hotk.testing.check(lambda a: square_root(1.0, a), 2.0).passed


def test_an_error_in_a_small_array_is_not_lost_in_a_large_one():
    f = hotk.rule.custom(lambda p: 1e6 * p["a"] ** 2 + p["b"] ** 3)
    f.def_vjp(
        lambda p, u: ({"a": 2e6 * p[0]["a"] * u, "b": 2.999 * p[0]["b"] ** 2 * u},)
    )
    with pytest.raises(AssertionError, match="gradient and differences"):
        hotk.testing.check(f, {"a": 1.0, "b": 1.0})


def test_a_rule_that_is_wrong_for_a_batch_of_points_is_seen():
    @jax.custom_batching.custom_vmap
    def square(x):
        return x**2

    @square.def_vmap
    def _(size, mapped, x):
        return 1.01 * x**2, mapped[0]

    f = hotk.rule.custom(lambda x: x**3)
    f.def_jvp(lambda p, t: 3 * jax.lax.stop_gradient(square(p[0])) * t[0])
    f.def_hvp(lambda p, t, u: (6 * square(p[0]) / p[0] * t[0] * u,))
    with pytest.raises(AssertionError, match=r"under vmap of the point.*FAILED"):
        hotk.testing.check(f, 2.0)


@pytest.mark.counts  # by the check of a program as well
def test_a_wrong_rule_for_series_is_seen():
    f = hotk.rule.custom(lambda x: jnp.exp(x))
    f.def_jvp(lambda p, t: jnp.exp(p[0]) * t[0])
    f.def_taylor(lambda p, s: [7 * c for c in s[0]])
    with pytest.raises(AssertionError, match=r"quadratic form, Taylor .* FAILED"):
        hotk.testing.check(f, 0.3)


BACKEND = """
import hotk.testing, jax.numpy as jnp
found = hotk.testing.check_backend(1)
print(found.passed, "XLA_FLAGS" in str(found))
checked = hotk.testing.check(lambda x: jnp.sum(x**3), jnp.ones(2), order=1)
print(checked.passed, "XLA" in str(checked))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("flag", ["", hotk.testing.check_backend(1).flag])
def test_the_backend_is_right_with_the_flag_that_is_told(flag):
    """Without it, where hotk asks the compiler for the same, and so only there."""
    environment = {**os.environ, "XLA_FLAGS": flag}
    environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"
    command = [sys.executable, "-c", BACKEND]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    right = bool(flag) or not _compiler_flags.FAULTY
    assert done.stdout == f"{right} {not right}\nTrue {not right}\n", done.stderr[
        -2000:
    ]
