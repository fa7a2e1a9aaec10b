"""Roots of inverses of positive definite matrices, and what to say of other ones."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact

from hotk._core import (
    NotPositiveDefiniteError,
    RealNumber,
    Scalar,
    Tracer,
    Vector,
    message,
    not_finite,
)
from hotk._dense import name_of
from hotk.linop import AbstractOperator, cg, space

from ._parameters import direction_name


_NEGATIVE = "Is it a log-likelihood? Give its negative. Or this is a maximum."


class InverseRoot(NamedTuple):
    """The root of the inverse of a matrix.

    Attributes:
        root: An upper triangle R with $A^{-1} = R R^T$.
        log_determinant: The logarithm of the determinant of the inverse.
    """

    root: Float[Array, "n n"]
    log_determinant: Scalar


def inverse_root(
    call: str, a: Inexact[Array, "n n"], like: Vector, hint: str
) -> InverseRoot:
    """Return a root of the inverse of a symmetric matrix.

    Outside of a transformation it is computed in double precision on the host, where
    small matrices need no compiled program, and a matrix that is not positive definite
    is refused. Inside of one, the result is NaN then.

    Args:
        call: The call, for messages.
        a: The matrix.
        like: A vector of its space, for the names of entries.
        hint: What to do if it is not positive definite.

    Raises:
        NotPositiveDefiniteError: If it is not, by more than rounding.
    """
    if isinstance(a, Tracer):
        return _traced(a)
    matrix = np.asarray(a, np.float64)
    refuse_indefinite(call, matrix, a.dtype, like, hint)
    factor = np.linalg.cholesky(matrix)
    root = np.triu(np.linalg.inv(factor).T)
    log_determinant = -2 * np.sum(np.log(np.diag(factor)))
    place: Any = lambda b: jax.device_put(np.asarray(b, a.dtype))
    return InverseRoot(place(root), place(log_determinant))


def _traced(a: Inexact[Array, "n n"]) -> InverseRoot:
    factor = jnp.linalg.cholesky(a)
    eye = jnp.eye(len(a), dtype=a.dtype)
    inverse = jax.lax.linalg.triangular_solve(factor, eye, left_side=True, lower=True)
    return InverseRoot(inverse.T, -2 * jnp.sum(jnp.log(jnp.diagonal(factor))))


def inverse_root_of_rows(
    call: str, rows: Float[Any, "m n"], dtype: Any, like: Vector, hint: str
) -> InverseRoot:
    """Return a root of the inverse of $J^T J$ by the factor of J alone.

    The product would have the square of its condition number. The columns are scaled
    first: the units of parameters must not decide whether there is a covariance.

    Args:
        call: The call, for messages.
        rows: J, of NumPy, or traced: then there is no error, and NaN instead.
        dtype: What J was computed in, whose rounding it has.
        like: A vector of the space, for the names of entries.
        hint: What to do if J has not full rank.

    Raises:
        NotPositiveDefiniteError: If it has not, by more than rounding.
    """
    numpy: Any = jnp if isinstance(rows, Tracer) else np
    norms = numpy.linalg.norm(rows, axis=0)
    scale = numpy.where(norms > 0, norms, 1)
    factor = numpy.linalg.qr(rows / scale[None], mode="r")
    _, values, vectors = numpy.linalg.svd(factor)
    # A derivative is off by a few roundings, so a column of length one by as many.
    limit = 10 * rows.shape[1] * float(jnp.finfo(dtype).eps)
    regular = values[-1] > limit * values[0]
    if numpy is jnp:
        factor = factor * jnp.where(regular, 1, jnp.nan)  # derivatives are NaN, too
    elif not regular:
        raise _singular_rows(call, rows, vectors[-1], scale, like, hint)
    root = numpy.triu(numpy.linalg.inv(factor)) / scale[:, None]
    diagonal = numpy.abs(numpy.diagonal(factor))
    log_determinant = -2 * numpy.sum(numpy.log(diagonal) + numpy.log(scale))
    return InverseRoot(root, log_determinant)


def _singular_rows(
    call: str,
    rows: Any,
    direction: np.ndarray,
    scale: np.ndarray,
    like: Vector,
    hint: str,
) -> NotPositiveDefiniteError:
    direction = direction / scale
    direction /= np.linalg.norm(direction)
    # Named are parameters that change the data, in whatever units they are.
    name = direction_name(like, direction, scale)
    return NotPositiveDefiniteError(
        message(
            call,
            "the Jacobian does not have full rank, so there is no covariance.",
            expected="an effect of each combination of parameters, beyond rounding",
            got=f"none along {name}",
            fix=hint,
        ),
        float(np.linalg.norm(rows @ direction)) ** 2,
        space.unflattened(jnp.asarray(direction), like),
    )


def refuse_indefinite(
    call: str, a: np.ndarray, dtype: Any, like: Vector, hint: str
) -> None:
    """Refuse a matrix that is not positive definite by more than rounding.

    The rows and columns are scaled so that the diagonal is one: a change of the units
    of the parameters must not decide whether there is a covariance.
    """
    if not np.all(np.isfinite(a)):
        raise NotPositiveDefiniteError(not_finite(call), float("nan"))
    diagonal = np.abs(np.diagonal(a))
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scaled = a / np.outer(scale, scale)
    limit = len(a) * float(jnp.finfo(dtype).eps)
    values = np.linalg.eigvalsh(scaled)
    if values[0] > limit:
        return
    plain, vectors = np.linalg.eigh(a)
    smallest, direction = plain[0], vectors[:, 0]
    rounding = limit * max(abs(plain[0]), abs(plain[-1]))
    singular = smallest > -rounding
    if singular:
        # Rounding of the large entries hides which direction it is; the scaled matrix
        # has it, and there the quadratic form of the direction is the same.
        direction = np.linalg.eigh(scaled)[1][:, 0] / scale
        direction /= np.linalg.norm(direction)
        smallest = direction @ a @ direction
    what = "is singular" if singular else "is not positive definite"
    if not singular and plain[-1] <= rounding:
        what += " but negative"
        hint = _NEGATIVE
    raise NotPositiveDefiniteError(
        message(
            call,
            f"the Hessian {what}, so its inverse is no covariance.",
            expected="positive curvature in all directions, beyond rounding",
            got=f"{smallest:.6g} along {direction_name(like, direction)} "
            f"(the largest eigenvalue is {plain[-1]:.6g})",
            fix=_flat_fix if singular else hint,
        ),
        float(smallest),
        space.unflattened(jnp.asarray(direction, dtype), like),
    )


def refuse_negative_direction(
    call: str, operator: AbstractOperator, scale: RealNumber, hint: str
) -> None:
    """Refuse a large operator that conjugate gradients know not to be definite.

    They meet a direction of negative curvature in a few products, as that of a network
    next to its minimum has; the matrix takes n. What they do not meet is left to it.

    Args:
        call: The call, for messages.
        operator: The operator.
        scale: A number that it is multiplied with.
        hint: What to do about it.

    Raises:
        NotPositiveDefiniteError: If the curvature along one direction is negative, by
            more than rounding.
    """
    like, n = operator.like, operator.size
    traced = any(isinstance(a, Tracer) for a in jax.tree.leaves((operator, scale)))
    if traced or not operator.symmetric or n <= _LARGE:
        return
    start = space.random(jax.random.key(0), like)
    direction = cg(operator, start, max_steps=_FEW_PRODUCTS).direction
    length = space.norm(direction)
    if not float(length) > 0:
        return
    direction = space.times(1 / length, direction)
    curvature = float(scale) * float(operator.quadratic_form(direction))
    size = abs(float(scale)) * float(space.norm(operator @ start) / space.norm(start))
    # No eigenvalue is above this norm times the root of n, but for unlikely starts.
    if not curvature < -(n**1.5) * float(jnp.finfo(operator.dtype).eps) * size:
        return
    name = direction_name(like, np.asarray(space.flattened(direction), float))
    raise NotPositiveDefiniteError(
        message(
            call,
            "the Hessian is not positive definite, so its inverse is no covariance.",
            expected="positive curvature in all directions, beyond rounding",
            got=f"{curvature:.6g} along {name}, met within {_FEW_PRODUCTS} products",
            fix=hint,
        ),
        curvature,
        direction,
    )


# Above this the products before the matrix are a small part of those of the matrix.
_LARGE = 500
_FEW_PRODUCTS = 30


_flat_fix = (
    "The data do not determine this combination of parameters: hold one of them by "
    "`where=`, or add a prior to the function; where the call takes a curvature, pass "
    "`curvature=A + tau * hotk.Identity()`."
)


def refuse_not_positive(
    call: str,
    numbers: np.ndarray,
    like: Vector,
    what: str,
    hint: str,
    directions: np.ndarray | None = None,
) -> None:
    """Refuse numbers that must be positive.

    Args:
        call: The call, for messages.
        numbers: The numbers.
        like: A vector of the space, if they are one for each of its entries or of the
            directions, whose name the message then has; `None` otherwise.
        what: What they are.
        hint: What to do about it.
        directions: A row for each number, its direction, if they are not of entries.

    Raises:
        NotPositiveDefiniteError: If one of them is not positive.
    """
    worst = int(np.argmin(np.where(np.isnan(numbers), -np.inf, numbers)))
    smallest = float(numbers[worst])
    if smallest > 0:
        return
    if directions is not None or like is not None:
        hint = _NEGATIVE if np.all(numbers < 0) else hint
    direction, place = None, ""
    if directions is not None:
        row = directions[worst]
        direction = space.unflattened(jnp.asarray(row), like)
        place = f" along {direction_name(like, row)}"
    elif like is not None:
        place = f" for {name_of(like, int(worst))}"
    raise NotPositiveDefiniteError(
        message(
            call,
            f"{what} must be positive.",
            expected="positive numbers",
            got=f"{smallest:.6g}{place}",
            fix=hint,
        ),
        smallest,
        direction,
    )
