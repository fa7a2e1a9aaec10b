"""Rules of JAX that are lost at second order are found."""

import jax
import jax.numpy as jnp

from hotk.rule import lint


@jax.custom_jvp
def forgetful(x):
    return jnp.exp(-x)


forgetful.defjvp(lambda p, t: (jnp.exp(-p[0]), p[0] * t[0]))


@jax.custom_jvp
def mindful(x):
    return jnp.exp(-x)


mindful.defjvp(lambda p, t: (mindful(p[0]), p[0] * t[0]))


@jax.custom_vjp
def forgetful_back(x):
    return x**3


forgetful_back.defvjp(lambda x: (x**3, x), lambda x, u: (3 * x**2 * u,))


@jax.custom_vjp
def mindful_back(x):
    return x**3


mindful_back.defvjp(lambda x: (mindful_back(x), x), lambda x, u: (3 * x**2 * u,))


def test_a_rule_that_forgets_its_function_is_named_with_its_line():
    found = lint(lambda x: forgetful(x) ** 2 + mindful(x), 1.5)
    [(kind, name, line)] = found.rows
    assert kind == "custom_jvp"
    assert "forgetful" in name
    assert "test_lint.py" in line
    assert found
    assert "hotk.rule.custom" in str(found)


def test_reverse_rules_as_well_and_inside_of_loops():
    step = lambda y, _: (forgetful_back(y) + mindful_back(y), None)
    found = lint(lambda x: jax.lax.scan(step, x, None, length=2)[0], 1.5)
    assert [kind for kind, _, _ in found.rows] == ["custom_vjp"]


def test_functions_of_jax_are_fine():
    net = lambda x: jnp.sum(jax.nn.relu(x) + jax.nn.softplus(x) + jax.nn.silu(x))
    found = lint(net, jnp.ones(3))
    assert not found
    assert "No custom rule" in str(found)
