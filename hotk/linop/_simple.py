"""`Identity` and `Diagonal`."""

from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp

from hotk._core import describe_tree

from ._operator import AbstractOperator


@final
class Identity(AbstractOperator):
    """The identity, of whatever space it is added to or multiplied with.

    Example:
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**3), jnp.ones(2))
        >>> (H + 0.5 * hotk.Identity()).matrix().tolist()
        [[6.5, 0.0], [0.0, 6.5]]
    """

    @property
    def like(self) -> None:
        """Any vector will do."""
        return

    @property
    def symmetric(self) -> bool:
        """It is."""
        return True

    def mv(self, v: Any) -> Any:
        """Return the vector."""
        return v


def _arrays(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


@final
class Diagonal(AbstractOperator):
    """The entrywise product with a vector.

    Attributes:
        entries: The diagonal: a tree of real or complex arrays. The parts of a complex
            entry multiply the real and the imaginary part.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x @ x, jnp.ones(2))
        >>> (H + hotk.Diagonal(jnp.array([1.0, 3.0]))).matrix().tolist()
        [[3.0, 0.0], [0.0, 5.0]]
    """

    entries: Any = eqx.field(converter=_arrays)

    @property
    def like(self) -> Any:
        """The diagonal itself is a vector."""
        return self.entries

    def __repr__(self) -> str:
        """Show shapes and size."""
        return f"Diagonal({describe_tree(self.entries)}, n={self.size})"

    @property
    def symmetric(self) -> bool:
        """It is."""
        return True

    def mv(self, v: Any) -> Any:
        """Return the entrywise product."""
        return jax.tree.map(_entrywise, self.entries, v)


def _entrywise(a: Any, b: Any) -> Any:
    if not jnp.iscomplexobj(a):
        return a * b
    return jax.lax.complex(a.real * b.real, a.imag * b.imag)
