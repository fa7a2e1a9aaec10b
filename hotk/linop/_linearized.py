"""`Linearized`: an operator whose products share one linearization."""

from typing import Any, Literal, final

import equinox as eqx
import jax

from hotk._core import bytes_name
from hotk.dense import is_fused
from hotk.prepared import check_bytes, jitted

from . import space
from ._operator import AbstractOperator


_INSTEAD = "`H @ v`, which keeps nothing"


@final
class Own(eqx.Module):
    """Stands for one of the operator's own arrays among what is kept."""

    number: int = eqx.field(static=True)


@final
class Linearized(AbstractOperator):
    """An operator and, if that pays, what all of its products have in common.

    Attributes:
        operator: The operator.
        product: The product as a program on what is kept, `None` if nothing is.
    """

    operator: Any
    product: Any

    @property
    def plan(self) -> Literal["store", "recompute"]:
        """Whether the linearization is kept, or done again for each product."""
        return "recompute" if self.product is None else "store"

    @property
    def bytes(self) -> int:
        """How many bytes are kept besides the operator's own arrays."""
        return _bytes(self.product)

    @property
    def like(self) -> Any:
        """A vector of the operator."""
        return self.operator.like

    @property
    def symmetric(self) -> bool:
        """Whether the operator is."""
        return self.operator.symmetric

    @property
    def value(self) -> Any:
        """The value of the function."""
        return self.operator.value

    @property
    def gradient(self) -> Any:
        """The gradient, a vector of the space."""
        return self.operator.gradient

    def mv(self, v: Any) -> Any:
        """Return the product with one vector."""
        if self.product is None:
            return self.operator.mv(v)
        return _apply(self, v)

    def many(self, vectors: Any, block_size: int | None = None) -> Any:
        """Return the products with several vectors."""
        if self.product is None:
            return self.operator.many(vectors, block_size)
        return super().many(vectors, block_size)

    def at(self, x: Any, *args: Any) -> "Linearized":
        """Linearize at another point, by the same plan: nothing is compiled."""
        return linearized(self.operator.at(x, *args), self.plan)

    def __repr__(self) -> str:
        """Show operator, plan and bytes."""
        return f"Linearized({self.operator}, {self.plan}, {bytes_name(self.bytes)})"


def linearized(operator: Any, plan: Literal["store", "recompute"] | None) -> Linearized:
    """Linearize the products of an operator once, for all of them.

    Args:
        operator: The operator.
        plan: What to do; chosen by cost if `None`.

    Raises:
        ValueError: If there is no such plan.
        TooLargeError: If what would be kept exceeds the budget.
    """
    if plan not in ("store", "recompute", None):
        raise ValueError(
            f"`H.linearize(plan)`: {plan!r} is neither 'store' nor 'recompute'."
        )
    shapes = _kept.eval_shape(operator, plan)
    if shapes is None:
        return Linearized(operator, None)
    check_bytes("H.linearize()", operator.size, _bytes(shapes), _INSTEAD)
    return Linearized(operator, _kept(operator, "store"))


@jitted(static_argnums=1, keep_unused=True)
def _kept(operator: Any, plan: str | None) -> Any:
    fused = plan is None and is_fused(operator.mv, operator.like)
    if plan == "recompute" or fused:
        return None
    # the product is linear, so the derivative along a vector is the product with it
    product = jax.linearize(operator.mv, space.zeros(operator.like))[1]
    own = {id(a): i for i, a in enumerate(jax.tree.leaves(operator))}
    return jax.tree.map(lambda a: Own(own[id(a)]) if id(a) in own else a, product)


@jitted
def _apply(linearized: Any, v: Any) -> Any:
    own = jax.tree.leaves(linearized.operator)
    product = jax.tree.map(
        lambda a: own[a.number] if isinstance(a, Own) else a,
        linearized.product,
        is_leaf=lambda a: isinstance(a, Own),
    )
    return product(v)


def _bytes(arrays: Any) -> int:
    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(arrays))
