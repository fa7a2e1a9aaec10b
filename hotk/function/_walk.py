"""The walk over a callable: every captured thing is a leaf, static, or opaque."""

import builtins
import contextlib
import enum
import functools
import itertools
import math
import sys
import types
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final, Generic, Protocol

import equinox as eqx
import jax
import numpy as np
from jax.tree_util import tree_flatten

from hotk._core import ARRAY, JITTED, Tracer

from ._recipe import Recipe, is_library_module, is_library_name, recipe_of


_CLASSES: "weakref.WeakKeyDictionary[type, bool]" = weakref.WeakKeyDictionary()
_HEAP_TYPE = 1 << 9


def is_library_class(kind: type) -> bool:
    """Whether a class belongs to Python, to an installed package or to hotk."""
    known = _CLASSES.get(kind)
    if known is None:
        name = kind.__module__
        known = is_library_name(name)
        if name == "builtins" and kind.__flags__ & _HEAP_TYPE:
            known = False  # made by `exec` in a namespace without a name
        _CLASSES[kind] = known
    return known


class Opaque(Exception):
    """A captured thing can change in a way that the walk cannot see."""


class Node:
    """One visited thing, recorded when a walk is asked to leave a trail."""

    __slots__ = ("name", "parents", "path", "treatment", "value")

    def __init__(self, value: Any, path: str, name: str, treatment: str) -> None:
        self.value = value
        self.path = path
        self.name = name
        self.treatment = treatment
        self.parents: list[Node] = []


class Trail:
    """The nodes of a walk in the order of visit, with their parents."""

    __slots__ = ("nodes", "stack")

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.stack: list[Node] = []


class Walk:
    """What a walk collects: the skeleton's key and the captured arrays.

    Attributes:
        key: The skeleton as a flat list of hashable pieces, compared by value.
        leaves: The captured arrays: NumPy arrays as copies of their own.
        small: Whether small arrays are static by content rather than leaves.
    """

    frozen = 0
    small = False
    trail: Trail | None = None

    def __init__(self, *, small: bool = False, trail: Trail | None = None) -> None:
        self.key: list[Hashable] = []
        self.leaves: list[Any] = []
        self.originals = self.leaves  # another list once a NumPy array was copied
        self.seen: dict[int, tuple[int, Any]] = {}
        if small:
            self.small = True
        if trail is not None:
            self.trail = trail

    def add_leaf(self, value: Any, original: Any) -> None:
        """Take a captured array, which may be a copy of the original."""
        self.key.append(_LEAF if value is original else _NUMPY_LEAF)
        if value is not original and self.originals is self.leaves:
            self.originals = list(self.leaves)
        self.leaves.append(value)
        if self.originals is not self.leaves:
            self.originals.append(original)

    def plain_key(self) -> list[Hashable]:
        """Return the key without the difference between NumPy's and JAX's arrays."""
        return [_LEAF if piece is _NUMPY_LEAF else piece for piece in self.key]

    def visit(self, value: Any, how: str = "", name: Any = "") -> None:
        """Visit one captured thing, which was reached by `how` and `name`."""
        visitor = _VISITORS.get(type(value))
        if visitor is None:
            visitor = _visitor_of(value)
        if self.trail is None:
            visitor(self, value)
        else:
            self._visit_with_trail(visitor, value, how, name)

    def _visit_with_trail(self, visitor: "Visitor", value: Any, how: str, name: Any) -> None:
        trail = self.trail
        assert trail is not None
        parent = trail.stack[-1] if trail.stack else None
        node = trail.nodes.get(id(value))
        fresh = node is None or node.value is not value
        if node is None or fresh:
            place = how.format(name) if how else str(name)
            path = (parent.path if parent else "") + place
            node = Node(value, path, visitor.__name__, _TREATMENTS.get(visitor, "static"))
            trail.nodes[id(value)] = node
        if parent is not None:
            node.parents.append(parent)
        trail.stack.append(node)
        before = len(self.leaves)
        try:
            visitor(self, value)
            if node.treatment == "leaf" and len(self.leaves) == before and fresh:
                node.treatment = "static by content"
        except Opaque as reason:
            if not str(node.treatment).startswith("opaque"):
                node.treatment = f"opaque: {reason}"
            raise
        finally:
            trail.stack.pop()

    @contextlib.contextmanager
    def inside(self, value: Any, path: str) -> Iterator[None]:
        """Record a thing that is only passed through on the way to others."""
        trail = self.trail
        if trail is None:
            yield
            return
        node = trail.nodes.get(id(value))
        if node is None:
            node = Node(value, path, "module", "walked")
            trail.nodes[id(value)] = node
        if trail.stack:
            node.parents.append(trail.stack[-1])
        trail.stack.append(node)
        try:
            yield
        finally:
            trail.stack.pop()

    def met(self, value: Any) -> bool:
        """Whether a thing was met before; if so its number goes into the key."""
        number = self.seen.get(id(value))
        if number is not None:
            self.key.append(_SEEN)
            self.key.append(number[0])
            return True
        self.seen[id(value)] = (len(self.seen), value)
        return False


class Placeholder:
    """Stands where an array was, in the template of a closure."""

    __slots__ = ("number",)
    size = sys.maxsize

    def __init__(self, number: int) -> None:
        self.number = number


Visitor = Callable[[Walk, Any], None]
_MISSING: Final = "<missing global>"
_SEEN: Final = "<met before>"
_LEAF: Final = "<leaf>"
_NUMPY_LEAF: Final = "<NumPy leaf>"
_SMALL = 64


def is_numeric(dtype: np.dtype) -> bool:
    """Whether JAX has numbers of a NumPy dtype, in this machine's byte order."""
    if dtype.kind in "biu":
        return dtype.isnative
    known = jax.dtypes.issubdtype(dtype, np.inexact)
    return known and dtype.isnative and dtype.itemsize <= (16 if dtype.kind == "c" else 8)


def own_copy(array: np.ndarray) -> np.ndarray:
    """Copy a NumPy array in the dtype that JAX will give it."""
    return np.array(array, dtype=jax.dtypes.canonicalize_dtype(array.dtype), copy=True)


def _content(array: Any) -> Hashable:
    weak = bool(getattr(array, "weak_type", False))
    if isinstance(array, jax.Array) and _is_key(array):
        data = np.asarray(jax.random.key_data(array))
        return ("content", str(array.dtype), data.shape, data.tobytes())
    data = np.asarray(array)
    form = None
    if isinstance(array, np.ndarray):
        form = (array.strides, array.flags.num, type(array))
    return ("content", data.shape, data.dtype.str, weak, form, data.tobytes())


def _is_key(array: jax.Array) -> bool:
    return jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)


# ----- Leaves


def leaf(walk: Walk, value: Any) -> None:
    """A JAX array or a tracer."""
    if walk.met(value):
        return
    if walk.frozen:
        raise Opaque("an array reached through a class or a static field")
    if walk.small and value.size <= _SMALL and not isinstance(value, Tracer):
        walk.key.append(_content(value))
        return
    walk.add_leaf(value, value)


def numpy_leaf(walk: Walk, value: np.ndarray) -> None:
    """A NumPy array."""
    if walk.met(value):
        return
    if walk.frozen:
        raise Opaque("an array reached through a class or a static field")
    if not is_numeric(value.dtype):
        raise Opaque(f"a NumPy array of dtype {value.dtype}")
    if walk.small and value.size <= _SMALL:
        walk.key.append(_content(value))
        return
    try:
        copy = own_copy(value)
    except TypeError as error:
        raise Opaque(f"a NumPy array of dtype {value.dtype}") from error
    if copy.dtype != value.dtype and value.dtype.kind in "iu" and value.size:
        limits = np.iinfo(copy.dtype)
        if value.max() > limits.max or value.min() < limits.min:
            raise Opaque(f"a NumPy array with integers beyond {copy.dtype}")
    walk.add_leaf(copy, value)


# ----- Static by value


def static(walk: Walk, value: Any) -> None:
    """A value that cannot change: by type and value."""
    walk.key.append(type(value))
    walk.key.append(value)


def number(walk: Walk, value: float) -> None:
    """A float, told apart from its other zero and from an integer."""
    walk.key.append(float)
    walk.key.append(value if value and not math.isnan(value) else value.hex())


def complex_number(walk: Walk, value: complex) -> None:
    """A complex number, by both parts."""
    walk.key.append((complex, value.real.hex(), value.imag.hex()))


def numpy_number(walk: Walk, value: np.generic) -> None:
    """A NumPy scalar, bit by bit."""
    walk.key.append((type(value), value.dtype.str, value.tobytes()))


def a_slice(walk: Walk, value: slice) -> None:
    """A slice, by its parts."""
    walk.key.append(slice)
    for part in (value.start, value.stop, value.step):
        walk.visit(part)


def a_set(walk: Walk, value: Any) -> None:
    """A set of simple values."""
    if walk.met(value):
        return
    if not all(type(item) in (int, str, bool, bytes, type(None)) for item in value):
        raise Opaque("a set of things that are not simple")
    walk.key.append((type(value), frozenset((type(item), item) for item in value)))


def member(walk: Walk, value: enum.Enum) -> None:
    """A member of an enumeration, by its class and name."""
    walk.key.append((type(value), value.name))
    if not is_library_class(type(value)):
        a_class(walk, type(value))


def _member_data(walk: Walk, value: enum.Enum) -> None:
    """What a member of an enumeration carries besides its name."""
    kept = {k: v for k, v in vars(value).items() if k == "_value_" or k[:1] != "_"}
    mapping(walk, kept)


# ----- Static by identity


def permanent(walk: Walk, value: Any) -> None:
    """A thing of an installed library: static by identity."""
    walk.key.append(value)


def by_identity(walk: Walk, value: Any) -> None:
    """A thing known by its identity alone, not kept alive."""
    walk.key.append(weakref.ref(value))


def builtin(walk: Walk, value: Any) -> None:
    """A builtin function or method."""
    owner = getattr(value, "__self__", None)
    if not isinstance(owner, _HARMLESS_OWNERS):
        raise Opaque(f"a method of a {type(owner).__name__} that can change")
    if id(value) in _UNSEEN:
        raise Opaque(f"`{value.__name__}` reads what no walk can see")
    walk.key.append(value)


def module(walk: Walk, value: types.ModuleType) -> None:
    """A module used as a value."""
    if not is_library_module(value) or value.__name__ in _REFLECTION:
        raise Opaque(f"the module `{value.__name__}` used as a value")
    walk.key.append(value)


# ----- Containers


def sequence(walk: Walk, value: Any) -> None:
    """A list or a tuple."""
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.key.append(len(value))
    for i, item in enumerate(value):
        walk.visit(item, "[{}]", i)


def mapping(walk: Walk, value: Any) -> None:
    """A dict, in the order in which it is iterated over."""
    if walk.met(value):
        return
    walk.key.append(type(value))
    walk.key.append(len(value))
    for name, item in list(value.items()):
        if type(name) is str:
            walk.key.append(name)
        else:
            walk.visit(name, "key {!r}", name)
        walk.visit(item, "[{!r}]", name)


def tree_node(walk: Walk, value: Any) -> None:
    """A registered pytree: children are captured, the rest is static."""
    if walk.met(value):
        return
    children, treedef = tree_flatten(value, is_leaf=lambda node: node is not value)
    data = treedef.node_data()
    if data is None:
        raise Opaque(f"an empty node of type {type(value).__name__}")
    tree_data(walk, *data)
    walk.key.append(len(children))
    for i, child in enumerate(children):
        walk.visit(child, "<{}>", i)


def tree_data(walk: Walk, kind: type, data: Any) -> None:
    """The static part of a pytree's node: its class and what the class keeps."""
    walk.key.append(kind if is_library_class(kind) else weakref.ref(kind))
    walk.frozen += 1
    try:
        if not is_library_class(kind):
            a_class(walk, kind)
        _static_data(walk, data)
    finally:
        walk.frozen -= 1


def _static_data(walk: Walk, data: Any) -> None:
    if type(data) in (tuple, list):
        walk.key.append(len(data))
        for item in data:
            _static_data(walk, item)
        return
    visitor = _VISITORS.get(type(data)) or _visitor_of(data)
    if visitor is unknown:
        try:
            hash(data)
        except TypeError as error:
            raise Opaque("static data of a pytree without a hash") from error
        walk.key.append(data)
    else:
        walk.visit(data, "<static>")


# ----- Callables


def function(walk: Walk, value: types.FunctionType) -> None:
    """A Python function: its code, defaults, cells and the globals it reads."""
    recipe = recipe_of(value.__code__)
    key = walk.key
    if recipe.library:
        if value.__closure__ is None or _is_permanent(value):
            key.append(weakref.ref(value))
            return
    if walk.met(value):
        return
    key.append(recipe)
    closure = value.__closure__
    if closure is not None:
        names = value.__code__.co_freevars
        for name, cell in zip(names, closure, strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                key.append("<empty cell>")
                continue
            walk.visit(content, " cell `{}`", name)
    if value.__defaults__ or value.__kwdefaults__ or value.__dict__:
        _defaults(walk, value, recipe)
    else:
        key.append(None)
    if recipe.library:
        return
    if recipe.writes is not None:
        raise Opaque(f"it writes {recipe.writes}")
    if recipe.draws:  # the one setting that JAX leaves out of its own keys
        key.append(str(jax.config.jax_default_prng_impl))
    if recipe.names:
        _globals(walk, value, recipe)
    for name in recipe.imports:
        if not is_library_name(name.partition(".")[0]):
            raise Opaque(f"it imports `{name}` while it runs")


def _defaults(walk: Walk, value: types.FunctionType, recipe: Recipe) -> None:
    defaults, keywords = value.__defaults__ or (), value.__kwdefaults__ or {}
    walk.key.append((len(defaults), len(keywords)))
    for i, default in enumerate(defaults):
        walk.visit(default, " default {}", i)
    for name, default in keywords.items():
        walk.key.append(name)
        walk.visit(default, " default `{}`", name)
    if not recipe.library:
        mapping(walk, value.__dict__)


def _globals(walk: Walk, value: types.FunctionType, recipe: Recipe) -> None:
    space = value.__globals__
    key = walk.key
    for name in recipe.names:
        found = space.get(name, _MISSING)
        if found is _MISSING:
            found = value.__builtins__.get(name, _MISSING)
            if id(found) in _UNSEEN:
                raise Opaque(f"`{name}` reads what no walk can see")
            if found is _BUILTINS.get(name, _MISSING) and type(found) in _BUILTIN_TYPES:
                key.append(found)
            else:
                walk.visit(found, " builtin `{}`", name)
        elif type(found) is not types.ModuleType:
            walk.visit(found, " global `{}`", name)
        elif found in _PLAIN_MODULES:
            key.append(found)
        else:
            _module_attributes(walk, found, name, recipe)


def _module_attributes(
    walk: Walk, found: types.ModuleType, name: str, recipe: Recipe
) -> None:
    if found.__name__ in _REFLECTION:
        raise Opaque(f"the module `{found.__name__}` reads what no walk can see")
    if is_library_module(found):
        _PLAIN_MODULES.add(found)
        walk.key.append(found)
        return
    if name in recipe.bare:
        raise Opaque(f"the module `{name}` used as a value")
    for chain in recipe.attributes[name]:
        _chain(walk, found, name, chain)


def _chain(walk: Walk, here: types.ModuleType, name: str, chain: tuple[str, ...]) -> None:
    """Visit what `module.a.b` is now, going on through modules of the user."""
    if not chain:
        raise Opaque(f"the module `{name}` used as a value")
    if chain[0] not in vars(here):
        raise Opaque(f"`{name}.{chain[0]}` is not a plain attribute")
    inner = vars(here)[chain[0]]
    place = f"{name}.{chain[0]}"
    with walk.inside(here, f" module `{name}`"):
        if type(inner) is types.ModuleType and not is_library_module(inner):
            _chain(walk, inner, place, chain[1:])
        else:
            walk.visit(inner, " `{}`", place)


def method(walk: Walk, value: Any) -> None:
    """A bound method: its function and its object."""
    walk.key.append(types.MethodType)
    walk.visit(value.__func__, ".__func__")
    walk.visit(value.__self__, ".__self__")


def partial(walk: Walk, value: functools.partial) -> None:
    """A partial: its function and its arguments."""
    walk.key.append(type(value))
    walk.visit(value.func, ".func")
    walk.key.append(len(value.args))
    for i, item in enumerate(value.args):
        walk.visit(item, " argument {}", i)
    mapping(walk, value.keywords)


def custom_rule(walk: Walk, value: Any) -> None:
    """A function with its own derivative: its body and its rules."""
    if walk.met(value):
        return
    if _is_permanent(value):
        walk.key.append(weakref.ref(value))
        return
    walk.key.append(type(value))
    walk.key.append(len(vars(value)))
    for name, item in vars(value).items():
        if name == "__wrapped__":
            continue
        walk.key.append(name)
        walk.visit(item, ".{}", name)


def a_class(walk: Walk, value: type) -> None:
    """A class: by identity, and its functions like the user's own."""
    if is_library_class(value):
        walk.key.append(value)
        return
    if walk.met(value):
        return
    walk.key.append(weakref.ref(value))
    walk.frozen += 1
    try:
        if not is_library_class(type(value)):
            a_class(walk, type(value))
        for base in value.__mro__:
            if is_library_class(base):
                continue
            fields = vars(base).get("__dataclass_fields__", {})
            generated = "__dataclass_fields__" in vars(base)
            for field in fields.values():
                if field.metadata:
                    mapping(walk, dict(field.metadata))
            members = getattr(base, "__members__", {})
            for known in members.values():
                _member_data(walk, known)
            for name, item in list(vars(base).items()):
                if name in _CLASS_NOISE or name in members:
                    continue
                if members and name[:1] == "_" and not isinstance(item, types.FunctionType):
                    continue
                if generated and _is_generated(name, item):
                    continue
                walk.key.append(name)
                _class_item(walk, name, item)
    finally:
        walk.frozen -= 1


def _is_generated(name: str, item: Any) -> bool:
    """Whether `dataclasses` wrote a method: from the fields, so nothing of its own."""
    code = getattr(item, "__code__", None)
    written = name.startswith("__") and name != "__call__"
    return written and code is not None and code.co_filename == "<string>"


def _class_item(walk: Walk, name: str, item: Any) -> None:
    if isinstance(item, (staticmethod, classmethod)):
        walk.key.append(type(item))
        walk.visit(item.__func__, ".{}", name)
    elif isinstance(item, property):
        walk.key.append(property)
        for part in (item.fget, item.fset, item.fdel):
            walk.visit(part, ".{}", name)
    elif isinstance(item, functools.cached_property):
        walk.key.append(type(item))
        walk.visit(item.func, ".{}", name)
    elif isinstance(
        item,
        (types.MemberDescriptorType, types.GetSetDescriptorType, types.WrapperDescriptorType),
    ):
        walk.key.append(type(item))
    else:
        walk.visit(item, ".{}", name)


def plain_object(walk: Walk, value: Any) -> None:
    """An object of a class of the user: its class and its attributes."""
    if walk.met(value):
        return
    kind = type(value)
    a_class(walk, kind)
    attributes = attributes_of(value)
    walk.key.append(len(attributes))
    for name, item in attributes.items():
        walk.key.append(name)
        walk.visit(item, ".{}", name)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of a plain object, those in slots included."""
    found = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            descriptor = vars(base).get(name)
            if isinstance(descriptor, types.MemberDescriptorType):
                try:
                    found[name] = descriptor.__get__(value)
                except AttributeError:
                    continue
    return found


def unknown(walk: Walk, value: Any) -> None:
    """Anything else: it may change unseen."""
    raise Opaque(f"an object of type `{type(value).__module__}.{type(value).__qualname__}`")


# ----- Which visitor


_PLAIN_BASES = (object, Generic, Protocol)
_CUSTOM_RULES = (jax.custom_jvp, jax.custom_vjp)


def _is_permanent(value: Any) -> bool:
    """Whether a thing is what its qualified name in an installed library says."""
    name = getattr(value, "__module__", None)
    path = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str) or not isinstance(path, str) or not is_library_name(name):
        return False
    found: Any = sys.modules.get(name)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found is value


def _is_equinox_method(value: Any) -> bool:
    return isinstance(value, eqx.Module) and type(value).__name__ == "BoundMethod"


def _visitor_of(value: Any) -> Visitor:
    """Find the visitor of a value whose very type is not in the table."""
    kind = type(value)
    if any("__getattribute__" in vars(base) for base in kind.__mro__ if not is_library_class(base)):
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
    if isinstance(value, _CUSTOM_RULES):
        return custom_rule
    if isinstance(value, functools.partial):
        return partial
    if _is_equinox_method(value):
        return method
    if isinstance(value, np.dtype):
        return static
    if isinstance(value, (dict, list, set)):
        return unknown
    if _is_permanent(value):
        return permanent
    if is_faithful_node(kind) and _is_tree_node(value):
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


def _is_tree_node(value: Any) -> bool:
    return not jax.tree_util.all_leaves([value])


_BUILTINS = vars(builtins)
# What a bound builtin may belong to: modules, classes, immutable values, and a counter,
# which is how one counts traces.
_HARMLESS_OWNERS = (
    *(type(None), types.ModuleType, type, str, bytes, int, float, complex, tuple),
    *(frozenset, range, types.FunctionType, itertools.count, np.ufunc, np.dtype),
)
_BUILTIN_TYPES = (types.BuiltinFunctionType, type, str)
_PLAIN_MODULES: set[types.ModuleType] = set()
_UNSEEN = {
    id(_BUILTINS[name])
    for name in ("globals", "eval", "exec", "compile", "__import__", "id", "breakpoint")
}
_REFLECTION = frozenset(
    {"sys", "importlib", "inspect", "gc", "ctypes", "os", "random", "time"}
)
_CLASS_NOISE = frozenset(
    {
        *("__module__", "__doc__", "__dict__", "__weakref__", "__annotations__"),
        *("__dataclass_fields__", "__dataclass_params__", "__match_args__"),
        *("__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__"),
        *("__abstractvars__", "__abstractclassvars__", "__qualname__", "__slots__"),
        *("__static_attributes__", "__firstlineno__", "__annotate__", "__hash__"),
        *("__annotate_func__", "__annotations_cache__", "__type_params__"),
        *("__protocol_attrs__", "_is_protocol", "_is_runtime_protocol"),
        *("__non_callable_proto_members__", "__classcell__"),
    }
)

_VISITORS: dict[type, Visitor] = {
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
    range: static,
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
    types.ModuleType: module,
    type: a_class,
    JITTED: by_identity,
    np.ufunc: permanent,
}

_TREATMENTS: dict[Visitor, str] = {
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
