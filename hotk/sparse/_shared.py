"""Arrays that are computed once: equal ones, and those that differ by a power of two.

The entries of a derivative repeat: a difference `x[s] - x[t]` makes four blocks that
differ by signs alone. A program is run here with each operation done once for equal
operands; signs and powers of two are left out of it and kept as factors, which rounds
nothing. Entries are then read from fewer arrays.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hotk._core import ClosedJaxpr, JaxprEqn, Literal, ShapedArray, bound, traits_of

from ._coefficients import is_concrete
from ._linear import result_type


class Multiple(NamedTuple):
    """A number times an array.

    Attributes:
        factor: A power of two, or minus one.
        array: The array, or a number.
    """

    factor: float
    array: Any

    def times(self, number: float) -> "Multiple":
        """Return the product with a number."""
        return Multiple(self.factor * number, self.array)

    def multiplied(self) -> Array:
        """Return the product as an array."""
        return self.array if self.factor == 1.0 else self.factor * self.array


def multiples(program: ClosedJaxpr) -> list[Multiple]:
    """Run a program without arguments; arrays that are equal are one object.

    Args:
        program: The program; its constants may be traced.

    Example:
        The results `2 * x * y`, `-(y * x)` and `x * y` are multiples of one array.
    """
    done = _Done()
    values: dict[Any, Multiple] = {}
    constants = zip(program.jaxpr.constvars, program.consts, strict=True)
    values.update((v, Multiple(1.0, constant)) for v, constant in constants)

    def read(atom: Any) -> Multiple:
        return Multiple(1.0, atom.val) if isinstance(atom, Literal) else values[atom]

    for equation in program.jaxpr.eqns:
        results = _step(equation, [read(atom) for atom in equation.invars], done)
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in program.jaxpr.outvars]


class _Done:
    """The operations that were done, by their operands."""

    def __init__(self) -> None:
        self._results: dict[Hashable, list[Any]] = {}
        # In the order in which they came; what is known by its address is held here.
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []

    def bound(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        """Return the results of an operation, of an earlier one if it is the same."""
        own = id(equation) if traits_of(equation).on_host else None
        parameters = tuple((k, _as_key(v)) for k, v in equation.params.items())
        what = (equation.primitive.name, own, parameters)
        return self.once(what, operands, lambda: bound(equation, operands))

    def once(
        self, what: Hashable, operands: Sequence[Any], do: Callable[[], list[Any]]
    ) -> list[Any]:
        """Return what was done with the operands, done once."""
        key = (what, *map(self.number, operands))
        found = self._results.get(key)
        if found is None:
            found = self._results[key] = do()
        return found

    def array(self, a: Multiple) -> Any:
        """Return a multiple as an array."""
        if a.factor == 1.0:
            return a.array
        return self.once(("times", a.factor), [a.array], lambda: [a.multiplied()])[0]

    def number(self, a: Any) -> tuple[str, str, bytes]:
        """Return what is the same for two operands if they are."""
        if is_concrete(a) and np.ndim(a) == 0:
            return type(a).__name__, np.asarray(a).dtype.str, np.asarray(a).tobytes()
        if id(a) not in self._numbers:
            self._held.append(a)
            self._numbers[id(a)] = len(self._numbers)
        return "", "", self._numbers[id(a)].to_bytes(8)


def _as_key(parameter: object) -> Hashable:
    try:
        hash(parameter)
    except TypeError:
        return id(parameter)  # the program holds it
    return type(parameter), parameter


def _step(
    equation: JaxprEqn, operands: list[Multiple], done: _Done
) -> Sequence[Multiple]:
    """Do an operation, its factors left out if it lets them through."""
    name, traits = equation.primitive.name, traits_of(equation)
    if _is_inexact(equation):
        if name == "neg":
            return [operands[0].times(-1.0)]
        if name in ("add", "add_any", "sub"):
            return [_sum(equation, operands, done)]
        if traits.bilinear:
            return [_product(equation, operands, done)]
        linear = traits.linear or slice(0)
        factors = {a.factor for a in operands[linear] if not _is_zero(a)}
        if len(factors) == 1:
            held = [done.array(a) for a in operands]
            held[linear] = [a.array for a in operands[linear]]
            [factor] = factors
            return [Multiple(factor, a) for a in done.bound(equation, held)]
    held = [done.array(a) for a in operands]
    return [Multiple(1.0, a) for a in done.bound(equation, held)]


def _is_zero(a: Multiple) -> bool:
    """Whether a multiple is the number zero, which has any factor."""
    return is_concrete(a.array) and np.ndim(a.array) == 0 and a.array == 0


def _sum(equation: JaxprEqn, operands: list[Multiple], done: _Done) -> Multiple:
    """Add or subtract two multiples."""
    a, b = operands
    if equation.primitive.name == "sub":
        b = b.times(-1.0)
    if a.array is b.array and a.factor == b.factor:
        return a.times(2.0)
    if abs(a.factor) != abs(b.factor):
        a, b = Multiple(1.0, done.array(a)), Multiple(1.0, done.array(b))
    if done.number(a.array) > done.number(b.array):
        a, b = b, a
    arrays = [a.array, b.array]
    add = a.factor == b.factor
    do = lambda: [jnp.add(*arrays) if add else jnp.subtract(*arrays)]
    return Multiple(a.factor, done.once("add" if add else "subtract", arrays, do)[0])


def _product(equation: JaxprEqn, operands: list[Multiple], done: _Done) -> Multiple:
    """Multiply two multiples."""
    factor = operands[0].factor * operands[1].factor
    arrays = [a.array for a in operands]
    if equation.primitive.name == "mul":
        for number, a in (arrays, arrays[::-1]):
            if _is_power_of_two(number) and a.dtype == result_type(equation)[1]:
                return Multiple(factor, a).times(float(number))
        arrays.sort(key=done.number)
    return Multiple(factor, done.bound(equation, arrays)[0])


def _is_power_of_two(a: Any) -> bool:
    if not is_concrete(a) or np.ndim(a) or np.iscomplexobj(a) or not np.isfinite(a):
        return False
    return abs(math.frexp(float(a))[0]) == 0.5


def _is_inexact(equation: JaxprEqn) -> bool:
    types = [v.aval for v in equation.outvars]
    return all(
        isinstance(t, ShapedArray) and jnp.issubdtype(t.dtype, jnp.inexact)
        for t in types
    )
