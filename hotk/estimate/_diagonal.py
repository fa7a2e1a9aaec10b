"""The diagonal of an operator: Hutchinson and XDiag."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from hotk._core import RandomKey, Vector, WhileLoop, names_ours
from hotk._prepared import jitted
from hotk.linop import AbstractOperator, loop, space

from ._estimate import Estimate, averaged, mean
from ._probes import (
    check_arguments,
    draw_probes,
    entrywise,
    gram,
    products,
    range_of,
    units,
)
from ._trace import error_of, left_out, with_derivative_of, without_one


@names_ours
def diagonal(
    operator: AbstractOperator,
    key: RandomKey,
    *,
    samples: int = 20,
    method: Literal["xdiag", "hutchinson"] = "xdiag",
    block_size: int | None = None,
) -> Estimate:
    r"""Estimate the diagonal of an operator from its products with random vectors.

    Both methods are unbiased. With `k` samples:

    - `"hutchinson"` [1]: the mean of $\omega_i \odot A \omega_i$ over `k` vectors of
      random signs. `k` products. The squared error of an entry is the sum of the
      squares of the others in its row, over `k`.
    - `"xdiag"` [2]: the exact diagonal on the span of all products but one, and
      Hutchinson's estimate of the rest, averaged over which one is left out. `2 k`
      products. For an operator that is not symmetric the projector stands on its other
      side: no transposed products are needed, but the span should be near that of the
      rows as well.

    At equal products `"xdiag"` is far more accurate where few eigenvalues dominate, and
    has up to three times the error where none does. Its standard error is not that of
    the paper; see `trace`. For the exact diagonal, from up to `n` products, see
    `operator.diagonal()`. Where the space has no more than `2 k` dimensions, `"xdiag"`
    multiplies all unit vectors and is exact.

    Args:
        operator: An operator, symmetric or not.
        key: A random key.
        samples: The number `k` of random vectors.
        method: `"xdiag"` or `"hutchinson"`.
        block_size: The number of products at once; chosen from the program if left
            out.

    Returns:
        An `Estimate` whose value and error are vectors of the space, in the dtypes of
        its leaves. A complex leaf holds the entries of its real parts and those of its
        imaginary parts. The error is NaN where `"xdiag"` cannot tell: with few samples,
        if only a few entries of a vector matter; take more samples, or another key.

    Raises:
        StructureError: If the space has no dimension.
        TypeError: If it is not an operator, or acts on any space, as the identity does.
        ValueError: If a count is not positive, or there is no such method.

    Example:
        >>> f = lambda x: jnp.sum(x) ** 2
        >>> H = hotk.HessianOperator(f, jnp.ones(50))
        >>> found = hotk.estimate.diagonal(H, jax.random.key(0), samples=2)
        >>> found.value[:3].round(3).tolist()
        [2.0, 2.0, 2.0]

    References:
        [1] Bekas, Kokiopoulou and Saad (2007). An estimator for the diagonal of a
            matrix. Appl. Numer. Math. 57(11), 1214-1229.
        [2] Epperly, Tropp and Webber (2024). XTrace: making the most of every sample in
            stochastic trace estimation. SIAM J. Matrix Anal. Appl. 45(1), 1-23.
            Section 2.4. https://arxiv.org/abs/2301.07825
    """
    call = "diagonal(A, key)"
    key = check_arguments(call, operator, key)
    if method not in _METHODS:
        raise ValueError(f"`{call}`: method {method!r} is not one of {list(_METHODS)}.")
    run = _METHODS[method]
    # all unit vectors take no more products than the estimate does
    fits = operator.size <= 2 * samples and not space.has_shards(operator.like)
    if method == "xdiag" and fits:
        run = _exact
    result = loop(operator, run, operator, key, samples, block_size)
    value, error = (
        space.placed(space.narrowed(v, operator.like), operator.like)
        for v in (result.value, result.error)
    )
    return Estimate(value, error, result.products, method)


def _hutchinson(
    while_loop: WhileLoop,
    A: AbstractOperator,
    key: RandomKey,
    samples: int,
    block: int | None,
) -> Estimate:
    del while_loop  # products that do not depend on each other
    probes = draw_probes(key, A.like, count=samples, signs=True)
    each = entrywise(space.widened(probes), products(A, probes, block))
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
    value = _summed(entrywise(space.widened(basis), products(A, basis, block)))
    zero = jax.tree.map(jnp.zeros_like, value)
    return Estimate(value, zero, jnp.asarray(A.size, jnp.int32), "exact")


def _xdiag(
    while_loop: WhileLoop,
    A: AbstractOperator,
    key: RandomKey,
    samples: int,
    block: int | None,
) -> Estimate:
    del while_loop
    probes = draw_probes(key, A.like, count=samples, signs=True)
    other = jax.random.fold_in(key, samples)
    spare = draw_probes(other, A.like, count=samples, signs=False)
    q, r, z, images, unit = range_of(A, probes, block, spare)
    found = _leave_one_out(space.widened(probes), q, r, z, images, A.symmetric)
    value, error = (space.times(unit, a) for a in found)
    return Estimate(value, error, jnp.asarray(2 * samples, jnp.int32), "xdiag")


@jitted(quickly="if small", static_argnums=5)
def _leave_one_out(
    probes: PyTree,
    q: PyTree,
    r: Float[Array, "k k"],
    z: PyTree,
    images: PyTree,
    symmetric: bool,
) -> tuple[Vector, Vector]:
    r"""Return the mean of one unbiased estimate for each test vector left out.

    With the projector $P_i$ on the span of the other products it is
    $\mathrm{diag}(P_i A) + \omega_i \odot (I - P_i) A \omega_i$, or
    $\mathrm{diag}(A P_i) + \omega_i \odot A (I - P_i) \omega_i$ for an operator that is
    not symmetric. The second term is one of `rest + one_ij u_i + two_ij u_j`, without
    test vectors `i` and `j`, for vectors `u` of the span.

    Of few entries vectors of signs may be dependent before their products span the
    range. The rows of `z` where `q` is zero, products of normal vectors, tell: the
    error is NaN then, as no estimate without one of them differs.
    """
    s, a, b, d, _ = left_out(r)
    empty = jnp.diag(r) == 0
    missed = _leaves_span(q, z, empty) if symmetric else jnp.zeros((), bool)
    z = jax.vmap(space.choose)(empty, jax.tree.map(jnp.zeros_like, z), z)
    plus, minus, combined = space.plus, space.minus, space.combination
    to_each = jax.vmap(plus, in_axes=(None, 0))
    qs, zs = combined(s, q), combined(s, z)
    whole, mixed = _summed(entrywise(q, z)), entrywise(qs, zs)
    w = gram(q, probes).T
    if symmetric:
        # A w_i = Q r_i, and r_i is orthogonal to all s_j but its own
        own = jnp.sum(s * r.T, axis=1, keepdims=True)
        u, one, two = qs, a * own, -d * own
        rest = jax.tree.map(jnp.zeros_like, q)
    else:
        own = jnp.sum(s * w, axis=1, keepdims=True)
        sw = jnp.matmul(w, s.T, precision="highest")
        u, one, two = zs, a * own - d * sw, b * sw - d * own
        rest = entrywise(probes, minus(combined(r.T, q), combined(w, z)))
    along = entrywise(probes, u)
    second_term = plus(rest, jax.vmap(space.times)(jnp.diag(one), along))
    each = to_each(whole, minus(second_term, mixed))

    # the sums over `i` of the same without `i` and `j`
    total = jax.tree.map(lambda a, b: len(r) * a + b, whole, _summed(rest))
    lost = plus(combined(a.T, mixed), jax.vmap(space.times)(jnp.sum(b, axis=0), mixed))
    pairs = plus(entrywise(combined(d, qs), zs), entrywise(qs, combined(d, zs)))
    second_terms = plus(combined(one.T, along), entrywise(combined(two.T, probes), u))
    sums = to_each(total, minus(plus(second_terms, pairs), lost))
    error = error_of(each, without_one(sums, each))
    error = jax.tree.map(lambda a: jnp.where(missed, jnp.nan, a), error)
    outside = combined(gram(q, images).T, q) if symmetric else combined(w, z)
    left = entrywise(probes, minus(images, outside))
    linear = plus(whole, mean(left))
    return with_derivative_of(linear, mean(each), jnp.any(empty)), error


def _leaves_span(q: PyTree, z: PyTree, empty: Bool[Array, " k"]) -> Bool[Array, ""]:
    """Whether products of vectors where `q` is zero are not in its span."""
    q, z = jax.lax.stop_gradient((q, z))
    rest = space.minus(z, space.combination(gram(q, z).T, q))
    sizes, whole = jax.vmap(space.norm)(rest), jax.vmap(space.norm)(z)
    return jnp.any(empty & (sizes > 1e3 * jnp.finfo(whole.dtype).eps * whole))


def _summed(vectors: PyTree) -> Vector:
    return jax.tree.map(lambda a: jnp.sum(a, axis=0), vectors)


_METHODS: dict[str, Callable[..., Estimate]] = {
    "xdiag": _xdiag,
    "hutchinson": _hutchinson,
}
