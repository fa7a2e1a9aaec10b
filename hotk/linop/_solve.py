"""Systems with an operator: a solver chosen by definiteness."""

import dataclasses
import functools
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from hotk._core import (
    RealNumber,
    Tracer,
    V,
    Vector,
    WhileLoop,
    cond,
    goes_into_program,
    names_ours,
)
from hotk._prepared import shown
from hotk._primitive import constants, may_have_tangents
from hotk.sparse import SparseMatrix, is_worth_factors

from . import _direct, space
from ._cg import cg
from ._continued import cg_then_minres, may_continue
from ._driver import compiled
from ._implicit import Product, SymmetricProduct, with_derivatives
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
    operator: AbstractLinearMap[V],
    b: PyTree,
    *,
    batched: bool = False,
    x0: PyTree = None,
    preconditioner: AbstractLinearMap | None = None,
    tol: RealNumber = 1e-5,
    max_steps: int | Int[Array, ""] | None = None,
    method: SolveMethod | None = None,
) -> Solution[V]:
    r"""Solve `A x = b` by conjugate gradients, by minimal residuals if indefinite.

    Conjugate gradients stop where they meet a direction without positive curvature.
    Minimal residuals then go on from the point reached; up to a dimension of 128, and
    outside of transformations, the system is solved by the eigenvectors of the matrix
    instead, n products. `method` and `definite` of the solution report which was used,
    and `curvature` and `direction` those that conjugate gradients encountered.

    A sparse matrix of 2000 rows or more is factorized where conjugate gradients need
    more than 100 products, or at once where factors are cheaper than those. Whether it
    is sparse is found once for a function, and not inside of a transformation.

    The solution `x` can be differentiated to any order, by `b` and by all that the
    operator depends on: $A\,dx = db - dA\,x$ is one more system for each tangent, which
    is solved in the same way. So derivatives are as exact as the solution is. They are
    NaN if a system has not converged, which raises outside of `jit` and `vmap`.

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
        ModeError: If a derivative is taken, and the system was not solved; or one of
            another field than `x`, in reverse mode.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x[0] ** 2 - x[1] ** 2, jnp.ones(2))
        >>> solution = H.solve(jnp.array([2.0, 2.0]))
        >>> solution.x.round(4).tolist(), bool(solution.definite)
        ([1.0, -1.0], False)
    """
    check_symmetric("solve(A, b)", operator)
    if method not in (None, "iterative", "sparse"):
        raise ValueError(
            f"`solve(A, b)`: method {method!r} is neither 'iterative' nor 'sparse'."
        )
    iteration = any(a is not None for a in (x0, preconditioner, max_steps))
    if method == "sparse" and iteration:
        raise ValueError(
            "`solve(A, b)`: `x0`, `preconditioner` and `max_steps` are for an "
            'iteration, and method "sparse" is none.'
        )
    options = {
        "batched": batched,
        "x0": x0,
        "preconditioner": preconditioner,
        "tol": tol,
        "max_steps": max_steps,
        "method": method,
    }
    if operator.on_host or not may_have_tangents((operator, b, options)):
        return _solve(operator, b, **options)
    system = operator, _right_side(operator, b, batched)
    held, options = constants((system, options))
    found = _solve(*held, **options)
    one = {**options, "batched": False, "x0": None}
    if method == "sparse":  # the systems of derivatives have this matrix as well
        again, one = _solve_with_same, (held[0], one)
    else:
        again, one = _solve_with, {**one, "method": "iterative"}
    return with_derivatives(found, system, held, again, one, batched=batched)


def _solve_with(A: AbstractLinearMap, b: PyTree, options: dict[str, Any]) -> Solution:
    return _solve(A, b, **options)


def _solve_with_same(A: AbstractLinearMap, b: PyTree, known: Any) -> Solution:
    del A
    operator, options = known
    return _solve(operator, b, **options)


def _right_side(operator: AbstractLinearMap, b: PyTree, batched: bool) -> PyTree:
    """Return a vector of the space, or several, with the structure that it has."""
    vector = lambda b: operator.vector(b, "solve(A, b)")
    return jax.vmap(vector)(jax.tree.map(jnp.asarray, b)) if batched else vector(b)


def _solve(
    operator: AbstractLinearMap,
    b: PyTree,
    *,
    batched: bool,
    x0: PyTree,
    preconditioner: AbstractLinearMap | None,
    tol: RealNumber,
    max_steps: int | Int[Array, ""] | None,
    method: SolveMethod | None,
) -> Solution:
    """Solve a system without derivatives; see `solve`."""
    options = {"preconditioner": preconditioner, "tol": tol, "max_steps": max_steps}
    iteration = any(a is not None for a in (x0, preconditioner, max_steps))
    if method == "sparse":
        matrix = sparse_of("solve(A, b)", operator)
        if batched:
            b = jax.tree.map(jnp.asarray, b)
            return solve_by_factors(operator, matrix, b, tol, batched=True)
        return _or_least_squares(
            operator, b, tol, solve_by_factors(operator, matrix, b, tol)
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
        return compiled(_batched, inputs)
    by_matrix = method is None and not iteration and _direct.is_small(operator)
    continued = not by_matrix and may_continue(operator, b)
    by_cg = (cg_then_minres if continued else cg)(operator, b, x0=x0, **options)
    if continued and goes_into_program((operator, b)):
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

    if isinstance(by_cg.iterations, Tracer):
        indefinite = by_cg.reason == Reason.negative_curvature
        indefinite &= by_cg.iterations < most
        return cond(indefinite, go_on, lambda by_cg: by_cg, by_cg)
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

    if isinstance(found.residual, Tracer):
        singular = found.reason == Reason.not_finite
        return cond(singular, by_minres, lambda found: found, found)
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
    one = functools.partial(_solve, batched=False, method=None, **options)
    solve_one = lambda b, x0: one(A, b, x0=x0)
    if any(space.is_explicit(leaf) for leaf in jax.tree.leaves(b)):
        # `vmap` of a loop selects with a condition that is not split as its cases are
        return jax.lax.map(lambda pair: solve_one(*pair), (b, x0))
    return jax.vmap(solve_one, in_axes=(0, None if x0 is None else 0))(b, x0)


def by_iteration(product: Product, b: Vector) -> Vector:
    r"""Solve a symmetric system by products alone, as far as rounding lets it.

    It is a `linear_solver` for `hotk.rule.minimum` and `hotk.rule.linear_solve`:
    conjugate gradients, and minimal residuals where the product is indefinite, to a
    relative residual of $\epsilon^{3/4}$ with the precision $\epsilon$.

    Args:
        product: The product, symmetric: a function of a vector like `b`.
        b: The right-hand side: a tree of arrays.

    Returns:
        The solution. It is NaN if the residual is above $\sqrt\epsilon$ after `10 n`
        products, as that of a singular system is.

    Raises:
        ValueError: If the product of the right-hand side has another shape.

    Example:
        >>> d = jnp.array([1.0, -2.0])
        >>> hotk.linop.by_iteration(lambda v: d * v, jnp.ones(2)).round(3).tolist()
        [1.0, -0.5]
    """
    eps = float(jnp.finfo(space.scalar_dtype(b)).eps)
    found = _solve(
        SymmetricProduct.of(product, b),
        b,
        batched=False,
        x0=None,
        preconditioner=None,
        tol=eps**0.75,
        max_steps=None,
        method="iterative",
    )
    good = found.relative <= eps**0.5
    return space.times(jnp.where(good, 1, jnp.nan), found.x)
