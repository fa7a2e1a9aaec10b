"""The counters count. Without this, a renamed event in JAX would make them all zero."""

import threading

import jax
import jax.numpy as jnp
import pytest

from tests.counting import compiles, lowerings, settings, traces


def new_function():
    """Return a jitted function of one trace: `x * x` would jit the product besides."""
    return jax.jit(lambda x: jax.lax.mul(x, x))


each_counter = pytest.mark.parametrize("counter", [traces, lowerings, compiles])


@each_counter
def test_a_new_function_counts_once_and_never_again(counter):
    x = jnp.ones(3)
    f = new_function()
    with counter() as count:
        f(x)
        assert count() == 1
        f(x)
        assert count() == 1


@each_counter
def test_a_new_shape_counts_again(counter):
    x, longer = jnp.ones(3), jnp.ones(4)
    f = new_function()
    with counter() as count:
        f(x)
        f(longer)
    assert count() == 2


@each_counter
def test_other_threads_count_too(counter):
    x = jnp.ones(3)
    thread = threading.Thread(target=new_function(), args=(x,))
    with counter() as count:
        thread.start()
        thread.join()
    assert count() == 1


def test_counters_nest_and_each_stops_at_its_end():
    x = jnp.ones(3)
    with compiles() as outer:
        with compiles() as inner:
            new_function()(x)
        new_function()(x)
    new_function()(x)
    assert (inner(), outer()) == (1, 2)


@pytest.mark.parametrize(
    "change", [jax.numpy_rank_promotion("warn"), jax.enable_x64(False)]
)
def test_settings_show_what_a_context_changes(change):
    before = settings()
    with change:
        during = settings()
    assert during != before
    assert settings() == before


def test_settings_show_what_is_changed_for_good():
    before = settings()
    jax.config.update("jax_debug_nans", True)
    during = settings()
    jax.config.update("jax_debug_nans", False)
    assert during != before
    assert settings() == before
