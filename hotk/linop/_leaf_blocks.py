"""`LeafBlocks`: one symmetric matrix for each leaf."""

from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hotk._core import (
    NotPositiveDefiniteError,
    RealNumber,
    StructureError,
    Tracer,
    Vector,
    describe_tree,
    message,
)

from . import space
from ._operator import AbstractOperator
from ._symmetric import AbstractSymmetricOperator
from ._vectors import check_symmetric, space_of


@final
class LeafBlocks(AbstractSymmetricOperator):
    """The symmetric operator with one matrix for each leaf, and zeros between leaves.

    Attributes:
        blocks: A symmetric matrix for each leaf of the point that is differentiated, in
            the order of `index`.
        point: A vector of the space.

    Raises:
        StructureError: If the matrices do not have the sizes of the leaves.

    Example:
        >>> f = lambda p: jnp.sum(p["a"] ** 2) * jnp.sum(p["b"] ** 2)
        >>> H = hotk.HessianOperator(f, {"a": jnp.ones(2), "b": jnp.ones(2)})
        >>> D = hotk.linop.LeafBlocks.of(H)
        >>> D.blocks[0].tolist()
        [[4.0, 0.0], [0.0, 4.0]]
        >>> x = D.inverse() @ {"a": jnp.array([4.0, 8.0]), "b": jnp.zeros(2)}
        >>> x["a"].tolist()
        [1.0, 2.0]
    """

    blocks: tuple[Float[Array, "m m"], ...] = eqx.field(converter=tuple)
    point: Vector

    def __check_init__(self) -> None:
        """Refuse matrices of other sizes."""
        sizes = [space.dimension(leaf) for leaf in jax.tree.leaves(self.point)]
        expected = [(m, m) for m in sizes]
        got = [jnp.shape(block) for block in self.blocks]
        if got != expected:
            raise StructureError(
                message(
                    "LeafBlocks(blocks, point)",
                    "the matrices do not have the sizes of the leaves.",
                    expected=", ".join(map(str, expected)),
                    got=", ".join(map(str, got)),
                    fix="Give one square matrix for each leaf, in the order of "
                    "`A.index`; or use `LeafBlocks.of(A)`.",
                )
            )

    @staticmethod
    def of(operator: AbstractOperator) -> "LeafBlocks":
        """Return the diagonal blocks of a symmetric operator.

        It takes as many products as there are parameters, and the memory of the blocks.

        Args:
            operator: A symmetric operator.

        Raises:
            TypeError: If it is not symmetric.
        """
        like = space_of(operator)
        check_symmetric("LeafBlocks.of(A)", operator)
        leaves, tree = jax.tree.flatten(like)
        if len(leaves) == 1:
            return LeafBlocks((operator.matrix(),), like)
        blocks: list[Array] = []
        for i, leaf in enumerate(leaves):
            if not jnp.size(leaf):
                blocks.append(jnp.zeros((0, 0), space.wide(leaf.dtype)))
                continue
            chosen = [np.full(jnp.shape(a), i == j) for j, a in enumerate(leaves)]
            blocks.append(operator.restrict(tree.unflatten(chosen)).matrix())
        return LeafBlocks(tuple(blocks), like)

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        return self.point

    def __repr__(self) -> str:
        """Show the space and the blocks."""
        sizes = ", ".join(str(len(block)) for block in self.blocks)
        return f"LeafBlocks({describe_tree(self.like, 4)}, blocks of {sizes})"

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector, block by block."""
        leaves, tree = jax.tree.flatten(v)

        def product(block: Array, leaf: Array) -> Array:
            wide = space.widened(leaf)
            image = space.unflattened(block @ space.flattened(wide), wide)
            return space.narrowed(image, leaf)

        return tree.unflatten(
            [product(b, a) for b, a in zip(self.blocks, leaves, strict=True)]
        )

    def absolute(self) -> "LeafBlocks":
        r"""Return the absolute value $(B^2)^{1/2}$ of each block.

        Eigenvalues count by their sizes, so that its inverse is a preconditioner of a
        Hessian that may be indefinite. Those that are but rounding count as rounding.

        Returns:
            Blocks that are positive definite.

        Example:
            >>> f = lambda x: x[0] ** 2 - 2 * x[1] ** 2
            >>> D = hotk.linop.LeafBlocks.of(hotk.HessianOperator(f, jnp.ones(2)))
            >>> D.absolute().matrix().tolist()
            [[2.0, 0.0], [0.0, 4.0]]
        """
        return LeafBlocks(tuple(map(_absolute, self.blocks)), self.point)

    def inverse_or_none(self, damping: RealNumber) -> "LeafBlocks":
        r"""Return the inverses of the blocks, $(B + \lambda I)^{-1}$.

        Args:
            damping: The number $\lambda$.

        Raises:
            NotPositiveDefiniteError: If a block is not positive definite by more than
                rounding. Inside of a transformation no error is possible, and the
                inverse is NaN.
        """
        call = "LeafBlocks.of(A).inverse(damping)"
        shifted = [_shifted(block, damping) for block in self.blocks]
        for i, block in enumerate(shifted):
            if block.size and not isinstance(block, Tracer):
                _check_definite(call, i, block)
        return LeafBlocks(tuple(map(_inverse, shifted)), self.point)


def _shifted(block: Float[Array, "n n"], damping: RealNumber) -> Float[Array, "n n"]:
    block = block.astype(space.wide(block.dtype))
    unit = jnp.eye(len(block), dtype=block.dtype)
    return (block + block.T) / 2 + jnp.asarray(damping, block.dtype) * unit


def _check_definite(call: str, i: int, block: Float[Array, "n n"]) -> None:
    values = np.linalg.eigvalsh(np.asarray(block))
    if values[0] <= _rounding(block) * abs(values).max():
        raise NotPositiveDefiniteError(
            message(
                call,
                f"block {i} is not positive definite.",
                expected="positive curvature in all directions of a leaf",
                got=f"the eigenvalue {float(values[0]):.6g}, damping included",
                fix="Give a larger `damping`.",
            ),
            smallest=float(values[0]),
        )


def _inverse(block: Float[Array, "n n"]) -> Float[Array, "n n"]:
    # By a factor, not eigenvectors, whose derivatives are not finite where two
    # eigenvalues are equal.
    root = jax.scipy.linalg.cholesky(block, lower=True)
    unit = jnp.eye(len(block), dtype=block.dtype)
    return jax.scipy.linalg.cho_solve((root, True), unit)


def _absolute(block: Float[Array, "n n"]) -> Float[Array, "n n"]:
    block = _shifted(block, 0.0)
    if not block.size:
        return block
    values, vectors = jnp.linalg.eigh(block)
    sizes = jnp.abs(values)
    size = jnp.max(sizes)
    sizes = jnp.maximum(sizes, _rounding(block) * jnp.where(size > 0, size, 1))
    return jnp.matmul(vectors * sizes[None, :], vectors.T, precision="highest")


def _rounding(block: Float[Array, "n n"]) -> float:
    return len(block) * float(jnp.finfo(block.dtype).eps)
