"""Points that are split among devices: the same numbers, split as the point is."""

import pytest

from tests.devices import run_on_eight_devices


CODE = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from contextlib import nullcontext
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    KIND, INSIDE = AxisType.{kind}, {inside}
    random = np.random.default_rng(0)
    host = {{
        "w": random.normal(size=16).astype("f"),
        "m": random.normal(size=(8, 4)).astype("f"),
        "s": np.float32(2.0),
    }}
    ones = {{k: np.ones_like(a) for k, a in host.items()}}
    flat = lambda t: np.concatenate([np.ravel(np.asarray(t[k])) for k in "msw"])

    def f(x, c):
        cross = jnp.sum(x["w"]) * x["s"] + jnp.sum(x["m"] ** 2) * (1 + x["s"] ** 2)
        return c * jnp.sum(jnp.cosh(x["w"])) + cross

    def from_flat(a):
        return f({{"m": a[:32].reshape(8, 4), "s": a[32], "w": a[33:]}}, 3.0)

    A = np.asarray(jax.hessian(from_flat)(jnp.asarray(flat(host))), np.float64)
    b = flat(ones).astype(np.float64)
    values = np.linalg.eigvalsh(A)

    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(KIND, KIND))
    specs = {{"w": P(("a", "b")), "m": P("a", "b"), "s": P()}}
    put = lambda t: {{
        k: jax.device_put(a, NamedSharding(mesh, specs[k])) for k, a in t.items()
    }}

    def kept(tree, ahead=0):
        for name, leaf in tree.items():
            spec = P(*[None] * ahead, *specs[name])
            expected = NamedSharding(mesh, spec)
            assert leaf.sharding.is_equivalent_to(expected, leaf.ndim), (name, leaf)

    def near(got, expected, tol=1e-3):
        size = np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=tol, atol=tol * size)

    with jax.set_mesh(mesh) if INSIDE else nullcontext():
        x, v = put(host), put(ones)
        H = hotk.HessianOperator(f, x, 3.0)
        kept(H @ v)
        near(flat(H @ v), A @ b)
        near(flat(H @ ones), A @ b)
        near(H @ jnp.asarray(b, jnp.float32), A @ b)
        near(H.quadratic_form(v), b @ A @ b)
        kept(H.gradient)
        kept((H + 0.1 * hotk.Identity()) @ v)
        kept(H.at(v) @ v)
        solution = jax.jit(lambda H, v: hotk.linop.minres(H, v))(H, v)
        assert solution.converged
        kept(solution.x)
        near(flat(solution.x), np.linalg.solve(A, b))
        batch = {{k: jnp.stack([a, 2 * a]) for k, a in v.items()}}
        found = H.solve(batch, batched=True)
        kept(found.x, 1)
        near(flat({{k: a[1] for k, a in found.x.items()}}), 2 * np.linalg.solve(A, b))
        kept(H.many(batch), 1)
        step = hotk.linop.steihaug(H, H.gradient, 0.1)
        kept(step.x)
        near(np.linalg.norm(flat(step.x)), 0.1)
        kept(H.linearize() @ v)
        near(flat(H.linearize("store") @ v), A @ b)
        pairs = H.eigh(3)
        kept(pairs.vectors, 1)
        near(pairs.values, values[-3:])
        near(H.matrix(5), A)
        near(H.block("w", "m"), A[33:, :32])
        near(H.block("s", "w"), A[32:33, 33:])
        near(flat(H.diagonal()), np.diag(A))
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "inside"),
    [("Auto", False), ("Explicit", True), ("Explicit", False)],
    ids=["Auto", "Explicit, in the mesh", "Explicit, outside of it"],
)
def test_a_split_point_gives_the_same_numbers_split_as_it_is(kind, inside):
    run_on_eight_devices(CODE.format(kind=kind, inside=inside))


@pytest.mark.exhaustive
def test_solvers_and_optimizers_at_points_that_differ_by_device():
    """Each device has a diagonal of its own: its solutions are known by hand."""
    run_on_eight_devices("""
        import jax, jax.numpy as jnp, numpy as np, optax, hotk
        from jax.sharding import PartitionSpec as P

        mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        key, b = jax.random.key(0), jnp.array([1.0, -2.0, 0.5])
        A = jnp.arange(1.0, 13.0).reshape(4, 3)

        def newton(a):
            f = lambda p: jnp.sum(a * (p - b) ** 2)
            optimizer, p = hotk.optim.newton(), jnp.zeros(3) * a
            state = optimizer.init(p)
            updates, state = optimizer.update(jax.grad(f)(p), state, p, value_fn=f)
            return optax.apply_updates(p, updates)

        multiple = lambda c: hotk.HessianOperator(
            lambda p: c * jnp.sum(p**2) / 2, jnp.zeros(3) * c
        )
        residuals = lambda a: hotk.curvature.LeastSquares(lambda p: a * p - b)
        questions = {
            "solve": lambda H, a: H.solve(b, tol=1e-6).x,
            "cg": lambda H, a: hotk.linop.cg(H, b, tol=1e-6).x,
            "minres": lambda H, a: hotk.linop.minres(H, b, tol=1e-6).x,
            "steihaug": lambda H, a: hotk.linop.steihaug(H, -b, 99.0, tol=1e-6).x,
            "eigh": lambda H, a: H.eigh(3).values,
            "logdet": lambda H, a: hotk.estimate.logdet(multiple(a[1]), key).value,
            "newton": lambda H, a: newton(a),
            "trust_region": lambda H, a: hotk.optim.minimize(
                lambda p: jnp.sum(jnp.cosh(p - a)), 0.9 * a
            ).x,
            "levenberg_marquardt": lambda H, a: hotk.optim.minimize(
                residuals(a), a, hotk.optim.levenberg_marquardt()
            ).x,
        }

        def local(a):
            a = a[0]
            H = hotk.HessianOperator(lambda p: jnp.sum(a * p**2) / 2, 0 * a)
            return {name: ask(H, a)[None] for name, ask in questions.items()}

        run = jax.shard_map(local, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        got = jax.jit(run)(A)
        expected = dict.fromkeys(["solve", "cg", "minres", "steihaug"], b / A)
        expected |= {"eigh": A, "logdet": 3 * np.log(A[:, 1])}
        expected |= {"newton": jnp.stack([b] * 4)}
        expected |= {"trust_region": A, "levenberg_marquardt": b / A}
        for name in questions:
            values = np.asarray(got[name])
            values = np.sort(values) if name == "eigh" else values
            assert np.allclose(values, expected[name], rtol=3e-4), (name, values)
        print("fine")
    """)


@pytest.mark.exhaustive
def test_steps_that_add_over_devices_of_which_some_have_ended_are_refused():
    run_on_eight_devices("""
        import jax, jax.numpy as jnp, hotk
        from jax.sharding import PartitionSpec as P

        def local(a):
            f = lambda p: jax.lax.psum(jnp.sum(p**2), "i") * jnp.sum(a * p**2)
            return hotk.HessianOperator(f, a).solve(a).x

        mesh = jax.make_mesh((4,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
        run = jax.shard_map(local, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        try:
            jax.jit(run)(jnp.arange(1.0, 13.0))
        except hotk.ModeError as error:
            assert "another number of steps on each device" in str(error), error

        def of_own_side(rows, b):
            f = lambda p: jnp.sum(jnp.logaddexp(0.0, rows @ p)) + p @ p
            return hotk.HessianOperator(f, jnp.zeros(3)).solve(b[0]).x[None]

        run = jax.shard_map(of_own_side, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        try:
            jax.jit(run)(jnp.ones((8, 3)), jnp.arange(12.0).reshape(4, 3))
        except hotk.StructureError as error:
            assert "directions of their own along ['i']" in str(error), error
            print("fine")
    """)
