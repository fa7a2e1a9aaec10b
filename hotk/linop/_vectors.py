"""Which space an operator acts on, and what is known of its numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Num

from hotk._core import Tracer, Vector, describe, message
from hotk.sparse import SparseMatrix


def space_of(operator: object) -> Vector:
    """Return a vector of the space that an operator acts on.

    Only its structure, shapes and dtypes matter, not its values.

    Args:
        operator: An operator of `hotk.linop`.

    Returns:
        A tree of arrays: the floating and complex leaves of the point, `None` for the
        others.

    Raises:
        TypeError: If it is not an operator, or made of identities alone, which act on
            any space.

    Example:
        >>> f = lambda p: p["n"] * jnp.sum(p["w"] ** 2)
        >>> H = hotk.HessianOperator(f, {"w": jnp.ones(2), "n": 3})
        >>> jax.tree.map(jnp.shape, hotk.linop.space_of(H))
        {'n': None, 'w': (2,)}
    """
    if not hasattr(operator, "like"):
        raise TypeError(f"{describe(operator)} is not an operator. {_fix(operator)}")
    like = getattr(operator, "like", None)
    if like is None:
        raise TypeError(
            "an operator made of identities alone acts on any space, so it has no size "
            "and no matrix. Add it to another one, as in `H + 0.1 * hotk.Identity()`."
        )
    return like


def check_operator(call: str, operator: object) -> None:
    """Refuse what is not an operator, and say how to make one of it.

    Raises:
        TypeError: If it is none.
    """
    if not hasattr(operator, "like"):
        raise TypeError(
            message(
                call,
                "this is not an operator.",
                expected="an operator of `hotk`, such as `hotk.HessianOperator(f, x)`",
                got=describe(operator),
                fix=_fix(operator),
            )
        )


def check_symmetric(call: str, operator: Any) -> None:
    """Refuse what is not an operator, or one that is not known to be symmetric.

    All factorizations and eigenvalues pass here: they read one half of a matrix.

    Args:
        call: The call, for the message.
        operator: What was given for an operator.

    Raises:
        TypeError: If it is none, or not known to be symmetric.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x @ x, jnp.ones(2))
        >>> hotk.linop.check_symmetric("sqrt(A)", H)
    """
    check_operator(call, operator)
    if not operator.symmetric:
        raise TypeError(
            message(
                call,
                "the operator is not known to be symmetric.",
                expected="a symmetric operator, `A.symmetric`",
                got=repr(operator),
                fix="If it is symmetric, write `hotk.linop.Symmetric(A)`. Congruences "
                "`D @ H @ D` are known to be. A system with a product is solved with "
                "one factor after the other.",
            )
        )


def _fix(operator: object) -> str:
    if isinstance(operator, SparseMatrix):
        return (
            "Write `hotk.linop.SparseOperator(A)`, or solve by a factorization with "
            "`A.solve(b)`."
        )
    if isinstance(operator, (jax.Array, np.ndarray)):
        return "For a dense matrix use `jnp.linalg.solve` and `jnp.linalg.eigh`."
    return "Make one from a function and a point: `hotk.HessianOperator(f, x)`."


def is_known_positive(numbers: Num[Array, "..."] | float) -> bool:
    """Whether none of some numbers is negative, which is not known of tracers."""
    if isinstance(numbers, Tracer):
        return False
    parts = [numbers.real, numbers.imag] if jnp.iscomplexobj(numbers) else [numbers]
    return all(bool(np.all(np.asarray(part) >= 0)) for part in parts)
