"""Systems with an operator: a solver chosen by definiteness, and factorizations."""

import dataclasses
from typing import Literal, TypeAlias, overload

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
    not_finite,
)
from hotk.prepared import shown
from hotk.primitive import nondifferentiable
from hotk.sparse import Factorization, SparseMatrix, identity, is_worth_factors

from . import _direct, space
from ._cg import cg
from ._continued import cg_then_minres, may_continue
from ._driver import compiled
from ._linear_map import AbstractLinearMap
from ._minres import minres
from ._solution import Reason, Solution, is_known_as
from ._sparse import (
    FEW_PRODUCTS,
    is_banded,
    solve_by_factors,
    sparse_if_large,
    sparse_of,
)
from ._vectors import check_symmetric


SolveMethod: TypeAlias = Literal["iterative", "sparse"]


@names_ours
@shown
def solve(
    operator: AbstractLinearMap,
    b: PyTree,
    *,
    batched: bool = False,
    x0: PyTree = None,
    preconditioner: AbstractLinearMap | None = None,
    tol: RealNumber = 1e-5,
    max_steps: int | Int[Array, ""] | None = None,
    method: SolveMethod | None = None,
) -> Solution:
    """Solve `A x = b` by conjugate gradients; by minimal residuals if it is indefinite.

    Conjugate gradients stop where they meet a direction without positive curvature.
    Minimal residuals then go on from the point reached; up to a dimension of 128, and
    outside of transformations, the system is solved by the eigenvectors of the matrix
    instead, n products. `method` and `definite` of the solution report which was used,
    and `curvature` and `direction` those that conjugate gradients encountered.

    A sparse matrix of 2000 rows or more is factorized where conjugate gradients need
    more than 100 products, or at once where factors are cheaper than those. Whether it
    is sparse is found once for a function, and not inside of a transformation.

    Args:
        operator: A symmetric operator.
        b: The right-hand side: a vector of the space.
        batched: Whether `b` has a leading axis, one right-hand side each.
        x0: The start of the iteration; zero if left out.
        preconditioner: An operator close to the inverse of `A`, positive definite.
        tol: Stop when the residual is below `tol` times the norm of `b`.
        max_steps: Stop after this number of products, of the two together; `10 n` if
            left out.
        method: `"iterative"`, or `"sparse"` for factors of the sparse matrix by SciPy's
            SuperLU, on the host. `iterations` is zero then, `curvature` that along `x`
            or a negative pivot, and a singular system is left to minimal residuals.
            Chosen as above if left out; an iterative one if any of `batched`, `x0`,
            `preconditioner` and `max_steps` is given.

    Returns:
        A `Solution`, with a leading axis if `batched`.

    Raises:
        StructureError: If `b` or `x0` is not a vector of the space.
        TypeError: If the operator is not symmetric, or has no sparse matrix.
        ValueError: If `max_steps` is not positive, there is no such method, or the
            method takes no `x0`, `preconditioner` or `max_steps`.
        ModeError: If a derivative is taken by the operator or a vector.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x[0] ** 2 - x[1] ** 2, jnp.ones(2))
        >>> solution = H.solve(jnp.array([2.0, 2.0]))
        >>> solution.x.round(4).tolist(), bool(solution.definite)
        ([1.0, -1.0], False)
    """
    check_symmetric("solve(A, b)", operator)
    options = {"preconditioner": preconditioner, "tol": tol, "max_steps": max_steps}
    iteration = any(a is not None for a in (x0, preconditioner, max_steps))
    if method == "sparse":
        if iteration:
            raise ValueError(
                "`solve(A, b)`: `x0`, `preconditioner` and `max_steps` are for an "
                'iteration, and method "sparse" is none.'
            )
        matrix = sparse_of("solve(A, b)", operator)
        if batched:
            b = jax.tree.map(jnp.asarray, b)
            return solve_by_factors(operator, matrix, b, tol, batched=True)
        return _or_least_squares(
            operator, b, tol, solve_by_factors(operator, matrix, b, tol)
        )
    if method not in (None, "iterative"):
        raise ValueError(
            f"`solve(A, b)`: method {method!r} is neither 'iterative' nor 'sparse'."
        )
    if method is None and not (batched or iteration):
        matrix = sparse_if_large(operator)
        if matrix is not None and is_worth_factors(matrix.pattern):
            return _sparse(operator, matrix, b, tol)
    if batched:
        b, x0, tol = jax.tree.map(jnp.asarray, (b, x0, tol))
        inputs = (operator, b, x0, preconditioner, tol, max_steps)
        if operator.on_host:
            return _one_by_one(*inputs)
        return compiled(_batched, nondifferentiable("solve(A, b)", inputs))
    by_matrix = method is None and not iteration and _direct.is_small(operator)
    continued = not by_matrix and may_continue(operator, b)
    by_cg = (cg_then_minres if continued else cg)(operator, b, x0=x0, **options)
    if continued and in_trace():
        return by_cg
    most = 10 * space.dimension(by_cg.x) if max_steps is None else max_steps
    whole = isinstance(most, (int, np.integer))
    most = min(int(most), 2**31 - 1) if whole else most

    def go_on(by_cg: Solution) -> Solution:
        left = jnp.asarray(most, jnp.int32) - by_cg.iterations
        by_minres = minres(operator, b, x0=by_cg.x, **{**options, "max_steps": left})
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
    if not is_known_as(by_cg.reason, Reason.negative_curvature):
        return by_cg
    if by_matrix:
        # less to compile than another iteration
        found = _direct.solved(operator, operator.vector(b, "solve(A, b)"), tol, by_cg)
        if found is not None:
            return found
    return go_on(by_cg) if int(by_cg.iterations) < most else by_cg


def _sparse(
    operator: AbstractLinearMap, matrix: SparseMatrix, b: PyTree, tol: RealNumber
) -> Solution:
    """Solve by factors, after few steps of an iteration that may be cheaper."""
    if is_banded(matrix):
        found = solve_by_factors(operator, matrix, b, tol)
        return _or_least_squares(operator, b, tol, found)
    by_cg = cg(operator, b, tol=tol, max_steps=FEW_PRODUCTS)
    stopped = (Reason.most_steps, Reason.negative_curvature, Reason.stagnated)
    if not any(is_known_as(by_cg.reason, reason) for reason in stopped):
        return by_cg
    found = solve_by_factors(operator, matrix, b, tol)
    found = _or_least_squares(operator, b, tol, found)
    lower = by_cg.curvature < found.curvature
    return dataclasses.replace(
        found,
        iterations=by_cg.iterations + found.iterations,
        curvature=jnp.where(lower, by_cg.curvature, found.curvature),
        direction=space.choose(lower, by_cg.direction, found.direction),
    )


def _or_least_squares(
    operator: AbstractLinearMap, b: PyTree, tol: RealNumber, found: Solution
) -> Solution:
    """Return a solution, or that by minimal residuals if there are no factors."""

    def by_minres(found: Solution) -> Solution:
        other = minres(operator, b, tol=tol)
        lower = other.curvature < found.curvature
        return dataclasses.replace(
            other,
            curvature=jnp.where(lower, other.curvature, found.curvature),
            direction=space.choose(lower, other.direction, found.direction),
        )

    if isinstance(found.residual, Tracer) or in_trace():
        singular = found.reason == Reason.not_finite
        return jax.lax.cond(singular, by_minres, lambda found: found, found)
    singular = is_known_as(found.reason, Reason.not_finite)
    return by_minres(found) if singular else found


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


@overload
def cholesky(
    operator: AbstractLinearMap,
    damping: RealNumber = ...,
    method: Literal["dense"] = ...,
) -> Float[Array, "n n"]: ...


@overload
def cholesky(
    operator: AbstractLinearMap,
    damping: RealNumber = ...,
    *,
    method: Literal["sparse"],
) -> Factorization: ...


@names_ours
@shown
def cholesky(
    operator: AbstractLinearMap,
    damping: RealNumber = 0.0,
    method: Literal["dense", "sparse"] = "dense",
) -> Float[Array, "n n"] | Factorization:
    r"""Compute the Cholesky factor of the matrix, $A + \lambda I = L L^T$.

    It forms the matrix. Outside of a transformation it also computes all eigenvalues,
    so that it raises where the matrix is not positive definite instead of returning NaN
    or the factor of a matrix that is only so by rounding.

    Args:
        operator: A symmetric operator.
        damping: The number $\lambda$ that is added to the diagonal.
        method: `"dense"`, or `"sparse"` for a factorization of the sparse matrix, which
            forms no dense one.

    Returns:
        The lower triangle `L`, in the order of `index`; with `method="sparse"` a
        `hotk.sparse.Factorization`, with `solve`, `inertia` and `logdet`.

    Raises:
        NotPositiveDefiniteError: If the smallest eigenvalue, damping included, is not
            positive by more than rounding. Inside of a transformation no error is
            possible, and the factor is NaN.
        TooLargeError: If the matrix would exceed `hotk.memory_budget()`.
        TypeError: If the operator is not known to be symmetric, has no sparse matrix,
            or is traced.
        ValueError: If there is no such method.

    Example:
        >>> H = hotk.HessianOperator(lambda x: 2 * x[0] ** 2 + x[1] ** 2, jnp.ones(2))
        >>> hotk.linop.cholesky(H, damping=2.0).tolist()[1]
        [0.0, 2.0]
    """
    call = "cholesky(A)"
    check_symmetric(call, operator)
    if method == "sparse":
        matrix = sparse_of(call, operator)
        shift = damping * identity(matrix)
        return (matrix + shift).symmetrized().cholesky()
    if method != "dense":
        raise ValueError(
            f"`cholesky(A)`: method {method!r} is neither 'dense' nor 'sparse'."
        )
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
    smallest = float(np.min(values, initial=np.inf))
    largest = float(np.max(values, initial=-np.inf))
    if np.isnan(smallest):
        raise NotPositiveDefiniteError(not_finite(call), smallest)
    limit = float(jnp.finfo(a.dtype).eps) * len(a) * max(abs(smallest), abs(largest))
    if len(a) and not smallest > limit:
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
