"""Captured Python functions: code, cells, defaults, and the globals that they read."""

import builtins
import types
from types import FunctionType, ModuleType
from typing import Final

import jax

from ._captured_type import CapturedType, register
from ._cause import OpaqueCause
from ._code import CodeFacts, facts_of, numbered_arguments
from ._description import Description
from ._layout import is_empty
from ._library import is_library_function, is_library_module, is_library_name
from ._mappings import describe_dict
from ._parts import describe_read
from ._reads import Chain
from ._rebuild import Rebuild
from ._reflection import (
    REFLECTION,
    UNTRACKED,
    check_tracked,
    describe_library_module,
    describe_settings,
    settings_read,
    untracked,
)


_MISSING: Final = "<missing global>"
_BUILTINS = vars(builtins)
_BUILTIN_TYPES = (types.BuiltinFunctionType, type, str)


def _is_harmless_builtin(name: str, found: object) -> bool:
    """Whether a builtin is the one that Python came with, and reads nothing unseen."""
    original = found is _BUILTINS.get(name, _MISSING)
    return original and type(found) in _BUILTIN_TYPES and id(found) not in UNTRACKED


# ----- Code, cells and defaults


def _describe_function(d: Description, value: FunctionType, here: str) -> None:
    code = value.__code__
    facts = facts_of(code)
    # What `jax.numpy.sum` does is up to the library: it is known by its name.
    if is_library_function(value):
        check_tracked(d, value, value.__name__)
        d.identity(value, here)
        return
    if d.met(value, here, code):
        return
    d.note(facts)
    d.ask("type({0}) is {1}", here, FunctionType)
    if value is not d.root:  # that was looked up by its code
        d.ask("{0}.__code__ is {1}", here, code)
    if facts.library:  # its globals, which are not looked at, are those of its file
        d.note(code.co_filename)
    if value.__closure__ is not None:  # by the code: it has free names
        _describe_cells(d, value.__closure__, code.co_freevars, facts, here)
    _describe_defaults(d, value, facts, here)
    if facts.library:
        return
    if facts.writes is not None:
        cause = (
            OpaqueCause.LOOKED_UP if facts.writes[:2] == "or" else OpaqueCause.WRITES
        )
        raise cause.opaque(f"it writes {facts.writes}")
    d.reads_metadata = d.reads_metadata or facts.reads_metadata
    if facts.reads_by_name or facts.hidden_names:
        d.by_name(reads=facts.reads_by_name, hidden=facts.hidden_names)
    if facts.globals:
        _describe_globals(d, value, facts, here)
    for name in facts.imports:  # what is imported is in no namespace to be read
        d.unguarded()
        first = name.partition(".")[0]
        if first in REFLECTION or not is_library_name(first):
            raise OpaqueCause.IMPORT.opaque(f"it imports `{name}` while it runs")


def _describe_cells(
    d: Description,
    closure: tuple[types.CellType, ...],
    names: tuple[str, ...],
    facts: CodeFacts,
    here: str,
) -> None:
    cells = d.let(closure, "{0}.__closure__", here)
    for i, (name, cell) in enumerate(zip(names, closure, strict=True)):
        if is_empty(cell):
            d.note("<empty cell>")
            d.ask("{2}({0}[{1}])", cells, i, is_empty)
            continue
        content, reads = cell.cell_contents, facts.reads.get(name)
        read = "{0}[{1}].cell_contents"
        describe_read(d, content, reads, " cell `{}`", name, cells, read, i)


def _describe_defaults(
    d: Description, value: FunctionType, facts: CodeFacts, here: str
) -> None:
    defaults, keywords = value.__defaults__ or (), value.__kwdefaults__ or {}
    own = {} if facts.library else value.__dict__
    if not (defaults or keywords or own):  # as most: one line for all
        d.note(None)
        attributes = "" if facts.library else " or {0}.__dict__"
        d.ask(f"not ({{0}}.__defaults__ or {{0}}.__kwdefaults__{attributes})", here)
        return
    d.note((len(defaults), len(keywords), len(own)))
    d.ask("len({0}.__defaults__ or ()) == {1}", here, len(defaults))
    d.ask("[*({0}.__kwdefaults__ or ())] == {1}", here, list(keywords))
    code = value.__code__  # the defaults are those of the last arguments
    first = code.co_argcount - len(defaults)
    for i, default in enumerate(defaults):
        name = code.co_varnames[first + i] if first >= 0 else str(i)
        reads, read = facts.reads.get(name), "{0}.__defaults__[{1}]"
        describe_read(d, default, reads, " default `{}`", name, here, read, i)
    others = numbered_arguments(code) if keywords else {}
    for name, default in keywords.items():
        d.note(others.get(name, name))
        reads, read = facts.reads.get(name), "{0}.__kwdefaults__[{1!r}]"
        describe_read(d, default, reads, " default `{}`", name, here, read)
    if own:
        describe_dict(d, own, d.let(own, "{0}.__dict__", here))
    elif not facts.library:
        d.ask("not {0}.__dict__", here)


# ----- Globals


def _describe_globals(
    d: Description, value: FunctionType, facts: CodeFacts, here: str
) -> None:
    space = value.__globals__
    names = d.let(space, "{0}.__globals__", here)
    for name in facts.globals:
        found = space.get(name, _MISSING)
        if found is _MISSING:
            # A global of this name that appears later comes before the builtin.
            d.ask("{1} not in {0}", names, name)
            _describe_builtin(d, value, name, here)
        elif found is jax.config and name not in facts.escaping:
            d.ask("{0}[{1}] is {2}", names, name, found)
            describe_settings(d, settings_read(found, name, facts.chains[name]))
        elif type(found) is not ModuleType:
            reads = facts.read_off(name)
            describe_read(d, found, reads, " global `{}`", name, names)
        else:
            module = d.let(found, "{0}[{1}]", names, name)
            _describe_module(d, found, name, facts, module)


def _describe_builtin(
    d: Description, value: FunctionType, name: str, here: str
) -> None:
    found = value.__builtins__.get(name, _MISSING)
    if id(found) in UNTRACKED:
        raise untracked(f"`{name}`")
    if _is_harmless_builtin(name, found):
        d.note(found)
        d.ask("{0}.__builtins__[{1}] is {2}", here, name, found)
    else:
        d.unguarded()
        d.part(found, " builtin `{}`", name)


def _describe_module(
    d: Description, found: ModuleType, name: str, facts: CodeFacts, here: str
) -> None:
    """Describe a module by what is read off it."""
    if describe_library_module(d, found, name, facts.chains.get(name, ()), here):
        return
    if name in facts.escaping:
        raise OpaqueCause.MODULE.opaque(f"the module `{name}` used as a value")
    _ask_module(d, found, here)
    for chain in facts.chains[name]:
        _describe_chain(d, found, name, chain, here)


def _ask_module(d: Description, found: ModuleType, here: str) -> None:
    if d.writes:  # a key has what is read off it
        d.identity(found, here)


def _describe_chain(
    d: Description, found: ModuleType, name: str, chain: Chain, here: str
) -> None:
    """Describe what `module.a.b` is now, going on through modules of the user."""
    if not chain:
        raise OpaqueCause.MODULE.opaque(f"the module `{name}` used as a value")
    if chain[0] not in vars(found):
        raise OpaqueCause.MODULE.opaque(f"`{name}.{chain[0]}` is not a plain attribute")
    inner = vars(found)[chain[0]]
    place, read = f"{name}.{chain[0]}", "{0}.__dict__[{1!r}]"
    with d.inside(found, f" module `{name}`"):
        if type(inner) is ModuleType and not is_library_module(inner):
            module = d.let(inner, "{0}.__dict__[{1}]", here, chain[0])
            _ask_module(d, inner, module)
            _describe_chain(d, inner, place, chain[1:], module)
        else:
            d.part(inner, " `{}`", place, here, read, chain[0])


# ----- The copy


def _rebuild_function(rebuild: Rebuild, value: FunctionType) -> FunctionType:
    """Make a function of the same code with other cells, defaults and globals.

    Functions of a library keep the globals of their file: nothing of the user's is in
    these. Those of the user get a namespace of the names that they read, so that what
    they write into it ends with the trace.
    """
    facts = facts_of(value.__code__)
    original = value.__globals__
    space = original if facts.library else rebuild.namespace(original)
    closure = value.__closure__
    cells = None if closure is None else tuple(map(rebuild.copy_cell, closure))
    copy = FunctionType(value.__code__, space, value.__name__, None, cells)
    # Before anything is filled in: a function that calls itself is in its own cell.
    rebuild.copies[id(value)] = copy
    for old, new in zip(closure or (), cells or (), strict=True):
        rebuild.fill_cell(old, new)
    copy.__qualname__ = value.__qualname__
    copy.__module__ = value.__module__
    copy.__doc__ = value.__doc__
    if value.__defaults__ is not None:
        copy.__defaults__ = tuple(map(rebuild, value.__defaults__))
    if value.__kwdefaults__:
        keywords = value.__kwdefaults__.items()
        copy.__kwdefaults__ = {name: rebuild(item) for name, item in keywords}
    for name, item in vars(value).items():
        copy.__dict__[name] = rebuild(item)
    if not facts.library:
        for name in facts.globals:
            if name in original:
                _rebuild_global(rebuild, space, name, original[name])
    return copy


def _rebuild_global(
    rebuild: Rebuild, space: dict[str, object], name: str, value: object
) -> None:
    if name not in space:
        space[name] = value  # stops the recursion of functions that call each other
        space[name] = rebuild(value)


FUNCTION = CapturedType(
    describe=_describe_function,
    rebuild=_rebuild_function,
    treatment="traversed",
    mutable=False,
)
register(FUNCTION, FunctionType)
