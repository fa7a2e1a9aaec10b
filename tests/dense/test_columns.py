"""Columns of linear maps, in windows of any width, and how wide they are chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotk._dense import choose_block, columns, is_entrywise, is_fused, recorded_blocks
from tests.helpers import close


X = {f"leaf {i}": jnp.zeros(shape) for i, shape in enumerate([3, 1, (2, 2), 5, 0, 2])}
MATRIX = np.random.default_rng(0).normal(size=(4, 15))


def push(v):
    """Multiply with a matrix; a tree of two results."""
    y = jnp.asarray(MATRIX) @ jnp.concatenate(
        [jnp.ravel(a) for a in jax.tree.leaves(v)]
    )
    return {"first": y[:3].reshape(3, 1), "last": y[3]}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("block", [1, 2, 4, 7, 15, 99, None])
def test_columns_are_those_of_the_matrix_cut_into_leaves(block):
    made = columns(push, X, block)
    assert len(made) == 2
    for row, result in zip(made, (MATRIX[:3], MATRIX[3]), strict=True):
        offset = 0
        for got, leaf in zip(row, jax.tree.leaves(X), strict=True):
            wanted = result[..., offset : offset + leaf.size]
            shape = (3, 1) if result.ndim == 2 else ()
            close(got, wanted.reshape(shape + leaf.shape))
            offset += leaf.size


DIAGONAL = lambda v: 3.0 * v + v / 2.0
DENSE = lambda v: jnp.ones((64, 64)) @ v


def test_all_directions_go_at_once_where_nothing_is_written():
    assert choose_block(DIAGONAL, jnp.zeros(1000)) == 1000
    assert is_fused(DIAGONAL, jnp.zeros(4))
    assert not is_fused(DENSE, jnp.zeros(64))


def test_a_block_fills_the_cache_and_is_never_larger_than_the_point():
    wide = lambda v: jnp.sort(jnp.tile(v, 4096))  # of each direction a megabyte or more
    assert choose_block(DENSE, jnp.zeros(64)) == 64
    block = choose_block(wide, jnp.zeros(100))
    assert 1 <= block < 100
    with recorded_blocks() as chosen:
        choose_block(wide, jnp.zeros(100))
    assert chosen == [block]


IS_DIAGONAL = {
    "scaled": (DIAGONAL, True),
    "chosen": (lambda v: jnp.where(jnp.arange(6) > 2, v, -v), True),
    "jitted": (lambda v: jax.jit(jnp.negative)(v), True),
    "reshaped": (lambda v: v.reshape(2, 3).reshape(6), True),
    "zero": (lambda v: jnp.zeros(6), True),
    "reversed": (lambda v: v[::-1], False),
    "summed up": (lambda v: jnp.cumsum(v), False),
    "an entry": (lambda v: v + v[0], False),
    "transposed": (lambda v: v.reshape(2, 3).T.reshape(6), False),
    "cancelled": (lambda v: jnp.sum(v) * jnp.ones(6) * 0.0, False),
}


@pytest.mark.parametrize("name", IS_DIAGONAL)
def test_a_program_proves_that_a_map_is_diagonal(name):
    f, diagonal = IS_DIAGONAL[name]
    with jax.numpy_rank_promotion("allow"):
        assert is_entrywise(f, jnp.zeros(6)) is diagonal


def test_a_map_that_swaps_leaves_is_not_diagonal():
    x = [jnp.zeros(2), jnp.zeros(2)]
    assert is_entrywise(lambda v: [2 * v[0], -v[1]], x)
    assert not is_entrywise(lambda v: [v[1], v[0]], x)
