"""A linear map of some leaves: the others have no direction, rather than zeros."""

import contextlib
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    CUSTOM,
    Handlers,
    JaxprEqn,
    Leaf,
    Tangent,
    called_program,
    is_divided_by_type,
    jaxpr_as_fun,
    needed_for,
    run_replaced,
    used_inputs,
)


def of_some(
    push: Callable[[Tangent], PyTree], x: PyTree, group: Sequence[int]
) -> Callable[[Sequence[Array]], PyTree]:
    """Return a linear map as one of some leaves, the others being zero.

    Zeros are a number that is broadcast, and XLA on CPUs reads beyond it where it fuses
    a product of matrices with a sum. So nothing is multiplied by them, which is less
    work as well: the map is linear, so its derivative along a direction of some leaves
    is the image of that direction.

    Args:
        push: The linear map.
        x: A tree of arrays like its argument.
        group: The numbers of the leaves.

    Returns:
        A function from a list of these leaves to the image.
    """
    leaves, tree = jax.tree.flatten(x)
    if len(group) == len(leaves):
        return lambda some: push(tree.unflatten(some))
    closed, shapes = jax.make_jaxpr(push, return_shape=True)(x)

    def among(others: Sequence[Array], some: Sequence[Array]) -> list[Array]:
        every = list(others)
        for i, a in zip(group, some, strict=True):
            every[i] = a
        return every

    def along(*both: Array) -> list[Array]:
        point, some = both[: len(group)], both[len(group) :]
        at = lambda some: run_replaced(closed, among(leaves, some), _AS_IT_RUNS)
        return jax.jvp(at, (list(point),), (list(some),))[1]

    inside = [leaves[i] for i in group]
    program = None
    # A call of the host, say, has no derivative. Along explicit axes of a mesh JAX
    # refuses a program in which nothing is left of what is divided.
    if not any(map(is_divided_by_type, leaves)):
        with contextlib.suppress(NotImplementedError, TypeError, ValueError):
            program = jax.make_jaxpr(along)(*inside, *inside)
    if program is None or any(used_inputs(program)[: len(group)]):
        # An iteration is no linear program: where it stops depends on the vector.
        zeros = jax.tree.map(jnp.zeros_like, leaves)
        return lambda some: push(tree.unflatten(among(zeros, some)))
    run = jaxpr_as_fun(needed_for(program, [True] * len(program.out_avals)))
    return lambda some: jax.tree.structure(shapes).unflatten(run(*inside, *some))


def _by_body(equation: JaxprEqn, inputs: list[Leaf]) -> list[Leaf]:
    program = called_program(equation)
    assert program is not None  # or it would have no rule of its own
    return run_replaced(program, inputs, _AS_IT_RUNS)


# What is run is linear, whatever the rules of a user would make of its parts.
_AS_IT_RUNS: Handlers = {
    **dict.fromkeys(CUSTOM, _by_body),
    "stop_gradient": lambda equation, inputs: inputs,
}
