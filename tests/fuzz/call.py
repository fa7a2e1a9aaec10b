"""One way through hotk: what is called, what must come out, what may be raised."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .program import Program, built, captured, maker, point
from .reference import Reference


class Bound(NamedTuple):
    """A program in one state, with a point."""

    f: Callable
    x: Any
    v: Any
    args: tuple[Any, ...]
    captured: list[Any]


def bind(program: Program, operators, state: str, capture=lambda value: value) -> Bound:
    """Build a program in a state; `mutated` is the later NumPy arrays, else `now`.

    Each captured value is what `capture` makes of it.
    """
    values = captured(program, "later" if state == "later" else "now")
    if state == "mutated":
        values = [
            new if isinstance(old, np.ndarray) else old
            for old, new in zip(values, captured(program, "later"), strict=True)
        ]
    at = point(program, "later" if state == "later" else "now")
    x, v, args = (built(part) for part in (at.x, at.v, f"({at.args})"))
    values = list(map(capture, values))
    return Bound(maker(program)(operators, *values), x, v, args, values)


class Call(NamedTuple):
    """One way through hotk: source text, what it computes, what must come out."""

    source: str
    run: Callable[[], np.ndarray]
    expect: Callable[[Reference], np.ndarray]
    state: str = "now"
    refusals: tuple[type[Exception], ...] = ()
    touches: tuple[tuple[str, Bound], ...] = ()


AFTERWARDS = "\nf(x, *args)  # by plain JAX, afterwards; or f2(x2, *args2)"


def expect_product(r: Reference) -> np.ndarray:
    return r.product


def dense(hessian) -> np.ndarray:
    """Turn a tree of trees into one matrix; there is one row per leading entry."""
    is_row = hessian if not isinstance(hessian, dict | tuple | list) else None
    if is_row is not None:
        size = int(np.sqrt(np.size(hessian)))
        return np.reshape(hessian, (size, size))
    blocks = [np.asarray(leaf) for leaf in jax.tree.leaves(hessian)]
    count = int(np.sqrt(len(blocks)))
    rows = [blocks[i * count : (i + 1) * count] for i in range(count)]
    sizes = [int(np.sqrt(rows[i][i].size)) for i in range(count)]
    return np.block(
        [
            [np.reshape(rows[i][j], (sizes[i], sizes[j])) for j in range(count)]
            for i in range(count)
        ]
    )


def rows(tree) -> np.ndarray:
    """Join the leaves of a batch of two, one row for each."""
    leaves = [np.asarray(leaf).reshape(2, -1) for leaf in jax.tree.leaves(tree)]
    return np.concatenate(leaves, 1)


def arrays_of(tree):
    """Make Python numbers in a direction arrays, and drop what has no direction."""
    return jax.tree.map(
        lambda leaf: None if isinstance(leaf, int) else jnp.asarray(leaf), tree
    )
