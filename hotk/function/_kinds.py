"""Which visitor a thing gets: the table of what is captured and how it is treated."""

import decimal
import enum
import fractions
import functools
import sys
import types
from collections import OrderedDict
from typing import Any, Generic, Protocol

import equinox as eqx
import jax
import numpy as np

from hotk._core import ARRAY, JITTED

from ._callables import (
    Ruled,
    builtin,
    custom_rule,
    function,
    is_permanent,
    memo,
    method,
    module,
    partial,
)
from ._classes import (
    a_class,
    is_library_class,
    mapping,
    member,
    plain_object,
    static,
    unknown,
)
from ._values import (
    a_range,
    a_set,
    a_slice,
    by_identity,
    by_text,
    complex_number,
    leaf,
    number,
    numpy_leaf,
    numpy_number,
    permanent,
    sequence,
    tree_node,
    ufunc,
)
from ._walk import TREATMENTS, VISITORS, Placeholder, Visitor, Walk


_PLAIN_BASES = (object, Generic, Protocol)
CUSTOM_RULES = (jax.custom_jvp, jax.custom_vjp, Ruled)


def is_equinox_method(value: Any) -> bool:
    return isinstance(value, eqx.Module) and type(value).__name__ == "BoundMethod"


def visitor_of(value: Any) -> Visitor:
    """Find the visitor of a value whose very type is not in the table."""
    kind = type(value)
    if any(
        "__getattribute__" in vars(base)
        for base in kind.__mro__
        if not is_library_class(base)
    ):
        return unknown
    if isinstance(value, jax.Array):
        return leaf
    if isinstance(value, np.generic):
        return numpy_number if value.dtype.kind in "biufc" else unknown
    if isinstance(value, np.ndarray):
        return unknown
    if isinstance(value, enum.Enum):
        return member
    if isinstance(value, type):
        return a_class
    if isinstance(value, CUSTOM_RULES):
        return custom_rule
    if isinstance(value, functools.partial):
        return partial if is_library_class(kind) else unknown
    if is_equinox_method(value):
        return method
    if isinstance(value, np.dtype):
        return static
    if isinstance(value, (dict, list, set)):
        return unknown
    if is_permanent(value):
        return permanent
    if is_faithful_node(kind) and is_tree_node(value):
        return tree_node
    if kind.__module__.partition(".")[0] in ("jax", "jaxlib") and (
        kind.__hash__ is not object.__hash__ and kind.__hash__ is not None
    ):
        return static
    if is_library_class(kind):
        return unknown
    bases = {base for base in kind.__mro__ if is_library_class(base)}
    if bases <= set(_PLAIN_BASES) | _abstract_bases() and "__del__" not in dir(kind):
        return plain_object
    return unknown


def _abstract_bases() -> set[type]:
    abc = sys.modules.get("abc")
    return {abc.ABC} if abc is not None else set()


def is_faithful_node(kind: type) -> bool:
    """Whether flattening a node and building it anew gives the same thing.

    It does for equinox modules, dataclasses, named tuples and what libraries register;
    what a user registers may forget attributes or compute when it is made.
    """
    faithful = is_library_class(kind) or issubclass(kind, (eqx.Module, tuple))
    return faithful or "__dataclass_fields__" in vars(kind)


def is_tree_node(value: Any) -> bool:
    return not jax.tree_util.all_leaves([value])


VISITORS.update(
    {
        ARRAY: leaf,
        Placeholder: leaf,
        np.ndarray: numpy_leaf,
        type(None): static,
        bool: static,
        int: static,
        str: static,
        bytes: static,
        float: number,
        complex: complex_number,
        decimal.Decimal: by_text,
        fractions.Fraction: by_text,
        range: a_range,
        slice: a_slice,
        type(...): static,
        type(NotImplemented): static,
        set: a_set,
        frozenset: a_set,
        list: sequence,
        tuple: sequence,
        dict: mapping,
        OrderedDict: mapping,
        types.FunctionType: function,
        types.MethodType: method,
        types.BuiltinFunctionType: builtin,
        types.MethodWrapperType: builtin,
        types.WrapperDescriptorType: permanent,
        types.MethodDescriptorType: permanent,
        types.ClassMethodDescriptorType: permanent,
        functools.partial: partial,
        functools._lru_cache_wrapper: memo,
        types.ModuleType: module,
        type: a_class,
        JITTED: by_identity,
        np.ufunc: ufunc,
    }
)
TREATMENTS.update(
    {
        leaf: "leaf",
        numpy_leaf: "leaf",
        sequence: "walked",
        mapping: "walked",
        tree_node: "walked",
        function: "walked",
        method: "walked",
        partial: "walked",
        custom_rule: "walked",
        plain_object: "walked",
        a_class: "walked",
        by_identity: "static by identity",
        permanent: "static by identity",
        builtin: "static by identity",
        module: "static by identity",
    }
)
Walk.find = staticmethod(visitor_of)
