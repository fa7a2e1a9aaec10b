"""The linear program of a derivative: `v -> J v`, with its residuals traced."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import (
    AbstractValue,
    ClosedJaxpr,
    FunctionWithAux,
    Jaxpr,
    ShapedArray,
    Tracer,
    bound,
    evaluate,
    jaxpr_as_fun,
    known_results,
)
from hotk.mode import Forward, Reverse
from hotk.primitive import written

from ._recomputation import CHEAP, recomputation_costs


# Known numbers of a larger array are not looked at: zeros among them make no difference
# that is worth the time.
_MOST_LOOKED_AT = 100_000
# Shorter residuals stay in the cache.
_SHORT = 1000


class LinearProgram(NamedTuple):
    """A program that is linear in its arguments.

    Attributes:
        program: The program; among its constants are traced residuals, and the known
            ones as arrays of NumPy.
        inputs: Shapes and dtypes of its arguments, as a tree.
        outputs: Those of its results.
        value: What the function returns that it is the derivative of.
        aux: The auxiliary output of that.
    """

    program: ClosedJaxpr
    inputs: PyTree
    outputs: PyTree
    value: PyTree
    aux: PyTree

    def apply(self, v: PyTree) -> PyTree:
        """Return the product with a direction."""
        program = self.program
        results = evaluate(program, program.consts, jax.tree.leaves(v), bound)
        return jax.tree.structure(self.outputs).unflatten(results)


def linear_program(
    f: FunctionWithAux, x: PyTree, mode: Forward | Reverse, *, valued: bool = True
) -> LinearProgram:
    """Linearize a function, and evaluate what does not depend on the direction.

    Args:
        f: A function of one argument that returns its value and an auxiliary output.
        x: The point.
        mode: Forward for the program of the Jacobian, reverse for its transpose.
        valued: Whether values are asked for, not a pattern alone.
    """
    inside: list[tuple[Jaxpr, PyTree, PyTree]] = []

    def residuals(x: PyTree) -> tuple[Any, ...]:
        if isinstance(mode, Forward):
            y, push, aux = jax.linearize(f, x, has_aux=True)
            types = _types(x)
        else:
            y, pull, aux = jax.vjp(f, x, has_aux=True)
            push, types = (lambda u: pull(u)[0]), _types(y)
        closed, outputs = jax.make_jaxpr(push, return_shape=True)(types)
        inside.append((closed.jaxpr, types, outputs))
        return list(closed.consts), y, aux

    traced, shapes = jax.make_jaxpr(residuals, return_shape=True)(x)
    [(jaxpr, inputs, outputs)] = inside
    flat = jaxpr_as_fun(traced)(*jax.tree.leaves(x))
    constants, y, aux = jax.tree.structure(shapes).unflatten(flat)
    for i, value in _known(traced, len(constants)).items():
        constants[i] = value
    if valued:
        # Each is read in several products, which XLA would compute it for anew.
        costs = recomputation_costs(traced.jaxpr)[: len(constants)]
        constants = [
            written(a) if cost > CHEAP and _is_long(a) else a
            for a, cost in zip(constants, costs, strict=True)
        ]
    return LinearProgram(ClosedJaxpr(jaxpr, constants), inputs, outputs, y, aux)


def _is_long(a: Any) -> bool:
    # Those that are known are arrays of NumPy.
    is_long = isinstance(a, jax.Array) and a.size > _SHORT
    return is_long and jnp.issubdtype(a.dtype, jnp.inexact)


def _types(tree: PyTree) -> PyTree:
    # With the axes of the mesh over which an array varies, inside of `shard_map`.
    return jax.tree.map(jax.typeof, tree)


def _known(traced: ClosedJaxpr, count: int) -> dict[int, np.ndarray]:
    """Return the residuals that do not depend on the point: indices, masks, counters.

    Captured floating numbers are not looked at, though they be known: they may change,
    and the pattern is not to change with them.
    """
    known = [
        not isinstance(c, Tracer) and np.dtype(jnp.result_type(c)).kind in "iub"
        for c in traced.consts
    ]
    rest = len(traced.jaxpr.outvars) - count
    wanted = [_is_wanted(v.aval) for v in traced.jaxpr.outvars[:count]]
    return known_results(traced, known, [*wanted, *[False] * rest])


def _is_wanted(aval: AbstractValue) -> bool:
    if not isinstance(aval, ShapedArray):
        return False
    kind = getattr(aval.dtype, "kind", "V")
    if kind in "iub":
        return True
    return jnp.issubdtype(aval.dtype, jnp.inexact) and 1 < aval.size < _MOST_LOOKED_AT
