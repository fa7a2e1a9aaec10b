"""Promise 8: caches are bounded, user data is let go, what cannot fit is refused."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

import hotk
from hotk._prepared import _jitted, jitted
from hotk._prepared._store import STORE
from tests.counting import compiles
from tests.helpers import close


X = jnp.array([1.0, 2.0, 3.0])
V = jnp.array([1.0, 0.5, -1.0])


def cubic(x):
    return sum(jnp.sum(leaf**3) for leaf in jax.tree.leaves(x))


@pytest.fixture
def budget():
    """Let a test choose the bytes that a dense result may take."""
    yield hotk.set_memory_budget
    hotk.set_memory_budget(None)


# ---- dense results


def test_there_is_a_budget_and_it_is_no_larger_than_the_machine():
    assert 0 < hotk.memory_budget() <= psutil.virtual_memory().total


def test_the_budget_can_be_set_and_given_back(budget):
    own = hotk.memory_budget()
    budget(12_345)
    assert hotk.memory_budget() == 12_345
    budget(None)
    assert hotk.memory_budget() == own


def digits(text):
    return text.replace(",", "").replace("_", "")


DENSE = {
    "hessian": lambda x: hotk.hessian(cubic, x),
    "value_gradient_and_hessian": lambda x: hotk.value_gradient_and_hessian(cubic, x),
    "hessian.prepare": lambda x: hotk.hessian.prepare(cubic, x),
    "block_size=1": lambda x: hotk.hessian(cubic, x, block_size=1),
    "inside jit": lambda x: jax.jit(lambda x: hotk.hessian(cubic, x))(x),
    "jacobian": lambda x: hotk.jacobian(lambda x: x**3, x),
}


@pytest.mark.parametrize("call", DENSE.values(), ids=DENSE)
def test_a_result_over_the_budget_is_refused_with_its_bytes(call, budget):
    x = jnp.ones(100)
    budget(79_999)
    with pytest.raises(hotk.TooLargeError) as error:
        call(x)
    assert isinstance(error.value, MemoryError)
    assert "80000" in digits(str(error.value))
    assert "79999" in digits(str(error.value))
    budget(2**30)
    call(x)


def test_the_bytes_are_those_of_the_leaves_of_the_result(budget):
    x = {"a": jnp.ones(10, jnp.float32), "b": jnp.ones(20)}
    f = lambda x: jnp.sum(x["a"] ** 3).astype(float) + jnp.sum(x["b"] ** 3)
    budget(100)
    with pytest.raises(hotk.TooLargeError) as error:
        hotk.hessian(f, x)
    # a block has the dtype of its row: aa and ab are single, ba and bb double
    assert str(10 * 30 * 4 + 20 * 30 * 8) in digits(str(error.value))


def test_a_hessian_of_many_outputs_counts_them(budget):
    budget(10**6)
    with pytest.raises(hotk.TooLargeError) as error:
        hotk.hessian(lambda x: jnp.outer(x, x), jnp.ones(20))
    assert str(20**4 * 8) in digits(str(error.value))


def test_the_refusal_names_what_to_use_instead(budget):
    budget(1000)
    with pytest.raises(hotk.TooLargeError) as error:
        hotk.hessian(cubic, jnp.ones(100))
    for way in ("hvp", "hessian_diagonal"):
        assert way in str(error.value)


def test_the_refusal_comes_before_anything_is_traced_or_allocated():
    x = jnp.zeros(10**6)
    gc.collect()
    before = psutil.Process().memory_info().rss
    start = time.monotonic()
    with pytest.raises(hotk.TooLargeError):
        hotk.hessian(cubic, x)
    assert time.monotonic() - start < 1.0
    assert psutil.Process().memory_info().rss - before < 64 * 2**20


def test_what_is_not_dense_has_no_budget(budget):
    budget(1000)
    x = jnp.ones(10_000)
    assert close(hotk.hvp(cubic, x, x), 6 * x)
    assert close(hotk.hessian_diagonal(cubic, x[:500]), 6 * x[:500])


def test_a_known_program_is_refused_too_when_the_budget_shrinks(budget):
    x = jnp.ones(100)
    hotk.hessian(cubic, x)
    budget(1000)
    with pytest.raises(hotk.TooLargeError):
        hotk.hessian(cubic, x)


@pytest.mark.parametrize("block_size", [*range(1, 9), None])
def test_blocks_of_any_size_give_the_same_hessian(block_size):
    weights = jnp.arange(49.0).reshape(7, 7) / 10
    f = lambda x: jnp.sum(jnp.tanh(weights @ x) ** 2)
    x = jnp.linspace(-1, 1, 7)
    assert close(hotk.hessian(f, x, block_size=block_size), jax.hessian(f)(x))
    diagonal = hotk.hessian_diagonal(f, x, block_size=block_size)
    assert close(diagonal, jnp.diagonal(jax.hessian(f)(x)))


@pytest.mark.exhaustive
def test_blocks_need_less_memory_than_all_directions_at_once():
    weights = [jnp.ones((24, 24)) / 50 for _ in range(4)]

    def loss(weights):
        x = jnp.ones((128, 24))
        for w in weights:
            x = jnp.tanh(x @ w)
        return jnp.mean(x**2)

    peak = lambda size: (
        hotk.hessian.prepare(loss, weights, block_size=size).info.peak_bytes
    )
    result = 8 * (4 * 24 * 24) ** 2
    assert peak(16) - result < (peak(4 * 24 * 24) - result) / 4


# ---- caches


def fresh(k):
    """Return a function with a program of its own."""
    return lambda x: jnp.sum(jnp.tile(x, 1 + k) ** 3)


@pytest.fixture
def room_for_eight(monkeypatch):
    """Make the cache small, so that a test of eviction need not compile hundreds."""
    hotk.clear_cache()
    monkeypatch.setattr(STORE, "max_entries", 8)


def test_the_cache_is_bounded_and_right_after_eviction(room_for_eight):
    for k in (*range(20), 0, 1, 19):
        assert close(hotk.gradient(fresh(k), X), (1 + k) * 3 * X**2)
        assert hotk.cache_info().entries <= 8
    assert hotk.cache_info().evictions >= 12


def test_the_cache_is_bounded_in_bytes_too(room_for_eight, monkeypatch):
    hotk.gradient(fresh(0), X)
    monkeypatch.setattr(STORE, "max_bytes", 4 * hotk.cache_info().bytes)
    for k in range(1, 8):
        assert close(hotk.gradient(fresh(k), X), (1 + k) * 3 * X**2)
        assert hotk.cache_info().bytes <= STORE.max_bytes
    assert hotk.cache_info().evictions >= 4


def held():
    """Return references to the compiled programs that the store holds now."""
    entries = STORE.entries.values()
    found = [one for entry in entries for one in entry.specializations.values()]
    return [weakref.ref(one.program) for one in found if one.program is not None]


@pytest.mark.thinned(1)
@pytest.mark.parametrize("operator", [hotk.gradient, hotk.hessian], ids=str)
def test_one_function_of_many_shapes_is_bounded(room_for_eight, operator):
    f = lambda x: jnp.sum(x**3)
    references = set()
    for n in (*range(1, 21), 1, 20, 2):
        x = np.arange(1.0, n + 1)
        right = 3 * x**2 if operator is hotk.gradient else np.diag(6 * x)
        assert close(operator(f, x), right)
        info = hotk.cache_info()
        assert (info.entries, info.bytes) == (min(n, 8), min(n, 8) << 20) or n < 20
        references |= set(held())
    assert info.compiles == 22
    gc.collect()
    assert sum(r() is not None for r in references) == 8


def test_of_the_shapes_of_one_function_the_last_ones_stay(room_for_eight):
    f = lambda x: jnp.sum(x**4)
    for n in range(2, 21):
        hotk.gradient(f, np.ones(n))
        with compiles() as count:
            hotk.gradient(f, np.ones(1))  # used in each round
            hotk.gradient(f, np.ones(n))
        assert count() == (1 if n == 2 else 0)
    with compiles() as count:
        for n in (1, *range(14, 21)):
            hotk.gradient(f, np.ones(n))
    assert count() == 0


def test_a_function_in_use_stays_beside_one_of_many_shapes(room_for_eight):
    kept, f = lambda x: jnp.sum(x**4), lambda x: jnp.sum(x**3)
    hotk.gradient(kept, X)
    for n in range(1, 21):
        hotk.gradient(f, np.ones(n))
        with compiles() as count:
            hotk.gradient(kept, X)
        assert count() == 0


def test_one_function_under_many_settings_is_bounded(room_for_eight, monkeypatch):
    monkeypatch.setattr(STORE, "max_entries", 3)
    precisions = [None, "bfloat16", "tensorfloat32", "float32"]
    f = lambda x: x @ x * jnp.sum(x)
    for precision in precisions:
        for promotion in ("standard", "strict"):
            with (
                jax.default_matmul_precision(precision),
                jax.numpy_dtype_promotion(promotion),
            ):
                got = hotk.gradient(f, X)
            assert close(got, 2 * X * jnp.sum(X) + X @ X, rtol=1e-2)
            assert hotk.cache_info().entries <= 3
    assert hotk.cache_info().compiles == 8


def test_one_function_with_static_content_of_many_shapes_is_bounded(room_for_eight):
    c = jnp.asarray(2.0)
    f = lambda x: jnp.sum(x**3) if c > 0 else 0.0
    for n in (*range(1, 21), 1):
        assert close(hotk.gradient(f, jnp.ones(n)), jnp.full(n, 3.0))
        assert hotk.cache_info().entries <= 8
        assert hotk.cache_info().bytes <= 8 << 20


def test_one_opaque_function_of_many_shapes_is_bounded(room_for_eight):
    lock = threading.Lock()

    def f(x):
        with lock:
            return jnp.sum(x**3)

    def ruled(x):
        with lock:
            return jnp.sum(straight(x) ** 3)

    for g in (f, ruled):
        for n in (*range(1, 21), 1):
            assert close(hotk.gradient(g, jnp.ones(n)), jnp.full(n, 3.0))
            assert hotk.cache_info().entries <= 8
            assert hotk.cache_info().bytes <= 16 << 20


@jax.custom_jvp
def straight(x):
    return jnp.round(x)


straight.defjvp(lambda primals, tangents: (straight(*primals), tangents[0]))


def test_a_jitted_function_of_hotk_keeps_few_shapes(monkeypatch):
    monkeypatch.setattr(_jitted, "_MOST_PROGRAMS", 8)
    made = jitted(lambda x: 2 * x)
    before = hotk.cache_info().compiles
    for n in (*range(1, 21), 20):
        assert close(made(jnp.ones(n)), jnp.full(n, 2.0))
    assert hotk.cache_info().compiles == before + 20
    for n in (1, 8, 15):  # were let go; those after the sixteenth are there
        assert close(made(jnp.ones(n)), jnp.full(n, 2.0))
    assert hotk.cache_info().compiles == before + 23


@pytest.mark.exhaustive
def test_threads_with_many_shapes_get_right_numbers(room_for_eight):
    f = lambda x: jnp.sum(x**3)

    def work(start):
        for n in range(start, start + 12):
            x = jnp.arange(1.0, n + 1)
            assert close(hotk.gradient(f, x), 3 * x**2)
            assert close(hotk.gradient(f, X), 3 * X**2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (1, 5, 9, 13)))
    assert hotk.cache_info().entries <= 8


def test_opaque_functions_are_bounded_too(room_for_eight):
    for k in range(20):
        opaque = iter([1.5 + k]).__next__
        f = lambda x, a=opaque: jnp.sum(x**3) * a()
        assert close(hotk.gradient(f, X), (1.5 + k) * 3 * X**2)
    assert hotk.cache_info().entries <= 8
    assert hotk.cache_info().bytes <= 64 * 2**20


def test_what_was_used_last_stays(room_for_eight):
    kept = lambda x: jnp.sum(x**4)
    first = hotk.gradient(kept, X)
    for k in range(20):
        hotk.gradient(fresh(k), X)
        misses = hotk.cache_info().misses
        with compiles() as count:
            hotk.gradient(fresh(k), X)
            again = hotk.gradient(kept, X)
        assert (count(), hotk.cache_info().misses) == (0, misses)
    assert close(again, first)


@pytest.mark.slow
def test_the_cache_is_bounded_as_it_is_for_users():
    hotk.clear_cache()
    most, count = 0, 0
    while hotk.cache_info().evictions == 0:
        assert close(hotk.gradient(fresh(count), X), (1.5 + count) * 3 * X**2)
        most, count = max(most, hotk.cache_info().entries), count + 1
        assert count < 2000, "nothing is ever evicted"
    for k in (0, 1, count - 1):
        assert close(hotk.gradient(fresh(k), X), (1.5 + k) * 3 * X**2)
    assert hotk.cache_info().entries <= most


def test_the_info_counts_entries_and_bytes():
    hotk.clear_cache()
    info = hotk.cache_info()
    assert (info.entries, info.bytes) == (0, 0)
    hotk.gradient(lambda x: jnp.sum(x**5), X)
    info = hotk.cache_info()
    assert info.entries >= 1
    assert info.bytes > 0


def test_the_cache_keeps_no_captured_array():
    captured = [jnp.full(3, 2.0), np.full(3, 2.0)]
    references = [weakref.ref(a) for a in captured]
    a, b = captured
    hotk.hvp(lambda x: jnp.sum(a * b * x**3), X, V)
    assert hotk.cache_info().entries >= 1
    del captured, a, b
    gc.collect()
    assert [r() for r in references] == [None, None]


@pytest.mark.exhaustive
def test_the_cache_keeps_no_array_that_was_needed_as_a_value():
    steps = jnp.asarray(3)
    reference = weakref.ref(steps)

    def f(x):
        for _ in range(int(steps)):
            x = jnp.sin(x)
        return jnp.sum(x)

    hotk.hvp(f, X, V)
    del steps, f
    gc.collect()
    assert reference() is None


@pytest.mark.exhaustive
def test_clearing_the_cache_frees_its_programs():
    hotk.clear_cache()
    jax.clear_caches()
    client = jax.devices()[0].client
    gc.collect()
    before = len(client.live_executables())
    f = lambda x: jnp.sum(jnp.sin(x) * 1.75)
    hotk.hvp(f, X, V)
    assert len(client.live_executables()) > before
    hotk.clear_cache()
    gc.collect()
    assert (
        len(client.live_executables()) <= before + 1
    )  # one: JAX's own of `sum`, `mul`


@pytest.mark.slow
def test_500_functions_with_programs_of_their_own_stay_bounded():
    for k in range(100):
        hotk.hvp(fresh(k), X, V)
    gc.collect()
    before = psutil.Process().memory_info().rss
    for k in range(100, 600):
        hotk.hvp(fresh(k), X, V)
    gc.collect()
    assert psutil.Process().memory_info().rss - before < 50 * 2**20
