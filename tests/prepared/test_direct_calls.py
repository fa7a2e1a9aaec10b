"""What a direct call does besides computing: its key, its walks, its Python calls."""

import contextlib
import sys
from types import FunctionType

import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk._capture import Walk
from hotk._prepared import _operator
from hotk._prepared._options import Options
from hotk._prepared._store import STORE
from tests.promises.stories import STORIES
from tests.promises.telling import direction


pytestmark = pytest.mark.usefixtures("as_user")

X = jnp.array([0.5, -1.0, 2.0])
V = jnp.ones(3)


class Recorded(dict):
    """The entries of the store, and what was asked of them."""

    def __init__(self, entries):
        super().__init__(entries)
        self.asked = []

    def get(self, key, default=None):
        """Return an entry, and remember its key."""
        self.asked.append(key)
        return super().get(key, default)


@pytest.fixture
def entries(monkeypatch):
    found = Recorded(STORE.entries)
    monkeypatch.setattr(STORE, "entries", found)
    monkeypatch.setattr(_operator, "_ENTRIES", found)
    return found


def keys_of(entries, operator, *arguments):
    """Return what an operator was looked up by before its function was first run.

    A call that finds its program asks once. One that does not asks by the key of the
    direct call, then by that of its trace.
    """
    entries.asked.clear()
    with contextlib.suppress(BaseException):  # some stories raise any of them
        operator(*arguments)
    asked = [key for key in entries.asked if isinstance(key[0], Options)]
    return [key for key in asked if key[0] is asked[0][0]][:2]


@pytest.mark.thinned(40)
@pytest.mark.parametrize("story", STORIES, ids=str)
def test_the_key_of_a_direct_call_is_that_of_its_trace(entries, story):
    with contextlib.closing(story.steps()) as steps:
        for f, x, args in steps:
            for operator, rest in (
                (hotk.gradient, args),
                (hotk.hvp, (direction(x), *args)),
            ):
                assert len(set(keys_of(entries, operator, f, x, *rest))) <= 1


def weighed(x, *args):
    """Sum the cubes of what comes as a tree, times all that is a number."""
    leaves = x if isinstance(x, (list, tuple)) else [x]
    factors = [a for a in args if isinstance(a, (float, jnp.ndarray, np.ndarray))]
    return sum(jnp.sum(leaf**3) for leaf in leaves) * sum(map(jnp.sum, factors), 1.0)


ARGUMENTS = {
    "single arrays": (X, V),
    "a tree": ([X, X], [V, V]),
    "a point of NumPy": (np.array(X), V),
    "a direction of NumPy": (X, np.array(V)),
    "a direction of numbers": ([1.0, 2.0], [1, 2]),
    "a further array": (X, V, X),
    "a further array of NumPy": (X, V, np.ones(3)),
    "a further number": (X, V, 2.0),
    "a static argument": (X, V, "name"),
    "a dict in another order": (X, V, {"b": X, "a": V}),
    "a function": (X, V, jnp.sin),
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_the_key_holds_the_arguments_as_the_trace_does(entries, arguments):
    hotk.clear_cache()
    keys = keys_of(entries, hotk.hvp, weighed, *arguments)
    assert len(keys) == 2
    assert keys[0] == keys[1]


def walks(monkeypatch, f, call):
    """Count how often a function, or a copy of it, is walked."""
    count, visit = 0, Walk.visit

    def counted(self, value, *names):
        nonlocal count
        count += isinstance(value, FunctionType) and value.__code__ is f.__code__
        return visit(self, value, *names)

    with monkeypatch.context() as patched:
        patched.setattr(Walk, "visit", counted)
        call()
    return count


def over_an_array(scale):
    return lambda x: jnp.sum(scale * x**3)


def over_an_array_of_numpy(scale):
    return lambda x: jnp.sum(scale * x**3)


# Once for the key, and four times for each run of the body: to copy the function, to
# see that it is still the one of the key, and that neither it nor its copy was changed.
# With an array of NumPy the body runs twice.
@pytest.mark.parametrize(
    ("f", "most"),
    [(over_an_array(jnp.ones(3)), 5), (over_an_array_of_numpy(np.ones(3)), 9)],
    ids=["JAX", "NumPy"],
)
def test_a_function_is_walked_a_few_times_for_its_first_trace(monkeypatch, f, most):
    assert walks(monkeypatch, f, lambda: hotk.hvp(f, X, V)) <= most
    assert walks(monkeypatch, f, lambda: hotk.gradient(f, X)) <= 2  # traced already
    for _ in range(3):
        hotk.hvp(f, X, V)
    assert walks(monkeypatch, f, lambda: hotk.hvp(f, X, V)) == 0


def python_calls(call):
    """Return the names of the functions of hotk that a call goes through."""
    names = []

    def heard(frame, event, _):
        if event == "call" and "/hotk/" in frame.f_code.co_filename.replace("\\", "/"):
            names.append(frame.f_code.co_name)

    previous = sys.getprofile()
    sys.setprofile(heard)
    try:
        call()
    finally:
        sys.setprofile(previous)
    return names


def test_a_direct_call_is_four_python_calls_at_most():
    hotk.clear_cache()
    scale = jnp.ones(3)
    f = lambda x: jnp.sum(scale * x**3)
    for _ in range(4):
        hotk.hvp(f, X, V)
    names = python_calls(lambda: hotk.hvp(f, X, V))
    inner = [name for name in names if name not in ("<lambda>", "__call__", "check")]
    assert len(inner) <= 4, inner


def test_a_prepared_call_is_two_python_calls_at_most():
    prepared = hotk.hvp.prepare(lambda x: jnp.sum(x**3), X, V)
    for _ in range(2):
        prepared(X, V)
    names = python_calls(lambda: prepared(X, V))
    assert len([name for name in names if name != "__call__"]) <= 2, names
