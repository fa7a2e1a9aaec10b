"""Gauss quadrature of spectra by the Lanczos iteration, several probes in step."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from hotk._core import Tracer, in_trace, progress
from hotk.linop import loop, space
from hotk.prepared import jitted

from ._probes import orthogonalized, products


# Bases of this many bytes are held at once unless it is said how many probes.
_BYTES = 256 << 20


def quadrature(
    operator: Any, key: Any, samples: int, steps: int, block: int | None, show: bool
) -> tuple[Any, Any, Any]:
    """Return nodes and weights for each of several random starts, and the products.

    Nodes and weights are those of Gauss's rule for the spectral measure of the start:
    the eigenvalues of the projected matrix and the squared first entries of its
    eigenvectors [1]. The start is uniform on the sphere, so that the mean over starts
    is the normalized trace.

    References:
        [1] Golub and Welsch (1969). Calculation of Gauss quadrature rules. Math. Comp.
            23, 221-230.
    """
    if block is None:
        leaves = jax.tree.leaves(jax.eval_shape(space.widened, operator.like))
        size = sum(a.size * a.dtype.itemsize for a in leaves) * (steps + 1)
        block = max(1, _BYTES // max(size, 1))
    windows = math.ceil(samples / min(block, samples))
    # windows of one size: the last one may overlap the one before it
    block = math.ceil(samples / windows)
    starts = [min(i * block, samples - block) for i in range(windows)]
    keys = jax.random.split(key, samples)
    if not show:
        return loop(operator, _all, operator, keys, jnp.array(starts), steps, block)
    if isinstance(key, Tracer) or in_trace():
        raise ValueError(
            "`progress=True`: inside of a transformation there is no progress to show."
        )
    return _shown(operator, keys, starts, steps, block)


def _all(
    while_loop: Any, A: Any, keys: Any, starts: Any, steps: int, block: int
) -> Any:
    dtype = space.scalar_dtype(A.like)

    def window(s: Any) -> Any:
        i, nodes, weights, count = s
        here = starts[i] + jnp.arange(block)
        state = _begun(keys[here], A.like, steps)
        going = lambda s: (s["j"] < steps) & s["running"]
        end = while_loop(going, lambda s: _step(while_loop, A, s), state)
        values, shares = _rule(end)
        count += block * end["j"]
        return i + 1, nodes.at[here].set(values), weights.at[here].set(shares), count

    blank = jnp.zeros((len(keys), steps), dtype)
    zero = jnp.zeros((), jnp.int32)
    state = (zero, blank, blank, zero)
    return while_loop(lambda s: s[0] < len(starts), window, state)[1:]


def _shown(
    operator: Any, keys: Any, starts: list[int], steps: int, block: int
) -> tuple[Any, Any, Any]:
    """Do the same with a bar: one compiled step after the other."""
    nodes = jnp.zeros((len(keys), steps), space.scalar_dtype(operator.like))
    weights, count, state = nodes, 0, {}
    ticks = progress(range(len(starts) * steps), "Lanczos steps", show=True)
    for tick in ticks:
        number, j = divmod(tick, steps)
        here = starts[number] + jnp.arange(block)
        if j == 0:
            state = _begun(keys[here], operator.like, steps)
        if bool(state["running"]):
            state = loop(operator, _step, operator, state)
            count += block
        if j == steps - 1:
            values, shares = _rule(state)
            nodes, weights = nodes.at[here].set(values), weights.at[here].set(shares)
    return nodes, weights, jnp.asarray(count, jnp.int32)


@jitted(static_argnums=2)
def _begun(keys: Any, like: Any, steps: int) -> Any:
    def one(key: Any) -> Any:
        v = space.random(key, like)
        v = space.times(1 / space.norm_of_each(v), v)
        return space.put(space.basis(v, steps + 1), 0, v)

    blank = jnp.zeros((len(keys), steps), space.scalar_dtype(like))
    return {
        "j": jnp.zeros((), jnp.int32),
        "basis": jax.vmap(one)(keys),
        "alpha": blank,
        "beta": blank,
        "running": jnp.ones((), bool),
    }


def _step(while_loop: Any, A: Any, state: Any) -> Any:
    del while_loop  # one product for each probe
    vectors = jax.vmap(space.take, in_axes=(0, None))(state["basis"], state["j"])
    return _absorbed(state, products(A, vectors, len(state["alpha"])))


@jitted
def _absorbed(state: Any, images: Any) -> Any:
    """Go one step on with the products of the newest vectors.

    Where a Krylov space is exhausted, the next vector is zero, and so is all after it.
    """
    j = state["j"]

    def one(vectors: Any, image: Any) -> Any:
        alpha = space.inner(space.take(vectors, j), image)
        w, _ = orthogonalized(vectors, image)
        beta = space.norm_of_each(w)
        # what rounding leaves of a vector inside of the space is no direction
        exhausted = beta <= 10 * jnp.finfo(beta.dtype).eps * space.norm_of_each(image)
        w = space.times(jnp.where(exhausted, 0, 1 / jnp.where(exhausted, 1, beta)), w)
        return space.put(vectors, j + 1, w), alpha, jnp.where(exhausted, 0, beta)

    bases, alpha, beta = jax.vmap(one)(state["basis"], images)
    return {
        "j": j + 1,
        "basis": bases,
        "alpha": state["alpha"].at[:, j].set(alpha),
        "beta": state["beta"].at[:, j].set(beta),
        "running": ~jnp.all(beta == 0),
    }


@jitted
def _rule(state: Any) -> tuple[Any, Any]:
    """Return the nodes and weights of the projected matrices."""

    def one(alpha: Any, beta: Any) -> tuple[Any, Any]:
        going = jnp.append(jnp.ones((), bool), beta[:-1] != 0)
        reached = jnp.cumsum((~going).astype(jnp.int32)) == 0
        # beyond the Krylov space: a value inside of the spectrum, of weight zero
        diagonal = jnp.where(reached, alpha, alpha[0])
        matrix = jnp.diag(diagonal) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1)
        nodes, vectors = jnp.linalg.eigh(matrix)
        return nodes, vectors[0] ** 2

    return jax.vmap(one)(state["alpha"], state["beta"])
