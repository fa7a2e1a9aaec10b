"""Gauss quadrature of spectra by the Lanczos iteration, several probes in step."""

import math
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
    fori_loop,
    in_trace,
    progress,
)
from hotk.linop import AbstractOperator, loop, space
from hotk.prepared import jitted

from ._probes import orthogonalized, products


# The memory of all bases at once, in bytes, unless the number of probes is given.
_BYTES = 256 << 20


class Rule(NamedTuple):
    """Rules of quadrature, one for each probe.

    Attributes:
        nodes: The nodes.
        weights: Their weights.
        products: The number of products that they took.
    """

    nodes: Float[Array, "samples steps"]
    weights: Float[Array, "samples steps"]
    products: Int[Array, ""]


class State(NamedTuple):
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


def quadrature(
    operator: AbstractOperator,
    key: RandomKey,
    samples: int,
    steps: int,
    block: int | None,
    show: bool,
) -> Rule:
    """Return nodes and weights for each of several random starts, and the products.

    Nodes and weights are those of Gauss's rule for the spectral measure of the start:
    the eigenvalues of the projected matrix and the squared first entries of its
    eigenvectors [1]. The start is uniform on the sphere, so that the mean over starts
    is the normalized trace.

    References:
        [1] Golub and Welsch (1969). Calculation of Gauss quadrature rules. Math. Comp.
            23, 221-230.
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
) -> Rule:
    dtype = space.scalar_dtype(A.like)

    def window(s: tuple[Int[Array, ""], Rule]) -> tuple[Int[Array, ""], Rule]:
        i, rule = s
        rows = starts[i] + jnp.arange(block)
        state = _initial_state(keys[rows], A.like, steps)
        unfinished = lambda s: (s.j < steps) & s.running
        step = lambda s: _step(while_loop, A, s)
        if fixed:
            maybe = lambda _, s: cond(unfinished(s), step, lambda s: s, s)
            end = fori_loop(0, steps, maybe, state)
        else:
            end = while_loop(unfinished, step, state)
        return i + 1, _with_rows(rule, rows, end, block * end.j)

    zeros = jnp.zeros((len(keys), steps), dtype)
    zero = jnp.zeros((), jnp.int32)
    state = zero, Rule(zeros, zeros, zero)
    if fixed:
        run = jax.checkpoint(window)
        return fori_loop(0, len(starts), lambda _, s: run(s), state)[1]
    return while_loop(lambda s: s[0] < len(starts), window, state)[1]


def _run_with_bar(
    operator: AbstractOperator, keys: Array, starts: list[int], steps: int, block: int
) -> Rule:
    """Do the same with a progress bar: one compiled step after the other."""
    zeros = jnp.zeros((len(keys), steps), space.scalar_dtype(operator.like))
    rule = Rule(zeros, zeros, jnp.zeros((), jnp.int32))
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
            rule = _with_rows(rule, rows, state, count)
            state, count = None, 0
    return rule


def _with_rows(
    rule: Rule, rows: Int[Array, " block"], end: State, count: int | Int[Array, ""]
) -> Rule:
    nodes, weights = _rule(end)
    return Rule(
        rule.nodes.at[rows].set(nodes),
        rule.weights.at[rows].set(weights),
        rule.products + count,
    )


@jitted(quickly="if small", static_argnums=2)
def _initial_state(keys: Array, like: Vector, steps: int) -> State:
    def basis(key: RandomKey) -> PyTree:
        v = space.random(key, like)
        v = space.times(1 / space.norm(v), v)
        return space.put(space.basis(v, steps + 1), 0, v)

    zeros = jnp.zeros((len(keys), steps), space.scalar_dtype(like))
    return State(
        j=jnp.zeros((), jnp.int32),
        basis=jax.vmap(basis)(keys),
        alpha=zeros,
        beta=zeros,
        running=jnp.ones((), bool),
    )


def _step(while_loop: WhileLoop, A: AbstractOperator, state: State) -> State:
    del while_loop  # one product for each probe
    vectors = jax.vmap(space.take, in_axes=(0, None))(state.basis, state.j)
    return _grown(state, products(A, vectors, len(state.alpha)))


@jitted(quickly="if small")
def _grown(state: State, images: PyTree) -> State:
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
    return State(
        j=j + 1,
        basis=bases,
        alpha=state.alpha.at[:, j].set(alpha),
        beta=state.beta.at[:, j].set(beta),
        running=~jnp.all(beta == 0),
    )


@jitted(quickly="if small")
def _rule(state: State) -> tuple[Array, Array]:
    """Return the nodes and weights of the projected matrices."""

    def rule(
        alpha: Float[Array, " steps"], beta: Float[Array, " steps"]
    ) -> tuple[Float[Array, " steps"], Float[Array, " steps"]]:
        nonzero = jnp.append(jnp.ones((), bool), beta[:-1] != 0)
        reached = jnp.cumsum((~nonzero).astype(jnp.int32)) == 0
        # beyond the Krylov space: a value inside of the spectrum, of weight zero, or
        # the smallest node would be 0 for a positive definite operator
        diagonal = jnp.where(reached, alpha, alpha[0])
        matrix = jnp.diag(diagonal) + jnp.diag(beta[:-1], 1) + jnp.diag(beta[:-1], -1)
        unit = space.power_of_size(matrix)  # of gaps as well
        nodes, weights = _gauss(matrix / unit)
        return unit * nodes, weights

    return jax.vmap(rule)(state.alpha, state.beta)


@jax.custom_jvp
def _gauss(
    matrix: Float[Array, "steps steps"],
) -> tuple[Float[Array, " steps"], Float[Array, " steps"]]:
    nodes, vectors = jnp.linalg.eigh(matrix)
    return nodes, vectors[0] ** 2


# that of `eigh` divides by differences, also of nodes beyond the Krylov space, which
# coincide: their weights are zero, whichever vectors they have
@_gauss.defjvp
def _(primals: tuple[Array], tangents: tuple[Array]) -> tuple[PyTree, PyTree]:
    nodes, vectors = jnp.linalg.eigh(*primals)
    turned = jnp.linalg.multi_dot([vectors.T, *tangents, vectors], precision="highest")
    gaps = nodes[None] - nodes[:, None]
    slopes = jnp.where(gaps == 0, 0, turned / jnp.where(gaps == 0, 1, gaps))
    first = vectors[0]
    moved = 2 * first * jnp.matmul(first, slopes, precision="highest")
    return (nodes, first**2), (jnp.diagonal(turned), moved)
