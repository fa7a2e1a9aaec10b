"""Where a program uses its parameters, found without running it."""

import functools
import os
import pathlib
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp

from hotk._capture import is_library_file
from hotk._core import (
    CELL,
    Atom,
    ClosedJaxpr,
    Jaxpr,
    JaxprEqn,
    Literal,
    ProgramKind,
    called_program,
    has_users_rule,
    scan_counts,
    source_frames,
    source_line,
    traits_of,
)

from ._match import MATCHES, Place, join, output_of
from ._site import OperationKind, Other, Output, Path, Site, Value
from ._structural import Numbers, structural
from ._view import Shape, View


_HOTK = os.path.join(pathlib.Path(__file__).parents[2], "")
_is_library = functools.cache(is_library_file)  # it asks the file system


class Unmatched(NamedTuple):
    """Parameters that an operation uses in another way than a site.

    Attributes:
        view: The entries.
        name: The name of the operation.
        line: The line of the model that made it.
    """

    view: View
    name: str
    line: str


class ParameterUses(NamedTuple):
    """Where a program uses its parameters.

    Attributes:
        sites: The sites.
        unmatched: The other uses.
    """

    sites: list[Site]
    unmatched: list[Unmatched]


class _Scope(NamedTuple):
    """A program that is inside of others: its place, and the scans around it."""

    path: Path
    line: str
    lengths: Shape


def find(closed: ClosedJaxpr, values: Sequence[Value]) -> ParameterUses:
    """Find the sites of a program.

    Args:
        closed: The program.
        values: For each argument a view, if it is a parameter, or whether it varies
            from example to example.
    """
    found = ParameterUses([], [])
    outputs = _walk(closed.jaxpr, values, _Scope((), "", ()), found)
    for value in outputs:
        if isinstance(value, View):
            found.unmatched.append(Unmatched(value, "output", ""))
    return found


_Values: TypeAlias = list[Value]


def _walk(
    jaxpr: Jaxpr, arguments: Sequence[Value], scope: _Scope, found: ParameterUses
) -> _Values:
    """Return what is known of the outputs of a program."""
    known: dict[Any, Value] = dict.fromkeys(jaxpr.constvars, Other.FIXED)
    uses = _uses(jaxpr)

    def note(variable: Any, value: Value) -> None:
        # A bias is that of a product if nothing else reads the product.
        alone = not isinstance(value, Output) or uses[variable] == 1
        known[variable] = value if alone else Other.VARIES

    for variable, value in zip(jaxpr.invars, arguments, strict=True):
        note(variable, value)

    def read(atom: Atom) -> Value:
        return Other.FIXED if isinstance(atom, Literal) else known[atom]

    for number, equation in enumerate(jaxpr.eqns):
        line = _line_of(equation) or scope.line
        inside = _Scope((*scope.path, number), line, scope.lengths)
        outputs = _step(equation, list(map(read, equation.invars)), inside, found)
        for variable, value in zip(equation.outvars, outputs, strict=True):
            note(variable, value)
    return list(map(read, jaxpr.outvars))


def _line_of(equation: JaxprEqn) -> str:
    """Return the line of the model, not of a library that it calls, in a short form."""
    innermost = None
    for frame in source_frames(equation):
        innermost = innermost or frame
        file, _, _ = frame
        if file.startswith(_HOTK):  # outside is whoever asked for the curvature
            break
        if not _is_library(file):
            return _short(frame)
    return _short(innermost) if innermost else source_line(equation)


def _short(frame: tuple[str, int, str]) -> str:
    file, line, function = frame
    place = "/".join(pathlib.Path(file).parts[-2:])
    if CELL.fullmatch(file):
        place = "notebook cell"
    return f"{place}:{line} ({function.rpartition('<locals>.')[2]})"


def _uses(jaxpr: Jaxpr) -> Counter:
    atoms = [atom for equation in jaxpr.eqns for atom in equation.invars]
    return Counter(a for a in [*atoms, *jaxpr.outvars] if not isinstance(a, Literal))


def _step(
    equation: JaxprEqn, inputs: _Values, scope: _Scope, found: ParameterUses
) -> _Values:
    name, count = equation.primitive.name, len(equation.outvars)
    varies = any(v is Other.VARIES or isinstance(v, Output) for v in inputs)
    rest: _Values = [Other.VARIES if varies else Other.FIXED] * count
    views = [i for i, value in enumerate(inputs) if isinstance(value, View)]
    outputs = [i for i, value in enumerate(inputs) if isinstance(value, Output)]
    if not views and not outputs:
        return rest
    body = called_program(equation)
    ruled = traits_of(equation).program is ProgramKind.RULED and has_users_rule(
        equation
    )
    if body is not None and not ruled:
        return _walk(body.jaxpr, inputs, scope, found)
    if traits_of(equation).program is ProgramKind.SCAN:
        return _scan(equation, inputs, scope, found)
    if name == "optimization_barrier":
        return inputs
    if len(views) + len(outputs) == 1:
        made = _moved(equation, inputs, (views or outputs)[0])
        if made is not None:
            return made
    if not views or name == "stop_gradient":
        return rest
    matched = _match(equation, inputs, views, scope, found)
    if matched is not None:
        return [matched if isinstance(matched, Output) and varies else rest[0]]
    for i in views:
        value = inputs[i]
        assert isinstance(value, View)
        found.unmatched.append(Unmatched(value, name, scope.line))
    return rest


def _moved(equation: JaxprEqn, inputs: _Values, k: int) -> _Values | None:
    """Apply a structural operation to its one view or output of a product."""
    value = inputs[k]
    view = value.view if isinstance(value, Output) else value
    assert isinstance(view, View)
    commutes = equation.primitive.name == "mul"
    if k != 0 and not commutes:
        return None
    numbers: Numbers = [_number(a) for i, a in enumerate(equation.invars) if i != k]
    made = structural(view, equation, numbers)
    if made is None:
        return None
    if not isinstance(value, Output):
        return list(made)
    # A multiple of a product is another one, to which the bias is added.
    if any(v.factor != view.factor for v in made):
        return None
    return [Output(value.site, v) for v in made]


def _number(atom: Atom) -> float | None:
    """Return a number that is written in the program."""
    if not isinstance(atom, Literal) or getattr(atom.val, "ndim", 0):
        return None
    return float(atom.val)


def _match(
    equation: JaxprEqn,
    inputs: _Values,
    views: list[int],
    scope: _Scope,
    found: ParameterUses,
) -> Site | Output | None:
    """Return a site that an operation is, or the output of one that is a product."""
    rule = MATCHES.get(equation.primitive.name)
    if rule is None or len(views) != 1:
        return None
    [side] = views
    view = inputs[side]
    assert isinstance(view, View)
    atoms: list[Any] = [*equation.invars, *equation.outvars]
    # Moments of complex numbers would need a conjugate, and their two parts each.
    if 0 in view.shape or any(jnp.iscomplexobj(atom.aval) for atom in atoms):
        return None
    site = rule(equation, view, side, Place(scope.path, scope.line, scope.lengths))
    if site is None:
        return None
    entries = site.view
    if site.kind not in (OperationKind.PRODUCT, OperationKind.TABLE):
        entries = entries.sorted()
    if entries.layout is None:
        return None
    if site.kind in (OperationKind.PRODUCT, OperationKind.TABLE):
        found.sites.append(site)
        return output_of(site) if site.kind is OperationKind.PRODUCT else site
    other = inputs[1 - side]
    if isinstance(other, Output) and site.kind is OperationKind.BIAS:
        product, bias = other.site, join(site, other, site.view)
        if product.bias is None and bias is not None and bias.layout is not None:
            product.bias = bias
            return site
    # What is the same for all examples is no place to look at single ones.
    if other is Other.FIXED or isinstance(other, View):
        return None
    found.sites.append(site)
    return site


def _scan(
    equation: JaxprEqn, inputs: _Values, scope: _Scope, found: ParameterUses
) -> _Values:
    """Walk the body of a scan; parameters are constants of it, or one slice a step."""
    parameters = equation.params
    body, length = parameters["jaxpr"].jaxpr, parameters["length"]
    constants, carries = scan_counts(parameters)
    varies = any(v is Other.VARIES or isinstance(v, Output) for v in inputs)
    rest = Other.VARIES if varies else Other.FIXED
    inside: _Values = []
    outputs: _Values = [rest] * len(equation.outvars)
    for i, value in enumerate(inputs):
        carry = i - constants
        carried = 0 <= carry < carries
        unchanged = carried and body.outvars[carry] is body.invars[i]
        if not isinstance(value, View):
            fixed = value is Other.FIXED and (not carried or unchanged)
            inside.append(Other.FIXED if fixed else rest)
        elif carried and not unchanged:
            place = Unmatched(value, "scan, as a carry", scope.line)
            found.unmatched.append(place)
            inside.append(rest)
        else:
            sliced = i >= constants + carries
            inside.append(value.in_scan(length, sliced=sliced))
            if unchanged:
                outputs[carry] = value
    within = _Scope(scope.path, scope.line, (*scope.lengths, length))
    results = _walk(body, inside, within, found)
    for i, value in enumerate(results):
        unchanged = i < carries and body.outvars[i] is body.invars[constants + i]
        if isinstance(value, View) and not unchanged:
            found.unmatched.append(Unmatched(value, "scan, as a result", scope.line))
    return outputs
