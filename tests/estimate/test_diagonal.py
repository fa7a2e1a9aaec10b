"""Estimates of the diagonal."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.estimate import diagonal
from tests.counting import compiles
from tests.estimate.operators import (
    SPECTRA,
    Dense,
    N,
    OnePass,
    Recording,
    flat,
    hessian,
    square,
    symmetric,
)
from tests.helpers import close


METHODS = ["xdiag", "hutchinson"]
each_method = pytest.mark.parametrize("method", METHODS)
KEY = jax.random.key(5)


@functools.partial(jax.jit, static_argnames="method")
def _over_seeds(A, keys, method):
    samples = 16 if method == "xdiag" else 32
    one = lambda key: diagonal(A, key, samples=samples, method=method)
    return jax.vmap(one)(keys)


@functools.cache
def over_seeds(name, method):
    a = square(N) if name == "square" else symmetric(SPECTRA[name])
    A = Dense(jnp.asarray(a), name != "square")
    found = _over_seeds(A, jax.random.split(jax.random.key(1), 150), method)
    return np.diag(a), np.array(flat(found.value)), np.array(flat(found.error))


def leave_out_naively(a, probes, is_symmetric):
    """Return XDiag's estimates as they are defined, one projector each."""
    made = []
    for i in range(probes.shape[1]):
        q = np.linalg.qr(a @ np.delete(probes, i, axis=1))[0]
        p, w = q @ q.T, probes[:, i]
        inside = p @ a if is_symmetric else a @ p
        made.append(np.diag(inside) + w * ((a - inside) @ w))
    return np.array(made)


@each_method
def test_of_a_diagonal_is_exact_where_signs_see_it(method):
    entries = {"a": jnp.array([1.0, -2.0, 3.0]), "b": jnp.array([[4.0]])}
    found = diagonal(hotk.Diagonal(entries), KEY, samples=4, method=method)
    close(found.value, entries)
    close(found.error, jax.tree.map(jnp.zeros_like, entries))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_xdiag_is_the_published_mean(is_symmetric):
    a, seen = symmetric(1 / np.arange(1.0, 41)) if is_symmetric else square(40), []
    found = diagonal(Recording(a, seen, is_symmetric), KEY, samples=6)
    assert found.products == len(seen) == 12
    signs = np.array(seen[:6]).T
    assert set(np.unique(signs)) == {-1.0, 1.0}
    estimates = functools.partial(leave_out_naively, a, is_symmetric=is_symmetric)
    each = estimates(signs)
    close(found.value, each.mean(axis=0), rtol=1e-8)
    fewer = [estimates(np.delete(signs, j, axis=1)).mean(axis=0) for j in range(6)]
    published = each.std(axis=0, ddof=1) / 6**0.5
    jackknife = np.std(fewer, axis=0) * 5**0.5
    close(found.error, np.sqrt(published * jackknife), rtol=1e-6)


def test_hutchinson_is_a_mean_over_signs():
    a, seen = square(40), []
    found = diagonal(Recording(a, seen, False), KEY, samples=6, method="hutchinson")
    signs = np.array(seen)
    each = signs * (signs @ a.T)
    close(found.value, each.mean(axis=0))
    close(found.error, each.std(axis=0, ddof=1) / 6**0.5)


@pytest.mark.thinned(1)
@each_method
@pytest.mark.parametrize("name", [*SPECTRA, "square"])
def test_is_unbiased_and_two_errors_cover_the_truth(name, method):
    exact, values, errors = over_seeds(name, method)
    off = values - exact
    # the largest of 60 normal deviations is above 4 once in 260 times
    assert np.max(np.abs(off.mean(axis=0)) / off.std(axis=0)) < 4 / 150**0.5
    assert np.mean(np.abs(off) <= 2 * errors) >= 0.9
    assert np.mean(errors) < 2 * np.sqrt(np.mean(off**2))


def test_xdiag_beats_hutchinson_where_the_spectrum_decays():
    rms = lambda method: np.sqrt(
        np.mean((over_seeds("steep", method)[1] - over_seeds("steep", method)[0]) ** 2)
    )
    assert rms("xdiag") <= rms("hutchinson") / 10


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_of_low_rank_is_exact(rank):
    values = np.append(np.arange(1.0, rank + 1), np.zeros(40 - rank))
    a = symmetric(values)
    for A, is_exact in (
        (Recording(a, [], True), 1e-13),
        (Recording(a, [], False), 1e-12),
    ):
        found = diagonal(A, KEY, samples=6)
        close(found.value, np.diag(a), rtol=0, atol=100 * is_exact)
        close(found.error, np.zeros(40), rtol=0, atol=100 * is_exact)


@pytest.mark.exhaustive
def test_signs_that_repeat_are_no_proof_of_low_rank():
    """In five dimensions two vectors of signs often are the same up to sign."""
    a = symmetric(np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    run = jax.vmap(lambda key: diagonal(Dense(jnp.asarray(a)), key, samples=2))
    found = run(jax.random.split(KEY, 1000))
    off = np.array(flat(found.value)) - np.diag(a)
    assert np.max(np.abs(off.mean(axis=0)) / off.std(axis=0)) < 4 / 1000**0.5
    assert np.mean(np.array(flat(found.error)) < 1e-9) < 0.2


@pytest.mark.parametrize(("n", "samples"), [(1, 1), (5, 30), (6, 3)])
def test_with_as_many_products_as_dimensions_is_exact(n, samples):
    a = square(n) if n > 1 else np.array([[7.0]])
    found = diagonal(Dense(jnp.asarray(a), False), KEY, samples=samples)
    close(flat(found.value), jnp.diag(jnp.asarray(a)))
    assert np.all(flat(found.error) == 0)
    assert found.products == n


def test_a_sum_of_rows_is_not_the_diagonal():
    """The product with ones is a popular estimate, and wrong."""
    f = lambda x: jnp.sum(jnp.sin(x)) ** 2
    x = jnp.arange(3.0)
    exact = 2 * (np.cos(x) ** 2 - np.sin(x) * np.sum(np.sin(x)))
    found = diagonal(hotk.HessianOperator(f, x), KEY, samples=3)
    close(found.value, exact)


@pytest.mark.exhaustive
def test_complex_leaves_have_two_entries_each():
    """In the real embedding |c z|^2 is (a u - b v)^2 + (b u + a v)^2."""
    c = np.array([1 + 2j, -0.5j, 3.0, 1 - 1j])
    f = lambda x: jnp.abs(jnp.sum(c * x["z"])) ** 2 + 3 * x["r"][0] ** 2
    H = hotk.HessianOperator(f, {"z": jnp.array(c), "r": jnp.ones(2)})
    exact = {"z": 2 * np.abs(c) ** 2 * (1 + 1j), "r": np.array([6.0, 0.0])}
    found = diagonal(H, KEY, samples=5)
    close(found.value, exact)
    close(found.error, jax.tree.map(np.zeros_like, exact))
    plain = diagonal(H, KEY, samples=200, method="hutchinson")
    off = np.abs(plain.value["z"] - exact["z"])
    assert np.all(off < 5 * np.abs(plain.error["z"]))
    assert np.all(plain.error["z"].imag > 0)


def test_mixed_precision_keeps_the_dtypes():
    c = {"a": np.float32(2 * 0.5 ** np.arange(30)), "b": np.float32(3 * np.ones(10))}
    x = {"a": jnp.ones(30, jnp.bfloat16), "b": jnp.ones(10, jnp.float32)}
    f = lambda x: sum(jnp.sum(c[k] * x[k].astype(c[k].dtype) ** 2) / 2 for k in "ab")
    found = diagonal(hotk.HessianOperator(f, x), KEY, samples=3, method="hutchinson")
    close(found.value, {k: c[k].astype(x[k].dtype) for k in "ab"})


@pytest.mark.thinned(1)
@each_method
def test_fresh_operators_compile_nothing(method):
    operators = [hessian(symmetric(np.arange(40.0), seed)) for seed in (1, 2)]
    run = lambda A: diagonal(A, KEY, samples=6, method=method).value
    first = run(operators[0])
    with compiles() as count:
        second = run(operators[1])
    assert count() == 0
    assert np.any(first != second)


@pytest.mark.thinned(1)
@each_method
def test_products_on_the_host(method):
    a = np.float32(symmetric(0.5 ** np.arange(40)))
    run = lambda A: diagonal(A, KEY, samples=6, method=method)
    expected = run(hessian(a))
    for cls in (Recording, OnePass):
        A = cls(a, [])
        close(run(A).value, expected.value)
        rounds = {"xdiag": 2, "hutchinson": 1}[method]
        assert len(A.seen) == (rounds if cls is OnePass else 6 * rounds)


@pytest.mark.usefixtures("as_user")
def test_nonsense_is_refused():
    A = hotk.Diagonal(jnp.ones(9))
    with pytest.raises(ValueError, match="samples"):
        diagonal(A, KEY, samples=0)
    with pytest.raises(ValueError, match="xdiag"):
        diagonal(A, KEY, method="xtrace")
    with pytest.raises(TypeError, match="identities"):
        diagonal(hotk.Identity(), KEY)


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1e-16, 1e15])
def test_second_derivatives_of_any_size(size):
    """Of a matrix of rank three the estimate is exact: by hand, and NumPy."""
    v = np.random.default_rng(0).normal(size=(3, 40)) / 6

    def scaled(t):
        f = lambda x: jnp.float32(size) * jnp.sum(jnp.cosh(jnp.float32(v) @ x))
        H = hotk.HessianOperator(f, t * jnp.ones(40, jnp.float32))
        found = hotk.estimate.diagonal(H, jax.random.key(0), samples=12).value
        return jnp.sum(found) / jnp.float32(size)

    along = v.sum(1)
    bent = np.sum(v**2, 1) @ (along**2 * np.cosh(0.7 * along))
    close(jax.grad(jax.grad(scaled))(jnp.float32(0.7)), np.float32(bent), rtol=1e-2)
