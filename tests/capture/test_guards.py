"""A guard finds what a walk would find, or leaves it to the walk."""

import contextlib
import functools
import gc
import threading
import types
import weakref
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotk._capture import (
    Opaque,
    Walk,
    _guard,
    key_and_arrays,
    moving_nodes,
    walk_all,
)
from tests.promises.stories import STORIES
from tests.promises.telling import notebook


pytestmark = pytest.mark.usefixtures("as_user")

TABLE = jnp.arange(3.0)


def found(looker, f):
    """Return what a walk or a look finds: a key and the identities of arrays."""
    try:
        key, leaves, *_ = looker(f)
    except (Opaque, RecursionError):
        return "opaque"
    numpy = any(isinstance(leaf, np.ndarray) for leaf in leaves)  # copied each time
    return tuple(key), len(leaves) if numpy else tuple(map(id, leaves))


def walked(f):
    """Walk anew."""
    walk = Walk()
    walk.visit(f)
    walk.close()
    return walk.key, walk.leaves


def guards_of(f):
    """Return the guards of `f` alone, the newest first."""
    code = getattr(f, "__func__", f).__code__
    _guard._BY_CODE.pop(id(code), None)  # those that another test has made
    for _ in range(3):
        key_and_arrays(f)
    return _guard._BY_CODE[id(code)].guards


@pytest.mark.thinned(41)
@pytest.mark.parametrize("story", STORIES, ids=str)
def test_a_look_finds_what_a_walk_finds(story):
    with contextlib.closing(story.steps()) as steps:
        for f, x, args in steps:
            for _ in range(4):
                assert found(key_and_arrays, f) == found(walked, f)
            with contextlib.suppress(BaseException):  # some go on with its effects
                f(x, *args)


def plain():
    return lambda x: jnp.sum(x)


def over_arrays():
    a, b = jnp.ones(3), jnp.zeros(3)
    return lambda x: jnp.sum(a * x + b)


def over_a_tree():
    nest = {"a": [jnp.ones(3), 2.0], "b": (1, None, "name", True)}
    return lambda x: nest["b"][0] * jnp.sum(nest["a"][0] * x)


def over_functions():
    c = jnp.ones(3)

    def inner(x, power=2, *, shift=1.0):
        return jnp.sum(c * (x - shift) ** power)

    outer = functools.partial(inner, power=3, shift=2.0)
    return lambda x: outer(x) + inner(x)


def over_globals():
    source = "def g(x): return table * x\ndef f(x): return jnp.sum(g(x)) + len(x.shape)"
    return notebook(source, table=TABLE)["f"]


def over_a_method():
    class Plain:
        pass

    del Plain
    return types.MethodType(lambda self, x: jnp.sum(self * x), jnp.ones(3)).__func__


def over_a_jitted():
    inner = jax.jit(lambda x: x**2)
    return lambda x: jnp.sum(inner(x))


class Holder:
    power = 2

    def __init__(self):
        self.a, self.note = jnp.ones(3), "note"

    def __call__(self, x):
        return jnp.sum(self.a * self.half(x) ** self.power)

    @staticmethod
    def half(x):
        return x / 2

    @property
    def twice(self):
        return 2 * self.a


class Layer(eqx.Module):
    w: jax.Array
    act: Callable = eqx.field(static=True)
    size: int = eqx.field(static=True, default=3)

    def __call__(self, x):
        return jnp.sum(self.act(self.w * x))


class Pair(NamedTuple):
    a: jax.Array
    b: float


def over_an_object():
    held = Holder()
    return lambda x: held(x)


def a_method():
    return Holder().__call__


def over_modules():
    layer, net = (
        Layer(jnp.ones(3), jnp.sin),
        eqx.nn.MLP(3, "scalar", 4, 1, key=jax.random.key(0)),
    )
    return lambda x: layer(x) + net(x)


def over_a_named_tuple():
    pair = Pair(jnp.ones(3), 2.0)
    return lambda x: jnp.sum(pair.a * x) * pair.b


def recursive():
    c = jnp.ones(())

    def f(x, depth=2):
        return f(c * x, depth - 1) if depth else jnp.sum(x**2)

    return f


GUARDED = [
    plain,
    over_arrays,
    over_a_tree,
    over_functions,
    over_globals,
    over_a_method,
    over_a_jitted,
    recursive,
    over_an_object,
    a_method,
    over_modules,
    over_a_named_tuple,
]


@pytest.mark.parametrize("make", GUARDED, ids=lambda make: make.__name__)
def test_common_functions_have_a_guard(make):
    f = make()
    (check, key), *_ = guards_of(f)
    assert tuple(key) == tuple(walked(f)[0])
    assert list(map(id, check(f, (), ()))) == list(map(id, walked(f)[1]))


def test_a_fresh_function_of_the_same_code_passes():
    (check, _), *_ = guards_of(over_arrays())
    fresh = over_arrays()
    assert list(map(id, check(fresh, (), ()))) == list(map(id, walked(fresh)[1]))


def made_of(a, b, c=1.5, nest=(1, "x"), table=None):
    def f(x, power=2):
        return c * nest[0] * jnp.sum(a * x**power + b) * (table or {"n": 1})["n"]

    return f


CHANGES = {
    "the same array twice": {"b": TABLE},
    "an array becomes a number": {"b": 2.0},
    "an array becomes NumPy's": {"b": np.ones(3)},
    "a number changes": {"c": 2.5},
    "a number becomes an integer": {"c": 2},
    "a number becomes zero": {"c": -0.0},
    "a tuple changes": {"nest": (2, "x")},
    "a tuple becomes a list": {"nest": [1, "x"]},
    "one becomes True": {"nest": (True, "x")},
    "a tuple grows": {"nest": (1, "x", 3)},
    "a dict appears": {"table": {"n": 1}},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_guard_refuses_what_is_not_the_same(change):
    usual = {"a": TABLE, "b": jnp.zeros(3), "c": 2.0}
    (check, _), *_ = guards_of(made_of(**usual))
    assert check(made_of(**usual), (), ()) is not None
    assert check(made_of(**{**usual, **change}), (), ()) is None


def test_a_guard_sees_that_two_arrays_are_no_longer_one():
    (check, _), *_ = guards_of(made_of(TABLE, TABLE))
    assert len(check(made_of(TABLE, TABLE), (), ())) == 1
    assert check(made_of(TABLE, TABLE + 1), (), ()) is None


def test_a_guard_sees_defaults_code_attributes_and_globals():
    f = over_globals()
    (check, _), *_ = guards_of(f)
    space = f.__globals__
    assert check(f, (), ()) is not None
    for name, value in [("table", 2.0), ("len", lambda x: 7), ("jnp", np)]:
        before = space.get(name)
        space[name] = value
        assert check(f, (), ()) is None
        space.update({name: before}) if before is not None else space.pop(name)
        assert check(f, (), ()) is not None
    inner = space["g"]
    for change, undo in [
        ({"__defaults__": (1,)}, {"__defaults__": None}),
        ({"__kwdefaults__": {"x": 1}}, {"__kwdefaults__": None}),
        ({"__code__": (lambda x: x).__code__}, {"__code__": inner.__code__}),
    ]:
        for name, value in change.items():
            setattr(inner, name, value)
        assert check(f, (), ()) is None
        for name, value in undo.items():
            setattr(inner, name, value)
        assert check(f, (), ()) is not None
    inner.note = 1
    assert check(f, (), ()) is None


def test_a_guard_keeps_nothing_of_the_user_alive():
    def made():
        inner = lambda x: x**2
        helper = jax.jit(lambda x: x)
        lock = threading.Lock()

        @jax.jit
        def locked(x):  # no walk sees through it: it is known by itself
            with lock:
                return x

        array = jnp.ones(3) * 2
        f = lambda x: jnp.sum(inner(locked(helper(x))) * array)
        guards_of(f)
        return [weakref.ref(thing) for thing in (f, inner, helper, locked, array)]

    references = made()
    jax.clear_caches()
    gc.collect()
    assert [reference() for reference in references] == [None] * 5


def test_a_guard_gives_up_on_functions_that_are_never_the_same():
    known = None
    for c in range(200):
        f = made_of(TABLE, TABLE + 1, c=float(c + 1))
        key_and_arrays(f)
        known = _guard._BY_CODE[id(f.__code__)]
    assert len(known.guards) <= 4
    assert known.attempts <= 40


def test_a_guard_sees_what_changes_in_a_class_and_in_an_object():
    held = Holder()
    f = lambda x: held(x)
    (check, _), *_ = guards_of(f)
    assert check(f, (), ()) is not None
    changes = [
        (Holder, "power", 3),
        (Holder, "half", staticmethod(lambda x: x / 3)),
        (Holder, "twice", property(lambda self: 3)),
        (Holder, "more", 1),
        (held, "note", "another"),
        (held, "more", 1),
        (held, "a", 1.0),
        (held, "__class__", type("Holder", (Holder,), {})),
    ]
    for owner, name, value in changes:
        before = vars(owner).get(name)
        setattr(owner, name, value)
        assert check(f, (), ()) is None, name
        if before is not None:
            setattr(owner, name, before)
        elif name == "__class__":
            held.__class__ = Holder
        else:
            delattr(owner, name)
        assert check(f, (), ()) is not None, name


def _walked(f, tree):
    walk = Walk()
    walk_all(walk, f, moving_nodes(tree), ())
    return walk


def test_a_guard_sees_the_static_fields_of_modules_in_the_point():
    f = lambda m: m(jnp.ones(3))
    trees = [
        jax.tree.structure(Layer(jnp.ones(3), act, size))
        for act, size in [(jnp.sin, 3), (jnp.cos, 3), (jnp.sin, True), (jnp.sin, 1)]
    ]
    assert len({tuple(_walked(f, tree).key) for tree in trees}) == 4
    for _ in range(3):
        for tree in trees:
            key, *_ = key_and_arrays(f, tree)
            assert tuple(key) == tuple(_walked(f, tree).key)
    guards = _guard._BY_CODE[id(f.__code__)].guards
    passing = [
        [check(f, moving_nodes(tree), ()) is not None for check, _ in guards]
        for tree in trees
    ]
    assert [sum(row) for row in passing] == [1, 1, 1, 1]


def test_which_array_is_met_again_is_part_of_the_key():
    def make(a, b, c):
        return lambda x: jnp.sum(a * x + b * x**2 + c * x**3)

    a, b = TABLE, TABLE + 1
    keys = {tuple(walked(make(a, b, c))[0]) for c in (a, b, TABLE + 2)}
    assert len(keys) == 3
