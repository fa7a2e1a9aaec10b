"""Everyday functions: right, not harmed, and nothing traced for fresh data.

Each entry is called with three seeds, then with two more, which may trace and compile
nothing (or as many traces as the entry says). An entry with a reason to be slow must
still be slow, so that the reason goes when it is mended.
"""

import importlib
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import counting
from tests.everyday.corpus import LIBRARIES, by_jax, direction, is_there, load
from tests.helpers import close, tolerance


pytestmark = [
    pytest.mark.usefixtures("default_settings", "compiled_fast"),
    # Of libraries about themselves and JAX; hotk's own remain errors.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


class Cost(NamedTuple):
    """What a call has traced and compiled, as hotk counts it and as JAX does."""

    traces: int
    compiles: int
    traced_by_jax: int
    compiled_by_jax: int


def close_in_size(got, expected):
    """Compare leaf by leaf, with roundings of the size of the leaf's largest entry."""
    leaves, expected_leaves = jax.tree.leaves(got), jax.tree.leaves(expected)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for leaf, wanted in zip(leaves, expected_leaves, strict=True):
        tol = 4 * tolerance(jnp.result_type(wanted))
        size = float(jnp.max(jnp.abs(wanted), initial=1e-3))
        assert np.all(np.isfinite(wanted)), "the entry itself is not finite"
        assert close(leaf, wanted, rtol=tol, atol=tol * size)
    return True


def called(entry, seed):
    """Make and call an entry, check all of it, and return what the call did.

    hotk comes first: by its own evaluation JAX would fill the caches that a function
    has, and hide what a call of hotk leaves in them.
    """
    f, x, args = entry.maker(seed)
    v = direction(x, seed)
    before = hotk.cache_info()
    with counting.traces() as traces, counting.compiles() as compiles:
        product = hotk.hvp(f, x, v, *args)
    after = hotk.cache_info()
    value = f(x, *args)
    f, x, args = entry.maker(seed)
    assert close_in_size(value, f(x, *args))
    f, x, args = (entry.reference or entry.maker)(seed)
    assert close_in_size(product, by_jax(f, x, v, *args))
    return Cost(
        after.traces - before.traces,
        after.compiles - before.compiles,
        traces(),
        compiles(),
    )


def on_the_fast_path(entry, costs):
    """Return whether calls traced no more than allowed, and compiled nothing."""
    return all(
        cost.traces <= entry.traces
        and not cost.compiles
        and not cost.compiled_by_jax
        and (entry.traces or not cost.traced_by_jax)
        for cost in costs
    )


def why_slow(entry):
    """Say what hotk tells of an entry that was called."""
    f, _, _ = entry.maker(5)
    return hotk.explain(f).opaque, hotk.cache_info().reasons[-1:]


def parameter(entry):
    marks = [pytest.mark.library] if entry.library else []
    return pytest.param(entry, id=entry.name, marks=marks)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("entry", [parameter(e) for e in load()])
def test_right_and_on_the_fast_path(entry):
    hotk.clear_cache()
    with entry.settings(), warnings.catch_warnings():
        if entry.slow:
            warnings.simplefilter("ignore")  # it is told of, as it should be
        if entry.traces:
            warnings.simplefilter("ignore", hotk.ChangingValueWarning)
        for seed in (0, 1, 2):
            called(entry, seed)
        costs = [called(entry, seed) for seed in (3, 4)]
        fast = on_the_fast_path(entry, costs)
        if entry.slow:
            assert not fast, "it is fast: take the mark `slow` off"
        else:
            assert fast, f"{costs}\n{why_slow(entry)}"


@pytest.mark.parametrize("library", LIBRARIES)
def test_the_library_is_there(library):
    """Skipped, and so told of, where the entries of a library are left out."""
    if not is_there(library):
        pytest.skip(f"{library} is not installed: its entries are not tested")
    importlib.import_module(library)
