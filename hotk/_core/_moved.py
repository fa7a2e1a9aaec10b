"""Whether a program would be the same with NumPy arrays in place of tracers."""

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from ._by_numpy import (
    ARITHMETIC,
    COMPARISONS,
    LOGIC,
    MOVES,
    ORDERED,
    RING,
    SELECTED,
    Arrays,
)
from ._compat import Atom, ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, shape_of
from ._fingerprint import (
    KeyWriter,
    Unrecognized,
    content,
    context,
)
from ._interpret import jitted
from ._programs import scan_counts
from ._types import Leaf


_INTEGERS = frozenset("iub")
# Integers that leave room for some arithmetic in 32 bits, and are exact as floats.
SHORT = 1 << 20
# Beyond the first NumPy, with 64 bits, and JAX, with 32, may differ; beyond the second
# a `float32` does not hold every integer.
_ROOM, _EXACT_AS_FLOAT = 1 << 31, 1 << 24
_FLOATS = (np.dtype("float32"), np.dtype("float64"))


def same_program(
    first: ClosedJaxpr, second: ClosedJaxpr, places: list[np.ndarray | None]
) -> bool:
    """Whether two programs are equal once constants of the second are arguments.

    Args:
        first: A closed jaxpr without such constants.
        second: A closed jaxpr with fewer arguments and more constants.
        places: For each argument of the first, the value of the constant that takes its
            place in the second, or `None` for an argument.
    """
    arguments = iter(second.jaxpr.invars)
    constants = list(zip(second.jaxpr.constvars, second.consts, strict=True))
    inputs: list[Any] = []  # variables, or what is none of the second program
    for place in places:
        if place is None:
            inputs.append(next(arguments))
            continue
        matches = [
            i for i, (_, value) in enumerate(constants) if _same_array(value, place)
        ]
        # A constant that is not found stands for nothing in the second program: reading
        # it is the `KeyError` below.
        inputs.append(constants.pop(matches[0])[0] if matches else object())
    one, other = KeyWriter(), KeyWriter()
    try:
        # What is left is in both programs or in none; a NumPy array that NumPy computed
        # with has become another constant, so the programs are not the same.
        rest = tuple(content(value) for _, value in constants)
        if rest != tuple(map(content, first.consts)):
            return False
        for closed, writer, order in (
            (first, one, [*first.jaxpr.invars, *first.jaxpr.constvars]),
            (second, other, [*inputs, *(variable for variable, _ in constants)]),
        ):
            writer.equations(closed.jaxpr, {v: i for i, v in enumerate(order)})
    except (Unrecognized, KeyError):
        return False
    return one.key == other.key


def _same_array(constant: Leaf, place: np.ndarray) -> bool:
    if np.shape(constant) != np.shape(place):
        return False
    return np.asarray(constant).astype(place.dtype).tobytes() == place.tobytes()


def same_once_moved(
    first: ClosedJaxpr,
    second: ClosedJaxpr,
    places: list[np.ndarray | None],
    narrowed: list[bool],
    *,
    short: list[bool],
    finite: bool,
) -> bool:
    """Whether two programs are equal but for who has moved the numbers of an array.

    `y[:, None]` of a NumPy array is done by NumPy before JAX sees it; with a tracer in
    its place it is an operation of the program. Here what only moves numbers, and what
    compares or counts them exactly, is done in both programs, and what is left is
    compared, arrays by their content. As that is exact whatever the content, programs
    that are the same for these arrays are for all.

    Args:
        first: A closed jaxpr whose arguments may be NumPy arrays.
        second: A closed jaxpr with fewer arguments and more constants.
        places: For each argument of the first, the NumPy array that takes its place in
            the second, or `None` for an argument.
        narrowed: For each of them whether JAX has its numbers with fewer digits.
        short: For each of them whether it holds integers of at most `SHORT`, now and
            whenever the program is run.
        finite: Whether it is known that none of those ever becomes infinite.
    """
    try:
        one, other = _Moved(finite), _Moved(finite)
        arguments = iter(second.jaxpr.invars)
        for variable, place, narrow, small in zip(
            first.jaxpr.invars, places, narrowed, short, strict=True
        ):
            if place is None:
                one.input(variable)
                other.input(next(arguments))
            else:
                one.know(variable, place, narrow)
                if place.dtype.kind in "iu":
                    one.bounds[variable] = SHORT if small else _ROOM - 1
        for moved, closed in ((one, first), (other, second)):
            moved.take(closed.jaxpr.constvars, closed.consts)
            moved.read(closed.jaxpr)
    except (Unrecognized, TypeError, ValueError):
        return False
    return one.key == other.key


class _Moved:
    """Reads a program into a key, known arrays by content, what moves them done."""

    def __init__(self, finite: bool) -> None:
        self.finite = finite
        # `known` are arrays by variable, `narrow` those with fewer digits than NumPy
        # has, `bounds` what integers are at most; `number` has all other variables.
        self.writer = KeyWriter()
        self.key = self.writer.key
        self.known: dict[Var, np.ndarray] = {}
        self.narrow: set[Var] = set()
        self.bounds: dict[Var, int] = {}
        self.number: dict[Var, int] = {}
        self.count = 0

    def input(self, variable: Var) -> None:
        """Number a variable whose value is not known."""
        self.known.pop(variable, None)  # of an earlier call of the same function
        self.number[variable] = self.count
        self.count += 1
        self.key.append(variable.aval)

    def know(self, variable: Var, value: np.ndarray, narrow: bool) -> None:
        """Note what a variable is."""
        self.known[variable] = value
        # A jitted function that is called twice has the same variables both times.
        self.narrow.discard(variable)
        self.bounds.pop(variable, None)
        if narrow:
            self.narrow.add(variable)

    def take(self, variables: Sequence[Var], values: Sequence[Leaf]) -> None:
        """Note constants, in the dtype that JAX has them in."""
        for variable, value in zip(variables, values, strict=True):
            array = np.asarray(value).astype(shape_of(variable.aval).dtype)
            self.know(variable, array, True)
            if array.dtype.kind in "iu" and array.size:  # a constant never changes
                largest, least = int(array.max()), int(array.min())
                self.bounds[variable] = max(abs(largest), abs(least))

    def value(self, atom: Atom) -> np.ndarray:
        return np.asarray(atom.val) if isinstance(atom, Literal) else self.known[atom]

    def is_known(self, atom: Atom) -> bool:
        return isinstance(atom, Literal) or atom in self.known

    def is_narrow(self, atom: Atom) -> bool:
        """Whether a known array has fewer digits than what it was made of."""
        return not isinstance(atom, Literal) and atom in self.narrow

    def atom(self, atom: Atom) -> Hashable:
        if isinstance(atom, Var) and atom not in self.known:
            return self.number[atom]
        value = self.value(atom)
        return (value.shape, value.dtype.name, value.tobytes())

    def read(self, jaxpr: Jaxpr) -> None:
        """Read a whole program."""
        self.equations(jaxpr)
        self.key.append(tuple(map(self.atom, jaxpr.outvars)))

    def equations(self, jaxpr: Jaxpr) -> None:
        """Read the equations of a program that something is made of."""
        for equation in needed(jaxpr):
            known = list(map(self.is_known, equation.invars))
            move = self.move(equation) if known and all(known) else None
            inner = jitted(equation)
            if move is not None:
                narrow = any(map(self.is_narrow, equation.invars))
                bound, results = self.bound(equation), move()
                each = results if equation.primitive.multiple_results else [results]
                for variable, array in zip(equation.outvars, each, strict=True):
                    self.know(variable, np.asarray(array), narrow)
                    if bound is not None:
                        self.bounds[variable] = bound
            elif inner is not None and (any(known) or inner.consts):
                # `jnp.where` and the like are jitted: without going into them, a known
                # array would be an operand here and a constant there.
                self.open(inner, equation)
            elif equation.primitive.name == "scan":
                self.loop(equation)
            else:
                self.write(equation)

    def open(self, inner: ClosedJaxpr, equation: JaxprEqn) -> None:
        """Read a jitted function in place, as arrays inside of it are known."""
        self.take(inner.jaxpr.constvars, inner.consts)
        self.pass_on(equation.invars, inner.jaxpr.invars)
        self.equations(inner.jaxpr)
        self.pass_on(inner.jaxpr.outvars, equation.outvars)

    def loop(self, equation: JaxprEqn) -> None:
        """Read a loop with its body in place, whose constants may be known."""
        count, carries = scan_counts(equation.params)
        closed = equation.params["jaxpr"]
        body, moving = closed.jaxpr, equation.invars[count:]
        options = ("reverse", "length", "unroll", "_split_transpose")
        self.key.extend((equation.primitive, context(equation.ctx), carries))
        self.key.append(tuple(equation.params.get(name) for name in options))
        self.key.append(tuple(map(self.atom, moving)))
        self.take(body.constvars, closed.consts)
        self.pass_on(equation.invars[:count], body.invars[:count])
        # Carries and rows change from step to step, so they are never known.
        for variable in body.invars[count:]:
            self.input(variable)
        self.read(body)
        for variable in equation.outvars:
            self.input(variable)

    def pass_on(self, atoms: Sequence[Atom], variables: Sequence[Var]) -> None:
        """Give variables what others are."""
        for atom, variable in zip(atoms, variables, strict=True):
            if self.is_known(atom):
                bound = self.bound_of(atom)
                self.know(variable, self.value(atom), self.is_narrow(atom))
                if bound is not None:
                    self.bounds[variable] = bound
            else:
                assert isinstance(atom, Var)  # a literal is known
                self.known.pop(variable, None)
                self.number[variable] = self.number[atom]

    def write(self, equation: JaxprEqn) -> None:
        """Write an equation into the key."""
        self.key.append(equation.primitive)
        self.key.append(context(equation.ctx))
        self.key.append(tuple(map(self.atom, equation.invars)))
        self.writer.parameters(equation)
        for variable in equation.outvars:
            self.input(variable)

    def move(self, equation: JaxprEqn) -> Callable[[], Arrays] | None:
        """Return what does an operation that only moves numbers, or `None`."""
        name, parameters = equation.primitive.name, equation.params
        values = [self.value(atom) for atom in equation.invars]
        if name in MOVES:
            return lambda: MOVES[name](*values, **parameters)
        kinds = {value.dtype.kind for value in values}
        narrow = any(map(self.is_narrow, equation.invars))
        bound = self.bound(equation)
        # Cut to 32 bits, an integer compares as before only if nothing was cut off:
        # `test_what_numpy_counts_differently_is_seen`.
        exact = not narrow or bound is not None
        done: Callable[..., Arrays] | None = None
        if name == "select_n":
            if all(value.dtype.kind in _INTEGERS for value in values):
                done = SELECTED[name]
        elif kinds == {"b"}:
            done = LOGIC.get(name)
        elif kinds <= set("iu"):
            # Sums and products wrap around alike, whatever the width.
            done = RING.get(name) or (COMPARISONS.get(name) if exact else None)
        elif kinds == {"f"}:
            if not narrow and jax.config.jax_enable_x64:  # pyright: ignore
                done = ARITHMETIC.get(name)
            done = done or ORDERED.get(name)
            if name in COMPARISONS and self.compares_exactly(equation.invars, values):
                done = COMPARISONS[name]
            if name == "is_finite" and self.finite:
                done = np.isfinite
        if done is not None:
            taken = parameters if name.startswith("reduce_") else {}
            return lambda: done(*values, **taken)
        if name == "convert_element_type":
            was, now = values[0].dtype, np.dtype(parameters["new_dtype"])
            safe = kinds <= _INTEGERS and np.can_cast(was, now, "safe")
            if narrow and kinds <= set("iu"):
                safe = safe and bound is not None
            # What is cut off is the same, and was cut off before.
            safe = safe or (was.kind == now.kind == "i" and now.itemsize <= 4)
            whole = bound is not None and bound <= _EXACT_AS_FLOAT and now in _FLOATS
            # Of 32 bits: both round to the nearest float.
            whole = whole or (
                not narrow
                and kinds <= set("iu")
                and was.itemsize <= 4
                and now in _FLOATS
            )
            if was == now or safe or whole:
                return lambda: values[0].astype(now)
        return None

    def bound_of(self, atom: Atom) -> int | None:
        """Return what an integer is at most, whatever the content of arrays."""
        if isinstance(atom, Literal):
            value = np.asarray(atom.val)
            return abs(int(value)) if value.dtype.kind in "iu" else None
        return self.bounds.get(atom)

    def bound(self, equation: JaxprEqn) -> int | None:
        """Return the bound of the integers that an equation makes, if there is room.

        Without one they are those of NumPy but for what 32 bits cut off.
        """
        name, atoms = equation.primitive.name, equation.invars
        atoms = atoms[1:] if name == "select_n" else atoms
        bounds = [self.bound_of(atom) for atom in atoms]
        known = [b for b in bounds if b is not None]
        if not known or len(known) < len(bounds):
            return None
        if name not in RING:
            return max(known)
        largest = math.prod(known) if name == "mul" else sum(known)
        return largest if largest < _ROOM else None

    def compares_exactly(self, atoms: Sequence[Atom], values: list[np.ndarray]) -> bool:
        """Whether floats compare as they did with all their digits.

        Fewer digits change neither what is NaN nor what is infinite. Numbers below the
        normal range are zero for XLA, and not for NumPy.
        """
        sizes = [(np.abs(v), np.finfo(v.dtype).tiny) for v in values]
        if any(np.any((size > 0) & (size < least)) for size, least in sizes):
            return False
        same = not any(map(self.is_narrow, atoms)) or atoms[0] is atoms[-1]
        return same or (
            self.finite and any(v.ndim == 0 and np.isinf(v) for v in values)
        )


def needed(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """List the equations whose results go into those of a program, or do something.

    A library that checks what it gets, and then drops the outcome, leaves the others.
    """
    used = {v for v in jaxpr.outvars if not isinstance(v, Literal)}
    wanted = []
    for equation in reversed(jaxpr.eqns):
        if equation.effects or not used.isdisjoint(equation.outvars):
            used.update(a for a in equation.invars if not isinstance(a, Literal))
            wanted.append(equation)
    return wanted[::-1]
