"""Programs evaluated operation by operation, outside of what XLA compiles as a whole.

With `noise` each result is moved by one unit of rounding, at random. How far the end
then moves is how far two right evaluations may differ, whatever cancels on the way.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotk._core import (
    ClosedJaxpr,
    JaxprEqn,
    ProgramKind,
    bound,
    called_program,
    equations,
    evaluate,
    scan_counts,
    traits_of,
)

from ._numpy import by_numpy


# So many steps of a loop are taken one by one, and so many of all loops of a program,
# which stand in each other; a longer one goes on as XLA compiles it.
_STEPS, _IN_ALL = 64, 512
# A result of these is an operand, or is not rounded: moved, it would be no longer equal
# to the operand that it is compared with.
_EXACT = frozenset({"copy", "select_n", "scatter", "gather", "dynamic_slice", "neg"})


def calls_host(closed: ClosedJaxpr) -> bool:
    """Whether a program has effects, or calls Python as it runs."""
    effects = bool(closed.jaxpr.effects)
    return effects or any(traits_of(e).on_host for e in equations(closed.jaxpr))


class Operations:
    """Evaluates programs operation by operation.

    Attributes:
        random: What moves results by rounding; `None` to leave them as they are.
        steps: How many steps of loops were taken.
    """

    def __init__(self, *, noise: int | None = None) -> None:
        self.random = None if noise is None else np.random.default_rng(noise)
        self.steps = 0

    def run(self, closed: ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
        """Evaluate a program, its arguments and constants moved as well."""
        constants = map(self._moved, closed.consts)
        return self._run(closed, list(constants), list(map(self._moved, arguments)))

    def _run(
        self, closed: ClosedJaxpr, constants: Sequence[Any], arguments: Sequence[Any]
    ) -> list[Any]:
        return evaluate(closed, constants, arguments, self._step)

    def _inside(self, closed: ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
        return self._run(closed, closed.consts, arguments)

    def _step(self, equation: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        traits, parameters = traits_of(equation), equation.params
        body = called_program(equation)
        if body is not None:
            return self._inside(body, inputs)
        if traits.program is ProgramKind.COND:
            branches = parameters["branches"]
            which = min(max(int(inputs[0]), 0), len(branches) - 1)
            return self._inside(branches[which], inputs[1:])
        if traits.program is ProgramKind.WHILE:
            return self._while(equation, inputs)
        scan = traits.program is ProgramKind.SCAN and self.steps < _IN_ALL
        if scan and 0 < parameters["length"] <= _STEPS:
            self.steps += parameters["length"]
            return self._scan(parameters, inputs)
        outputs: Sequence[Any] | None = by_numpy(equation, inputs)
        if outputs is None:
            outputs = bound(equation, inputs)
        kept = traits.moves or traits.constant or traits.kinked
        if kept or equation.primitive.name in _EXACT:
            return outputs
        return list(map(self._moved, outputs))

    def _scan(self, parameters: dict[str, Any], inputs: list[Any]) -> list[Any]:
        constants, carries = scan_counts(parameters)
        fixed, carry = inputs[:constants], inputs[constants:][:carries]
        rows = inputs[constants + carries :]
        steps = range(parameters["length"])
        stacked: list[list[Any]] = []
        for i in reversed(steps) if parameters["reverse"] else steps:
            outputs = self._inside(
                parameters["jaxpr"], [*fixed, *carry, *(a[i] for a in rows)]
            )
            carry = outputs[:carries]
            stacked.append(outputs[carries:])
        ordered = reversed(stacked) if parameters["reverse"] else stacked
        return [*carry, *map(_stacked, zip(*ordered, strict=True))]

    def _while(self, equation: JaxprEqn, inputs: list[Any]) -> Sequence[Any]:
        parameters = equation.params
        first, second = parameters["cond_nconsts"], parameters["body_nconsts"]
        asked, fixed = inputs[:first], inputs[first:][:second]
        carry = inputs[first + second :]
        if parameters["cond_jaxpr"].out_avals[0].shape:  # mapped over several loops
            return bound(equation, inputs)
        for _ in range(_STEPS):
            if self.steps >= _IN_ALL:
                break
            self.steps += 1
            (goes_on,) = self._inside(parameters["cond_jaxpr"], [*asked, *carry])
            if not bool(goes_on):
                return carry
            carry = self._inside(parameters["body_jaxpr"], [*fixed, *carry])
        return bound(equation, [*asked, *fixed, *carry])

    def _moved(self, value: Any) -> Any:
        """Move the numbers of an array by rounding."""
        dtype = getattr(value, "dtype", None)
        if self.random is None or dtype is None:
            return value
        if not jnp.issubdtype(dtype, jnp.inexact):
            return value
        numbers = np.asarray(value)
        factors = self.random.choice((-1.0, 1.0), numbers.shape) * epsilon(dtype)
        moved = numbers.astype(wide(dtype)) * (1 + factors)
        return moved.astype(numbers.dtype)


def _stacked(column: Sequence[Any]) -> Any:
    is_key = jnp.issubdtype(jnp.result_type(column[0]), jax.dtypes.extended)
    return jnp.stack(column) if is_key else np.stack(column)


def wide(dtype: Any) -> type[np.floating | np.complexfloating]:
    """Return the dtype of the host in which numbers are compared."""
    is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
    return np.complex128 if is_complex else np.float64


def epsilon(dtype: Any) -> float:
    """Return the unit of rounding, that of products on other platforms than the CPU."""
    eps = float(jnp.finfo(dtype).eps)
    return eps if jax.default_backend() == "cpu" else max(eps, 2.0**-11)
