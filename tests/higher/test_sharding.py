"""Taylor mode inside of `shard_map`, and at split points."""

import pytest

from tests.devices import run_on_eight_devices


CODE = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, PartitionSpec as P

    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.{kind},))
    weights = np.random.default_rng(0).normal(size=(5, 5)).astype("f")

    def u(x):
        step = lambda c, _: (jnp.tanh(weights @ c), jnp.sum(c * x))
        last, outputs = jax.lax.scan(step, x, None, length=3)
        return jnp.sum(last) + jnp.prod(outputs)

    points = np.random.default_rng(1).normal(size=(16, 5)).astype("f")
    hessians = np.stack([jax.hessian(u)(x) for x in points])
    along = np.einsum("pi,pij,pj->p", points, hessians, points)
    known = {{
        "laplacian": (lambda x: hotk.laplacian(u, x), np.trace(hessians.T)),
        "blocks": (lambda x: hotk.laplacian(u, x, block_size=2), np.trace(hessians.T)),
        "partial": (lambda x: hotk.partial(u, x, (1, 1, 0, 0, 0)), hessians[:, 0, 1]),
        "form": (lambda x: hotk.quadratic_form(u, x, x, mode=hotk.Taylor()), along),
        "derivatives": (lambda x: hotk.derivatives(u, x, x, order=3)[2], along),
    }}
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)
    with jax.set_mesh(mesh):
        split = jax.device_put(points, P("a"))
        for op, expected in known.values():
            inside = jax.shard_map(jax.vmap(op), in_specs=P("a"), out_specs=P("a"))
            near(jax.jit(inside)(split), expected)
        total = lambda x: jax.lax.psum(jnp.sum(jnp.sin(x) ** 2), "a")
        form = lambda x: hotk.quadratic_form(total, x, jnp.ones_like(x))
        x = jax.device_put(np.linspace(0, 1, 16, dtype="f"), P("a"))
        inside = jax.shard_map(form, in_specs=P("a"), out_specs=P())
        near(jax.jit(inside)(x), np.sum(2 * np.cos(2 * np.asarray(x))))
        cubes = lambda x: jnp.sum(x**3)
        near(hotk.laplacian(cubes, x), 6 * np.sum(np.asarray(x)))
        near(hotk.derivatives(cubes, x, x, order=3)[3], 6 * np.sum(np.asarray(x) ** 3))
        # A whole point beside data that are divided.
        w, x = np.linspace(1, 2, 16, dtype="f"), np.linspace(0, 1, 16, dtype="f")
        data, whole = jax.device_put(w, P("a")), jax.device_put(x, P())
        weighted = lambda x: jnp.sum((x * data) ** 3) + jnp.sum(jnp.sin(x))
        near(hotk.laplacian(weighted, whole), np.sum(6 * w**3 * x - np.sin(x)))
        pair = hotk.partial(weighted, whole, (2, *15 * (0,)))
        near(pair, 6 * w[0] ** 3 * x[0] - np.sin(x[0]))
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_derivatives_on_eight_devices(kind):
    run_on_eight_devices(CODE.format(kind=kind))
