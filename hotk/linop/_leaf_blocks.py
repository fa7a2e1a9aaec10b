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
    Scalar,
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
        sizes = [space.dimension(leaf) for leaf in space.parts(self.point)]
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

    def inverse_or_none(self, damping: RealNumber) -> "LeafBlocks":
        r"""Return the inverses of the blocks, $(B + \lambda I)^{-1}$.

        Inside of a transformation, as in an optimizer, eigenvalues are replaced by
        their absolute values, and by rounding where they are smaller: a preconditioner
        has to be positive definite.

        Args:
            damping: The number $\lambda$.

        Raises:
            NotPositiveDefiniteError: If a block is not positive definite.
        """
        pairs = [_inverse(block, damping) for block in self.blocks]
        lowest = [low for _, low in pairs]
        if not any(isinstance(low, Tracer) for low in lowest):
            bad = [i for i, low in enumerate(lowest) if not float(low) > 0]
            if bad:
                raise NotPositiveDefiniteError(
                    message(
                        "LeafBlocks.of(A).inverse(damping)",
                        f"block {bad[0]} is not positive definite.",
                        expected="positive curvature in all directions of a leaf",
                        got=f"the eigenvalue {float(lowest[bad[0]]):.6g}, damping "
                        "included",
                        fix="Give a larger `damping`.",
                    ),
                    smallest=float(lowest[bad[0]]),
                )
        return LeafBlocks(tuple(inverse for inverse, _ in pairs), self.point)


def _inverse(block: Float[Array, "n n"], damping: RealNumber) -> tuple[Array, Scalar]:
    """Return the inverse, and the smallest eigenvalue; zero if it is but rounding."""
    block = block.astype(space.wide(block.dtype))
    if not block.size:
        return block, jnp.ones((), block.dtype)
    values, vectors = jnp.linalg.eigh((block + block.T) / 2)
    values = values + jnp.asarray(damping, values.dtype)
    size = jnp.max(jnp.abs(values))
    rounding = len(block) * jnp.finfo(block.dtype).eps * jnp.where(size > 0, size, 1)
    large = jnp.maximum(jnp.abs(values), rounding)
    inverse = jnp.matmul(vectors / large[None, :], vectors.T, precision="highest")
    lowest = jnp.where(jnp.abs(values[0]) > rounding, values[0], 0)
    return inverse, lowest
