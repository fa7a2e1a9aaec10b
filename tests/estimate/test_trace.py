"""Estimates of the trace."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.estimate import trace
from tests.counting import compiles
from tests.estimate.operators import (
    SPECTRA,
    Dense,
    N,
    OnePass,
    Recording,
    hessian,
    square,
    symmetric,
)
from tests.helpers import close


METHODS = ["xtrace", "hutch++", "hutchinson"]
each_method = pytest.mark.parametrize("method", METHODS)
KEY = jax.random.key(3)
SAMPLES = {"xtrace": 16, "hutch++": 16, "hutchinson": 32}


@functools.partial(jax.jit, static_argnames="method")
def _over_seeds(a, keys, method):
    one = lambda key: trace(
        Dense(a, False), key, samples=SAMPLES[method], method=method
    )
    return jax.vmap(one)(keys)


@functools.cache
def over_seeds(name, method):
    a = square(N) + np.eye(N) if name == "square" else symmetric(SPECTRA[name])
    return np.trace(a), _over_seeds(a, jax.random.split(jax.random.key(0), 200), method)


def leave_out_naively(a, probes):
    """Return XTrace's estimates as they are defined, one projector each."""
    n, k = probes.shape
    made = []
    for i in range(k):
        others = np.delete(probes, i, axis=1)
        q = np.linalg.qr(a @ others)[0]
        w = probes[:, i] - q @ (q.T @ probes[:, i])
        w *= np.sqrt((n - k + 1) / (w @ w))
        made.append(np.trace(q.T @ a @ q) + w @ a @ w)
    return np.array(made)


@each_method
def test_of_diagonals_that_signs_see_exactly(method):
    entries = {"a": jnp.array([1.0, -2.0, 3.0]), "b": jnp.array([[4.0]])}
    found = trace(hotk.Diagonal(entries), KEY, samples=4, method=method)
    close(found.value, jnp.array(6.0))
    close(found.error, jnp.array(0.0))
    assert found.method == method
    assert found.products == 4


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "a", [symmetric(1 / np.arange(1.0, 41)), square(13)], ids=["symmetric", "square"]
)
def test_xtrace_is_the_published_mean(a):
    seen = []
    found = trace(Recording(a, seen, False), KEY, samples=6)
    assert found.products == len(seen) == 12
    probes = np.array(seen[:6]).T
    each = leave_out_naively(a, probes)
    close(found.value, each.mean(), rtol=1e-9)
    fewer = [leave_out_naively(a, np.delete(probes, j, 1)).mean() for j in range(6)]
    published, jackknife = each.std(ddof=1) / 6**0.5, np.std(fewer) * 5**0.5
    close(found.error, np.sqrt(published * jackknife), rtol=1e-7)


def test_hutch_is_exact_on_a_span_and_random_beyond():
    a, seen = square(40), []
    found = trace(Recording(a, seen, False), KEY, samples=6, method="hutch++")
    assert found.products == len(seen) == 18
    sketch, rest = np.array(seen[:6]).T, np.array(seen[12:]).T
    q = np.linalg.qr(a @ sketch)[0]
    np.testing.assert_allclose(q.T @ rest, 0, atol=1e-12)
    forms = np.sum(rest * (a @ rest), axis=0)
    close(found.value, np.trace(q.T @ a @ q) + forms.mean())
    close(found.error, forms.std(ddof=1) / 6**0.5)


def test_hutchinson_is_a_mean_over_signs():
    a, seen = square(40), []
    found = trace(Recording(a, seen, False), KEY, samples=6, method="hutchinson")
    assert found.products == len(seen) == 6
    signs = np.array(seen)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    forms = np.sum(signs @ a * signs, axis=1)
    close(found.value, forms.mean())
    close(found.error, forms.std(ddof=1) / 6**0.5)


@pytest.mark.thinned(1)
@each_method
@pytest.mark.parametrize("name", [*SPECTRA, "square"])
def test_is_unbiased(name, method):
    exact, found = over_seeds(name, method)
    assert abs(np.mean(found.value) - exact) < 4 * np.std(found.value) / 200**0.5


@pytest.mark.thinned(3)
@each_method
@pytest.mark.parametrize("name", [*SPECTRA, "square"])
def test_two_errors_cover_the_truth(name, method):
    exact, found = over_seeds(name, method)
    off = np.abs(found.value - exact)
    assert np.mean(off <= 2 * found.error) >= 0.9
    # and are not wide
    assert np.mean(found.error) < 2.5 * np.sqrt(np.mean(off**2))


def test_xtrace_beats_hutchinson_where_the_spectrum_decays():
    exact, clever = over_seeds("steep", "xtrace")
    _, plain = over_seeds("steep", "hutchinson")
    assert np.all(clever.products == plain.products)
    rms = lambda found: np.sqrt(np.mean((found.value - exact) ** 2))
    assert rms(clever) <= rms(plain) / 10


@pytest.mark.thinned(4)
@pytest.mark.parametrize("method", ["xtrace", "hutch++"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rank", [0, 1, 3, 5])
def test_of_low_rank_is_exact(rank, dtype, method):
    values = np.append(np.arange(1.0, rank + 1), np.zeros(40 - rank))
    a = symmetric(values)
    A = hessian(a) if dtype == "float32" else Recording(a, [])
    found = trace(A, KEY, samples=6, method=method)
    rounding = 100 * rank * float(jnp.finfo(dtype).eps)
    assert abs(float(found.value) - values.sum()) <= rounding
    assert float(found.error) <= rounding


def test_steep_spectra_in_single_precision_stay_finite():
    values = 10.0 ** -np.arange(40)
    A = hessian(symmetric(values))
    for seed in range(20):
        found = trace(A, jax.random.key(seed), samples=6)
        assert abs(float(found.value) - values.sum()) < 1e-4
        assert float(found.error) < 1e-3


def test_of_the_identity_is_the_dimension():
    found = trace(hessian(np.eye(40)), KEY, samples=6)
    close((found.value, found.error), (jnp.float32(40), jnp.float32(0)), rtol=1e-6)


@pytest.mark.parametrize(
    ("n", "samples", "method"),
    [(1, 1, "xtrace"), (6, 2, "hutch++"), (5, 30, "xtrace"), (30, 20, "xtrace")],
)
def test_with_as_many_products_as_dimensions_is_exact(n, samples, method):
    a = square(n) if n > 1 else np.array([[7.0]])
    found = trace(Dense(jnp.asarray(a), False), KEY, samples=samples, method=method)
    close(found.value, np.trace(a))
    assert found.error == 0
    assert found.products == n


@pytest.mark.thinned(1)
@pytest.mark.parametrize("method", ["xtrace", "hutchinson"])
def test_one_sample_has_no_error_bar(method):
    found = trace(Recording(square(40), []), KEY, samples=1, method=method)
    assert found.error == jnp.inf
    assert jnp.isfinite(found.value)


@pytest.mark.exhaustive
def test_complex_leaves_count_twice():
    """The Hessian of |c z|^2 + r^2 has the eigenvalue 2 |c|^2 twice, and 2."""
    c = np.array([1 + 2j, -0.5j, 3.0, 1 - 1j])
    f = lambda x: jnp.abs(jnp.sum(c * x["z"])) ** 2 + x["r"][0] ** 2
    H = hotk.HessianOperator(f, {"z": jnp.array(c), "r": jnp.ones(2)})
    found = trace(H, KEY, samples=5)
    close(found.value, 4 * np.sum(np.abs(c) ** 2) + 2)
    assert found.error < 1e-9


def test_low_precision_is_summed_in_single():
    ones = {"a": jnp.ones(1000, jnp.bfloat16), "b": jnp.ones(3, jnp.float32)}
    found = trace(hotk.Diagonal(ones), KEY, samples=2, method="hutchinson")
    close(found.value, jnp.float32(1003.0))


@pytest.mark.exhaustive
def test_mixed_precision():
    c = {"a": np.float32(2 * 0.5 ** np.arange(30)), "b": np.float32(3 * np.ones(10))}
    x = {"a": jnp.ones(30, jnp.bfloat16), "b": jnp.ones(10, jnp.float32)}
    f = lambda x: sum(jnp.sum(c[k] * x[k].astype(c[k].dtype) ** 2) / 2 for k in "ab")
    found = trace(hotk.HessianOperator(f, x), KEY, samples=16)
    assert found.value.dtype == found.error.dtype == jnp.float32
    assert abs(float(found.value) - 34) < 4 * float(found.error) + 34 * 0.01


@pytest.mark.thinned(1)
@each_method
def test_fresh_operators_compile_nothing(method):
    operators = [hessian(symmetric(np.arange(40.0), seed)) for seed in (1, 2)]
    run = lambda A: trace(A, KEY, samples=6, method=method).value
    first = run(operators[0])
    with compiles() as count:
        second = run(operators[1])
    assert count() == 0
    assert first != second


@pytest.mark.exhaustive
def test_jit_and_raw_keys_change_nothing():
    A = hessian(square(40) + square(40).T)
    run = lambda A, key: trace(A, key, samples=6, method="hutchinson")
    expected = run(A, KEY)
    raw = jax.random.key_data(KEY)
    for found in (jax.jit(run)(A, KEY), run(A, raw), run(A, np.array(raw))):
        close((found.value, found.error), (expected.value, expected.error))


@pytest.mark.exhaustive
def test_blocks_change_nothing():
    A = hessian(symmetric(np.arange(40.0)))
    found = trace(A, KEY, samples=6, block_size=4)
    close(found.value, trace(A, KEY, samples=6).value)


@pytest.mark.thinned(1)
@each_method
def test_products_on_the_host(method):
    a = np.float32(symmetric(0.5 ** np.arange(40)))
    expected = trace(hessian(a), KEY, samples=6, method=method)
    for cls in (Recording, OnePass):
        A = cls(a, [])
        found = trace(A, KEY, samples=6, method=method)
        close(found.value, expected.value)
        close(found.error, expected.error, rtol=1e-2)
        rounds = {"xtrace": 2, "hutch++": 3, "hutchinson": 1}[method]
        assert len(A.seen) == (rounds if cls is OnePass else 6 * rounds)


@pytest.mark.usefixtures("as_user")
def test_nonsense_is_refused():
    A = hotk.Diagonal(jnp.ones(9))
    with pytest.raises(ValueError, match="samples"):
        trace(A, KEY, samples=0)
    with pytest.raises(ValueError, match="block_size"):
        trace(A, KEY, block_size=0)
    with pytest.raises(ValueError, match="xtrace"):
        trace(A, KEY, method="x-trace")
    with pytest.raises(TypeError, match="identities"):
        trace(hotk.Identity(), KEY)
    with pytest.raises(TypeError, match="operator"):
        trace(jnp.eye(3), KEY)
    with pytest.raises(hotk.StructureError):
        trace(hotk.Diagonal({}), KEY)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("size", [1e-20, 1e18])
@pytest.mark.parametrize("method", METHODS)
def test_values_of_any_size(method, size):
    c = np.float32(np.linspace(1, 3, 40) * size)
    found = trace(hotk.Diagonal(jnp.asarray(c)), KEY, samples=8, method=method)
    exact = float(np.sum(np.float64(c)))
    assert abs(float(found.value) - exact) <= 4 * float(found.error) + 1e-5 * exact
    assert float(found.value) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1e-16, 1e15])
@pytest.mark.parametrize("method", ["xtrace", "hutch++"])
def test_second_derivatives_of_any_size(method, size):
    """Of a matrix of rank three the estimate is exact: by hand, and NumPy."""
    v = np.random.default_rng(0).normal(size=(3, 40)) / 6

    def scaled(t):
        f = lambda x: jnp.float32(size) * jnp.sum(jnp.cosh(jnp.float32(v) @ x))
        H = hotk.HessianOperator(f, t * jnp.ones(40, jnp.float32))
        return trace(H, KEY, samples=12, method=method).value / jnp.float32(size)

    squares, along = np.sum(v**2, 1), v.sum(1)
    t = jnp.float32(0.7)
    close(scaled(t), np.float32(squares @ np.cosh(0.7 * along)), rtol=1e-4)
    slope = squares @ (along * np.sinh(0.7 * along))
    close(jax.grad(scaled)(t), np.float32(slope), rtol=1e-3)
    bent = squares @ (along**2 * np.cosh(0.7 * along))
    close(jax.grad(jax.grad(scaled))(t), np.float32(bent), rtol=1e-2)


def test_a_leaf_without_entries(as_user):
    point = {"a": jnp.ones(2), "e": jnp.zeros((0, 3))}
    H = hotk.HessianOperator(lambda p: jnp.sum(p["a"] ** 2), point)
    close(trace(H, KEY).value, 4.0)
