"""Solutions inside of `shard_map`, of equations that add over devices or do not."""

import pytest

from tests.devices import run_on_eight_devices


CODE = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import AxisType, PartitionSpec as P
    import hotk
    from hotk.rule import fixed_point, linear_solve, minimum, root

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((2,), ("a",), axis_types=(AxisType.Auto,))
    rows = jnp.asarray([[0.6, 1.3], [1.1, 0.8]])  # one for each device
    theta = jnp.asarray([0.7, 1.2])
    M = jnp.asarray([[3.0, 1.0], [0.5, 2.0]])
    S = M + M.T

    # What each device has; its mean over the devices is the equation, or it is itself.
    PART = {{
        "root": lambda x, t, d: x**3 * d + M @ x - t * d,
        "fixed_point": lambda x, t, d: 0.3 * jnp.sin(x * d) + M @ t * d,
        "minimum": lambda x, t, d: jnp.sum(jnp.cosh(x * d - t)) + 0.5 * x @ S @ x,
        "linear": lambda x, t, d: M @ x + d * t * x - jnp.sin(t),
        "symmetric": lambda x, t, d: S @ x + d * t * x - jnp.sin(t),
    }}

    def residual(name):
        part = PART[name]
        if name == "minimum":
            return jax.grad(part)
        if name == "fixed_point":
            return lambda x, t, d: part(x, t, d) - x
        return part

    def by_newton(equation, x):
        step = lambda _, x: x - jnp.linalg.solve(jax.jacfwd(equation)(x), equation(x))
        return jax.lax.fori_loop(0, 25, step, x)

    def solution(kind, mean):
        name = kind.split("-")[0]
        part, rest = PART[name], residual(name)
        own = mean is None
        start = lambda x, d: x + 0 * d if own else x
        mean = mean or (lambda a: a)

        def solve(x, t, d):
            return by_newton(lambda x: mean(rest(x, t, d)), start(x, d))

        objective = lambda x, t, d: mean(part(x, t, d))
        if kind == "minimum-over_axis":
            objective = hotk.over_axis(part, "a", shared=(0, 1))
        if name in ("root", "fixed_point", "minimum"):
            return {{"root": root, "fixed_point": fixed_point, "minimum": minimum}}[
                name
            ](objective, solve)

        def by_matrix(product, b):
            return jnp.linalg.solve(jax.vmap(product, out_axes=1)(jnp.eye(2)), b)

        def linear(x, t, d):
            product = lambda v: mean((S if name == "symmetric" else M) @ v + d * t * v)
            solver = by_matrix if kind.endswith("solver") else None
            return linear_solve(
                product, jnp.sin(t), solver, symmetric=name == "symmetric"
            )

        return linear

    def known(kind, alike):  # all rows at once, by the steps themselves
        rest = residual(kind.split("-")[0])

        def x_of(t, d):
            every = jax.vmap(rest, (None, None, 0))
            if alike:
                return by_steps(lambda x: jnp.mean(every(x, t, d), 0))
            return jax.vmap(lambda d: by_steps(lambda x: rest(x, t, d)))(d)

        def by_steps(equation):
            x = jnp.ones(2)
            for _ in range(12):
                x = x - jnp.linalg.solve(jax.jacfwd(equation)(x), equation(x))
            return x

        return lambda t, d: jnp.sum(jnp.sin(x_of(t, d)))

    def measures(f):
        g = jax.grad(f, (0, 1))
        mixed = lambda t, d: sum(jnp.sum(a**2) for a in g(t, d))
        along = (jnp.cos(theta), jnp.sin(rows))
        return {{
            "value": lambda: f(theta, rows),
            "gradient": lambda: g(theta, rows),
            "jvp": lambda: jax.jvp(f, (theta, rows), along)[1],
            "hvp": lambda: jax.jvp(g, (theta, rows), along)[1],
            "reverse over reverse": lambda: jax.grad(mixed, (0, 1))(theta, rows),
            "forward over forward": lambda: jax.jacfwd(jax.jacfwd(f))(theta, rows),
        }}

    for kind, alike, check, refused in {cases}:
        mean = (lambda a: jax.lax.pmean(a, "a")) if alike else None
        ours = solution(kind, mean)

        def total(t, d):
            def part(t, d):
                y = jnp.sum(jnp.sin(ours(jnp.ones(2), t, d[0])))
                return y if alike else jax.lax.psum(y, "a")

            specs = {{"in_specs": (P(), P("a")), "out_specs": P()}}
            return jax.shard_map(part, mesh=mesh, check_vma=check, **specs)(t, d)

        right = jax.jit(
            lambda: {{n: m() for n, m in measures(known(kind, alike)).items()}}
        )()
        for name, measure in measures(total).items():
            where = f"{{kind}}, alike={{alike}}, check_vma={{check}}: {{name}}"
            try:
                found = jax.jit(measure)()
            except hotk.ModeError as error:
                assert name in refused, where
                assert "adds over the devices" in str(error), error
                continue
            assert name not in refused, where
            for a, b in zip(*map(jax.tree.leaves, (found, right[name])), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-9, err_msg=where)
    print("fine")
"""
KINDS = ["root", "fixed_point", "minimum", "linear", "linear-solver", "symmetric"]
REVERSE = ("gradient", "hvp", "reverse over reverse")
ALL = (*REVERSE, "jvp", "forward over forward")


@pytest.mark.exhaustive
def test_derivatives_of_a_solution_that_all_devices_hold_alike():
    """In reverse mode the product was transposed as if it were one device's."""
    run_on_eight_devices(CODE.format(cases=[("root", True, False, ())]))


@pytest.mark.exhaustive
def test_a_linear_solve_of_a_mean_over_devices():
    """JAX's own lets all that it reads vary, and the solution with it."""
    run_on_eight_devices(CODE.format(cases=[("linear", True, True, ())]))


@pytest.mark.exhaustive
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_of_solutions(kind, alike, check):
    # Without types the gradient of a mean is that of one device's part, and so is the
    # transpose of a product for a solver of one's own.
    lost = {"minimum": ALL, "linear-solver": REVERSE} if alike and not check else {}
    run_on_eight_devices(CODE.format(cases=[(kind, alike, check, lost.get(kind, ()))]))


@pytest.mark.exhaustive
def test_a_minimum_of_a_mean_by_over_axis():
    run_on_eight_devices(CODE.format(cases=[("minimum-over_axis", True, True, ())]))


@pytest.mark.exhaustive
def test_a_matrix_of_unknowns_that_differ_and_are_added_is_refused():
    run_on_eight_devices("""
        import jax, jax.numpy as jnp, hotk
        from jax.sharding import AxisType, PartitionSpec as P

        mesh = jax.make_mesh((2,), ("a",), axis_types=(AxisType.Auto,))

        def part(b):
            product = lambda v: v + 0.1 * jax.lax.psum(v, "a")
            return hotk.rule.linear_solve(product, b)

        specs = {"in_specs": P("a"), "out_specs": P("a")}
        try:
            jax.shard_map(part, mesh=mesh, **specs)(jnp.arange(4.0))
        except hotk.ModeError as error:
            assert "differ from one to another" in str(error), error
            print("fine")
    """)
