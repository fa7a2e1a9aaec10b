"""Every public name is documented, and its documentation is about its signature."""

import importlib
import inspect
import re
import types

import hotk
from tests.offenders import none


# Names that users reach, those of the floors they enter by themselves as well.
FLOORS = ["curvature", "linop", "estimate", "rule", "interop", "optim", "plot"]
FLOORS += ["statistics", "sparse"]
SPACES = ["", *(f"{floor}." for floor in FLOORS)]
PUBLIC = {
    space + name: value
    for space in SPACES
    for name, value in inspect.getmembers(importlib.import_module(f"hotk.{space}"[:-1]))
    if not name.startswith("_") and not isinstance(value, types.ModuleType)
}
PUBLIC |= {
    f"safe.{name}": value
    for name, value in vars(hotk.safe).items()
    if not name.startswith("_")
    and getattr(value, "__module__", "").startswith("hotk.rule")
    and name not in vars(hotk.rule)
}
PUBLIC = {
    name: value
    for name, value in PUBLIC.items()
    if "." not in name or PUBLIC.get(name.split(".")[1]) is not value
}
FUNCTIONS = {
    name: value
    for name, value in PUBLIC.items()
    if callable(value) and not isinstance(value, type)
}
# `op.prepare(f, x)` exists for each of these.
OPERATORS = {name: f for name, f in FUNCTIONS.items() if hasattr(f, "prepare")}

SECTIONS = ["Args", "Returns", "Raises", "Example", "References"]


def sections(name):
    """Return what stands before the first section under "", then each by its title."""
    parts = re.split(r"^(\w+):\n", inspect.getdoc(PUBLIC[name]), flags=re.MULTILINE)
    return dict(zip(["", *parts[1::2]], parts[0::2], strict=True))


def is_variant(name):
    """Tell whether the docstring points to another's: "As `hvp`, and ..."."""
    return inspect.getdoc(PUBLIC[name]).startswith("As `")


def test_operators_are_found():
    assert "hvp" in OPERATORS


def without_own_docstring(name):
    value = PUBLIC[name]
    doc = inspect.getdoc(value)
    function = name in FUNCTIONS and not isinstance(value, types.FunctionType)
    return not doc or (function and doc == inspect.getdoc(type(value)))


def test_a_public_name_has_a_docstring_of_its_own():
    none(
        filter(without_own_docstring, PUBLIC),
        "Each public name has a docstring, and one that is not that of its class.",
    )


def begins_badly(name):
    first, *rest = inspect.getdoc(PUBLIC[name]).splitlines()
    return not first.endswith(".") or bool(rest and rest[0])


def test_the_first_line_is_a_sentence():
    none(
        filter(begins_badly, FUNCTIONS),
        "The first line of a docstring is one sentence with its full stop, and a blank "
        "line follows.",
    )


def points_nowhere(name):
    [whole] = re.findall(r"^As `([\w.]+)`", inspect.getdoc(PUBLIC[name]))
    return whole not in FUNCTIONS or is_variant(whole)


def test_a_variant_points_to_a_public_name():
    none(
        filter(points_nowhere, filter(is_variant, FUNCTIONS)),
        'A docstring that begins with "As `name`" names a public function whose own '
        "docstring is whole.",
    )


def unordered_sections(name):
    titles = [title for title in sections(name) if title]
    known = [title for title in SECTIONS if title in titles]
    return titles != known and f"{name}: {titles}"


def test_sections_are_known_and_in_order():
    none(
        filter(None, map(unordered_sections, FUNCTIONS)),
        "The sections of a docstring are these, in this order: " + ", ".join(SECTIONS),
    )


def undocumented_arguments(name):
    if is_variant(name):
        return ""
    documented = re.findall(
        r"^    \*{0,2}(\w+): ", sections(name).get("Args", ""), re.MULTILINE
    )
    parameters = list(inspect.signature(PUBLIC[name]).parameters)
    if documented == parameters:
        return ""
    return f"{name}: documented {documented}, the signature has {parameters}"


def test_the_arguments_are_documented_in_order():
    none(
        filter(None, map(undocumented_arguments, FUNCTIONS)),
        "The section `Args` names each parameter of the signature, in its order.",
    )


def missing_of_an_operator(name):
    if is_variant(name):
        return
    documented = sections(name)
    for title in ("Returns", "Raises", "Example"):
        if title not in documented:
            yield f"{name} has no section {title}"
    if ">>>" not in documented.get("Example", ""):
        yield f"{name} shows no `>>>`"
    raised = documented.get("Raises", "")
    errors = re.findall(r"^    (\w+): ", raised, re.MULTILINE)
    if not errors:
        yield f"{name} names no error"
    for error in errors:
        if not issubclass(getattr(hotk, error, object), hotk.HotkError):
            yield f"{name}: {error} is no error of hotk"


def test_an_operator_says_what_it_returns_what_it_refuses_and_shows_it():
    none(
        (found for name in OPERATORS for found in missing_of_an_operator(name)),
        "An operator has sections `Returns`, `Raises` (errors that hotk exports, one a "
        "line) and `Example` (with `>>>`).",
    )


def unlike_its_references(name):
    documented = sections(name)
    listed = re.findall(
        r"^    (\[\d+\]) .*\(\d{4}\)", documented.pop("References", ""), re.MULTILINE
    )
    documented.pop("Example", None)
    cited = re.findall(r"\s(\[\d+\])", "\n".join(documented.values()))
    if set(listed) == set(cited):
        return ""
    return f"{name}: cited {sorted(set(cited))}, listed {sorted(set(listed))}"


def test_what_is_cited_is_listed_and_what_is_listed_is_cited():
    none(
        filter(None, map(unlike_its_references, FUNCTIONS)),
        "Each `[1]` of the text stands in `References` with its year in parentheses, "
        "and each reference is cited.",
    )


# Classes that a user makes: the others are errors, states and results.
MADE = {
    name: value
    for name, value in PUBLIC.items()
    if isinstance(value, type)
    and not name.split(".")[-1].startswith("Abstract")
    and (
        issubclass(value, (hotk.linop.AbstractOperator, hotk.curvature.AbstractLoss))
        or issubclass(value, type(hotk.FORWARD_OVER_REVERSE).__mro__[-3])
    )
    and name not in ("linop.DataOperator", "linop.Linearized")
}


def test_what_is_called_is_shown_by_an_example():
    none(
        (
            name
            for name in dict.fromkeys([*FUNCTIONS, *MADE])
            if not is_variant(name) and "Example" not in sections(name)
        ),
        "What a user calls has a section `Example` in its docstring.",
    )


def returns_unsaid(name):
    returned = inspect.signature(PUBLIC[name]).return_annotation
    if returned in (None, "None") or "Iterator" in str(returned):
        return False
    return not is_variant(name) and "Returns" not in sections(name)


def test_what_is_returned_is_documented():
    none(
        filter(returns_unsaid, FUNCTIONS),
        "What returns something says what in a section `Returns`.",
    )


def test_the_product_names_its_source():
    assert "References" in sections("value_gradient_and_hvp")


def test_each_name_is_exported_once():
    names = {}
    for name, value in PUBLIC.items():
        names.setdefault(id(value), []).append(name)
    none(
        (" and ".join(twice) for twice in names.values() if len(twice) > 1),
        "A thing is public under one name: take the others out of `__init__.py`.",
    )


def test_errors_are_caught_as_python_names_them():
    for name, kinds in {
        "StructureError": ValueError,
        "DtypeError": TypeError,
        "OutputError": TypeError,
        "ModeError": NotImplementedError,
        "PreparationError": TypeError,
        "TooLargeError": MemoryError,
        "NotPositiveDefiniteError": ValueError,
        "VerificationError": ArithmeticError,
    }.items():
        assert issubclass(getattr(hotk, name), hotk.HotkError)
        assert issubclass(getattr(hotk, name), kinds)
