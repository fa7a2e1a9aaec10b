r"""Leaving one test vector out, or two, without multiplying anew.

The projector on the span of the products $A \omega_j = Q r_j$ but those of some test
vectors is $Q M Q^T$. Without that of `i` it is $M_i = I - s_i s_i^T$, where $s_i$ is
the normalized row `i` of $R^{-1}$: orthogonal to all columns of R but its own. Without
those of `i` and `j` it lacks the span of $s_i$ and $s_j$.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, PyTree

from ._estimate import standard_error


class LeftOut(NamedTuple):
    r"""What the span of products lacks when some are left out.

    Without `i` and `j`, which are different, the matrix is
    $M_{ij} = I - a_{ij} s_i s_i^T - b_{ij} s_j s_j^T + d_{ij} (s_i s_j^T + s_j s_i^T)$.
    Without `i` alone it is the same with $a_{ii} = 1$, $b_{ii} = d_{ii} = 0$.

    Attributes:
        s: The rows $s_i$; zero where the product depends on others.
        a: The factors of $s_i s_i^T$.
        b: The factors of $s_j s_j^T$.
        d: The factors of the mixed terms.
        dependent: Whether a product is a combination of others: nothing is lacking
            without it.
    """

    s: Float[Array, "k k"]
    a: Float[Array, "k k"]
    b: Float[Array, "k k"]
    d: Float[Array, "k k"]
    dependent: Bool[Array, " k"]


def with_derivative_of(linear: PyTree, estimate: PyTree, where: Array) -> PyTree:
    """Return an estimate, somewhere with the derivatives of another one.

    Where products are dependent, their span is the range. In a derivative they may
    leave it, and the coefficients with which one is made of the others have no
    variance. The estimate that holds the projector on the range fixed is linear in the
    operator, so all of its derivatives are unbiased.

    Args:
        linear: The estimate with a fixed projector.
        estimate: The estimate.
        where: Whether products are dependent.
    """
    fixed = jax.lax.stop_gradient
    change = lambda a, b: jnp.where(where, fixed(b) + (a - fixed(a)), b)
    return jax.tree.map(change, linear, estimate)


def left_out(r: Float[Array, "k k"]) -> LeftOut:
    """Compute from the triangle of `orthonormal` what is lacking."""
    eye = jnp.eye(len(r), dtype=r.dtype)
    inside = jnp.diag(r) == 0
    # columns of length one, in two steps so that no square overflows: the factors are
    # those of directions, whatever the lengths of the products
    largest = jnp.max(jnp.abs(r), axis=0)
    r = r / jnp.where(largest > 0, largest, 1)[None]
    # a root has no derivative at zero, nor has what is multiplied by zero then
    lengths = jnp.sqrt(jnp.where(largest > 0, jnp.sum(r**2, axis=0), 1))
    r = r / lengths[None]
    # R has no inverse where a product is in the span of those before it
    regular = jnp.where(inside[None], eye, r)
    inverse = jax.scipy.linalg.solve_triangular(regular, eye)
    used = jnp.matmul(inverse, jnp.where(inside[None], r, 0), precision="highest")
    limit = jnp.finfo(r.dtype).eps ** 0.5
    dependent = inside | jnp.any(jnp.abs(used) > limit, axis=1)
    s = inverse / jnp.sqrt(jnp.sum(inverse**2, axis=1, keepdims=True))
    s = jnp.where(dependent[:, None], 0, s)
    cosine = jnp.matmul(s, s.T, precision="highest")
    # of two directions that are one up to rounding, only one is lacking
    factor = 1 / jnp.maximum(1 - cosine**2, limit)
    return LeftOut(
        s=s,
        a=jnp.where(eye == 1, 1, 1 + cosine**2 * factor),
        b=jnp.where(eye == 1, 0, factor),
        d=jnp.where(eye == 1, 0, cosine * factor),
        dependent=dependent,
    )


def without_one(sums: PyTree, each: PyTree) -> PyTree:
    """Return the estimates that would be made without each one of the test vectors.

    Args:
        sums: For each `j`, the sum over all `i` of the estimates without `i` and `j`.
        each: For each `i`, the estimate without it.
    """
    count = len(jax.tree.leaves(each)[0])
    return jax.tree.map(lambda a, b: (a - b) / max(count - 1, 1), sums, each)


def error_of(each: PyTree, fewer: PyTree) -> PyTree:
    r"""Return the standard error of a mean of leave-one-out estimates.

    The published $\sqrt{\sum_i (t_i - t)^2 / k (k - 1)}$ takes the $t_i$ for
    independent and falls short: of the part of the variance that comes from `p` test
    vectors together it sees about 1/p. The jackknife
    $\sqrt{(k - 1) / k \sum_j (t_{-j} - t)^2}$ sees p times that part [1]. The geometric
    mean of both is not too small for any mixture of parts (by the inequality of Cauchy
    and Schwarz), and right where one prevails.

    Args:
        each: The estimates $t_i$.
        fewer: The estimates $t_{-j}$ of `without_one`.

    References:
        [1] Efron and Stein (1981). The jackknife estimate of variance. Ann. Statist.
            9(3), 586-596. https://doi.org/10.1214/aos/1176345462
    """

    def error(
        a: Inexact[Array, "k *shape"], b: Inexact[Array, "k *shape"]
    ) -> Inexact[Array, "*shape"]:
        if jnp.iscomplexobj(a):
            return jax.lax.complex(error(a.real, b.real), error(a.imag, b.imag))
        if len(a) == 1:
            return standard_error(a)
        jackknife = (len(b) - 1) * standard_error(b)
        # the root of each, not of the product, which may overflow
        return jnp.sqrt(standard_error(a)) * jnp.sqrt(jackknife)

    return jax.tree.map(error, each, fewer)
