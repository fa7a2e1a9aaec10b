"""What code can reach without a name that a walk follows: reflection, settings."""

import builtins
import operator
import types
import typing
from collections.abc import Sequence
from typing import Any

import jax

from ._recipe import is_library_module
from ._walk import Opaque, Walk


# Modules whose functions read frames, namespaces and processes.
REFLECTION = frozenset(
    {"sys", "importlib", "inspect", "gc", "ctypes", "os", "random", "builtins"}
    | {"posix", "nt", "traceback", "runpy", "pkgutil"}
)
_BUILTINS = vars(builtins)
_UNSEEN = (
    *("globals", "eval", "exec", "compile", "__import__", "id", "breakpoint"),
    *("dir", "locals"),
)
UNSEEN = {id(_BUILTINS[name]) for name in _UNSEEN} | {id(typing.get_type_hints)}
_BY_NAME = {
    id(_BUILTINS[name]) for name in ("getattr", "hasattr", "setattr", "delattr", "vars")
} | {id(operator.attrgetter), id(operator.methodcaller)}
_LIMIT = 4096
_SETTING = (bool, int, str, float, type(None))


def check_seen(walk: Walk, value: Any, name: str) -> None:
    """Refuse a builtin, or a function of a library, that reads what no walk sees."""
    if id(value) in UNSEEN:
        raise Opaque(f"`{name}` reads what no walk can see")
    if id(value) in _BY_NAME:
        walk.by_name(reads=True)
    owner = getattr(value, "__self__", None)
    home = getattr(value, "__module__", None)
    home = owner.__name__ if isinstance(owner, types.ModuleType) else home
    if home in REFLECTION and home != "builtins":
        raise Opaque(f"`{home}.{name}` reads what no walk can see")


def settings_read(
    found: Any, name: str, chains: Sequence[tuple[str, ...]]
) -> list[str]:
    """List the settings of JAX that code reads through a module of a library.

    Args:
        found: The module, or JAX's configuration itself.
        name: Its name in the code.
        chains: The attributes that the code reads off it.

    Raises:
        Opaque: If a chain ends at what no walk can see.
    """
    read = []
    for chain in chains:
        here, rest = found, chain
        while type(here) is types.ModuleType and rest:
            here, rest = vars(here).get(rest[0]), rest[1:]
            if type(here) is types.ModuleType and here.__name__ in REFLECTION:
                raise Opaque(f"the module `{here.__name__}` reads what no walk can see")
        if here is jax.config:
            value = getattr(jax.config, rest[0], read) if rest else read
            if not isinstance(value, _SETTING):
                raise Opaque(f"`{name}` gives away all settings of JAX")
            read.append(rest[0])
        elif isinstance(here, (types.FunctionType, types.BuiltinFunctionType)):
            check_seen(Walk(), here, ".".join((name, *chain)))
    return read


class Plain:
    """Which modules of libraries were found to be harmless, for which attributes."""

    def __init__(self) -> None:
        self.known: dict[types.ModuleType, set[Any]] = {}

    def __call__(self, found: types.ModuleType, chains: Any) -> bool:
        """Whether it is known that nothing unseen is read."""
        return chains in self.known.get(found, ())

    def learn(self, found: types.ModuleType, name: str, chains: Any) -> list[str]:
        """Look through the chains, and remember them if no setting is read."""
        read = settings_read(found, name, chains)
        if not read:
            known = self.known.setdefault(found, set())
            if len(known) >= _LIMIT:
                known.clear()
            known.add(chains)
        return read


PLAIN = Plain()


def library_module(walk: Walk, found: types.ModuleType, name: str, chains: Any) -> bool:
    """Visit a module of a library by what is read off it, if it is one."""
    if PLAIN(found, chains):
        walk.key.append(found)
        return True
    if found.__name__ in REFLECTION:
        raise Opaque(f"the module `{found.__name__}` reads what no walk can see")
    if not is_library_module(found):
        return False
    walk.key.append(found)
    settings(walk, PLAIN.learn(found, name, chains))
    return True


def settings(walk: Walk, names: Sequence[str]) -> None:
    """Take settings of JAX into the key."""
    for name in names:
        walk.visit(getattr(jax.config, name), " setting `{}`", name)
