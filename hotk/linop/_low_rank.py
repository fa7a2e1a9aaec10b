r"""`LowRank`: a few eigenvalues and one number for all others; `nystrom` finds them."""

from typing import final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from hotk._core import (
    NotPositiveDefiniteError,
    RandomKey,
    RealNumber,
    Scalar,
    Tracer,
    Vector,
    describe,
    describe_tree,
    message,
    names_ours,
)

from . import space
from ._operator import AbstractOperator
from ._symmetric import AbstractSymmetricOperator
from ._vectors import check_symmetric, is_known_positive, space_of


# Products at once: each needs the memory of a linearization.
_AT_ONCE = 32


@final
class LowRank(AbstractSymmetricOperator):
    r"""The symmetric operator $U \Lambda U^T + \tau (I - U U^T)$.

    Its inverse is a `LowRank`, too, without a factorization. If A approximates an
    operator B, `A.inverse(damping)` is a preconditioner for `B + damping * Identity()`.

    Attributes:
        basis: U, with orthonormal columns, flat in the order of `index`.
        values: $\Lambda$, one number for each column.
        tail: $\tau$, the eigenvalue of all that is orthogonal to the columns.
        point: A vector of the space.

    Example:
        >>> A = hotk.linop.LowRank(
        ...     jnp.eye(3)[:, :1], jnp.array([3.0]), jnp.array(1.0), jnp.zeros(3)
        ... )
        >>> (A @ jnp.ones(3)).tolist()
        [3.0, 1.0, 1.0]
        >>> (A.inverse(damping=1.0) @ jnp.array([4.0, 2.0, 2.0])).tolist()
        [1.0, 1.0, 1.0]
    """

    basis: Float[Array, "n rank"]
    values: Float[Array, " rank"]
    tail: Scalar
    point: Vector

    @property
    def like(self) -> Vector:
        """A vector of the space."""
        return self.point

    def __repr__(self) -> str:
        """Show the space and the rank."""
        n, rank = self.basis.shape
        return f"LowRank({describe_tree(self.like, 4)}, n={n}, rank={rank})"

    @property
    def positive_semidefinite(self) -> bool:
        """Whether no eigenvalue is negative; not known of those that are traced."""
        return is_known_positive(self.values) and is_known_positive(self.tail)

    def mv(self, v: Vector) -> Vector:
        """Return the product with one vector."""
        wide = space.widened(v)
        flat = space.flattened(wide)
        along = (self.values - self.tail) * (self.basis.T @ flat)
        product = self.basis @ along + self.tail * flat
        return space.narrowed(space.unflattened(product, wide), v)

    def inverse_or_none(self, damping: RealNumber) -> "LowRank":
        r"""Return $(A + \lambda I)^{-1}$; inside of a trace rounding is raised to eps.

        Args:
            damping: The number $\lambda$.

        Raises:
            NotPositiveDefiniteError: If an eigenvalue is zero but for rounding.
        """
        values, tail = self.values + damping, self.tail + damping
        n, rank = self.basis.shape
        if 0 < rank == n:  # nothing is orthogonal to the columns
            tail = values[0]
        every = jnp.append(values, tail)
        least = jnp.finfo(values.dtype).eps * jnp.max(jnp.abs(every))
        least = jnp.maximum(least, jnp.finfo(values.dtype).tiny)
        if not isinstance(every, Tracer) and bool(jnp.min(jnp.abs(every)) <= least):
            raise _singular(float(damping), float(jnp.max(jnp.abs(every))))
        over = lambda a: 1 / jnp.where(jnp.abs(a) > least, a, least)
        return LowRank(self.basis, over(values), over(tail), self.point)


def _singular(damping: float, largest: float) -> NotPositiveDefiniteError:
    return NotPositiveDefiniteError(
        message(
            "A.inverse(damping)",
            "the `LowRank` operator is singular.",
            expected="eigenvalues that are not zero",
            got=f"one that is, with damping = {damping:.3g}, where the largest is "
            f"{largest:.3g}",
            fix="Give a damping, as large as that of the system it is for.",
        ),
        0.0,
    )


@names_ours
def nystrom(operator: AbstractOperator, rank: int, key: RandomKey) -> LowRank:
    r"""Approximate a positive semidefinite operator by products with random vectors.

    The randomized Nystrom approximation $(A \Omega) (\Omega^T A \Omega)^+ (A \Omega)^T$
    with an orthonormal $\Omega$ of `rank` columns [1] (Algorithm 2.1), as $U \Lambda
    U^T$. On the complement of U the operator has the smallest of these eigenvalues, so
    that `.inverse(damping)` is the preconditioner of [1] (1.3) up to a factor. It takes
    `rank` products and two vectors of memory for each. With $\lambda_{rank}$ near the
    damping, conjugate gradients take a few tens of steps for any condition number.

    Args:
        operator: A positive semidefinite operator: a Gauss-Newton or Fisher matrix, or
            the Hessian of a convex function.
        rank: The number of products.
        key: A random key.

    Returns:
        A `LowRank` operator. Its eigenvalues are not negative: inside of a
        transformation, where no error is possible, negative eigenvalues are set to
        zero.

    Raises:
        NotPositiveDefiniteError: If the operator is seen to be indefinite.
        ValueError: If the rank is not between 1 and the dimension.
        TypeError: If the operator is not symmetric.

    Example:
        >>> w = jnp.logspace(3, -3, 40)
        >>> H = hotk.HessianOperator(lambda x: w @ x**2 / 2, jnp.ones(40))
        >>> A = hotk.linop.nystrom(H, 20, jax.random.key(0))
        >>> damped, b = H + 1e-1 * hotk.Identity(), jnp.ones(40)
        >>> slow = hotk.linop.cg(damped, b)
        >>> fast = hotk.linop.cg(damped, b, preconditioner=A.inverse(1e-1))
        >>> int(fast.iterations) < int(slow.iterations) / 2
        True

    References:
        [1] Frangella, Tropp and Udell (2023). Randomized Nystrom preconditioning. SIAM
            J. Matrix Anal. Appl. 44(2), 718-752. arXiv:2110.02820.
    """
    like = space_of(operator)
    n = space.dimension(like)
    if isinstance(rank, bool) or not isinstance(rank, (int, np.integer)):
        raise TypeError(f"`nystrom(A, rank, key)`: rank is {describe(rank)}.")
    if not 1 <= rank <= n:
        raise ValueError(
            f"`nystrom(A, rank, key)`: rank = {rank} is not between 1 and n = {n}."
        )
    check_symmetric("nystrom(A, rank, key)", operator)
    wide = space.widened(like)
    dtype = space.scalar_dtype(like)
    omega = jnp.linalg.qr(jax.random.normal(key, (n, rank), dtype))[0]
    rows = jax.vmap(lambda v: space.narrowed(space.unflattened(v, wide), like))(omega.T)
    products = jax.vmap(lambda v: space.flattened(space.widened(v)))
    y = products(operator.many(rows, min(rank, _AT_ONCE))).T
    # Squares of the products may be out of range. A power of two rounds nothing.
    _, exponent = jnp.frexp(jnp.max(jnp.abs(y)))
    y = jnp.ldexp(y, -exponent)
    core = omega.T @ y
    values, vectors = jnp.linalg.eigh((core + core.T) / 2)
    _refuse_indefinite(operator, jnp.ldexp(values, exponent))
    # A shift by the rounding of y, taken away again at the end [1].
    shift = n**0.5 * jnp.finfo(dtype).eps * jnp.linalg.norm(y)
    shift = jnp.maximum(shift, jnp.finfo(dtype).tiny)
    root = jnp.sqrt(jnp.maximum(values + shift, shift))
    basis, sizes, _ = jnp.linalg.svd(
        ((y + shift * omega) @ vectors) / root[None], full_matrices=False
    )
    found = jnp.ldexp(jnp.maximum(sizes**2 - shift, 0), exponent)
    return LowRank(basis, found, found[-1], like)


def _refuse_indefinite(
    operator: AbstractOperator, values: Float[Array, " rank"]
) -> None:
    if isinstance(values, Tracer):
        return
    lowest, size = float(values[0]), float(jnp.max(jnp.abs(values)))
    # of random directions: rounding is far below
    if operator.positive_semidefinite or lowest >= -1e-3 * size:
        return
    raise NotPositiveDefiniteError(
        message(
            "nystrom(A, rank, key)",
            "the operator is not positive semidefinite.",
            expected="no negative curvature: a Gauss-Newton or Fisher matrix, or the "
            "Hessian of a convex function",
            got=f"a curvature of {lowest:.6g} along a direction, where the largest is "
            f"{size:.6g}",
            fix="Take the Gauss-Newton matrix of the model, `hotk.GGNOperator(model, "
            "loss, x)`, or precondition with its approximation; or add damping, as in "
            f"`A + {-2 * lowest:.3g} * hotk.Identity()`.",
        ),
        lowest,
    )
