"""`Lagrangian`: the function whose Hessian IPOPT asks for."""

from collections.abc import Sequence
from typing import final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from hotk._core import Leaf, Scalar

from ._coordinates import Embedded


@final
class Lagrangian(eqx.Module):
    r"""The function $\sigma f + \lambda \cdot g$.

    Attributes:
        func: The objective.
        constraints: The constraints, `None` if there are none.
    """

    func: Embedded
    constraints: Embedded | None

    def __call__(
        self, parts: Sequence[Leaf], factor: Array, multipliers: Sequence[Array]
    ) -> Scalar:
        """Return the weighted sum."""
        y = self.func(parts)
        terms = [factor.astype(y.dtype) * y]
        if self.constraints is not None:
            leaves = jax.tree.leaves(self.constraints(parts))
            pairs = zip(multipliers, leaves, strict=True)
            terms += [jnp.sum(w.astype(g.dtype) * g) for w, g in pairs]
        # Objective and constraints may differ in dtype. A user who made promotion
        # strict did so for their own functions, not for this sum.
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*terms)
        return sum([term.astype(dtype) for term in terms], start=jnp.zeros((), dtype))
