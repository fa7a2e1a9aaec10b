"""Operators that are block diagonal in the parameters of a model."""

import html
import itertools
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from hotk._core import (
    NotPositiveDefiniteError,
    RealNumber,
    Scalar,
    Tracer,
    Vector,
    bytes_name,
    describe_tree,
    html_table,
    message,
    text_table,
)
from hotk._prepared import jitted

from . import space
from ._inverse import InverseMethod
from ._operator import AbstractOperator
from ._symmetric import AbstractSymmetricOperator
from ._vectors import is_known_positive
from .kfac import AbstractBlock, EigenBlock


BlockInverse: TypeAlias = Literal["pi", "eigh"] | InverseMethod
"""How a block diagonal operator is inverted; see `KFACOperator.inverse`."""

_HEADER = ("parameter", "operation", "line", "block", "bytes")


class AbstractBlockDiagonal(AbstractSymmetricOperator):
    """A block diagonal operator; its blocks cover all entries of the space.

    Attributes:
        blocks: The blocks.
        template: A vector of the space.
    """

    blocks: eqx.AbstractVar[tuple[AbstractBlock, ...]]
    template: eqx.AbstractVar[Vector]

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        return self.template

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector, block by block."""
        return _product(self.blocks, v)

    def diagonal(self, block_size: int | None = None) -> Vector:
        """Return the diagonal, from those of the factors: no products are needed."""
        del block_size
        each = [block.diagonal_entries() for block in self.blocks]
        return _together(self.blocks, each, self.template)

    def inverse(
        self,
        damping: RealNumber = 0.0,
        method: BlockInverse | None = None,
        *,
        tol: RealNumber | None = None,
        max_steps: int | None = None,
    ) -> AbstractOperator:
        r"""Return the inverse of the operator plus $\lambda I$, an operator.

        It fits `preconditioner=` of the solvers of `hotk.linop`.

        Args:
            damping: The number $\lambda$, not negative.
            method: `"pi"`, the default: a Kronecker product $A \otimes G$ gives $(A +
                \pi \sqrt\lambda I)^{-1} \otimes (G + \sqrt\lambda / \pi I)^{-1}$ with
                $\pi^2$ the ratio of the mean eigenvalues of A and G [1, section 6.3]:
                two Cholesky factors, close to the inverse. `"eigh"`: the inverse itself
                by the eigenvectors of the factors, about ten times the work.
                `"cholesky"` and `"solve"`: see `AbstractOperator.inverse`.
            tol: The relative tolerance for `"solve"`.
            max_steps: The most products for `"solve"`.

        Raises:
            NotPositiveDefiniteError: If a damped factor is singular. Inside of a
                transformation the inverse is NaN then.
            ValueError: If there is no such method, or the damping is negative.

        References:
            [1] Martens and Grosse (2015). Optimizing neural networks with
                Kronecker-factored approximate curvature. ICML.
        """
        if method in ("cholesky", "solve"):
            return AbstractOperator.inverse(
                self, damping, method, tol=tol, max_steps=max_steps
            )
        if method not in (None, "pi", "eigh"):
            raise ValueError(
                f"`K.inverse(damping)`: method {method!r} is not 'pi', 'eigh', "
                "'cholesky' or 'solve'."
            )
        number = jnp.asarray(damping, space.scalar_dtype(self.template))
        if not isinstance(number, Tracer) and float(number) < 0:
            raise ValueError(f"`K.inverse(damping)`: {damping} is negative.")
        inverted = _inverted(self.blocks, number, by_eigenvalues=method == "eigh")
        _check_finite(inverted)
        return BlockDiagonal(inverted, self.template)

    def eigendecomposition(self) -> "BlockDiagonal":
        r"""Return the operator by eigenvalues and vectors of all of its blocks.

        The same matrix, whose inverse for any damping is then exact and costs nothing
        more. Negative eigenvalues, which rounding makes, become zero.

        Example:
            >>> loss = hotk.curvature.SquaredError(jnp.eye(3))
            >>> model = lambda w, x: x @ w
            >>> w = jnp.ones((2, 3))
            >>> K = hotk.KFACOperator(model, loss, w, jnp.eye(3, 2))
            >>> E = K.eigendecomposition()
            >>> bool(jnp.allclose(E.inverse(0.1) @ (K @ w + 0.1 * w), w))
            True
        """
        return BlockDiagonal(_decomposed(self.blocks), self.template)

    def eigenvalues(self) -> Float[Array, " n"]:
        """Return all eigenvalues, in ascending order; those of factors multiplied."""
        blocks = self.eigendecomposition().blocks
        dtype = space.promoted(*(block.dtype for block in blocks))
        flat = [_values(block).reshape(-1).astype(dtype) for block in blocks]
        return jnp.sort(jnp.concatenate(flat))

    def logdet(self, damping: RealNumber = 0.0) -> Scalar:
        r"""Return $\log\det(A + \lambda I)$, from the eigenvalues of all blocks.

        Args:
            damping: The number $\lambda$. Without it, a singular operator has minus
                infinity.
        """
        values = self.eigenvalues()
        return jnp.sum(jnp.log(values + jnp.asarray(damping, values.dtype)))

    def sqrt(self) -> "BlockDiagonal":
        r"""Return the symmetric square root, by eigenvalues.

        The one of an inverse, $(A + \lambda I)^{-1/2}$, turns normal numbers into
        samples of $N(0, (A + \lambda I)^{-1})$.
        """
        blocks = self.eigendecomposition().blocks
        return BlockDiagonal(tuple(map(_root, blocks)), self.template)

    def __mul__(self, factor: Any) -> Any:
        """Return a multiple; by a number known to be positive, block by block."""
        product = AbstractOperator.__mul__(self, factor)
        if product is NotImplemented:
            return product
        # under `jit` a number of Python is known, and its array is not
        known = factor if isinstance(factor, (int, float)) else product.factor
        if not is_known_positive(known):
            return product
        number = product.factor
        blocks = tuple(block.times(number) for block in self.blocks)
        return eqx.tree_at(lambda o: o.blocks, self, blocks)

    __rmul__ = __mul__

    # ----- How it shows

    @property
    def nbytes(self) -> int:
        """The number of bytes of all blocks."""
        return sum(block.nbytes for block in self.blocks)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                _joined(block.origin.parameters),
                ", ".join(block.origin.operations) or "not used",
                ", ".join(block.origin.lines),
                block.kind,
                bytes_name(block.nbytes),
            )
            for block in self.blocks
        ]

    def _line(self) -> str:
        n, size = space.dimension(self.template), bytes_name(self.nbytes)
        what = f"{describe_tree(self.template, 4)}, n={n}, {len(self.blocks)} blocks"
        return f"{type(self).__name__}({what}, {size})"

    def __repr__(self) -> str:
        """Show the blocks, one line each."""
        try:
            return "\n".join(
                [self._line(), text_table(_HEADER, self._rows(), width=100)]
            )
        except Exception:  # shapes alone, as of `jax.eval_shape`
            return eqx.tree_pformat(self)

    def _repr_html_(self) -> str:
        line = f"<p><code>{html.escape(self._line())}</code></p>"
        return line + html_table(_HEADER, self._rows())


def _joined(parameters: Sequence[str]) -> str:
    """Write what parameters have in common once: `.first: kernel + bias`."""
    letters = zip(*parameters, strict=False)
    same = itertools.takewhile(lambda each: len(set(each)) == 1, letters)
    common = "".join(letter for letter, *_ in same)
    end = max(common.rfind("."), common.rfind("["))
    if len(parameters) < 2 or end <= 0:
        return " + ".join(parameters)
    # that of a variable of nnx says nothing
    names = [name[end:].lstrip(".").removesuffix(".value") for name in parameters]
    return f"{common[:end]}: {' + '.join(names)}"


@final
class BlockDiagonal(AbstractBlockDiagonal):
    """A block diagonal operator, such as the inverse of a `KFACOperator`.

    Attributes:
        blocks: The blocks.
        template: A vector of the space.

    Example:
        >>> model, loss = lambda w, x: x @ w, hotk.curvature.SquaredError(jnp.eye(3))
        >>> K = hotk.KFACOperator(model, loss, jnp.zeros((2, 3)), jnp.ones((3, 2)))
        >>> type(K.inverse(0.1)).__name__
        'BlockDiagonal'
    """

    blocks: tuple[AbstractBlock, ...]
    template: Vector

    @property
    def positive_semidefinite(self) -> bool:
        """Whether it is known to be positive semidefinite: always `True`."""
        return True


@jitted
def _product(blocks: tuple[AbstractBlock, ...], v: Vector) -> Vector:
    leaves = jax.tree.leaves(v)
    cast = lambda block: [a.astype(block.dtype) for a in leaves]
    each = [block.mv(block.layout.take(cast(block))) for block in blocks]
    return _together(blocks, each, v)


def _together(
    blocks: tuple[AbstractBlock, ...], each: list[Array], like: Vector
) -> Vector:
    leaves, tree = jax.tree.flatten(like)
    totals: list[Any] = [None] * len(leaves)
    for block, y in zip(blocks, each, strict=True):
        block.layout.put(totals, y, leaves)
    # a leaf without entries is in no block
    pairs = zip(totals, leaves, strict=True)
    return tree.unflatten([a if t is None else t for t, a in pairs])


@jitted(static_argnames="by_eigenvalues")
def _inverted(
    blocks: tuple[AbstractBlock, ...], damping: Scalar, *, by_eigenvalues: bool
) -> tuple[AbstractBlock, ...]:
    parts = (block.eigh() if by_eigenvalues else block for block in blocks)
    return tuple(block.inverse(damping) for block in parts)


@jitted
def _decomposed(blocks: tuple[AbstractBlock, ...]) -> tuple[AbstractBlock, ...]:
    return tuple(block.eigh() for block in blocks)


def _values(block: AbstractBlock) -> Array:
    assert isinstance(block, EigenBlock)
    return block.values


def _root(block: AbstractBlock) -> AbstractBlock:
    assert isinstance(block, EigenBlock)
    return block.with_values(jnp.sqrt(block.values))


@jitted
def _all_finite(blocks: tuple[AbstractBlock, ...]) -> Bool[Array, " blocks"]:
    finite = [
        [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(block)] for block in blocks
    ]
    return jnp.stack([jnp.all(jnp.stack(of_block)) for of_block in finite])


def _check_finite(blocks: tuple[AbstractBlock, ...]) -> None:
    if any(isinstance(a, Tracer) for a in jax.tree.leaves(blocks)):
        return
    finite = np.asarray(_all_finite(blocks))
    if finite.all():
        return
    block = blocks[int(np.argmin(finite))]
    raise NotPositiveDefiniteError(
        message(
            "K.inverse(damping)",
            f"the block of {' + '.join(block.origin.parameters)} is singular.",
            expected="a damping that makes its factors positive definite",
            got="a Cholesky factor or an eigenvalue that is zero or not finite",
            fix="Give a larger `damping`: a factor has at most as many positive "
            "eigenvalues as there are examples and positions.",
        ),
        smallest=0.0,
    )
