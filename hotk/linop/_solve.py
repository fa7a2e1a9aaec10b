"""Systems with an operator: a solver chosen by definiteness, and factorizations."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from hotk._core import (
    NotPositiveDefiniteError,
    RealNumber,
    Tracer,
    Vector,
    WhileLoop,
    in_trace,
    message,
    names_ours,
    number_name,
)

from . import _direct, space
from ._cg import cg
from ._driver import compiled, nondifferentiable
from ._linear_map import AbstractLinearMap
from ._minres import minres
from ._solution import Reason, Solution, is_known_as


@names_ours
def solve(
    operator: AbstractLinearMap,
    b: PyTree,
    *,
    batched: bool = False,
    x0: PyTree = None,
    preconditioner: AbstractLinearMap | None = None,
    tol: RealNumber = 1e-5,
    max_steps: int | Int[Array, ""] | None = None,
) -> Solution:
    """Solve `A x = b` by conjugate gradients; by minimal residuals if it is indefinite.

    Conjugate gradients stop where they meet a direction without positive curvature.
    Minimal residuals then go on from the point reached. `method` and `definite` of the
    solution tell which was used, and `curvature` and `direction` are those that
    conjugate gradients met.

    Args:
        operator: A symmetric operator.
        b: The right-hand side: a vector of the space.
        batched: Whether `b` has a leading axis, one right-hand side each.
        x0: The start of the iteration; zero if left out.
        preconditioner: An operator close to the inverse of `A`, positive definite.
        tol: Stop when the residual is below `tol` times the norm of `b`.
        max_steps: Stop after this number of products, of the two together; `10 n` if
            left out.

    Returns:
        A `Solution`, with a leading axis if `batched`.

    Raises:
        StructureError: If `b` or `x0` is not a vector of the space.
        TypeError: If the operator is not symmetric.
        ValueError: If `max_steps` is not positive.
        ModeError: If a derivative is taken by the operator or a vector.

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
        return compiled(_batched, nondifferentiable("solve(A, b)", inputs))
    by_cg = cg(operator, b, x0=x0, **options)
    most = 10 * space.dimension(by_cg.x) if max_steps is None else max_steps
    most = min(most, 2**31 - 1) if isinstance(most, int) else most

    def go_on(by_cg: Solution) -> Solution:
        left = jnp.asarray(most, jnp.int32) - by_cg.iterations
        by_minres = minres(
            operator,
            b,
            x0=by_cg.x,
            preconditioner=preconditioner,
            tol=tol,
            max_steps=left,
        )
        return dataclasses.replace(
            by_minres,
            iterations=by_cg.iterations + by_minres.iterations,
            # the direction in which the system is indefinite: minres need not meet it
            curvature=by_cg.curvature,
            direction=by_cg.direction,
        )

    if isinstance(by_cg.iterations, Tracer) or in_trace():
        indefinite = by_cg.reason == Reason.negative_curvature
        indefinite &= by_cg.iterations < most
        return jax.lax.cond(indefinite, go_on, lambda by_cg: by_cg, by_cg)
    indefinite = is_known_as(by_cg.reason, Reason.negative_curvature)
    return go_on(by_cg) if indefinite and int(by_cg.iterations) < most else by_cg


def _one_by_one(
    A: AbstractLinearMap,
    b: PyTree,
    x0: PyTree,
    M: AbstractLinearMap | None,
    tol: RealNumber,
    max_steps: int | Int[Array, ""] | None,
) -> Solution:
    options = {"preconditioner": M, "tol": tol, "max_steps": max_steps}
    count = len(jax.tree.leaves(b)[0])
    row = lambda v, i: None if v is None else space.take(v, i)
    solutions = [solve(A, row(b, i), x0=row(x0, i), **options) for i in range(count)]
    return jax.tree.map(lambda *rows: jnp.stack(rows), *solutions)


def _batched(
    while_loop: WhileLoop,
    A: AbstractLinearMap,
    b: PyTree,
    x0: PyTree,
    M: AbstractLinearMap | None,
    tol: RealNumber,
    max_steps: int | Int[Array, ""] | None,
) -> Solution:
    del while_loop
    options = {"preconditioner": M, "tol": tol, "max_steps": max_steps}
    solve_one = lambda b, x0: solve(A, b, x0=x0, **options)
    if any(space.is_explicit(leaf) for leaf in jax.tree.leaves(b)):
        # `vmap` of a loop selects with a condition that is not split as its cases are
        return jax.lax.map(lambda pair: solve_one(*pair), (b, x0))
    return jax.vmap(solve_one, in_axes=(0, None if x0 is None else 0))(b, x0)


class Inertia(NamedTuple):
    """The inertia of a symmetric matrix: the number of eigenvalues of each sign.

    Attributes:
        positive: The number of positive eigenvalues.
        zero: The number that are zero up to rounding: at most `n eps` times the largest
            magnitude.
        negative: The number of negative eigenvalues.
    """

    positive: Int[Array, ""]
    zero: Int[Array, ""]
    negative: Int[Array, ""]

    def __repr__(self) -> str:
        """Show the three numbers."""
        numbers = zip(self._fields, map(number_name, self), strict=True)
        return f"Inertia({', '.join(f'{name}: {n}' for name, n in numbers)})"


def inertia(operator: AbstractLinearMap) -> Inertia:
    """Count the positive, zero and negative eigenvalues of a symmetric operator.

    It forms the matrix and computes all eigenvalues: `n^2` numbers and about `n^3`
    operations. All three counts are zero if the matrix is not finite.

    Args:
        operator: A symmetric operator.

    Returns:
        An `Inertia`: the numbers of positive, zero and negative eigenvalues.

    Raises:
        TooLargeError: If the matrix would exceed `hotk.memory_budget()`.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x[0] ** 2 - x[1] ** 2, jnp.ones(3))
        >>> hotk.linop.inertia(H)
        Inertia(positive: 1, zero: 1, negative: 1)
    """
    a = operator.matrix()
    if _direct.is_on_host(a):
        return Inertia(*map(jnp.asarray, _signs(np, _direct.eigenvalues(a))))
    return Inertia(*_signs(jnp, jnp.linalg.eigvalsh(a)))


def _signs(xp: Any, values: Float[Array | np.ndarray, " n"]) -> tuple[Any, ...]:
    """Count positive, zero and negative eigenvalues, with NumPy or in a trace."""
    limit = jnp.finfo(values.dtype).eps * values.size * xp.max(abs(values), initial=0)
    signs = values > limit, abs(values) <= limit, values < -limit
    return tuple(xp.sum(sign, dtype=int) for sign in signs)


def cholesky(
    operator: AbstractLinearMap, damping: RealNumber = 0.0
) -> Float[Array, "n n"]:
    r"""Compute the Cholesky factor of the matrix, $A + \lambda I = L L^T$.

    It forms the matrix. Outside of a transformation it also computes all eigenvalues,
    so that it raises where the matrix is not positive definite instead of returning NaN
    or the factor of a matrix that is only so by rounding.

    Args:
        operator: A symmetric operator.
        damping: The number $\lambda$ that is added to the diagonal.

    Returns:
        The lower triangle `L`, in the order of `index`.

    Raises:
        NotPositiveDefiniteError: If the smallest eigenvalue, damping included, is not
            positive by more than rounding. Inside of a transformation no error is
            possible, and the factor is NaN.
        TooLargeError: If the matrix would exceed `hotk.memory_budget()`.

    Example:
        >>> H = hotk.HessianOperator(lambda x: 2 * x[0] ** 2 + x[1] ** 2, jnp.ones(2))
        >>> hotk.linop.cholesky(H, damping=2.0).tolist()[1]
        [0.0, 2.0]
    """
    a = operator.matrix()
    if isinstance(a, Tracer) or isinstance(damping, Tracer):
        return _factor(a, damping)
    on_host = _direct.is_on_host(a)
    if on_host:
        # by NumPy, of which nothing is compiled; the diagonal alone is changed
        shifted = np.array(a, space.wide(a.dtype))
        np.fill_diagonal(shifted, shifted.diagonal() + np.asarray(damping, a.dtype))
        values = _direct.eigenvalues(shifted)
    else:
        shifted = a + jnp.asarray(damping, a.dtype) * jnp.eye(len(a), dtype=a.dtype)
        values = np.asarray(jnp.linalg.eigvalsh(shifted))
    smallest, largest = float(np.min(values)), float(np.max(values))
    limit = float(jnp.finfo(a.dtype).eps) * len(a) * max(abs(smallest), abs(largest))
    if not smallest > limit:
        gradient: Vector = getattr(operator, "gradient", None)
        slope = ""
        if gradient is not None:
            slope = f"; the gradient's norm here is {float(space.norm(gradient)):.3g}"
        raise NotPositiveDefiniteError(
            message(
                "H.cholesky(damping)",
                "the matrix is not positive definite.",
                expected=f"a smallest eigenvalue above {limit:.3g}, for rounding",
                got=f"{smallest:.6g} (largest {largest:.6g}){slope}",
                fix="At a saddle point, or before convergence, a Hessian is not "
                "positive definite: minimize further, or give `damping=` above "
                f"{-smallest + limit:.3g}.",
            ),
            smallest,
        )
    if not on_host:
        return _factor(a, damping)
    return jnp.asarray(np.linalg.cholesky(shifted), a.dtype)


def _factor(a: Float[Array, "n n"], damping: RealNumber) -> Float[Array, "n n"]:
    eye = jnp.eye(len(a), dtype=a.dtype)
    return jnp.linalg.cholesky(a + jnp.asarray(damping, a.dtype) * eye)
