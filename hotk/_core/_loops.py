"""Loops and branches whose results may differ by device inside of `shard_map`.

An iteration begins with zeros, which all devices hold alike, and goes on with numbers
of one device; JAX refuses to carry one as the other. Here the start varies over the
devices as what comes back does. Elsewhere these are `while_loop`, `fori_loop` and
`cond` of `jax.lax`.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree

from ._axes import differs_along, first_collective, manual_axes, varying_as
from ._errors import ModeError, message


S = TypeVar("S")


def while_loop(
    condition: Callable[[S], bool | Bool[Array, ""]], body: Callable[[S], S], state: S
) -> S:
    """Run `jax.lax.while_loop`; the state varies over devices as its successors do.

    Raises:
        ModeError: If the number of steps differs by device, and a step adds over these
            devices: they would wait for each other forever.
    """
    if not manual_axes():
        return jax.lax.while_loop(condition, body, state)
    try:
        end = jax.lax.while_loop(condition, body, state)
    except TypeError as error:
        body, state = _carried(body, state, error)
        end = jax.lax.while_loop(condition, body, state)
    _refuse_sums(condition, body, state)
    return end


def fori_loop(
    lower: int, upper: int | Int[Array, ""], body: Callable[[Any, S], S], state: S
) -> S:
    """Run `jax.lax.fori_loop`; the state varies over devices as its successors do."""
    if not manual_axes():
        return jax.lax.fori_loop(lower, upper, body, state)
    try:
        return jax.lax.fori_loop(lower, upper, body, state)
    except TypeError as error:
        first = jnp.zeros((), jnp.int32)
        _, state = _carried(lambda s: body(first, s), state, error)
    leaves, treedef = jax.tree.flatten(state)

    def step(i: Array, s: S) -> S:
        return treedef.unflatten(varying_as(_types(leaves), _leaves(body(i, s))))

    return jax.lax.fori_loop(lower, upper, step, state)


def cond(
    condition: bool | Bool[Array, ""],
    if_true: Callable[..., S],
    if_false: Callable[..., S],
    *operands: PyTree,
) -> S:
    """Run `jax.lax.cond`; the results of both branches vary over the same devices."""
    if not manual_axes():
        return jax.lax.cond(condition, if_true, if_false, *operands)
    with contextlib.suppress(TypeError):  # raised once more if it is another one
        return jax.lax.cond(condition, if_true, if_false, *operands)
    branches = if_true, if_false
    types = [jax.make_jaxpr(branch)(*operands).out_avals for branch in branches]

    def alike(branch: Callable[..., S]) -> Callable[..., S]:
        def run(*operands: PyTree) -> S:
            leaves, treedef = jax.tree.flatten(branch(*operands))
            for known in types:
                leaves = varying_as(known, leaves)
            return treedef.unflatten(leaves)

        return run

    return jax.lax.cond(condition, alike(if_true), alike(if_false), *operands)


def _carried(
    body: Callable[[S], S], state: S, error: TypeError
) -> tuple[Callable[[S], S], S]:
    """Return the body and the start of a loop with the types that it settles at.

    Raises:
        TypeError: That of the loop, if it was not for devices that differ.
    """
    leaves, treedef = jax.tree.flatten(state)
    changed = False
    for _ in leaves:  # each round lets one of them vary that did not before, or ends
        types = jax.make_jaxpr(body)(treedef.unflatten(leaves)).out_avals
        wider = varying_as(types, leaves)
        if all(map(_is, wider, leaves)):
            break
        leaves, changed = wider, True
    if not changed:
        raise error
    step = lambda s: treedef.unflatten(varying_as(_types(leaves), _leaves(body(s))))
    return step, treedef.unflatten(leaves)


def _refuse_sums(
    condition: Callable[[S], Any], body: Callable[[S], S], state: S
) -> None:
    """Refuse steps that wait for devices which may have ended."""
    more = jax.make_jaxpr(condition)(state).out_avals[0]
    apart = set(differs_along(more, manual_axes()))
    if not apart:
        return
    jaxpr = jax.make_jaxpr(body)(state).jaxpr
    waits = first_collective(jaxpr, [True] * len(jaxpr.invars), apart)
    if waits is not None:
        raise ModeError(
            message(
                "jax.shard_map",
                "an iteration in it takes another number of steps on each device, and "
                "each step waits for all of them.",
                expected="numbers that all devices hold alike, or a function without "
                "sums over the axes along which they differ",
                got=f"`{waits[0].primitive.name}` over {waits[1]!r}, and a point, data "
                "or a right-hand side that differ along it",
                fix="Gather what differs, as by `jax.lax.all_gather`, or leave the sum "
                "out of the function: see `jax.lax.pcast`.",
            )
        )


def _is(a: object, b: object) -> bool:
    return a is b


def _types(leaves: list[Any]) -> list[Any]:
    return [jax.typeof(leaf) for leaf in leaves]


_leaves = jax.tree.leaves
