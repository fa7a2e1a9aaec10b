"""What code can reach without a name that a walk follows: reflection, settings."""

import builtins
import operator
import types
import typing
from collections.abc import Sequence

import jax

from ._cause import Opaque, OpaqueCause
from ._description import ATTRIBUTE, Description
from ._library import is_library_module
from ._reads import Chain
from ._walk import Walk


# Modules whose functions read frames, namespaces and processes.
REFLECTION = frozenset(
    {"sys", "importlib", "inspect", "gc", "ctypes", "os", "random", "builtins"}
    | {"posix", "nt", "traceback", "runpy", "pkgutil"}
)
_BUILTINS = vars(builtins)
_UNTRACKED = (
    *("globals", "eval", "exec", "compile", "__import__", "id", "breakpoint"),
    *("dir", "locals"),
)
_BY_NAME = {
    id(_BUILTINS[name]) for name in ("getattr", "hasattr", "setattr", "delattr", "vars")
} | {id(operator.attrgetter), id(operator.methodcaller)}
# By `id`: what is asked for may be anything, and comparing it would run its code.
UNTRACKED = {id(_BUILTINS[name]) for name in _UNTRACKED} | {id(typing.get_type_hints)}
_LIMIT = 4096
_SETTING = (bool, int, str, float, type(None))


def untracked(what: str) -> Opaque:
    """Return the error of code that reads what is in no walk."""
    return OpaqueCause.LOOKED_UP.opaque(f"{what} may read state that hotk cannot track")


def check_tracked(d: Description, value: object, name: str) -> None:
    """Refuse a builtin, or a function of a library, that reads what no walk sees."""
    if id(value) in UNTRACKED:
        raise untracked(f"`{name}`")
    if id(value) in _BY_NAME:
        d.by_name(reads=True)
    owner = getattr(value, "__self__", None)
    home = getattr(value, "__module__", None)
    home = owner.__name__ if isinstance(owner, types.ModuleType) else home
    if home in REFLECTION and home != "builtins":
        raise untracked(f"`{home}.{name}`")


def settings_read(found: object, name: str, chains: Sequence[Chain]) -> list[str]:
    """List the settings of JAX that code reads through a module of a library.

    Args:
        found: The module, or JAX's configuration itself.
        name: Its name in the code.
        chains: The attributes that the code reads off it.

    Raises:
        Opaque: If a chain ends at what no walk can see.
    """
    read: list[str] = []
    for chain in chains:
        here, rest = found, chain
        # Through the modules only: `jnp.sum.__module__` is read off a function.
        while type(here) is types.ModuleType and rest:
            here, rest = vars(here).get(rest[0]), rest[1:]
            if type(here) is types.ModuleType and here.__name__ in REFLECTION:
                raise untracked(f"the module `{here.__name__}`")
        if here is jax.config:
            value = getattr(jax.config, rest[0], read) if rest else read
            if not isinstance(value, _SETTING):
                raise OpaqueCause.LOOKED_UP.opaque(
                    f"`{name}` passes on all settings of JAX"
                )
            read.append(rest[0])
        elif isinstance(here, (types.FunctionType, types.BuiltinFunctionType)):
            check_tracked(Walk(), here, ".".join((name, *chain)))
    return read


class HarmlessModules:
    """Which modules of libraries were found to be harmless, for which attributes."""

    def __init__(self) -> None:
        self.known: dict[types.ModuleType, set[tuple[Chain, ...]]] = {}

    def __call__(self, found: types.ModuleType, chains: tuple[Chain, ...]) -> bool:
        """Whether it is known that nothing untracked is read."""
        return chains in self.known.get(found, ())

    def learn(
        self, found: types.ModuleType, name: str, chains: tuple[Chain, ...]
    ) -> list[str]:
        """Look through the chains, and remember them if no setting is read.

        A setting may change, so code that reads one is looked at in each walk.
        """
        read = settings_read(found, name, chains)
        if not read:
            known = self.known.setdefault(found, set())
            if len(known) >= _LIMIT:
                known.clear()
            known.add(chains)
        return read


HARMLESS = HarmlessModules()


def describe_library_module(
    d: Description,
    found: types.ModuleType,
    name: str,
    chains: tuple[Chain, ...],
    here: str,
) -> bool:
    """Describe a module of a library by what is read off it, if it is one."""
    if HARMLESS(found, chains):
        d.same("{0} is {1}", here, found)
        return True
    if found.__name__ in REFLECTION:
        raise untracked(f"the module `{found.__name__}`")
    if not is_library_module(found):
        return False
    d.same("{0} is {1}", here, found)
    describe_settings(d, HARMLESS.learn(found, name, chains))
    return True


def describe_settings(d: Description, names: Sequence[str]) -> None:
    """Describe settings of JAX."""
    config = d.let(jax.config, "{1}", "", jax.config) if names else ""
    for name in names:
        d.part(getattr(jax.config, name), " setting `{}`", name, config, ATTRIBUTE)
