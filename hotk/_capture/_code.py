"""What a code object reads: global names, attributes of modules, untracked state."""

import dis
import functools
import os
import site
import sys
import sysconfig
import types
import warnings

from ._reads import Chain, Reads, reads_of


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


_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
# `super().name` is one instruction from Python 3.12 on. It begins no chain: what stands
# before it goes into `super`.
_READ = _ATTRIBUTE | {"LOAD_SUPER_ATTR"}
_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_GLOBAL_WRITE = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_ATTRIBUTE_WRITE = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_OUTSIDE = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF"})
# Attributes by which NumPy tells where its memory lies: a copy lies elsewhere.
_MEMORY = frozenset(
    {"shares_memory", "may_share_memory", "ctypes", "__array_interface__", "base"}
)
_CELL_WRITE = frozenset({"STORE_DEREF", "DELETE_DEREF"})


# The newest Python on whose instructions `tests/capture/test_bytecode.py` passes. On a
# newer one an instruction may read or write what is not seen here, and a result would
# be stale: there functions of the user are traced at each call, as opaque ones are.
NEWEST_TESTED = (3, 14)
IS_TESTED = sys.version_info[:2] <= NEWEST_TESTED


@functools.cache  # one warning in a process
def _unread() -> str:
    """Warn that this Python is newer than those tested; return why code is not read."""
    this, newest = "{}.{}".format(*sys.version_info), "{}.{}".format(*NEWEST_TESTED)
    warnings.warn(
        f"hotk is tested up to Python {newest}, and this is Python {this}: its "
        "bytecode is not read, so each direct call traces its function. Use `prepare`, "
        "or an older Python.",
        RuntimeWarning,
        stacklevel=2,
    )
    return f"or reads what hotk cannot see: Python {this} is newer than {newest}"


class CodeFacts:
    """What one code object, with those nested in it, reads and writes.

    Interned by the value of the code object: equal code has one record, so records are
    compared by identity. Of code of a library only `library` is filled in.

    Attributes:
        name: The name of the code.
        library: Whether it belongs to a library.
        globals: The global names that it reads.
        chains: For each of these, the chains of attributes that are read off it.
        escaping: The global names that are used otherwise than to read an attribute.
        imports: The modules that it imports while it runs.
        reads: What it reads off what it captured, and off its first argument.
        writes: What it writes, in words, if the walk cannot follow that.
        reads_by_name: Whether it reads attributes whose name is a value.
        hidden_names: Whether a string in it names what a walk leaves out.
        reads_metadata: Whether it reads names or docstrings of functions and classes.
    """

    __slots__ = (
        "__weakref__",
        "chains",
        "escaping",
        "globals",
        "hidden_names",
        "imports",
        "library",
        "name",
        "reads",
        "reads_by_name",
        "reads_metadata",
        "writes",
    )

    def __init__(self, code: types.CodeType, library: bool) -> None:
        self.name = code.co_name
        self.library = library
        # Dicts in place of sets: their order is that of the code, so keys are the same
        # in each process.
        names: dict[str, None] = {}
        chains: dict[str, dict[Chain, None]] = {}
        escaping: set[str] = set()
        imports: dict[str, None] = {}
        self.writes: str | None = None
        self.reads_by_name = self.hidden_names = self.reads_metadata = False
        if not library and not IS_TESTED:
            self.writes = _unread()
        elif not library:
            self._read(code, code, names, chains, escaping, imports)
        self.globals = tuple(names)
        self.chains = {name: tuple(found) for name, found in chains.items()}
        self.escaping = frozenset(escaping)
        self.imports = tuple(imports)
        unread = library or not IS_TESTED
        self.reads: dict[str, Reads] = {} if unread else reads_of(code)

    def read_off(self, name: str) -> Reads:
        """Return what is read off a global, `None` if it escapes."""
        return None if name in self.escaping else self.chains.get(name)

    def _read(
        self,
        code: types.CodeType,
        outer: types.CodeType,
        names: dict[str, None],
        chains: dict[str, dict[Chain, None]],
        escaping: set[str],
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
                    chains.setdefault(name, {})[tuple(chain)] = None
                else:
                    escaping.add(name)
            elif operation in _GLOBAL_WRITE:
                self.writes = f"the global `{name}`"
            # A cell of its own may be written: it is made anew in each call.
            elif operation in _CELL_WRITE and name in outer.co_freevars:
                self.writes = f"the nonlocal `{name}`"
            elif operation in _ATTRIBUTE_WRITE and _is_outside(
                instructions[:at], own=code.co_cellvars if code is outer else ()
            ):
                self.writes = f"an attribute `{name}`"
            elif operation in _READ and name in METADATA:
                self.reads_metadata = True
            elif operation in _READ and _sets_a_field(outer, name):
                pass  # of the new object, in `__init__` of a frozen dataclass
            elif operation in _READ and (name in _MEMORY or is_hidden(name)):
                self.writes = f"or reads `{name}`, which hotk cannot track"
            elif operation == "IMPORT_NAME":
                # The level of a relative import is loaded two instructions before.
                level = instructions[at - 2].argval
                imports["." * level + name if isinstance(level, int) else "."] = None
            if name in _BY_NAME and (operation in _GLOBAL or operation in _READ):
                self.reads_by_name = True
        for constant in code.co_consts:
            self.hidden_names = self.hidden_names or _holds_hidden(constant)
            if isinstance(constant, types.CodeType):
                self._read(constant, outer, names, chains, escaping, imports)

    def __repr__(self) -> str:
        """Show the name of the code."""
        return f"<code {self.name}>"


def is_hidden(name: str) -> bool:
    """Whether an attribute tells of a thing what its walk leaves out."""
    return name[:2] == "__" and name[-2:] == "__" and name not in _HARMLESS


# The functions that Python makes of text for a dataclass are made inside of this one.
MADE_BY_DATACLASSES = "__create_fn__.<locals>."


def _sets_a_field(code: types.CodeType, name: str) -> bool:
    made = code.co_filename == "<string>" and code.co_name == "__init__"
    named = code.co_qualname.startswith(MADE_BY_DATACLASSES)
    return name == "__setattr__" and made and named


# Special names by which code only calls, makes or iterates over a thing.
_HARMLESS = frozenset(
    {"__call__", "__class__", "__init__", "__new__", "__post_init__", "__len__"}
    | {"__iter__", "__getitem__", "__array__", "__jax_array__", "__main__"}
)
# What functions and classes say of themselves: in the key where code reads it.
METADATA = ("__name__", "__qualname__", "__module__", "__doc__")
# What reads an attribute whose name is a value.
_BY_NAME = frozenset(
    {"getattr", "hasattr", "setattr", "delattr", "vars", "attrgetter", "methodcaller"}
)


def _holds_hidden(constant: object) -> bool:
    """Whether a constant is or holds a name, or the first part of one, to be hidden."""
    if isinstance(constant, str):
        return is_hidden(constant) or constant == "__"
    if isinstance(constant, (tuple, frozenset)):
        return any(map(_holds_hidden, constant))
    return False


def _is_outside(before: list[dis.Instruction], own: tuple[str, ...]) -> bool:
    """Whether an attribute is stored on a global or on something captured.

    Args:
        before: The instructions before it.
        own: The cells of its own, as of a `self` that a function within captures.
    """
    for instruction in reversed(before):
        if instruction.opname not in _ATTRIBUTE:
            return instruction.opname in _OUTSIDE and instruction.argval not in own
    return False


# By identity first: hashing a code object hashes its constants, which takes a while.
_BY_IDENTITY: dict[int, tuple[types.CodeType, CodeFacts]] = {}
_BY_VALUE: dict[tuple[types.CodeType, bool], CodeFacts] = {}
_LIMIT = 8192


def facts_of(code: types.CodeType) -> CodeFacts:
    """Return the one record of all code objects equal to `code`."""
    known = _BY_IDENTITY.get(id(code))
    # The code object is kept alive with its entry, so no other one can have its `id`.
    if known is not None and known[0] is code:
        return known[1]
    library = is_library_file(code.co_filename)
    names = numbered_arguments(code)
    plain = code
    if names:
        plain = code.replace(
            co_varnames=tuple(names.get(n, n) for n in code.co_varnames)
        )
    value = (plain, library)
    facts = _BY_VALUE.get(value)
    if facts is None:
        if len(_BY_VALUE) >= _LIMIT:
            _BY_VALUE.clear()
        facts = _BY_VALUE.setdefault(value, CodeFacts(plain, library))
    if len(_BY_IDENTITY) >= _LIMIT:
        _BY_IDENTITY.clear()
    _BY_IDENTITY[id(code)] = (code, facts)
    return facts


def numbered_arguments(code: types.CodeType) -> dict[str, str]:
    """Return names for the arguments that beartype names by the `id` of an object.

    It writes the code that checks types anew for each decorated function, with defaults
    for what it compares with: these are told apart by their places.
    """
    if not code.co_filename.startswith("<@beartype("):
        return {}
    named = [n for n in code.co_varnames if n.startswith("__beartype_object_")]
    return {name: f"object {i}" for i, name in enumerate(named)}
