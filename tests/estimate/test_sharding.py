"""Estimates at a split point, and at one of mixed precision: within their bars.

Where the host stands in for more devices than it has cores, `tests.devices` gives them
threads enough, or collectives in the loops of `logdet` and `spectrum` might wait for
each other forever.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.devices import run_on_eight_devices


CODE = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from contextlib import nullcontext
    from types import SimpleNamespace
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    KIND, INSIDE = AxisType.{kind}, {inside}
    random = np.random.default_rng(0)
    host = {{
        "m": random.normal(size=(8, 4)).astype("f"),
        "w": random.normal(size=16).astype("f"),
    }}
    specs = {{"m": P("a", "b"), "w": P(("a", "b"))}}

    def f(x):
        cross = jnp.sum(x["w"]) * jnp.sum(x["m"]) / 50
        return jnp.sum(jnp.cosh(x["w"])) + jnp.sum(x["m"] ** 2) + cross

    def from_flat(a):
        return f({{"m": a[:32].reshape(8, 4), "w": a[32:]}})

    point = np.concatenate([np.ravel(host[k]) for k in "mw"])
    A = np.asarray(jax.hessian(from_flat)(jnp.asarray(point)), np.float64)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(KIND, KIND))
    key = jax.random.key(0)

    def inside(found, exact):
        far = np.abs(np.asarray(found.value, np.float64) - exact)
        bar = 4 * np.asarray(found.error, np.float64) + 1e-4 * np.abs(exact)
        assert np.mean(far <= bar) > 0.95, (found, exact)

    with jax.set_mesh(mesh) if INSIDE else nullcontext():
        x = {{
            k: jax.device_put(a, NamedSharding(mesh, specs[k]))
            for k, a in host.items()
        }}
        H = hotk.HessianOperator(f, x)
        for method in ("hutchinson", "hutch++", "xtrace"):
            inside(hotk.estimate.trace(H, key, method=method), np.trace(A))
        for method in ("hutchinson", "xdiag"):
            found = hotk.estimate.diagonal(H, key, method=method)
            flat = lambda t: np.concatenate([np.ravel(np.asarray(t[k])) for k in "mw"])
            inside(SimpleNamespace(value=flat(found.value), error=flat(found.error)),
                   np.diag(A))
            for name, leaf in found.value.items():
                wanted = NamedSharding(mesh, specs[name])
                assert leaf.sharding.is_equivalent_to(wanted, leaf.ndim), name
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "inside"),
    [("Auto", False), ("Explicit", True)],
    ids=["Auto", "Explicit"],
)
def test_estimates_at_a_split_point(kind, inside):
    run_on_eight_devices(CODE.format(kind=kind, inside=inside))


QUADRATURE = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from contextlib import nullcontext
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    KIND, INSIDE = AxisType.{kind}, {inside}
    values = np.linspace(1.0, 3.0, 48).astype("f")
    mesh = jax.make_mesh((8,), ("a",), axis_types=(KIND,))
    put = lambda a: jax.device_put(a, NamedSharding(mesh, P("a")))
    key = jax.random.key(0)

    with jax.set_mesh(mesh) if INSIDE else nullcontext():
        scale = {{"m": put(values[:32].reshape(16, 2)), "w": put(values[32:])}}
        x = {{"m": put(np.ones((16, 2), "f")), "w": put(np.ones(16, "f"))}}
        def f(x):
            one = jnp.sum(scale["m"] * x["m"] ** 2) + jnp.sum(scale["w"] * x["w"] ** 2)
            return one / 2 + jnp.sum(x["w"]) ** 2 / 8
        H = hotk.HessianOperator(f, x)
        matrix = np.diag(values.astype(float))
        matrix[32:, 32:] += 1 / 4
        exact = np.linalg.slogdet(matrix)[1]
        found = hotk.estimate.logdet(H, key, steps=12)
        assert abs(found.value - exact) <= 4 * found.error + 1e-3 * exact, found
        spectrum = hotk.estimate.spectrum(H, key, steps=12)
        largest = np.linalg.eigvalsh(matrix)[-1]
        assert abs(spectrum.largest - largest) < 1e-3 * largest, spectrum
        assert spectrum.smallest > 0.999, spectrum
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "inside"),
    [
        ("Auto", False),
        pytest.param("Explicit", True, marks=pytest.mark.exhaustive),
    ],
    ids=["Auto", "Explicit"],
)
def test_quadrature_at_a_split_point(kind, inside):
    run_on_eight_devices(QUADRATURE.format(kind=kind, inside=inside))


@pytest.mark.exhaustive
def test_estimates_at_a_point_of_mixed_precision(default_settings):
    """A quadratic, so that the Hessian is that of exact arithmetic."""
    random = np.random.default_rng(0)
    x = {
        "m": jnp.asarray(random.normal(size=(4, 2)), jnp.bfloat16),
        "w": jnp.asarray(random.normal(size=6), jnp.float32),
    }
    scale = np.arange(1.0, 7.0)

    def f(x):
        wide = x["m"].astype(jnp.float32)
        own = jnp.sum(jnp.asarray(scale, jnp.float32) * x["w"] ** 2)
        return own + 2 * jnp.sum(wide**2)

    H, key = hotk.HessianOperator(f, x), jax.random.key(0)
    diagonal = np.concatenate([np.full(8, 4.0), 2 * scale])
    found = hotk.estimate.diagonal(H, key)
    got = np.concatenate([np.ravel(np.asarray(found.value[k], float)) for k in "mw"])
    np.testing.assert_allclose(got, diagonal, rtol=1e-2)
    for method in ("hutchinson", "hutch++", "xtrace"):
        got = hotk.estimate.trace(H, key, method=method)
        assert abs(got.value - diagonal.sum()) <= 4 * got.error + 1e-2 * diagonal.sum()
    exact = np.sum(np.log(diagonal))
    got = hotk.estimate.logdet(H, key)
    assert abs(got.value - exact) <= 4 * got.error + 1e-2 * exact
    pairs = hotk.estimate.spectrum(H, key)
    np.testing.assert_allclose(pairs.largest, diagonal.max(), rtol=2e-2)


@pytest.mark.exhaustive
def test_derivatives_where_devices_exhaust_their_spaces_at_different_steps():
    """The derivative by what all hold is a sum, for which all of them have to wait."""
    run_on_eight_devices("""
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import PartitionSpec as P

        import hotk

        n = 60
        rows = jnp.stack([1.0 + jnp.arange(n) % (k + 1) for k in range(8)])
        key = jax.random.key(0)

        def logdet(c, a):
            f = lambda x, c, a: jnp.sum(jnp.exp(c) * a * x**2) / 2
            H = hotk.HessianOperator(f, 0 * a, c, a)
            return hotk.estimate.logdet(H, key, samples=2, steps=6).value

        mesh = jax.make_mesh((8,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        local = lambda c, a: jax.grad(logdet)(c, a[0])
        run = jax.shard_map(local, mesh=mesh, in_specs=(P(), P("i")), out_specs=P())
        slope = jax.jit(run)(jnp.asarray(0.1), rows)
        assert np.allclose(slope, 8 * n, rtol=1e-4), slope
        print("fine")
    """)
