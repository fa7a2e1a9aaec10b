"""`sparse_lagrangian`: an objective and its constraints, with all their derivatives."""

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._capture import StaticArrays
from hotk._core import (
    Argnums,
    Cotangent,
    Function,
    Keywords,
    Point,
    Scalar,
    Where,
)
from hotk._mode import AUTO, Auto, Forward, Nested, second_order_candidates
from hotk._prepared import operator

from ._sparse_hessian import hessian_of
from ._sparse_jacobian import jacobian_of


@operator(
    takes="u",
    wants="pair",
    value=True,
    candidates=second_order_candidates,
    modes=(Nested,),
    static_arrays=StaticArrays.ALL_INTEGERS,
)
def sparse_lagrangian(
    f: Function,
    x: Point,
    u: Cotangent,
    *args: PyTree,
    mode: Nested | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> tuple[PyTree, ...]:
    r"""Compute an objective and its constraints with all their derivatives, sparse.

    For $f(x) = (\varphi(x), g(x))$ these are $\nabla \varphi$, the Jacobian of $g$, and
    the Hessian of the Lagrangian $\sigma \varphi + \lambda \cdot g$: what a step of
    sequential quadratic programming or of an interior point method needs, in one
    program, so that what they have in common is computed once. `hotk.sparse_hessian`
    says how the matrices are computed and what decides their patterns, which belong to
    the program and are the same for all `x` and `u`. For IPOPT use
    `hotk.interop.ipopt_problem`.

    Args:
        f: Function `f(x, *args)` that returns a pair: the objective, one real number,
            and the constraints, a tree of real floating arrays.
        x: Point: any pytree. Floating leaves are differentiated; integers, strings and
            functions pass through. Complex leaves are refused.
        u: The pair $(\sigma, \lambda)$ of the weight of the objective, one number, and
            the multipliers, a tree like the constraints.
        *args: Further arguments of `f`, held fixed; floating ones that decide no index
            may change value freely.
        mode: A `hotk.Nested`, or `hotk.Auto()`: forward over reverse where it exists.
        has_aux: Whether `f` returns `((objective, constraints), aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        The values and derivatives `((objective, constraints), gradient, jacobian,
        hessian)`: the gradient of the objective with the structure of `x`; the Jacobian
        of the constraints as a `hotk.SparseMatrix`, with a row for each number in them,
        leaf after leaf; and the Hessian of the Lagrangian, another one. With
        `has_aux=True` the first is `((objective, constraints), aux)`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` does not return such a pair.
        StructureError: If `u` has another structure or shape than the pair.
        ModeError: If `f` has no second derivative in this mode.
        TooLargeError: If a matrix is dense and would exceed the memory budget
            (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> def chain(x):  # the energy of a chain, and the lengths of its links
        ...     return jnp.sum(x[:, 1]), jnp.sum(jnp.diff(x, axis=0) ** 2, axis=1) - 1
        >>> x = jnp.stack([jnp.arange(4.0), jnp.zeros(4)], axis=1)
        >>> (y, g), gradient, J, H = hotk.sparse_lagrangian(chain, x, (1.0, np.ones(3)))
        >>> g.tolist(), J.shape, J.nnz, H.nnz
        ([0.0, 0.0, 0.0], (3, 8), 12, 20)
        >>> H.todense()[0].tolist()
        [2.0, 0.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0]

    References:
        Nocedal and Wright (2006). Numerical Optimization, 2nd ed., chapters 18 and 19.
        Springer.
    """
    weight, multipliers = u

    def constraints(x: Point) -> tuple[PyTree, PyTree]:
        (_, values), aux = f(x)
        return values, aux

    def lagrangian(x: Point) -> tuple[Scalar, tuple[PyTree, PyTree]]:
        (objective, values), aux = f(x)
        products = jax.tree.map(lambda a, b: jnp.sum(a * b), multipliers, values)
        total = weight * objective
        for product in jax.tree.leaves(products):
            total += product.astype(objective.dtype)
        return total, (objective, aux)

    def objective(x: Point) -> tuple[Scalar, PyTree]:
        (y, _), aux = f(x)
        return y, aux

    assert isinstance(mode, Nested)
    values, jacobian, _ = jacobian_of(constraints, x, Forward())
    _, _, hessian, (y, aux) = hessian_of(lagrangian, x, mode)
    _, gradient, _ = mode.inner.gradient(objective, x)
    return (y, values), gradient, jacobian, hessian, aux
