"""Unit directions of a tree, and what is computed for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotk._dense import Sizes, is_complex, over_basis, size_of, split_rows, unit
from tests.helpers import close


TREE = {
    "a": jnp.zeros((2, 2)),
    "b": jnp.zeros((0, 3)),
    "c": jnp.zeros((), jnp.float32),
    "d": jnp.zeros(2, complex),
}


def test_sizes_are_counted_over_all_leaves():
    assert size_of(TREE) == 7
    assert size_of(()) == 0
    assert Sizes.of(TREE, {"y": jax.ShapeDtypeStruct((3, 2), float)}) == (7, 6)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


@pytest.mark.parametrize("scale", [1.0, -2.5])
def test_unit_directions_are_the_rows_of_the_identity(scale):
    made = [unit(TREE, i, scale) for i in range(7)]
    np.testing.assert_array_equal([flat(v) for v in made], scale * np.eye(7))
    for v in made:
        assert jax.tree.map(jnp.result_type, v) == jax.tree.map(jnp.result_type, TREE)
        assert jax.tree.map(jnp.shape, v) == jax.tree.map(jnp.shape, TREE)


def test_an_index_beyond_the_end_gives_zero():
    assert not flat(unit(TREE, 7)).any()


def test_a_complex_scale_reaches_the_complex_leaves_only():
    made = np.array([flat(unit(TREE, i, 1j)) for i in range(7)])
    np.testing.assert_array_equal(made, np.diag([0, 0, 0, 0, 0, 1j, 1j]))
    assert is_complex(TREE)
    assert not is_complex(TREE["a"])


@pytest.mark.parametrize("block", [None, 1, 2, 3, 4, 7, 9])
def test_blocks_of_any_size_give_the_same_rows(block):
    each = lambda i: {"square": i * i, "row": unit(jnp.zeros(7), i)}
    got = over_basis(each, 7, block)
    close(got["square"], np.arange(7, dtype=np.int32) ** 2)
    close(got["row"], np.eye(7))


def test_rows_are_cut_into_leaves():
    rows = jnp.arange(14.0).reshape(7, 2)
    a, b, c, d = split_rows(rows, TREE)
    close(a, np.arange(8.0).reshape(2, 2, 2))
    assert b.shape == (0, 3, 2)
    close(c, np.array([8.0, 9.0]))
    close(d, np.arange(10.0, 14.0).reshape(2, 2))
