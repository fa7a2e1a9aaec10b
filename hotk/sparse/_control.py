"""Rules of operations with a program inside, but for loops."""

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import (
    JaxprEqn,
    Program,
    called_program,
    equations,
    program_of_sparse,
    traits_of,
)

from ._coefficients import is_concrete, masked
from ._context import Context, Operand, Rule, result_type
from ._linear import Linear, with_values, zero
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
    found = [context.run(branch, rest, context) for branch in branches]
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


def _linear_solve(
    equation: JaxprEqn, operands: list[Operand], context: Context
) -> list[Operand] | None:
    """Run the solver, if it is a direct one: then it is linear in the right-hand side.

    The steps of an iterative solver are not; it is evaluated by its matrix.
    """
    lengths, programs = equation.params["const_lengths"], equation.params["jaxprs"]
    first = lengths.matvec + lengths.vecmat
    constants = operands[first : first + lengths.solve]
    held = first + lengths.solve + lengths.transpose_solve
    if any(isinstance(a, Linear) for a in operands[:held]):
        return None
    inside = equations(programs.solve.jaxpr)
    if any(traits_of(e).program in _STEPS for e in inside):
        return None
    return context.run(programs.solve, [*constants, *operands[held:]], context)


_STEPS = (Program.SCAN, Program.WHILE, Program.COND, Program.SOLVE)

RULES: dict[str, Rule] = {"cond": _cond, "custom_linear_solve": _linear_solve}
