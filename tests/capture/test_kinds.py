"""What is captured is known by what it is: equal is the same, alike is not."""

import argparse
import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import inspect
import io
import itertools
import logging
import operator
import pathlib
import random
import re
import string
import threading
import types
import uuid
import weakref
import zoneinfo

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest
from jax import checkpoint, grad, jacfwd, jit, linearize, value_and_grad, vmap
from jax.lax import (
    associative_scan,
    cond,
    fori_loop,
    map as lax_map,
    scan,
    switch,
    while_loop,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int

import hotk
from hotk._capture import Opaque, Walk, _guard, key_and_arrays
from hotk._capture._layout import keeps_all_in_attributes
from tests.helpers import close
from tests.promises.stories_kinds import LIBRARY
from tests.promises.telling import module_on_disk


pytestmark = pytest.mark.usefixtures("as_user")

X = jnp.array([0.5, -1.5, 2.0])
NOTHING = object()
LOOP = lambda x: 2 * x


class Color(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: object


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Static:
    value: object


class Module(eqx.Module):
    value: object = eqx.field(static=True)


class AlwaysEqual:
    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 1


def key_of(value):
    """Return the key of a function that captures a value."""
    walk = Walk()
    walk.visit(lambda x: value)
    return tuple(walk.key)


EAST = datetime.timezone(datetime.timedelta(hours=1))
NOON = datetime.datetime(2020, 1, 1, 12)
Decimal = decimal.Decimal
ALIKE = {
    "one": (
        *(1, True, 1.0, np.float32(1), np.float64(1), np.int32(1), 1 + 0j, Decimal(1)),
        *(fractions.Fraction(1), Number.ONE, np.bool_(True)),
    ),
    "zero": (0.0, -0.0, 0, False, np.float64(0.0), np.float64(-0.0), 0j, -0j),
    "decimals": (Decimal("1.0"), Decimal("1.00"), Decimal("1")),
    "decimal zeros": (Decimal("0"), Decimal("-0")),
    "paths": (
        *(pathlib.PureWindowsPath("a"), pathlib.PureWindowsPath("A")),
        *(pathlib.PurePosixPath("a"), pathlib.Path("a"), "a", b"a", np.str_("a")),
    ),
    "moments": (
        NOON.replace(tzinfo=datetime.UTC),
        NOON.replace(hour=13, tzinfo=EAST),
        NOON,
        NOON.replace(fold=1),
        NOON.date(),
    ),
    "times": (
        datetime.time(12, tzinfo=datetime.UTC),
        datetime.time(13, tzinfo=EAST),
        datetime.time(12, fold=1),
    ),
    "zones": (
        datetime.UTC,
        datetime.timezone(datetime.timedelta(0), "X"),
        zoneinfo.ZoneInfo("UTC"),
    ),
    "patterns": (re.compile("a"), re.compile("a", re.IGNORECASE), re.compile(b"a")),
    "ranges": (range(0), range(1, 1), range(0, 0, 2)),
    "slices": (slice(0, 1), slice(0, True), slice(0, 1.0)),
    "sequences": ((1, 2), [1, 2], (1, 2.0), (True, 2)),
    "mappings": (
        *({"a": 1}, {"a": True}, {"a": 1.0}, collections.OrderedDict(a=1)),
        *(collections.Counter(a=1), collections.defaultdict(int, a=1)),
        types.MappingProxyType({"a": 1}),
        *(collections.UserDict(a=1), collections.ChainMap({"a": 1})),
    ),
    "keys": ({1: 0}, {True: 0}, {1.0: 0}),
    "orders": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "factories": (collections.defaultdict(int), collections.defaultdict(float)),
    "sets": ({1}, {True}, {1.0}, frozenset({1})),
    "sets of pairs": ({(1,)}, {(True,)}, {(1.0,)}),
    "deques": tuple(map(collections.deque, ([1], [True], [1.0]))),
    "lengths": (collections.deque([1]), collections.deque([1], 2)),
    "getters": (
        *(operator.itemgetter(1), operator.itemgetter(True)),
        *(operator.itemgetter((1,)), operator.itemgetter("a")),
        *(operator.attrgetter("a"), operator.attrgetter("a", "b")),
    ),
    "callers": (
        *(operator.methodcaller("a", 1), operator.methodcaller("a", True)),
        *(operator.methodcaller("a", b=1), operator.methodcaller("a", c=1)),
    ),
    "dtypes": (np.dtype("f4"), np.dtype(">f4"), np.float32, "float32"),
    "records": (
        np.dtype([("a", "i1"), ("b", "i4")]),
        np.dtype([("a", "i1"), ("b", "i4")], align=True),
    ),
    "hashes that say nothing": (AlwaysEqual(1), AlwaysEqual(2)),
    "frozen": (Frozen(1), Frozen(True), Frozen(1.0), Frozen(0.0), Frozen(-0.0)),
    "frozen tuples": (Frozen((0.0,)), Frozen((-0.0,)), Frozen((0,))),
    "static nodes": (Static(1), Static(True), Static(0.0), Static(-0.0)),
    "static fields": (
        *(Module(1), Module(True), Module(1.0), Module(0.0), Module(-0.0)),
        *(Module(Decimal("1.0")), Module(Decimal("1.00"))),
        *(Module(pathlib.PureWindowsPath("a")), Module(pathlib.PureWindowsPath("A"))),
        *(Module(Frozen(1)), Module(Frozen(True))),
        *(Module(AlwaysEqual(1)), Module(AlwaysEqual(2))),
    ),
    "buffers": (
        *(array.array("d", [1]), array.array("f", [1]), array.array("b", b"a")),
        *(bytearray(b"a"), b"a"),
    ),
    "labels": (np.array(["a"]), np.array(["a"], dtype="U2"), np.array([b"a"])),
    "days": (np.datetime64("2020"), np.datetime64("2020-01-01")),
    "structures": tuple(
        map(jax.tree.structure, ((1,), [1], (None,), {1: 0}, {True: 0}, 1))
    ),
    "structures of modules": tuple(
        map(jax.tree.structure, (Module(1), Module(True), Static(1), Static(True)))
    ),
    "types of arrays": (
        *(Float[jax.Array, "n"], Float[jax.Array, "m"]),
        *(Int[jax.Array, "n"], Float[np.ndarray, "n"]),
    ),
    "forms of types": (list[int], list[float], int | None, float | None),
    "signatures": (
        inspect.signature(lambda a: 0),
        inspect.signature(lambda a=1: 0),
        inspect.signature(lambda a=True: 0),
    ),
    "sentinels": (NOTHING, object()),
    "namespaces": (
        *(types.SimpleNamespace(a=1), types.SimpleNamespace(a=True)),
        argparse.Namespace(a=1),
    ),
    "limits": (np.finfo("f4"), np.finfo("f8"), jnp.finfo("bfloat16"), np.iinfo("i4")),
    "specifications": (PartitionSpec("i"), PartitionSpec("i", None)),
    "loggers": (logging.getLogger("a"), logging.getLogger("b")),
    "texts": (string.Template("a"), string.Template("b"), collections.UserString("a")),
    "solvers": (optimistix.Newton(1e-3, 1e-3), optimistix.Newton(1e-3, 1e-4)),
    "partials": (functools.partial(max, 1), functools.partial(max, True)),
}


@pytest.mark.parametrize("values", ALIKE.values(), ids=ALIKE)
def test_values_that_are_alike_have_other_keys(values):
    for one, other in itertools.combinations(values, 2):
        assert key_of(one) != key_of(other), (one, other)


MESH = Mesh(np.array(jax.devices()[:1]), ("i",))
FRESH = {
    "pattern": lambda: re.compile("a+"),
    "path": lambda: pathlib.Path("/a/b"),
    "moment": lambda: datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    "time": lambda: datetime.time(1),
    "date": lambda: datetime.date(2020, 1, 1),
    "span": lambda: datetime.timedelta(1),
    "zone": lambda: zoneinfo.ZoneInfo("UTC"),
    "identifier": lambda: uuid.UUID(int=5),
    "decimal": lambda: Decimal("1.5"),
    "fraction": lambda: fractions.Fraction(1, 2),
    "zero": lambda: 0.0,
    "complex": lambda: complex(1, 2),
    "no number": lambda: float("nan"),
    "number of NumPy": lambda: np.float32(1.5),
    "string of NumPy": lambda: np.str_("a"),
    "date of NumPy": lambda: np.datetime64("2020-01-01"),
    "dtype": lambda: np.dtype("float32"),
    "limits": lambda: np.finfo(np.float64),
    "slice": lambda: slice(0, 2),
    "range": lambda: range(3),
    "set": lambda: {"a"},
    "member": lambda: Color.RED,
    "member of a library": lambda: jax.lax.Precision.HIGHEST,
    "counter": lambda: collections.Counter("aab"),
    "chain": lambda: collections.ChainMap({"a": 1}, {"b": 2}),
    "deque": lambda: collections.deque([1, 2]),
    "default dict": lambda: collections.defaultdict(list, a=[1]),
    "ordered dict": lambda: collections.OrderedDict(a=1),
    "view": lambda: types.MappingProxyType({"a": 1}),
    "namespace": lambda: argparse.Namespace(a=1),
    "simple namespace": lambda: types.SimpleNamespace(a=1),
    "template": lambda: string.Template("$a"),
    "item getter": lambda: operator.itemgetter(0),
    "attribute getter": lambda: operator.attrgetter("a.b"),
    "logger": lambda: logging.getLogger("x"),
    "mesh": lambda: Mesh(np.array(jax.devices()[:1]), ("i",)),
    "sharding": lambda: NamedSharding(MESH, PartitionSpec("i")),
    "specification": lambda: PartitionSpec("i", None),
    "device": lambda: jax.devices()[0],
    "sentinel": lambda: NOTHING,
    "named scope": lambda: jax.named_scope("a"),
    "empty object of a library": lambda: string.Formatter(),
    "structure": lambda: jax.tree.structure({"a": (1, [2])}),
    "shape": lambda: jax.ShapeDtypeStruct((3,), jnp.float32),
    "jitted": lambda: jit(lambda x: 2 * x),
    "frozen": lambda: Frozen(1),
    "weak reference": lambda: weakref.ref(LOOP),
    "array of NumPy": lambda: np.arange(3.0, dtype=np.float32),
}
# What a guard does not vouch for: it takes a walk of some microseconds each time.
WALKED = {
    **FRESH,
    "signature": lambda: inspect.signature(key_of),
    "caller": lambda: operator.methodcaller("sum", axis=0),
    "pairs": lambda: {(1, "a")},
    "labels": lambda: np.array(["a", "b"]),
    "buffer": lambda: array.array("d", [1.0]),
    "type of an array": lambda: Float[jax.Array, "n"],
    "form of a type": lambda: dict[str, int | None],
    "static node": lambda: Static((1, 2.0)),
    "user dict": lambda: collections.UserDict(a=1),
    "solver": lambda: optimistix.Newton(1e-3, 1e-3),
    "polynomial": lambda: np.polynomial.Polynomial([1.0, 2.0]),
    "function of a library": lambda: vmap(lambda x: 2 * x, (0,)),
    "partial of one": lambda: functools.partial(scan, lambda s, x: (s, x)),
    "module of a library": lambda: eqx.filter_vmap(lambda x: 2 * x),
    "jitted module": lambda: eqx.filter_jit(lambda x: 2 * x),
}


def over(captured):
    """Return a function that captures a thing."""
    return lambda x: jnp.sum(x**3) if captured is not None else 0.0


@pytest.mark.thinned(48)
@pytest.mark.parametrize("make", WALKED.values(), ids=WALKED)
def test_a_fresh_thing_of_the_same_value_is_the_same(make):
    hotk.clear_cache()
    for _ in range(4):
        close(hotk.gradient(over(make()), X), 3 * X**2)
    assert hotk.cache_info().compiles == 1
    assert hotk.cache_info().misses == 1
    assert hotk.explain(over(make())).opaque is None


def over_of_its_own():
    """Return a maker of functions whose code no other test has: guards go by code."""
    space = {"jnp": jnp}
    exec("def over(captured): return lambda x: jnp.sum(x) * (captured is None)", space)
    return space["over"]


@pytest.mark.parametrize("make", FRESH.values(), ids=FRESH)
def test_a_guard_vouches_for_it(make):
    over = over_of_its_own()
    for _ in range(3):
        key_and_arrays(over(make()))
    f = over(make())
    guards = _guard._BY_CODE[id(f.__code__)].guards
    assert any(check(f, (), ()) is not None for check, _ in guards)


@pytest.mark.parametrize("values", ALIKE.values(), ids=ALIKE)
def test_a_guard_tells_apart_what_is_alike(values):
    over = over_of_its_own()
    for value in values * 3:
        f = over(value)
        walk = Walk()
        walk.visit(f)
        assert tuple(key_and_arrays(f)[0]) == tuple(walk.key)


OPAQUE = {
    "lock": threading.Lock,
    "event": threading.Event,
    "local": threading.local,
    "generator": lambda: (i for i in range(3)),
    "iterator": lambda: iter([1]),
    "zip": lambda: zip([1], [2], strict=True),
    "random numbers": lambda: random.Random(0),
    "random numbers of NumPy": lambda: np.random.default_rng(0),
    "open text": io.StringIO,
    "memo": lambda: functools.lru_cache(lambda x: x),
    "dict of weak references": lambda: weakref.WeakValueDictionary(a=LOOP),
    "view of memory": lambda: memoryview(b"a"),
    "counter": lambda: itertools.count(),
    "objects in an array": lambda: np.array([object()]),
}


@pytest.mark.parametrize("make", OPAQUE.values(), ids=OPAQUE)
def test_what_has_state_that_no_one_sees_is_opaque(make):
    with pytest.raises(Opaque):
        key_of(make())


def test_memory_beyond_attributes_is_seen():
    class Plain:
        pass

    class Slotted:
        __slots__ = ("__b", "__weakref__", "a")

    class Both(Slotted):
        pass

    class Longer(Slotted):
        __slots__ = ("c",)

    class Mapping(collections.abc.Mapping):
        __getitem__ = __iter__ = __len__ = lambda self: 0

    class Random(random.Random):
        pass

    class Error(Exception):
        pass

    class Buried:
        def __del__(self):
            pass

    plain = (Plain, Slotted, Both, Longer, Mapping, types.SimpleNamespace, uuid.UUID)
    assert all(map(keeps_all_in_attributes, plain))
    hidden = (Random, Error, Buried, io.StringIO, threading.local, np.random.Generator)
    assert not any(map(keeps_all_in_attributes, hidden))
    assert not keeps_all_in_attributes(functools.partial)
    assert not keeps_all_in_attributes(type("Local", (threading.local,), {}))
    assert keeps_all_in_attributes(type("Tuple", (tuple,), {}), tuple)
    assert keeps_all_in_attributes(type("Dict", (dict,), {"__slots__": ("a",)}), dict)
    assert not keeps_all_in_attributes(collections.OrderedDict, dict)


# ----- Functions of JAX by their names


BY_NAME = {
    "vmap": lambda a: lambda x: jnp.sum(vmap(lambda r, s: r * s**3)(a, x)),
    "jit": lambda a: lambda x: jit(lambda y: jnp.sum(a * y**3))(x),
    "grad": lambda a: lambda x: jnp.sum(grad(lambda y: jnp.sum(a * y**4) / 4)(x)),
    "jacfwd": lambda a: lambda x: jnp.trace(jacfwd(lambda y: a * y**4 / 4)(x)),
    "checkpoint": lambda a: lambda x: checkpoint(lambda y: jnp.sum(a * y**3))(x),
    "value_and_grad": lambda a: (
        lambda x: value_and_grad(lambda y: jnp.sum(a * y**3))(x)[0]
    ),
    "linearize": lambda a: lambda x: linearize(lambda y: jnp.sum(a * y**3), x)[0],
    "scan": lambda a: (
        lambda x: scan(lambda s, r: (s + r[0] * r[1] ** 3, None), 0.0, (a, x))[0]
    ),
    "cond": lambda a: (
        lambda x: cond(True, lambda y: jnp.sum(a * y**3), lambda y: 0.0, x)
    ),
    "switch": lambda a: (
        lambda x: switch(0, [lambda y: jnp.sum(a * y**3), lambda y: 0.0], x)
    ),
    "fori_loop": lambda a: (
        lambda x: fori_loop(0, 3, lambda i, s: s + a[i] * x[i] ** 3, 0.0)
    ),
    "while_loop": lambda a: (
        lambda x: while_loop(
            lambda s: s[0] < 1, lambda s: (s[0] + 1, jnp.sum(a * x**3)), (0, 0.0)
        )[1]
    ),
    "map": lambda a: lambda x: jnp.sum(lax_map(lambda r: r[0] * r[1] ** 3, (a, x))),
    "associative_scan": lambda a: lambda x: associative_scan(jnp.add, a * x**3)[-1],
}


# In a `fori_loop` NumPy's arrays have no entry `i`; a NumPy array inside of an inner
# `jit` is a constant of another program than the one that it is an argument of.
ON_NUMPY = [name for name in BY_NAME if name not in ("fori_loop", "jit")]


@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, jnp.asarray) for name in BY_NAME]
    + [(name, np.asarray) for name in ON_NUMPY],
)
def test_functions_of_jax_by_name_are_on_the_fast_path(name, kind):
    make = BY_NAME[name]
    hotk.clear_cache()
    data = [kind(np.array([1.0, 2.0, 3.0]) * k) for k in (1, 2, 3)]
    for i, a in enumerate(data):
        f = make(a)
        close(hotk.gradient(f, X), 3 * a * X**2, rtol=1e-5)
        close(hotk.hvp(f, X, X), 6 * a * X**2, rtol=1e-5)
        if i == 0:
            before = hotk.cache_info()
    after = hotk.cache_info()
    assert after.traces == before.traces
    assert after.compiles == before.compiles


# ----- Jitted functions


def test_a_fresh_jitted_function_is_looked_through():
    def make(a, **options):
        inner = jit(lambda y, n: jnp.sum(a * y**n), static_argnums=1, **options)
        return lambda x: inner(x, 3)

    hotk.clear_cache()
    for k in (1.0, 2.0, 3.0):
        close(hotk.gradient(make(jnp.full(3, k)), X), 3 * k * X**2)
    assert hotk.cache_info().misses == 1
    close(hotk.gradient(make(jnp.full(3, 1.0), inline=True), X), 3 * X**2)
    assert hotk.cache_info().misses == 2


def test_a_private_slot_is_on_the_fast_path():
    with module_on_disk("slots_here", LIBRARY, folder="site-packages") as library:
        held = library.Slotted(jnp.full(3, 1.0))
        hotk.clear_cache()
        for k in (1.0, 2.0, 3.0):
            held.change(jnp.full(3, k))
            found = hotk.gradient(lambda x: jnp.sum(held.scale() * x**3), X)
            close(found, 3 * k * X**2)
        assert hotk.cache_info().misses == 1


def test_a_number_that_a_jitted_function_reads_is_read_as_it_is_now():
    rate = 1.0
    f = jit(lambda x: rate * jnp.sum(x**3))
    close(hotk.gradient(lambda x: f(x), X), 3 * X**2)
    rate = 5.0
    close(hotk.gradient(lambda x: f(x), X), 15 * X**2)


def test_what_a_jitted_function_reads_is_read_as_it_is_now():
    table = [jnp.ones(3), 1.0]
    f = jit(lambda x: table[1] * jnp.sum(table[0] * x**3))
    close(hotk.gradient(f, X), 3 * X**2)
    table[0] = jnp.full(3, 2.0)
    close(hotk.gradient(f, X), 6 * X**2)
    table[1] = 5.0
    close(hotk.gradient(f, X), 30 * X**2)


def test_a_jitted_function_that_no_walk_sees_through_is_known_by_itself():
    def make(k):
        lock = threading.Lock()

        @jit
        def inner(y):
            with lock:
                return jnp.sum(k * y**3)

        return inner

    f = make(2.0)
    hotk.clear_cache()
    for _ in range(3):
        close(hotk.gradient(lambda x: f(x), X), 6 * X**2)
    assert hotk.cache_info().misses == 1
    assert hotk.explain(lambda x: f(x)).opaque is None
    f = make(3.0)
    close(hotk.gradient(lambda x: f(x), X), 9 * X**2)


def test_what_was_attempted_inside_a_jitted_function_leaves_nothing():
    a, b = jnp.ones(3), jnp.full(3, 2.0)
    lock = threading.Lock()
    hidden = jit(lambda y: jnp.sum(a * b * y**3) if lock else 0.0)
    f = lambda x: hidden(x) + jnp.sum(b * x**3)
    walk = Walk()
    walk.visit(f)
    assert [leaf is b for leaf in walk.leaves] == [True]
    close(hotk.gradient(f, X), (2 + 2) * 3 * X**2)


def test_attributes_of_a_jitted_function_count():
    inner = jit(lambda y: jnp.sum(y**3))
    inner.scale = 2.0
    f = lambda x: inner.scale * inner(x)
    close(hotk.gradient(f, X), 6 * X**2)
    inner.scale = 3.0
    close(hotk.gradient(f, X), 9 * X**2)


def test_a_method_jitted_in_init_is_seen_through():
    class Model:
        def __init__(self, a):
            self.a = a
            self.loss = jit(self._loss)

        def _loss(self, x):
            return jnp.sum(self.a * x**3)

    hotk.clear_cache()
    model = None
    for k in (1.0, 2.0, 3.0):
        model = Model(jnp.full(3, k))
        close(hotk.gradient(model.loss, X), 3 * k * X**2)
    model.a = jnp.full(3, 4.0)
    close(hotk.gradient(model.loss, X), 12 * X**2)
    assert hotk.cache_info().misses == 1


def test_a_named_scope_made_before_is_on_the_fast_path():
    def make(k):
        scope = jax.named_scope("loss")

        def f(x):
            with scope:
                return k * jnp.sum(x**3)

        return f

    hotk.clear_cache()
    for k in (1.0, 2.0, 3.0):
        close(hotk.gradient(make(jnp.array(k)), X), 3 * k * X**2)
    assert hotk.cache_info().misses == 1


# ----- Objects are left as they were


def test_a_frozen_object_may_be_a_static_argument_of_jit():
    @functools.partial(jit, static_argnums=1)
    def inner(x, config):
        return config.value * jnp.sum(x**3)

    for value in (1.0, 2.0, 1.0, 2.0):
        config = Frozen(value)
        for operator_ in (hotk.gradient, hotk.value_and_gradient):
            hotk.clear_cache()
            operator_(lambda x: inner(x, config), X)  # noqa: B023
        close(hotk.gradient(lambda x: inner(x, config), X), 3 * value * X**2)  # noqa: B023


@pytest.mark.parametrize("make", WALKED.values(), ids=WALKED)
def test_the_captured_thing_is_left_as_it_was(make):
    thing = make()
    before = key_of(thing)
    f = over(thing)
    hotk.hvp(f, X, X)
    hotk.hessian(f, X)
    assert f.__closure__[0].cell_contents is thing
    assert key_of(thing) == before


# ----- Declared static


def test_a_declared_class_is_compared_by_its_own_equality():
    @hotk.static
    class Unit:
        def __init__(self, name, power):
            self.name, self.power, self.lock = name, power, threading.Lock()

        def __eq__(self, other):
            return self.name == other.name

        def __hash__(self):
            return hash(self.name)

    def make(unit):
        return lambda x: jnp.sum(x**unit.power)

    hotk.clear_cache()
    for _ in range(3):
        close(hotk.gradient(make(Unit("m", 3)), X), 3 * X**2)
    assert hotk.cache_info().misses == 1
    close(hotk.gradient(make(Unit("s", 2)), X), 2 * X)
    assert hotk.cache_info().misses == 2

    class Derived(Unit):
        pass

    whole = lambda x, unit: jnp.sum(x**unit.power)
    f = functools.partial(whole, unit=Derived("m", 3))
    assert hotk.explain(f).opaque is not None


def test_a_declared_object_is_static_and_others_of_its_class_are_not():
    class Held:
        def __init__(self):
            self.lock = threading.Lock()

    declared, other = hotk.static(Held()), Held()
    assert hotk.explain(over(declared)).opaque is None
    assert hotk.explain(over(other)).opaque is not None
    for _ in range(3):
        key_and_arrays(over(declared))
    with pytest.raises(Opaque):
        key_and_arrays(over(other))


@pytest.mark.parametrize("thing", [[1], 3, {}, lambda x: x, dict, np.ones(3)])
def test_what_cannot_be_declared_is_refused(thing):
    with pytest.raises(hotk.HotkError, match="static"):
        hotk.static(thing)


def test_a_declared_object_is_not_kept_alive():
    class Held:
        pass

    held = hotk.static(Held())
    gone = weakref.ref(held)
    del held
    assert gone() is None


def test_code_that_reads_a_name_is_seen_through():
    """A decorator reads it for its messages; two names are two functions."""

    def make(name):
        def inner(x):
            return jnp.sum(x**3)

        inner.__name__ = name
        return lambda x: inner(x) * len(inner.__name__)

    x, v = jnp.array([1.0, 2.0]), jnp.array([1.0, -1.0])
    hotk.clear_cache()
    for name in ("ab", "ab", "ab", "abcd", "abcd"):
        assert close(hotk.hvp(make(name), x, v), 6 * x * v * len(name))
    assert hotk.explain(make("ab")).opaque is None
    assert hotk.cache_info().misses == 2
