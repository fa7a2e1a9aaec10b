"""What parameters must be, and gradients as vectors of their space."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from hotk._core import DtypeError, StructureError, Vector, describe_tree, message
from hotk.linop import AbstractOperator, check_symmetric, space

from ._covariance import AbstractCovariance, standard_errors


def vector_of(gradient: PyTree, like: Vector) -> Vector:
    """Return a gradient as a vector of the space: `None` where nothing moves."""
    parameters = jax.tree.structure(like)
    leaves = [a for a in jax.tree.leaves(gradient) if a is not None]
    return parameters.unflatten(leaves)


def jacobian_rows(
    values: PyTree, jacobian: PyTree, like: Vector
) -> list[Float[Array, "m n"]]:
    """Return for each leaf of a value its derivatives, a row for each of its numbers.

    Args:
        values: The value of a function.
        jacobian: Its Jacobian, `None` where nothing moves.
        like: A vector of the space of the parameters.
    """
    parameters = jax.tree.structure(like)
    dtype = space.flattened(like).dtype
    trees = jax.tree.structure(values).flatten_up_to(jacobian)
    rows = []
    for y, tree in zip(jax.tree.leaves(values), trees, strict=True):
        leaves = parameters.flatten_up_to(tree)
        flat = [a.reshape(y.size, -1).astype(dtype) for a in leaves]
        rows.append(jnp.concatenate(flat, axis=1))
    return rows


def shift_in_errors(covariance: AbstractCovariance, gradient: Vector) -> Vector:
    """Return the Newton step, entry by entry in units of the standard errors."""
    like = covariance.like
    rows = space.flattened(space.narrowed(gradient, like))
    step = covariance.root(covariance.root_transposed(rows))
    errors = space.flattened(standard_errors(covariance))
    # Where there is no error there is no unit either: a parameter that cannot move.
    shift = -step / jnp.where(errors > 0, errors, 1)
    return space.unflattened(shift, like)


def refuse_complex(call: str, parameters: Vector, what: str = "parameters") -> None:
    """Refuse complex numbers, whose covariance is not a matrix of their dtype."""
    if any(jnp.iscomplexobj(leaf) for leaf in jax.tree.leaves(parameters)):
        raise DtypeError(
            message(
                call,
                f"there are complex {what}.",
                expected=f"real {what}",
                got=describe_tree(parameters),
                fix=f"Make real and imaginary parts {what} of their own.",
            )
        )


def check_space(call: str, operator: AbstractOperator, parameters: Vector) -> None:
    """Refuse what is no symmetric operator, or one that acts on other vectors."""
    check_symmetric(call, operator)
    like = operator.like
    shape_of = lambda tree: [(a.shape, a.dtype) for a in jax.tree.leaves(tree)]
    same = jax.tree.structure(like) == jax.tree.structure(parameters)
    if not same or shape_of(like) != shape_of(parameters):
        raise StructureError(
            message(
                call,
                "`curvature` acts on another space than that of the parameters.",
                expected=describe_tree(parameters),
                got=describe_tree(like),
                fix="Make the operator at the mode, with the same `where=`.",
            )
        )
