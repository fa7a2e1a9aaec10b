"""Determinants, with the derivatives that they have where a matrix is singular."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Inexact

from hotk._core import DtypeError, Leaf, StructureError, describe, message


_SMALL = 4  # singular values that may be zero: as many derivatives are exact


def det(a: Leaf) -> Inexact[Array, "..."]:
    r"""Compute the determinant, with derivatives up to the fourth at singular matrices.

    With constant unitary $U, V$ from the singular value decomposition at the point,
    $\det A = \det U \det V^* \det B$ for $B = U^* A V$. The block of $B$ that holds the
    four smallest singular values enters by its Schur complement, whose determinant is
    written out, so that nothing is divided by them [1]. At such a point derivatives of
    `jnp.linalg.det` are NaN or, where two singular values are zero, wrongly zero. The
    cost is a singular value decomposition, $O(n^3)$.

    Args:
        a: Square matrices, real or complex, of shape `(..., n, n)`.

    Returns:
        The determinants, of shape `(...)` and the dtype of `a`.

    Raises:
        StructureError: If the last two axes are not square.
        DtypeError: If `a` does not hold floating-point numbers.

    Example:
        >>> matrix = lambda x: jnp.diag(jnp.append(x, jnp.ones(2)))
        >>> for det in (jnp.linalg.det, hotk.safe.det):  # of x[0] x[1]
        ...     jax.hessian(lambda x, det=det: det(matrix(x)))(jnp.zeros(2)).tolist()
        [[0.0, 0.0], [0.0, 0.0]]
        [[0.0, 1.0], [1.0, 0.0]]

    References:
        [1] Golub and Van Loan (2013). Matrix Computations, 4th ed., sections 2.4 and
            3.2.
    """
    parts = _Parts(a, "det")
    product = parts.unit * _written_out(parts.rest)
    if parts.regular.size:  # JAX cannot differentiate the determinant of nothing
        product *= jnp.linalg.det(parts.regular)
    return jnp.where(parts.is_regular, product, 0)


def slogdet(a: Leaf) -> tuple[Inexact[Array, "..."], Float[Array, "..."]]:
    r"""Compute the sign of $\det A$ and $\log |\det A|$, also near singular matrices.

    It decomposes the matrix as `hotk.safe.det` does, scaled by its largest singular
    value, so that small and large matrices of any order have the right logarithm
    (`jnp.linalg.slogdet` multiplies the entries of small matrices without scaling). At
    a singular matrix the sign is 0, the logarithm is $-\infty$, and all derivatives
    count as zero; use `hotk.safe.det` where the determinant itself is meant, as in a
    sum of them.

    Args:
        a: Square matrices, real or complex, of shape `(..., n, n)`.

    Returns:
        The sign, of the dtype of `a` and modulus 1, and the real logarithm; both of
        shape `(...)`.

    Raises:
        StructureError: If the last two axes are not square.
        DtypeError: If `a` does not hold floating-point numbers.

    Example:
        >>> f = lambda a: hotk.safe.slogdet(a)[1]
        >>> a = 1e-30 * jnp.eye(2)
        >>> print(f"{jnp.linalg.slogdet(a)[1]:.1f} {f(a):.1f}")
        -inf -138.2
        >>> jax.grad(f)(jnp.zeros((2, 2))).tolist()
        [[0.0, 0.0], [0.0, 0.0]]
    """
    parts = _Parts(a, "slogdet")
    sign, logarithm = parts.unit, jnp.log(parts.scale) * parts.point.shape[-1]
    scale = parts.scale.astype(parts.point.dtype)[..., None, None]
    if parts.regular.size:
        one, two = jnp.linalg.slogdet(parts.regular / scale)
        sign, logarithm = sign * one, logarithm + two
    last = _written_out(parts.rest / scale)
    is_regular = parts.is_regular & (last != 0)
    # Replaced before the logarithm is taken: its derivative at 0 is infinite, and zero
    # times infinity, which the last line would make of it, is NaN.
    last = jnp.where(is_regular, last, 1)
    size = jnp.abs(last)
    return (
        jnp.where(is_regular, sign * (last / size.astype(last.dtype)), 0),
        jnp.where(is_regular, logarithm + jnp.log(size), -jnp.inf),
    )


class _Parts:
    """A matrix in the basis of its singular vectors, which are held constant.

    Attributes:
        point: The matrix, held constant.
        unit: The determinant of the basis, of modulus 1.
        regular: The block of the large singular values.
        rest: The Schur complement of it: the block of the four smallest.
        scale: The largest singular value; 1 if that is zero.
        is_regular: Whether no singular value of the regular block is zero.
    """

    def __init__(self, a: Leaf, name: str) -> None:
        a = _square(a, name)
        self.point = jax.lax.stop_gradient(a)
        u, values, v = jnp.linalg.svd(self.point)
        u, v = jnp.conj(u.mT), jnp.conj(v.mT)
        self.unit = jnp.conj(jnp.linalg.det(u) * jnp.linalg.det(v))
        n = a.shape[-1]
        count = n - min(n, _SMALL)
        largest = jnp.max(values, -1, initial=0)
        self.scale = jnp.where(largest > 0, largest, 1)
        noise = n * jnp.finfo(values.dtype).eps * largest if name == "det" else 0
        smallest = jnp.min(values[..., :count], -1, initial=jnp.inf)
        self.is_regular = smallest > noise
        diagonal = jnp.where(self.is_regular[..., None], values, 1).astype(a.dtype)
        b = u @ (a - self.point) @ v  # zero here, exactly
        b += diagonal[..., None] * jnp.broadcast_to(jnp.eye(n, dtype=a.dtype), a.shape)
        self.regular = b[..., :count, :count]
        above, below = b[..., :count, count:], b[..., count:, :count]
        self.rest = b[..., count:, count:]
        if count:
            self.rest -= below @ jnp.linalg.solve(self.regular, above)


def _square(a: Leaf, name: str) -> Array:
    a = jnp.asarray(a)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise StructureError(_text(name, "square matrices, (..., n, n)", a))
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        raise DtypeError(_text(name, "floating-point numbers", a))
    return a


def _text(name: str, expected: str, a: Array) -> str:
    return message(
        f"safe.{name}(a)",
        "`a` has the wrong shape or dtype.",
        expected=expected,
        got=describe(a),
        fix="Reshape or convert it first.",
    )


def _written_out(a: Array) -> Array:
    """Return the determinant of a small matrix as a sum of products."""
    n = a.shape[-1]
    orders = np.array(list(itertools.permutations(range(n))), int).reshape(
        math.factorial(n), n
    )
    signs = [round(np.linalg.det(np.eye(n)[order])) for order in orders]
    products = jnp.ones_like(a, shape=(*a.shape[:-2], len(orders)))
    for i in range(n):
        products *= a[..., i, orders[:, i]]
    return products @ jnp.asarray(signs, a.dtype)
