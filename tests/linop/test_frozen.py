"""What an operator holds: the function as it was, traced once, moved by `at`."""

import itertools
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


pytestmark = pytest.mark.usefixtures("as_user")

X, V = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.0, -2.0])


class Runs:
    """Counts where hotk cannot look, so that a function with it is opaque."""

    def __init__(self):
        self.tick = itertools.count()
        self.handle = sys.stdout

    def __call__(self):
        next(self.tick)

    def so_far(self):
        return int(repr(self.tick).strip("count()"))


def opaque(weights):
    runs = Runs()

    def f(x, c=1.0):
        runs()
        return c * jnp.sum(weights * x**3)

    assert hotk.explain(f).opaque
    return f, runs


@pytest.mark.exhaustive
def test_an_opaque_function_is_traced_once_for_all_that_is_asked():
    weights = jnp.array([1.0, 2.0, 3.0])
    f, runs = opaque(weights)
    H = hotk.HessianOperator(f, X, 2.0)
    once = runs.so_far()
    assert once == 1
    diagonal = 12 * np.asarray(weights) * X
    for i in range(5):
        close(H @ (V + i), diagonal * (V + i))
        close(H.at(X + i) @ V, 12 * np.asarray(weights) * (X + i) * V)
    close(H.at(X, 5.0) @ V, 2.5 * diagonal * V)
    close(H.matrix(), np.diag(diagonal))
    close(H.diagonal(), diagonal)
    close(H.solve(V, tol=1e-12).x, V / diagonal)
    close(H.eigh(3).values, np.sort(diagonal))
    close(H.value, np.sum(2 * np.asarray(weights) * X**3))
    assert runs.so_far() == once


def test_an_opaque_function_of_static_things():
    f, runs = opaque(1.0)
    x = {"a": X, "n": 3, "name": "cubes"}
    H = hotk.HessianOperator(lambda x, c: f(x["a"], c) * x["n"], x, 2.0)
    close(H.matrix(), np.diag(36 * X))
    close(H.at({**x, "n": 4}).matrix(), np.diag(48 * X))
    with pytest.raises(hotk.StructureError):
        H.at({**x, "name": "squares"})
    assert runs.so_far() == 1


def test_derivative_rules_survive_in_an_opaque_function():
    @jax.custom_jvp
    def safe_root(x):
        return jnp.sqrt(x)

    safe_root.defjvp(lambda p, t: (safe_root(p[0]), 7.0 * p[0] * t[0]))
    f, _ = opaque(1.0)
    H = hotk.HessianOperator(lambda x: f(x) * 0 + jnp.sum(safe_root(x)), X * 0)
    close(H.matrix(), 7.0 * np.eye(3))


def test_what_was_captured_may_change_afterwards():
    factors, data = [jnp.array([1.0, 2.0, 3.0])], np.array([1.0, 1.0, 1.0])
    settings = {"power": 3}

    def f(x):
        return jnp.sum(factors[0] * data * x ** settings["power"])

    H = hotk.HessianOperator(f, X)
    expected = np.diag(6 * np.array([1.0, 2.0, 3.0]) * X)
    close(H.matrix(), expected)
    factors[0] = jnp.zeros(3)
    factors.append(None)
    data[:] = 100.0
    settings["power"] = 5
    close(H.matrix(), expected)
    close(H.at(X).matrix(), expected)
    close(H @ V, expected @ V)


def test_the_point_and_the_arguments_may_change_afterwards():
    x, c = X.copy(), np.array([1.0, 2.0, 3.0])
    H = hotk.HessianOperator(lambda x, c: jnp.sum(c * x**3), x, c)
    expected = np.diag(6 * c * x)
    x[:], c[:] = 100.0, 100.0
    close(H.matrix(), expected)


NEEDS = {
    "a count": (lambda x, n: sum(x[i] ** 3 for i in range(n)), 2, 3),
    "a flag": (lambda x, n: jnp.sum(x**3) if n else jnp.sum(x**2), True, False),
    "a slice": (lambda x, n: jnp.sum(x[:n] ** 3), 2, 1),
    "an array": (
        lambda x, n: jnp.sum(x ** (3 if n > 1 else 2)),
        np.array(2.0),
        np.array(0.5),
    ),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("f", "n", "other"), NEEDS.values(), ids=NEEDS)
def test_python_may_ask_for_the_value_of_an_argument(f, n, other):
    H = hotk.HessianOperator(f, X, n)
    expected = np.asarray(jax.hessian(lambda x: f(x, n))(X))
    close(H.matrix(), expected)
    close(H @ V, expected @ V)
    close(H.diagonal(), np.diag(expected))
    close(H.at(2 * X, n) @ V, np.asarray(jax.hessian(lambda x: f(x, n))(2 * X)) @ V)
    with pytest.raises(hotk.StructureError):
        H.at(X, other)


def test_python_may_ask_for_the_value_of_a_captured_array():
    c = jnp.array([1.0, -2.0, 3.0])
    f = lambda x: jnp.sum(c * x**3) if jnp.sum(c) > 0 else jnp.sum(x)
    H = hotk.HessianOperator(f, X)
    diagonal = 6 * np.asarray(c) * X
    close(H.matrix(), np.diag(diagonal))
    close(hotk.linop.minres(H, V, tol=1e-13).x, V / diagonal)


def test_python_may_not_ask_for_the_point():
    with pytest.raises(hotk.ModeError, match="needs the value of the point"):
        hotk.HessianOperator(lambda x: jnp.sum(x) if x[0] > 0 else x[1], X)


def test_at_another_point_it_is_the_operator_made_there():
    f = lambda x, c: c["a"] * jnp.sum(jnp.sin(x)) ** 2
    H = hotk.HessianOperator(f, X, {"a": 2.0})
    hessian = lambda x, c: np.asarray(jax.hessian(f)(x, {"a": c}))
    close(H.at(V).matrix(), hessian(V, 2.0))
    close(H.at(V, {"a": -3.0}).matrix(), hessian(V, -3.0))
    close(H.at(jnp.asarray(V)).value, np.asarray(f(V, {"a": 2.0})))
    close(H.matrix(), hessian(X, 2.0))


def test_at_casts_numpy_and_python_as_products_do():
    f = lambda x: jnp.sum(x["a"] ** 3) * x["b"]
    x = {"a": jnp.ones(2, jnp.float32), "b": jnp.array(2.0, jnp.float32)}
    H = hotk.HessianOperator(f, x).at({"a": np.array([1.0, 2.0]), "b": 3})
    assert H.x["a"].dtype == H.x["b"].dtype == jnp.float32
    close(H.block("a", "a"), np.diag([18.0, 36.0]).astype("f"))


ELSEWHERE = {
    "structure": {"a": X, "n": 3},
    "more": {"a": X, "n": 3, "act": jnp.sin, "b": X},
    "shape": {"a": X[:2], "n": 3, "act": jnp.sin},
    "dtype": {"a": jnp.ones(3, jnp.float32), "n": 3, "act": jnp.sin},
    "complex": {"a": 1j * X, "n": 3, "act": jnp.sin},
    "rounded": {"a": X, "n": 3.5, "act": jnp.sin},
    "another function": {"a": X, "n": 3, "act": jnp.cos},
    "text": {"a": X, "n": 3, "act": "sin"},
}


@pytest.mark.parametrize("x", ELSEWHERE.values(), ids=ELSEWHERE)
def test_at_refuses_a_point_of_another_kind(x):
    f = lambda x: jnp.sum(x["act"](x["a"])) * x["n"]
    H = hotk.HessianOperator(f, {"a": X, "n": 3, "act": jnp.sin})
    with pytest.raises(hotk.StructureError) as error:
        H.at(x)
    expected, got = str(error.value).split("expected:")[1].split("got:")
    assert expected.strip() != got.split("\n")[0].strip()


def test_at_accepts_the_same_static_things_and_their_absence():
    scale = jnp.array([1.0, 2.0, 3.0])
    act = lambda a: scale * jnp.sin(a)
    f = lambda x: jnp.sum(x["act"](x["a"])) * x["n"]
    H = hotk.HessianOperator(f, {"a": X, "n": 3, "act": act, "on": True})
    expected = -2 * np.asarray(scale) * np.sin(V)
    close(H.at({"a": V, "n": 2, "act": act, "on": True}).diagonal()["a"], expected)
    close(H.at({"a": V, "n": 2, "act": None, "on": np.True_}).diagonal()["a"], expected)


def test_at_takes_a_model_with_a_method_among_its_leaves():
    layer = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    x = {"w": X, "call": layer.__call__}
    f = lambda x: jnp.sum(x["w"] ** 3) * jnp.sum(x["call"](jnp.ones(2)))
    H = hotk.HessianOperator(f, x)
    factor = float(jnp.sum(layer(jnp.ones(2))))
    close(H.block("w", "w"), np.diag(6 * factor * X))
    close(H.at({**x, "w": V}).block("w", "w"), np.diag(6 * factor * V))
