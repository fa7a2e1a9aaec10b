"""Which nestings exist is said before anything is computed, and is true."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.counting import compiles
from tests.functions import SCALAR


def loop(x):
    return jax.lax.while_loop(lambda y: y < 9, lambda y: y * y, jnp.sin(x) + 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["gammainc in a", "gammainc in x", "random gamma", "zeta"]
)
def test_what_it_says_is_what_jax_does(name):
    f, x = SCALAR[name]
    found = hotk.can_differentiate(f, x)
    for nesting in reference.NESTINGS:
        try:
            getattr(reference, nesting.lower())(f, jnp.asarray(x), jnp.ones(()))
            exists = True
        except (NotImplementedError, ValueError, TypeError):
            exists = False
        assert (getattr(hotk, nesting) in found.modes) == exists, nesting


def test_it_names_the_primitive_and_the_line_and_compiles_nothing():
    with compiles() as count:
        found = hotk.can_differentiate(loop, 2.0)
        made = count()
    assert made == 0
    [(primitive, line, modes)] = found.missing
    assert primitive == "while"
    assert "test_can_differentiate.py" in line
    assert modes == (hotk.FORWARD_OVER_FORWARD,) == found.modes
    assert found
    assert "while" in str(found)
    assert "<table>" in found._repr_html_()


def test_nothing_exists_for_a_callback():
    host = lambda x: jax.pure_callback(np.sin, x, x)
    for order in (1, 2, 3):
        found = hotk.can_differentiate(host, jnp.ones(2), order=order)
        assert not found
        assert found.missing[0][0] == "pure_callback"


def test_trees_integers_and_further_arguments():
    f = lambda p, n: p["w"].sum() ** n * p["k"]
    found = hotk.can_differentiate(f, {"w": jnp.ones(2), "k": 3}, 2.0)
    assert found.modes == tuple(
        hotk.Nested(outer, inner)
        for outer, inner in (
            (hotk.Forward(), hotk.Reverse()),
            (hotk.Reverse(), hotk.Reverse()),
            (hotk.Reverse(), hotk.Forward()),
            (hotk.Forward(), hotk.Forward()),
        )
    )
    assert not found.missing


def test_an_order_must_be_positive(as_user):
    with pytest.raises(ValueError, match="not a positive"):
        hotk.can_differentiate(jnp.sin, 1.0, order=0)
