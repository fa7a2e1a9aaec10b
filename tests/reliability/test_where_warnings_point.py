"""Warnings point at the line of the user, whatever stands between."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk import interop, statistics


X = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 1.0], [2.0, 2.0], [-1.0, 1.0]])
Y = np.array([1.0, 2.0, -1.0, 0.5, 3.0])
AWAY = jnp.array([9.0, -9.0])
NEAR = jnp.asarray(np.linalg.lstsq(X, Y)[0]) + 0.05
LOW = np.ones(2, np.float32)
square = lambda x: x @ x
losses = lambda w, x, y: (x @ w - y) ** 2 / 2
total = lambda w: jnp.sum(losses(w, X, Y))
CALLS = {
    "scipy_problem": lambda: interop.scipy_problem(square, LOW),
    "scipy_residuals": lambda: interop.scipy_residuals(lambda x: x, LOW),
    "ipopt_problem": lambda: interop.ipopt_problem(square, LOW),
    "sandwich": lambda: statistics.sandwich(losses, AWAY, X, Y),
    "leave_one_out": lambda: statistics.leave_one_out(losses, AWAY, X, Y),
    "laplace_approximation": lambda: hotk.laplace_approximation(total, AWAY),
    "profile_intervals": lambda: statistics.profile_intervals(total, NEAR, level=0.5),
    "fit": lambda: statistics.fit(
        lambda w, x: jnp.exp(x * w[0]) + w[1], X[:, 0], Y, AWAY / 9, max_steps=1
    ),
}


@pytest.mark.parametrize("name", list(CALLS))
def test_a_warning_names_the_file_of_the_caller(name):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        CALLS[name]()
    assert heard
    assert {each.filename for each in heard} == {__file__}
