"""`explain` with a point says of a function what a direct call of it then does."""

import contextlib
import re

import jax
import pytest

import hotk
from hotk._capture import WRITES, Opaque, Walk
from tests.promises.stories import STORIES


pytestmark = pytest.mark.usefixtures("as_user")


@pytest.fixture(autouse=True)
def empty():
    hotk.clear_cache()


def reached(f, x, args):
    """Call an operator; return what it raised, why it was opaque, or `None`."""
    before = hotk.cache_info().misses
    try:
        hotk.gradient(f, x, *args)
    except BaseException as error:  # a story may raise any on purpose
        return type(error)
    info = hotk.cache_info()
    new = info.reasons[len(info.reasons) - min(info.misses - before, 32) :]
    opaque = [r.split(": opaque, ", 1) for r in new if ": opaque, " in r]
    mine = [why for who, why in opaque if who.startswith("gradient(")]
    return mine[-1] if mine else None


def plain(reason):
    """Leave addresses out of a reason."""
    return re.sub("0x[0-9a-f]+", "", reason) if isinstance(reason, str) else reason


def told(f, x, args):
    """Ask what a call would do."""
    try:
        return hotk.explain(f, at=x, args=args).opaque
    except BaseException as error:
        return type(error)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("story", STORIES, ids=str)
def test_explain_gives_the_reason_that_a_call_comes_to(story):
    with contextlib.closing(story.steps()) as steps:
        does = [reached(f, x, args) for f, x, args in steps]
    hotk.clear_cache()
    with contextlib.closing(story.steps()) as steps:
        for (f, x, args), did in zip(steps, does, strict=True):
            said = told(f, x, args)
            if not isinstance(did, type):  # what is raised is no verdict
                assert plain(said) == plain(did)


def seen(f):
    """Return what a walk finds of a function now: its key, or why there is none."""
    walk = Walk()
    try:
        walk.visit(f)
    except (Opaque, RecursionError) as reason:
        return type(reason), str(reason)[:60]
    return walk.key


@pytest.mark.thinned(10)
@pytest.mark.parametrize("story", STORIES, ids=str)
def test_explain_after_a_call_remembers_what_it_came_to(story):
    with contextlib.closing(story.steps()) as steps:
        for f, x, args in steps:
            before = seen(f)
            did = reached(f, x, args)
            simple = isinstance(x, jax.Array) and not args  # it sees no arguments
            # What writes to itself is another function after its call.
            writes = story.effects or did == WRITES or seen(f) != before
            if simple and not writes and not isinstance(did, type):
                assert hotk.explain(f).opaque == did
