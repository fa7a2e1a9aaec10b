"""What parameters must be, gradients as vectors of their space, names of entries."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from hotk._core import (
    DtypeError,
    Point,
    StructureError,
    Vector,
    describe_tree,
    differs_along,
    manual_axes,
    message,
    varying_along,
)
from hotk._dense import name_of
from hotk.linop import AbstractOperator, check_symmetric, space

from ._covariance import AbstractCovariance


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
    errors = covariance.errors()
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


def refuse_parts_of_devices(
    call: str, values: PyTree, parameters: Vector, what: str = "examples"
) -> None:
    """Refuse values of which each device of a `shard_map` has its own.

    The derivative of one by parameters that all devices hold alike would be the sum
    over the devices: of one example of each.
    """
    axes = manual_axes()
    own = _beyond(axes, values, parameters)
    if own:
        raise StructureError(
            message(
                call,
                f"each device has {what} of its own along {own}, and holds the "
                "parameters as the others do.",
                expected=f"all {what} on each device",
                got="a part of them, inside of `jax.shard_map`",
                fix="Call it outside of `shard_map`, with data that "
                "`jax.device_put` has divided.",
            )
        )


def own_copy_of_devices(values: PyTree, x: Point) -> Point:
    """Return a point of which each device has a copy, where it has values of its own.

    The derivative of what devices have of their own, as predictions at rows of theirs,
    is then that on each of them, and not the sum over all.

    Args:
        values: The values of a function.
        x: The point that they are differentiated by.
    """
    axes = manual_axes()
    own = _beyond(axes, values, ())
    if not own:
        return x
    arrays, rest = eqx.partition(x, eqx.is_inexact_array)
    leaves, tree = jax.tree.flatten(arrays)
    return eqx.combine(tree.unflatten(varying_along(leaves, own)), rest)


def _beyond(axes: Sequence[str], values: PyTree, parameters: Vector) -> list[str]:
    """Return the axes along which values differ, and not all parameters."""
    along = lambda tree: [differs_along(a, axes) for a in jax.tree.leaves(tree)]
    found = {axis for own in along(values) for axis in own}
    return sorted(found.difference(*along(parameters)) if axes else ())


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


def direction_name(
    like: Vector,
    direction: np.ndarray,
    units: np.ndarray | float = 1.0,
    most: int = 4,
) -> str:
    """Describe a direction by its largest entries: `0.89 w[1] - 0.45 b`.

    Args:
        like: A vector of the space.
        direction: The direction, of length one.
        units: What the entries are multiplied with where their sizes are compared.
        most: The most entries.
    """
    sizes = np.abs(direction * units)
    order = np.argsort(-sizes)[:most]
    # An entry of a tenth of the largest one does not tell where the direction points.
    kept = [i for i in order if sizes[i] > 0.1 * sizes[order[0]]]
    sign = np.sign(direction[order[0]])
    text = ""
    for i in kept:
        number = float(sign * direction[i])
        joint = (" + " if number > 0 else " - ") if text else ""
        text += f"{joint}{abs(number):.2g} {name_of(like, int(i))}"
    rest = np.linalg.norm(np.delete(sizes, kept)) > 0.1 * np.linalg.norm(sizes)
    return text + (" + ..." if rest else "")
