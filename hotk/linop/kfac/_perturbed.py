"""The model with a perturbation at each site, and what each site reads."""

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from hotk._core import (
    EXTREMES,
    ClosedJaxpr,
    JaxprEqn,
    Leaf,
    ProgramKind,
    bound,
    called_program,
    evaluate,
    scan_counts,
    traits_of,
)
from hotk._primitive import extreme

from ._site import OperationKind, Path, Site


Taps: TypeAlias = dict[Path, Array]
"""An array for each site."""

Enter: TypeAlias = Callable[
    [ClosedJaxpr, Sequence[Leaf], Taps], tuple[list[Leaf], Taps]
]
"""`run` for the programs inside of one equation."""


class Signals(NamedTuple):
    """What the sites of a model read and are given back, example by example.

    Attributes:
        read: The other operand of each site: (examples, *scans, *shape).
        back: The gradients by its output: (vectors, examples, *scans, *shape).
        vectors: What was pulled back: (vectors, examples, *outputs).
    """

    read: Taps
    back: Taps
    vectors: Array


def signals(
    model: Callable[..., tuple[Array, Taps]],
    rows: PyTree,
    sites: Sequence[Site],
    vectors: Callable[[Array], Float[Array, "vectors N *outputs"]],
) -> Signals:
    """Run a model on each example, and pull vectors back to the sites.

    A perturbation of zero is added at each site; its gradient is the signal. No
    gradient by a parameter is computed on the way.

    Args:
        model: From taps and the row of an example to outputs and what sites read.
        rows: Arrays with the examples in their first axis.
        sites: The sites.
        vectors: From the outputs to the vectors to pull back.
    """
    count = len(jax.tree.leaves(rows)[0])
    zeros = {s.path: jnp.zeros((count, *s.lengths, *s.shape), s.dtype) for s in sites}
    run = lambda taps: jax.vmap(model)(taps, rows)
    z, pull, read = jax.vjp(run, zeros, has_aux=True)
    u = vectors(z)
    if len(u) == 1:
        (back,) = pull(u[0])
        back = jax.tree.map(lambda g: g[None], back)
    else:
        (back,) = jax.vmap(pull)(u)
    return Signals(read, back, u)


def run(
    closed: ClosedJaxpr,
    arguments: Sequence[Leaf],
    sites: Mapping[Path, Site],
    taps: Taps,
    path: Path = (),
) -> tuple[list[Leaf], Taps]:
    """Evaluate a program with a perturbation at each site.

    Args:
        closed: The program.
        arguments: Its arguments.
        sites: The sites, by their paths.
        taps: The perturbations.
        path: The number of the equation that the program is inside of.

    Returns:
        The outputs, and the other operand of each site.
    """
    inside = _prefixes(sites)
    read: Taps = {}
    numbers = itertools.count()

    def step(equation: JaxprEqn, inputs: list[Leaf]) -> Sequence[Leaf]:
        here = (*path, next(numbers))
        if here in sites:
            site = sites[here]
            (out,) = bound(equation, inputs)
            if site.kind is not OperationKind.BIAS:
                other = jnp.asarray(inputs[1 - site.side])
                scales = site.kind is OperationKind.SCALE  # perhaps by a number
                read[here] = jnp.broadcast_to(other, site.shape) if scales else other
            return [out + taps[here]]
        if equation.primitive.name in EXTREMES:
            return extreme(equation, inputs)
        if here not in inside:
            return bound(equation, inputs)
        mine = {key: tap for key, tap in taps.items() if key[: len(here)] == here}
        enter = lambda body, inputs, taps: run(body, inputs, sites, taps, here)
        is_scan = traits_of(equation).program is ProgramKind.SCAN
        call = _scanned if is_scan else _called
        outputs, seen = call(equation, inputs, mine, enter)
        read.update(seen)
        return outputs

    return evaluate(closed, closed.consts, arguments, step), read


def _prefixes(paths: Collection[Path]) -> set[Path]:
    return {path[:k] for path in paths for k in range(1, len(path))}


def _called(
    equation: JaxprEqn, inputs: list[Leaf], taps: Taps, enter: Enter
) -> tuple[list[Leaf], Taps]:
    body = called_program(equation)
    assert body is not None
    call = functools.partial(enter, body)
    if traits_of(equation).program is ProgramKind.CHECKPOINT:
        options = {k: equation.params[k] for k in ("policy", "prevent_cse")}
        call = jax.checkpoint(call, **options)
    return call(inputs, taps)


def _scanned(
    equation: JaxprEqn, inputs: list[Leaf], taps: Taps, enter: Enter
) -> tuple[list[Leaf], Taps]:
    """Run a scan whose steps are given a slice of the taps, and record what is read."""
    p = equation.params
    constants, carries = scan_counts(p)
    fixed, first = inputs[:constants], inputs[constants:][:carries]

    def body(
        carry: list[Leaf], now: tuple[list[Leaf], Taps]
    ) -> tuple[list[Leaf], tuple[list[Leaf], Taps]]:
        rows, mine = now
        arguments = [*fixed, *carry, *rows]
        outputs, read = enter(p["jaxpr"], arguments, mine)
        return outputs[:carries], (outputs[carries:], read)

    rows = inputs[constants + carries :]
    options = {k: p[k] for k in ("length", "reverse", "unroll")}
    last, (stacked, read) = jax.lax.scan(body, first, (rows, taps), **options)
    return [*last, *stacked], read
