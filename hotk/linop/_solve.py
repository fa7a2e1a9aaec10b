"""Systems with an operator: a solver chosen by definiteness, and factorizations."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hotk._core import (
    NotPositiveDefiniteError,
    Tracer,
    in_trace,
    message,
    number_name,
)

from . import space
from ._cg import cg
from ._driver import compiled, constant
from ._minres import minres
from ._solution import Reason, Solution


def solve(
    operator: Any,
    b: Any,
    *,
    batched: bool = False,
    x0: Any = None,
    preconditioner: Any = None,
    tol: Any = 1e-5,
    max_steps: int | None = None,
) -> Solution:
    """Solve `A x = b` by conjugate gradients; by minimal residuals if it is indefinite.

    Conjugate gradients stop where they meet a direction without positive curvature.
    Then minimal residuals begin where they stopped; `method` and `definite` say so, and
    `curvature` and `direction` are those that were met.

    Args:
        operator: A symmetric operator.
        b: The right-hand side: a vector of the space.
        batched: Whether `b` has a leading axis, one right-hand side each.
        x0: Where to begin; zero if left out.
        preconditioner: An operator close to the inverse, positive definite.
        tol: Stop when the residual is below `tol` times the norm of `b`.
        max_steps: Stop each of the two after so many products; `10 n` at most if left
            out.

    Returns:
        A `Solution`, with a leading axis if `batched`.

    Raises:
        StructureError: If `b` is not a vector of the space.
        TypeError: If the operator is not symmetric.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x[0] ** 2 - x[1] ** 2, jnp.ones(2))
        >>> solution = H.solve(jnp.array([2.0, 2.0]))
        >>> solution.x.round(4).tolist(), bool(solution.definite)
        ([1.0, -1.0], False)
    """
    options = {"preconditioner": preconditioner, "tol": tol, "max_steps": max_steps}
    if batched:
        b, x0, tol = jax.tree.map(jnp.asarray, (b, x0, tol))
        inputs = (operator, b, x0, preconditioner, tol, max_steps)
        if operator.on_host:
            return _one_by_one(*inputs)
        return compiled(_batched, constant("solve(A, b)", inputs))
    first = cg(operator, b, x0=x0, **options)

    def again(found: Solution) -> Solution:
        other = minres(operator, b, x0=found.x, **options)
        total = other.iterations + found.iterations
        changed = {
            "iterations": total,
            "curvature": found.curvature,
            "direction": found.direction,
        }
        return dataclasses.replace(other, **changed)

    indefinite = first.reason == Reason.negative_curvature
    if isinstance(indefinite, Tracer) or in_trace():
        return jax.lax.cond(indefinite, again, lambda found: found, first)
    return again(first) if bool(indefinite) else first


def _one_by_one(
    A: Any, b: Any, x0: Any, M: Any, tol: Any, max_steps: int | None
) -> Solution:
    options = {"preconditioner": M, "tol": tol, "max_steps": max_steps}
    count = len(jax.tree.leaves(b)[0])
    row = lambda v, i: None if v is None else space.take(v, i)
    found = [solve(A, row(b, i), x0=row(x0, i), **options) for i in range(count)]
    return jax.tree.map(lambda *each: jnp.stack(each), *found)


def _batched(
    while_loop: Any, A: Any, b: Any, x0: Any, M: Any, tol: Any, max_steps: int | None
) -> Solution:
    del while_loop
    options = {"preconditioner": M, "tol": tol, "max_steps": max_steps}
    one = lambda b, x0: solve(A, b, x0=x0, **options)
    if any(space.is_explicit(leaf) for leaf in jax.tree.leaves(b)):
        # `vmap` of a loop selects with a condition that is not split as its cases are
        return jax.lax.map(lambda pair: one(*pair), (b, x0))
    return jax.vmap(one, in_axes=(0, None if x0 is None else 0))(b, x0)


class Inertia(NamedTuple):
    """How many eigenvalues of a symmetric matrix have which sign.

    Attributes:
        positive: How many are positive.
        zero: How many are zero up to rounding, `n eps` times the largest magnitude.
        negative: How many are negative.
    """

    positive: Any
    zero: Any
    negative: Any

    def __repr__(self) -> str:
        """Write the three numbers."""
        numbers = zip(self._fields, map(number_name, self), strict=True)
        return f"Inertia({', '.join(f'{name}: {n}' for name, n in numbers)})"


def inertia(operator: Any) -> Inertia:
    """Count the eigenvalues of the matrix by sign; none if it is not finite.

    Args:
        operator: A symmetric operator.

    Returns:
        An `Inertia`: how many are positive, zero up to rounding, negative.

    Raises:
        TooLargeError: If the matrix would exceed `hotk.memory_budget()`.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x[0] ** 2 - x[1] ** 2, jnp.ones(3))
        >>> hotk.linop.inertia(H)
        Inertia(positive: 1, zero: 1, negative: 1)
    """
    values = jnp.linalg.eigvalsh(operator.matrix())
    limit = jnp.finfo(values.dtype).eps * values.size * jnp.max(jnp.abs(values))
    return Inertia(
        jnp.sum(values > limit),
        jnp.sum(jnp.abs(values) <= limit),
        jnp.sum(values < -limit),
    )


def cholesky(operator: Any, damping: float = 0.0) -> Float[Array, "n n"]:
    r"""Factorize the matrix as $L L^T$, and refuse if it is not positive definite.

    Args:
        operator: A symmetric operator.
        damping: Added to the diagonal before.

    Returns:
        The lower triangle `L`, in the order of `index`.

    Raises:
        NotPositiveDefiniteError: If the smallest eigenvalue, damping included, is not
            positive by more than rounding. Inside of a transformation nothing can be
            raised: the factor is NaN there.
        TooLargeError: If the matrix would exceed `hotk.memory_budget()`.

    Example:
        >>> H = hotk.HessianOperator(lambda x: 2 * x[0] ** 2 + x[1] ** 2, jnp.ones(2))
        >>> hotk.linop.cholesky(H, damping=2.0).tolist()[1]
        [0.0, 2.0]
    """
    a = operator.matrix()
    a = a + jnp.asarray(damping, a.dtype) * jnp.eye(len(a), dtype=a.dtype)
    factor = jnp.linalg.cholesky(a)
    if isinstance(factor, Tracer):
        return factor
    values = jnp.linalg.eigvalsh(a)
    smallest, largest = float(jnp.min(values)), float(jnp.max(values))
    limit = float(jnp.finfo(a.dtype).eps) * len(a) * max(abs(smallest), abs(largest))
    if not smallest > limit:
        gradient = getattr(operator, "gradient", None)
        slope = ""
        if gradient is not None:
            slope = f"; the gradient's norm here is {float(space.norm(gradient)):.3g}"
        raise NotPositiveDefiniteError(
            message(
                "H.cholesky(damping)",
                "the matrix is not positive definite.",
                expected=f"a smallest eigenvalue above {limit:.3g}, for rounding",
                got=f"{smallest:.6g} (largest {largest:.6g}){slope}",
                fix="At a saddle or before convergence it is not a precision matrix: "
                f"minimize further, or give `damping=` above {-smallest + limit:.3g}.",
            ),
            smallest,
        )
    return factor
