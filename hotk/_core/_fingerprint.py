"""Programs compared by value."""

from collections.abc import Hashable, Sequence
from typing import Protocol, TypeAlias

import jax
import numpy as np

from ._compat import (
    RESULT_TREES,
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    Tracer,
    Var,
)
from ._primitives import CUSTOM
from ._types import Leaf


# Parameters that do not change what a program computes, only how it is named.
NAMES = frozenset({"name", "debug_info", "fwd_name", "keep_unused"})
# Rules of functions with their own derivative: irrelevant once a program is only run.
RULES = frozenset(
    {"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "fwd_jaxpr_thunk", "bwd", "out_trees"}
)
# Bytes of a constant that become part of a key, which is kept and hashed at each call.
_CONTENT_LIMIT = 1 << 24
# Where something stands in a program: the numbers of equations on the way to it, from
# the outside in, then which operand or parameter it is.
Path: TypeAlias = tuple[int | str, ...]


class Numbering(Protocol):
    """Variables by the order in which they come, so that their names do not count."""

    def __getitem__(self, variable: Var, /) -> int: ...

    def __setitem__(self, variable: Var, number: int, /) -> None: ...

    def __len__(self) -> int: ...


class Unrecognized(Exception):
    """A program holds something that cannot be compared by value."""


def fingerprint(
    closed: ClosedJaxpr, *, lift: bool
) -> tuple[Hashable, tuple[Leaf, ...]]:
    """Return a key under which equal programs are equal, and the constants lifted out.

    Two programs with the same key compute the same numbers; their derivative rules may
    differ, so the key is good for running a program, not for differentiating it.

    Args:
        closed: A closed jaxpr.
        lift: Whether the constants of the outermost jaxpr are taken out (they become
            arguments); otherwise they are part of the key, bit by bit.

    Raises:
        Unrecognized: If a parameter cannot be compared by value.
    """
    writer = KeyWriter()
    if lift:
        writer.key.append(tuple(v.aval for v in closed.jaxpr.constvars))
        constants = tuple(closed.consts)
    else:
        writer.key.append(tuple(map(content, closed.consts)))
        constants = ()
    writer.program(closed.jaxpr)
    return tuple(writer.key), constants


def content(value: object) -> Hashable:
    """Return shape, dtype and bits of a constant."""
    if isinstance(value, Tracer):
        raise Unrecognized("a tracer among the constants")
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(
        value.dtype, jax.dtypes.extended
    ):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype == object or array.nbytes > _CONTENT_LIMIT:
        raise Unrecognized("a constant without comparable content")
    # The class and the weak type tell apart programs that promote otherwise.
    weak = bool(getattr(value, "weak_type", False))
    return (type(value), array.shape, array.dtype.name, weak, array.tobytes())


def context(made_under: object) -> Hashable:
    """Return the settings that an equation was traced under and keeps."""
    metadata = getattr(made_under, "xla_metadata", None)
    return (
        getattr(made_under, "compute_type", None),
        getattr(made_under, "threefry_partitionable", None),
        str(metadata) if metadata else None,  # it has no hash
    )


class KeyWriter:
    """Writes a program into a key: all of its numbers are part of it, bit by bit."""

    def __init__(self) -> None:
        self.key: list[Hashable] = []

    def program(self, jaxpr: Jaxpr, path: Path = ()) -> None:
        """Write a program with its own variables."""
        number: Numbering = {}
        for variable in (*jaxpr.constvars, *jaxpr.invars):
            number[variable] = len(number)
            self.key.append(variable.aval)
        self.equations(jaxpr, number, path)

    def equations(self, jaxpr: Jaxpr, number: Numbering, path: Path = ()) -> None:
        """Write the equations and the outputs, given the numbers of the inputs."""
        key = self.key
        for at, equation in enumerate(jaxpr.eqns):
            here = (*path, at)
            # The primitive itself, not its name: two libraries may use one name.
            key.append(equation.primitive)
            key.append(context(equation.ctx))
            key.append(self.atoms(equation.invars, number, here))
            self.parameters(equation, here)
            for variable in equation.outvars:
                number[variable] = len(number)
                key.append(variable.aval)
        key.append(self.atoms(jaxpr.outvars, number, (*path, "out")))

    def atoms(self, atoms: Sequence[Atom], number: Numbering, path: Path) -> Hashable:
        """Return what stands for operands."""
        return tuple(
            self.literal(atom, (*path, i))
            if isinstance(atom, Literal)
            else number[atom]
            for i, atom in enumerate(atoms)
        )

    def literal(self, literal: Literal, path: Path) -> Hashable:
        """Return what stands for a number in a program."""
        del path
        return ("literal", literal.aval, content(literal.val))

    def parameters(
        self, equation: JaxprEqn, path: Path = (), skipped: tuple[str, ...] = ()
    ) -> None:
        """Write what an operation does, but for its operands, names and rules."""
        custom = equation.primitive.name in CUSTOM
        for name in sorted(equation.params):
            if name in NAMES or name in skipped or (custom and name in RULES):
                continue
            self.key.append(name)
            self.parameter(equation.params[name], (*path, name))

    def parameter(self, value: object, path: Path) -> None:
        """Write a parameter, the programs in it as what they compute."""
        key = self.key
        if isinstance(value, ClosedJaxpr):
            key.append(tuple(map(content, value.consts)))
            self.program(value.jaxpr, path)
        elif isinstance(value, Jaxpr):
            self.program(value, path)
        elif isinstance(value, (tuple, list)):
            key.append((type(value), len(value)))
            for i, item in enumerate(value):
                self.parameter(item, (*path, i))
        elif isinstance(value, dict):
            key.append((dict, len(value)))
            for name, item in value.items():
                key.append(name)
                self.parameter(item, (*path, name))
        elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
            key.append(content(value))
        elif isinstance(value, RESULT_TREES):  # it follows from the other parameters
            key.append(type(value))
        elif isinstance(value, float):
            key.append((float, value.hex()))  # `-0.0 == 0.0`, and `nan != nan`
        else:
            try:
                hash(value)
            except TypeError as error:
                what = f"a parameter of type {type(value).__name__}"
                raise Unrecognized(what) from error
            key.append((type(value), value))  # `True == 1 == 1.0`
