"""Sharded parameters on eight devices: the same steps, where they were."""

import pytest

from tests.devices import run_on_eight_devices


CODE = """
    import jax, jax.numpy as jnp, numpy as np, optax, hotk
    from jax.sharding import PartitionSpec as P

    mesh = jax.make_mesh((8,), ("a",), axis_types=(jax.sharding.AxisType.{kind},))
    jax.set_mesh(mesh)
    sharding = jax.sharding.NamedSharding(mesh, P("a"))
    scale = np.random.default_rng(0).uniform(0.5, 2, 16).astype("f")
    start = np.random.default_rng(1).normal(size=16).astype("f")

    def f(p):
        return jnp.sum(jnp.cosh(p["w"] / scale)) + jnp.sum(p["w"]) ** 2

    factories = {{
        # solved to the end: where a loop is cut short, rounding decides when
        "newton_cg": lambda: hotk.optim.newton_cg(max_tol=1e-4),
        "newton": hotk.optim.newton,
        "trust_region": lambda: hotk.optim.trust_region(max_tol=1e-4),
        "levenberg_marquardt": lambda: hotk.optim.levenberg_marquardt(max_tol=1e-5),
        "sophia": lambda: hotk.optim.sophia(0.1),
        "adahessian": lambda: hotk.optim.adahessian(0.1),
    }}
    for name, factory in factories.items():
        transform, found = factory(), []
        for w in (jnp.asarray(start), jax.device_put(start, sharding)):
            p = {{"w": w}}
            state = transform.init(p)
            for _ in range(2):
                step, state = transform.update(jax.grad(f)(p), state, p, value_fn=f)
                p = optax.apply_updates(p, step)
            found.append(p["w"])
        assert found[1].sharding.is_equivalent_to(sharding, 1), name
        np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-4, err_msg=name)
    p = {{"w": jax.device_put(start, sharding)}}
    found = hotk.optim.minimize(f, p, hotk.optim.newton_cg())
    assert found.x["w"].sharding.is_equivalent_to(sharding, 1)
    np.testing.assert_allclose(found.x["w"], np.zeros(16), atol=1e-3)
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_steps_on_eight_devices(kind):
    run_on_eight_devices(CODE.format(kind=kind))


# The systems of a sum of squares in the space of the samples.
SAMPLES = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
    draw = lambda k, *shape: jax.random.normal(jax.random.key(k), shape)
    p = {"b": draw(0, 16), "v": draw(1, 16), "w": draw(2, 8, 16)}
    X, Y = draw(3, 16, 8), draw(4, 16)

    def residual(p, example):
        x, y = example
        return jnp.tanh(x @ p["w"] + p["b"]) @ p["v"] - y

    def steps(p, X, Y):
        f = hotk.curvature.LeastSquares(residual, (X, Y))
        transform = hotk.optim.levenberg_marquardt(system="samples")
        state = transform.init(p)
        for _ in range(3):
            update, state = transform.update(
                hotk.gradient(f, p), state, p, value_fn=f
            )
            p = jax.tree.map(jnp.add, p, update)
        return p

    exact = steps(p, X, Y)
    split = {"b": put(p["b"]), "v": put(p["v"], "d"), "w": put(p["w"], None, "d")}
    for q, *data in (
        (jax.tree.map(put, p), put(X, "d"), put(Y, "d")), (split, put(X), put(Y)),
        (split, put(X, "d"), put(Y, "d")),
    ):
        found = steps(q, *data)
        for k, a in found.items():
            np.testing.assert_allclose(a, exact[k], rtol=1e-8, atol=1e-8, err_msg=k)
    print("fine")
"""


@pytest.mark.exhaustive
def test_systems_of_the_samples_on_eight_devices():
    run_on_eight_devices(SAMPLES)


# One start for all devices gives the minimum of the sum, one of its own that of each.
DERIVATIVES = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    c, weights = jnp.arange(1.0, 4.0), jnp.linspace(0.2, 1.0, 8)

    def f(w, l):  # smallest at w = c / (1 + l)
        return jnp.sum((w - c) ** 2) / 2 + l / 2 * jnp.sum(w**2)

    def fits(weights, own):
        def one(l):
            start = jnp.zeros(3)
            if own:
                start = jax.lax.pcast(start, "d", to="varying")
            found = hotk.optim.minimize(f, start, args=(l[0],), tol=1e-9)
            result = found.x, found.value
            return jax.tree.map(lambda a: a[None], result) if own else result

        spec = P("d") if own else P()
        return jax.shard_map(one, mesh=mesh, in_specs=P("d"), out_specs=spec)(weights)

    def by_hand(weights, own):
        if own:
            w = c / (1 + weights[:, None])
            return w, jax.vmap(f)(w, weights)
        w = c / (1 + weights.mean())
        return w, sum(f(w, l) for l in weights)

    for own in (False, True):
        for derivative in (lambda g: g, jax.jacfwd, jax.jacrev):
            got = jax.jit(derivative(lambda l: fits(l, own)))(weights)
            for a, b in zip(got, derivative(lambda l: by_hand(l, own))(weights)):
                np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)
    print("fine")
"""


@pytest.mark.exhaustive
def test_derivatives_of_minima_of_devices():
    run_on_eight_devices(DERIVATIVES)
