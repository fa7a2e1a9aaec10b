"""A block of a curvature matrix, and the entries of the parameters that it acts on."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ._view import Part


class Origin(NamedTuple):
    """Where a block comes from.

    Attributes:
        parameters: The paths of its leaves.
        operations: The operations of the model that use them.
        lines: The lines of the model that made these.
    """

    parameters: tuple[str, ...]
    operations: tuple[str, ...]
    lines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class BlockLayout:
    """The entries that a block acts on, as matrices or as flat vectors.

    Attributes:
        parts: The entries: those of weights and perhaps of a bias.
        sizes: The numbers of groups, inputs without the bias, and outputs; `None` for
            flat vectors. Groups are an axis in front if there are several.
    """

    parts: tuple[Part, ...]
    sizes: tuple[int, int, int] | None = None

    @property
    def heads(self) -> tuple[int, ...]:
        """The lengths of scans whose steps have entries of their own."""
        return self.parts[0].heads

    def take(self, leaves: Sequence[Array]) -> Array:
        """Return the entries of leaves, with a bias as the last row of a matrix."""
        pieces = [part.take(leaves[part.leaf]) for part in self.parts]
        if self.sizes is None:
            return pieces[0].reshape(*self.heads, -1)
        groups, _, outputs = self.sizes
        lead = self.heads if groups == 1 else (*self.heads, groups)
        pieces = [a.reshape(*lead, -1, outputs) for a in pieces]
        return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces, axis=-2)

    def put(self, totals: list[Any], y: Array, leaves: Sequence[Array]) -> None:
        """Add entries to leaves, of which those without any yet are `None`."""
        pieces = [y]
        if self.sizes is not None:
            inputs = self.sizes[1]
            pieces = [y[..., :inputs, :], y[..., inputs:, :]]
        for part, piece in zip(self.parts, pieces, strict=False):
            leaf = leaves[part.leaf]
            piece = piece.reshape(*part.heads, *part.shape)
            like = jax.ShapeDtypeStruct(leaf.shape, piece.dtype)
            (spread,) = jax.linear_transpose(part.take, like)(piece)
            total, spread = totals[part.leaf], spread.astype(leaf.dtype)
            totals[part.leaf] = spread if total is None else total + spread


B = TypeVar("B", bound="AbstractBlock")


class AbstractBlock(eqx.Module):
    """A positive semidefinite matrix that acts on some entries of the parameters.

    Attributes:
        layout: The entries.
        origin: Where it comes from.
    """

    layout: BlockLayout = eqx.field(static=True)
    origin: Origin = eqx.field(static=True)

    @property
    @abc.abstractmethod
    def kind(self) -> str:
        """What it is, in words."""

    @property
    @abc.abstractmethod
    def dtype(self) -> jnp.dtype:
        """The dtype in which it is multiplied."""

    @abc.abstractmethod
    def mv(self, x: Array) -> Array:
        """Return the product with these entries, as its layout takes them."""

    @abc.abstractmethod
    def diagonal_entries(self) -> Array:
        """Return the diagonal, arranged as its entries are."""

    @abc.abstractmethod
    def inverse(self: B, damping: Float[Array, ""]) -> B:
        """Return the inverse of the block plus a multiple of the identity."""

    @abc.abstractmethod
    def times(self: B, number: Float[Array, ""]) -> B:
        """Return a multiple of the block."""

    @abc.abstractmethod
    def eigh(self) -> "AbstractBlock":
        """Return the block by its eigenvalues and vectors, an `EigenBlock`."""

    @property
    def nbytes(self) -> int:
        """The number of bytes that it takes."""
        return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(self))
