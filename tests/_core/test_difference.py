"""The first node in which two trees differ, as it stands in messages."""

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

from hotk._core import difference


class Layer(eqx.Module):
    weight: jax.Array
    name: str = eqx.field(static=True, default="first")


A, B = jnp.ones(2), jnp.ones((2, 3))


@pytest.mark.parametrize(
    ("ours", "theirs", "expected", "got"),
    [
        ({"w": A, "b": B}, {"w": A}, "f64[2,3] at `v['b']`", "nothing"),
        ({"w": A}, {"w": A, "b": B}, "nothing at `v['b']`", "f64[2,3]"),
        ([A, B], [A, A], "f64[2,3] at `v[1]`", "f64[2]"),
        ([A], (A,), "list of f64[2] at `v`", "tuple of f64[2]"),
        ([A, [B]], [A, B], "list of f64[2,3] at `v[1]`", "f64[2,3]"),
        # Values that print alike: what differs is the node around them.
        ({"w": Layer(A)}, {"w": A}, "Layer of f64[2] at `v['w']`", "f64[2]"),
        ([A, None], [A, B], "None at `v[1]`", "f64[2,3]"),
        # A dtype counts only where shapes agree everywhere.
        ([A, B], [A.astype(int), A], "f64[2,3] at `v[1]`", "f64[2]"),
        ([A, B], [A.astype(int), B], "f64[2] at `v[0]`", "i64[2]"),
    ],
    ids=str,
)
def test_the_first_node_that_differs_is_named(ours, theirs, expected, got):
    assert difference("v", ours, theirs) == {"expected": expected, "got": got}


def test_what_a_node_holds_beside_its_children_is_shown_where_it_differs():
    found = difference("v", [Layer(A, "first")], [Layer(A, "other")])
    assert "first" in found["expected"]
    assert "at `v[0]`" in found["expected"]
    assert "other" in found["got"]


def test_none_may_stand_for_anything():
    ours, theirs = {"a": A, "b": [B]}, {"a": None, "b": [A]}
    found = difference("g", ours, theirs, partial=True)
    assert found == {"expected": "f64[2,3] at `g['b'][0]`", "got": "f64[2]"}
