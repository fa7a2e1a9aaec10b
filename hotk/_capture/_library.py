"""What belongs to Python, to an installed package or to hotk, and not to the user.

Code of a library is trusted to be what it was: it is not read, only compared by where
it comes from. The line between the two decides what a walk goes into.
"""

import os
import sys
import types
import weakref

from hotk._core import peek

from ._code import facts_of, is_library_file as is_library_file


_MODULES: dict[str, bool] = {}


def is_library_module(module: types.ModuleType) -> bool:
    """Whether a module belongs to Python, to an installed package or to hotk."""
    # Not `getattr`: a `__getattr__` of a user's module may answer to any name.
    space = vars(module)
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


_CLASSES: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
_HEAP_TYPE = 1 << 9  # `Py_TPFLAGS_HEAPTYPE`: made while Python runs
# Modules of Python that make classes for others and put their own name into them.
_MAKERS = ("abc", "types", "typing", "dataclasses", "collections", "enum", "functools")


def is_library_class(cls: type) -> bool:
    """Whether a class belongs to Python, to an installed package or to hotk."""
    known = _CLASSES.get(cls)
    if known is None:
        name = cls.__module__
        known = is_library_name(name)
        if name == "builtins" and cls.__flags__ & _HEAP_TYPE:
            known = False  # made by `exec` in a namespace without a name
        if known and name in _MAKERS:  # it may have been made there for the user
            known = vars(sys.modules[name]).get(cls.__qualname__) is cls
        _CLASSES[cls] = known
    return known


def is_permanent(value: object) -> bool:
    """Whether a thing is what its qualified name in an installed library says."""
    name = peek(value, "__module__")
    path = peek(value, "__qualname__") or peek(value, "__name__")
    if (
        not isinstance(name, str)
        or not isinstance(path, str)
        or not is_library_name(name)
    ):
        return False
    found: object = sys.modules.get(name)
    for part in path.split("."):
        found = peek(found, part)
    return found is value


def is_library_function(value: types.FunctionType) -> bool:
    """Whether a function is one that a library has under its own name: never copied.

    A copy of it would be another function to JAX, which keeps programs by identity.
    """
    return facts_of(value.__code__).library and is_permanent(value)
