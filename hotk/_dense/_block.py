"""How many directions are pushed through a linear map at once, and unit directions."""

import contextlib
import contextvars
import math
from collections.abc import Callable, Hashable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree, Shaped

from hotk._core import (
    Atom,
    Jaxpr,
    JaxprEqn,
    Point,
    ShapedArray,
    Tangent,
    Var,
    called_program,
    traits_of,
)

from ._flat import refuse_shards


def size_of(x: PyTree) -> int:
    """Count the numbers in a tree of arrays."""
    return sum(leaf.size for leaf in jax.tree.leaves(x))


def unit(x: Point, index: int | Int[Array, ""], scale: complex = 1.0) -> Tangent:
    """Return the direction with `scale` at one flat index of `x` and zero elsewhere.

    An index beyond the end gives the zero direction. A complex scale reaches the
    complex leaves only.

    Raises:
        StructureError: If `x` has a leaf of which this device holds only a part.
    """
    refuse_shards(x)
    leaves, treedef = jax.tree.flatten(x)
    parts, offset = [], 0
    for leaf in leaves:
        if not leaf.size:
            parts.append(jnp.zeros_like(leaf))
            continue
        here = jax.lax.iota(jnp.int32, leaf.size) == index - offset
        offset += leaf.size
        real = not jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        if real and isinstance(scale, complex) and scale.imag:
            parts.append(jnp.zeros(leaf.shape, leaf.dtype))
        else:
            value = jnp.asarray(scale.real if real else scale, leaf.dtype)
            zero = jnp.zeros((), leaf.dtype)
            parts.append(jnp.where(here, value, zero).reshape(leaf.shape))
    return treedef.unflatten(parts)


def over_basis(
    each: Callable[[Int[Array, ""]], PyTree], n: int, block: int | None
) -> PyTree:
    """Evaluate `each(index)` for the indices 0 to n-1, a block of them at once.

    Args:
        each: From one index, a tracer, to a tree of arrays.
        n: Number of indices.
        block: How many at once; `None` or `n` means all.

    Returns:
        The results with one leading axis of length `n`.
    """
    if block is None or block >= n:
        return jax.vmap(each)(jnp.arange(n, dtype=jnp.int32))
    count = math.ceil(n / block)
    block = math.ceil(n / count)
    starts = jnp.arange(count, dtype=jnp.int32) * block

    def one_block(start: Int[Array, ""]) -> PyTree:
        return jax.vmap(each)(start + jnp.arange(block, dtype=jnp.int32))

    stacked = jax.lax.map(one_block, starts)
    return jax.tree.map(lambda a: a.reshape(count * block, *a.shape[2:])[:n], stacked)


def split_rows(rows: Shaped[Array, "n ..."], x: Point) -> list[Array]:
    """Cut an array with a leading axis over all of `x` into one piece a leaf of `x`."""
    pieces, offset = [], 0
    for leaf in jax.tree.leaves(x):
        piece = jax.lax.slice_in_dim(rows, offset, offset + leaf.size, axis=0)
        pieces.append(piece.reshape(leaf.shape + rows.shape[1:]))
        offset += leaf.size
    return pieces


def is_complex(x: PyTree) -> bool:
    """Whether any leaf is complex."""
    return any(
        jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf in jax.tree.leaves(x)
    )


# Bytes of intermediates that a block may fill: measured best within 20 % on 16
# functions.
_CACHE_BYTES = 4 << 20
_SMALLEST = 8
# A batch of kernels makes a grouped convolution, slow on CPUs beyond a few.
_CONVOLUTION = 4
# What an array with a symbolic size is taken for.
_SYMBOLIC = 1 << 20

_CHOSEN: contextvars.ContextVar[list[int] | None] = contextvars.ContextVar(
    "hotk_blocks", default=None
)


@contextlib.contextmanager
def recorded_blocks() -> Iterator[list[int]]:
    """Collect the block sizes that are chosen inside, the smallest one telling."""
    chosen: list[int] = []
    token = _CHOSEN.set(chosen)
    try:
        yield chosen
    finally:
        _CHOSEN.reset(token)


def choose_block(push: Callable[[Tangent], PyTree], x: PyTree) -> int:
    """Choose how many directions at once from the program of one.

    Where all is elementwise, nothing is written out and all directions go at once.
    Otherwise a block fills the cache with what one direction writes, or is as large as
    what every block reads anew, such as a data matrix.

    Args:
        push: The linear map of one direction.
        x: A tree with the shapes of the direction.

    Returns:
        A number of directions, from 1 to the size of `x`.
    """
    n = size_of(x)
    block = n
    if n > _SMALLEST:
        traffic = _traffic(_jaxpr(push, x))
        if traffic.written:
            block = _block(n, traffic)
    chosen = _CHOSEN.get()
    if chosen is not None:
        chosen.append(block)
    return block


def is_fused(push: Callable[[Tangent], PyTree], x: PyTree) -> bool:
    """Whether a linear map writes nothing but its result, all being elementwise.

    Args:
        push: The map.
        x: A tree with the shapes of its argument.
    """
    return not _traffic(_jaxpr(push, x)).written


def _jaxpr(push: Callable[[Tangent], PyTree], x: PyTree) -> Jaxpr:
    return jax.make_jaxpr(push)(x).jaxpr


def _block(n: int, traffic: "_Traffic") -> int:
    written, shared = sum(traffic.written.values()), sum(traffic.shared.values())
    block = max(max(_CACHE_BYTES, shared) // max(written, 1), _SMALLEST)
    if traffic.kernel:
        block = _CONVOLUTION
    if block >= n:
        return n
    block = 1 << round(math.log2(block))
    if block < _SMALLEST:
        return block
    width = math.ceil(n / math.ceil(n / block))
    return min(n, math.ceil(width / _SMALLEST) * _SMALLEST)


class _Traffic(NamedTuple):
    """Bytes that one direction writes, bytes that all directions read."""

    written: dict[Hashable, int]
    shared: dict[Hashable, int]
    kernel: bool
    moving: list[bool]


def _traffic(
    jaxpr: Jaxpr, moving: list[bool] | None = None, used: list[bool] | None = None
) -> _Traffic:
    """Follow what depends on the direction through a jaxpr, as far as it is used."""
    moving = [True] * len(jaxpr.invars) if moving is None else moving
    live = {v for v, moves in zip(jaxpr.invars, moving, strict=True) if moves}
    written: dict[Hashable, int] = {}
    shared: dict[Hashable, int] = {}
    kernel = False
    equations, wanted = needed(jaxpr, used or [True] * len(jaxpr.outvars))
    for equation in equations:
        inputs = [_depends(v, live) for v in equation.invars]
        if not any(inputs):
            continue
        program = called_program(equation)
        if program is not None:
            inner = program.jaxpr
            part = _traffic(inner, inputs, [v in wanted for v in equation.outvars])
            pairs = zip(inner.invars, equation.invars, strict=True)
            outer = {v: atom for v, atom in pairs if isinstance(atom, Var)}
            written.update({(id(equation), k): b for k, b in part.written.items()})
            shared.update({outer.get(v, v): b for v, b in part.shared.items()})
            kernel |= part.kernel
            pairs = zip(equation.outvars, part.moving, strict=True)
            live.update(v for v, moves in pairs if moves)
            continue
        live.update(equation.outvars)
        if traits_of(equation).fused:
            continue
        kernel |= equation.primitive.name == "conv_general_dilated" and inputs[1]
        for variable, moves in zip(equation.invars, inputs, strict=True):
            if moves:
                written[variable] = _bytes(variable)
            elif isinstance(variable, Var):
                shared[variable] = _bytes(variable)
        written.update({v: _bytes(v) for v in equation.outvars})
    outputs = [_depends(v, live) for v in jaxpr.outvars]
    return _Traffic(written, shared, kernel, outputs)


def needed(jaxpr: Jaxpr, used: list[bool]) -> tuple[list[JaxprEqn], set[Var]]:
    """Return the equations that the used outputs depend on, and all they depend on."""
    outputs = zip(jaxpr.outvars, used, strict=True)
    wanted = {v for v, is_used in outputs if is_used and isinstance(v, Var)}
    equations = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or any(v in wanted for v in equation.outvars):
            equations.append(equation)
            wanted.update(v for v in equation.invars if isinstance(v, Var))
    return equations[::-1], wanted


def _depends(atom: Atom, live: set[Var]) -> bool:
    return isinstance(atom, Var) and atom in live


def _bytes(atom: Atom) -> int:
    aval = atom.aval
    if not isinstance(aval, ShapedArray):
        return 0
    found = aval.size * getattr(aval.dtype, "itemsize", 0)  # keys have none
    return found if isinstance(found, int) else _SYMBOLIC


# What a symbolic size stands for where modes are compared: more than any number that
# is written, and as many as another symbolic one.
_UNKNOWN = 1 << 40


class Sizes(NamedTuple):
    """How many numbers go in and come out.

    Attributes:
        n: Numbers in the point.
        m: Numbers in the value.
    """

    n: int
    m: int

    @staticmethod
    def of(x: PyTree, y: PyTree) -> "Sizes":
        """Count the numbers of a point and a value, or of their shapes."""
        return Sizes(_count(x), _count(y))


def _count(tree: PyTree) -> int:
    sizes = [math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(tree)]
    return sum(size if isinstance(size, int) else _UNKNOWN for size in sizes)
