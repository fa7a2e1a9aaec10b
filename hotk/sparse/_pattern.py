"""`Pattern`: where the entries of a sparse matrix stand."""

import functools
import hashlib
from collections.abc import Callable, Hashable
from typing import Any, TypeVar, final

import jax
import numpy as np
import numpy.typing as npt
from jaxtyping import Int32, PyTree

from hotk._core import (
    bytes_name,
    extra,
    html_table,
)
from hotk._dense import Index, dimension

from ._checked import as_positions, check_positions


Derived = TypeVar("Derived")

# What is derived from a pattern (its transpose, its sum with another one) is kept with
# it, so a loop over matrices of one pattern derives it once. More than this is let go.
_MOST_DERIVED = 32


@final
class Pattern:
    """Positions of the entries of a sparse matrix, and the trees that it maps between.

    A pattern does not change. Two patterns are equal if their content is; the content
    is hashed once, so a pattern is cheap as static data of a compiled program.

    Attributes:
        rows: Row of each entry: a read-only array, ascending.
        cols: Column of each entry: a read-only array, ascending within a row. No
            position occurs twice.
        shape: Numbers of rows and columns.
        symmetric: Whether a matrix of this pattern is symmetric, values included.

    Example:
        >>> pattern = hotk.sparse.Pattern([0, 0, 1], [0, 1, 1], (2, 2))
        >>> pattern.nnz, pattern.density, pattern.bandwidth
        (3, 0.75, 1)
    """

    __slots__ = (
        "__weakref__",
        "_derived",
        "_input",
        "_output",
        "cols",
        "rows",
        "shape",
        "symmetric",
    )

    rows: Int32[np.ndarray, " nnz"]
    cols: Int32[np.ndarray, " nnz"]
    shape: tuple[int, int]
    symmetric: bool

    def __init__(
        self,
        rows: npt.ArrayLike,
        cols: npt.ArrayLike,
        shape: tuple[int, int] | None = None,
        *,
        output: PyTree = None,
        input: PyTree = None,
        symmetric: bool = False,
    ) -> None:
        """Check positions and keep them.

        Args:
            rows: Row of each entry, ascending.
            cols: Column of each entry, ascending within a row.
            shape: Numbers of rows and columns; may be left out if both trees are given.
            output: Tree of the vectors that a product gives; one flat array if left
                out. Only structure, shapes and dtypes matter. A complex leaf has two
                rows for each number: all real parts, then all imaginary parts.
            input: Tree of the vectors that a matrix multiplies, likewise.
            symmetric: Whether a matrix of this pattern is symmetric.

        Raises:
            StructureError: If positions are out of range or out of order, occur twice,
                or do not fit to the trees.
        """
        if shape is None:
            if output is None or input is None:
                raise TypeError(
                    "`Pattern(rows, cols)`: give `shape=(m, n)`, or both trees, "
                    "`output=` and `input=`."
                )
            shape = (dimension(_types(output)), dimension(_types(input)))
        set_ = functools.partial(object.__setattr__, self)
        set_("rows", as_positions(rows))
        set_("cols", as_positions(cols))
        set_("shape", (int(shape[0]), int(shape[1])))
        set_("symmetric", bool(symmetric))
        set_("_output", _types(output, self.shape[0]))
        set_("_input", _types(input, self.shape[1]))
        set_("_derived", {})
        check_positions(self)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse to change: programs are kept by the content of a pattern."""
        raise AttributeError(f"a `Pattern` does not change: cannot set `{name}`")

    # ----- What it is

    @property
    def nnz(self) -> int:
        """The number of entries."""
        return self.rows.size

    @property
    def density(self) -> float:
        """The number of entries over that of a dense matrix."""
        return self.nnz / max(self.shape[0] * self.shape[1], 1)

    @property
    def bandwidth(self) -> int:
        """The largest distance of an entry from the diagonal."""
        return self.derived("bandwidth", lambda: _bandwidth(self))

    @property
    def nbytes(self) -> int:
        """The bytes of the positions."""
        return self.rows.nbytes + self.cols.nbytes

    @property
    def output(self) -> PyTree:
        """The tree of the vectors that a product gives, of `jax.ShapeDtypeStruct`."""
        return self._output

    @property
    def input(self) -> PyTree:
        """The tree of the vectors that it multiplies, of `jax.ShapeDtypeStruct`."""
        return self._input

    @property
    def is_of_one_space(self) -> bool:
        """Whether output and input are the same: structure, shapes and dtypes."""
        output, input = map(_types_as_key, (self._output, self._input))
        return output == input

    @property
    def row_index(self) -> Index:
        """The rows of each leaf of the output, by its path."""
        return self.derived("row_index", lambda: Index.of(self._output))

    @property
    def col_index(self) -> Index:
        """The columns of each leaf of the input, by its path."""
        return self.derived("col_index", lambda: Index.of(self._input))

    @property
    def starts(self) -> Int32[np.ndarray, " m+1"]:
        """Where each row starts among the entries, and `nnz`: `indptr` of SciPy."""
        return self.derived("starts", lambda: _starts(self.rows, self.shape[0]))

    @property
    def T(self) -> "Pattern":
        """The pattern of the transpose; itself if it is symmetric."""
        return self.transposed()[0]

    def transposed(self) -> "tuple[Pattern, Int32[np.ndarray, ' nnz']]":
        """Return the pattern of the transpose, and which entry each of its entries is.

        The order is that by column, then row.
        """
        return self.derived("transposed", lambda: _transposed(self))

    def derived(self, name: Hashable, derive: Callable[[], Derived]) -> Derived:
        """Return what is derived from the pattern, derived once.

        Args:
            name: What it is, with all that it depends on besides the pattern.
            derive: How to make it.
        """
        found = self._derived.get(name)
        if found is None:
            while len(self._derived) >= _MOST_DERIVED:
                self._derived.pop(next(iter(self._derived)), None)
            found = self._derived[name] = derive()
        return found

    # ----- Comparison

    @property
    def digest(self) -> bytes:
        """A hash of the positions and the shape."""
        return self.derived("digest", lambda: _digest(self))

    @property
    def content(self) -> tuple[Hashable, ...]:
        """All that equal patterns have in common, to key what is derived from two."""
        trees = (self._output, self._input)
        return self.derived(
            "content",
            lambda: (self.digest, self.symmetric, *map(_types_as_key, trees)),
        )

    def __eq__(self, other: object) -> bool:
        """Whether positions, shape, trees and symmetry are the same."""
        if self is other:
            return True
        if not isinstance(other, Pattern):
            return NotImplemented
        return (
            self.shape == other.shape
            and self.nnz == other.nnz
            and self.content == other.content
        )

    def __hash__(self) -> int:
        """Return a hash of the content, computed once."""
        return hash(self.digest)

    def __copy__(self) -> "Pattern":
        """Return itself: nothing in it can change."""
        return self

    def __deepcopy__(self, memo: object) -> "Pattern":
        """Return itself: nothing in it can change."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the content alone; what is derived from it is derived anew."""
        state = (self.rows, self.cols, self.shape, self._output, self._input)
        return _restored, (*state, self.symmetric)

    # ----- How it shows

    def _facts(self) -> list[tuple[str, str]]:
        m, n = self.shape
        return [
            ("shape", f"{m} x {n}"),
            ("entries", f"{self.nnz}"),
            ("density", f"{100 * self.density:.3g} %"),
            ("bandwidth", f"{self.bandwidth}"),
            ("symmetric", "yes" if self.symmetric else "no"),
            ("positions", bytes_name(self.nbytes)),
        ]

    def __repr__(self) -> str:
        """Show shape, entries, density, bandwidth and bytes in one line."""
        m, n = self.shape
        symmetric = ", symmetric" if self.symmetric else ""
        return (
            f"Pattern({m} x {n}, {self.nnz} entries, {100 * self.density:.3g} %, "
            f"bandwidth {self.bandwidth}{symmetric}, {bytes_name(self.nbytes)})"
        )

    def _repr_html_(self) -> str:
        return html_table(("Pattern", ""), self._facts())


def _types(tree: PyTree, size: int | None = None) -> PyTree:
    """Return the types of the leaves; without a tree, of one flat array."""
    if tree is None and size is not None:
        return jax.ShapeDtypeStruct((size,), jax.dtypes.canonicalize_dtype(float))
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), tree)


def _types_as_key(tree: PyTree) -> Hashable:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def _bandwidth(pattern: Pattern) -> int:
    if not pattern.nnz:
        return 0
    return int(np.abs(pattern.rows - pattern.cols).max())


def _starts(rows: Int32[np.ndarray, " nnz"], m: int) -> Int32[np.ndarray, " m+1"]:
    starts = np.zeros(m + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=m), out=starts[1:])
    starts.setflags(write=False)
    return starts


def _transposed(pattern: Pattern) -> tuple[Pattern, Int32[np.ndarray, " nnz"]]:
    m, n = pattern.shape
    # SciPy sorts by counting, in linear time; `argsort` takes ten times as long.
    numbers = np.arange(pattern.nnz, dtype=np.int32)
    by_row = extra("scipy.sparse").csr_array(
        (numbers, pattern.cols, pattern.starts), shape=(m, n)
    )
    order: np.ndarray = np.asarray(by_row.tocsc().data, np.int32)
    order.setflags(write=False)
    if pattern.symmetric:
        return pattern, order
    turned = Pattern(
        pattern.cols[order],
        pattern.rows[order],
        (n, m),
        output=pattern.input,
        input=pattern.output,
    )
    back = np.empty_like(order)
    back[order] = np.arange(order.size, dtype=np.int32)
    back.setflags(write=False)
    turned.derived("transposed", lambda: (pattern, back))
    return turned, order


def _digest(pattern: Pattern) -> bytes:
    content = hashlib.blake2b(repr(pattern.shape).encode(), digest_size=16)
    m, n = pattern.shape
    if pattern.nnz == m * n:  # all entries: there is one such pattern
        return content.digest()
    for positions in (pattern.rows, pattern.cols):
        content.update(positions.tobytes())
    return content.digest()


def _restored(
    rows: np.ndarray,
    cols: np.ndarray,
    shape: tuple[int, int],
    output: PyTree,
    input: PyTree,
    symmetric: bool,
) -> Pattern:
    return Pattern(rows, cols, shape, output=output, input=input, symmetric=symmetric)
