"""Extreme eigenvalues, against dense algebra."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles
from tests.helpers import close


def symmetric(values, seed=0):
    n = len(values)
    q, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    return (q * np.asarray(values)) @ q.T


def operator(matrix, dtype=np.float64):
    a = jnp.asarray(matrix, dtype)
    return hotk.HessianOperator(lambda x: x @ a @ x / 2, jnp.zeros(len(a), dtype))


def extreme(values, k, which):
    values = np.sort(values)
    if which == "LA":
        return values[-k:]
    if which == "SA":
        return values[:k]
    if which == "LM":
        return np.sort(values[np.argsort(-np.abs(values))[:k]])
    upper = (k + 1) // 2
    return np.sort(np.append(values[: k - upper], values[-upper:]))


def check_pairs(A, pairs, slack):
    """Norms, orthogonality and residuals, computed in double precision."""
    V, values = (np.asarray(a, np.float64) for a in (pairs.vectors, pairs.values))
    np.testing.assert_allclose(V @ V.T, np.eye(len(V)), atol=slack)
    residuals = np.linalg.norm(V @ A - values[:, None] * V, axis=1)
    scale = np.abs(A).sum(axis=1).max()
    np.testing.assert_allclose(pairs.residuals, residuals, atol=slack * scale)
    true = np.linalg.eigvalsh(A)
    for value, residual in zip(values, residuals, strict=True):
        assert np.min(np.abs(true - value)) <= residual + slack * scale
    assert (np.diff(values) >= 0).all()


@pytest.mark.exhaustive
def test_there_are_no_ghosts_in_single_precision():
    """An outlier, of which plain Lanczos finds three copies."""
    n = 300
    Q = np.asarray(jax.random.normal(jax.random.key(0), (n, n))) / 17
    A = (Q + Q.T) / 2
    A[0, 0] += 5
    A = A.astype(np.float32)
    true = np.linalg.eigvalsh(A.astype(np.float64))
    pairs = operator(A, np.float32).eigh(3)
    assert pairs.values.dtype == np.float32
    np.testing.assert_allclose(pairs.values, true[-3:], rtol=1e-5)
    check_pairs(A.astype(np.float64), pairs, 1e-5)
    more = operator(A, np.float32).eigh(3, tol=1e-6, window=60)
    np.testing.assert_allclose(more.values, true[-3:], rtol=1e-6)
    assert (np.asarray(more.residuals) < 1e-4).all()
    assert more.converged.all()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("which", ["LA", "SA", "LM", "BE"])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_each_end_of_the_spectrum(which, k):
    values = np.random.default_rng(3).normal(size=40) * 4 - 1
    A = symmetric(values)
    pairs = operator(A).eigh(k, which, tol=1e-10)
    assert pairs.converged.all()
    np.testing.assert_allclose(pairs.values, extreme(values, k, which), atol=1e-8)
    check_pairs(A, pairs, 1e-8)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (3, 3), (7, 3)])
def test_all_eigenvalues_of_a_small_operator(n, k):
    values = np.linspace(-2.0, 3.0, n)
    A = symmetric(values)
    pairs = operator(A).eigh(k, tol=1e-12)
    np.testing.assert_allclose(pairs.values, values[-k:], atol=1e-12)
    check_pairs(A, pairs, 1e-11)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [5, 100])
@pytest.mark.parametrize("factor", [0.0, 1.0, -3.0])
def test_a_multiple_of_the_identity(factor, n, dtype):
    pairs = operator(factor * np.eye(n), dtype).eigh(4)
    assert np.isfinite(pairs.vectors).all()
    np.testing.assert_allclose(pairs.values, np.full(4, factor), rtol=1e-6)
    assert pairs.converged.all()
    check_pairs(factor * np.eye(n), pairs, 1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_repeated_eigenvalues_of_a_small_operator_are_all_found(dtype):
    values = np.array([-1.0, -1.0, -1.0, 0.0, 0.0, 2.0, 2.0, 5.0, 5.0, 5.0])
    A = symmetric(values)
    pairs = operator(A, dtype).eigh(10)
    np.testing.assert_allclose(pairs.values, values, atol=1e-5)
    top = operator(A, dtype).eigh(4)
    np.testing.assert_allclose(top.values, values[-4:], atol=1e-5)
    check_pairs(A, top, 1e-5)


@pytest.mark.exhaustive
def test_a_clustered_spectrum():
    values = np.append(np.linspace(0, 1, 190), 1.5 + 1e-3 * np.arange(10))
    A = symmetric(values)
    pairs = operator(A).eigh(4, tol=1e-8, max_restarts=500)
    assert pairs.converged.all()
    np.testing.assert_allclose(pairs.values, values[-4:], atol=1e-6)
    check_pairs(A, pairs, 1e-7)


@pytest.mark.exhaustive
def test_vectors_are_orthogonal_in_single_precision():
    values = np.logspace(-3, 2, 200)
    A = symmetric(values)
    pairs = operator(A, np.float32).eigh(20, tol=1e-6)
    V = np.asarray(pairs.vectors, np.float64)
    np.testing.assert_allclose(V @ V.T, np.eye(20), atol=1e-5)
    np.testing.assert_allclose(pairs.values, values[-20:], rtol=1e-4)


@pytest.mark.exhaustive
def test_the_default_tolerance_in_double_precision_is_tight():
    values = np.linspace(-1, 1, 100) ** 3
    pairs = operator(symmetric(values)).eigh(3)
    assert pairs.converged.all()
    np.testing.assert_allclose(pairs.values, values[-3:], atol=1e-12)
    assert (np.asarray(pairs.residuals) < 2e-8).all()


@pytest.mark.exhaustive
def test_a_tree_with_complex_leaves():
    d = {"r": np.array([1.0, -4.0, 2.0]), "z": np.array([3.0, 0.5])}

    def f(x):
        coupling = jnp.sum(x["r"]) * jnp.sum(x["z"].imag)
        parts = jnp.sum(d["r"] * x["r"] ** 2) + jnp.sum(
            d["z"] * (x["z"].real ** 2 + x["z"].imag ** 2)
        )
        return parts + coupling

    x = {"r": np.ones(3), "z": np.array([1 + 1j, 2 - 1j])}
    embedded = lambda a: f({"r": a[:3], "z": jax.lax.complex(a[3:5], a[5:])})
    matrix = np.asarray(jax.hessian(embedded)(jnp.zeros(7)))
    pairs = hotk.HessianOperator(f, x).eigh(3, "LM", tol=1e-12)
    true = np.linalg.eigvalsh(matrix)
    np.testing.assert_allclose(pairs.values, extreme(true, 3, "LM"), rtol=1e-10)
    z = np.asarray(pairs.vectors["z"])
    V = np.concatenate([np.asarray(pairs.vectors["r"]), z.real, z.imag], axis=1)
    np.testing.assert_allclose(V @ V.T, np.eye(3), atol=1e-10)
    np.testing.assert_allclose(V @ matrix, pairs.values[:, None] * V, atol=1e-9)


@pytest.mark.exhaustive
def test_leaves_of_two_precisions():
    x = {"a": jnp.ones(5, jnp.float32), "b": jnp.ones(4, jnp.bfloat16)}
    f = lambda x: jnp.sum(x["a"] ** 3) + jnp.sum(x["b"].astype(jnp.float32) ** 2)
    pairs = hotk.HessianOperator(f, x).eigh(9, "SA")
    np.testing.assert_allclose(pairs.values, [2.0] * 4 + [6.0] * 5, rtol=2e-2)
    assert pairs.vectors["b"].dtype == jnp.bfloat16


@pytest.mark.exhaustive
def test_under_jit_and_vmap_it_is_the_same():
    A = jnp.asarray(symmetric(np.linspace(-3, 2, 12)))
    top = lambda c: operator(c * A).eigh(2, tol=1e-10).values
    close(jax.jit(top)(2.0), np.array([4 - 10 / 11, 4.0]), rtol=1e-9)
    got = jax.vmap(top)(jnp.array([1.0, -1.0]))
    expected = np.array([[2 - 5 / 11, 2.0], [3 - 5 / 11, 3.0]])
    close(got, expected, rtol=1e-9)


@pytest.mark.exhaustive
def test_what_has_not_converged_says_so():
    values = np.linspace(0, 1, 400)
    A = symmetric(values)
    pairs = operator(A).eigh(3, tol=1e-10, window=6, max_restarts=2)
    assert pairs.restarts == 2
    assert not pairs.converged.any()
    check_pairs(A, pairs, 1e-9)
    assert "no" in str(pairs)


@pytest.mark.exhaustive
def test_the_number_of_products_is_that_of_the_evaluations():
    A = symmetric(np.linspace(0, 1, 50))
    pairs = operator(A).eigh(3, tol=1e-14, window=10, max_restarts=0)
    assert pairs.restarts == 0
    assert pairs.products == 10 + 3


@pytest.mark.exhaustive
def test_another_key_gives_the_same_values():
    A = symmetric(np.linspace(0, 1, 60) ** 2)
    H = operator(A)
    first = H.eigh(2, tol=1e-12, window=60)
    second = H.eigh(2, tol=1e-12, window=60, key=jax.random.key(7))
    np.testing.assert_allclose(first.values, second.values, rtol=1e-12)
    assert not np.allclose(first.residuals, second.residuals, rtol=1e-3, atol=0)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_never_a_success(bad):
    A = np.eye(30)
    A[0, 0] = bad
    pairs = operator(A).eigh(2)
    assert not pairs.converged.any()


@pytest.mark.usefixtures("as_user")
def test_what_makes_no_sense_is_refused():
    H = operator(np.eye(3))
    for k in (0, 4, -1):
        with pytest.raises(ValueError, match="between 1 and n = 3"):
            H.eigh(k)
    with pytest.raises(ValueError, match=r"not one of 'LA' \(the largest\)"):
        H.eigh(1, "largest")


@pytest.mark.exhaustive
def test_a_bar_changes_nothing(as_user, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    A = symmetric(np.linspace(-1, 2, 40))
    H = operator(A)
    shown = H.eigh(2, window=6, progress=True)
    assert "Lanczos" in capsys.readouterr().err
    np.testing.assert_allclose(shown.values, np.linspace(-1, 2, 40)[-2:], rtol=1e-7)
    assert shown.restarts > 1
    check_pairs(A, shown, 1e-7)
    with compiles() as count:
        operator(A).eigh(2, window=6, progress=True)
    assert count() == 0
    with pytest.raises(ValueError, match="no progress bar"):
        jax.jit(lambda H: H.eigh(2, progress=True).values)(H)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e18, 1e30])
def test_values_of_any_size(size, default_settings):
    a = jnp.asarray(np.linspace(1, 2, 30) * size, jnp.float32)
    pairs = hotk.linop.eigh(hotk.Diagonal(a), 2)
    assert pairs.converged.all()
    np.testing.assert_allclose(pairs.values, np.asarray(a)[-2:], rtol=1e-4)


# ----- Multiple eigenvalues, clusters, and what is said of them


def grid(sides):
    """Return the Laplacian of a grid with zero boundary, and its eigenvalues."""
    A, values = np.zeros((1, 1)), np.zeros(1)
    for n in sides:
        L = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
        A = np.kron(A, np.eye(n)) + np.kron(np.eye(len(A)), L)
        line = 2 - 2 * np.cos(np.pi * np.arange(1, n + 1) / (n + 1))
        values = (values[:, None] + line).ravel()
    return A, np.sort(values)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("which", ["LA", "SA", "BE"])
@pytest.mark.parametrize("sides", [(14, 14), (6, 6, 6)], ids=["square", "cube"])
def test_all_copies_on_a_grid_are_found(sides, which):
    A, values = grid(sides)
    pairs = operator(A).eigh(8, which)
    np.testing.assert_allclose(pairs.values, extreme(values, 8, which), atol=1e-9)
    assert pairs.complete
    assert pairs.converged.all()
    check_pairs(A, pairs, 1e-8)


SPECTRA = {
    "three copies": np.append([1.0, 1.0, 1.0], np.linspace(2, 9, 189)),
    "six copies each": np.append(np.repeat([1.0, 1.5], 6), np.linspace(2, 9, 180)),
    "a cluster": np.append(1 + 1e-10 * np.arange(5), np.linspace(2, 9, 187)),
    "a wider cluster": np.append(1 + 1e-4 * np.arange(5), np.linspace(2, 9, 187)),
    "a projection": np.append(np.zeros(100), np.ones(92)),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SPECTRA)
def test_all_copies_of_the_smallest_are_found(name, dtype):
    values = SPECTRA[name]
    pairs = operator(symmetric(values), dtype).eigh(7, "SA")
    atol = 1e-4 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(pairs.values, np.sort(values)[:7], atol=atol)
    assert pairs.complete


@pytest.mark.exhaustive
def test_under_vmap_and_over_batches_copies_are_found():
    values = SPECTRA["three copies"]
    A = jnp.asarray(symmetric(values))
    lowest = lambda c: operator(c * A).eigh(4, "SA").values
    got = jax.vmap(lowest)(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(got, np.outer([1, 2], np.sort(values)[:4]), rtol=1e-9)
    rows = symmetric(np.sqrt(values))  # rows @ rows.T has the values
    loss = lambda x, r: jnp.sum((r @ x) ** 2) / 2
    batches = [rows[:100], rows[100:]]
    H = hotk.HessianOperator.over(loss, jnp.zeros(192), batches, reduction="sum")
    found = H.eigh(4, "SA")
    np.testing.assert_allclose(found.values, np.sort(values)[:4], rtol=1e-6)
    assert found.complete


def test_a_search_that_is_cut_short_says_so():
    A = symmetric(SPECTRA["three copies"])
    whole = operator(A).eigh(3, "SA")
    assert "complete" in str(whole)
    short = operator(A).eigh(3, "SA", max_restarts=int(whole.restarts) - 1)
    assert not short.complete
    assert "copies may be missing" in str(short)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_missed_without_being_said(seed):
    """Fifty random spectra with copies, clusters and gaps from 1e-3 to 1e-10 each."""
    rng = np.random.default_rng(seed)
    for _ in range(50):
        n, k = int(rng.choice([60, 150, 300])), int(rng.choice([1, 4, 7]))
        which = str(rng.choice(["LA", "SA", "LM", "BE"]))
        dtype = rng.choice([np.float32, np.float64])
        values = random_spectrum(rng, n)
        A = np.diag(values) if rng.random() < 0.3 else symmetric(values, rng)
        key = jax.random.key(int(rng.integers(1 << 30)))
        pairs = operator(A, dtype).eigh(k, which, key=key)
        if pairs.complete and pairs.converged.all():
            found, true = np.asarray(pairs.values, float), extreme(values, k, which)
            if which == "LM":  # of two that differ in sign either may be there
                found, true = np.sort(np.abs(found)), np.sort(np.abs(true))
            atol = 4 * float(jnp.finfo(dtype).eps) ** 0.5 * np.abs(values).max()
            np.testing.assert_allclose(found, true, atol=atol)


def random_spectrum(rng, n):
    kind = rng.integers(5)
    if kind == 0:
        return np.repeat(rng.normal(size=n), rng.integers(1, 8, size=n))[:n]
    if kind == 1:
        gap = 10.0 ** -rng.integers(3, 11)
        sizes = rng.integers(2, 9, size=n)
        parts = zip(rng.normal(size=n), sizes, strict=True)
        return np.concatenate([v + gap * np.arange(m) for v, m in parts])[:n]
    if kind == 2:
        values, (low, high) = np.linspace(0, 10, n), rng.integers(2, 9, 2)
        values[:low], values[-high:] = values[0], values[-1]
        return values
    if kind == 3:
        return np.repeat(0.8 ** np.arange(n), rng.integers(1, 5))[:n]
    rank = int(rng.integers(1, n // 2))
    return np.append(np.full(rank, rng.choice([1.0, -1.0])), np.zeros(n - rank))
