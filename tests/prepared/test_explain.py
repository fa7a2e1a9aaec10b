"""`explain` tells what a call does; each reason has a way out; one table has them."""

import random
import re
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk._capture import OpaqueCause


pytestmark = pytest.mark.usefixtures("as_user")

HOUSE = Path(__file__).parents[2]
X = jnp.array([0.5, -1.0, 2.0])
NEEDS = "it needs the value of a captured array"


@pytest.fixture(autouse=True)
def empty():
    hotk.clear_cache()


def sine_of_table():
    """Return a function in which NumPy computes with a large array of JAX."""
    table = jnp.ones((30, 3))
    return lambda x: jnp.sum((np.sin(table) @ x) ** 2)


def test_what_only_a_trace_finds_is_left_open_until_there_is_one():
    f = sine_of_table()
    before = hotk.explain(f)
    assert before.opaque is None
    assert not before.certain
    assert "hotk.explain(f, at=x)" in str(before)
    traced = hotk.explain(f, at=X)
    assert traced.opaque == NEEDS
    assert traced.certain
    assert "as leaves" not in str(traced)
    assert "leaf" not in [row[2] for row in traced.rows]


def test_a_function_that_was_called_is_known_by_its_call():
    f = sine_of_table()
    hotk.gradient(f, X)
    told = hotk.explain(f)
    assert (told.opaque, told.certain) == (NEEDS, True)
    assert f"test_explain.py:{f.__code__.co_firstlineno}" in told.place
    assert "jnp` for `np" in str(told)
    hotk.clear_cache()
    assert not hotk.explain(f).certain


def test_another_closure_of_the_same_code_is_known_as_well():
    make = lambda a: lambda x: jnp.sum(a * x)
    hotk.gradient(make(jnp.ones(3)), X)
    assert hotk.explain(make(jnp.zeros(3))).certain
    assert not hotk.explain(make(2.0)).certain


def test_small_arrays_by_content_are_said_to_be():
    switch = jnp.ones(())

    def f(x):
        return jnp.sum(x**2) if switch > 0 else jnp.sum(x)

    told = hotk.explain(f, at=X)
    assert (told.opaque, told.constant) == (None, NEEDS)
    assert told.rows[1][2] == "static by content"
    assert "static by content (test_explain.py:" in str(told)
    assert hotk.gradient(f, X).tolist() == (2 * X).tolist()
    assert hotk.explain(f).constant == NEEDS


def test_nothing_is_compiled_and_the_trace_is_found_again():
    scale = jnp.ones(3)
    f = lambda x: jnp.sum(scale * x**3)
    hotk.explain(f, at=X)
    info = hotk.cache_info()
    assert (info.traces, info.compiles) == (1, 0)
    hotk.gradient(f, X)
    info = hotk.cache_info()
    assert (info.traces, info.compiles) == (1, 1)


def test_vectors_auxiliary_outputs_and_further_arguments():
    f = lambda x, c: (c * x**2, {"sum": jnp.sum(x)})
    assert hotk.explain(f, at=X, args=(2.0,), has_aux=True).certain
    assert hotk.explain(lambda x: x**2, at=X).opaque is None


def test_what_a_call_raises_is_raised():
    def f(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        hotk.explain(f, at=X)
    with pytest.raises(hotk.OutputError):
        hotk.explain(lambda x: 3, at=X)


def test_a_function_that_raises_at_one_point_is_not_taken_for_opaque():
    c = jnp.ones(4)

    def f(x):
        return jnp.sum(c * x)

    with pytest.raises(TypeError, match="incompatible shapes"):
        hotk.explain(f, at=X)
    c = jnp.ones(3)
    assert hotk.explain(f, at=X).opaque is None


def test_arguments_that_make_a_call_opaque_are_seen_at_a_point():
    lock = threading.Lock()
    f = lambda x, lock: jnp.sum(x**2)
    assert hotk.explain(f).opaque is None
    assert "_thread.lock" in hotk.explain(f, at=X, args=(lock,)).opaque


def test_the_place_of_code_has_file_and_line():
    count = 0

    def step(x):
        nonlocal count
        count += 1
        return jnp.sum(x)

    told = hotk.explain(lambda x: step(x))
    line = step.__code__.co_firstlineno
    assert told.place == f"cell `step` (test_explain.py:{line})"
    assert told.opaque == "it writes the nonlocal `count`"


@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_a_function_that_writes_is_known_after_its_calls():
    def make(seen):
        return lambda x: seen.append(1) or jnp.sum(x**2)

    f, g = make([]), make(["another"])
    for _ in range(3):
        hotk.gradient(f, X)
    assert hotk.explain(f).opaque == "it changes an argument or what it captured"
    assert hotk.explain(g).opaque is None  # it was not called


@pytest.mark.parametrize("draw", [np.random.default_rng(0).normal, random.random])
def test_a_generator_of_random_numbers_has_its_own_way_out(draw):
    f = lambda x: jnp.sum(x**2) * draw()
    assert "draw the numbers first" in str(hotk.explain(f))


def test_the_page_on_closures_has_the_table():
    page = (HOUSE / "docs" / "closures.md").read_text(encoding="utf-8")
    [table] = re.findall(
        r"\| opaque because of \| instead \|\n\|[-|]*\n((?:\|.*\n)*)", page
    )
    rows = [
        f"| {c.text} | {c.fix} |" for c in OpaqueCause if c is not OpaqueCause.FAILED
    ]
    assert table.splitlines() == rows
