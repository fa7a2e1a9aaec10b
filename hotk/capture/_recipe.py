"""What a code object reads: global names, attributes of modules, things unseen."""

import dis
import os
import site
import sys
import sysconfig
import types
from typing import Any

from ._reads import Reads, reads_of


_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_GLOBAL_WRITE = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_ATTRIBUTE_WRITE = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_OUTSIDE = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"})
# Attributes by which NumPy tells where its memory lies.
_MEMORY = frozenset(
    {"shares_memory", "may_share_memory", "ctypes", "__array_interface__", "base"}
)
_CELL_WRITE = frozenset({"STORE_DEREF", "DELETE_DEREF"})


def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    roots = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots.update(site.getsitepackages())
    roots.add(site.getusersitepackages())
    roots.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return tuple(sorted(os.path.join(os.path.realpath(r), "") for r in roots if r))


_ROOTS = _library_roots()
_FOLDERS = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_library_file(path: str | None) -> bool:
    """Whether a source file belongs to Python, to an installed package or to hotk."""
    if not path:
        return False
    if path.startswith("<frozen "):
        return True
    if any(folder in path for folder in _FOLDERS):
        return True
    return path.startswith(_ROOTS) or os.path.realpath(path).startswith(_ROOTS)


_MODULES: dict[str, bool] = {}


def is_library_module(module: types.ModuleType) -> bool:
    """Whether a module belongs to Python, to an installed package or to hotk."""
    space = vars(module)  # a module of the user may have an answer to every name
    spec, origin = space.get("__spec__"), space.get("__file__")
    if origin is None and spec is None:
        return False
    name = f"{space.get('__name__')}:{origin}"
    known = _MODULES.get(name)
    if known is None:
        if origin is None:
            builtin = spec is not None and spec.origin in ("built-in", "frozen")
            paths = getattr(spec, "submodule_search_locations", None) or ()
            known = builtin or any(is_library_file(p + os.sep) for p in paths)
        else:
            known = is_library_file(origin)
        _MODULES[name] = known
    return known


def is_library_name(name: str | None) -> bool:
    """Whether the module of this name is loaded and belongs to a library."""
    if not name or name == "__main__":
        return False
    module = sys.modules.get(name)
    if module is None:
        return name in sys.builtin_module_names
    return is_library_module(module)


class Recipe:
    """What one code object, with those nested in it, reads and writes.

    Interned by the value of the code object: equal code has one recipe, so recipes
    are compared by identity.
    """

    __slots__ = (
        "__weakref__",
        "attributes",
        "bare",
        "by_name",
        "hidden",
        "imports",
        "library",
        "name",
        "names",
        "reads",
        "tells",
        "writes",
    )

    def __init__(self, code: types.CodeType, library: bool) -> None:
        self.name = code.co_name
        self.library = library
        names: dict[str, None] = {}
        attributes: dict[str, dict[tuple[str, ...], None]] = {}
        bare: set[str] = set()
        imports: dict[str, None] = {}
        self.writes: str | None = None
        self.by_name = self.hidden = self.tells = False
        if not library:
            self._read(code, code, names, attributes, bare, imports)
        self.names = tuple(names)
        self.attributes = {name: tuple(chains) for name, chains in attributes.items()}
        self.bare = frozenset(bare)
        self.imports = tuple(imports)
        self.reads: dict[str, Reads] = {} if library else reads_of(code)

    def read_off(self, name: str) -> Reads:
        """Return what is read off a global, `None` if it escapes."""
        return None if name in self.bare else self.attributes.get(name)

    def _read(
        self,
        code: types.CodeType,
        outer: types.CodeType,
        names: dict[str, None],
        attributes: dict[str, dict[tuple[str, ...], None]],
        bare: set[str],
        imports: dict[str, None],
    ) -> None:
        instructions = [i for i in dis.get_instructions(code) if i.opname != "CACHE"]
        for at, instruction in enumerate(instructions):
            operation, name = instruction.opname, instruction.argval
            if operation in _GLOBAL:
                names[name] = None
                chain: list[str] = []
                for following in instructions[at + 1 :]:
                    if following.opname not in _ATTRIBUTE:
                        break
                    chain.append(following.argval)
                if chain:
                    attributes.setdefault(name, {})[tuple(chain)] = None
                else:
                    bare.add(name)
            elif operation in _GLOBAL_WRITE:
                self.writes = f"the global `{name}`"
            elif operation in _CELL_WRITE and name in outer.co_freevars:
                self.writes = f"the nonlocal `{name}`"
            elif operation in _ATTRIBUTE_WRITE and _is_outside(instructions[:at]):
                self.writes = f"an attribute `{name}`"
            elif operation in _ATTRIBUTE and name in TOLD:
                self.tells = True
            elif operation in _ATTRIBUTE and _sets_a_field(outer, name):
                pass  # of the new object, in `__init__` of a frozen dataclass
            elif operation in _ATTRIBUTE and (name in _MEMORY or is_hidden(name)):
                self.writes = f"or reads `{name}`, which no walk follows"
            elif operation == "IMPORT_NAME":
                level = instructions[at - 2].argval
                imports["." * level + name if isinstance(level, int) else "."] = None
            if name in _BY_NAME and (operation in _GLOBAL or operation in _ATTRIBUTE):
                self.by_name = True
        for constant in code.co_consts:
            self.hidden = self.hidden or _holds_hidden(constant)
            if isinstance(constant, types.CodeType):
                self._read(constant, outer, names, attributes, bare, imports)

    def __repr__(self) -> str:
        """Show the name of the code."""
        return f"<code {self.name}>"


def is_hidden(name: str) -> bool:
    """Whether an attribute tells of a thing what its walk leaves out."""
    return name[:2] == "__" and name[-2:] == "__" and name not in _KNOWN


# The functions that Python makes of text for a dataclass are made inside of this one.
MADE_BY_DATACLASSES = "__create_fn__.<locals>."


def _sets_a_field(code: types.CodeType, name: str) -> bool:
    made = code.co_filename == "<string>" and code.co_name == "__init__"
    named = code.co_qualname.startswith(MADE_BY_DATACLASSES)
    return name == "__setattr__" and made and named


_KNOWN = frozenset(
    {"__call__", "__class__", "__init__", "__new__", "__post_init__", "__len__"}
    | {"__iter__", "__getitem__", "__array__", "__jax_array__", "__main__"}
)
# What functions and classes say of themselves: in the key where code reads it.
TOLD = ("__name__", "__qualname__", "__module__", "__doc__")
# What reads an attribute whose name is a value.
_BY_NAME = frozenset(
    {"getattr", "hasattr", "setattr", "delattr", "vars", "attrgetter", "methodcaller"}
)


def _holds_hidden(constant: Any) -> bool:
    """Whether a constant is or holds a name, or the first part of one, to be hidden."""
    if isinstance(constant, str):
        return is_hidden(constant) or constant == "__"
    if isinstance(constant, (tuple, frozenset)):
        return any(map(_holds_hidden, constant))
    return False


def _is_outside(before: list[dis.Instruction]) -> bool:
    """Whether an attribute is stored on a global or on something captured."""
    for instruction in reversed(before):
        if instruction.opname not in _ATTRIBUTE:
            return instruction.opname in _OUTSIDE
    return False


_BY_IDENTITY: dict[int, tuple[Any, Recipe]] = {}
_BY_VALUE: dict[tuple[types.CodeType, bool], Recipe] = {}
_LIMIT = 8192


def recipe_of(code: types.CodeType) -> Recipe:
    """Return the one recipe of all code objects equal to `code`."""
    known = _BY_IDENTITY.get(id(code))
    if known is not None and known[0] is code:
        return known[1]
    library = is_library_file(code.co_filename)
    value = (code, library)
    recipe = _BY_VALUE.get(value)
    if recipe is None:
        if len(_BY_VALUE) >= _LIMIT:
            _BY_VALUE.clear()
        recipe = _BY_VALUE.setdefault(value, Recipe(code, library))
    if len(_BY_IDENTITY) >= _LIMIT:
        _BY_IDENTITY.clear()
    _BY_IDENTITY[id(code)] = (code, recipe)
    return recipe
