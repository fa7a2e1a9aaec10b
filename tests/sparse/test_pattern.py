"""`Pattern`: positions, compared by content at no cost."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.sparse import Pattern
from tests.sparse.matrices import scattered


ARROW = ([0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 0, 2])


def test_facts_known_by_hand():
    pattern = Pattern(*ARROW, (3, 3), symmetric=True)
    assert pattern.nnz == 7
    assert pattern.density == 7 / 9
    assert pattern.bandwidth == 2
    assert pattern.nbytes == 56
    assert pattern.starts.tolist() == [0, 3, 5, 7]
    assert pattern.rows.dtype == pattern.cols.dtype == np.int32
    assert repr(pattern) == (
        "Pattern(3 x 3, 7 entries, 77.8 %, bandwidth 2, symmetric, 56 B)"
    )
    assert "77.8 %" in pattern._repr_html_()


def test_an_empty_pattern():
    pattern = Pattern([], [], (3, 2))
    assert pattern.nnz == pattern.bandwidth == 0
    assert pattern.T.shape == (2, 3)
    assert pattern.starts.tolist() == [0, 0, 0, 0]


def test_equal_by_content():
    a, b = Pattern(*ARROW, (3, 3)), Pattern(*map(np.array, ARROW), (3, 3))
    assert a == b
    assert hash(a) == hash(b)
    for other in (
        Pattern(ARROW[0], [0, 1, 2, 0, 1, 1, 2], (3, 3)),
        Pattern(*ARROW, (3, 4)),
        Pattern(*ARROW, (3, 3), symmetric=True),
        Pattern(*ARROW, (3, 3), input={"a": jnp.ones(3)}),
        Pattern(*ARROW, (3, 3), input=jnp.ones(3, jnp.float32)),
        object(),
    ):
        assert a != other


def test_equality_of_one_object_reads_nothing():
    pattern = Pattern(*ARROW, (3, 3))
    assert pattern == pattern
    assert "digest" not in pattern._derived


def test_it_does_not_change():
    rows = np.array([0, 1], np.int32)
    pattern = Pattern(rows, [0, 1], (2, 2))
    rows[0] = 1
    assert pattern.rows.tolist() == [0, 1]
    with pytest.raises(ValueError, match="read-only"):
        pattern.rows[0] = 1
    with pytest.raises(AttributeError, match="does not change"):
        pattern.shape = (3, 3)
    assert copy.deepcopy(pattern) is pattern
    again = pickle.loads(pickle.dumps(pattern))
    assert again == pattern
    assert again is not pattern


def test_transposed_against_numpy():
    matrix, dense = scattered(np.random.default_rng(0), 7, 5, 14)
    pattern, order = matrix.pattern.transposed()
    rows, cols = np.nonzero(dense.T)
    assert pattern.rows.tolist() == rows.tolist()
    assert pattern.cols.tolist() == cols.tolist()
    assert np.array_equal(np.asarray(matrix.values)[order], dense.T[rows, cols])
    assert pattern.T is matrix.pattern
    symmetric = Pattern(*ARROW, (3, 3), symmetric=True)
    assert symmetric.T is symmetric


@pytest.mark.parametrize(
    ("rows", "cols", "text"),
    [
        ([0, 0], [1, 0], "sorted by row"),
        ([1, 0], [0, 1], "sorted by row"),
        ([0, 0], [1, 1], "each once"),
        ([0, 3], [0, 0], "outside"),
        ([0, 1], [0, -1], "outside"),
        ([0], [0, 1], "one length"),
    ],
)
def test_bad_positions(rows, cols, text):
    with pytest.raises(hotk.StructureError, match=text):
        Pattern(rows, cols, (3, 2))


def test_other_mistakes():
    with pytest.raises(hotk.StructureError, match="do not fit to the shape"):
        Pattern([0], [0], (3, 2), input=jnp.ones(3))
    with pytest.raises(TypeError, match="give `shape"):
        Pattern([0], [0])
    with pytest.raises(TypeError, match="no integers"):
        Pattern([0.0], [0], (1, 1))


def test_trees_give_the_shape_and_the_ranges():
    tree = {"b": jnp.ones(()), "z": jnp.ones(2, complex), "n": None}
    pattern = Pattern([0, 4], [0, 2], output=tree, input=jnp.ones((3, 1)))
    assert pattern.shape == (5, 3)
    assert pattern.row_index.items() == [("b", slice(0, 1)), ("z", slice(1, 5))]
    assert list(pattern.col_index) == [""]
    assert pattern.output["z"] == jax.ShapeDtypeStruct((2,), complex)


def test_static_data_of_a_program_is_compared_once():
    """Equal patterns share a compiled program, other ones do not."""
    traced = []

    @jax.jit
    def total(matrix):
        traced.append(matrix.shape)
        return matrix.values.sum()

    for rows in ([0, 1], np.array([0, 1]), [0, 2]):
        values = jnp.arange(2.0)
        total(hotk.SparseMatrix(values, Pattern(rows, [0, 1], (3, 3))))
    assert len(traced) == 2


def test_what_is_derived_is_bounded():
    pattern = Pattern(*ARROW, (3, 3))
    for k in range(100):
        assert pattern.derived(("a number", k), lambda k=k: k + 1) == k + 1
    assert len(pattern._derived) <= 32
