"""Tracers that a program has kept as constants."""

from typing import Any

import jax

from ._compat import CONVERTED, ClosedJaxpr, Jaxpr, Literal, Tracer


def tracers_inside(closed: ClosedJaxpr) -> bool:
    """Whether a program holds a tracer as a constant: one that has leaked into it."""
    return any(isinstance(c, Tracer) for c in closed.consts) or _below(closed.jaxpr)


def _below(jaxpr: Jaxpr) -> bool:
    for equation in jaxpr.eqns:
        # a single number is not among the constants
        values = [atom.val for atom in equation.invars if isinstance(atom, Literal)]
        if any(isinstance(value, Tracer) for value in values):
            return True
        converted = _converted(equation.params)
        for value in equation.params.values():
            for item in value if isinstance(value, (tuple, list)) else (value,):
                if not isinstance(item, ClosedJaxpr):
                    continue
                is_rebound = id(item) in converted
                if _below(item.jaxpr) if is_rebound else tracers_inside(item):
                    return True
    return False


def _converted(params: dict[str, Any]) -> set[int]:
    """Find the programs that are run with other constants than those they hold.

    A primitive of Equinox, such as Lineax's linear solve, keeps the static leaves of
    its arguments. Among them is the program of a function whose constants are further
    arguments. Where JAX has one class for programs with and without constants, that
    program still holds those it was traced with, and nothing reads them.
    """
    if not params.keys() >= {"treedef", "static"}:
        return set()
    tree, static = params["treedef"], params["static"]
    if not isinstance(static, tuple) or tree.num_leaves != len(static):
        return set()
    is_converted = lambda node: isinstance(node, CONVERTED)
    nodes = jax.tree.leaves(tree.unflatten(static), is_leaf=is_converted)
    return {id(node.jaxpr) for node in nodes if is_converted(node)}
