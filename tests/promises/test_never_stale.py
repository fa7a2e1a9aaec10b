"""Promise 1: a direct call returns what uncached evaluation would return now."""

import _thread
import concurrent.futures
import contextlib
import decimal
import enum
import fractions
import functools
import gc
import itertools
import math
import threading
import time
import types
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers import close
from tests.promises.dear import DEAR
from tests.promises.stories import STORIES
from tests.promises.telling import (
    X,
    cubic,
    direction,
    notebook,
    uncached_gradient,
    uncached_hvp,
)


pytestmark = pytest.mark.usefixtures("as_user")

V = direction(X)


@pytest.fixture
def hotk():
    """Import late: the type-checking hook must stand before."""
    import hotk

    return hotk


class Raised(NamedTuple):
    """What became of a call that returned nothing."""

    error: type[BaseException]


def outcome(call):
    """Return the result of a call, or what it raised."""
    try:
        return call()
    except BaseException as error:  # a story may raise any of them on purpose
        return Raised(type(error))


def calls(gradient, hvp, f, x, args):
    """Yield the calls of one step: each operator, and each once more."""
    v = direction(x)
    for _ in range(2):
        yield lambda: gradient(f, x, *args)
        yield lambda: hvp(f, x, v, *args)


def uncached_outcomes(story):
    """Tell a story to plain JAX."""
    return [
        [outcome(call) for call in calls(uncached_gradient, uncached_hvp, f, x, args)]
        for f, x, args in story.steps()
    ]


def agree(call, expected, like):
    """Assert that a call raises what is expected, or returns it in a tree as `like`.

    Each telling of a story may have classes of its own, so leaves are compared.
    """
    if isinstance(expected, Raised):
        with pytest.raises(expected.error):
            call()
    else:
        got = call()
        assert jax.tree.structure(got) == jax.tree.structure(like)
        close(jax.tree.leaves(got), jax.tree.leaves(expected))


def differ(a, b):
    """Whether two outcomes are different."""
    if isinstance(a, Raised) or isinstance(b, Raised):
        return a != b
    try:
        return not close(jax.tree.leaves(a), jax.tree.leaves(b))
    except AssertionError:
        return True


def told(story):
    """Name a story, and leave it to the exhaustive run if it is a dear one."""
    marks = [pytest.mark.exhaustive] if str(story) in DEAR else []
    return pytest.param(story, id=str(story), marks=marks)


def test_dear_stories_are_stories():
    assert set(map(str, STORIES)) >= DEAR


@pytest.mark.filterwarnings("ignore::hotk.ZeroHessianWarning")  # networks of ReLU
@pytest.mark.parametrize("story", [told(s) for s in STORIES])
def test_a_direct_call_sees_what_changed(story, hotk):
    expected = uncached_outcomes(story)
    if story.changes:  # a story in which nothing changes would test nothing
        assert any(differ(a, b) for a, b in itertools.pairwise(expected))
    with contextlib.closing(story.steps()) as steps:
        for (f, x, args), wanted in zip(steps, expected, strict=True):
            made = calls(hotk.gradient, hotk.hvp, f, x, args)
            for call, result in zip(made, wanted, strict=True):
                agree(call, result, like=direction(x))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hotk.ZeroHessianWarning")
@pytest.mark.parametrize(
    "story", [story for story in STORIES if story.holds and not story.effects], ids=str
)
def test_a_prepared_operator_holds_what_was_there(story, hotk):
    """Prepare at each step; every prepared operator keeps the result of its step."""
    held = []
    with contextlib.closing(story.steps()) as steps:
        for f, x, args in steps:
            if x is X and not args:
                expected = outcome(lambda f=f: uncached_hvp(f, X, V))
                if not isinstance(expected, Raised):
                    held.append((hotk.hvp.prepare(f, X, V), expected))
            for prepared, expected in held:
                close(prepared(X, V), expected)


# ----- Values that look alike


class Ones(enum.IntEnum):
    ONE = 1


class Pair(NamedTuple):
    a: Any
    b: Any


class Other(NamedTuple):
    a: Any
    b: Any


LOOK_ALIKE = {
    "ones": [
        1,
        True,
        1.0,
        1 + 0j,
        np.float32(1),
        np.float64(1),
        np.int32(1),
        np.bool_(True),
        fractions.Fraction(1),
        decimal.Decimal(1),
        decimal.Decimal("1.0"),
        Ones.ONE,
        "1",
        b"1",
    ],
    "zeros": [0, False, 0.0, -0.0, 0j, complex(0.0, -0.0), complex(-0.0, 0.0), None],
    "not numbers": [math.nan, 1.0, np.float64(math.nan), math.inf, -math.inf],
    "tuples": [(1,), (True,), (1.0,), [1], {1}, frozenset({1}), frozenset({True})],
    "nested": [(1, (0.0,)), (1, (-0.0,)), (1, [0.0]), [1, (0.0,)], (1, 0.0)],
    "pairs": [(1, 2), Pair(1, 2), Other(1, 2), [1, 2], Pair(2, 1)],
    "dicts": [
        {1: 2.0, 2: 1.0},
        {2: 1.0, 1: 2.0},
        {True: 2.0, 2: 1.0},
        {1.0: 2.0, 2: 1.0},
        OrderedDict({1: 2.0, 2: 1.0}),
        OrderedDict({2: 1.0, 1: 2.0}),
        defaultdict(int, {1: 2.0, 2: 1.0}),
        defaultdict(list, {1: 2.0, 2: 1.0}),
        types.MappingProxyType({1: 2.0, 2: 1.0}),
    ],
    "ranges": [
        range(0, 3, 2),
        range(0, 4, 2),
        slice(0, 3),
        slice(0, 3, None),
        slice(3),
    ],
    "dtypes": [np.dtype("f4"), "f4", np.float32, jnp.float32, "<f4", "float32"],
    "bytes": [b"a", bytearray(b"a"), "a", memoryview(b"a")],
    "functions": [int, float, len, jnp.sin, np.sin, math.sin],
    "specials": [..., NotImplemented, None, Ellipsis, (), [], {}, ""],
}


def weight(c):
    """Tell apart what `==` does not."""
    name = "" if isinstance(c, memoryview) else repr(c)
    return 1.0 + sum(map(ord, f"{type(c)!s}{name}"))


class Labelled(eqx.Module):
    label: Any = eqx.field(static=True)

    def __call__(self, x):
        return weight(self.label) * jnp.sum(x**3)


class Holder:
    def __init__(self, label):
        self.label = label

    def loss(self, x):
        return weight(self.label) * jnp.sum(x**3)


def in_a_closure(c):
    return lambda x: weight(c) * jnp.sum(x**3)


def in_a_list(c):
    nest = [(c, 1)]
    return lambda x: weight(nest[0][0]) * jnp.sum(x**3)


def in_a_dict(c):
    table = {"c": c}
    return lambda x: weight(table["c"]) * jnp.sum(x**3)


def in_a_default(c):
    def f(x, c=c):
        return weight(c) * jnp.sum(x**3)

    return f


def in_a_partial(c):
    return functools.partial(_labelled, label=c)


def _labelled(x, *, label):
    return weight(label) * jnp.sum(x**3)


def in_a_global(c):
    source = "def f(x): return weight(c) * jnp.sum(x**3)"
    return notebook(source, weight=weight, c=c)["f"]


def in_a_static_field(c):
    return Labelled(c)


def in_an_attribute(c):
    return Holder(c).loss


PLACES = [
    in_a_closure,
    in_a_list,
    in_a_dict,
    in_a_default,
    in_a_partial,
    in_a_global,
    in_a_static_field,
    in_an_attribute,
]


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize("values", LOOK_ALIKE.values(), ids=LOOK_ALIKE)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
def test_values_that_look_alike_are_told_apart(values, place, hotk):
    for c in [*values, *values[:2]]:
        close(hotk.gradient(place(c), X), 3.0 * weight(c) * X**2)


# ----- Python numbers as arguments: traced, unless that could be seen


ASKED = {
    "its type": (lambda x, c: jnp.sum(x**3) * (2.0 if isinstance(c, float) else 3.0)),
    "its exact type": (lambda x, c: jnp.sum(x**3) * (2.0 if type(c) is int else 3.0)),
    "its truth": (lambda x, c: jnp.sum(x**3) * (2.0 if c else 3.0)),
    "its size": (lambda x, c: jnp.sum(x**3) * (2.0 if c > 1 else 3.0)),
    "its identity": (lambda x, c: jnp.sum(x**3) * (2.0 if c is True else 3.0)),
    "its text": (lambda x, c: jnp.sum(x**3) * len(repr(c))),
    "its format": (lambda x, c: jnp.sum(x**3) * len(f"{c}")),
    "its hash": (lambda x, c: jnp.sum(x**3) * {0: 2.0, 1: 3.0}.get(c, 4.0)),
    "its place": (lambda x, c: jnp.sum(x**3) * (2.0, 3.0, 4.0)[int(c)]),
    "a length": (lambda x, c: jnp.sum(x[: int(c) + 1] ** 3)),
    "an index": (lambda x, c: jnp.sum(x[int(c)] ** 3)),
    "a range": (lambda x, c: sum(jnp.sum(x**3) for _ in range(int(c) + 1))),
    "a shape": (lambda x, c: jnp.sum(x**3) * jnp.sum(jnp.ones(int(c) + 1))),
    "a power": (lambda x, c: jnp.sum(x**c)),
    "an axis": (lambda x, c: jnp.sum(jnp.sum(jnp.stack([x, x]) ** 3, axis=int(c) % 2))),
    "a method": (lambda x, c: jnp.sum(x**3) * (1.0 + c.conjugate())),
    "a method of floats": (
        lambda x, c: jnp.sum(x**3) * (2.0 if float(c).is_integer() else 3.0)
    ),
    "an attribute": (lambda x, c: jnp.sum(x**3) * (2.0 if hasattr(c, "hex") else 3.0)),
    "its factor": (lambda x, c: c * jnp.sum(x**3)),
    "its sign": (lambda x, c: jnp.sum(x**3) * math.copysign(2.0, c)),
    "a default": (lambda x, c: jnp.sum(x**3) * (c or 5.0)),
    "a minimum": (lambda x, c: jnp.sum(x**3) * min(c, 1)),
    "a comparison chain": (lambda x, c: jnp.sum(x**3) * (2.0 if 0 < c < 2 else 3.0)),
    "a match": (lambda x, c: jnp.sum(x**3) * _matched(c)),
    "a reciprocal": (lambda x, c: jnp.sum(x**3) * _reciprocal(c)),
    "a numpy scalar": (lambda x, c: jnp.sum(x**3) * np.float64(c)),
    "a rounding": (lambda x, c: jnp.sum(x**3) * round(c)),
    "a dtype": (lambda x, c: jnp.sum(x**3) * np.result_type(c).itemsize),
}


def _matched(c):
    match c:
        case bool():
            return 2.0
        case int():
            return 3.0
        case float():
            return 5.0
        case _:
            return 7.0


def _reciprocal(c):
    try:
        return 1.0 / c
    except ZeroDivisionError:
        return 100.0


# A traced number has another type and another text, never raises `ZeroDivisionError`,
# and as an exponent it is an array: as under `jax.jit`, which is what is promised.
AS_UNDER_JIT = {
    "its type",
    "its exact type",
    "its identity",
    "its text",
    "its format",
    "a power",
    "an attribute",
    "a match",
    "a reciprocal",
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", ASKED)
def test_a_number_among_the_constants_may_be_asked_for(name, hotk):
    f, at_zero = ASKED[name], jnp.array([0.0, 1.0, -2.0])
    plain = functools.partial(uncached_hvp, f)
    for c in (1, 2, True, 1.0, 0.0, -0.0, 0.5, 0, 2, 1):
        for x in (X, at_zero):
            v = direction(x)
            got = outcome(lambda c=c, x=x, v=v: hotk.hvp(f, x, v, c))
            expected = outcome(lambda c=c, x=x, v=v: plain(x, v, c))
            if name in AS_UNDER_JIT and differ(got, expected):
                expected = outcome(lambda c=c, x=x, v=v: jax.jit(plain)(x, v, c))
            assert not differ(got, expected)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("f", ASKED.values(), ids=ASKED)
def test_a_captured_number_may_be_asked_for_anything(f, hotk):
    """The way out for those above: a captured number is itself, not a tracer."""
    at_zero = jnp.array([0.0, 1.0, -2.0])
    for c in (1, 2, True, 1.0, 0.0, -0.0, 0.5, 0, 2, 1):
        for x in (X, at_zero):
            v = direction(x)
            expected = outcome(lambda c=c, x=x, v=v: uncached_hvp(f, x, v, c))
            held = functools.partial(lambda c, x: f(x, c), c)
            agree(lambda x=x, v=v, held=held: hotk.hvp(held, x, v), expected, like=x)


def test_a_large_python_integer_among_the_constants_does_not_overflow(hotk):
    """JAX has no room for `2**70`: `jax.jit` raises, hotk takes it as it is."""

    def f(x, n):
        return jnp.sum(x**3) * float(n * n % 1000)

    def g(x, n):
        return jnp.sum(x**3) * (n * n % 1000)

    for n in (3, 2**40 + 1, 2**70 + 1, -(2**64), 2**63):
        close(hotk.gradient(f, X, n), uncached_gradient(f, X, n))
    for n in (3, 2**70 + 1, -(2**64), 2**63):
        close(hotk.gradient(g, X, n), uncached_gradient(g, X, n))


def test_python_integers_keep_all_their_digits_in_32_bits(hotk):
    def f(x, n):
        return jnp.sum(x**3) * ((n + 1) % 7)

    with jax.enable_x64(False):
        x = jnp.array([1.0, 2.0])
        for n in (2**31, 2**40, -(2**31) - 1, 10, 2**31 - 2):
            close(hotk.gradient(f, x, n), uncached_gradient(f, x, n))


# ----- Control flow on the point


def test_a_branch_on_the_point_is_right_or_loud(hotk):
    """Plain JAX takes the branch of the point at hand; a program cannot."""

    def f(x):
        return jnp.sum(x**3) if x[0] > 0 else jnp.sum(x**4)

    for x in (X, -X, X):
        for call, plain in (
            (lambda x=x: hotk.gradient(f, x), lambda x=x: uncached_gradient(f, x)),
            (lambda x=x: hotk.hvp(f, x, V), lambda x=x: uncached_hvp(f, x, V)),
        ):
            got = outcome(call)
            assert isinstance(got, Raised) or close(got, plain())


CUBED = 6.0 * jnp.arange(1.0, 4.0) ** 2 * X * V
REMEMBERING = {
    "hvp": (lambda hotk, f: hotk.hvp(f, X, V), CUBED),
    "gradient": (lambda hotk, f: hotk.gradient(f, X), CUBED * X / V / 2),
    "hessian": (lambda hotk, f: jnp.diag(hotk.hessian(f, X)), CUBED / V),
    "prepared": (lambda hotk, f: hotk.hvp.prepare(f, X, V)(X, V), CUBED),
}


@pytest.mark.thinned(7)
@pytest.mark.parametrize("call", REMEMBERING.values(), ids=REMEMBERING)
@pytest.mark.parametrize(
    "remember", ["an attribute", "a cached property", "a memo", "a cache"]
)
def test_an_array_that_the_function_remembers_is_an_array(remember, call, hotk):
    """What is computed while tracing is used later: it may be no tracer."""

    class Model:
        def __init__(self):
            self.w, self.kept, self.memo = jnp.arange(1.0, 4.0), None, {}

        @functools.cached_property
        def square(self):
            return self.w**2

        def by_attribute(self):
            if self.kept is None:
                self.kept = self.w**2
            return self.kept

        def by_memo(self):
            if "square" not in self.memo:
                self.memo["square"] = self.w**2
            return self.memo["square"]

    model = Model()
    cache = functools.lru_cache(lambda n: jnp.arange(1.0, 4.0) ** n)
    square = {
        "an attribute": model.by_attribute,
        "a cached property": lambda: model.square,
        "a memo": model.by_memo,
        "a cache": lambda: cache(2),
    }[remember]
    run, expected = call
    for _ in range(3):
        close(run(hotk, lambda x: cubic(square(), x)), expected)
        close(square(), jnp.arange(1.0, 4.0) ** 2)


# ----- Buffers overwritten while the call may still read them


SIZE = 2**18


def _captured(hotk, a, x, v):
    return hotk.hvp(lambda x: cubic(a, x), jnp.asarray(x.copy()), jnp.asarray(v.copy()))


def _captured_in_a_list(hotk, a, x, v):
    box = [a]
    return hotk.hvp(
        lambda x: cubic(box[0], x), jnp.asarray(x.copy()), jnp.asarray(v.copy())
    )


def _all_arguments(hotk, a, x, v):
    return hotk.hvp(lambda x, a: cubic(a, x), x, v, a)


def _prepared(hotk, a, x, v):
    f = lambda x, a: cubic(a, x)
    return hotk.hvp.prepare(f, x, v, a)(x, v, a)


def _opaque_loss(a):
    class Loss:
        __slots__ = ("a", "log")

        def __call__(self, x):
            self.log.append(0)
            return cubic(self.a, x)

    loss = Loss()
    loss.a, loss.log = a, []
    return loss


def _opaque(hotk, a, x, v):
    return hotk.hvp(_opaque_loss(a), x, v)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "call", [_captured, _captured_in_a_list, _all_arguments, _prepared, _opaque]
)
@pytest.mark.parametrize("bits", [64, 32])
def test_a_buffer_may_be_overwritten_as_soon_as_the_call_returns(call, bits, hotk):
    a, x, v = (np.empty(SIZE, f"f{bits // 8}") for _ in range(3))
    with jax.enable_x64(bits == 64):
        for i in range(50):
            a[:], x[:], v[:] = 1.0 + i, 2.0, 3.0
            result = call(hotk, a, x, v)
            a[:], x[:], v[:] = -1.0, -1.0, -1.0
            expected = 36.0 * (1.0 + i)
            assert np.unique(np.asarray(result)).tolist() == [expected]


@pytest.mark.parametrize("where", ["captured", "argument", "direction"])
def test_a_result_is_no_view_of_a_buffer(where, hotk):
    x, a = jnp.ones(SIZE), np.full(SIZE, 2.0)
    if where == "captured":
        result = hotk.gradient(lambda x: jnp.sum(a * x), x)
    elif where == "argument":
        result = hotk.gradient(lambda x, a: jnp.sum(a * x), x, a)
    else:
        result = hotk.hvp(lambda x: 0.5 * jnp.sum(x**2), x, a)
    a[:] = 7.0
    assert np.unique(np.asarray(result)).tolist() == [2.0]


# ----- NumPy with 64 bits while JAX has 32: JAX itself remembers such arrays


@pytest.fixture
def remembered():
    """Arrays of 64 bits that a live jitted function has captured."""
    with jax.enable_x64(False):
        arrays = [np.full(3, 2.0), np.full(3, 2.0), np.full(3, 2.0)]
        keep = [jax.jit(lambda x, a=a: jnp.sum(a * x)) for a in arrays]
        for jitted in keep:
            jitted(jnp.ones(3))
        yield arrays


@pytest.mark.counts  # plain JAX is stale here
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_array_that_jax_remembers_is_read_anew(steps, remembered, hotk):
    a, x, v = remembered
    for i in range(steps):
        a[:], x[:], v[:] = 3.0 + i, 5.0 + i, 7.0 + i
        expected = np.full(3, 6.0 * (3.0 + i) * (5.0 + i) * (7.0 + i), np.float32)
        x_, v_ = jnp.asarray(x.copy()), jnp.asarray(v.copy())
        close(hotk.hvp(lambda x: cubic(a, x), x_, v_), jnp.asarray(expected))
        close(hotk.hvp(lambda x, a: cubic(a, x), x, v, a), jnp.asarray(expected))
        close(hotk.hvp(lambda x: cubic(3.0 + i, x), x, v), jnp.asarray(expected))  # noqa: B023


def test_an_opaque_function_is_given_what_jax_remembers(remembered, hotk):
    """It is run as it is, so JAX answers it as without hotk: from its memory."""
    a, x, v = remembered
    for i in range(3):
        a[:], x[:], v[:] = 3.0 + i, 5.0 + i, 7.0 + i
        x_, v_ = jnp.asarray(x.copy()), jnp.asarray(v.copy())
        expected = uncached_hvp(_opaque_loss(a), x_, v_)
        close(hotk.hvp(_opaque_loss(a), x_, v_), expected)


def test_integers_of_64_bits_keep_all_their_digits(hotk):
    with jax.enable_x64(False):
        a = np.array([2**40 + 5000, 2**41 + 7000, 2**42 + 9000])
        x, v = jnp.ones(3), jnp.ones(3)

        def f(x):
            return cubic((a // 1000 % 100).astype(np.float32), x)

        def g(x, a):
            return cubic((a // 1000 % 100).astype(np.float32), x)

        for _ in range(2):
            expected = jnp.asarray(6.0 * (a // 1000 % 100), jnp.float32)
            close(hotk.hvp(f, x, v), expected)
            close(hotk.hvp(g, x, v, a), expected)
            a += 12345


def test_differences_of_64_bits_keep_all_their_digits(hotk):
    with jax.enable_x64(False):
        a = 1e9 + np.array([1.0, 2.0, 3.0])
        x, v = jnp.ones(3), jnp.ones(3)

        def f(x):
            return cubic((a - 1e9).astype(np.float32), x)

        def g(x, a):
            return cubic((a - 1e9).astype(np.float32), x)

        for _ in range(2):
            expected = jnp.asarray(6.0 * (a - 1e9), jnp.float32)
            close(hotk.hvp(f, x, v), expected)
            close(hotk.hvp(g, x, v, a), expected)
            a += 1.0


def test_threads_with_other_settings_do_not_disturb_each_other(hotk):
    a = np.array([1.0, 2.0, 3.0])
    x = np.array([0.1, 0.2, 0.3])

    def work(on):
        with jax.enable_x64(on):
            results = [hotk.hvp(lambda x: cubic(a, x), x, x) for _ in range(20)]
        return {result.dtype.name for result in results}, results[-1]

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(work, [True, False] * 8))
    for on, (dtypes, result) in zip([True, False] * 8, outcomes, strict=True):
        assert dtypes == {"float64" if on else "float32"}
        np.testing.assert_allclose(result, 6.0 * a * x * x, rtol=1e-5)


@pytest.mark.counts
def test_a_change_during_the_trace_poisons_nothing(hotk):
    """A program is stored under the state that it was traced for."""
    state = {"rate": 0, "stop": False}
    cell = notebook("rate = 0\ndef f(x): return rate * jnp.sum(jnp.sin(x) ** 3)")

    def spin():
        while not state["stop"]:
            cell["rate"] = (cell["rate"] + 1) % 20
            time.sleep(0.0005)

    thread = threading.Thread(target=spin)
    thread.start()
    for _ in range(60):
        hotk.gradient(cell["f"], X)
    state["stop"] = True
    thread.join()
    for rate in range(20):
        cell["rate"] = rate
        expected = rate * 3 * jnp.sin(X) ** 2 * jnp.cos(X)
        close(hotk.gradient(cell["f"], X), expected)


# ----- Tracers of outer transformations


C = jnp.array(1.5)
CS = jnp.array([1.5, 2.5, 3.5])

OUTER = {
    "jit": lambda run: jax.jit(run)(C, X),
    "vmap": lambda run: jax.vmap(run, (0, None))(CS, X),
    "grad": lambda run: jax.grad(lambda c: jnp.sum(run(c, X)))(C),
    "jvp": lambda run: jax.jvp(lambda c: run(c, X), (C,), (C,)),
    "vjp": lambda run: jax.vjp(run, C, X)[1](V),
    "linearize": lambda run: jax.linearize(lambda c: run(c, X), C)[1](C),
    "hessian": lambda run: jax.hessian(lambda c: jnp.sum(run(c, X)))(C),
    "checkpoint": lambda run: jax.grad(lambda c: jnp.sum(jax.checkpoint(run)(c, X)))(C),
    "scan": lambda run: jax.lax.scan(lambda c, _: (c + 1.0, run(c, X)), C, length=3),
    "scan over it": lambda run: jax.lax.scan(lambda n, c: (n, run(c, X)), 0, CS),
    "map": lambda run: jax.lax.map(lambda c: run(c, X), CS),
    "fori_loop": lambda run: jax.lax.fori_loop(
        0, 3, lambda i, s: (s[0] + 1.0, jnp.tanh(run(s[0], s[1]))), (C, X)
    ),
    "while_loop": lambda run: jax.lax.while_loop(
        lambda s: s[0] < 4.0, lambda s: (s[0] + 1.0, jnp.tanh(run(*s))), (C, X)
    ),
    "cond": lambda run: jax.lax.cond(
        C > 0, lambda c: run(c, X), lambda c: run(-c, X), C
    ),
    "switch": lambda run: jax.lax.switch(
        1, [lambda c: run(c, X), lambda c: run(c**2, X)], C
    ),
    "jit of vmap of grad": lambda run: jax.jit(
        jax.vmap(jax.grad(lambda c, x: jnp.sum(run(c, x))), (0, None))
    )(CS, X),
    "vmap of vmap": lambda run: jax.vmap(
        lambda c: jax.vmap(lambda d: run(c * d, X))(CS)
    )(CS),
    "two jits": lambda run: (jax.jit(run)(C, X), jax.jit(lambda c: run(c, X))(C)),
    "eager and jit": lambda run: (run(C, X), jax.jit(run)(C, X), run(C + 1.0, X)),
}


def a_fresh_lambda():
    return lambda c: lambda x: jnp.sum(c**2 * x**3)


def a_nested_list():
    return lambda c: lambda x, box=[{"c": (c, 1.0)}]: cubic(box[0]["c"][0] ** 2, x)


def a_partial():
    return lambda c: functools.partial(cubic, c**2)


def a_module():
    class Model(eqx.Module):
        c: Any

        def __call__(self, x):
            return cubic(self.c**2, x)

    return Model


def the_same_function_reading_a_list():
    box: list[Any] = [None]

    def f(x):
        return cubic(box[0] ** 2, x)

    def capture(c):
        box[0] = c
        return f

    return capture


def the_same_function_reading_a_global():
    cell = notebook("def f(x): return jnp.sum(c**2 * x**3)")

    def capture(c):
        cell["c"] = c
        return cell["f"]

    return capture


def the_same_object():
    class Loss:
        c = None

        def __call__(self, x):
            return cubic(self.c**2, x)

    loss = Loss()

    def capture(c):
        loss.c = c
        return loss

    return capture


def an_opaque_object():
    class Loss:
        __slots__ = ("c", "calls")

        def __call__(self, x):
            self.calls.append(1)
            return cubic(self.c**2, x)

    loss = Loss()
    loss.calls = []

    def capture(c):
        loss.c = c
        return loss

    return capture


def a_transformed_lambda():
    return lambda c: jax.checkpoint(
        lambda x: jnp.sum(jax.vmap(lambda y: c**2 * y**3)(x))
    )


def a_jitted_lambda():
    return lambda c: jax.jit(lambda x: cubic(c**2, x))


CAPTURES = [
    a_fresh_lambda,
    a_nested_list,
    a_partial,
    a_module,
    the_same_function_reading_a_list,
    the_same_function_reading_a_global,
    the_same_object,
    an_opaque_object,
    a_transformed_lambda,
    a_jitted_lambda,
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("outer", OUTER.values(), ids=OUTER)
@pytest.mark.parametrize("make", CAPTURES, ids=lambda make: make.__name__)
def test_a_captured_tracer_is_followed(make, outer, hotk):
    def told(gradient, hvp):
        capture = make()

        def run(c, x):
            f = capture(c)
            return gradient(f, x) + 2.0 * hvp(f, x, jnp.cos(x))

        return [outer(run), outer(run)]

    close(told(hotk.gradient, hotk.hvp), told(uncached_gradient, uncached_hvp))


def test_the_shape_alone_of_an_outer_function_may_be_asked_for(hotk):
    def run(c, x):
        return hotk.hvp(lambda x: cubic(c, x), x, x)

    shape = jax.eval_shape(run, C, X)
    assert (shape.shape, shape.dtype) == (X.shape, X.dtype)
    close(run(C, X), 6.0 * C * X * X)


@pytest.mark.exhaustive
def test_a_captured_integer_and_key_may_be_tracers(hotk):
    key = jax.random.key(0)

    def told(hvp):
        def body(i, x):
            mine = jax.random.fold_in(key, i)
            f = lambda x: x[i] ** 3 + cubic(jax.random.normal(mine, (3,)), x)
            return x + 0.01 * hvp(f, x, jnp.cos(x))

        return jax.lax.fori_loop(0, 3, body, X)

    close(told(hotk.hvp), told(uncached_hvp))


def test_a_branch_on_a_captured_tracer_raises_as_in_jax(hotk):
    def run(operator):
        def inner(c):
            f = lambda x: cubic(c, x) if c > 0 else jnp.sum(x)
            return operator(f, X)

        return inner

    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(run(uncached_gradient))(C)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        jax.jit(run(hotk.gradient))(C)
    close(run(hotk.gradient)(C), 3.0 * C * X**2)


# ----- Who else looks


def test_what_the_function_captures_is_left_as_it_was(hotk):
    c = jnp.full(3, 2.0)
    box, table = [c, [c]], {"c": c}
    space = types.SimpleNamespace(c=c)

    def f(x, d=c):
        return cubic(box[0] * box[1][0] * table["c"] * space.c * d * c, x)

    hotk.hvp(f, X, V)
    found = [box[0], box[1][0], table["c"], space.c, f.__defaults__[0], c]
    found += [cell.cell_contents for cell in f.__closure__ if cell.cell_contents is c]
    assert all(leaf is c for leaf in found)


def test_no_other_thread_sees_a_tracer_meanwhile(hotk):
    entered, leave = _thread.allocate_lock(), _thread.allocate_lock()
    entered.acquire()
    leave.acquire()
    opened, wait = entered.release, leave.acquire
    c = jnp.full(3, 2.0)
    box, space = [c], types.SimpleNamespace(c=c)
    cell = notebook(
        """
        def f(x):
            opened()
            wait(True, 20)
            return jnp.sum(box[0] * space.c * c * x**3)
        """,
        box=box,
        space=space,
        c=c,
        opened=opened,
        wait=wait,
    )
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        result = pool.submit(hotk.gradient, cell["f"], X)
        assert entered.acquire(timeout=20)
        seen = [box[0], space.c, cell["c"]]
        leave.release()
        close(result.result(), 24.0 * X**2)
    assert all(leaf is c for leaf in seen)


def test_each_thread_sees_its_own_closure(hotk):
    barrier = threading.Barrier(8)

    def work(i):
        barrier.wait()
        out = []
        for k in range(20):
            c = jnp.full(3, float(i + 8 * k))
            out.append((c, hotk.hvp(lambda x, c=c: cubic(c, x), X, V)))
        return out

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for results in pool.map(work, range(8)):
            for c, got in results:
                close(got, 6.0 * c * X * V)


def test_a_thread_that_changes_what_others_read_disturbs_none(hotk):
    """Each result belongs to one of the states, whole."""
    box = [jnp.full(3, 1.0)]
    stop = threading.Event()

    def change():
        n = 1.0
        while not stop.is_set():
            n = 3.0 - n
            box[0] = jnp.full(3, n)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        seen = {
            float(hotk.gradient(lambda x: cubic(box[0], x), X)[0]) for _ in range(50)
        }
    finally:
        stop.set()
        thread.join()
    assert seen <= {0.75, 1.5}


# ----- Identity that is used again


def _of_a_class(c):
    cls = type("Fresh", (), {"scale": c})
    return lambda x: cubic(cls.scale, x)


def _of_a_jitted_function(c):
    g = jax.jit(lambda x, c=c: cubic(c, x))
    return lambda x: g(x)


def _of_a_module_object(c):
    module = types.ModuleType("fresh")
    module.scale = c
    return lambda x: cubic(module.scale, x)


def _of_a_bound_builtin(c):
    get = {"c": c}.get
    return lambda x: cubic(get("c"), x)


def _of_an_object(c):
    space = types.SimpleNamespace(scale=c)
    return lambda x: cubic(space.scale, x)


def _of_an_array(c):
    a = jnp.full(3, c)
    return lambda x: cubic(a, x)


def _of_a_buffer(c):
    a = np.full(3, c)
    return lambda x: cubic(np.sqrt(a) ** 2, x)


def _of_a_function(c):
    exec(f"def g(x): return {c} * x**3", space := {})
    return lambda x: jnp.sum(space["g"](x))


def _of_a_custom_rule(c):
    g = jax.custom_jvp(lambda x: jnp.sum(x**3))
    g.defjvp(lambda p, t: (g(*p), jnp.vdot(3.0 * c * p[0] ** 2, t[0])))
    return g


def _of_an_enum(c):
    kind = enum.Enum("Kind", {"A": c})
    return lambda x: cubic(kind.A.value, x)


@pytest.mark.thinned(4)
@pytest.mark.parametrize(
    "make",
    [
        _of_a_class,
        _of_a_jitted_function,
        _of_a_module_object,
        _of_a_bound_builtin,
        _of_an_object,
        _of_an_array,
        _of_a_buffer,
        _of_a_function,
        _of_a_custom_rule,
        _of_an_enum,
    ],
    ids=lambda make: make.__name__.removeprefix("_"),
)
def test_an_id_that_is_used_again_means_nothing(make, hotk):
    for i in range(30):
        c = 1.0 + i
        close(hotk.gradient(make(c), X), 3.0 * c * X**2)
        gc.collect(0)


# ----- Operators and options share nothing they should not


def test_operators_of_one_function_do_not_mix(hotk):
    x, v = jnp.ones((3, 3)), jnp.ones((3, 3))

    def f(x):
        return jnp.sum(x**3)

    def with_aux(x):
        return jnp.sum(x**3), 2.0 * x

    for _ in range(2):
        close(hotk.gradient(f, x), 3.0 * x**2)
        close(hotk.hvp(f, x, v), 6.0 * x * v)
        close(hotk.value_and_gradient(f, x), (jnp.sum(x**3), 3.0 * x**2))
        close(hotk.gradient(with_aux, x, has_aux=True), (3.0 * x**2, 2.0 * x))
        close(hotk.hvp(with_aux, x, v, has_aux=True), (6.0 * x * v, 2.0 * x))
        close(hotk.quadratic_form(f, x, v), jnp.sum(6.0 * x * v * v))
        close(hotk.hvp(f, x[0], v, batched=True), 6.0 * x[0][None] * v)
        close(hotk.hvp(f, x[0], v[0]), 6.0 * x[0] * v[0])
        for mode in ("FORWARD_OVER_REVERSE", "REVERSE_OVER_REVERSE"):
            close(hotk.hvp(f, x, v, mode=getattr(hotk, mode)), 6.0 * x * v)


def test_what_is_returned_beside_the_value_is_not_stale(hotk):
    number, array = 1.0, jnp.ones(2)

    def f(x):
        return jnp.sum(x**3), {"number": number, "array": array}

    for number, array in (
        (1.0, jnp.ones(2)),
        (2.0, jnp.ones(2)),
        (2.0, jnp.zeros(2)),
        (2.0, jnp.zeros(3)),
        (1.0, jnp.ones(2)),
    ):
        gradient, aux = hotk.gradient(f, X, has_aux=True)
        close(gradient, 3.0 * X**2)
        assert float(aux["number"]) == number
        close(aux["array"], array)


def test_a_label_beside_the_value_is_right_or_loud(hotk):
    label = "a"

    def f(x):
        return jnp.sum(x**3), label

    for label in ("a", "b", "a"):
        got = outcome(lambda: hotk.gradient(f, X, has_aux=True))
        assert isinstance(got, Raised) or got[1] == label


def test_a_function_that_differentiates_inside_is_not_stale(hotk):
    scale, power = 2.0, [3]

    def inner(y):
        return scale * jnp.sum(y ** power[0])

    def make(gradient):
        return lambda x: jnp.sum(jnp.sin(gradient(inner, x)))

    for scale, power[0] in ((2.0, 3), (3.0, 3), (3.0, 4), (2.0, 3)):  # noqa: B007
        expected = uncached_hvp(make(uncached_gradient), X, V)
        close(hotk.hvp(make(hotk.gradient), X, V), expected)


@pytest.mark.exhaustive
def test_other_operators_see_what_changed(hotk):
    box = [2.0]

    def f(x):
        return box[0] * jnp.sum(x**3)

    def g(x):
        return box[0] * x**3

    for box[0] in (2.0, 3.0, jnp.array(4.0), jnp.array(5.0)):
        c = box[0]
        close(hotk.value_and_gradient(f, X)[0], c * jnp.sum(X**3))
        close(hotk.quadratic_form(f, X, V), jnp.sum(6.0 * c * X * V * V))
        close(hotk.hessian(f, X), jnp.diag(6.0 * c * X))
        close(hotk.hessian_diagonal(f, X), 6.0 * c * X)
        close(hotk.value_gradient_and_hvp(f, X, V)[2], 6.0 * c * X * V)
        close(hotk.jvp(g, X, V), 3.0 * c * X**2 * V)
        close(hotk.vjp(g, X, V), 3.0 * c * X**2 * V)
        close(hotk.jacobian(g, X), jnp.diag(3.0 * c * X**2))
        close(hotk.derivative(g, X[0]), 3.0 * c * X[0] ** 2)
        close(hotk.second_derivative(g, X[0]), 6.0 * c * X[0])


def test_an_effect_at_run_time_happens_at_every_call(hotk):
    seen = []

    def f(x):
        jax.debug.callback(lambda value: seen.append(float(value)), x[0])
        return jnp.sum(x**3)

    for i in range(1, 4):
        jax.block_until_ready(hotk.gradient(f, i * X))
        jax.effects_barrier()
        assert seen[-1] == i * X[0]


def test_clearing_the_cache_changes_no_result(hotk):
    box = [2.0]

    def f(x):
        return cubic(box[0], x)

    for box[0] in (2.0, 3.0, 2.0):
        close(hotk.hvp(f, X, V), 6.0 * box[0] * X * V)
        hotk.clear_cache()
        close(hotk.hvp(f, X, V), 6.0 * box[0] * X * V)


def test_an_error_inside_hotk_leaves_nothing_behind(hotk):
    def f(x):
        return jnp.sum(x**3)

    close(hotk.hvp(f, X, V), 6.0 * X * V)
    with contextlib.suppress(Exception):
        hotk.hvp(f, X, V[:2])
    with contextlib.suppress(Exception):
        hotk.hvp(f, {"a": X}, V)
    close(hotk.hvp(f, X, V), 6.0 * X * V)
