"""The linear program of a derivative: `v -> J v`, with its residuals traced."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hotk._core import (
    AbstractValue,
    Atom,
    ClosedJaxpr,
    FunctionWithAux,
    Jaxpr,
    JaxprEqn,
    Literal,
    ShapedArray,
    Tracer,
    bound,
    constants_behind,
    evaluate,
    inner_jaxprs,
    jaxpr_as_fun,
    known_results,
    traits_of,
)
from hotk._mode import Forward, Reverse
from hotk._primitive import written


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
        sources: What indices among the constants are computed from, where that does not
            depend on the point and is not known.
    """

    program: ClosedJaxpr
    inputs: PyTree
    outputs: PyTree
    value: PyTree
    aux: PyTree
    sources: tuple[Tracer, ...] = ()

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
    known = _known(traced, len(constants))
    for i, value in known.items():
        constants[i] = value
    if valued:
        # Each is read in several products, which XLA would compute it for anew.
        costs = recomputation_costs(traced.jaxpr)[: len(constants)]
        constants = [
            written(a) if cost > CHEAP and _is_long(a) else a
            for a, cost in zip(constants, costs, strict=True)
        ]
    program = ClosedJaxpr(jaxpr, constants)
    pairs = enumerate(constants)
    unknown = [_kind(a) in "iu" and i not in known for i, a in pairs]
    sources = _sources(traced, unknown)
    return LinearProgram(program, inputs, outputs, y, aux, sources)


def _is_long(a: Any) -> bool:
    # Those that are known are arrays of NumPy.
    is_long = isinstance(a, jax.Array) and a.size > _SHORT
    return is_long and jnp.issubdtype(a.dtype, jnp.inexact)


def _types(tree: PyTree) -> PyTree:
    # With the axes of the mesh over which an array varies, inside of `shard_map`.
    return jax.tree.map(jax.typeof, tree)


def _known(traced: ClosedJaxpr, count: int) -> dict[int, np.ndarray]:
    """Return the residuals that do not depend on the point: indices, masks, counters.

    Of captured floating numbers, though they be known, nothing is known but indices and
    masks: numbers may change, and the pattern is not to change with them.
    """
    fixed = [not isinstance(c, Tracer) for c in traced.consts]
    integral = [_kind(c) in "iub" for c in traced.consts]
    types = [v.aval for v in traced.jaxpr.outvars[:count]]
    rest = [False] * (len(traced.jaxpr.outvars) - count)
    wanted = [_is_wanted(t) for t in types]
    both = [a and b for a, b in zip(fixed, integral, strict=True)]
    found = known_results(traced, both, [*wanted, *rest])
    if both == fixed:
        return found
    wanted = [_kind(t) in "iub" and i not in found for i, t in enumerate(types)]
    return found | known_results(traced, fixed, [*wanted, *rest])


def _sources(traced: ClosedJaxpr, asked: Sequence[bool]) -> tuple[Tracer, ...]:
    """Return the tracers that residuals depend on which do not depend on the point."""
    rest = [False] * (len(traced.jaxpr.outvars) - len(asked))
    found = [traced.consts[i] for i in constants_behind(traced, [*asked, *rest])]
    return tuple(a for a in found if isinstance(a, Tracer))


def _kind(a: Any) -> str:
    return getattr(getattr(a, "dtype", None), "kind", "V")  # random keys have none


def _is_wanted(aval: AbstractValue) -> bool:
    if not isinstance(aval, ShapedArray):
        return False
    if _kind(aval) in "iub":
        return True
    return jnp.issubdtype(aval.dtype, jnp.inexact) and 1 < aval.size < _MOST_LOOKED_AT


# An array that takes so many additions and products for each of its entries is computed
# again in less time than it is written and read.
CHEAP = 16

_COSTLY = CHEAP + 1


def recomputation_costs(jaxpr: Jaxpr) -> list[int]:
    """Count the operations that each entry of each result of a program takes.

    Args:
        jaxpr: The program; its inputs and constants are there.

    Returns:
        A number for each result, larger than `CHEAP` where it is not cheap.
    """
    return _costs(jaxpr, [0] * len(jaxpr.invars))


def _costs(jaxpr: Jaxpr, inputs: list[int]) -> list[int]:
    costs = dict.fromkeys(jaxpr.constvars, 0)
    costs.update(zip(jaxpr.invars, inputs, strict=True))
    of = lambda atom: 0 if isinstance(atom, Literal) else costs[atom]
    for equation in jaxpr.eqns:
        costs.update(zip(equation.outvars, _results(equation, of), strict=True))
    return [of(atom) for atom in jaxpr.outvars]


def _results(equation: JaxprEqn, of: Callable[[Atom], int]) -> list[int]:
    operands = [of(atom) for atom in equation.invars]
    traits = traits_of(equation)
    inner = inner_jaxprs(equation.params.values())
    if traits.is_inlined and len(inner) == 1 and len(inner[0].invars) == len(operands):
        return _costs(inner[0], operands)
    name, power = equation.primitive.name, equation.params.get("y", 0)
    # a sum, a product, a choice or a move, in a cycle or less; a division takes ten
    quick = traits.fused and traits.is_straight and name != "div"
    if quick or name == "square" or (name == "integer_pow" and 0 < power <= 4):
        cost = 1 + sum(operands)
    else:
        cost = _COSTLY
    return [min(cost, _COSTLY)] * len(equation.outvars)
