"""No public operator multiplies by a number that is broadcast to a matrix.

XLA on CPUs reads beyond such an operand where it fuses a product with a sum. Zeros for
the leaves that are not differentiated are of that kind.
"""

import os
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import lowered
from tests.operands import known_operands
from tests.optim.optimizers import OPTIMIZERS
from tests.test_api import OPERATORS


def draw(seed, *shape):
    array = np.random.default_rng(seed).normal(size=shape) / 2
    return jnp.asarray(array, jnp.float32)


X, LABELS = draw(0, 20, 6), jnp.arange(20) % 3
# More numbers than are pushed at once.
P = {"a": (draw(1, 6, 16), draw(2, 16)), "b": (draw(3, 16, 3), draw(4, 3))}
V = jax.tree.map(jnp.cos, P)
MASKS = {"a": (False, np.arange(16) < 5), "b": (False, True)}
LOSS = hotk.curvature.SoftmaxCrossEntropy(LABELS)
KEY = jax.random.key(0)


def net(p, rows):
    (w, b), (u, c) = p["a"], p["b"]
    return jnp.tanh(rows @ w + b[None]) @ u + c[None]


def model(p):
    return net(p, X)


def loss(p):
    return LOSS(model(p))


def one(row):
    """A number of a row, with two layers."""
    return jnp.sum(net(P, row[None]) ** 2)


def field(row):
    return jnp.tanh(net(P, row[None])[0] @ P["b"][0][:6].T)


def along(t):
    return loss(jax.tree.map(lambda p, v: p + t * v, P, V))


def two(a, b):
    return loss({"a": a, "b": b})


def prefix(name):
    return name.removeprefix("value_and_").removeprefix("value_gradient_and_")


T = jnp.float32(0.3)
CALLS = {
    "jvp": lambda op: op(model, P, V),
    "vjp": lambda op: op(model, P, draw(5, 20, 3)),
    "gradient": lambda op: op(loss, P),
    "jacobian": lambda op: (op(model, P), op(model, P, mode=hotk.Forward())),
    "derivative": lambda op: op(along, T),
    "divergence": lambda op: op(field, X[0]),
    "biharmonic": lambda op: op(one, X[0]),
    "laplacian": lambda op: op(one, X[0]),
    "derivative_tensor": lambda op: op(one, X[0], order=3),
    "derivatives": lambda op: op(loss, P, V, order=3),
    "taylor": lambda op: op(loss, P, V, order=3),
    "partial": lambda op: op(one, X[0], (2, 1, 0, 0, 0, 0)),
    "tvp": lambda op: op(loss, P, V, V, V),
    "cross_hessian": lambda op: op(two, P["a"], P["b"]),
    "cross_hvp": lambda op: op(two, P["a"], P["b"], V["b"]),
    "hessian": lambda op: (op(loss, P), op(loss, P, mode=hotk.FORWARD_OVER_FORWARD)),
    "hessian_diagonal": lambda op: op(loss, P),
    "hvp": lambda op: (op(loss, P, V), op(loss, P["b"], V["b"])),
    "quadratic_form": lambda op: op(loss, P, V),
    "second_derivative": lambda op: op(along, T),
    "sparse_ggn": lambda op: op(model, LOSS, P),
    "sparse_hessian": lambda op: op(loss, P),
    "sparse_jacobian": lambda op: op(model, P),
    "sparse_lagrangian": lambda op: op(
        lambda p: (loss(p), model(p)), P, (1.0, draw(6, 20, 3))
    ),
}
CALLS["hvp"] = lambda op: op(loss, P, V)
BY_NAME = {
    name: partial(CALLS[prefix(name)], operator) for name, operator in OPERATORS.items()
}

MADE = {
    "HessianOperator": lambda: hotk.HessianOperator(loss, P),
    "GGNOperator": lambda: hotk.GGNOperator(model, LOSS, P),
    "FisherOperator": lambda: hotk.FisherOperator(model, LOSS, P),
    "EmpiricalFisherOperator": lambda: hotk.EmpiricalFisherOperator(model, LOSS, P),
    "SampledFisherOperator": lambda: hotk.SampledFisherOperator(
        model, LOSS, P, key=KEY
    ),
    "GaussNewton": lambda: hotk.HessianOperator(
        hotk.curvature.GaussNewton(model, LOSS), P
    ),
    "a sum": lambda: (
        hotk.HessianOperator(loss, P) + 2.0 * hotk.GGNOperator(model, LOSS, P)
    ),
}
METHODS = {
    "matrix": lambda A: A.matrix(),
    "columns": lambda A: A.block("", "b/1"),
    "block": lambda A: (A.block("b/1", "b/1"), A.block("a/0", "b/1")),
    "diagonal": lambda A: A.diagonal(),
    "restrict": lambda A: (A.restrict(MASKS).matrix(), A.restrict(MASKS) @ draw(5, 8)),
    "restrict to leaves": lambda A: A.restrict("b").matrix(),
    "many": lambda A: A.many(jax.tree.map(lambda v: jnp.stack([v, 2 * v]), V)),
    "solve": lambda A: (A + 9.0 * hotk.linop.Identity()).solve(V),
    "cholesky": lambda A: (A + 9.0 * hotk.linop.Identity()).cholesky(),
    "eigh": lambda A: A.eigh(2),
    "trace": lambda A: hotk.estimate.trace(A, KEY, samples=3),
}
BY_NAME |= {
    f"{name}, {method}": lambda make=make, call=call: call(make())
    for name, make in MADE.items()
    for method, call in METHODS.items()
}


def steps_of(name):
    transform = OPTIMIZERS[name].make()
    state = transform.init(P)
    return transform.update(hotk.gradient(loss, P), state, P, value_fn=loss)


BY_NAME |= {f"optim.{name}": partial(steps_of, name) for name in OPTIMIZERS}


def of_one_number(w, e):
    return jnp.tanh(jnp.tanh(e @ w["w"]) @ w["v"])


W = {"w": draw(6, 6, 4), "v": draw(7, 4)}
EACH = hotk.curvature.PerExample(of_one_number, X)
SIGNS = jnp.float32(LABELS > 0)


def rows_of(targets):
    f = hotk.curvature.GaussNewton(EACH, targets)
    return jax.jit(lambda w: hotk.curvature.rows_program(f, w).compute()[:2])(W)


BY_NAME |= {
    "PerExample.rows": lambda: jax.jit(lambda w: EACH.rows(w))(W),
    "rows of squares": lambda: rows_of(hotk.curvature.SquaredError(SIGNS)),
    "rows of numbers": lambda: rows_of(hotk.curvature.SigmoidCrossEntropy(SIGNS)),
    "KFACOperator": lambda: hotk.KFACOperator(net, LOSS, P, X).inverse(damping=0.1) @ V,
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", BY_NAME)
def test_no_product_with_a_broadcast_number(name):
    with lowered() as programs:
        BY_NAME[name]()
    found = {line for program in programs for line in known_operands(program)}
    bad = [line for line in found if line.startswith("one number")]
    assert not bad, bad


def test_such_a_product_is_found():
    zeros = lambda: jnp.zeros((6, 16), jnp.float32)
    broadcast = lambda s: jnp.where(s > 0, s * zeros(), 1)
    with lowered() as programs:
        jax.jit(lambda a, s: (a @ broadcast(s)).sum())(X, T)
        jax.jit(lambda a: jax.lax.scan(lambda c, r: (c, r @ c), zeros() + 1, a))(X)
    lines = [line for program in programs for line in known_operands(program)]
    assert [line.partition(",")[0] for line in lines] == ["one number: float32[6"] * 2


CODE = """
import hotk, jax, jax.numpy as jnp, numpy as np
X = jax.random.uniform(jax.random.key(1), (100, 32))
loss = hotk.curvature.SoftmaxCrossEntropy(jnp.arange(100) % 10)
model = lambda p: X @ p["W"] + p["b"]
p = {"W": jnp.zeros((32, 10)), "b": jnp.zeros(10)}
# p (1 - p) of ten equal probabilities, times the inputs
rows = np.append(np.asarray(X, float), np.ones((100, 1)), axis=1)
want = np.kron(rows.T @ rows / 100, np.eye(10) / 10 - np.full((10, 10), 0.01))
G = hotk.GGNOperator(model, loss, p)
H = hotk.HessianOperator(hotk.curvature.GaussNewton(model, loss), p)
masks = {"W": np.zeros((32, 10), bool), "b": np.ones(10, bool)}
found = {
    "matrix": (G.matrix(), want),
    "of a function": (H.matrix(), want),
    "hessian": (hotk.hessian(H.f, p)["b"]["b"], want[320:, 320:]),
    "b, b": (G.block("b", "b"), want[320:, 320:]),
    "W, b": (G.block("W", "b"), want[:320, 320:]),
    "jit": (jax.jit(lambda G: G.block("b", "b"))(G), want[320:, 320:]),
    "restricted": (G.restrict(masks).matrix(), want[320:, 320:]),
    "sparse": (hotk.sparse_ggn(model, loss, p).todense(), want),
    "Laplace": (
        hotk.laplace_approximation(
            H.f, p, curvature=H + hotk.linop.Identity()
        ).covariance_operator.matrix(),
        np.linalg.inv(want + np.eye(330)),
    ),
}
for name, (got, right) in found.items():
    np.testing.assert_allclose(got, right, atol=1e-6, err_msg=name)
print("right")
"""


@pytest.mark.exhaustive
def test_a_last_layer_is_right_in_dirty_memory():
    """In memory that is filled with a number a wrong result is certain."""
    environment = {**os.environ, "MALLOC_PERTURB_": "165", "XLA_FLAGS": ""}
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "JAX_ENABLE_X64": "0"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=environment
    )
    assert done.stdout == "right\n", done.stderr[-2000:]
