"""Estimates against what is exact, and counts: no times, so any machine will do."""

import itertools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

import hotk
from hotk.estimate import spectrum, trace
from hotk.interop import scipy_problem
from tests.benchmarks.table import Row, run
from tests.counting import compiles
from tests.estimate.digits import KEY, coverage, digits, distance
from tests.estimate.operators import hessian, symmetric, wide


def traces_of_a_steep_spectrum() -> Iterator[Row]:
    """Compare two estimates of a trace at equal products."""
    values = 0.7 ** np.arange(60)
    operator = hessian(symmetric(values))

    def error(method: str, samples: int) -> tuple[float, int]:
        one = lambda key: trace(operator, key, samples=samples, method=method)
        found = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(KEY, 200))
        off = np.asarray(found.value, float) - np.sum(values)
        return float(np.sqrt(np.mean(off**2))), int(found.products[0])

    (clever, products), (plain, same) = error("xtrace", 16), error("hutchinson", 32)
    assert products == same
    note = f"{products} products each, 200 seeds; {clever:.1e} and {plain:.1e}"
    yield Row(
        "XTrace / Hutchinson, error, spectrum 0.7^i", clever / plain, 0.1, note=note
    )


def spectrum_of_a_digits_network() -> Iterator[Row]:
    """Compare the estimated density with the exact spectrum."""
    operator, exact = digits()
    found = spectrum(operator, KEY, samples=10, steps=20)
    far = distance(wide(found.nodes), wide(found.weights), exact)
    note = f"n={operator.size}, {found.products} products"
    yield Row("spectrum of digits, Wasserstein / range", far, 0.01, note=note)
    covered, _, density = coverage()
    missed = 1 - np.mean(covered[:, density > 1e-3 * np.max(density)])
    note = "two errors, 50 probes, 100 seeds"
    yield Row("the same, places its bars miss", float(missed), 0.1, note=note)


def rosenbrock_by_scipy() -> Iterator[Row]:
    """Minimize with four methods of SciPy, and count compiles."""
    options = {
        "trust-ncg": {"gtol": 1e-9},
        "Newton-CG": {"xtol": 1e-12},
        "trust-krylov": {"gtol": 1e-7},
        "trust-exact": {"gtol": 1e-9},
    }
    f = lambda x: jnp.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)
    with jax.enable_x64(True):
        for method, choices in options.items():
            hotk.clear_cache()
            start = np.full(50, -1.2)
            jnp.asarray(start)  # what JAX compiles for the first array is not counted
            with compiles() as count:
                result = scipy_problem(f, start).minimize(method, **choices)
                made = count()
            far = float(np.max(np.abs(result.x - 1)))
            note = f"{result.nit} iterations"
            yield Row(f"SciPy's {method}, Rosenbrock-50, error", far, 1e-8, note=note)
            yield Row("the same, compiles for two kinds of callback", made, 2)


def ragged_loader() -> Iterator[Row]:
    """Compare ten batches, the last one short, with all rows at once."""
    rows = np.random.default_rng(0).normal(size=(9 * 32 + 5, 20)).astype(np.float32)
    loss = lambda w, rows: jnp.mean(jnp.tanh(rows @ w) ** 2)
    w = jnp.ones(20, jnp.float32) / 10
    full = hotk.HessianOperator(loss, w, jnp.asarray(rows))
    batches = [rows[i : i + 32] for i in range(0, len(rows), 32)]
    equal = hotk.HessianOperator.over(loss, w, batches[:-1])
    equal @ w
    with compiles() as count:
        ragged = hotk.HessianOperator.over(loss, w, batches)
        product = ragged @ w
        made = count()
    exact = np.asarray(full @ w)
    far = float(np.max(np.abs(np.asarray(product) - exact)) / np.max(np.abs(exact)))
    note = f"{len(batches)} batches"
    yield Row("ragged loader / all rows, error", far, 1e-6, note=note)
    yield Row("the same, compiles for the short batch", made, 0)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    parts = (
        traces_of_a_steep_spectrum,
        spectrum_of_a_digits_network,
        rosenbrock_by_scipy,
        ragged_loader,
    )
    yield from itertools.chain.from_iterable(part() for part in parts)


if __name__ == "__main__":
    run(str(__doc__), measure)
