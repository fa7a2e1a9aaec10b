"""The ways to a sparse matrix: the algebra of pieces, compressed products, dense."""

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, PyTree

from hotk._core import DensePatternWarning, whole
from hotk._dense import choose_block, dimension, flattened, is_complex, unflattened
from hotk._prepared import check_bytes, user_level

from ._causes import CauseRecorder, SparsityExplanation
from ._coloring import Coloring, color
from ._congruence import Congruence, as_product
from ._entries import Entries, entries, real_dtype
from ._linear import Budget, TooDense, TooLong
from ._linear_program import LinearProgram
from ._matrix import SparseMatrix
from ._pattern import Pattern
from ._work import (
    FEW,
    entries_worth,
    is_worth_products,
    most_entries,
    most_steps,
)


_Found = TypeVar("_Found")

# So many entries are more than a user of a sparse matrix expects, as a part of all.
_MANY, _DENSE = 1_000_000, 0.1
# Pieces are read by slices, the rows of a Jacobian are not: as many take as long.
_AS_LONG = 1.5
# A coloring hardly ever needs fewer products.
_FEW_PRODUCTS = 4
# So many entries are looked for, for a coloring, whatever the size of a matrix.
_ENOUGH = 4_000_000


class Task(NamedTuple):
    """A matrix to compute.

    Attributes:
        linear: The program of its products.
        symmetric: Whether it is symmetric: its lower half is taken alone, and mirrored.
        transposed: Whether the program is that of the transpose.
        most: How many entries the algebra may make.
        short: Whether the algebra gives up where it takes long to compile.
        congruence: What it is the Hessian of, if that is a loss of a model.
    """

    linear: LinearProgram
    symmetric: bool = False
    transposed: bool = False
    most: float = math.inf
    short: bool = False
    congruence: Congruence | None = None

    @property
    def output(self) -> PyTree:
        """Shapes and dtypes of what the matrix gives."""
        return self.linear.inputs if self.transposed else self.linear.outputs

    @property
    def input(self) -> PyTree:
        """Shapes and dtypes of what it multiplies."""
        return self.linear.outputs if self.transposed else self.linear.inputs

    def entries(self, *, valued: bool) -> Entries:
        """Compute the matrix by the algebra, if that is the cheapest way."""
        jaxpr, symmetric = self.linear.program.jaxpr, self.symmetric
        sizes = map(dimension, (self.linear.inputs, self.linear.outputs))
        worth = entries_worth(jaxpr, min(sizes)) if valued else most_entries()
        most = min(worth, self.most)
        steps = most_steps(jaxpr) if self.short else math.inf

        def run(most: float) -> Entries:
            return entries(
                self.linear,
                Budget(int(most), steps),
                valued=valued,
                symmetric=symmetric,
                transposed=self.transposed,
            )

        if self.congruence is None:
            return run(most)
        with contextlib.suppress(TooDense, TooLong):
            return run(min(most, FEW))
        budget = Budget(int(most), steps)
        product = as_product(
            self.congruence, budget, valued=valued, symmetric=symmetric
        )
        if product is None:
            return run(most)
        with contextlib.suppress(TooDense, TooLong):
            if _AS_LONG * product.work > FEW:
                return run(min(most, _AS_LONG * product.work))
        return product.compute()

    def pattern(self, found: Entries) -> Pattern:
        """Return the pattern of entries, between the trees of the matrix."""
        return Pattern(
            found.rows,
            found.cols,
            output=self.output,
            input=self.input,
            symmetric=self.symmetric,
        )


def sparse_matrix(
    name: str, task: Task, dense: Callable[[], Sequence[Sequence[Array]]]
) -> SparseMatrix:
    """Compute a matrix in the cheapest way that exists.

    Args:
        name: The call, for messages.
        task: The matrix.
        dense: Computes it by products along all directions: for each leaf of what it
            gives, for each leaf of what it multiplies an array of both shapes.
    """
    found = by_algebra(task)
    if found is None:
        found = _compressed(task)
    if found is None:
        found = _matrix(task, _all_entries(task, dense()))
    if found.nnz > _MANY and found.pattern.density > _DENSE:
        _warn_of_dense(name, task, found.pattern)
    return found


def by_algebra(task: Task) -> SparseMatrix | None:
    """Compute a matrix by the algebra, if that is the cheapest way.

    Where that takes long to compile, a few products along the directions of a coloring
    are cheaper, at each call as well.
    """
    try:
        return _matrix(task, task._replace(short=True).entries(valued=True))
    except TooLong:
        worth = functools.partial(is_worth_products, task.linear.program.jaxpr)
        # The pattern, without which there is no coloring, takes as long as the algebra.
        found = _compressed(task, worth) if worth(_FEW_PRODUCTS) else None
        if found is not None:
            return found
    except TooDense:
        return None
    try:
        return _matrix(task, task.entries(valued=True))
    except TooDense:
        return None


def _matrix(task: Task, found: Entries) -> SparseMatrix:
    assert found.values is not None
    return SparseMatrix(found.values, task.pattern(found))


def _compressed(
    task: Task, is_worth: Callable[[int], bool] = lambda products: True
) -> SparseMatrix | None:
    """Compute a matrix by a coloring of its pattern, if that takes fewer products.

    Args:
        task: The matrix.
        is_worth: Whether so many products are worth it.
    """
    if is_complex((task.input, task.output)):
        return None
    # A quarter of a small matrix is too much for a coloring to be of use.
    whole = dimension(task.input) * dimension(task.output)
    task = task._replace(most=min(task.most, max(whole // 4, _ENOUGH)))
    try:
        pattern = _uncompiled(lambda: task.pattern(task.entries(valued=False)))
    except TooDense:
        return None
    coloring = coloring_worth(pattern)
    if coloring is None or not is_worth(coloring.count):
        return None
    apply = task.linear.apply
    turn = jax.linear_transpose(apply, task.linear.inputs)
    back = lambda u: turn(u)[0]
    products = (back, apply) if task.transposed else (apply, back)
    return SparseMatrix(compressed_values(coloring, *products), pattern)


def _uncompiled(find: Callable[[], _Found]) -> _Found:
    """Return what is found in a trace of its own, of which nothing is compiled."""
    found: list[_Found] = []

    def run() -> tuple[()]:
        found.append(find())
        return ()

    jax.make_jaxpr(run)()
    return found[0]


def _warn_of_dense(name: str, task: Task, pattern: Pattern) -> None:
    watch = CauseRecorder(task.linear.inputs, "y" if task.transposed else "x")

    def look() -> SparsityExplanation:
        with contextlib.suppress(TooDense):
            entries(task.linear, Budget(_ENOUGH), valued=False, watch=watch)
        return watch.explanation(pattern)

    causes = _uncompiled(look).causes
    at = f", first by `{causes[0].operation}` at {causes[0].line}" if causes else ""
    m, n = pattern.shape
    warnings.warn(
        f"`{name}`: the matrix has {pattern.nnz} entries, {pattern.density:.0%} of "
        f"{m} x {n}: rows of it are made dense{at}. Where they are not dense, look for "
        "an index that is computed from `x`, or from an array that is an argument of a "
        "`jax.jit` around this call: its value is not known, so it may be any. "
        "`hotk.sparsity(f, x, explain=True)` lists all such lines. If the matrix is "
        "dense, `hotk.hvp` multiplies with it, and `hotk.hessian` or `hotk.jacobian` "
        "compute it.",
        DensePatternWarning,
        stacklevel=user_level(),
    )


def sparsity_pattern(task: Task) -> Pattern:
    """Return the pattern of a matrix, without its values."""
    try:
        found = task.entries(valued=False)
    except TooDense:
        found = _everywhere(task)
    return task.pattern(found)


def explained_pattern(task: Task) -> SparsityExplanation:
    """Return the pattern of a matrix, and what makes rows of it dense."""
    watch = CauseRecorder(task.linear.inputs, "y" if task.transposed else "x")
    try:
        found = entries(
            task.linear,
            Budget(int(min(most_entries(), task.most))),
            valued=False,
            symmetric=task.symmetric,
            transposed=task.transposed,
            watch=watch,
        )
    except TooDense:
        found = _everywhere(task)
    return watch.explanation(task.pattern(found))


def _everywhere(task: Task) -> Entries:
    m, n = dimension(task.output), dimension(task.input)
    instead = "`hotk.hvp`, `hotk.jvp` or a `hotk.HessianOperator`, which need no matrix"
    check_bytes("the pattern of all entries", n, 8 * m * n, instead)
    rows = np.repeat(np.arange(m, dtype=np.int32), n)
    cols = np.empty(m * n, np.int32)
    cols.reshape(m, n)[:] = np.arange(n)
    rows.setflags(write=False)
    cols.setflags(write=False)  # a pattern keeps what cannot change as it is
    return Entries(None, rows, cols)


def _all_entries(task: Task, blocks: Sequence[Sequence[Array]]) -> Entries:
    """Return the entries of a dense matrix, given by blocks."""
    dtype = real_dtype(task.output, task.input)
    rows: list[Array] = []
    for output, of_row in zip(jax.tree.leaves(task.output), blocks, strict=True):
        flat = [whole(block).reshape(output.size, -1) for block in of_row]
        is_complex = jnp.issubdtype(output.dtype, jnp.complexfloating)
        parts = (jnp.real, jnp.imag) if is_complex else (jnp.asarray,)
        joined = lambda part, flat=flat: jnp.concatenate(
            [part(block).astype(dtype) for block in flat], axis=1
        )
        rows += map(joined, parts)
    values = jnp.concatenate(rows).reshape(-1)
    return _everywhere(task)._replace(values=values)


# With more products than this part of all of them, the entries are read off a dense
# matrix, without a search among them.
_WORTHWHILE = 0.5

Product = Callable[[PyTree], PyTree]


def coloring_worth(pattern: Pattern) -> Coloring | None:
    """Return a coloring of a pattern, `None` if it saves too few products."""
    full = min(pattern.shape)
    # No fewer products than entries in the fullest row or column of the other kind.
    coloring = color(pattern)
    return coloring if coloring.count <= _WORTHWHILE * full else None


def compressed_values(
    coloring: Coloring, product: Product, transposed: Product
) -> Inexact[Array, " nnz"]:
    """Compute the values of a matrix on a colored pattern.

    Args:
        coloring: The coloring.
        product: From a tree that the matrix multiplies to the product.
        transposed: The same for the transpose.
    """
    pattern = coloring.pattern
    columns = _products(product, coloring.directions, pattern.input)
    rows = None
    if coloring.row_count:
        rows = _products(transposed, coloring.row_directions, pattern.output)
    return coloring.entries(columns, rows)


def _products(
    product: Product, directions: Callable[..., Array], like: PyTree
) -> Inexact[Array, "colors m"]:
    """Multiply all directions, as many at once as fill the cache."""
    dtype = jax.eval_shape(flattened, like).dtype
    block = choose_block(product, like)
    one = lambda direction: flattened(product(unflattened(direction, like)))
    along = directions(dtype)
    if not along.shape[0]:
        rows = dimension(jax.eval_shape(product, like))
        return jnp.zeros((0, rows), dtype)
    return whole(jax.lax.map(one, along, batch_size=min(block, along.shape[0])))
