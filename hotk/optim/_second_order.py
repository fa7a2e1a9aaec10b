"""Replacements for `optax.second_order`, with its signatures."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Inexact

from hotk.first import gradient
from hotk.second import hessian_diagonal, hvp as hessian_product


Loss = Callable[[Any, Any, Any], Any]


def hvp(loss: Loss, v: Any, params: Any, inputs: Any, targets: Any) -> Any:
    """Multiply the Hessian of a loss with a flat vector, as `optax.second_order.hvp`.

    Args:
        loss: Function `loss(params, inputs, targets)` that returns one real number.
        v: A flat vector: the numbers of the parameters, in the order of
            `jax.flatten_util.ravel_pytree`. A tree like the parameters will do too.
        params: The parameters.
        inputs: The first of what the loss takes besides.
        targets: The second.

    Returns:
        The product, a tree like the parameters.

    Raises:
        StructureError: If `v` does not belong to the parameters.

    Example:
        >>> loss = lambda p, x, y: jnp.sum((x * p["w"] - y) ** 2)
        >>> p = {"w": jnp.ones(2)}
        >>> x, y = jnp.array([1.0, 2.0]), jnp.zeros(2)
        >>> hotk.optim.hvp(loss, jnp.ones(2), p, x, y)["w"].tolist()
        [2.0, 8.0]
    """
    flat, unravel = ravel_pytree(params)
    given = jax.tree.leaves(v)
    is_flat = len(given) == 1 and jnp.shape(given[0]) == flat.shape
    direction = unravel(given[0]) if is_flat else v
    return hessian_product(loss, params, direction, inputs, targets)


def hessian_diag(
    loss: Loss, params: Any, inputs: Any, targets: Any
) -> Inexact[Array, " n"]:
    """Return the Hessian's diagonal, as `optax.second_order.hessian_diag`.

    Args:
        loss: Function `loss(params, inputs, targets)` that returns one real number.
        params: The parameters.
        inputs: The first of what the loss takes besides.
        targets: The second.

    Returns:
        The exact diagonal, flat, of shape `(n,)`.

    Example:
        >>> loss = lambda p, x, y: jnp.sum((x * p["w"] - y) ** 2)
        >>> p = {"w": jnp.ones(2)}
        >>> x, y = jnp.array([1.0, 2.0]), jnp.zeros(2)
        >>> hotk.optim.hessian_diag(loss, p, x, y).tolist()
        [2.0, 8.0]
    """
    diagonal = hessian_diagonal(loss, params, inputs, targets)
    return ravel_pytree(diagonal)[0]


def fisher_diag(
    negative_log_likelihood: Loss, params: Any, inputs: Any, targets: Any
) -> Inexact[Array, " n"]:
    """Return the empirical Fisher diagonal, as `optax.second_order.fisher_diag`.

    It is the square of the gradient of the negative log-likelihood by each parameter,
    as in optax: of the whole sum, not the sum of the squares for each datum.

    Args:
        negative_log_likelihood: Function of `(params, inputs, targets)` that returns
            one real number.
        params: The parameters.
        inputs: The first of what it takes besides.
        targets: The second.

    Returns:
        The squares, flat, of shape `(n,)`.

    Example:
        >>> loss = lambda p, x, y: jnp.sum((x * p["w"] - y) ** 2)
        >>> p = {"w": jnp.ones(2)}
        >>> x, y = jnp.array([1.0, 2.0]), jnp.zeros(2)
        >>> hotk.optim.fisher_diag(loss, p, x, y).tolist()
        [4.0, 64.0]
    """
    slope = gradient(negative_log_likelihood, params, inputs, targets)
    return jnp.square(ravel_pytree(slope)[0])
