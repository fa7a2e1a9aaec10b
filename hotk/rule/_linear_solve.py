"""`linear_solve`: linear systems, differentiable to any order by any solver."""

from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from hotk._core import DtypeError, TooLargeError, describe_tree, message


# At most so many unknowns without a solver: in float64 their matrix takes 32 MiB.
_DENSE_LIMIT = 2048

Product: TypeAlias = Callable[[PyTree], PyTree]
"""A linear map: from v to A v."""

LinearSolver: TypeAlias = Callable[[Product, PyTree], PyTree]
"""From a product and a right-hand side to the solution."""


def linear_solve(
    product: Product,
    b: PyTree,
    solver: LinearSolver | None = None,
    *,
    symmetric: bool = False,
) -> PyTree:
    r"""Solve the linear system $A x = b$, differentiable to any order.

    It can be differentiated by `b` and by what the product captures. The derivative is
    $A\,dx = db - dA\,x$, one more linear system with the same solver [1], and one with
    $A^T$ in reverse mode. Nothing is differentiated through the solver.

    Args:
        product: $v \mapsto A v$, linear.
        b: Right-hand side: a tree of floating or complex arrays.
        solver: `solver(product, b)`; it serves the transpose as well. Without it the
            matrix is made, by one product for each of n unknowns, and factorized, at a
            cost of $O(n^3)$.
        symmetric: Whether A is symmetric, so that the transpose is not derived.

    Returns:
        The solution, with the structure, shapes and dtypes of `b`.

    Raises:
        TypeError: If `product` is not a function.
        DtypeError: If `b` holds integers.
        TooLargeError: If `b` has more than 2048 numbers and there is no `solver`.

    Example:
        >>> f = lambda a: hotk.rule.linear_solve(lambda v: a * v, 3.0)
        >>> print(f"{hotk.second_derivative(f, 2.0):.2f}")
        0.75

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 15.
            SIAM.
    """
    solve_tree = _dense if solver is None else solver
    if not callable(product):
        raise TypeError(_text("a function", product, "Write `lambda v: A @ v`."))
    b = jax.tree.map(jnp.asarray, b)
    leaves, tree = jax.tree.flatten(b)
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            fix = "Convert `b`, such as by `1.0 *`."
            raise DtypeError(_text("floating-point unknowns", leaf, fix))
    if len(leaves) == 1:
        # One array stays as it is: a vector of its numbers could not keep its sharding.
        pack = lambda tree: jax.tree.leaves(tree)[0]
        unpack = lambda leaf: tree.unflatten([leaf])
    else:
        # `custom_linear_solve` fails where the tangents of some leaves are zero and
        # those of others are not. One vector has one tangent.
        with jax.numpy_dtype_promotion("standard"):
            _, unpack = ravel_pytree(b)
        pack = _pack

    def solve(product: Product, b: Array) -> Array:
        return pack(solve_tree(lambda v: unpack(product(pack(v))), unpack(b)))

    return unpack(
        jax.lax.custom_linear_solve(
            lambda v: pack(product(unpack(v))),
            pack(b),
            solve,
            transpose_solve=solve,
            symmetric=symmetric,
        )
    )


def _pack(tree: PyTree) -> Array:
    """Return the numbers of a tree as one vector, of the widest dtype."""
    with jax.numpy_dtype_promotion("standard"):
        return ravel_pytree(tree)[0]


def _text(expected: str, got: object, fix: str) -> str:
    return message(
        "rule.linear_solve(product, b)",
        "an argument has the wrong type.",
        expected=expected,
        got=describe_tree(got),
        fix=fix,
    )


def _dense(product: Product, b: PyTree) -> PyTree:
    flat, unravel = ravel_pytree(b)
    if flat.size > _DENSE_LIMIT:
        raise TooLargeError(
            message(
                "rule.root(residual, solve)",
                "its derivative would form the matrix of a linear system.",
                expected=f"at most {_DENSE_LIMIT} unknowns",
                got=f"{flat.size}",
                fix="Give a `linear_solver(product, b)`, such as one that iterates.",
            )
        )
    columns = jax.vmap(lambda v: ravel_pytree(product(unravel(v)))[0], out_axes=1)
    matrix = columns(jnp.eye(flat.size, dtype=flat.dtype))
    # JAX does not factorize matrices of 16 bits.
    narrow = jnp.finfo(flat.dtype).bits < 32
    wide = jnp.float32 if narrow else flat.dtype
    solution = jnp.linalg.solve(matrix.astype(wide), flat.astype(wide))
    return unravel(solution.astype(flat.dtype))
