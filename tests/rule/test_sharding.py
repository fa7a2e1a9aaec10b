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


# What differs from device to device and what does not, in one call. f(w, x, n) with w
# the same on all devices: values that are the same too, or this device's.
MIXED = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import AxisType, PartitionSpec as P
    import hotk
    from hotk.rule import custom

    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
    add = lambda a: jax.lax.psum(a, "a")
    alone = lambda w, x, n: jnp.tanh(w)
    within = lambda w, x, n: add(jnp.sum(jnp.tanh(x * w)))
    apart = lambda w, x, n: jnp.sum(jnp.tanh(x * w))
    crossed = lambda w, x, n: jnp.sum(within(w, x, n) * x**2)
    vector = lambda w, x, n: add(jnp.tanh(x * w)) * w

    def ruled(f, names):
        of = lambda p: lambda w, x: f(w, x, p[2])

        def vjp(p, u):
            return (*jax.vjp(of(p), *p[:2])[1](u), None)

        rules = {{
            "jvp": lambda p, t: jax.jvp(of(p), p[:2], t[:2])[1],
            "vjp": vjp,
            "hvp": lambda p, t, u: (
                *jax.jvp(lambda w, x: vjp((w, x, p[2]), u)[:2], p[:2], t[:2])[1],
                None,
            ),
        }}
        g = custom(f)
        for name in names.split():
            getattr(g, f"def_{{name}}")(rules[name])
        return g

    # JAX's derivatives of the function itself, all rows at once, on one device
    rows = np.linspace(-0.3, 1, 16)
    known = {{
        alone: lambda w, x: jnp.tanh(w),
        within: lambda w, x: jnp.sum(jnp.tanh(x * w)),
        apart: lambda w, x: jnp.sum(jnp.tanh(x * w)),
        crossed: lambda w, x: jnp.sum(jnp.tanh(x * w)) * jnp.sum(x**2),
        vector: lambda w, x: jnp.sum(jnp.tanh(x * w)) * w,
    }}

    def measures(f):
        g = jax.grad(f, (0, 1))
        t = lambda w, x: (1.3 * jnp.ones_like(w), jnp.cos(x))
        mixed = lambda w, x: jnp.sum(jnp.sin(g(w, x)[0])) + jnp.sum(jnp.cos(g(w, x)[1]))
        return [
            f(0.7, x),
            g(0.7, x),
            jax.jvp(f, (0.7, x), t(0.7, x))[1],
            jax.jvp(g, (0.7, x), t(0.7, x))[1],
            jax.grad(mixed, (0, 1))(0.7, x),
            jax.jacfwd(jax.jacfwd(f))(0.7, x),
            jax.grad(lambda w, x: jax.jvp(f, (w, x), t(w, x))[1], (0, 1))(0.7, x),
        ]

    x, n = jnp.asarray(rows, "f"), jnp.arange(8)
    for f, alike in {functions}:
        expected = jax.jit(lambda: measures(known[f]))()
        for names in {rules}:
            h = ruled(f, names)
            for check in {checks}:

                def total(w, x):
                    def part(w, x, n):
                        y = jnp.sum(h(w, x, n))
                        return y if alike else add(y)

                    specs = {{"in_specs": (P(), P("a"), P("a")), "out_specs": P()}}
                    over = jax.shard_map(part, mesh=mesh, check_vma=check, **specs)
                    return over(jnp.asarray(w, "f"), x, n)

                found = jax.jit(lambda: measures(total))()
                for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
                    np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
    print("fine")
"""


@pytest.mark.exhaustive
def test_rules_of_arguments_that_differ_over_devices_and_of_others():
    """A result that all hold alike had its derivatives times the number of devices."""
    functions, rules = "[(alone, True), (crossed, False)]", '["jvp", "vjp"]'
    code = MIXED.format(functions=functions, rules=rules, checks="[True]")
    run_on_eight_devices(code)


@pytest.mark.exhaustive
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("names", ["jvp", "vjp", "jvp vjp", "jvp vjp hvp", "vjp hvp"])
def test_rules_over_devices_in_all_nestings(names, check):
    every = (
        "[(alone, True), (within, True), (apart, False), (crossed, False), "
        "(vector, True)]"
    )
    code = MIXED.format(functions=every, rules=[names], checks=[check])
    run_on_eight_devices(code)


@pytest.mark.exhaustive
def test_a_tangent_that_forgets_the_sum_over_devices_is_refused():
    run_on_eight_devices("""
        import jax, jax.numpy as jnp
        from jax.sharding import AxisType, PartitionSpec as P
        from hotk.rule import custom

        mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
        total = custom(lambda w, x: jax.lax.psum(w * jnp.sum(x), "a"))
        total.def_jvp(lambda p, t: t[0] * jnp.sum(p[1]))
        specs = {"in_specs": (P(), P("a")), "out_specs": P()}
        over = jax.shard_map(total, mesh=mesh, **specs)
        try:
            jax.jvp(lambda w: over(w, jnp.ones(8)), (1.0,), (1.0,))
        except Exception as error:
            assert type(error).__name__ == "StructureError", error
            assert "`jax.lax.psum`" in str(error), error
            print("fine")
    """)


@pytest.mark.exhaustive
def test_a_custom_vjp_of_arguments_that_differ_and_of_others():
    run_on_eight_devices("""
        import jax, jax.numpy as jnp, numpy as np, hotk
        from jax.sharding import AxisType, PartitionSpec as P

        mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
        plain = lambda w, x: jax.lax.psum(jnp.sum(jnp.tanh(x * w)), "a")
        ruled = jax.custom_vjp(plain)
        pull = lambda r, u: jax.vjp(plain, *r)[1](u)
        ruled.defvjp(lambda w, x: (plain(w, x), (w, x)), pull)

        def part(w, x):
            f = lambda w: ruled(w, x)
            return (
                hotk.jvp(f, w, 1.3),
                hotk.hvp(f, w, 1.3, mode=hotk.FORWARD_OVER_FORWARD),
                hotk.hvp(f, w, 1.3),
                hotk.derivatives(f, w, jnp.ones_like(w), order=3)[3],
            )

        specs = {"in_specs": (P(), P("a")), "out_specs": P()}
        x = np.linspace(-0.3, 1, 16, dtype="f")
        found = jax.jit(jax.shard_map(part, mesh=mesh, **specs))(jnp.float32(0.7), x)
        t = np.tanh(0.7 * np.float64(x))
        s = 1 - t**2
        first, second = np.sum(s * x), np.sum(-2 * t * s * x**2)
        third = np.sum((6 * t**2 - 2) * s * x**3)
        known = (1.3 * first, 1.3 * second, 1.3 * second, third)
        np.testing.assert_allclose(found, known, rtol=1e-4)
        print("fine")
    """)
