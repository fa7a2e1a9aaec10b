"""`close` is what most tests rest on, so it must fail where it should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import TOLERANCE, close


TREE = {"w": jnp.ones(2), "n": 3, "name": "net", "none": None, "key": jax.random.key(0)}


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (TREE, dict(TREE)),
        (jnp.float32(2), 2.0),
        (jnp.arange(3), np.arange(3)),
        (jnp.array([jnp.nan, jnp.inf]), np.array([np.nan, np.inf])),
        (jnp.zeros((0, 2)), np.zeros((0, 2))),
        (jnp.ones(2, jnp.bfloat16), jnp.ones(2, jnp.bfloat16)),
        (jnp.array([1 + 2j]), np.array([1 + 2j])),
        ((), ()),
    ],
)
def test_the_same_is_close(got, expected):
    assert close(got, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ({"a": 1.0}, {"b": 1.0}),
        ([1.0], (1.0,)),
        ((), (1.0,)),
        ({"a": None}, {"a": 0.0}),
        (jnp.ones(2), jnp.ones(2, jnp.float32)),
        (1.0, jnp.ones(())),
        (jnp.ones(2), jnp.ones((2, 1))),
        (jnp.ones(1), 1.0),
        (jnp.ones(2), jnp.array([1.0, 1 + 1e-9])),
        (jnp.zeros(2), jnp.array([0.0, 1e-9])),
        (jnp.zeros(2), jnp.array([0.0, jnp.nan])),
        (jnp.arange(3), jnp.array([0, 1, 3])),
        (jnp.array([1 + 2j]), jnp.array([1 - 2j])),
        (jax.random.key(0), jax.random.key(1)),
        ("net", "nut"),
    ],
)
def test_what_differs_is_not_close(got, expected):
    with pytest.raises(AssertionError):
        close(got, expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_tolerance_is_wide_enough_to_round_and_narrow_enough_to_see(dtype):
    one, eps = jnp.ones((), dtype), float(jnp.finfo(dtype).eps)
    assert close(one + jnp.asarray(2 * eps, dtype), one)
    with pytest.raises(AssertionError):
        close(one + jnp.asarray(3 * TOLERANCE[dtype], dtype), one)


def test_a_tolerance_can_be_given():
    assert close(jnp.array([0.0, 10.0]), jnp.array([1e-3, 10.1]), rtol=0.1, atol=1e-2)
    with pytest.raises(AssertionError):
        close(jnp.ones(1), jnp.ones(1) * (1 + 1e-11), rtol=0, atol=0)
