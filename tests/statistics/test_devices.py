"""Statistics inside of `jax.shard_map`, where each device has data of its own.

They are those of NumPy for all data, or refused: of a part of the data with the
curvature of all of it they were neither those of one device nor of all.
"""

from tests.devices import run_on_eight_devices


def test_results_are_whole_each_devices_own_or_refused():
    run_on_eight_devices(
        """
import jax, jax.numpy as jnp, numpy as np
import hotk
jax.config.update("jax_enable_x64", True)
x = np.linspace(0.0, 1.0, 32)
y = 1 + 2 * x + np.sin(40 * x) / 3
A = np.column_stack([np.ones(32), x])
p = np.linalg.lstsq(A, y)[0]
C = np.linalg.inv(A.T @ A)
axis = jax.sharding.AxisType.Auto
mesh = jax.make_mesh((8,), ("r",), axis_types=(axis,))
line = lambda p, x: p[0] + p[1] * x
losses = lambda p, x, y: (line(p, x) - y) ** 2 / 2
total = lambda p, x, y: jnp.sum(losses(p, x, y))

def on_each(g, check):
    parts = jax.P("r")
    specs = {"in_specs": (jax.P(), parts, parts), "out_specs": parts}
    run = jax.shard_map(g, mesh=mesh, check_vma=check, **specs)
    return np.asarray(jax.jit(run)(jnp.asarray(p), x, y))

def predicted(p, x, y):
    whole = hotk.over_axis(total, "r", "sum")
    return hotk.laplace_approximation(whole, p, x, y).predict(line, x).standard_errors

expected = np.sqrt(np.einsum("ni,ij,nj->n", A, C, A))
np.testing.assert_allclose(on_each(predicted, True), expected, rtol=1e-9)

def influences(p, x, y):
    target = lambda p: line(p, x[:1])
    return hotk.statistics.influence(losses, p, x, y, target=target).value

# minus the change of the prediction at each device's first row by a row of its own
scores = (A * (A @ p - y)[:, None]).reshape(8, 4, 2)
effect = np.einsum("ki,ij,knj->kn", A[::4], C, scores)
np.testing.assert_allclose(on_each(influences, True).ravel(), effect.ravel(), rtol=1e-8)

fitted = lambda p, x, y: hotk.statistics.fit(line, x, y, p).standard_errors[None]
evidence = lambda p, x, y: hotk.laplace_approximation(
    lambda p: total(p, x, y), p
).log_evidence[None]
for refused in (fitted, evidence):
    try:
        on_each(refused, True)
    except hotk.StructureError as error:
        assert "of its own along ['r']" in str(error)
    else:
        raise AssertionError("not refused")
# without types each device computes what its own data say
own = []
for rows, values in zip(A.reshape(8, 4, 2), y.reshape(8, 4)):
    q, rest, *_ = np.linalg.lstsq(rows, values)
    own.append(np.sqrt(np.diag(np.linalg.inv(rows.T @ rows)) * rest[0] / 2))
np.testing.assert_allclose(on_each(fitted, False), own, rtol=1e-6)
print("fine")
"""
    )
