"""The first NaN is traced to its operation, its line and its pass."""

import jax.numpy as jnp

import hotk


def test_a_root_at_zero():
    f = lambda x: jnp.exp(-jnp.sqrt(jnp.sum(x**2)))
    found = hotk.locate_nan(hotk.gradient, f, jnp.zeros(2))
    assert (found.primitive, found.part, found.order) == ("mul", "backward", 1)
    assert "infinity" in found.inputs
    assert "test_locate_nan.py" in found.line
    assert found.finite == ()
    assert "backward pass" in str(found)


def test_inside_of_a_library_it_is_the_line_of_the_call():
    f = lambda x: jnp.exp(-(jnp.linalg.norm(x) ** 2))
    found = hotk.locate_nan(hotk.hvp, f, jnp.zeros(2), jnp.ones(2))
    assert "test_locate_nan.py" in found.line
    assert found.mode == "forward over reverse"
    assert found.order == 2


def test_a_nesting_that_is_finite_is_named():
    f = lambda x: jnp.sum(jnp.where(x > 0, jnp.log(x), 0.0))
    found = hotk.locate_nan(hotk.hvp, f, jnp.zeros(2), jnp.ones(2))
    assert found.primitive == "div"
    assert found.finite == ("forward over forward",)


def test_nan_of_the_value_itself_and_no_nan_at_all():
    found = hotk.locate_nan(hotk.gradient, lambda x: jnp.log(x), -1.0)
    assert (found.primitive, found.part, found.order) == ("log", "forward", 1)
    assert hotk.locate_nan(hotk.gradient, jnp.sin, 1.0).primitive is None
    assert "none" in str(hotk.locate_nan(hotk.gradient, jnp.sin, 1.0))
