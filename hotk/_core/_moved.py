"""Whether a program would be the same with NumPy arrays in place of tracers."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from ._compat import Literal
from ._fingerprint import (
    Unrecognized,
    content,
    context,
    print_equations,
    print_parameters,
)
from ._interpret import jitted


def _broadcast(array: Any, shape: Any, broadcast_dimensions: Any, **_: Any) -> Any:
    sizes = [1] * len(shape)
    for axis, size in zip(broadcast_dimensions, array.shape, strict=True):
        sizes[axis] = size
    return np.broadcast_to(array.reshape(sizes), shape)


def _slice(
    array: Any, start_indices: Any, limit_indices: Any, strides: Any, **_: Any
) -> Any:
    steps = strides or [1] * array.ndim
    bounds = zip(start_indices, limit_indices, steps, strict=True)
    return array[tuple(slice(*b) for b in bounds)]


# Operations that only move numbers, by NumPy: it and JAX do the same with any content.
_MOVES: dict[str, Callable[..., Any]] = {
    "broadcast_in_dim": _broadcast,
    "concatenate": lambda *arrays, dimension, **_: np.concatenate(arrays, dimension),
    "copy": lambda array, **_: array,
    "copy_p": lambda array, **_: array,
    "reshape": lambda array, new_sizes, **_: array.reshape(new_sizes),
    "rev": lambda array, dimensions, **_: np.flip(array, dimensions),
    "slice": _slice,
    "squeeze": lambda array, dimensions, **_: np.squeeze(array, tuple(dimensions)),
    "transpose": lambda array, permutation, **_: np.transpose(array, permutation),
}
# Exact for integers: JAX's are as wide as NumPy's, or all of them fit.
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "ne": np.not_equal,
}
_INTEGERS = frozenset("iub")


def same_program(first: Any, second: Any, places: list[Any]) -> bool:
    """Whether two programs are equal once constants of the second are arguments.

    Args:
        first: A closed jaxpr without such constants.
        second: A closed jaxpr with fewer arguments and more constants.
        places: For each argument of the first, the value of the constant that takes its
            place in the second, or `None` for an argument.
    """
    arguments = iter(second.jaxpr.invars)
    constants = list(zip(second.jaxpr.constvars, second.consts, strict=True))
    inputs: list[Any] = []
    for place in places:
        if place is None:
            inputs.append(next(arguments))
            continue
        found = [
            i for i, (_, value) in enumerate(constants) if _same_array(value, place)
        ]
        inputs.append(constants.pop(found[0])[0] if found else object())
    keys: tuple[list[Hashable], list[Hashable]] = ([], [])
    try:
        kept = tuple(content(value) for _, value in constants)
        if kept != tuple(map(content, first.consts)):
            return False
        for closed, key, order in (
            (first, keys[0], [*first.jaxpr.invars, *first.jaxpr.constvars]),
            (second, keys[1], [*inputs, *(variable for variable, _ in constants)]),
        ):
            print_equations(closed.jaxpr, key, {v: i for i, v in enumerate(order)})
    except (Unrecognized, KeyError):
        return False
    return keys[0] == keys[1]


def _same_array(constant: Any, place: Any) -> bool:
    if np.shape(constant) != np.shape(place):
        return False
    return np.asarray(constant).astype(place.dtype).tobytes() == place.tobytes()


def same_once_moved(first: Any, second: Any, places: list[Any]) -> bool:
    """Whether two programs are equal but for who has moved the numbers of an array.

    `y[:, None]` of a NumPy array is done by NumPy before JAX sees it; with a tracer in
    its place it is an operation of the program. Here what only moves numbers is done in
    both programs, and what is left is compared, arrays by their content. As moving
    depends on no content, programs that are the same for these arrays are for all.

    Args:
        first: A closed jaxpr whose arguments may be NumPy arrays.
        second: A closed jaxpr with fewer arguments and more constants.
        places: For each argument of the first, the NumPy array that takes its place in
            the second, or `None` for an argument.
    """
    try:
        one, other = _Moved(), _Moved()
        arguments = iter(second.jaxpr.invars)
        for variable, place in zip(first.jaxpr.invars, places, strict=True):
            if place is None:
                one.input(variable)
                other.input(next(arguments))
            else:
                one.known[variable] = place
        for moved, closed in ((one, first), (other, second)):
            moved.take(closed.jaxpr.constvars, closed.consts)
            moved.read(closed.jaxpr)
    except (Unrecognized, TypeError, ValueError):
        return False
    return one.key == other.key


class _Moved:
    """Reads a program into a key, known arrays by content, what moves them done."""

    def __init__(self) -> None:
        self.known: dict[Any, np.ndarray] = {}
        self.number: dict[Any, int] = {}
        self.key: list[Hashable] = []
        self.count = 0

    def input(self, variable: Any) -> None:
        """Number a variable whose value is not known."""
        self.known.pop(variable, None)  # of an earlier call of the same function
        self.number[variable] = self.count
        self.count += 1
        self.key.append(variable.aval)

    def take(self, variables: Any, values: Any) -> None:
        """Note what is known, in the dtype that JAX has it in."""
        for variable, value in zip(variables, values, strict=True):
            self.known[variable] = np.asarray(value).astype(variable.aval.dtype)

    def value(self, atom: Any) -> Any:
        return np.asarray(atom.val) if isinstance(atom, Literal) else self.known[atom]

    def is_known(self, atom: Any) -> bool:
        return isinstance(atom, Literal) or atom in self.known

    def atom(self, atom: Any) -> Hashable:
        if not self.is_known(atom):
            return self.number[atom]
        value = self.value(atom)
        return (value.shape, value.dtype.name, value.tobytes())

    def read(self, jaxpr: Any) -> None:
        """Read a whole program."""
        self.equations(jaxpr)
        self.key.append(tuple(map(self.atom, jaxpr.outvars)))

    def equations(self, jaxpr: Any) -> None:
        """Read the equations of a program."""
        for equation in jaxpr.eqns:
            known = list(map(self.is_known, equation.invars))
            move = self.move(equation) if known and all(known) else None
            inner = jitted(equation)
            if move is not None:
                self.take(equation.outvars, [move()])
            elif inner is not None and any(known):
                self.open(inner, equation)
            else:
                self.write(equation)

    def open(self, inner: Any, equation: Any) -> None:
        """Read a jitted function in place, as arrays inside of it are known."""
        self.take(inner.jaxpr.constvars, inner.consts)
        self.pass_on(equation.invars, inner.jaxpr.invars)
        self.equations(inner.jaxpr)
        self.pass_on(inner.jaxpr.outvars, equation.outvars)

    def pass_on(self, atoms: Any, variables: Any) -> None:
        """Give variables what others are."""
        for atom, variable in zip(atoms, variables, strict=True):
            if self.is_known(atom):
                self.known[variable] = self.value(atom)
            else:
                self.known.pop(variable, None)
                self.number[variable] = self.number[atom]

    def write(self, equation: Any) -> None:
        """Write an equation into the key."""
        self.key.append(equation.primitive)
        self.key.append(context(equation.ctx))
        self.key.append(tuple(map(self.atom, equation.invars)))
        print_parameters(equation, self.key)
        for variable in equation.outvars:
            self.input(variable)

    def move(self, equation: Any) -> Callable[[], Any] | None:
        """Return what does an operation that only moves numbers, or `None`."""
        name, parameters = equation.primitive.name, equation.params
        values = [self.value(atom) for atom in equation.invars]
        if name in _MOVES:
            return lambda: _MOVES[name](*values, **parameters)
        kinds = {value.dtype.kind for value in values}
        if name in _COMPARISONS and kinds <= _INTEGERS:
            return lambda: _COMPARISONS[name](*values)
        if name == "convert_element_type":
            was, now = values[0].dtype, parameters["new_dtype"]
            if was == now or (kinds <= _INTEGERS and np.can_cast(was, now, "safe")):
                return lambda: values[0].astype(now)
        return None
