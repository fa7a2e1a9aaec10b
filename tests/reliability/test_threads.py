"""Many threads: right results, one compile, and no lock held while user code runs."""

import itertools
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk._prepared._traced_jit import TracedJit
from tests.counting import compiles
from tests.helpers import close


THREADS = 8
BODY = TracedJit(list).jit.__wrapped__.__code__  # what JAX traces in a first call
PATIENCE = 60.0  # seconds until a test that hangs fails
X = jnp.array([1.0, 2.0, 3.0])
V = jnp.array([1.0, 0.5, -1.0])


def together(work, count=THREADS):
    """Run `work(i)` in threads that start at one barrier; return all results."""
    barrier, results, errors = threading.Barrier(count), [None] * count, []

    def run(i):
        try:
            barrier.wait(PATIENCE)
            results[i] = work(i)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(i,), daemon=True) for i in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    assert errors == []
    return results


def slowly(f):
    """Make the trace of `f` last, so that a race is certain."""

    def slow(x):
        time.sleep(0.05)
        return f(x)

    return slow


def cubic(x):
    return jnp.sum(x**3)


def test_threads_racing_for_the_first_call_compile_once():
    f = slowly(lambda x: jnp.sum(x**3) + 1.25)
    before = hotk.cache_info().compiles
    with compiles() as count:
        results = together(lambda i: hotk.hvp(f, X, V))
    for result in results:
        assert close(result, 6 * X * V)
    assert count() == 1
    # JAX may find the second compile of one program among what it keeps
    assert hotk.cache_info().compiles == before + 1


def test_a_call_of_another_thread_before_the_body_runs_is_not_seen():
    """A thread is stopped where JAX begins to trace; another one calls meanwhile."""
    known, fresh = (lambda x: jnp.sum(x**3)), (lambda x: jnp.sum(x**4) + 0.5)
    hotk.gradient(known, X)
    others = []

    def stop(frame, event, _):
        if event == "call" and frame.f_code is BODY and not others:
            others.append(None)
            sys.setprofile(None)  # of this thread
            others[0] = together(lambda i: hotk.gradient(known, X), 1)[0]

    def work(i):
        sys.setprofile(stop)
        try:
            return hotk.gradient(fresh, X)
        finally:
            sys.setprofile(None)

    (found,) = together(work, 1)
    close(found, 4 * X**3)
    close(others[0], 3 * X**2)


def test_threads_racing_with_fresh_closures_of_one_code_compile_once():
    weights = [jnp.full(3, float(i)) for i in range(THREADS)]

    def make(w):
        return slowly(lambda x: jnp.sum(w * x**3) + 2.25)

    with compiles() as count:
        results = together(lambda i: hotk.hvp(make(weights[i]), X, V))
    assert count() == 1
    for i, result in enumerate(results):
        assert close(result, i * 6 * X * V)


def test_threads_racing_for_two_signatures_compile_twice():
    f = slowly(lambda x: jnp.sum(x**3) + 3.25)
    points = [(X, V), (X[:2], V[:2])]
    with compiles() as count:
        results = together(lambda i: hotk.hvp(f, *points[i % 2]))
    assert count() == 2
    for i, result in enumerate(results):
        x, v = points[i % 2]
        assert close(result, 6 * x * v)


def test_threads_racing_for_one_prepared_compile_no_more_than_once():
    f = slowly(lambda x: jnp.sum(x**3) + 4.25)
    with compiles() as count:
        prepared = hotk.hvp.prepare(f, X, V)
        results = together(lambda i: prepared(X, V))
    assert count() == 1
    for result in results:
        assert close(result, 6 * X * V)


def test_threads_racing_to_prepare_compile_once():
    f = slowly(lambda x: jnp.sum(x**3) + 5.25)
    with compiles() as count:
        results = together(lambda i: hotk.hvp.prepare(f, X, V)(X, V))
    assert count() == 1
    for result in results:
        assert close(result, 6 * X * V)


def test_threads_use_one_prepared_at_their_own_points():
    prepared = hotk.hvp.prepare(cubic, X, V)

    def work(i):
        return [prepared(X * i + k, V) for k in range(20)]

    for i, results in enumerate(together(work)):
        for k, result in enumerate(results):
            assert close(result, 6 * (X * i + k) * V)


def test_threads_with_their_own_closures_get_their_own_results():
    def work(i):
        results = []
        for k in range(20):
            weight = jnp.full(3, float(i * 100 + k))
            results.append(hotk.hvp(lambda x, w=weight: jnp.sum(w * x**3), X, V))
        return results

    for i, results in enumerate(together(work)):
        for k, result in enumerate(results):
            assert close(result, (i * 100.0 + k) * 6 * X * V)


def test_threads_with_another_static_value_each_get_their_own_results():
    def work(i):
        return [hotk.hvp(lambda x: jnp.sum(x**3) * i, X, V) for _ in range(5)]

    for i, results in enumerate(together(work)):
        for result in results:
            assert close(result, i * 6.0 * X * V)


@pytest.mark.parametrize("shared", [np.arange(1.0, 4.0), np.arange(1, 4) * 1.0])
def test_threads_with_another_precision_each_keep_it(shared):
    weight = np.full(3, 2.0)

    def work(i):
        with jax.enable_x64(i % 2 == 0):
            return [
                hotk.hvp(lambda x: jnp.sum(weight * x**3), shared, shared)
                for _ in range(30)
            ]

    for i, results in enumerate(together(work)):
        dtype = jnp.float64 if i % 2 == 0 else jnp.float32
        for result in results:
            assert result.dtype == dtype
            np.testing.assert_array_equal(result, 12 * shared**2)


def test_threads_clear_the_cache_while_others_call():
    def work(i):
        results = []
        for _ in range(10):
            if i == 0:
                hotk.clear_cache()
            results.append(hotk.hvp(cubic, X, V))
        return results

    for results in together(work):
        for result in results:
            assert close(result, 6 * X * V)


class Stuck:
    """A thread that is inside the user's function, while it is being traced."""

    def __init__(self, call):
        self.inside, self.release = threading.Event(), threading.Event()
        self.first = itertools.count().__next__
        self.result = []
        self.thread = threading.Thread(
            target=lambda: self.result.append(call(self.f)), daemon=True
        )

    def f(self, x):
        if self.first() == 0:
            self.inside.set()
            assert self.release.wait(PATIENCE)
        return jnp.sum(x**3)

    def __enter__(self):
        self.thread.start()
        assert self.inside.wait(PATIENCE)
        return self

    def __exit__(self, *_):
        self.release.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def in_time(call):
    """Run `call` in a thread of its own, so that a deadlock is a failure."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "blocked by another thread's user code"
    [result] = results
    return result


STARTS = {
    "hvp": lambda f: hotk.hvp(f, X, V),
    "prepare": lambda f: hotk.hvp.prepare(f, X, V)(X, V),
    "hessian": lambda f: hotk.hessian(f, X) @ V,
}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_thread_stuck_in_user_code_does_not_block_the_others(start):
    known = hotk.hvp.prepare(cubic, X, V)
    with Stuck(start) as stuck:
        new = lambda x: jnp.sum(x**4)
        assert close(in_time(lambda: hotk.hvp(new, X, V)), 12 * X**2 * V)
        assert close(in_time(lambda: hotk.hvp(cubic, X, V)), 6 * X * V)
        assert close(in_time(lambda: known(X, V)), 6 * X * V)
        assert in_time(hotk.cache_info) is not None
        in_time(hotk.clear_cache)
    assert close(stuck.result[0], 6 * X * V)


def test_a_thread_stuck_in_a_function_does_not_block_another_in_the_same_function():
    with Stuck(lambda f: hotk.hvp(f, X, V)) as stuck:
        assert close(in_time(lambda: hotk.hvp(stuck.f, X, V)), 6 * X * V)
        short = in_time(lambda: hotk.hvp(stuck.f, X[:2], V[:2]))
        assert close(short, 6 * X[:2] * V[:2])
    assert close(stuck.result[0], 6 * X * V)


def test_a_thread_stuck_in_a_closure_does_not_block_a_fresh_closure_of_its_code():
    inside, release = threading.Event(), threading.Event()
    first = itertools.count().__next__

    def make(weight):
        def f(x):
            if first() == 0:
                inside.set()
                assert release.wait(PATIENCE)
            return jnp.sum(weight * x**3)

        return f

    results = []
    work = lambda: results.append(hotk.hvp(make(jnp.full(3, 2.0)), X, V))
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert inside.wait(PATIENCE)
    try:
        fresh = make(jnp.full(3, 5.0))
        assert close(in_time(lambda: hotk.hvp(fresh, X, V)), 30 * X * V)
    finally:
        release.set()
        thread.join(PATIENCE)
    assert close(results[0], 12 * X * V)


def test_an_operator_inside_a_function_inside_an_operator():
    # g(x) = sum over i of (6 x_i^2) = hvp of the cube along x, summed
    inner = lambda x: jnp.sum(hotk.hvp(cubic, x, x))
    outer = lambda x: jnp.sum(hotk.hvp(inner, x, V) * x)
    assert close(hotk.hvp(inner, X, V), 12 * V)
    assert close(hotk.gradient(outer, X), 12 * V)
    assert close(hotk.hvp(outer, X, V), jnp.zeros(3))


def test_an_operator_of_the_same_function_inside_itself():
    def f(x, depth=2):
        if depth == 0:
            return jnp.sum(x**4)
        return jnp.sum(hotk.gradient(lambda q: f(q, depth - 1), x))

    # two gradients of a quartic: 12 x^2, whose second derivative is 24
    assert close(hotk.hvp(f, X, V), 24 * V)


def test_threads_nest_operators():
    inner = slowly(lambda x: jnp.sum(hotk.gradient(slowly(lambda q: jnp.sum(q**4)), x)))
    for result in together(lambda i: hotk.hvp(inner, X, V)):
        assert close(result, 24 * X * V)
