"""What a guard vouches for is what a walk finds, whatever has been changed.

Each thing that a function reaches is changed in each of its parts, one at a time: an
attribute, an entry, a default, a cell. A guard that was written before may say that it
does not know, but where it says that all is as it was a walk must say the same.
"""

import contextlib
import types
from typing import Any

import pytest

from hotk._capture import Opaque, Walk, facts_of, survey
from hotk._capture._guard import are_same_arrays, check_of
from hotk._capture._layout import slots_of
from hotk._capture._library import is_permanent
from tests.everyday.corpus import load
from tests.everyday.test_everyday import parameter


pytestmark = [
    pytest.mark.usefixtures("default_settings", "compiled_fast"),
    pytest.mark.filterwarnings("ignore"),
]


def other(value: Any) -> Any:
    """Return something else of the same kind, or of none that was there."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return "changed"


@contextlib.contextmanager
def put(target: Any, name: Any, value: Any):
    """Change an entry of a dict or of a list, and change it back."""
    missing = isinstance(target, dict) and name not in target
    before = list(dict.items(target)) if isinstance(target, dict) else target[name]
    dict.__setitem__(target, name, value) if isinstance(target, dict) else (
        target.__setitem__(name, value)
    )
    try:
        yield
    finally:
        if isinstance(target, dict):  # in the order of before
            assert missing or name in target
            dict.clear(target)
            for key, item in before:
                dict.__setitem__(target, key, item)
        else:
            target[name] = before


@contextlib.contextmanager
def without(target: dict, name: Any):
    before = list(target.items())
    del target[name]
    try:
        yield
    finally:
        target.clear()
        target.update(before)


@contextlib.contextmanager
def assigned(target: Any, name: str, value: Any):
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


@contextlib.contextmanager
def in_slot(target: Any, slot: Any, value: Any):
    before = slot.__get__(target)
    slot.__set__(target, value)
    try:
        yield
    finally:
        slot.__set__(target, before)


def spaces(value: Any):
    """List the dicts in which a thing keeps its parts."""
    if type(value) is dict:
        yield value
    if type(value) is types.FunctionType and facts_of(value.__code__).library:
        return  # attributes that nobody reads
    own = getattr(value, "__dict__", None)
    if type(own) is dict:
        yield own


def changes(value: Any):
    """List all ways to change one part of a thing."""
    for space in spaces(value):
        for name, item in list(space.items()):
            yield put(space, name, other(item))
            yield without(space, name)
        yield put(space, "added", 1)
    if type(value) is list:
        for i, item in enumerate(value):
            yield put(value, i, other(item))
    for slot in slots_of(value).values() if not isinstance(value, type) else ():
        yield in_slot(value, slot, other(slot.__get__(value)))
    if type(value) is types.FunctionType:
        for i, item in enumerate(value.__defaults__ or ()):
            changed = [*value.__defaults__]
            changed[i] = other(item)
            yield assigned(value, "__defaults__", tuple(changed))
        for name, item in (value.__kwdefaults__ or {}).items():
            yield put(value.__kwdefaults__, name, other(item))
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):
                yield assigned(cell, "cell_contents", other(cell.cell_contents))


def walked(f):
    walk = Walk()
    walk.visit(f)
    walk.close()
    return tuple(walk.key), walk.leaves


@pytest.mark.thinned(4)
@pytest.mark.parametrize("entry", [parameter(e) for e in load() if not e.slow])
def test_a_guard_vouches_for_nothing_that_has_changed(entry):
    with entry.settings():
        f, x, args = entry.maker(0)
        f(x, *args)
        try:
            check, (key, leaves) = check_of(f, [], []), walked(f)
        except Exception:
            pytest.skip("no guard knows it")
        got = check(f, [], [])
        assert got is not None
        assert are_same_arrays(got, leaves)
        _, trail = survey(f)
        for node in list(trail.nodes.values()):
            fixed = isinstance(node.value, type) or is_permanent(node.value)
            if node.treatment != "traversed" or fixed:
                continue
            for change in changes(node.value):
                with change:
                    got = check(f, [], [])
                    if got is None:
                        continue
                    try:
                        now, leaves = walked(f)
                    except Opaque as reason:
                        raise AssertionError((node.path, reason)) from reason
                    assert now == key, node.path
                    assert are_same_arrays(got, leaves), node.path


# Functions that are walked at each call, and why.
WALKED = {
    "a registry that is a class, read inside the loss": "the name of a class is read",
    "beartype alone on a helper with plain annotations": "its code is made anew",
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "entry", [parameter(e) for e in load() if not e.slow and not e.traces]
)
def test_a_guard_knows_the_next_function(entry):
    with entry.settings():
        functions = []
        for seed in (0, 1):
            f, x, args = entry.maker(seed)
            f(x, *args)  # what fills itself is full
            functions.append(f)
        for seed in (0, 1):
            f, x, args = entry.maker(seed)
            f(x, *args)
            functions.append(f)
        try:
            known = check_of(functions[2], [], [])(functions[3], [], []) is not None
        except Exception:
            known = False
        assert known is (entry.name not in WALKED)
