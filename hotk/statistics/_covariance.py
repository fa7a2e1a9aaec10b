r"""Covariances as operators that know a root: $\Sigma = R R^T$."""

import abc
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hotk._core import (
    Scalar,
    Tracer,
    Vector,
    called_on_host,
    describe_tree,
    nan_on_purpose,
)
from hotk._dense import By
from hotk._prepared import check_bytes
from hotk.linop import AbstractOperator, AbstractSymmetricOperator, BlockDiagonal, space
from hotk.rule import safe
from hotk.sparse import Factorization


def _product(a: Array, b: Array) -> Array:
    # In full precision: an error of a covariance is one of every interval.
    return jnp.matmul(a, b, precision="highest")


def _row(a: Float[Array, " n"], like: Array) -> Array:
    # One axis more for each in front: JAX can be set to refuse to add them by itself.
    return a.reshape((1,) * (like.ndim - 1) + (-1,))


def lengths(rows: Float[Array, "*k m"]) -> Float[Array, "*k"]:
    """Return the norm of each row, also where squares of its entries underflow."""
    return safe.norm(space.widened(rows), -1).astype(rows.dtype)


class AbstractCovariance(AbstractSymmetricOperator):
    r"""A covariance $\Sigma = R R^T$ on a space of trees, by products with its root.

    Samples are $R z$ for a standard normal $z$, and the variance of a linear function
    $j^T x$ is the square of the norm of $R^T j$: so neither needs the matrix.
    """

    template: eqx.AbstractVar[Vector]

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        return self.template

    @property
    @abc.abstractmethod
    def noise_size(self) -> int:
        """The number of columns of the root."""

    @property
    @abc.abstractmethod
    def log_determinant(self) -> Scalar:
        """The logarithm of the determinant."""

    @abc.abstractmethod
    def root(self, noise: Float[Array, "*k m"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors, one a row, with the root."""

    @abc.abstractmethod
    def root_transposed(self, rows: Float[Array, "*k n"]) -> Float[Array, "*k m"]:
        """Multiply flat vectors, one a row, with the transpose of the root."""

    @abc.abstractmethod
    def errors(self) -> Float[Array, " n"]:
        """Return the standard deviations, flat."""

    def diagonal(self, block_size: int | None = None) -> Vector:
        """Return the variances as a vector of the space."""
        del block_size
        return space.unflattened(self.errors() ** 2, self.like)

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector."""
        flat = space.flattened(v)
        return space.unflattened(self.root(self.root_transposed(flat)), self.like)

    def matrix(
        self,
        block_size: int | None = None,
        *,
        split: By | None = None,
        mesh_axis: str | None = None,
    ) -> Float[Array, "n n"]:
        """Return the matrix; see `AbstractOperator.matrix`."""
        if split is not None or mesh_axis is not None:
            return AbstractOperator.matrix(
                self, block_size, split=split, mesh_axis=mesh_axis
            )
        roots = self.root_matrix()
        return _product(roots, roots.T)

    def correlation(self) -> Float[Array, "n n"]:
        """Return the correlation matrix; NaN where an error is zero."""
        rows = self.root_matrix()
        # of rows of length one: squares of small errors would be zero
        with nan_on_purpose():
            rows = rows / self.errors()[:, None]
            return _product(rows, rows.T)

    def root_matrix(self) -> Float[Array, "n m"]:
        """Return the root as a matrix."""
        n = self.size
        alternatives = "`standard_errors`, `sample`, `interval`: these need no matrix"
        check_bytes("covariance", n, n * n * self.dtype.itemsize, alternatives)
        return self.root_transposed(jnp.eye(n, dtype=self.dtype))

    def __repr__(self) -> str:
        """Show shapes and size."""
        return f"{type(self).__name__}({describe_tree(self.like, 4)}, n={self.size})"


@final
class DenseCovariance(AbstractCovariance):
    """A covariance with its root as a matrix.

    Attributes:
        template: A vector of the space.
        matrix_root: The root, of shape (n, m).
        log_det: The logarithm of the determinant.
    """

    template: Vector
    matrix_root: Float[Array, "n m"]
    log_det: Scalar

    @property
    def noise_size(self) -> int:
        """The number of columns of the root."""
        return self.matrix_root.shape[1]

    @property
    def log_determinant(self) -> Scalar:
        """The logarithm of the determinant."""
        return self.log_det

    def root(self, noise: Float[Array, "*k m"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors with the root."""
        return _product(noise, self.matrix_root.T)

    def root_transposed(self, rows: Float[Array, "*k n"]) -> Float[Array, "*k m"]:
        """Multiply flat vectors with the transpose of the root."""
        return _product(rows, self.matrix_root)

    def root_matrix(self) -> Float[Array, "n m"]:
        """Return the root as a matrix."""
        return self.matrix_root

    def errors(self) -> Float[Array, " n"]:
        """Return the standard deviations, flat."""
        return lengths(self.matrix_root)


@final
class DiagonalCovariance(AbstractCovariance):
    """A diagonal covariance.

    Attributes:
        template: A vector of the space.
        deviations: The standard deviations, as a flat vector.
    """

    template: Vector
    deviations: Float[Array, " n"]

    @property
    def noise_size(self) -> int:
        """The number of columns of the root."""
        return self.deviations.shape[0]

    @property
    def log_determinant(self) -> Scalar:
        """The logarithm of the determinant."""
        return 2 * jnp.sum(jnp.log(self.deviations))

    def root(self, noise: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors with the root."""
        return noise * _row(self.deviations, noise)

    def root_transposed(self, rows: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors with the transpose of the root."""
        return self.root(rows)

    def errors(self) -> Float[Array, " n"]:
        """Return the standard deviations, flat."""
        return self.deviations


@final
class BlockCovariance(AbstractCovariance):
    """A covariance without correlation between leaves.

    Attributes:
        template: A vector of the space.
        roots: For each leaf the root of its block.
        log_det: The logarithm of the determinant.
    """

    template: Vector
    roots: tuple[Float[Array, "_ _"], ...]
    log_det: Scalar

    @property
    def noise_size(self) -> int:
        """The number of columns of the root."""
        return sum(root.shape[1] for root in self.roots)

    @property
    def log_determinant(self) -> Scalar:
        """The logarithm of the determinant."""
        return self.log_det

    def _by_blocks(self, rows: Array, roots: list[Array]) -> Array:
        pieces, start = [], 0
        for root in roots:
            stop = start + root.shape[1]
            pieces.append(_product(rows[..., start:stop], root.T))
            start = stop
        return jnp.concatenate(pieces, axis=-1)

    def root(self, noise: Float[Array, "*k m"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors with the root."""
        return self._by_blocks(noise, list(self.roots))

    def root_transposed(self, rows: Float[Array, "*k n"]) -> Float[Array, "*k m"]:
        """Multiply flat vectors with the transpose of the root."""
        return self._by_blocks(rows, [root.T for root in self.roots])

    def errors(self) -> Float[Array, " n"]:
        """Return the standard deviations, flat."""
        return jnp.concatenate([lengths(root) for root in self.roots])


@final
class LowRankCovariance(AbstractCovariance):
    r"""The matrix $D (U \Lambda U^T + I - U U^T)^{-1} D$ with orthonormal columns U.

    Attributes:
        template: A vector of the space.
        vectors: The columns of U, one a row.
        deviations: The roots of the inverse eigenvalues $\Lambda$.
        unit: The diagonal D, flat: standard deviations where there are no others.
    """

    template: Vector
    vectors: Float[Array, "k n"]
    deviations: Float[Array, " k"]
    unit: Float[Array, " n"]

    @property
    def noise_size(self) -> int:
        """The number of columns of the root."""
        return self.vectors.shape[1]

    @property
    def log_determinant(self) -> Scalar:
        """The logarithm of the determinant."""
        return 2 * jnp.sum(jnp.log(self.deviations)) + 2 * jnp.sum(jnp.log(self.unit))

    @property
    def _whole(self) -> bool:
        """Whether the columns of U span the space, so that the prior is nowhere left.

        To subtract them from the identity would leave rounding of it, which is not
        small beside what data determine much better than the prior.
        """
        k, n = self.vectors.shape
        return k == n

    def _inner(self, rows: Array) -> Array:
        along = _product(rows, self.vectors.T)
        if self._whole:
            return _product(along * _row(self.deviations, along), self.vectors)
        along = along * _row(self.deviations - 1, along)
        return rows + _product(along, self.vectors)

    def root(self, noise: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors with the root."""
        return self._inner(noise) * _row(self.unit, noise)

    def root_transposed(self, rows: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors with the transpose of the root."""
        return self._inner(rows * _row(self.unit, rows))

    def errors(self) -> Float[Array, " n"]:
        """Return the standard deviations, flat."""
        squares = self.vectors**2
        inner = _product(self.deviations**2, squares)
        if not self._whole:
            inner = inner + jnp.maximum(1 - jnp.sum(squares, axis=0), 0)
        return self.unit * jnp.sqrt(inner)


@final
class KroneckerCovariance(AbstractCovariance):
    r"""A covariance $c\, R^2$ with a symmetric block diagonal root R.

    Attributes:
        template: A vector of the space.
        block_root: The root R, by eigenvectors of Kronecker factors.
        squared: The matrix $R^2$.
        factor: The root of the number c.
        log_det: The logarithm of the determinant.
    """

    template: Vector
    block_root: BlockDiagonal
    squared: BlockDiagonal
    factor: Scalar
    log_det: Scalar

    @property
    def noise_size(self) -> int:
        """The number of columns of the root."""
        return self.size

    @property
    def log_determinant(self) -> Scalar:
        """The logarithm of the determinant."""
        return self.log_det

    def root(self, noise: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors with the root, which is symmetric."""
        rows = noise.reshape(-1, noise.shape[-1])
        of_row = lambda row: space.flattened(
            self.block_root.mv(space.unflattened(row, self.template))
        )
        return (self.factor * jax.vmap(of_row)(rows)).reshape(noise.shape)

    def root_transposed(self, rows: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors with the transpose of the root."""
        return self.root(rows)

    def errors(self) -> Float[Array, " n"]:
        """Return the standard deviations, flat."""
        return self.factor * jnp.sqrt(space.flattened(self.squared.diagonal()))


@final
class SparseCovariance(AbstractCovariance):
    r"""The inverse $A^{-1} / s$ of a sparse matrix by its factor, on the host.

    Attributes:
        template: A vector of the space.
        variances: Its diagonal, flat.
        factor: The number $s^{-1/2}$.
        log_det: The logarithm of the determinant.
        factors: The factorization of A.
    """

    template: Vector
    variances: Float[Array, " n"]
    factor: Scalar
    log_det: Scalar
    factors: Factorization = eqx.field(static=True)

    @property
    def noise_size(self) -> int:
        """The number of columns of the root."""
        return self.size

    @property
    def log_determinant(self) -> Scalar:
        """The logarithm of the determinant."""
        return self.log_det

    def _on_host(self, rows: Array, transposed: bool) -> Array:
        def host(rows: Any) -> np.ndarray:
            columns = np.asarray(rows, np.float64).reshape(-1, self.size).T
            found = self.factors.inverse_root(columns, transposed=transposed)
            return found.T.reshape(rows.shape).astype(rows.dtype)

        if not isinstance(rows, Tracer):
            return self.factor * jnp.asarray(host(rows))
        kind = jax.ShapeDtypeStruct(rows.shape, rows.dtype)
        found = called_on_host(host, kind, rows, vmap_method="expand_dims")
        return self.factor * found

    def root(self, noise: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors with the root."""
        return self._on_host(noise, False)

    def root_transposed(self, rows: Float[Array, "*k n"]) -> Float[Array, "*k n"]:
        """Multiply flat vectors with the transpose of the root."""
        return self._on_host(rows, True)

    def errors(self) -> Float[Array, " n"]:
        """Return the standard deviations, flat."""
        return jnp.sqrt(self.variances)
