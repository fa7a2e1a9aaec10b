r"""Factors of an arrow of blocks: the blocks first, then a dense Schur complement."""

from collections.abc import Iterator
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int

from hotk._core import extra

from ._elimination import Elimination, Step


@final
class SchurFactors:
    r"""The Cholesky factor of a matrix whose small blocks are eliminated first.

    Of $\begin{pmatrix} D & B \\ B^T & C \end{pmatrix}$ it is
    $\begin{pmatrix} L & \\ W^T & K \end{pmatrix}$, with $D = L L^T$ block by block,
    $W = L^{-1} B$, and $C - W^T W = K K^T$.

    Attributes:
        pivots: The squares of its diagonal.
        terms: The sum of absolute values that each pivot is the difference of.
    """

    __slots__ = ("_blocks", "_how", "_panels", "_rest", "pivots", "terms")

    on_diagonal = True  # as `Factors` may not be

    def __init__(
        self, how: Elimination, values: Float[np.ndarray, " nnz"], shift: float
    ) -> None:
        """Factorize a matrix.

        Args:
            how: Where its entries are.
            values: The entries.
            shift: A number that is added to the diagonal.

        Raises:
            numpy.linalg.LinAlgError: If it is not positive definite.
        """
        self._how = how
        self._blocks = _cholesky(how, values, shift)
        self._panels = values[how.entries]
        for step in how.steps:
            _solve_step(self._blocks, step, self._panels)
        rest = np.zeros((how.left,) * 2, values.dtype)
        rest[how.at] = values[how.within]
        rest[np.diag_indices(how.left)] += shift
        self.terms = _picked(values, how.diagonal) + shift
        for panel in how.panels:
            part = panel.of(self._panels)
            rest[panel.cols, panel.cols] -= part.T @ part
        for product in how.products:
            one, other = product.common(self._panels)
            rest[product.second.cols, product.first.cols] -= other.T @ one
        if how.left:  # LAPACK refuses an empty matrix
            rest = _lapack().cholesky(
                rest, lower=True, overwrite_a=True, check_finite=False
            )
        self._rest: np.ndarray = rest
        m = self._blocks.shape[0]
        diagonals = [self._blocks[np.arange(m), how.number], self._rest.diagonal()]
        self.pivots = np.concatenate(diagonals) ** 2

    @property
    def nnz(self) -> int:
        """The number of entries of the factor and its transpose."""
        sizes = self._how.sizes
        blocks, left = int((sizes * (sizes + 1)).sum()), self._how.left
        return blocks + 2 * self._panels.size + left * (left + 1)

    @property
    def order(self) -> Int[np.ndarray, " n"]:
        """Which row of the matrix each pivot stands in."""
        return self._how.order

    def solve(self, b: np.ndarray, trans: str = "N") -> np.ndarray:
        """Solve a system with the matrix, which is its own transpose."""
        del trans
        if np.iscomplexobj(b):
            return self.solve(np.real(b)) + 1j * self.solve(np.imag(b))
        return self.inverse_root(self.inverse_root(b, True), False)

    def inverse_root(self, b: np.ndarray, transposed: bool) -> np.ndarray:
        """Multiply with the inverse of the factor, or with its transpose."""
        how, panels = self._how, self._panels
        m = self._blocks.shape[0]
        if transposed:
            x = b[how.order].astype(self.pivots.dtype, copy=False)
            self._forward(x[:m])
            for panel in how.panels:
                x[m:][panel.cols] -= panel.of(panels).T @ x[panel.rows]
            x[m:] = self._triangular(x[m:], "N")
            return x
        x = b.astype(self.pivots.dtype)
        x[m:] = self._triangular(x[m:], "T")
        for panel in how.panels:
            x[panel.rows] -= panel.of(panels) @ x[m:][panel.cols]
        self._backward(x[:m])
        found = np.empty_like(x)
        found[how.order] = x
        return found

    def selected_inverse(self) -> Float[np.ndarray, " nnz"]:
        r"""Return the entries of the inverse where the matrix has entries.

        With $V = L^{-T} W$ and $Z = (K K^T)^{-1}$ the inverse is
        $\begin{pmatrix} D^{-1} + V Z V^T & -V Z \\ -Z V^T & Z \end{pmatrix}$.
        """
        how = self._how
        m = self._blocks.shape[0]
        v = self._panels.copy()
        for step in reversed(how.steps):
            _solve_step(self._blocks, step, v, transposed=True)
        root = self._triangular(np.eye(how.left, dtype=v.dtype), "N")
        z = root.T @ root
        vz = np.empty_like(v)
        for panel in how.panels:
            panel.of(vz)[:] = panel.of(v) @ z[panel.cols, panel.cols]
        for product in how.products:
            first, second = product.first, product.second
            between = z[first.cols, second.cols]
            one, other = product.common(v)
            for panel, which, part in (
                (second, product.in_second, one @ between),
                (first, product.in_first, other @ between.T),
            ):
                into = panel.of(vz).reshape(-1, product.size, panel.width)
                into[which] += part.reshape(-1, product.size, panel.width)
        blocks = np.zeros_like(self._blocks)
        blocks[np.arange(m), how.number] = 1
        self._forward(blocks)
        self._backward(blocks)
        for step in how.steps:
            part = vz[step.entries].reshape(-1, step.width)[step.rows]
            for j in range(step.number + 1):
                other = v[step.entries].reshape(-1, step.width)
                form = np.sum(part * other[step.before(step.number - j)], axis=1)
                np.add.at(blocks[:, j], step.blocks, form)
        return how.in_order(blocks, -vz, z)

    def _triangular(self, b: np.ndarray, trans: str) -> np.ndarray:
        if not b.size:  # LAPACK refuses it
            return b
        return _lapack().solve_triangular(
            self._rest, b, lower=True, trans=trans, check_finite=False
        )

    def _forward(self, x: np.ndarray) -> None:
        """Solve a system with L, in place."""
        for k, rows in _rows(self._how):
            for j in range(k):
                x[rows] -= _beside(self._blocks[rows, j], x) * x[rows - k + j]
            x[rows] /= _beside(self._blocks[rows, k], x)

    def _backward(self, x: np.ndarray) -> None:
        """Solve a system with the transpose of L, in place."""
        for k, rows in reversed([*_rows(self._how)]):
            x[rows] /= _beside(self._blocks[rows, k], x)
            for j in range(k):
                x[rows - k + j] -= _beside(self._blocks[rows, j], x) * x[rows]


def _cholesky(how: Elimination, values: np.ndarray, shift: float) -> np.ndarray:
    """Factorize all blocks: row by row of each, the same row of all at once."""
    blocks = _picked(values, how.blocks)
    for k, rows in _rows(how):
        blocks[rows, k] += shift
        for j in range(k + 1):
            for i in range(j):
                blocks[rows, j] -= blocks[rows, i] * blocks[rows - k + j, i]
            if j < k:
                blocks[rows, j] /= blocks[rows - k + j, j]
        if not np.all(blocks[rows, k] > 0):
            raise np.linalg.LinAlgError("a block is not positive definite")
        blocks[rows, k] **= 0.5
    return blocks


def _picked(values: np.ndarray, which: Int[np.ndarray, "..."]) -> np.ndarray:
    """Return entries by their numbers, zero for those after the last."""
    found = np.zeros(which.shape, values.dtype)
    inside = which < values.size
    found[inside] = values[which[inside]]
    return found


def _solve_step(
    blocks: np.ndarray, step: Step, panels: np.ndarray, *, transposed: bool = False
) -> None:
    """Solve for rows of the panels in place, of a system with L or its transpose."""
    part = panels[step.entries].reshape(-1, step.width)
    k, rows = step.number, step.rows
    if transposed:
        part[rows] /= blocks[step.blocks, k, None]
    for j in range(k):
        factor, others = blocks[step.blocks, j, None], step.before(k - j)
        if transposed:
            part[others] -= factor * part[rows]
        else:
            part[rows] -= factor * part[others]
    if not transposed:
        part[rows] /= blocks[step.blocks, k, None]


def _rows(how: Elimination) -> Iterator[tuple[int, Int[np.ndarray, " k"]]]:
    """Yield the first row of each block, the second of each that has two, and so on."""
    for k in range(how.blocks.shape[1]):
        yield k, how.starts[how.sizes > k] + k


def _beside(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    return a.reshape(-1, *[1] * (x.ndim - 1))


def _lapack() -> Any:
    return extra("scipy.linalg")
