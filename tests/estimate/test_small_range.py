"""Estimates of operators whose range has fewer dimensions than there are samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hotk
from hotk.estimate import diagonal, trace
from tests.estimate.operators import Dense
from tests.helpers import close


N, COUNT = 40, 64
KEYS = jax.random.split(jax.random.key(1), COUNT)
RNG = np.random.default_rng(0)
# Added to an operator of small range, it leaves that.
FULL = (lambda a: a @ a.T / N)(RNG.normal(size=(N, N)))
BENT = (lambda a: (a + a.T) / 8)(RNG.normal(size=(N, N)))
STARTS = {
    "zero": np.zeros((N, N)),
    "five entries": np.diag(np.arange(N) + 1.0) * (np.arange(N) < 5),
    "rank five": (lambda a: a @ a.T / 9)(RNG.normal(size=(N, 5))),
}
ESTIMATES = {
    "xtrace": lambda A, key: trace(A, key, samples=8).value,
    "hutch++": lambda A, key: trace(A, key, samples=8, method="hutch++").value,
    # the first five alone are seen by signs that are dependent
    "xdiag": lambda A, key: ravel_pytree(diagonal(A, key, samples=12).value)[0],
}
EXACT = {"xtrace": np.trace, "hutch++": np.trace, "xdiag": np.diag}


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ESTIMATES)
@pytest.mark.parametrize("start", STARTS)
def test_derivatives_that_leave_the_range_have_no_bias(start, method):
    estimate = ESTIMATES[method]

    def along(t, key):
        return estimate(Dense(STARTS[start] + t * FULL + t**2 * BENT, True), key)

    def derivatives(key):
        first = jax.jacfwd(along)
        return first(0.0, key), jax.jacrev(along)(0.0, key), jax.jacfwd(first)(0.0, key)

    # Compiled as a whole, XLA may wait without end for threads of a CPU with two cores.
    first, reverse, second = jax.vmap(derivatives)(KEYS)
    close(reverse, first, rtol=1e-8, atol=1e-8)
    for found, exact in ((first, FULL), (second, 2 * BENT)):
        exact = EXACT[method](exact)
        error = np.std(found, axis=0) / np.sqrt(COUNT)
        away = (np.mean(found, axis=0) - exact) / np.maximum(error, 1e-12)
        assert np.sqrt(np.mean(away**2)) < (4.5 if away.ndim == 0 else 1.6)


@pytest.mark.parametrize("entries", [np.arange(1.0, 6), np.ones(5)])
def test_an_error_is_no_zero_where_signs_are_dependent(entries):
    """Six vectors of five signs may be dependent and span no five dimensions."""
    whole = np.zeros(N)
    whole[:5] = entries
    D = hotk.Diagonal(jnp.asarray(whole))
    found = jax.vmap(lambda key: diagonal(D, key, samples=6))(KEYS)
    wrong = np.abs(np.asarray(found.value) - whole).max(axis=1) > 1e-9
    error = np.asarray(found.error).max(axis=1)
    assert wrong.any()
    assert (error[wrong] > 1e-9).sum() + np.isnan(error[wrong]).sum() == wrong.sum()
    assert np.isnan(error[wrong]).any()
    assert not np.isnan(error[~wrong]).any()
