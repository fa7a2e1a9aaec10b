"""Promise 9: two and four processes give the numbers of one."""

import pytest

from tests.processes import all_fine


TWELVE = """
import jax.numpy as jnp, numpy as np, hotk
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
assert jax.process_count() == COUNT and jax.device_count() == 8
random = np.random.default_rng(0)
X, y = random.normal(size=(64, 6)), random.normal(size=64)
w, v = random.normal(size=6), random.normal(size=6)
key = jax.random.key(0)

def loss(w, X, y):
    return jnp.mean((jnp.tanh(X @ w) - y) ** 2) + w @ w

def H(w, X, y):
    return hotk.HessianOperator(loss, w, X, y)

def step(w, X, y):
    f = lambda w: loss(w, X, y)
    transform = hotk.optim.newton_cg()
    state = transform.init(w)
    return transform.update(hotk.gradient(f, w), state, w, value_fn=f)[0]

calls = {
    "gradient": lambda w, X, y: hotk.gradient(loss, w, X, y),
    "hvp": lambda w, X, y: hotk.hvp(loss, w, w, X, y),
    "value_gradient_and_hvp": lambda w, X, y: hotk.value_gradient_and_hvp(
        loss, w, w, X, y),
    "quadratic_form": lambda w, X, y: hotk.quadratic_form(loss, w, w, X, y),
    "hessian": lambda w, X, y: hotk.hessian(loss, w, X, y),
    "hessian_diagonal": lambda w, X, y: hotk.hessian_diagonal(loss, w, X, y),
    "laplacian": lambda w, X, y: hotk.laplacian(loss, w, X, y),
    "product": lambda w, X, y: H(w, X, y) @ w,
    "minres": lambda w, X, y: hotk.linop.minres(H(w, X, y), w, tol=1e-12).x,
    "eigh": lambda w, X, y: H(w, X, y).eigh(2).values,
    "trace": lambda w, X, y: hotk.estimate.trace(H(w, X, y), key, samples=4).value,
    "newton_cg": step,
}

mesh = jax.make_mesh((8,), ("rows",), axis_types=(AxisType.Auto,))
split, whole = NamedSharding(mesh, P("rows")), NamedSharding(mesh, P())
def put(a, sharding):
    return jax.make_array_from_callback(a.shape, sharding, lambda part: a[part])

args = put(w, whole), put(X, split), put(y, split)
for name, call in calls.items():
    expected = jax.tree.leaves(jax.jit(call)(w, X, y))
    found = jax.tree.leaves(jax.jit(call)(*args))
    for a, b in zip(found, expected, strict=True):
        own = a.addressable_data(0)
        assert own.shape == b.shape, name
        np.testing.assert_allclose(own, b, rtol=1e-10, atol=1e-10, err_msg=name)
compiled = jax.jit(calls["hvp"]).lower(*args).compile().as_text()
assert compiled.count(" all-reduce(") + compiled.count(" all-reduce-start(") == 1
print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [2, 4])
def test_processes_give_the_numbers_of_one(count):
    all_fine(TWELVE, count, devices=8 // count, seconds=600)
