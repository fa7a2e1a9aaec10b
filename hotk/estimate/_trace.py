"""The trace of an operator: Hutchinson, Hutch++ and XTrace."""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Inexact, PyTree

from hotk._core import RandomKey, Scalar, WhileLoop, names_ours
from hotk._prepared import jitted
from hotk.linop import AbstractOperator, loop, space

from ._estimate import Estimate, averaged, mean, standard_error
from ._probes import check_arguments, draw_probes, gram, products, range_of, units


# Leaving one test vector out, or two, without multiplying anew. The projector on the
# span of the products $A \omega_j = Q r_j$ but those of some test vectors is $Q M Q^T$.
# Without that of `i` it is $M_i = I - s_i s_i^T$, where $s_i$ is the normalized row `i`
# of $R^{-1}$: orthogonal to all columns of R but its own. Without those of `i` and `j`
# it lacks the span of $s_i$ and $s_j$.


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


@names_ours
def trace(
    operator: AbstractOperator,
    key: RandomKey,
    *,
    samples: int = 20,
    method: Literal["xtrace", "hutch++", "hutchinson"] = "xtrace",
    block_size: int | None = None,
) -> Estimate:
    r"""Estimate the trace of an operator from its products with random vectors.

    All methods are unbiased. With `k` samples:

    - `"hutchinson"` [1]: the mean of $\omega_i^T A \omega_i$ over `k` vectors of random
      signs. `k` products; the error falls as $k^{-1/2}$.
    - `"hutch++"` [2]: the exact trace on the span of `k` products, and Hutchinson's
      estimate on its complement from `k` other vectors. `3 k` products; the error falls
      as $k^{-1}$ for positive semidefinite operators.
    - `"xtrace"` [3]: the same on the span of all products but one, averaged over which
      one is left out, with normalized test vectors. `2 k` products; the error falls as
      fast as the spectrum does. At equal products it is far smaller than Hutchinson's
      where few eigenvalues dominate, and up to twice as large where none does.

    `"hutch++"` and `"xtrace"` hold four sets of `k` vectors. Where they would take as
    many products as the space has dimensions, they multiply all unit vectors instead:
    the result is exact, its error zero. The standard error of `"xtrace"` is not that of
    the paper, which treats dependent estimates as independent and covers the truth too
    rarely. It is the geometric mean of that error and of the jackknife's, which needs
    no more products.

    Args:
        operator: An operator, symmetric or not.
        key: A random key.
        samples: The number `k` of random vectors.
        method: `"xtrace"`, `"hutch++"` or `"hutchinson"`.
        block_size: The number of products at once; chosen from the program if left
            out.

    Returns:
        An `Estimate` of the trace: a number.

    Raises:
        StructureError: If the space has no dimension.
        TypeError: If it is not an operator, or acts on any space, as the identity does.
        ValueError: If a count is not positive, or there is no such method.

    Example:
        >>> f = lambda x: jnp.sum(0.8 ** jnp.arange(100) * x**2) / 2
        >>> H = hotk.HessianOperator(f, jnp.ones(100))
        >>> found = hotk.estimate.trace(H, jax.random.key(0))
        >>> bool(abs(found.value - 5.0) < 3 * found.error), found.products.item()
        (True, 40)

    References:
        [1] Hutchinson (1990). A stochastic estimator of the trace of the influence
            matrix for Laplacian smoothing splines. Commun. Stat. Simul. Comput. 19(2).
        [2] Meyer, Musco, Musco and Woodruff (2021). Hutch++: optimal stochastic trace
            estimation. SIAM SOSA, 142-155. Algorithm 1. https://arxiv.org/abs/2010.09649
        [3] Epperly, Tropp and Webber (2024). XTrace: making the most of every sample in
            stochastic trace estimation. SIAM J. Matrix Anal. Appl. 45(1), 1-23.
            Algorithm 1.2. https://arxiv.org/abs/2301.07825
    """
    call = "trace(A, key)"
    key = check_arguments(call, operator, key)
    if method not in _METHODS:
        raise ValueError(f"`{call}`: method {method!r} is not one of {list(_METHODS)}.")
    run = _METHODS[method]
    # all unit vectors take no more products than the estimate does
    fits = operator.size <= _PRODUCTS.get(method, 0) * samples
    if fits and not space.has_shards(operator.like):
        run = _exact
    result = loop(operator, run, operator, key, samples, block_size)
    return Estimate(result.value, result.error, result.products, method)


def _hutchinson(
    while_loop: WhileLoop,
    A: AbstractOperator,
    key: RandomKey,
    samples: int,
    block: int | None,
) -> Estimate:
    del while_loop  # products that do not depend on each other
    probes = draw_probes(key, A.like, count=samples, signs=True)
    each = jax.vmap(space.inner)(space.widened(probes), products(A, probes, block))
    return averaged(each, samples, "hutchinson")


def _exact(
    while_loop: WhileLoop,
    A: AbstractOperator,
    key: RandomKey,
    samples: int,
    block: int | None,
) -> Estimate:
    del while_loop, key, samples
    basis = units(A.like)
    entries = jax.vmap(space.inner)(space.widened(basis), products(A, basis, block))
    value = jnp.sum(entries)
    count = jnp.asarray(A.size, jnp.int32)
    return Estimate(value, jnp.zeros_like(value), count, "exact")


def _hutch_plus_plus(
    while_loop: WhileLoop,
    A: AbstractOperator,
    key: RandomKey,
    samples: int,
    block: int | None,
) -> Estimate:
    del while_loop
    sketch_key, probe_key = jax.random.split(key)
    # a normal sketch has dependent images only if it found the whole range
    sketch = draw_probes(sketch_key, A.like, count=samples, signs=False)
    q, _, z, _, unit = range_of(A, sketch, block)
    probes = space.widened(draw_probes(probe_key, A.like, count=samples, signs=True))
    probes = _projected(probes, q)
    rest = jax.vmap(space.inner)(probes, products(A, probes, block))
    each = unit * jnp.sum(jax.vmap(space.inner)(q, z)) + rest
    return averaged(each, 3 * samples, "hutch++")


@jitted(quickly="if small")
def _projected(vectors: PyTree, q: PyTree) -> PyTree:
    return space.minus(vectors, space.combination(gram(q, vectors).T, q))


def _xtrace(
    while_loop: WhileLoop,
    A: AbstractOperator,
    key: RandomKey,
    samples: int,
    block: int | None,
) -> Estimate:
    del while_loop
    probes = draw_probes(key, A.like, count=samples, signs=False)
    q, r, z, images, unit = range_of(A, probes, block)
    value, error = _leave_one_out(space.widened(probes), q, r, z, images)
    count = jnp.asarray(2 * samples, jnp.int32)
    return Estimate(unit * value, unit * error, count, "xtrace")


@jitted(quickly="if small")
def _leave_one_out(
    probes: PyTree, q: PyTree, r: Float[Array, "k k"], z: PyTree, images: PyTree
) -> tuple[Scalar, Scalar]:
    r"""Return the mean of one unbiased estimate for each test vector left out.

    With the projector $P_i$ on the span of the other products it is
    $\mathrm{tr}(P_i A) + c_i\, \omega_i^T (I - P_i) A (I - P_i) \omega_i$, where $c_i$
    gives $(I - P_i) \omega_i$ the squared length that it has in the mean. All of it
    comes from inner products: of Q with the test vectors (W), with A Q (H), and of A Q
    with the test vectors (T). Pairs `i, j` stand for estimates without both.
    """
    n = space.dimension(jax.tree.map(lambda v: v[0], probes))
    s, a, b, d, dependent = left_out(r)
    w, h, t = gram(q, probes).T, gram(q, z), gram(z, probes).T
    matmul = functools.partial(jnp.matmul, precision="highest")
    shs = matmul(matmul(s, h), s.T)
    inside = jnp.trace(h) - a * jnp.diag(shs)[:, None] - b * jnp.diag(shs)[None]
    inside += d * (shs + shs.T)
    # the parts of the test vectors in the span, [i, j, :]
    sw, g = matmul(w, s.T), jnp.sum(s * w, axis=1, keepdims=True)
    one, two = a * g - d * sw, b * sw - d * g
    x = w[:, None] - one[..., None] * s[:, None] - two[..., None] * s[None]
    form = one * jnp.sum(s * r.T, axis=1, keepdims=True)
    form += jnp.sum((matmul(x, h) - t[:, None]) * x, axis=2)
    outside = jax.vmap(space.inner)(probes, probes)[:, None] - jnp.sum(x**2, axis=2)
    lacking = (~dependent).astype(r.dtype)
    others = (1 - jnp.eye(len(s), dtype=r.dtype)) * lacking[None]
    rank = jnp.sum((jnp.diag(r) > 0).astype(r.dtype)) - lacking[:, None] - others
    scale = (n - rank) / jnp.maximum(outside, jnp.finfo(r.dtype).tiny)
    pairs = inside + jnp.where(dependent[:, None], 0, scale * form)
    each = jnp.diag(pairs)
    error = error_of(each, without_one(jnp.sum(pairs, axis=0), each))
    apart = space.minus(probes, space.combination(w, q))
    rest = space.minus(images, space.combination(w, z))
    linear = jnp.trace(h) + mean(jax.vmap(space.inner)(apart, rest))
    return with_derivative_of(linear, mean(each), jnp.any(jnp.diag(r) == 0)), error


_METHODS: dict[str, Callable[..., Estimate]] = {
    "xtrace": _xtrace,
    "hutch++": _hutch_plus_plus,
    "hutchinson": _hutchinson,
}
# Products for each sample, of the methods that hold vectors instead of sums.
_PRODUCTS = {"xtrace": 2, "hutch++": 3}
