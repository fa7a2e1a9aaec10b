"""Gauss quadrature of spectra by the Lanczos iteration, several probes in step."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from hotk._core import (
    RandomKey,
    Scalar,
    Tracer,
    Vector,
    WhileLoop,
    cond,
    differs_along,
    fori_loop,
    in_trace,
    manual_axes,
    progress,
)
from hotk._prepared import jitted
from hotk.linop import AbstractOperator, loop, space

from ._probes import orthogonalized, products


# The memory of all bases at once, in bytes, unless the number of probes is given.
_BYTES = 256 << 20


class Projected(NamedTuple):
    """The projected matrices, one for each probe.

    Attributes:
        alpha: Their diagonals. Beyond an exhausted Krylov space they go on with the
            first entry, decoupled: a value inside of the spectrum, of weight zero.
        beta: What stands beside the diagonals.
        products: The number of products that they took.
    """

    alpha: Float[Array, "samples steps"]
    beta: Float[Array, "samples steps-1"]
    products: Int[Array, ""]


class ProbesState(NamedTuple):
    """The state of the Lanczos iterations of several probes.

    Attributes:
        j: The number of steps.
        basis: One basis for each probe; zero beyond the vectors that there are.
        alpha: The diagonals of the projected matrices.
        beta: What stands beside the diagonals.
        running: Whether one of the Krylov spaces is not exhausted yet.
    """

    j: Int[Array, ""]
    basis: PyTree
    alpha: Float[Array, "block steps"]
    beta: Float[Array, "block steps"]
    running: Bool[Array, ""]


def projected(
    operator: AbstractOperator,
    key: RandomKey,
    samples: int,
    steps: int,
    block: int | None,
    show: bool,
) -> Projected:
    """Return the projected matrix of each of several random starts, and the products.

    The start is uniform on the sphere, so that the mean of a form of it over starts is
    the normalized trace.
    """
    # A derivative in reverse mode keeps the basis of each step, and needs a number of
    # them that is known. Whether one is taken a trace does not tell.
    traced = in_trace() or any(isinstance(a, Tracer) for a in jax.tree.leaves(operator))
    if block is None:
        leaves = jax.tree.leaves(jax.eval_shape(space.widened, operator.like))
        size = sum(a.size * a.dtype.itemsize for a in leaves) * (steps + 1)
        size *= steps if traced else 1
        block = max(1, _BYTES // max(size, 1))
    windows = math.ceil(samples / min(block, samples))
    # windows of one size: the last one may overlap the one before it
    block = math.ceil(samples / windows)
    starts = [min(i * block, samples - block) for i in range(windows)]
    keys = jax.random.split(key, samples)
    if not show:
        fixed = traced and not operator.on_host
        inputs = operator, keys, jnp.array(starts), steps, block, fixed
        return loop(operator, _all, *inputs)
    if isinstance(key, Tracer) or in_trace():
        raise ValueError(
            "`progress=True`: there is no progress bar inside of a transformation."
        )
    return _run_with_bar(operator, keys, starts, steps, block)


def _all(
    while_loop: WhileLoop,
    A: AbstractOperator,
    keys: Array,
    starts: Int[Array, " windows"],
    steps: int,
    block: int,
    fixed: bool,
) -> Projected:
    dtype = space.scalar_dtype(A.like)

    def window(s: tuple[Int[Array, ""], Projected]) -> tuple[Int[Array, ""], Projected]:
        i, found = s
        rows = starts[i] + jnp.arange(block)
        state = _initial_state(keys[rows], A.like, steps)
        unfinished = lambda s: (s.j < steps) & s.running
        step = lambda s: _step(while_loop, A, s)
        if fixed:
            end = fori_loop(0, steps, lambda _, s: _if(unfinished(s), step, s), state)
        else:
            end = while_loop(unfinished, step, state)
        return i + 1, _with_rows(found, rows, end, block * end.j)

    zeros = jnp.zeros((len(keys), steps), dtype)
    zero = jnp.zeros((), jnp.int32)
    state = zero, Projected(zeros, zeros[:, 1:], zero)
    if fixed:
        run = jax.checkpoint(window)
        return fori_loop(0, len(starts), lambda _, s: run(s), state)[1]
    return while_loop(lambda s: s[0] < len(starts), window, state)[1]


def _if(
    unfinished: Bool[Array, ""],
    step: Callable[[ProbesState], ProbesState],
    s: ProbesState,
) -> ProbesState:
    """Go one step on, if there is one.

    Devices whose Krylov spaces are exhausted at different steps take all of them: in
    reverse mode a step may add over the devices, and those that leave it out would be
    waited for. A step more changes nothing, and is not counted.
    """
    if not differs_along(jax.typeof(unfinished), manual_axes()):
        return cond(unfinished, step, lambda s: s, s)
    return jax.tree.map(lambda a, b: jnp.where(unfinished, a, b), step(s), s)


def _run_with_bar(
    operator: AbstractOperator, keys: Array, starts: list[int], steps: int, block: int
) -> Projected:
    """Do the same with a progress bar: one compiled step after the other."""
    zeros = jnp.zeros((len(keys), steps), space.scalar_dtype(operator.like))
    found = Projected(zeros, zeros[:, 1:], jnp.zeros((), jnp.int32))
    with_bar = progress(range(len(starts) * steps), "Lanczos steps", show=True)
    state, count = None, 0
    for tick in with_bar:
        number, j = divmod(tick, steps)
        rows = starts[number] + jnp.arange(block)
        if state is None:
            state = _initial_state(keys[rows], operator.like, steps)
        if bool(state.running):  # else the ticks go on, so that the bar is filled
            state = loop(operator, _step, operator, state)
            count += block
        if j == steps - 1:
            found = _with_rows(found, rows, state, count)
            state, count = None, 0
    return found


def _with_rows(
    found: Projected,
    rows: Int[Array, " block"],
    end: ProbesState,
    count: int | Int[Array, ""],
) -> Projected:
    beta = end.beta[:, :-1]
    coupled = jnp.pad(beta != 0, ((0, 0), (1, 0)), constant_values=True)
    reached = jnp.cumsum(~coupled, axis=1) == 0
    alpha = jnp.where(reached, end.alpha, end.alpha[:, :1])
    return Projected(
        found.alpha.at[rows].set(alpha),
        found.beta.at[rows].set(jnp.where(reached[:, 1:], beta, 0)),
        found.products + count,
    )


@jitted(quickly="if small", static_argnums=2)
def _initial_state(keys: Array, like: Vector, steps: int) -> ProbesState:
    def basis(key: RandomKey) -> PyTree:
        v = space.random(key, like)
        v = space.times(1 / space.norm(v), v)
        return space.put(space.basis(v, steps + 1), 0, v)

    zeros = jnp.zeros((len(keys), steps), space.scalar_dtype(like))
    return ProbesState(
        j=jnp.zeros((), jnp.int32),
        basis=jax.vmap(basis)(keys),
        alpha=zeros,
        beta=zeros,
        running=jnp.ones((), bool),
    )


def _step(
    while_loop: WhileLoop, A: AbstractOperator, state: ProbesState
) -> ProbesState:
    del while_loop  # one product for each probe
    vectors = jax.vmap(space.take, in_axes=(0, None))(state.basis, state.j)
    return _grown(state, products(A, vectors, len(state.alpha)))


@jitted(quickly="if small")
def _grown(state: ProbesState, images: PyTree) -> ProbesState:
    """Go one step on with the products of the newest vectors.

    Where a Krylov space is exhausted, the next vector is zero, and so is all after it.
    """
    j = state.j

    def grow(vectors: PyTree, image: Vector) -> tuple[PyTree, Scalar, Scalar]:
        # derivatives of the norms have their squares
        unit = space.power_of_size(image)
        image = space.times(1 / unit, image)
        alpha = unit * space.inner(space.take(vectors, j), image)
        w, _ = orthogonalized(vectors, image)
        size = jax.lax.stop_gradient(space.norm(w))
        # a vector in the span of the basis leaves rounding errors, not a new direction
        exhausted = size <= 10 * jnp.finfo(size.dtype).eps * space.norm(image)
        # the norm of zero has no derivative
        w = space.choose(exhausted, space.take(vectors, 0), w)
        beta = space.norm(w)
        w = space.times(jnp.where(exhausted, 0, 1 / jnp.where(exhausted, 1, beta)), w)
        beta = unit * jnp.where(exhausted, 0, beta)
        return space.put(vectors, j + 1, w), alpha, beta

    bases, alpha, beta = jax.vmap(grow)(state.basis, images)
    return ProbesState(
        j=j + 1,
        basis=bases,
        alpha=state.alpha.at[:, j].set(alpha),
        beta=state.beta.at[:, j].set(beta),
        running=~jnp.all(beta == 0),
    )
