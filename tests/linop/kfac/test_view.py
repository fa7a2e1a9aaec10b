"""Views of a leaf, against NumPy's own indexing of an array of positions."""

import numpy as np
import pytest

from hotk.linop.kfac._view import LeafEntries, View


A = np.arange(2 * 3 * 4).reshape(2, 3, 4)
WHOLE = View.whole(0, A.shape)

VIEWS = {
    "whole": (WHOLE, A),
    "transposed": (WHOLE.transposed((2, 0, 1)), A.transpose(2, 0, 1)),
    "merged": (WHOLE.reshaped((6, 4)), A.reshape(6, 4)),
    "split": (WHOLE.reshaped((2, 3, 2, 2, 1)), A.reshape(2, 3, 2, 2, 1)),
    "slice": (WHOLE.sliced((1, 0, 1), (2, 3, 4), (1, 2, 2)), A[1:2, ::2, 1::2]),
    "reversed": (WHOLE.reversed((0, 2)), A[::-1, :, ::-1]),
    "one entry": (WHOLE.sliced((1, 2, 3), (2, 3, 4), (1, 1, 1)), A[1:, 2:, 3:]),
    "scan": (WHOLE.in_scan(2, sliced=True).transposed((1, 0)), A.transpose(0, 2, 1)),
    "constant of a scan": (WHOLE.in_scan(5, sliced=False), A),
}


@pytest.mark.parametrize("name", VIEWS)
def test_entries_are_those_of_numpy(name):
    view, expected = VIEWS[name]
    np.testing.assert_array_equal(view.take(A), expected)
    np.testing.assert_array_equal(view.positions().reshape(expected.shape), expected)


@pytest.mark.parametrize("name", VIEWS)
def test_what_is_taken_of_a_numpy_array_can_be_written_to(name):
    """Uses are counted so: a copy would count nothing."""
    view, expected = VIEWS[name]
    count = np.zeros(A.shape, int)
    view.take(count)[...] += 1
    np.testing.assert_array_equal(count.reshape(-1)[expected.reshape(-1)], 1)
    assert count.sum() == expected.size


def test_what_strides_cannot_say():
    assert WHOLE.transposed((1, 0, 2)).reshaped((6, 4)) is None
    assert WHOLE.spread((2, 3, 4, 5), (0, 1, 2)).layout is None  # entries repeat
    square = View.whole(0, (3, 3))
    diagonal = View(0, 9, 0, (3,), (4,))
    assert diagonal.layout is None
    assert square.layout is not None


def test_repeated_entries():
    view = View.whole(0, (4, 1)).spread((2, 4, 3), (1, 2))
    expected = np.broadcast_to(np.arange(4)[:, None], (2, 4, 3))
    np.testing.assert_array_equal(view.positions(), expected)
    assert view.sorted().shape == (4,)
    assert view.reshaped((2, 2, 2, 3)).strides == (0, 2, 1, 0)


def test_entries_by_positions():
    part = LeafEntries.of(0, np.array([3, 1]))
    assert part.take(A).tolist() == [3, 1]
    assert part == LeafEntries.of(0, np.array([3, 1]))
    assert part != LeafEntries.of(0, np.array([1, 3]))
    assert hash(part) == hash(LeafEntries.of(0, np.array([3, 1])))
