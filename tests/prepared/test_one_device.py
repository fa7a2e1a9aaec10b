"""Derivatives in `shard_map` without `over_axis`: the sum over devices, in any mode."""

import pytest

from tests.devices import run_on_eight_devices


SETUP = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax import lax
    from jax.sharding import AxisType, PartitionSpec as P
    from hotk import (
        FORWARD_OVER_FORWARD, FORWARD_OVER_REVERSE, REVERSE_OVER_FORWARD,
        REVERSE_OVER_REVERSE, Forward, Reverse, Taylor,
    )
    from tests.test_api import OPERATORS

    jax.config.update("jax_enable_x64", True)
    vma = {vma}
    mesh = jax.make_mesh(
        (2,), ("d",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2]
    )
    w, v, u = jnp.array([1.0, 2.0]), jnp.array([1.0, 0.5]), jnp.array([3.0, 7.0])
    rows = jnp.array([[0.0, 1], [1, 1], [1, 0], [0.5, 0]])
    halves = rows[:2], rows[2:]

    def number(w, s):
        return jnp.sum((s @ w) ** 4) + jnp.sum(w**4) + jnp.mean(s)

    def field(w, s):
        return jnp.sum(s) * w**3 + w[0] * w[1]

    def of_two(w, other, s):
        return jnp.sum((s @ w) ** 2 * (s @ other))

    def along(t, s):
        return jnp.sin(t) * jnp.sum(s) + t**2

    def looped(f):
        def g(w, *args):
            go = lambda c: (c[0] + 1, c[1] * 1.0)
            return f(lax.while_loop(lambda c: c[0] < 1, go, (0, w))[1], *args)
        return g

    # Each device's results, one after the other.
    def on_devices(f):
        def each(w, s):
            def out(a):
                a = a[None]
                kind = getattr(jax.typeof(a), "manual_axis_type", None)
                varies = not vma or "d" in kind.varying
                return a if varies else lax.pcast(a, "d", to="varying")
            return jax.tree.map(out, f(w, s))
        specs = dict(in_specs=(P(), P("d")), out_specs=P("d"), check_vma=vma)
        return jax.jit(jax.shard_map(each, mesh=mesh, **specs))(w, rows)

    def on_each(f):
        return [f(w, half) for half in halves]
"""

# By the name of an operator: the call, its modes, and what plain JAX makes of it.
SUMS = """
    FIRST = Forward(), Reverse()
    SECOND = (
        FORWARD_OVER_FORWARD, FORWARD_OVER_REVERSE, REVERSE_OVER_FORWARD,
        REVERSE_OVER_REVERSE,
    )
    fwd = jax.jacfwd
    third = fwd(fwd(fwd(number)))
    hess = fwd(fwd(number))
    slopes = lambda f, n: (lambda w, s: jnp.stack([  # by t, of f(w + t v)
        d(0.0) for d in nth(lambda t: f(w + t * v, s), n)
    ]))

    def nth(g, n):
        return [g] if n == 0 else [g, *nth(fwd(g), n - 1)]

    quartic = lambda w, s: fwd(fwd(fwd(fwd(number))))(w, s)
    crossed = fwd(fwd(of_two), 1)
    trace = jnp.trace
    h = hotk
    CASES = {
        "gradient": (h.gradient, number, (), {}, FIRST, fwd(number)),
        "jacobian": (h.jacobian, field, (), {}, FIRST, fwd(field)),
        "divergence": (
            h.divergence, field, (), {}, FIRST, lambda w, s: trace(fwd(field)(w, s))
        ),
        "vjp": (h.vjp, field, (u,), {}, FIRST, lambda w, s: u @ fwd(field)(w, s)),
        "hvp": (h.hvp, number, (v,), {}, SECOND, lambda w, s: hess(w, s) @ v),
        "quadratic_form": (
            h.quadratic_form, number, (v,), {}, (*SECOND, Taylor()),
            lambda w, s: v @ hess(w, s) @ v,
        ),
        "hessian": (h.hessian, number, (), {}, SECOND, hess),
        "hessian_diagonal": (
            h.hessian_diagonal, number, (), {}, (*SECOND, Taylor()),
            lambda w, s: jnp.diag(hess(w, s)),
        ),
        "laplacian": (
            h.laplacian, number, (), {}, (None,), lambda w, s: trace(hess(w, s))
        ),
        "biharmonic": (
            h.biharmonic, number, (), {}, (None,),
            lambda w, s: jnp.einsum("iijj", quartic(w, s)),
        ),
        "derivatives": (
            h.derivatives, number, (v,), dict(order=3), (None,), slopes(number, 3)
        ),
        "taylor": (
            h.taylor, number, (v,), dict(order=2), (None,),
            lambda w, s: slopes(number, 2)(w, s) / jnp.array([1.0, 1.0, 2.0]),
        ),
        "tvp": (
            lambda f, w, s, **m: h.tvp(f, w, v, u, v, args=(s,), **m), number, None, {},
            (None,), lambda w, s: jnp.einsum("ijk,i,j,k", third(w, s), v, u, v),
        ),
        "partial": (
            h.partial, number, ((1, 1),), {}, (None,), lambda w, s: hess(w, s)[0, 1]
        ),
        "derivative_tensor": (
            lambda f, w, s, **m: h.derivative_tensor(f, w, s, order=3, **m), number,
            None, {}, (None,), third,
        ),
        "derivative": (
            lambda f, w, s, **m: h.derivative(f, w[0], s, **m), along, None, {}, FIRST,
            lambda w, s: fwd(along)(w[0], s),
        ),
        "second_derivative": (
            lambda f, w, s, **m: h.second_derivative(f, w[0], s, **m), along, None, {},
            (*SECOND, Taylor()), lambda w, s: fwd(fwd(along))(w[0], s),
        ),
        "cross_hessian": (
            lambda f, w, s, **m: h.cross_hessian(f, w, w, s, **m), of_two, None, {},
            (None,), lambda w, s: crossed(w, w, s),
        ),
        "cross_hvp": (
            lambda f, w, s, **m: h.cross_hvp(f, w, v, w, s, **m), of_two, None, {},
            (None,), lambda w, s: crossed(w, w, s) @ v,
        ),
    }
    DERIVATIVES = {
        name for name in OPERATORS
        if not name.startswith("value_") and "sparse" not in name and name != "jvp"
    }
    assert DERIVATIVES == set(CASES), DERIVATIVES ^ set(CASES)

    for loop in (False, True):
        def calls(w, s):
            found = {}
            for name, (op, f, rest, more, modes, _) in CASES.items():
                f = looped(f) if loop else f
                for mode in modes:
                    if loop and ("reverse" in str(mode).lower()):
                        continue
                    given = more if mode is None else dict(more, mode=mode)
                    args = (s,) if rest is None else (*rest, s)
                    found[name, str(mode)] = op(f, w, *args, **given)
                args = (s,) if rest is None else (*rest, s)
                found[name, "auto"] = op(f, w, *args, **more)
            return {str(k): a for k, a in found.items()}

        got = on_devices(calls)
        for key, found in got.items():
            name = eval(key)[0]
            parts = on_each(CASES[name][-1])
            exact = [sum(parts)] * 2 if vma else parts
            found = jnp.stack(found, 1) if isinstance(found, list) else found
            np.testing.assert_allclose(
                found, np.stack(exact), rtol=1e-10, err_msg=f"{key} {loop}"
            )
    print("fine")
"""

OTHERS = """
    total = (lambda f: on_each(f)) if not vma else (lambda f: [sum(on_each(f))] * 2)
    near = lambda a, b: np.testing.assert_allclose(a, np.stack(b), rtol=1e-10)
    key, hess = jax.random.key(0), jax.jacfwd(jax.jacfwd(number))

    # Values stay those of each device, as in jax.value_and_grad; so do tangents.
    def calls(f):
        def run(w, s):
            H = hotk.HessianOperator(f, w, s)
            forward = dict(mode=hotk.FORWARD_OVER_FORWARD)
            return dict(
                gradient=hotk.value_and_gradient(f, w, s, mode=Forward()),
                hessian=hotk.value_gradient_and_hessian(f, w, s, **forward),
                hvp=hotk.value_gradient_and_hvp(f, w, v, s),
                laplacian=hotk.value_and_laplacian(f, w, s),
                vjp=hotk.value_and_vjp(f, w, 2.0, s),
                jvp=hotk.value_and_jvp(f, w, v, s),
                one=hotk.jvp(f, w, v, s),
                matrix=H.matrix(), value=H.value, slope=H.gradient,
                diagonal=H.diagonal(),
                trace=hotk.estimate.trace(H, key, samples=2).value,
                estimate=hotk.estimate.laplacian(f, w, key, s, samples=3).value,
                divergence=hotk.estimate.divergence(
                    lambda w, s: field(w, s) - w[::-1] * w[::-1], w, key, s, samples=3
                ).value,
                mixed=hotk.differential_operator({{(2, 0): 1.0, (0, 1): 3.0}})(f, w, s),
            )
        return run

    for f in (number, looped(number)):
        got = on_devices(calls(f))
        g, H = total(jax.jacfwd(number)), total(hess)
        near(got["gradient"][0], on_each(number))
        near(got["gradient"][1], g)
        near(got["hessian"][0], on_each(number))
        near(got["hessian"][1], g)
        near(got["hessian"][2], H)
        near(got["hvp"][0], on_each(number))
        near(got["hvp"][2], [a @ v for a in H])
        near(got["laplacian"][0], on_each(number))
        near(got["laplacian"][1], [jnp.trace(a) for a in H])
        near(got["vjp"][1], [2 * a for a in g])
        near(got["jvp"][0], on_each(number))
        near(got["jvp"][1], [a @ v for a in on_each(jax.jacfwd(number))])
        near(got["one"], got["jvp"][1])
        near(got["matrix"], H)
        near(got["value"], on_each(number))
        near(got["slope"], g)
        near(got["diagonal"], [jnp.diag(a) for a in H])
        near(got["mixed"], [a[0, 0] + 3 * b[1] for a, b in zip(H, g)])
        if vma:
            assert np.ptp(got["trace"]) == np.ptp(got["estimate"]) == 0
            assert np.ptp(got["divergence"]) == 0

    # A sparse matrix is that of the sum, too, and an optimizer minimizes the sum.
    plain = lambda w, s: jnp.mean(s) + jnp.sum(w**4)
    found = on_devices(lambda w, s: (
        hotk.value_gradient_and_sparse_hessian(plain, w, s)[0],
        hotk.sparse_hessian(plain, w, s).todense(),
        hotk.sparse_jacobian(lambda w, s: w**3 + jnp.mean(s), w, s).todense(),
    ))
    near(found[0], on_each(plain))
    near(found[1], total(jax.jacfwd(jax.jacfwd(plain))))
    near(found[2], total(jax.jacfwd(lambda w, s: w**3 + jnp.mean(s))))
    if vma:
        bowl = lambda w, s: jnp.sum((s - w) ** 2)  # the sum is least at the mean
        for transform in (hotk.optim.newton(), hotk.optim.trust_region()):
            x = on_devices(lambda w, s: hotk.optim.minimize(
                lambda w: bowl(w, s), w, transform, gtol=1e-9
            ).x)
            np.testing.assert_allclose(x, [rows.mean(0)] * 2, rtol=1e-8)

    # Of a point cast to each device, derivatives are its own, as in plain JAX.
    if vma:
        alone = lambda w: lax.pcast(w, "d", to="varying")
        near(on_devices(lambda w, s: hotk.hessian(number, alone(w), s)), on_each(hess))
        near(
            on_devices(lambda w, s: hotk.laplacian(number, alone(w), s)),
            [jnp.trace(a) for a in on_each(hess)],
        )
        # Leaves that differ have derivatives of their own, the others sums.
        both = lambda p, s: jnp.sum(jnp.sin(p["w"]) * p["z"] ** 2)
        for op in (
            lambda p, s: hotk.gradient(both, p, s),
            lambda p, s: hotk.gradient(both, p, s, mode=Forward()),
            lambda p, s: jax.grad(both)(p, s),
        ):
            g = on_devices(lambda w, s: op({{"w": w, "z": s[0] + 1}}, s))
            z = rows[::2] + 1
            near(g["w"], [(jnp.cos(w) * z**2).sum(0)] * 2)
            near(g["z"], 2 * z * jnp.sin(w))
        point = lambda w, z: {{"w": w, "z": z}}
        products = [
            on_devices(lambda w, s: op(point(w, s[0] + 1), point(v, s[1]), s))
            for op in (
                lambda p, d, s: hotk.hvp(both, p, d, s),
                lambda p, d, s: hotk.hvp(both, p, d, s, mode=FORWARD_OVER_FORWARD),
                lambda p, d, s: jax.jvp(lambda p: jax.grad(both)(p, s), (p,), (d,))[1],
            )
        ]
        for product in products[:2]:
            jax.tree.map(lambda a, b: near(a, list(b)), product, products[2])
        for op in (hotk.laplacian, hotk.hessian):
            mode = dict(mode=FORWARD_OVER_FORWARD) if op is hotk.hessian else {{}}
            try:
                on_devices(lambda w, s: op(both, {{"w": w, "z": s[0] + 1}}, s, **mode))
            except hotk.StructureError as error:
                assert "hotk.over_axis" in str(error), error
            else:
                raise AssertionError("neither one device's nor the sum, silently")
    print("fine")
"""


VMA = pytest.mark.parametrize(
    "vma", [True, pytest.param(False, marks=pytest.mark.exhaustive)]
)


@pytest.mark.exhaustive
@VMA
def test_all_modes_of_all_operators_return_the_sum_over_devices(vma):
    run_on_eight_devices(SETUP.format(vma=vma) + SUMS)


@pytest.mark.exhaustive
@VMA
def test_values_estimates_operators_and_optimizers_go_with_it(vma):
    run_on_eight_devices(SETUP.format(vma=vma) + OTHERS.format())


OWN_DIRECTIONS = """
    own = lambda s: jnp.array([1.0, 2.0]) * (1 + jnp.sum(s)) / 3
    refused = 0
    for f in (number, lambda w, s: lax.psum(number(w, s), "d")):
        for ask in (
            lambda f, w, v: hotk.hvp(f, w, v),
            lambda f, w, v: hotk.quadratic_form(f, w, v),
            lambda f, w, v: hotk.HessianOperator(f, w) @ v,
        ):
            # by itself, and after a direction that all devices hold alike
            for known in ((), (v,)):
                def both(w, s):
                    of = lambda w: f(w, s)
                    return [ask(of, w, each) for each in (*known, own(s))][-1]
                try:
                    on_devices(both)
                except hotk.StructureError as error:
                    assert "directions of their own along ['d']" in str(error), error
                    refused += 1
    assert refused == 12

    # The same function on all devices, the function of each, and tangents of one.
    sides = [np.asarray(own(half)) for half in halves]
    got = on_devices(lambda w, s: hotk.hvp(lambda w: jnp.sum(w**4), w, own(s)))
    assert np.allclose(got, [12 * np.asarray(w) ** 2 * a for a in sides])
    alone = lambda w: lax.pcast(w, "d", to="varying")
    got = on_devices(lambda w, s: hotk.hvp(lambda w: number(w, s), alone(w), own(s)))
    bend = lambda s: 12 * (s.T * (s @ w) ** 2) @ s + np.diag(12 * np.asarray(w) ** 2)
    assert np.allclose(got, [bend(h) @ a for h, a in zip(halves, sides)])
    got = on_devices(lambda w, s: hotk.jvp(lambda w: field(w, s), w, own(s)))
    slopes = [jax.jacobian(field)(w, h) @ a for h, a in zip(halves, sides)]
    assert np.allclose(got, slopes)
    print("fine")
"""


@pytest.mark.exhaustive
def test_directions_that_differ_by_device_at_a_point_that_does_not():
    run_on_eight_devices(SETUP.format(vma=True) + OWN_DIRECTIONS)


OWN_POINTS = """
    # Each device has a part of one vector, over which the function adds.
    from functools import partial
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12)
    whole, x = lambda x: jnp.sum(x) ** 3 + jnp.sum(x**4), jnp.arange(1.0, 5.0)
    gathered = lambda x: whole(lax.all_gather(x, "d", tiled=True))
    def summed(x):
        total, fourth = lax.psum((jnp.sum(x), jnp.sum(x**4)), "d")
        return total**3 + fourth
    def looped(x):
        total = lax.psum(jnp.sum(x), "d")
        stop = lambda s: s[1] < 3
        cube, _ = lax.while_loop(stop, lambda s: (s[0] * total, s[1] + 1), (1.0, 0))
        return cube + lax.psum(jnp.sum(x**4), "d")
    own = lambda a: lax.pcast(a, "d", to="varying")
    def run(op, x=x):
        part = lambda x: op(x)[None]
        return jax.jit(jax.shard_map(
            part, mesh=mesh, in_specs=P("d"), out_specs=P("d")
        ))(x)

    v = jnp.array([1.0, -2.0])
    slope = 3 * 10.0**2 + 4 * x**3
    product = 6 * 10.0 * -2 + 12 * x**2 * jnp.tile(v, 2)
    for f in (summed, gathered, looped):
        # what has one meaning, whatever the mode, is right
        copies = 1 if f is not gathered else 2  # each device has a value of its own
        for ask, truth in (
            (lambda f, x: hotk.gradient(f, x), slope),
            (lambda f, x: hotk.value_and_gradient(f, x)[1], slope),
            (lambda f, x: hotk.vjp(f, x, own(1.0) if copies == 2 else 1.0), slope),
            (lambda f, x: hotk.hvp(f, x, own(v)), product),
            (lambda f, x: hotk.HessianOperator(f, x) @ own(v), product),
        ):
            try:
                found = run(lambda x: ask(f, x))
            except hotk.ModeError as error:
                assert f is looped and "while_loop" in str(error), error
            else:
                assert f is not looped
                near(found.reshape(-1), copies * truth)
        form = jnp.tile(v, 2) @ product
        for ask in (
            lambda f, x: hotk.quadratic_form(f, x, own(v)),
            lambda f, x: hotk.quadratic_form(f, x, v),
            lambda f, x: hotk.quadratic_form(f, x, v, mode=FORWARD_OVER_FORWARD),
            lambda f, x: hotk.derivatives(f, x, own(v), order=2)[2],
            lambda f, x: 2 * hotk.taylor(f, x, v, order=2)[2],
        ):
            one = lambda x: ask(f, x) if copies == 2 else own(ask(f, x))
            near(run(one), form)
        # what has none is refused
        forward = dict(mode=Forward())
        H, G = hotk.HessianOperator, partial(hotk.GGNOperator, lambda p: p)
        for ask in (
            lambda f, x: hotk.gradient(f, x, **forward),
            lambda f, x: hotk.hessian(f, x),
            lambda f, x: hotk.jacobian(lambda x: f(x)[None], x),
            lambda f, x: hotk.jacobian(lambda x: f(x)[None], x, **forward),
            lambda f, x: hotk.hessian_diagonal(f, x),
            lambda f, x: hotk.laplacian(f, x),
            lambda f, x: hotk.quadratic_form(f, x, own(v), mode=FORWARD_OVER_REVERSE),
            lambda f, x: hotk.tvp(f, x, own(v), own(v)),
            lambda f, x: hotk.hvp(f, x, own(v), mode=FORWARD_OVER_FORWARD),
            lambda f, x: hotk.hvp(f, x, v),
            lambda f, x: H(f, x).matrix(),
            lambda f, x: H(f, x).diagonal(),
            lambda f, x: G(f, x).matrix(),
            lambda f, x: G(f, x).diagonal(),
            lambda f, x: hotk.sparse_hessian(f, x).todense(),
            lambda f, x: hotk.estimate.trace(H(f, x), jax.random.key(0)).value,
            lambda f, x: hotk.optim.minimize(f, x, max_steps=2).x,
        ):
            try:
                found = run(lambda x: ask(f, x))
            except (hotk.StructureError, hotk.ModeError) as error:
                known = ("an `x` of its own along 'd'", "while_loop", "an iteration in")
                assert any(text in str(error) for text in known), error
            else:
                raise AssertionError(f"{{f}}: {{found}}")

    # A function of this device's part alone is differentiated as anywhere.
    local = lambda x: jnp.sum(x**4) + x[0] * x[1]
    bend = lambda x: np.diag(12 * x**2) + [[0, 1], [1, 0]]
    for ask in (hotk.hessian, lambda f, x: H(f, x).matrix()):
        near(run(lambda x: ask(local, x)), [bend(x[:2]), bend(x[2:])])
    near(run(lambda x: hotk.hvp(local, x, v)), [bend(x[:2]) @ v, bend(x[2:]) @ v])
    print("fine")
"""


def test_points_that_differ_by_device_and_a_function_that_adds_over_them():
    run_on_eight_devices(SETUP.format(vma=True) + OWN_POINTS.format())
