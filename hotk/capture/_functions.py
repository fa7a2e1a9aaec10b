"""Captured Python functions: code, cells, defaults, and the globals that they read."""

import builtins
import types
import weakref
from types import FunctionType, ModuleType
from typing import Final

import jax

from ._captured_type import CapturedType, register
from ._code import CodeFacts, facts_of, numbered_arguments
from ._library import is_library_function, is_library_module, is_library_name
from ._mappings import visit_dict
from ._parts import guard_read, visit_read
from ._reads import Chain
from ._rebuild import Rebuild
from ._reflection import (
    REFLECTION,
    UNTRACKED,
    check_tracked,
    settings_read,
    untracked,
    visit_library_module,
    visit_settings,
)
from ._walk import Opaque, Walk
from ._writer import Unguarded, Writer, guard_identity, guard_weak_identity


_MISSING: Final = "<missing global>"
_BUILTINS = vars(builtins)
_BUILTIN_TYPES = (types.BuiltinFunctionType, type, str)


def _is_empty(cell: types.CellType) -> bool:
    """Whether a cell holds nothing: the name is not assigned yet, or was deleted."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _is_harmless_builtin(name: str, found: object) -> bool:
    """Whether a builtin is the one that Python came with, and reads nothing unseen."""
    original = found is _BUILTINS.get(name, _MISSING)
    return original and type(found) in _BUILTIN_TYPES and id(found) not in UNTRACKED


# ----- The visit


def _visit_function(walk: Walk, value: FunctionType) -> None:
    facts = facts_of(value.__code__)
    key = walk.key
    # What `jax.numpy.sum` does is up to the library: it is known by its name.
    if is_library_function(value):
        check_tracked(walk, value, value.__name__)
        key.append(weakref.ref(value))
        return
    if walk.met(value):
        return
    key.append(facts)
    if facts.library:  # its globals, which are not looked at, are those of its file
        key.append(value.__code__.co_filename)
    closure = value.__closure__
    if closure is not None:
        names = value.__code__.co_freevars
        for name, cell in zip(names, closure, strict=True):
            if _is_empty(cell):
                key.append("<empty cell>")
                continue
            content, reads = cell.cell_contents, facts.reads.get(name)
            visit_read(walk, content, reads, " cell `{}`", name)
    if value.__defaults__ or value.__kwdefaults__ or value.__dict__:
        _visit_defaults(walk, value, facts)
    else:
        key.append(None)
    if facts.library:
        return
    if facts.writes is not None:
        raise Opaque(f"it writes {facts.writes}")
    walk.reads_metadata = walk.reads_metadata or facts.reads_metadata
    if facts.reads_by_name or facts.hidden_names:
        walk.by_name(reads=facts.reads_by_name, hidden=facts.hidden_names)
    if facts.globals:
        _visit_globals(walk, value, facts)
    for name in facts.imports:
        first = name.partition(".")[0]
        if first in REFLECTION or not is_library_name(first):
            raise Opaque(f"it imports `{name}` while it runs")


def _visit_defaults(walk: Walk, value: FunctionType, facts: CodeFacts) -> None:
    defaults, keywords = value.__defaults__ or (), value.__kwdefaults__ or {}
    walk.key.append((len(defaults), len(keywords)))
    code = value.__code__  # the defaults are those of the last arguments
    first = code.co_argcount - len(defaults)
    for i, default in enumerate(defaults):
        name = code.co_varnames[first + i] if first >= 0 else str(i)
        visit_read(walk, default, facts.reads.get(name), " default `{}`", name)
    others = numbered_arguments(code) if keywords else {}
    for name, default in keywords.items():
        walk.key.append(others.get(name, name))
        visit_read(walk, default, facts.reads.get(name), " default `{}`", name)
    if not facts.library:
        visit_dict(walk, value.__dict__)


def _visit_globals(walk: Walk, value: FunctionType, facts: CodeFacts) -> None:
    space = value.__globals__
    key = walk.key
    for name in facts.globals:
        found = space.get(name, _MISSING)
        if found is _MISSING:
            found = value.__builtins__.get(name, _MISSING)
            if id(found) in UNTRACKED:
                raise untracked(f"`{name}`")
            if _is_harmless_builtin(name, found):
                key.append(found)
            else:
                walk.visit(found, " builtin `{}`", name)
        elif found is jax.config and name not in facts.escaping:
            visit_settings(walk, settings_read(found, name, facts.chains[name]))
        elif type(found) is not ModuleType:
            visit_read(walk, found, facts.read_off(name), " global `{}`", name)
        else:
            _visit_module_attributes(walk, found, name, facts)


def _visit_module_attributes(
    walk: Walk, found: ModuleType, name: str, facts: CodeFacts
) -> None:
    if visit_library_module(walk, found, name, facts.chains.get(name, ())):
        return
    if name in facts.escaping:
        raise Opaque(f"the module `{name}` used as a value")
    for chain in facts.chains[name]:
        _visit_chain(walk, found, name, chain)


def _visit_chain(walk: Walk, here: ModuleType, name: str, chain: Chain) -> None:
    """Visit what `module.a.b` is now, going on through modules of the user."""
    if not chain:
        raise Opaque(f"the module `{name}` used as a value")
    if chain[0] not in vars(here):
        raise Opaque(f"`{name}.{chain[0]}` is not a plain attribute")
    inner = vars(here)[chain[0]]
    place = f"{name}.{chain[0]}"
    with walk.inside(here, f" module `{name}`"):
        if type(inner) is ModuleType and not is_library_module(inner):
            _visit_chain(walk, inner, place, chain[1:])
        else:
            walk.visit(inner, " `{}`", place)


# ----- The guard


def _guard_function(w: Writer, value: FunctionType, here: str) -> None:
    facts, code = facts_of(value.__code__), value.__code__
    if is_library_function(value):
        guard_weak_identity(w, value, here)
        return
    if w.met(value, here, code):
        return
    w.require(f"type({here}) is {w.constant(FunctionType)}")
    if value is not w.root:  # that was looked up by its code
        w.require(f"{here}.__code__ is {w.constant(code)}")
    _guard_cells(w, value, here)
    _guard_defaults(w, value, here)
    if facts.library:
        return
    # A walk calls the first opaque; what is imported is in no namespace to be read.
    if facts.writes is not None or facts.imports:
        raise Unguarded
    if facts.globals:
        space = w.assign(value.__globals__, f"{here}.__globals__")
        for name in facts.globals:
            _guard_global(w, value, here, space, name)


def _guard_cells(w: Writer, value: FunctionType, here: str) -> None:
    if value.__closure__ is None:
        return  # by the code: it has no free names
    cells = w.assign(value.__closure__, f"{here}.__closure__")
    for i, cell in enumerate(value.__closure__):
        if _is_empty(cell):
            w.require(f"{w.constant(_is_empty)}({cells}[{i}])")
            continue
        content = cell.cell_contents
        reads = facts_of(value.__code__).reads.get(value.__code__.co_freevars[i])
        guard_read(w, content, reads, f"{cells}[{i}].cell_contents")


def _guard_defaults(w: Writer, value: FunctionType, here: str) -> None:
    library = facts_of(value.__code__).library
    bare = "True" if library else f"not {here}.__dict__"
    if value.__dict__ and not library:
        bare = "True"
        w.visit(value.__dict__, f"{here}.__dict__")
    defaults, keywords = value.__defaults__ or (), value.__kwdefaults__ or {}
    # Most functions have none of the three: one line for all of them.
    if not defaults and not keywords:
        w.require(f"not ({here}.__defaults__ or {here}.__kwdefaults__) and {bare}")
        return
    names = w.constant(list(keywords))
    w.require(
        f"len({here}.__defaults__ or ()) == {len(defaults)} and "
        f"[*({here}.__kwdefaults__ or ())] == {names} and {bare}"
    )
    code, reads = value.__code__, facts_of(value.__code__).reads
    first = code.co_argcount - len(defaults)
    for i, item in enumerate(defaults):
        found = reads.get(code.co_varnames[first + i]) if first >= 0 else None
        guard_read(w, item, found, f"{here}.__defaults__[{i}]")
    for name, item in keywords.items():
        guard_read(w, item, reads.get(name), f"{here}.__kwdefaults__[{name!r}]")


def _guard_global(
    w: Writer, value: FunctionType, here: str, space: str, name: str
) -> None:
    facts = facts_of(value.__code__)
    found = value.__globals__.get(name, _MISSING)
    if found is _MISSING:
        found = value.__builtins__.get(name, _MISSING)
        if not _is_harmless_builtin(name, found):
            raise Unguarded
        equal = w.constant(found)
        # A global of this name that appears later comes before the builtin.
        w.require(
            f"{name!r} not in {space} and {here}.__builtins__[{name!r}] is {equal}"
        )
    elif found is jax.config:
        inner = w.assign(found, f"{space}[{name!r}]")
        _guard_settings(w, found, inner, facts, name)
    elif type(found) is not ModuleType:
        guard_read(w, found, facts.read_off(name), f"{space}[{name!r}]")
    else:
        inner = w.assign(found, f"{space}[{name!r}]")
        _guard_module_attributes(w, found, inner, facts, name)


def _guard_module_attributes(
    w: Writer, found: ModuleType, here: str, facts: CodeFacts, name: str
) -> None:
    if is_library_module(found):
        _guard_settings(w, found, here, facts, name)
        return
    if name in facts.escaping:
        raise Unguarded
    guard_weak_identity(w, found, here)
    for chain in facts.chains[name]:
        _guard_chain(w, found, here, chain)


def _guard_settings(
    w: Writer, found: object, here: str, facts: CodeFacts, name: str
) -> None:
    """Write the check of a module of a library, and of the settings read off it."""
    guard_identity(w, found, here)
    config = w.constant(jax.config)
    for setting in settings_read(found, name, facts.chains.get(name, ())):
        w.visit(getattr(jax.config, setting), f"{config}.{setting}")


def _guard_chain(w: Writer, found: ModuleType, here: str, chain: Chain) -> None:
    if not chain or chain[0] not in vars(found):
        raise Unguarded
    inner, expression = vars(found)[chain[0]], f"{here}.__dict__[{chain[0]!r}]"
    if type(inner) is ModuleType and not is_library_module(inner):
        name = w.assign(inner, expression)
        guard_weak_identity(w, inner, name)
        _guard_chain(w, inner, name, chain[1:])
    else:
        w.visit(inner, expression)


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
    if copy.__defaults__ or copy.__kwdefaults__ or copy.__dict__:
        rebuild.undo_log.defaults(copy)
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
        copy = rebuild(value)
        space[name] = copy
        if copy is not value:
            rebuild.undo_log.entry(space, name)


FUNCTION = CapturedType(
    visit=_visit_function,
    guard=_guard_function,
    rebuild=_rebuild_function,
    treatment="traversed",
    mutable=False,
    refilled=True,
)
register(FUNCTION, FunctionType)
