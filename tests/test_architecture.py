"""The house stands as `docs/architecture.md` draws it."""

import ast
import graphlib
import importlib
import pkgutil
from pathlib import Path

import equinox as eqx

import hotk
from tests.offenders import none


HOUSE = Path(__file__).parents[1]
ROOT = HOUSE / "hotk"

# Imports go down: a floor uses the floors before it. Those of the roof, on the last
# line, use everything below and never each other.
FLOORS = [
    "_core",
    "_capture",
    "_primitive",
    "_dense",
    "_mode",
    "_prepared",
    "rule",
    "_first",
    "_second",
    "curvature",
    "_higher",
    "sparse",
    "linop",
    "estimate",
    "optim",
    "statistics interop _exported plot verify",
]
HEIGHT = {name: i for i, names in enumerate(FLOORS) for name in names.split()}
# Those that users enter by themselves.
ENTERED = (
    *("curvature", "linop", "estimate", "rule", "interop", "optim", "plot"),
    *("statistics", "sparse", "verify"),
)
INTERNALS = ("jax._src", "jax.extend", "jax.interpreters", "equinox.internal")
INTERNALS_DOORS = (ROOT / "_core" / "_compat.py", ROOT / "_core" / "_compat_trace.py")
TOP = {"pyproject.toml", "README.md", "LICENSE", "hotk", "tests", "notebooks", "docs"}
MADE_BY_TOOLS = {"__pycache__", "build", "dist", "site"}
MADE_BY_TOOLS |= {"PKG-INFO"}  # in an unpacked source archive
DRAWERS = {"utils", "util", "misc", "common", "base", "helpers"}

FILES = sorted(ROOT.rglob("*.py"))
DOORS = [path for path in FILES if path.name == "__init__.py"]


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def named(path):
    """Name a file as it stands in the repository."""
    return path.relative_to(HOUSE).as_posix()


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


def not_public(path):
    if floor_of(path) is not None or path == ROOT / "__init__.py":
        return
    public = {"hotk", *(f"hotk.{floor}" for floor in ENTERED)}
    for level, module, _ in imports(path):
        if level or (module.startswith("hotk") and module not in public):
            yield f"{named(path)} imports {'.' * level}{module}"


def test_every_file_is_on_a_floor_or_uses_public_names_only():
    none(
        (found for path in FILES for found in not_public(path)),
        "A file beside the floors writes `import hotk`, as users do. Use public names, "
        "or move the file to the folder of the floor it belongs in.",
    )


def upward(path):
    if (here := floor_of(path)) is None:
        return
    for level, module, names in imports(path):
        if level > 1:
            yield f"{named(path)}: {'.' * level}{module} leaves its floor"
        if level or module.split(".")[0] != "hotk":
            continue
        if module.count(".") != 1:
            yield f"{named(path)}: {module} passes the `__init__.py` of that floor"
            continue
        if HEIGHT[module.split(".")[1]] >= HEIGHT[here]:
            yield f"{named(path)}: {module} is not below {here}"
        for name in names:
            if name.startswith("_"):
                yield f"{named(path)}: {name} is private to {module}"


def test_imports_go_down_and_through_doors():
    none(
        (found for path in FILES for found in upward(path)),
        "A file imports from its own floor by `from ._file import name`, and from the "
        "floors below by `from hotk.floor import name`. Move what is needed above down "
        "to the lowest floor that uses it, and export it in that `__init__.py`.",
    )


def test_no_file_needs_itself():
    """The files of a floor import each other in one order."""
    needs = {path: set() for path in FILES}
    for path in FILES:
        for level, module, names in imports(path):
            if level == 1:
                for name in [module] if module else names:
                    needs[path].add(path.parent / f"{name}.py")
    try:
        list(graphlib.TopologicalSorter(needs).static_order())
    except graphlib.CycleError as error:
        none(
            [" needs ".join(named(path) for path in reversed(error.args[1]))],
            "Files import each other in a circle. Move what both need into a file of "
            "its own, named for what it is.",
        )


def not_exported(path):
    docstring, *body = tree(path).body
    if not isinstance(docstring, ast.Expr):
        yield f"{named(path)} has no docstring"
    if path.parent == ROOT:  # hotk itself loads some of them late: `test_import.py`
        body = [node for node in ast.walk(tree(path)) if type(node) is ast.ImportFrom]
    for node in body:
        text = ast.unparse(node).split("\n")[0]
        here = f"{named(path)}: {text}"
        if not isinstance(node, ast.ImportFrom):
            yield f"{here} is not an import"
            continue
        if path.parent == ROOT and node.module is None:
            if not {alias.name for alias in node.names} <= {*ENTERED, "testing"}:
                yield f"{here} is not a floor that users enter"
        elif path.parent == ROOT:
            if node.module.removeprefix("hotk.") not in HEIGHT:
                yield f"{here} is not a floor"
        elif node.level != 1:
            yield f"{here} is not on this floor"
        for alias in node.names:
            if alias.asname != alias.name:
                yield f"{named(path)}: write `{alias.name} as {alias.name}`"


def test_a_door_is_imports_and_each_is_an_export():
    """So that a name is exported once, by `from ._hvp import hvp as hvp`."""
    none(
        (found for path in DOORS for found in not_exported(path)),
        "An `__init__.py` is a docstring and exports of its own floor, each written "
        "`from ._hvp import hvp as hvp`. Move other code into a file beside it.",
    )


def unexplained(path):
    [first, *_] = (ast.get_docstring(tree(path)) or "").splitlines() or [""]
    if not first.endswith(".") or first.startswith(("Floor", "Roof")):
        yield f"{named(path)} starts {first!r}"


def test_a_floor_says_what_it_is():
    none(
        (found for path in DOORS for found in unexplained(path)),
        "The docstring of an `__init__.py` starts with a sentence on what is in the "
        "folder, on one line. Users read it; where the floor stands, `FLOORS` says.",
    )


def test_every_folder_is_a_floor():
    folders = {path.parent.name for path in DOORS if path.parent.parent == ROOT}
    none(
        sorted(folders - HEIGHT.keys()),
        "A folder of hotk is a floor: put its name into `FLOORS` above, after all that "
        "it imports, and into docs/architecture.md.",
    )


def internals(path):
    if path in INTERNALS_DOORS:
        return
    used = {module for _, module, _ in imports(path)}
    used |= {f"{module}.{n}" for _, module, names in imports(path) for n in names}
    used |= {
        ast.unparse(node).replace("eqx.", "equinox.", 1)
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute)
    }
    for name in sorted(used):
        if f"{name}.".startswith(tuple(f"{i}." for i in INTERNALS)):
            yield f"{named(path)}: {name}"


def test_internals_are_touched_in_two_files():
    none(
        (found for path in FILES for found in internals(path)),
        "JAX and Equinox may change these without notice, so all uses stand in "
        "`hotk/_core/_compat.py` (values, types, settings) or `_compat_trace.py` "
        "(tracing). Write a function or a name there that says what is wanted, with a "
        "comment on the JAX version and what replaces it, export it in "
        "`hotk/_core/__init__.py`, and import it from `hotk._core`.",
    )


def test_a_file_is_named_for_what_is_in_it():
    none(
        (
            named(path)
            for path in FILES
            if DRAWERS & {path.stem.strip("_"), path.parent.name.strip("_")}
        ),
        "Such a name holds anything. Move each part to the file of what uses it, or "
        "name the file for the one thing in it.",
    )


def test_a_class_has_a_name_of_its_own():
    found: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(named(path))
    none(
        (f"{name}: {', '.join(at)}" for name, at in found.items() if len(at) > 1),
        "Two classes of one name are mixed up in what is said of them. Say in the name "
        "of the less general one what it is of.",
    )


def test_a_file_is_read_in_one_sitting():
    lengths = {path: len(path.read_text("utf-8").splitlines()) for path in FILES}
    none(
        (f"{named(path)}: {n} lines" for path, n in lengths.items() if n > 400),
        "A file has 50 to 300 lines and never more than 400. Find the second subject "
        "in it and move it, with its comments, into a file with that subject's name; "
        "do not join lines or drop comments.",
    )


def test_a_module_is_one_sentence_long_at_least():
    none(
        (named(path) for path in FILES if not ast.get_docstring(tree(path))),
        "A file starts with a docstring: one sentence on what is in it.",
    )


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
    none(
        (
            f"{cls.__module__}.{cls.__name__} is subclassed"
            for cls in modules
            if not cls.__name__.lstrip("_").startswith("Abstract")
            and cls.__subclasses__()
        ),
        "An `equinox.Module` is abstract (its name starts with `Abstract`) or final. "
        "Let the subclass hold an object of the class, or share a function.",
    )


def test_the_top_of_the_repository_is_fixed():
    here = {path.name for path in HOUSE.iterdir()}
    made = {n for n in here if n in MADE_BY_TOOLS or n.endswith(".egg-info")}
    none(
        sorted({n for n in here - made if not n.startswith(".")} - TOP),
        "The top level is fixed: move these into one of " + ", ".join(sorted(TOP)),
    )


def test_no_folder_has_the_name_of_a_public_function():
    none(
        sorted(name for name in HEIGHT if callable(getattr(hotk, name, None))),
        "Rename the folder: tools that read the source take one for the other.",
    )
