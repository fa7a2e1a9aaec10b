"""After any failure the next call is right, and the failed one left nothing behind."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles, settings
from tests.helpers import close
from tests.reliability.public_calls import CALLS


X = jnp.array([1.0, 2.0, 3.0])
V = jnp.array([1.0, 0.5, -1.0])

each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


class Interrupted(BaseException):
    """Not an `Exception`, as `KeyboardInterrupt` is not."""


FAILURES = [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, Interrupted]


def failing(error, times=1):
    """Return a function that raises in its first calls; the counter is a builtin."""
    count = itertools.count().__next__

    def f(x):
        y = jnp.sum(x**3)
        if count() < times:
            raise error("not today")
        return y

    return f


@pytest.mark.thinned(23)
@pytest.mark.parametrize("error", FAILURES)
@each_call
def test_a_failed_trace_leaves_nothing_behind(call, error):
    expected = call(lambda x: jnp.sum(x**3), X, V)
    hotk.clear_cache()
    f, before, entries = failing(error), settings(), hotk.cache_info().entries
    with pytest.raises(error, match="not today"):
        call(f, X, V)
    assert hotk.cache_info().entries == entries
    assert settings() == before
    assert not isinstance(jnp.zeros(()), jax.core.Tracer)  # no trace is left open
    assert close(call(f, X, V), expected)


def test_a_failed_trace_inside_a_jit_leaves_nothing_behind():
    f = failing(KeyboardInterrupt)
    entries = hotk.cache_info().entries
    with pytest.raises(KeyboardInterrupt):
        jax.jit(lambda x: hotk.hvp(f, x, V))(X)
    assert hotk.cache_info().entries == entries
    assert close(jax.jit(lambda x: hotk.hvp(f, x, V))(X), 6 * X * V)


def test_failures_in_a_row_leave_nothing_behind():
    f, entries = failing(ValueError, times=4), hotk.cache_info().entries
    for _ in range(4):
        with pytest.raises(ValueError, match="not today"):
            hotk.hvp(f, X, V)
    assert hotk.cache_info().entries == entries
    assert close(hotk.hvp(f, X, V), 6 * X * V)


def test_a_failed_prepare_leaves_nothing_behind():
    f, entries = failing(ValueError), hotk.cache_info().entries
    with pytest.raises(ValueError, match="not today"):
        hotk.hvp.prepare(f, X, V)
    assert hotk.cache_info().entries == entries
    assert close(hotk.hvp.prepare(f, X, V)(X, V), 6 * X * V)


def test_a_failure_at_a_new_shape_keeps_the_known_one():
    def f(x):
        assert x.shape == (3,), "only three"
        return jnp.sum(x**3)

    hotk.hvp(f, X, V)
    with pytest.raises(AssertionError, match="only three"):
        hotk.hvp(f, X[:2], V[:2])
    with compiles() as count:
        out = hotk.hvp(f, X, V)
    assert count() == 0
    assert close(out, 6 * X * V)


def test_a_refused_output_leaves_nothing_behind():
    entries = hotk.cache_info().entries
    with pytest.raises(hotk.OutputError):
        hotk.quadratic_form(lambda x: x**3, X, V)
    assert hotk.cache_info().entries == entries


def test_an_error_at_run_time_is_followed_by_success():
    fail = [True]

    def host(x):
        if fail[0]:
            raise RuntimeError("the instrument is off")
        return np.asarray(2.0, x.dtype)

    def f(x):
        one = jax.ShapeDtypeStruct((), x.dtype)
        scale = jax.pure_callback(host, one, jax.lax.stop_gradient(x))
        return jnp.sum(x**3) * jax.lax.stop_gradient(scale)

    with pytest.raises(jax.errors.JaxRuntimeError):
        jax.block_until_ready(hotk.hvp(f, X, V))
    fail[0] = False
    assert close(hotk.hvp(f, X, V), 12 * X * V)


@pytest.mark.parametrize(
    ("setting", "bad"), [(jax.debug_nans, -1.0), (jax.debug_infs, 0.0)]
)
def test_a_floating_point_error_is_followed_by_success(setting, bad):
    f = lambda x: jnp.sum(jnp.sqrt(x))
    bad, expected = jnp.full(3, bad), -V / 4 * X**-1.5
    with setting(True):
        with pytest.raises(FloatingPointError):
            jax.block_until_ready(hotk.hvp(f, bad, V))
        assert close(hotk.hvp(f, X, V), expected)
    assert not np.isfinite(hotk.hvp(f, bad, V)).any()
    assert close(hotk.hvp(f, X, V), expected)


def test_a_floating_point_error_of_a_prepared_is_followed_by_success():
    f = lambda x: jnp.sum(1.0 / x**2)
    prepared = hotk.hvp.prepare(f, X, V, on_mismatch="retrace")
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.block_until_ready(prepared(jnp.full(3, jnp.nan), V))
    assert close(prepared(X, V), 6 * V / X**4)


@pytest.mark.exhaustive
def test_jax_clears_its_caches_underneath():
    weight = jnp.array([1.0, 2.0, 3.0])
    f = lambda x: jnp.sum(weight * x**3)
    prepared = hotk.hvp.prepare(f, X, V)
    before = hotk.hvp(f, X, V), prepared(X, V), hotk.hessian(f, X)
    jax.clear_caches()
    assert close(hotk.hvp(f, X, V), before[0])
    assert close(prepared(X, V), before[1])
    assert close(hotk.hessian(f, X), before[2])
    weight = jnp.array([3.0, 2.0, 1.0])
    assert close(hotk.hvp(f, X, V), 6 * weight * X * V)
    assert close(prepared(X, V), before[1])  # a Prepared holds f as it was


def test_hotk_clears_its_cache():
    f = lambda x: jnp.sum(x**3)
    prepared = hotk.hvp.prepare(f, X, V)
    hotk.hvp(f, X, V)
    hotk.clear_cache()
    assert hotk.cache_info().entries == 0
    assert close(hotk.hvp(f, X, V), 6 * X * V)
    assert close(prepared(X, V), 6 * X * V)


def test_a_generator_of_points_that_stops_half_way():
    f = lambda x: jnp.sum(x**3)

    def products():
        for k in range(10):
            yield hotk.hvp(f, X * k, V)

    stream = products()
    next(stream)
    stream.close()
    assert close(hotk.hvp(f, X, V), 6 * X * V)
