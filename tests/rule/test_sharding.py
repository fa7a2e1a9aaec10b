"""Functions with rules inside of `shard_map`: the sums over devices are right."""

import pytest

from tests.devices import run_on_eight_devices


CODE = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import AxisType, PartitionSpec as P
    from hotk.rule import custom

    KIND = AxisType.{kind}
    mesh = jax.make_mesh((8,), ("a",), axis_types=(KIND,))
    plain = lambda w, x: jnp.sum(jnp.tanh(x * w))
    slope = lambda w, x: 1 - jnp.tanh(w * x) ** 2
    ruled = custom(plain)

    @ruled.def_jvp
    def _(primals, tangents):
        (w, x), (dw, dx) = primals, tangents
        return jnp.sum(slope(w, x) * (x * dw + w * dx))

    @ruled.def_vjp
    def _(primals, u):
        w, x = primals
        return jnp.sum(u * slope(w, x) * x), u * slope(w, x) * w

    def loss(w, x):
        total = lambda w, x: jax.lax.psum(ruled(w, x), "a")
        specs = {{"in_specs": (P(), P("a")), "out_specs": P()}}
        return jax.shard_map(total, mesh=mesh, **specs)(w, x)

    with jax.set_mesh(mesh):
        w = jnp.asarray(0.7)
        x = jax.device_put(np.linspace(-0.3, 1, 16, dtype="f"), P("a"))
        host = np.asarray(x, np.float64)
        t = np.tanh(0.7 * host)
        near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5)
        near(loss(w, x), np.sum(t))
        near(jax.grad(loss)(w, x), np.sum((1 - t**2) * host))
        second = np.sum(-2 * t * (1 - t**2) * host**2)
        near(jax.grad(jax.grad(loss))(w, x), second)
        near(jax.jvp(lambda w: jax.grad(loss)(w, x), (w,), (1.0,))[1], second)
        near(jax.jacfwd(jax.jacfwd(loss))(w, x), second)
        near(jax.jit(jax.grad(loss, argnums=1))(w, x), (1 - t**2) * 0.7)
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_derivatives_by_what_all_devices_share(kind):
    run_on_eight_devices(CODE.format(kind=kind))
