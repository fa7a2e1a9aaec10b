"""Rules of operations with a program inside, but for loops."""

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import (
    ClosedJaxpr,
    JaxprEqn,
    called_program,
    jaxpr_as_fun,
    program_of_sparse,
)

from ._coefficients import is_concrete, masked
from ._linear import Context, Linear, Operand, Rule, result_type, with_values, zero
from ._merge import added


def call(equation: JaxprEqn, operands: list[Operand], context: Context) -> list | None:
    """Run the program of a call, a checkpoint or a function with rules.

    Products of `jax.experimental.sparse` are such calls: their indices are known.
    """
    program = called_program(equation)
    program = program_of_sparse(equation) if program is None else program
    return None if program is None else context.run(program, operands, context)


def _cond(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    index, *rest = operands
    if isinstance(index, Linear):
        return None
    branches = equation.params["branches"]
    if is_concrete(index):
        k = int(np.clip(int(index), 0, len(branches) - 1))
        return context.run(branches[k], rest, context)
    chosen = jnp.clip(index, 0, len(branches) - 1)
    found = [
        _if_taken(chosen == k, branch, rest, context)
        for k, branch in enumerate(branches)
    ]
    results: list[Operand] = []
    for j, cases in enumerate(zip(*found, strict=True)):
        shape, dtype = result_type(equation, j)
        if not any(isinstance(case, Linear) for case in cases):
            results.append(jax.lax.select_n(chosen, *map(jnp.asarray, cases)))
            continue
        total = zero(shape)
        for k, case in enumerate(cases):
            if isinstance(case, Linear):
                here = lambda v, on=chosen == k, d=dtype: masked(v, on, d)
                total = added(total, with_values(case, here), dtype)
        results.append(total)
    return results


def _if_taken(
    taken: jax.Array, branch: ClosedJaxpr, operands: list[Operand], context: Context
) -> list[Operand]:
    """Run a branch whose arrays are computed only if it is taken, and zero otherwise.

    The residuals of a branch that is not taken are zeros (JAX fills them in): to solve
    with them divides by zero, and the derivative of a choice made afterwards is `nan`.
    """
    leaves, structure = jax.tree.flatten(operands)
    given = {i: a for i, a in enumerate(leaves) if isinstance(a, jax.Array)}
    results, tree = [], structure

    def run(given: dict[int, jax.Array]) -> dict[int, jax.Array]:
        nonlocal results, tree
        inside = [given.get(i, a) for i, a in enumerate(leaves)]
        found = context.run(branch, structure.unflatten(inside), context)
        results, tree = jax.tree.flatten(found)
        return {i: a for i, a in enumerate(results) if isinstance(a, jax.Array)}

    closed, made = jax.make_jaxpr(run, return_shape=True)(given)
    if made:
        compute = jaxpr_as_fun(closed)
        zeros = lambda *_: [jnp.zeros_like(a) for a in made.values()]
        arrays = jax.lax.cond(taken, compute, zeros, *given.values())
        for i, a in zip(made, arrays, strict=True):
            results[i] = a
    return tree.unflatten(results)


RULES: dict[str, Rule] = {"cond": _cond}
