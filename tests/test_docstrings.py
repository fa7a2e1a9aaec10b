"""Every public name has a whole docstring of its own, true to its signature.

A function or an operator has a sentence of its own, `Args` for each parameter,
`Returns`, `Raises` for each error that it raises, and an `Example`. A class documents
its fields and has an example if users make it. Each test lists all offenders, with what
is missing. `tests/test_docs.py` runs the examples.
"""

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import types

import equinox as eqx

import hotk
import hotk.testing
from hotk._mode import AbstractMode


FOLDERS = ["curvature", "linop", "estimate", "rule", "interop", "optim", "plot"]
FOLDERS += ["statistics"]
SPACES = ["", *(f"{folder}." for folder in FOLDERS), "testing.", "safe."]
SECTION = re.compile(r"^(\w+):\n", re.MULTILINE)
ENTRY = re.compile(r"^    \*{0,2}(\w+): ", re.MULTILINE)


def namespace(space):
    """Return the module behind `"linop."`, and the package itself behind `""`."""
    if space == "safe.":
        return hotk.safe
    return importlib.import_module(f"hotk.{space}".rstrip("."))


def public():
    """Yield each public function and class once, with its dotted name."""
    seen = set()
    for space in SPACES:
        for name, value in inspect.getmembers(namespace(space)):
            if name.startswith("_") or not callable(value):
                continue
            # A folder exports by its `__init__`; a file has imports of its own as well.
            home = "hotk.rule" if space == "safe." else "hotk"
            if not getattr(value, "__module__", "").startswith(home):
                continue
            if id(value) not in seen:
                seen.add(id(value))
                yield space + name, value


PUBLIC = dict(public())
CLASSES = {name: v for name, v in PUBLIC.items() if isinstance(v, type)}
FUNCTIONS = {name: v for name, v in PUBLIC.items() if name not in CLASSES}


def doc_of(value):
    return inspect.cleandoc(value.__doc__ or "")


def sections(value):
    """Return what stands before the first section under "", then each by its title."""
    parts = SECTION.split(doc_of(value))
    return dict(zip(["", *parts[1::2]], parts[0::2], strict=True))


@functools.cache
def definitions(path):
    """Return the functions at the top of a file, by name."""
    with open(path, encoding="utf-8") as file:
        body = ast.parse(file.read()).body
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def name_of_call(node):
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id
    return None


def raised(name, functions, seen=frozenset()):
    """Return the names of the errors that a function of a file raises.

    Those of the private functions of this file that it calls are among them; an error
    that such a function makes and returns is known by its annotation.
    """
    errors = set()
    for node in ast.walk(functions[name]):
        called = name_of_call(node)
        private = called is not None and called.startswith("_")
        if private and called in functions and called not in seen:
            errors |= raised(called, functions, seen | {name})
        if isinstance(node, ast.Raise) and (made := name_of_call(node.exc)):
            if made in functions:
                made = ast.unparse(functions[made].returns)
            errors.add(made)
    return {error for error in errors if error.endswith("Error")}


def missing_of_function(value):
    """Yield what the docstring of a function or an operator lacks."""
    documented = sections(value)
    head, *rest = doc_of(value).splitlines() or [""]
    if head.startswith("As `"):
        yield "a sentence of its own: it points to another function's"
    if not isinstance(value, types.FunctionType) and doc_of(value) == doc_of(
        type(value)
    ):
        yield "a docstring of its own: this one is its class's"
    if not head.endswith(".") or (rest and rest[0]):
        yield "a sentence as its first line, and a blank line after it"
    signature = inspect.signature(value)
    names = ENTRY.findall(documented.get("Args", ""))
    if names != list(signature.parameters):
        wanted = ", ".join(signature.parameters)
        yield f"Args for ({wanted}): it has ({', '.join(names)})"
    returns = signature.return_annotation
    returns_something = returns not in (None, "None") and "Iterator" not in str(returns)
    if returns_something and not documented.get("Returns", "").strip():
        yield "Returns"
    if ">>>" not in documented.get("Example", ""):
        yield "an Example that runs"
    function = inspect.unwrap(value)
    functions = definitions(inspect.getsourcefile(function))
    listed = set(ENTRY.findall(documented.get("Raises", "")))
    if hasattr(value, "prepare") and not listed:
        yield "Raises"
    if function.__name__ in functions:
        unlisted = raised(function.__name__, functions) - listed
        if unlisted:
            yield f"Raises for {', '.join(sorted(unlisted))}"


def fields_of(value):
    """Return the public fields of a class that has them in a declared order."""
    if issubclass(value, eqx.Module) or dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    else:
        names = list(getattr(value, "_fields", ()))
    return [name for name in names if not name.startswith("_")]


def is_made_by_users(name, value):
    """Tell classes that users make from results, states and errors."""
    bases = (
        hotk.linop.AbstractOperator,
        hotk.curvature.AbstractLoss,
        AbstractMode,
    )
    made_otherwise = ("linop.DataOperator", "linop.Linearized")
    abstract = name.split(".")[-1].startswith("Abstract")
    return issubclass(value, bases) and not abstract and name not in made_otherwise


def missing_of_class(name, value):
    """Yield what the docstring of a class lacks."""
    documented = sections(value) if "__doc__" in vars(value) else {}
    head = documented.get("", "").strip().partition("\n")[0]
    if not head.endswith("."):
        yield "a sentence as its first line"
    described = documented.get("Attributes", "") + documented.get("Args", "")
    unlisted = [f for f in fields_of(value) if f not in ENTRY.findall(described)]
    if unlisted:
        yield f"Attributes for {', '.join(unlisted)}"
    if is_made_by_users(name, value) and ">>>" not in documented.get("Example", ""):
        yield "an Example that runs"


def report(missing):
    lines = [f"{name} lacks {what}" for name, whats in missing for what in whats]
    return "\n".join(["docstrings are not complete:", *lines]) if lines else ""


def test_public_names_are_found():
    assert {"hvp", "linop.cg", "safe.norm", "testing.check"} <= set(FUNCTIONS)
    assert {"HessianOperator", "rule.Custom", "ModeError"} <= set(CLASSES)


def test_errors_are_found_in_helpers():
    functions = definitions(inspect.getsourcefile(hotk.safe.norm))
    assert raised("norm", functions) == {"DtypeError"}
    functions = definitions(inspect.getsourcefile(hotk.differential_operator))
    errors = raised("differential_operator", functions)
    assert errors == {"TypeError", "ValueError", "StructureError"}


def test_functions_have_whole_docstrings():
    missing = [(name, missing_of_function(value)) for name, value in FUNCTIONS.items()]
    assert not (text := report(missing)), text


def test_classes_have_whole_docstrings():
    missing = [(name, missing_of_class(name, v)) for name, v in CLASSES.items()]
    assert not (text := report(missing)), text
