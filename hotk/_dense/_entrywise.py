"""Whether a linear map is diagonal, as its program proves."""

from collections.abc import Callable

import jax
from jaxtyping import PyTree

from hotk._core import (
    Atom,
    Jaxpr,
    JaxprEqn,
    Literal,
    Tangent,
    Var,
    called_program,
    traits_of,
)

from ._block import needed


def is_entrywise(push: Callable[[Tangent], PyTree], x: PyTree) -> bool:
    """Whether each entry of `push(v)` depends on the same entry of `v` alone.

    Then `push` of a direction of ones is its diagonal. A program that mixes entries in
    a way that cancels is not recognized; one that is recognized does not mix any.

    Args:
        push: A linear map from trees like `x` to trees of the same structure.
        x: A tree of arrays.
    """
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), x)
    jaxpr = jax.make_jaxpr(push)(shapes).jaxpr
    try:
        every = [True] * len(jaxpr.outvars)
        sources = _follow(jaxpr, list(range(len(jaxpr.invars))), every)
    except _Mixed:
        return False
    return all(leaf is None or leaf == i for i, leaf in enumerate(sources))


class _Mixed(Exception):
    """An entry depends on another entry of the direction."""


def _follow(
    jaxpr: Jaxpr, inputs: list[int | None], used: list[bool]
) -> list[int | None]:
    """Return for each result the leaf whose entries it holds in order, if any.

    What only results depend on that nobody uses does not count.
    """
    leaf_of: dict[Var, int | None] = dict(zip(jaxpr.invars, inputs, strict=True))

    def read(atom: Atom) -> int | None:
        return None if isinstance(atom, Literal) else leaf_of.get(atom)

    equations, wanted = needed(jaxpr, used)
    for equation in equations:
        moving = {leaf for leaf in map(read, equation.invars) if leaf is not None}
        if not moving:
            continue
        program = called_program(equation)
        if program is not None:
            inside = [v in wanted for v in equation.outvars]
            sources = _follow(program.jaxpr, list(map(read, equation.invars)), inside)
            leaf_of.update(zip(equation.outvars, sources, strict=True))
            continue
        [leaf] = moving if len(moving) == 1 else [None]
        if leaf is None or not _keeps_order(equation, read):
            raise _Mixed
        leaf_of.update((variable, leaf) for variable in equation.outvars)
    return list(map(read, jaxpr.outvars))


def _size(atom: Atom) -> int | None:
    return getattr(atom.aval, "size", None)


def _keeps_order(equation: JaxprEqn, read: Callable[[Atom], int | None]) -> bool:
    sizes = {_size(v) for v in equation.invars if read(v) is not None}
    same_size = sizes == {_size(v) for v in equation.outvars}
    if equation.primitive.name == "reshape":
        return same_size and equation.params.get("dimensions") is None
    return same_size and traits_of(equation).elementwise
