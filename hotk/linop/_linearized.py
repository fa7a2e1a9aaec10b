"""`Linearized`: an operator whose products share one linearization."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, final

import equinox as eqx
import jax
from jaxtyping import PyTree

from hotk._core import Gradient, Point, Scalar, Vector, bytes_name
from hotk._dense import is_fused
from hotk._prepared import check_bytes, jitted

from ._operator import AbstractOperator
from ._point_operator import AbstractPointOperator


Plan: TypeAlias = Literal["store", "recompute"]
_ALTERNATIVES = "`H @ v`, which stores nothing"


@final
class OperatorLeaf(eqx.Module):
    """Stands for an array of the operator among the stored ones.

    So that the array is not counted, and not kept twice by a program that returns it.
    """

    number: int = eqx.field(static=True)


# One of three Hessian operators. It is not a field of `HessianOperator`, whose tree
# would then differ with and without the stored arrays: what takes the operator would
# compile for both. Nor is it the `Curvature` of hotk/optim/_local.py: the step of an
# optimizer takes value, gradient and product from one linearization of a function that
# is being traced already, while an operator has a function of its own, split once.
@final
class Linearized(AbstractOperator):
    """An operator at a point with its linearization, which all products share.

    `HessianOperator.linearize` returns it; it is used like the operator.

    Attributes:
        operator: The operator.
        product: The product as a program with its stored arrays; `None` if nothing is
            stored and each product linearizes anew.

    Example:
        >>> a = jnp.arange(6.0).reshape(3, 2)
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(jnp.tanh(a @ x)), jnp.ones(2))
        >>> L = H.linearize("store")
        >>> jnp.allclose(L @ jnp.ones(2), H @ jnp.ones(2), atol=1e-5).item()
        True
    """

    operator: AbstractPointOperator
    product: Callable[[Vector], Vector] | None

    @property
    def positive_semidefinite(self) -> bool:
        """Whether the operator is known to be positive semidefinite."""
        return self.operator.positive_semidefinite

    @property
    def plan(self) -> Plan:
        """`"store"` if the linearization is stored, `"recompute"` if not."""
        return "recompute" if self.product is None else "store"

    @property
    def bytes(self) -> int:
        """The bytes that are stored besides the operator's own arrays."""
        return _bytes(self.product)

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        return self.operator.like

    @property
    def symmetric(self) -> bool:
        """Whether the operator is symmetric."""
        return self.operator.symmetric

    @property
    def value(self) -> Scalar:
        """The value of the function."""
        return self.operator.value

    @property
    def gradient(self) -> Gradient:
        """The gradient, a vector of the space."""
        return self.operator.gradient

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector."""
        if self.product is None:
            return self.operator.mv(v)
        return _apply(self, v)

    def many(self, vectors: PyTree, block_size: int | None = None) -> PyTree:
        """Return the products with several vectors."""
        if self.product is None:
            return self.operator.many(vectors, block_size)
        return super().many(vectors, block_size)

    def at(self, x: Point, *args: PyTree) -> "Linearized":
        """Linearize at another point, by the same plan: nothing is compiled.

        Args:
            x: The point; see `HessianOperator.at`.
            *args: The further arguments, if they change as well.
        """
        return linearized(self.operator.at(x, *args), self.plan)

    def __reduce__(self) -> tuple[Callable[..., "Linearized"], tuple[Any, ...]]:
        """Pickle the operator, and linearize it anew where it is loaded."""
        return linearized, (self.operator, self.plan)

    def __repr__(self) -> str:
        """Show operator, plan and bytes."""
        return f"Linearized({self.operator}, {self.plan}, {bytes_name(self.bytes)})"


def linearized(operator: AbstractPointOperator, plan: Plan | None) -> Linearized:
    """Linearize the products of an operator once, for all of them.

    Args:
        operator: The operator.
        plan: Whether to store the linearization; chosen by cost if `None`.

    Raises:
        ValueError: If there is no such plan.
        TooLargeError: If the stored arrays would exceed the budget.
    """
    if plan not in ("store", "recompute", None):
        raise ValueError(
            f"`H.linearize(plan)`: {plan!r} is neither 'store' nor 'recompute'."
        )
    # the shapes first: what is too large is refused before it is computed
    shapes = _stored_product.eval_shape(operator, plan)
    if shapes is None:
        return Linearized(operator, None)
    check_bytes("H.linearize()", operator.size, _bytes(shapes), _ALTERNATIVES)
    return Linearized(operator, _stored_product(operator, "store"))


@jitted(static_argnums=1, keep_unused=True)
def _stored_product(
    operator: AbstractPointOperator, plan: Plan | None
) -> Callable[[Vector], Vector] | None:
    fused = plan is None and is_fused(operator.mv, operator.like)
    if plan == "recompute" or fused:
        return None
    # the product is linear, so the derivative along a vector is the product with it
    product = jax.linearize(operator.mv, operator.like)[1]
    numbers = {id(a): i for i, a in enumerate(jax.tree.leaves(operator))}
    as_leaf = lambda a: OperatorLeaf(numbers[id(a)]) if id(a) in numbers else a
    return jax.tree.map(as_leaf, product)


@jitted
def _apply(linearized: Linearized, v: Vector) -> Vector:
    own = jax.tree.leaves(linearized.operator)
    product = jax.tree.map(
        lambda a: own[a.number] if isinstance(a, OperatorLeaf) else a,
        linearized.product,
        is_leaf=lambda a: isinstance(a, OperatorLeaf),
    )
    return product(v)


def _bytes(arrays: PyTree) -> int:
    return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(arrays))
