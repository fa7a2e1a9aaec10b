"""Promise 2 beside losses and least squares: a number that changes compiles nothing.

The value of a sum of squares has the program of its rows in it, and an operator of a
model is of a class of the library: each of the two once hid the number from sharing.
"""

import json
import pickle
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk._core import canonical_form
from hotk.curvature import (
    GaussNewton,
    LeastSquares,
    SoftmaxCrossEntropy,
    SquaredError,
)
from tests.counting import compiles
from tests.helpers import close


pytestmark = pytest.mark.usefixtures("as_user")

T = np.linspace(0.0, 1.0, 5)
Y = np.array([1.0, 0.8, 0.7, 0.4, 0.5])
P = jnp.array([1.0, -0.5])
INPUTS = np.random.default_rng(0).normal(size=(6, 2))
LABELS = np.array([0, 2, 1, 1, 0, 2])
W = jnp.array([[0.3, -0.2, 0.5], [0.1, 0.4, -0.6]])


def jacobian(c):
    """Return the Jacobian of p[0] exp(c p[1] t), by hand."""
    a, b = np.asarray(P)
    return np.stack([np.exp(c * b * T), a * c * T * np.exp(c * b * T)], axis=1)


def gauss_newton(c):
    return jacobian(c).T @ jacobian(c)


def fisher(c):
    """Return the mean over the examples of J^T (diag p - p p^T) J, by hand."""
    z = np.tanh(c * INPUTS @ np.asarray(W))
    p = np.exp(z) / np.sum(np.exp(z), axis=1, keepdims=True)
    total = np.zeros((6, 6))
    for row, slope, q in zip(INPUTS, c * (1 - z**2), p, strict=True):
        # z_k depends on the W_ik, of which all W_ij follow each other in a row
        j = np.concatenate([x * np.diag(slope) for x in row], axis=1)
        total += j.T @ (np.diag(q) - np.outer(q, q)) @ j
    return total / len(INPUTS)


def model(c):
    return lambda p: p[0] * jnp.exp(c * p[1] * T)


def network(c):
    return lambda w, inputs: jnp.tanh(c * inputs @ w)


def least_squares(c):
    return LeastSquares(lambda p: p[0] * jnp.exp(c * p[1] * T) - Y)


def with_examples(c):
    rows = (jnp.asarray(T), jnp.asarray(Y))
    return LeastSquares(lambda p, e: p[0] * jnp.exp(c * p[1] * e[0]) - e[1], rows)


def of_a_loss(c):
    # half the sum, as that of least squares: the other one is a mean over examples
    return GaussNewton(model(c), lambda z: jnp.sum((z - Y) ** 2) / 2)


def classes(c):
    loss = SoftmaxCrossEntropy(jnp.asarray(LABELS))
    return hotk.FisherOperator(network(c), loss, W, jnp.asarray(INPUTS))


def kfac(c):
    loss = SoftmaxCrossEntropy(jnp.asarray(LABELS))
    return hotk.KFACOperator(network(c), loss, W, jnp.asarray(INPUTS))


def one_layer(c):
    """Return the K-FAC matrix of one layer, kron of the factors, by hand."""
    z = np.tanh(c * INPUTS @ np.asarray(W))
    p = np.exp(z) / np.sum(np.exp(z), axis=1, keepdims=True)
    slopes = c * (1 - z**2)
    outputs = [
        np.diag(s) @ (np.diag(q) - np.outer(q, q)) @ np.diag(s)
        for s, q in zip(slopes, p, strict=True)
    ]
    return np.kron(INPUTS.T @ INPUTS / len(INPUTS), np.mean(outputs, axis=0))


SPARSE = jnp.linspace(0.1, 1.0, 12)


def chain(c):
    """Return the Gauss-Newton matrix of c (p[i + 1] - p[i]^2), by hand."""
    p = np.asarray(SPARSE)
    j = c * (np.eye(12)[1:] - 2 * p[:-1, None] * np.eye(12)[:-1])
    return j.T @ j


def over_batches(c):
    """Return the Gauss-Newton matrix of residuals in two batches, of three and two."""
    batches = [(jnp.asarray(T[i]), jnp.asarray(Y[i])) for i in (slice(3), slice(3, 5))]
    of_batch = lambda p, e: p[0] * jnp.exp(c * p[1] * e[0])
    loss = lambda z, e: jnp.sum((z - e[1]) ** 2) / 2
    over = hotk.GGNOperator.over
    return over(of_batch, loss, P, batches, reduction="sum").matrix()


def penalty(c):
    """Return the Hessian of a mean over batches with a penalty."""
    data = np.arange(10.0).reshape(5, 2)
    loss = lambda w, rows: jnp.mean((rows @ w) ** 2) / 2 + c * jnp.sum(w**2) / 2
    return hotk.HessianOperator.over(loss, P, [data[:3], data[3:]]).matrix()


def ridge(c):
    data = np.arange(10.0).reshape(5, 2)
    return data.T @ data / 5 + c * np.eye(2)


CASES: dict[str, tuple[Any, Any]] = {
    "GGN over batches": (over_batches, gauss_newton),
    "over batches": (penalty, ridge),
    "hvp": (lambda c: hotk.hvp(least_squares(c), P, P), lambda c: gauss_newton(c) @ P),
    "hessian": (lambda c: hotk.hessian(with_examples(c), P), gauss_newton),
    "of a loss": (lambda c: hotk.hessian(of_a_loss(c), P), gauss_newton),
    "matrix": (
        lambda c: hotk.HessianOperator(least_squares(c), P).matrix(),
        gauss_newton,
    ),
    "GGN": (
        lambda c: hotk.GGNOperator(
            model(c), lambda z: jnp.sum((z - Y) ** 2) / 2, P
        ).matrix(),
        gauss_newton,
    ),
    "Fisher": (lambda c: classes(c).matrix(), fisher),
    "K-FAC": (lambda c: kfac(c).matrix(), one_layer),
    "sparse": (
        lambda c: hotk.sparse.sparse_hessian(
            LeastSquares(lambda p: c * (p[1:] - p[:-1] ** 2)), SPARSE
        ).todense(),
        chain,
    ),
}


NUMBERS = (0.5, 1.5, -0.75, 2.0, 1.25)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", CASES)
def test_a_number_that_changes_counts(name):
    compute, by_hand = CASES[name]
    for c in NUMBERS:
        close(compute(c), by_hand(c), rtol=2e-5, atol=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("solver", ["auto", "cg"])
def test_a_fit_of_other_numbers_is_the_fit_of_these(solver):
    for c, count in ((0.5, 3), (1.5, 3), (-0.75, 3), (2.0, 2), (2.0, 4)):
        first = np.arange(5) < count
        residual = lambda p, e, c=c, count=count: (
            c * p[0] + jnp.where(e[2] < count, p[1] * e[0], 0.0) - e[1]
        )
        rows = (jnp.asarray(T), jnp.asarray(Y), jnp.arange(5))
        method = hotk.optim.levenberg_marquardt(linear_solver=solver)
        found = hotk.optim.minimize(LeastSquares(residual, rows), P, method, tol=1e-9)
        design = np.stack([np.full(5, c), np.where(first, T, 0.0)], axis=1)
        close(found.x, np.linalg.lstsq(design, Y)[0], rtol=1e-6)


def test_functions_that_differ_in_a_number_have_one_form_and_in_an_index_two():
    def form(c, count):
        few = lambda p: (p > 0).astype(int) + count < 4
        residual = lambda p: c * jnp.where(few(p), p, 0.0)
        closed = jax.make_jaxpr(LeastSquares(residual))(P)
        return canonical_form(closed, 0, lambda equation: None)  # there is one rule

    one, number, index = form(0.375, 3), form(1.5, 3), form(0.375, 2)
    assert one.key == number.key != index.key
    # It stands in the value and in the rows.
    assert [n.value for n in one.numbers].count(0.375) > 1
    assert [n.value for n in number.numbers].count(1.5) > 1


def fit(c):
    method = hotk.optim.levenberg_marquardt()
    return hotk.optim.minimize(least_squares(c), P, method, xtol=1e-6).x


def count():
    """Print, for each case, how many programs are compiled for each of the numbers."""
    counts = {}
    for name, compute in {"fit": fit, **{n: c for n, (c, _) in CASES.items()}}.items():
        hotk.clear_cache()
        counts[name] = []
        for c in NUMBERS:
            with compiles() as every:
                compute(c)
            # Sparse ones evaluate what does not depend on the point, at each trace.
            counted = hotk.cache_info().compiles
            counts[name].append(counted if name == "sparse" else every())
    print(json.dumps(counts))


@pytest.mark.exhaustive
def test_a_number_that_changes_compiles_nothing():
    # In a process without the type checker: rules of derivatives that it has wrapped
    # are compared with no others.
    run = "from tests.promises import test_numbers_in_curvature as t; t.count()"
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    # The second shows which numbers differ; from the third on nothing is compiled.
    sparse = counts.pop("sparse")
    assert {name: sum(c[2:]) for name, c in counts.items()} == dict.fromkeys(counts, 0)
    assert sparse[-1] == sparse[-2]


def named(c, p):
    return p[0] * jnp.exp(c * p[1] * T)


def test_an_operator_of_named_functions_is_pickled_at_any_number():
    loss = SquaredError(jnp.asarray(Y))
    for c in (0.5, 1.5, -0.75):
        G = hotk.GGNOperator(jax.tree_util.Partial(named, c), loss, P)
        again = pickle.loads(pickle.dumps(G))
        assert again.positive_semidefinite
        close(again.matrix(), gauss_newton(c) / len(Y), rtol=2e-5, atol=1e-6)
