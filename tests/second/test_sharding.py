"""Dense second derivatives at a point that is divided over devices."""

import pytest

from tests.devices import run_on_eight_devices


CODE = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.{kind},))
    rng = np.random.default_rng(0)
    shapes = {{
        "a": (16,), "b": (8, 2), "c": (3,), "d": (2, 8), "e": (), "f": (2, 2), "g": (8,)
    }}
    specs = {{"a": P("d"), "b": P("d", None), "d": P(None, "d"), "g": P("d")}}
    host = {{k: rng.normal(size=s).astype("f") for k, s in shapes.items()}}

    def f(p):
        total = sum(jnp.sum(jnp.sin((k + 1) * a)) for k, a in enumerate(p.values()))
        return total**2 + jnp.sum(jnp.cosh(p["a"]))

    exact = jax.hessian(f)(host)
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    with jax.set_mesh(mesh):
        p = {{
            k: jax.device_put(a, NamedSharding(mesh, specs.get(k, P())))
            for k, a in host.items()
        }}
        for size in (None, 5, 16):
            prepared = hotk.hessian.prepare(f, p, block_size=size)
            assert prepared.info.mode == "forward over reverse", prepared.info
            H = prepared(p)
            for row, blocks in exact.items():
                for column, block in blocks.items():
                    near(H[row][column], block)
        near(hotk.jacobian(lambda p: p["a"] * p["e"], p, block_size=5)["a"],
             host["e"] * np.eye(16))
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_hessian_by_windows_of_a_divided_point(kind):
    run_on_eight_devices(CODE.format(kind=kind))
