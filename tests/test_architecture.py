"""The house stands as `docs/architecture.md` draws it."""

import ast
import graphlib
import importlib
import pkgutil
from pathlib import Path

import equinox as eqx
import pytest

import hotk


HOUSE = Path(__file__).parents[1]
ROOT = HOUSE / "hotk"

# Imports go down: a floor uses the floors before it. Those of the roof, on the last
# line, use everything below and never each other.
FLOORS = [
    "_core",
    "capture",
    "primitive",
    "dense",
    "mode",
    "prepared",
    "rule",
    "first",
    "second",
    "curvature",
    "taylor",
    "sparse",
    "linop",
    "estimate",
    "optim interop parallel export plot",
]
HEIGHT = {name: i for i, names in enumerate(FLOORS) for name in names.split()}
# Those that users enter by themselves.
ENTERED = ("curvature", "linop", "estimate", "rule", "interop", "optim", "plot")
INTERNALS = ("jax._src", "jax.extend", "jax.interpreters", "equinox.internal")
INTERNALS_DOORS = (ROOT / "_core" / "_compat.py", ROOT / "_core" / "_compat_trace.py")
TOP = {"pyproject.toml", "README.md", "LICENSE", "hotk", "tests", "notebooks", "docs"}
MADE_BY_TOOLS = {"__pycache__", "build", "dist", "site"}
DRAWERS = {"utils", "util", "misc", "common", "base", "helpers"}

FILES = sorted(ROOT.rglob("*.py"))
DOORS = [path for path in FILES if path.name == "__init__.py"]
each_file = pytest.mark.parametrize(
    "path", FILES, ids=lambda path: str(path.relative_to(HOUSE))
)
each_door = pytest.mark.parametrize(
    "path", DOORS, ids=lambda path: str(path.relative_to(HOUSE))
)


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def floor_of(path):
    """Return the floor a file is on, or `None` beside the floors (`hotk/demo.py`)."""
    name = path.relative_to(ROOT).parts[0]
    return name if name in HEIGHT else None


def imports(path):
    """Yield `(level, module, names)` for each import statement of a file."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, []


def test_there_is_something_to_look_at():
    assert FILES
    assert DOORS


@each_file
def test_every_file_is_on_a_floor_or_uses_public_names_only(path):
    inside = path.relative_to(ROOT).parts
    if floor_of(path) is None and inside != ("__init__.py",):
        used = [module for _, module, _ in imports(path) if module.startswith("hotk")]
        public = {"hotk", *(f"hotk.{floor}" for floor in ENTERED)}
        assert set(used) <= public, "beside the floors: `import hotk`, as users do"
        assert all(level == 0 for level, _, _ in imports(path))


@each_file
def test_imports_go_down_and_through_doors(path):
    if (here := floor_of(path)) is None:
        return
    for level, module, names in imports(path):
        assert level <= 1, "a relative import stays on its floor"
        if level == 0 and module.split(".")[0] == "hotk":
            assert module.count(".") == 1, f"{module}: enter a floor by its door"
            floor = module.split(".")[1]
            assert HEIGHT[floor] < HEIGHT[here], f"{module} is not below {here}"
            private = [name for name in names if name.startswith("_")]
            assert not private, f"{module}: {private} is another floor's own room"


def test_no_file_needs_itself():
    """The files of a floor import each other in one order."""
    needs = {path: set() for path in FILES}
    for path in FILES:
        for level, module, names in imports(path):
            if level == 1:
                for name in [module] if module else names:
                    needs[path].add(path.parent / f"{name}.py")
    list(graphlib.TopologicalSorter(needs).static_order())  # raises on a cycle


@each_door
def test_a_door_is_imports_and_each_is_an_export(path):
    """So that a name is exported once, by `from ._hvp import hvp as hvp`."""
    docstring, *body = tree(path).body
    assert isinstance(docstring, ast.Expr), "a door has a docstring"
    for node in body:
        text = ast.unparse(node)
        if path.parent == ROOT and text.startswith("__version__ = "):
            continue
        assert isinstance(node, ast.ImportFrom), text
        if path.parent == ROOT and node.module is None:
            assert {alias.name for alias in node.names} <= set(FLOORS[-1].split()), text
        elif path.parent == ROOT:
            assert node.module.removeprefix("hotk.") in HEIGHT, text
        else:
            assert node.level == 1, f"{text}: a floor exports what is on it"
        hidden = [alias.name for alias in node.names if alias.asname != alias.name]
        assert not hidden, f"{text}: write `{hidden[0]} as {hidden[0]}`"


@each_file
def test_internals_are_touched_in_two_files(path):
    if path in INTERNALS_DOORS:
        return
    used = {module for _, module, _ in imports(path)}
    used |= {f"{module}.{n}" for _, module, names in imports(path) for n in names}
    used |= {
        ast.unparse(node).replace("eqx.", "equinox.", 1)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
    }
    touched = [u for u in used if f"{u}.".startswith(tuple(f"{i}." for i in INTERNALS))]
    assert not touched


@each_file
def test_a_file_is_named_for_what_is_in_it(path):
    assert path.stem.strip("_") not in DRAWERS
    assert path.parent.name.strip("_") not in DRAWERS


@each_file
def test_a_file_is_read_in_one_sitting(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@each_file
def test_a_module_is_one_sentence_long_at_least(path):
    assert ast.get_docstring(tree(path))


def all_modules():
    """Import all of hotk, but for what runs when imported or needs an extra."""
    for info in pkgutil.walk_packages(hotk.__path__, "hotk."):
        if not info.name.startswith("hotk.demo"):
            importlib.import_module(info.name)
    found, todo = [], [eqx.Module]
    while todo:
        subclasses = todo.pop().__subclasses__()
        todo += subclasses
        found += subclasses
    return [cls for cls in found if cls.__module__.split(".")[0] == "hotk"]


def test_every_module_is_abstract_or_final():
    """An abstract class cannot be made, a final one not be subclassed; none is both."""
    modules = all_modules()
    assert modules
    for cls in modules:
        abstract = cls.__name__.lstrip("_").startswith("Abstract")
        assert abstract or not cls.__subclasses__(), f"{cls} is subclassed"


def test_the_top_of_the_repository_is_fixed():
    here = {path.name for path in HOUSE.iterdir()}
    made = {n for n in here if n in MADE_BY_TOOLS or n.endswith(".egg-info")}
    assert {n for n in here - made if not n.startswith(".")} <= TOP
