"""What derivative rules are known by, where programs of several functions are one."""

import functools
from collections.abc import Hashable
from types import FunctionType, MethodType
from typing import Any

import jax
import numpy as np

from hotk._core import Unrecognized, is_type, rule_functions

from ._cause import Opaque
from ._library import is_library_file, is_permanent
from ._walk import Walk


_DEEPEST = 12
_TREEDEF = type(jax.tree.structure(0))
_PLAIN = (type(None), bool, int, str, bytes, type, np.dtype, _TREEDEF)


def rule_key(equation: Any, *, own: bool = False) -> Hashable:
    """Return what the rules of a function with its own derivative are known by.

    Rules of installed libraries are what their code says. One of the user may read
    what changes: it is known by what a walk of it finds now.

    Args:
        equation: The call of such a function.
        own: Whether rules of the user may be known: only where each program is derived
            with its own rules, as they may change after the first was made.

    Raises:
        Unrecognized: If a rule holds what cannot be compared.
    """
    try:
        parts, mapped = rule_functions(equation)
    except Exception as error:  # JAX keeps its rules elsewhere
        raise Unrecognized("a derivative rule that is not found") from error
    try:
        return (mapped, *(_part_key(part, 0) for part in parts))
    except Unrecognized:
        if not own:
            raise
    walk = Walk()
    try:
        for part in parts:
            walk.visit(part)
        walk.close()
    except (Opaque, RecursionError) as error:
        raise Unrecognized("a derivative rule that no walk sees through") from error
    # An array in a rule would be known by its number alone, and not by its value.
    if walk.leaves:
        raise Unrecognized("a derivative rule that has captured an array")
    return (mapped, *walk.key)


def _part_key(part: object, depth: int) -> Hashable:
    if depth > _DEEPEST:
        raise Unrecognized("a derivative rule that is nested too deeply")
    below = depth + 1
    if isinstance(part, FunctionType):
        code = part.__code__
        # What it reads besides may change, and is not in this key.
        if not is_library_file(code.co_filename):
            raise Unrecognized("a derivative rule of the user")
        if part.__closure__ is not None and is_permanent(part):
            return ("permanent", part)
        try:
            cells = [cell.cell_contents for cell in part.__closure__ or ()]
        except ValueError as error:
            raise Unrecognized("a derivative rule with an empty cell") from error
        defaults = (part.__defaults__ or (), part.__kwdefaults__ or {})
        held = _part_key((cells, defaults), below)
        return (code, part.__module__, held)
    if isinstance(part, (tuple, list)):
        return (type(part), *(_part_key(item, below) for item in part))
    if isinstance(part, dict):
        names = tuple(part)
        return (dict, names, _part_key(list(part.values()), below))
    if isinstance(part, functools.partial):
        return ("partial", _part_key((part.func, part.args, part.keywords), below))
    if isinstance(part, MethodType):
        return ("method", _part_key((part.__func__, part.__self__), below))
    if isinstance(part, (float, complex)):
        return (type(part), repr(part))
    if type(part) in _PLAIN or isinstance(part, type):
        return (type(part), part)
    if is_type(part):
        return (type(part), part)
    if is_permanent(part):
        return ("permanent", type(part), id(part))
    raise Unrecognized(f"a derivative rule that holds a {type(part).__name__}")
