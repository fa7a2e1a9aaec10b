"""Programs in canonical form: equal where they differ in arrays and numbers alone."""

from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple

import numpy as np

from ._compat import ClosedJaxpr, JaxprEqn, Literal, ShapedArray, Var
from ._fingerprint import KeyWriter, Path, Unrecognized
from ._primitives import CUSTOM, ProgramKind, traits_of
from ._types import Leaf


# Programs inside that are read as part of the whole. `with_numbers` hands their numbers
# in as captured arrays, so it must know how to run each of these.
OPEN = frozenset(
    {
        ProgramKind.CALL,
        ProgramKind.CHECKPOINT,
        ProgramKind.COND,
        ProgramKind.SCAN,
        ProgramKind.WHILE,
    }
)


RuleKey = Callable[[JaxprEqn], Hashable]


class Number(NamedTuple):
    """A number that is written into a program: as JAX has it, and its bits.

    `kind` is its dtype and whether it is weakly typed.
    """

    path: Path
    value: Leaf
    kind: tuple[np.dtype, bool]
    bits: bytes


class CanonicalForm(NamedTuple):
    """What tells a program apart from those that differ in arrays and numbers alone.

    Attributes:
        key: Structure, primitives, parameters and derivative rules.
        inputs: Which of the movable inputs are used, in the order of first use.
        numbers: The numbers written into it, in order.
    """

    key: Hashable
    inputs: tuple[int, ...]
    numbers: tuple[Number, ...]


def canonical_form(
    closed: ClosedJaxpr, movable: int, rule_key: RuleKey | None
) -> CanonicalForm:
    """Return the canonical form of a program.

    Two programs of one key compute the same function of their used inputs and numbers,
    and have the same derivatives: unlike the key of `fingerprint`, this one holds the
    rules of functions with a derivative of their own.

    Args:
        closed: A closed jaxpr.
        movable: How many of its first inputs may be left out or change places. Its
            constants are movable as well: they follow those inputs.
        rule_key: From the equation of a function with its own derivative to what its
            rules are known by; `None` if the program is only run, and not
            differentiated: then its rules do not count, and its body is read as part
            of the whole.

    Raises:
        Unrecognized: If a parameter or a rule cannot be compared by value.
    """
    jaxpr = closed.jaxpr
    reader = _Reader(rule_key)
    places = {v: i for i, v in enumerate((*jaxpr.invars[:movable], *jaxpr.constvars))}
    number: dict[Var, int] = {}
    for variable in jaxpr.invars[movable:]:
        number[variable] = len(number)
        reader.key.append(variable.aval)
    reader.equations(jaxpr, _NumberedAtFirstUse(number, places, reader))
    return CanonicalForm(tuple(reader.key), tuple(reader.inputs), tuple(reader.numbers))


class _NumberedAtFirstUse:
    """The numbers of a program's variables; movable inputs get theirs at first use."""

    def __init__(
        self, number: dict[Var, int], movable: Mapping[Var, int], reader: "_Reader"
    ) -> None:
        self.number = number
        self.movable = movable
        self.reader = reader

    def __getitem__(self, variable: Var) -> int:
        known = self.number.get(variable)
        if known is None:
            # Numbered when it is first read: an array that is never read leaves no
            # mark (`test_unused_arrays_are_left_out`), and in which order a closure
            # holds its arrays does not count.
            known = self.number[variable] = len(self.number)
            self.reader.key.append(("input", variable.aval))
            self.reader.inputs.append(self.movable[variable])
        return known

    def __setitem__(self, variable: Var, known: int) -> None:
        self.number[variable] = known

    def __len__(self) -> int:
        return len(self.number)


class _Reader(KeyWriter):
    """Reads a program into a key; `exact` counts the programs read bit by bit."""

    exact = 0

    def __init__(self, rule_key: RuleKey | None) -> None:
        super().__init__()
        self.rule_key = rule_key
        self.inputs: list[int] = []
        self.numbers: list[Number] = []

    def literal(self, literal: Literal, path: Path) -> Hashable:
        value = np.asarray(literal.val)
        # A small array in a program is not a number, and a number in a program that a
        # primitive keeps for itself has no way in: both are read bit by bit.
        aval = literal.aval
        if self.exact or value.ndim or value.dtype.kind not in "iufc":
            return super().literal(literal, path)
        assert isinstance(aval, ShapedArray)  # it is a number
        kind = (np.dtype(aval.dtype), bool(aval.weak_type))
        self.numbers.append(Number(path, literal.val, kind, value.tobytes()))
        return ("number", kind)

    def parameters(
        self, equation: JaxprEqn, path: Path = (), skipped: tuple[str, ...] = ()
    ) -> None:
        key, name, parameters = self.key, equation.primitive.name, equation.params
        if name in CUSTOM and self.rule_key is not None:
            # Equal bodies with other rules have other derivatives:
            # `test_equal_bodies_with_other_rules_are_other_functions`.
            key.append(self.rule_key(equation))
        if name == "slice" and parameters["strides"] is None and not self.exact:
            # A window at another place is the same program with another number.
            starts, limits = parameters["start_indices"], parameters["limit_indices"]
            key.append(tuple(b - a for a, b in zip(starts, limits, strict=True)))
            kind = (np.dtype("int32"), False)
            for i, start in enumerate(starts):
                bits = np.int32(start).tobytes()
                self.numbers.append(Number((*path, "start", i), start, kind, bits))
            skipped = (*skipped, "start_indices", "limit_indices")
        is_open = OPEN if self.rule_key is not None else {*OPEN, ProgramKind.RULED}
        closed_off = traits_of(equation).program not in is_open
        # A counter, as such programs may stand inside each other.
        self.exact += closed_off
        super().parameters(equation, path, skipped)
        self.exact -= closed_off

    def parameter(self, value: object, path: Path) -> None:
        own = type(value).__module__.partition(".")[0] == "hotk"
        # What says that its rule is no user's is compared by value.
        own = own and getattr(value, "users_rule", True)
        if own and self.rule_key is not None:
            # A rule of `hotk.rule` holds a function of the user, as it was made.
            raise Unrecognized("a derivative rule of the user")
        super().parameter(value, path)


def pruned(closed: ClosedJaxpr, movable: int, inputs: tuple[int, ...]) -> ClosedJaxpr:
    """Return a program with its used movable inputs in front, and without constants.

    Args:
        closed: The program.
        movable: How many of its first inputs are movable.
        inputs: Which ones to keep, as `canonical_form` numbers them.
    """
    jaxpr = closed.jaxpr
    every = (*jaxpr.invars[:movable], *jaxpr.constvars)
    invars = [*(every[i] for i in inputs), *jaxpr.invars[movable:]]
    # JAX checks that there is a name for each argument, and these have moved.
    debug = jaxpr.debug_info.with_unknown_names()
    return ClosedJaxpr(jaxpr.replace(constvars=[], invars=invars, debug_info=debug), ())
