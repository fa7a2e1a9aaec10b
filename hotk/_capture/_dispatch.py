"""How a thing is handled whose very class is not registered: by what it is.

The order counts: what is asked first holds for a thing of which both are true.
"""

import enum
import functools
import logging
import weakref

import equinox as eqx
import jax
import numpy as np

# Imported for the classes that they register.
from . import (
    _functions as _functions,
    _jitted as _jitted,
    _mappings as _mappings,
    _sequences as _sequences,
    _sets as _sets,
)
from ._arrays import JAX_ARRAY
from ._callables import CUSTOM_RULE, CUSTOM_RULES, METHOD, PARTIAL
from ._captured_type import CapturedType
from ._classes import CLASS, MEMBER
from ._declared import DECLARED, is_declared
from ._description import Description
from ._layout import attributes_of, keeps_all_in_attributes
from ._library import is_library_class, is_permanent
from ._mappings import SUBCLASSED
from ._nodes import NODE
from ._objects import CONSTANT, EMPTY, OBJECT, is_constant
from ._values import (
    ARRAY_TYPE,
    BY_IDENTITY,
    BY_PIECE,
    LOGGER,
    MARK,
    NAMED_SCOPE,
    PERMANENT,
    REFERENCE,
    STATIC,
    UNKNOWN,
)


def _is_equinox_method(value: object) -> bool:
    return isinstance(value, eqx.Module) and type(value).__name__ == "BoundMethod"


def captured_type_of(value: object) -> CapturedType:
    """Return how a value is handled whose very class is not registered."""
    cls = type(value)
    if cls in weakref.ProxyTypes:  # it passes for what it stands for
        return UNKNOWN
    # What such a class answers may be anything: nothing more is asked.
    if any(
        "__getattribute__" in vars(base)
        for base in cls.__mro__
        if not is_library_class(base)
    ):
        return UNKNOWN
    if is_declared(value):
        return DECLARED
    if isinstance(value, jax.Ref):
        return REFERENCE
    if isinstance(value, jax.Array):
        return JAX_ARRAY
    if isinstance(value, np.generic):
        plain = is_library_class(cls) and not issubclass(cls, np.void)
        return BY_PIECE if plain else UNKNOWN
    if isinstance(value, np.ndarray):  # of a subclass, with methods of its own
        return UNKNOWN
    if isinstance(value, enum.Enum):
        return MEMBER
    if isinstance(value, type):
        made = cls.__module__ == "jaxtyping._array_types" and "dim_str" in vars(value)
        return ARRAY_TYPE if made else CLASS
    if isinstance(value, CUSTOM_RULES):
        return CUSTOM_RULE
    if isinstance(value, functools.partial):
        return PARTIAL if is_library_class(cls) else UNKNOWN
    if _is_equinox_method(value):
        return METHOD
    if isinstance(value, np.dtype):
        return BY_PIECE
    # A library keeps one of these for each name or place, as long as it runs.
    if issubclass(cls, jax.sharding.Mesh) and is_library_class(cls):
        return BY_IDENTITY
    if issubclass(cls, logging.Logger) and is_library_class(cls):
        return LOGGER
    if issubclass(cls, jax.Device) or is_permanent(value):
        return PERMANENT
    if is_faithful_node(cls) and _is_tree_node(value):
        return NODE
    if issubclass(cls, (dict, list, tuple)):
        return SUBCLASSED if _is_plain(cls) else UNKNOWN
    # Shardings and the like: JAX hashes and compares them itself.
    if cls.__module__.partition(".")[0] in ("jax", "jaxlib") and (
        cls.__hash__ is not object.__hash__ and cls.__hash__ is not None
    ):
        return STATIC
    if cls.__module__ == "flax.ids":
        return MARK
    if not keeps_all_in_attributes(cls):
        return UNKNOWN
    if not is_library_class(cls):
        return OBJECT
    if cls.__module__ == "jax._src.source_info_util" and hasattr(value, "name"):
        return NAMED_SCOPE
    if is_constant(value):
        return PERMANENT if cls.__module__ == "typing" else CONSTANT
    return OBJECT if attributes_of(value) else EMPTY


def _is_plain(cls: type) -> bool:
    """Whether objects of a library's class are a dict, a list or a tuple."""
    base = next(b for b in (dict, list, tuple) if issubclass(cls, b))
    return is_library_class(cls) and keeps_all_in_attributes(cls, base)


def is_faithful_node(cls: type) -> bool:
    """Whether flattening a node and building it anew gives the same thing.

    It does for equinox modules, dataclasses, named tuples and what libraries register;
    what a user registers may forget attributes or compute when it is made.
    """
    faithful = is_library_class(cls) or issubclass(cls, (eqx.Module, tuple))
    return faithful or "__dataclass_fields__" in vars(cls)


def _is_tree_node(value: object) -> bool:
    try:
        return not jax.tree_util.all_leaves([value])
    except ValueError:  # a tuple that answers to every name, as those of a mock do
        return False


Description.find = staticmethod(captured_type_of)
