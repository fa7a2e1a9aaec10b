"""A function that is traced again only because it is opaque is told of, once."""

import gc
import inspect
import threading
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import recorded


pytestmark = pytest.mark.usefixtures("as_user")

X = jnp.array([0.5, -1.0, 2.0])


@pytest.fixture(autouse=True)
def empty():
    hotk.clear_cache()


def locked():
    """Return a function that no walk can see through."""
    lock = threading.Lock()

    def loss(x):
        with lock:
            return jnp.sum(x**2)

    return loss


def test_the_second_trace_warns_and_no_other_does():
    f, counts = locked(), []
    for _ in range(4):
        with recorded(hotk.OpaqueWarning) as found:
            hotk.gradient(f, X)
        counts.append(len(found))
    assert counts == [0, 1, 0, 0]


def test_it_says_what_where_how_long_and_what_to_do():
    f = locked()
    hotk.hvp(f, X, X)
    with recorded(hotk.OpaqueWarning) as found:
        hotk.hvp(f, X, X)
    text, line = str(found[0].message), f.__code__.co_firstlineno
    for part in (
        "`hvp(f, x, v)`",
        f"loss` (test_opaque_is_loud.py:{line})",
        "cell `lock`: an object of type `_thread.lock`",
        " ms ",
        "read what the function needs first",
    ):
        assert part in text
    assert "hotk.explain" in text


def test_it_points_to_the_line_of_the_call():
    f = locked()
    hotk.gradient(f, X)
    with recorded(hotk.OpaqueWarning) as found:
        here = inspect.currentframe().f_lineno + 1
        hotk.gradient(f, X)
    assert (found[0].filename, found[0].lineno) == (__file__, here)


def test_the_line_is_named_that_needs_a_value():
    table = jnp.ones(100)

    def f(x):
        scale = 2.0
        if table[0] > 0:
            scale = 3.0
        return scale * jnp.sum(x**2)

    for _ in range(2):
        with recorded(hotk.OpaqueWarning) as found:
            hotk.gradient(f, X)
    line = f.__code__.co_firstlineno + 2
    assert f"test_opaque_is_loud.py:{line}: it needs the value" in str(found[0].message)


def test_fresh_closures_of_one_code_are_told_of_once():
    with recorded(hotk.OpaqueWarning) as found:
        for _ in range(3):
            hotk.gradient(locked(), X)
    assert len(found) == 1


def test_what_would_be_traced_once_each_is_not_told_of():
    f = locked()
    with recorded(hotk.OpaqueWarning) as found:
        hotk.gradient(f, X)
        hotk.gradient(f, X[:2])  # another signature
        hotk.value_and_gradient(f, X)  # another operator
        hotk.gradient(f, np.asarray(X[:1]))
    assert not found


def test_neither_prepare_nor_an_outer_trace_warns():
    f = locked()
    with recorded(hotk.OpaqueWarning) as found:
        for _ in range(3):
            hotk.gradient.prepare(f, X)(X)
            jax.jit(lambda x: hotk.gradient(f, x))(X)
            jax.vmap(lambda x: hotk.gradient(f, x))(X[None])
    assert not found


def test_functions_on_the_fast_path_are_not_told_of():
    with recorded(hotk.OpaqueWarning) as found:
        for scale in (1.0, 2.0):
            hotk.gradient(lambda x, c=scale: c * jnp.sum(x), X)
    assert not found


def test_it_is_filtered_by_its_class_and_may_be_an_error():
    f = locked()
    hotk.gradient(f, X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(hotk.OpaqueWarning):
            hotk.gradient(f, X)
        hotk.clear_cache()
        warnings.filterwarnings("ignore", category=hotk.OpaqueWarning)
        for _ in range(2):
            assert hotk.gradient(f, X).tolist() == (2 * X).tolist()


def test_clearing_the_cache_makes_it_new_again():
    f = locked()
    for _ in range(2):
        hotk.clear_cache()
        hotk.gradient(f, X)
        with recorded(hotk.OpaqueWarning) as found:
            hotk.gradient(f, X)
        assert len(found) == 1


def test_threads_are_told_once():
    f, start = locked(), threading.Barrier(4)

    def work():
        start.wait()
        for _ in range(3):
            hotk.gradient(f, X)

    with recorded(hotk.OpaqueWarning) as found:
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 1


@pytest.mark.exhaustive
def test_it_keeps_neither_the_function_nor_its_code_alive():
    def make():
        names = {"threading": threading, "jnp": jnp}
        text = "lock = threading.Lock()\ndef f(x):\n  with lock: return jnp.sum(x)"
        exec(text, names)
        return names["f"]

    f = make()
    with recorded(hotk.OpaqueWarning):
        for _ in range(2):
            hotk.gradient(f, X)
    alive = weakref.ref(f)
    del f
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("wrap", ["object", "method", "partial", "jitted"])
def test_callables_of_any_kind_are_known_by_their_code(wrap):
    import functools

    class Loss:
        def __init__(self):
            self.lock = threading.Lock()

        def __call__(self, x):
            with self.lock:
                return jnp.sum(x**2)

    kinds = {
        "object": lambda f: f,
        "method": lambda f: f.__call__,
        "partial": lambda f: functools.partial(f),
        "jitted": lambda f: lambda x, f=f: jax.jit(f)(x),
    }
    with recorded(hotk.OpaqueWarning) as found:
        for _ in range(3):
            hotk.gradient(kinds[wrap](Loss()), X)
    assert len(found) == 1


def test_numpy_arrays_that_numpy_computes_with_are_named():
    table = np.arange(100, dtype=np.int64)

    def f(x):
        return jnp.sum(x**2) * (table * 2**40).sum()  # other bits, once JAX adds them

    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        x = jnp.ones(2, jnp.float32)
        for _ in range(2):
            with recorded(hotk.OpaqueWarning) as found:
                hotk.gradient(f, x)
        reason = hotk.cache_info().reasons[-1]
    if "NumPy computes" in reason:
        assert "cell `table`: NumPy computes" in str(found[0].message)
