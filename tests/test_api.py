"""Every public name is documented, and its documentation is about its signature."""

import importlib
import inspect
import re
import types

import pytest

import hotk


# Names that users reach, those of the floors they enter by themselves as well.
FLOORS = ["curvature", "linop", "estimate", "rule", "interop", "optim", "plot"]
SPACES = ["", *(f"{floor}." for floor in FLOORS)]
PUBLIC = {
    space + name: value
    for space in SPACES
    for name, value in vars(importlib.import_module(f"hotk.{space}"[:-1])).items()
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

each_name = pytest.mark.parametrize("name", PUBLIC)
each_function = pytest.mark.parametrize("name", FUNCTIONS)
each_operator = pytest.mark.parametrize("name", OPERATORS)

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


@each_name
def test_a_public_name_has_a_docstring_of_its_own(name):
    value = PUBLIC[name]
    doc = inspect.getdoc(value)
    assert doc
    if name in FUNCTIONS and not isinstance(value, types.FunctionType):
        assert doc != inspect.getdoc(type(value)), "this documents the class"


@each_function
def test_the_first_line_is_a_sentence(name):
    first, *rest = inspect.getdoc(PUBLIC[name]).splitlines()
    assert first.endswith(".")
    assert not rest or not rest[0], "a blank line follows the first"


@each_function
def test_a_variant_points_to_a_public_name(name):
    if is_variant(name):
        [whole] = re.findall(r"^As `([\w.]+)`", inspect.getdoc(PUBLIC[name]))
        assert whole in FUNCTIONS
        assert not is_variant(whole)


@each_function
def test_sections_are_known_and_in_order(name):
    titles = [title for title in sections(name) if title]
    assert titles == [title for title in SECTIONS if title in titles]


@each_function
def test_the_arguments_are_documented_in_order(name):
    if is_variant(name):
        return
    documented = re.findall(
        r"^    \*{0,2}(\w+): ", sections(name).get("Args", ""), re.MULTILINE
    )
    assert documented == list(inspect.signature(PUBLIC[name]).parameters)


@each_operator
def test_an_operator_says_what_it_returns_what_it_refuses_and_shows_it(name):
    if is_variant(name):
        return
    documented = sections(name)
    assert {"Returns", "Raises", "Example"} <= set(documented)
    assert ">>>" in documented["Example"]
    errors = re.findall(r"^    (\w+): ", documented["Raises"], re.MULTILINE)
    assert errors
    assert all(issubclass(getattr(hotk, error), hotk.HotkError) for error in errors)


@each_function
def test_what_is_cited_is_listed_and_what_is_listed_is_cited(name):
    documented = sections(name)
    listed = re.findall(
        r"^    (\[\d+\]) .*\(\d{4}\)", documented.pop("References", ""), re.MULTILINE
    )
    documented.pop("Example", None)
    cited = re.findall(r"\s(\[\d+\])", "\n".join(documented.values()))
    assert set(listed) == set(cited)


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


@pytest.mark.parametrize("name", [*FUNCTIONS, *MADE])
def test_what_is_called_is_shown_by_an_example(name):
    if not is_variant(name):
        assert "Example" in sections(name)


@each_function
def test_what_is_returned_is_documented(name):
    returned = inspect.signature(PUBLIC[name]).return_annotation
    if returned not in (None, "None") and "Iterator" not in str(returned):
        assert is_variant(name) or "Returns" in sections(name)


def test_the_product_names_its_source():
    assert "References" in sections("value_gradient_and_hvp")


def test_each_name_is_exported_once():
    values = [id(value) for value in PUBLIC.values()]
    assert len(set(values)) == len(values)


def test_errors_are_caught_as_python_names_them():
    for name, kinds in {
        "StructureError": ValueError,
        "DtypeError": TypeError,
        "OutputError": TypeError,
        "ModeError": NotImplementedError,
        "PreparationError": TypeError,
        "TooLargeError": MemoryError,
        "NotPositiveDefiniteError": ValueError,
    }.items():
        assert issubclass(getattr(hotk, name), hotk.HotkError)
        assert issubclass(getattr(hotk, name), kinds)
