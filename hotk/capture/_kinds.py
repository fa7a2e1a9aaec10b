"""Which visitor a thing gets: the table of what is captured and how it is treated."""

import array
import collections
import datetime
import enum
import functools
import logging
import operator
import types
import typing
import weakref
from typing import Any

import equinox as eqx
import jax
import numpy as np

from hotk._core import ARRAY, JITTED

from ._callables import (
    WRAPPED_PARTIAL,
    Ruled,
    builtin,
    custom_rule,
    function,
    is_permanent,
    memo,
    method,
    module,
    partial,
    wrapped_partial,
)
from ._classes import a_class, is_library_class, mapping, member, static, unknown
from ._objects import (
    attributes_of,
    bare,
    is_kept,
    kept,
    makes_new,
    mark,
    named_scope,
    plain_object,
)
from ._registry import declared, is_declared
from ._standard import (
    FILTER_JITTED,
    PIECES,
    a_buffer,
    a_deque,
    a_logger,
    a_proxy,
    a_reference,
    a_set,
    array_type,
    by_piece,
    filter_jitted,
    getter,
    jitted,
    moment,
    number,
    subclassed,
    treedef,
    type_form,
)
from ._values import (
    a_slice,
    by_identity,
    leaf,
    numpy_leaf,
    permanent,
    sequence,
    tree_node,
    ufunc,
)
from ._walk import TREATMENTS, VISITORS, Placeholder, Visitor, Walk


CUSTOM_RULES = (jax.custom_jvp, jax.custom_vjp, Ruled)


def is_equinox_method(value: Any) -> bool:
    return isinstance(value, eqx.Module) and type(value).__name__ == "BoundMethod"


def visitor_of(value: Any) -> Visitor:
    """Find the visitor of a value whose very type is not in the table."""
    kind = type(value)
    if kind in weakref.ProxyTypes:  # it passes for what it stands for
        return unknown
    if any(
        "__getattribute__" in vars(base)
        for base in kind.__mro__
        if not is_library_class(base)
    ):
        return unknown
    if is_declared(value):
        return declared
    if isinstance(value, jax.Array):
        return leaf
    if isinstance(value, np.generic):
        plain = is_library_class(kind) and not issubclass(kind, np.void)
        return by_piece if plain else unknown
    if isinstance(value, np.ndarray):
        return unknown
    if isinstance(value, enum.Enum):
        return member
    if isinstance(value, type):
        made = kind.__module__ == "jaxtyping._array_types" and "dim_str" in vars(value)
        return array_type if made else a_class
    if isinstance(value, CUSTOM_RULES):
        return custom_rule
    if isinstance(value, functools.partial):
        return partial if is_library_class(kind) else unknown
    if is_equinox_method(value):
        return method
    if isinstance(value, np.dtype):
        return by_piece
    # A library keeps one of these for each name or place, as long as it runs.
    if issubclass(kind, jax.sharding.Mesh) and is_library_class(kind):
        return by_identity
    if issubclass(kind, logging.Logger) and is_library_class(kind):
        return a_logger
    if issubclass(kind, jax.Device) or is_permanent(value):
        return permanent
    if is_faithful_node(kind) and is_tree_node(value):
        return tree_node
    if issubclass(kind, (dict, list, tuple)):
        return subclassed if _is_plain(kind) else unknown
    if kind.__module__.partition(".")[0] in ("jax", "jaxlib") and (
        kind.__hash__ is not object.__hash__ and kind.__hash__ is not None
    ):
        return static
    if kind.__module__ == "flax.ids":
        return mark
    if not makes_new(kind):
        return unknown
    if not is_library_class(kind):
        return plain_object
    if kind.__module__ == "jax._src.source_info_util" and hasattr(value, "name"):
        return named_scope
    if is_kept(value):
        return permanent if kind.__module__ == "typing" else kept
    return plain_object if attributes_of(value) else bare


def _is_plain(kind: type) -> bool:
    """Whether objects of a library's class are a dict, a list or a tuple."""
    base = next(b for b in (dict, list, tuple) if issubclass(kind, b))
    return is_library_class(kind) and makes_new(kind, base)


def is_faithful_node(kind: type) -> bool:
    """Whether flattening a node and building it anew gives the same thing.

    It does for equinox modules, dataclasses, named tuples and what libraries register;
    what a user registers may forget attributes or compute when it is made.
    """
    faithful = is_library_class(kind) or issubclass(kind, (eqx.Module, tuple))
    return faithful or "__dataclass_fields__" in vars(kind)


def is_tree_node(value: Any) -> bool:
    try:
        return not jax.tree_util.all_leaves([value])
    except ValueError:  # a tuple that answers to every name, as those of a mock do
        return False


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
        **dict.fromkeys(PIECES, by_piece),
        datetime.datetime: moment,
        datetime.time: moment,
        slice: a_slice,
        type(...): static,
        type(NotImplemented): static,
        object: permanent,
        set: a_set,
        frozenset: a_set,
        bytearray: a_buffer,
        array.array: a_buffer,
        collections.deque: a_deque,
        collections.defaultdict: subclassed,
        collections.Counter: subclassed,
        types.MappingProxyType: a_proxy,
        weakref.ref: a_reference,
        operator.itemgetter: getter,
        operator.attrgetter: getter,
        operator.methodcaller: getter,
        types.GenericAlias: type_form,
        types.UnionType: type_form,
        typing.TypeVar: by_identity,
        typing.ParamSpec: by_identity,
        jax.tree_util.PyTreeDef: treedef,
        list: sequence,
        tuple: sequence,
        dict: mapping,
        collections.OrderedDict: subclassed,
        types.FunctionType: function,
        types.MethodType: method,
        types.BuiltinFunctionType: builtin,
        types.MethodWrapperType: builtin,
        types.WrapperDescriptorType: permanent,
        types.MethodDescriptorType: permanent,
        types.ClassMethodDescriptorType: permanent,
        functools.partial: partial,
        WRAPPED_PARTIAL: wrapped_partial,
        functools._lru_cache_wrapper: memo,
        types.ModuleType: module,
        type: a_class,
        JITTED: jitted,
        FILTER_JITTED: filter_jitted,
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
        wrapped_partial: "walked",
        custom_rule: "walked",
        plain_object: "walked",
        subclassed: "walked",
        a_deque: "walked",
        a_proxy: "walked",
        a_reference: "walked",
        jitted: "walked",
        filter_jitted: "walked",
        kept: "static by identity",
        a_class: "walked",
        by_identity: "static by identity",
        a_logger: "static by identity",
        permanent: "static by identity",
        builtin: "static by identity",
        module: "static by identity",
    }
)
Walk.find = staticmethod(visitor_of)
