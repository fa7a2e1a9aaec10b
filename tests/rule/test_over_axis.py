"""`over_axis` inside of `shard_map`, on eight devices, against whole arrays on one."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import hotk
from tests.devices import run_on_eight_devices


SETUP = """
    import re, jax, jax.numpy as jnp, numpy as np, optax, hotk
    from jax.sharding import AxisType, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(0)
    X, Y = jnp.asarray(rng.normal(size=(64, 3))), jnp.asarray(rng.normal(size=64))
    p = {{
        "w": jnp.asarray(rng.normal(size=(3, 5))),
        "u": jnp.asarray(rng.normal(size=5)),
        "b": jnp.asarray(0.3),
    }}
    v, key = jax.tree.map(jnp.cos, p), jax.random.key(0)

    def loss(p, X, Y):
        return jnp.mean((jnp.tanh(X @ p["w"] + p["b"]) @ p["u"] - Y) ** 2)

    def reduced(p, X, Y):
        return jax.lax.pmean(loss(p, X, Y), "data")

    def centered(p, X, Y, mean=lambda h: h.mean(0)):
        h = X @ p["w"]
        return jnp.mean((jnp.tanh(h - mean(h)) @ p["u"] - Y) ** 2)

    def normalized(p, X, Y):
        return centered(p, X, Y, lambda h: jax.lax.pmean(h.mean(0), "data"))

    def curved(p, X, Y):
        model = lambda p: jnp.tanh(X @ p["w"] + p["b"]) @ p["u"] - Y
        return hotk.curvature.GaussNewton(model, lambda z: jnp.mean(z**2))(p)

    def inside(op, f, vma):
        run = lambda p, v, X, Y: op(f, p, v, X, Y)
        specs = P(), P(), P("data"), P("data")
        return jax.jit(jax.shard_map(
            run, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=vma
        ))

    def flat(tree):
        return np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)])

    def check(name, op, f, whole, vma):
        exact = flat(jax.jit(lambda p, v: op(whole, p, v, X, Y))(p, v))
        got = flat(inside(op, hotk.over_axis(f, "data"), vma)(p, v, X, Y))
        np.testing.assert_allclose(got, exact, rtol=1e-9, atol=1e-9, err_msg=name)

    vma = {vma}
"""

OPERATORS = """
    known = {
        "gradient": lambda f, p, v, *a: jax.grad(f)(p, *a),
        "hvp": lambda f, p, v, *a: jax.jvp(jax.grad(lambda q: f(q, *a)), (p,), (v,))[1],
        "hessian": lambda f, p, v, *a: jax.hessian(f)(p, *a),
    }
    ours = {
        "gradient": lambda f, p, v, *a: hotk.gradient(f, p, *a),
        "hvp": lambda f, p, v, *a: hotk.hvp(f, p, v, *a),
        "hessian": lambda f, p, v, *a: hotk.hessian(f, p, *a),
    }
    pairs = (loss, loss), (reduced, loss), (normalized, centered), (loss, loss)
    for f, whole in pairs:
        for name, op in ours.items():
            exact = flat(jax.jit(lambda p, v: known[name](whole, p, v, X, Y))(p, v))
            run = inside(op, hotk.over_axis(f, "data"), vma)
            np.testing.assert_allclose(flat(run(p, v, X, Y)), exact, rtol=1e-10)
            text = run.lower(p, v, X, Y).compile().as_text()
            count = len(re.findall(r"= .*[ ]all-reduce(?:-start)?[(]", text))
            assert f is normalized or count == (1 if f is loss else 2), (f, name, count)
    total = hotk.over_axis(loss, "data", "sum")
    run = inside(lambda f, p, v, *a: hotk.hvp(f, p, v, *a), total, vma)
    exact = 8 * flat(known["hvp"](loss, p, v, X, Y))
    np.testing.assert_allclose(flat(run(p, v, X, Y)), exact, rtol=1e-10)
    print("fine")
"""

MORE = """
    modes = {
        str(mode): (lambda f, p, v, *a, mode=mode: hotk.hvp(f, p, v, *a, mode=mode))
        for mode in (
            hotk.REVERSE_OVER_REVERSE, hotk.REVERSE_OVER_FORWARD,
            hotk.FORWARD_OVER_FORWARD,
        )
    }
    H = hotk.HessianOperator
    squares = lambda tree: sum(jnp.sum(a**2) for a in jax.tree.leaves(tree))
    definite = lambda f: (lambda p, *a: f(p, *a) + 3 * squares(p))
    ops = modes | {
        "third": lambda f, p, v, *a: hotk.derivatives(f, p, v, *a, order=3),
        "all at once": lambda f, p, v, *a: hotk.value_gradient_and_hvp(f, p, v, *a),
        "form": lambda f, p, v, *a: hotk.quadratic_form(f, p, v, *a),
        "batched": lambda f, p, v, *a: jax.vmap(
            lambda s: hotk.hvp(f, p, jax.tree.map(lambda b: s * b, v), *a)
        )(jnp.arange(4.0)),
        "of a gradient": lambda f, p, v, *a: jax.grad(
            lambda p: squares(hotk.gradient(f, p, *a))
        )(p),
        "prepared": lambda f, p, v, *a: hotk.hvp.prepare(f, p, v, *a)(p, v, *a),
        "H @ v": lambda f, p, v, *a: H(f, p, *a) @ v,
        "matrix": lambda f, p, v, *a: H(f, p, *a).matrix(),
        "diagonal": lambda f, p, v, *a: H(f, p, *a).diagonal(),
        "solve": lambda f, p, v, *a: H(definite(f), p, *a).solve(v),
        "eigh": lambda f, p, v, *a: H(f, p, *a).eigh(2).values,
        "trace": lambda f, p, v, *a: hotk.estimate.trace(H(f, p, *a), key).value,
        "laplacian": lambda f, p, v, *a: hotk.laplacian(f, p, *a),
    }
    for name, op in ops.items():
        check(name, op, loss, loss, vma)
    for name in ("H @ v", "matrix", "all at once"):
        check(name, ops[name], curved, curved, vma)
    print("fine")
"""

OPTIMIZERS = """
    o = hotk.optim

    def steps(transform, f, p, *args):
        state = transform.init(p)
        for _ in range(2):
            value, g = hotk.value_and_gradient(f, p, *args)
            update, state = transform.update(
                g, state, p, value=value, grad=g, value_fn=lambda q: f(q, *args)
            )
            p = optax.apply_updates(p, update)
        return p

    # systems are solved to the end: where a truncated solve stops, rounding decides
    each = {
        "newton_cg": (o.newton_cg(), loss),
        "trust_region": (o.trust_region(subproblem="exact"), loss),
        "newton": (o.newton(), loss),
        "cubic": (o.cubic_newton(), loss),
        "levenberg": (o.levenberg_marquardt(max_tol=1e-10), curved),
        "sophia": (o.sophia(0.1), loss),
    }
    for name, (transform, f) in each.items():
        op = lambda f, p, v, *a: steps(transform, f, p, *a)
        check(name, op, f, f, vma)
    print("fine")
"""

REFUSED = """
    def counted(p, X, Y):
        # a number of examples has no derivative: it may be added over the devices
        kept = (Y > 0).astype(float)
        errors = kept * (jnp.tanh(X @ p["w"] + p["b"]) @ p["u"] - Y) ** 2
        return jnp.sum(errors) / jax.lax.psum(jnp.sum(kept), "data")

    def nested(p, X, Y):
        step = lambda c, _: (jax.lax.pmean(loss(p, X, Y), "data") + c, None)
        return jax.lax.scan(jax.jit(step), 0.0, None, length=2)[0]

    for op in (
        lambda f, p, v, *a: hotk.gradient(f, p, *a),
        lambda f, p, v, *a: hotk.HessianOperator(f, p, *a) @ v,
        lambda f, p, v, *a: hotk.hvp.prepare(f, p, v, *a)(p, v, *a),
    ):
        for f in (reduced, normalized, nested):
            try:
                inside(op, f, False)(p, v, X, Y)
            except hotk.ModeError as error:
                assert "hotk.over_axis(f, 'data')" in str(error), error
            else:
                raise AssertionError("one device's derivative, silently")
        summed = lambda *args, op=op: jax.lax.psum(op(*args), "data")
        found = flat(inside(summed, counted, False)(p, v, X, Y))
        kept = np.asarray(Y > 0)
        whole = lambda p, X, Y: loss(p, X[kept], Y[kept])
        np.testing.assert_allclose(found, flat(op(whole, p, v, X, Y)), rtol=1e-10)
        np.testing.assert_allclose(
            flat(inside(op, reduced, True)(p, v, X, Y)),
            flat(op(loss, p, v, X, Y)), rtol=1e-10,
        )
    print("fine")
"""


# The mean of products of each device's part, computed one after the other on one.
AXIS_NAME = """
    net = lambda p, X: jnp.tanh(X @ p["w"] + p["b"]) @ p["u"]
    squares, key = hotk.curvature.SquaredError, jax.random.key(0)
    makers = {{
        "Hessian": lambda p, X, Y, **n: hotk.HessianOperator(loss, p, X, Y, **n),
        "GGN": lambda p, X, Y, **n: hotk.GGNOperator(net, squares(Y), p, X, **n),
        "Fisher": lambda p, X, Y, **n: hotk.FisherOperator(net, squares(Y), p, X, **n),
        "sampled": lambda p, X, Y, **n: hotk.SampledFisherOperator(
            net, squares(Y), p, X, key=key, **n
        ),
        "empirical": lambda p, X, Y, **n: hotk.EmpiricalFisherOperator(
            net, squares(Y), p, X, **n
        ),
    }}
    for name, make in makers.items():
        parts = [slice(8 * i, 8 * i + 8) for i in range(8)]
        each = [flat(make(p, X[part], Y[part]) @ v) for part in parts]
        run = lambda p, v, X, Y: make(p, X, Y, axis_name="data") @ v
        specs = P(), P(), P("data"), P("data")
        whole = jax.jit(jax.shard_map(
            run, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=vma
        ))
        got = flat(whole(p, v, X, Y))
        np.testing.assert_allclose(got, np.mean(each, 0), rtol=1e-10, err_msg=name)
    G = lambda p, X, Y: jnp.array(
        makers["GGN"](p, X, Y, axis_name="data").positive_semidefinite
    )
    assert inside(lambda f, p, v, X, Y: G(p, X, Y), loss, False)(p, v, X, Y)
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("vma", [True, False])
def test_operators_take_the_name_of_the_axis(vma):
    run_on_eight_devices(SETUP.format(vma=vma) + AXIS_NAME.format())


@pytest.mark.exhaustive
@pytest.mark.parametrize("vma", [True, False])
def test_derivatives_are_those_of_the_whole_by_one_sum(vma):
    run_on_eight_devices(SETUP.format(vma=vma) + OPERATORS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize("code", [MORE, OPTIMIZERS], ids=["operators", "optimizers"])
def test_solvers_estimates_and_optimizers_need_nothing_else(code, vma):
    run_on_eight_devices(SETUP.format(vma=vma) + code)


@pytest.mark.exhaustive
def test_derivatives_of_one_device_are_refused_where_they_would_be_silent():
    run_on_eight_devices(SETUP.format(vma=False) + REFUSED)


def loss(w, rows):
    """Return a loss of some rows."""
    return jnp.mean(jnp.tanh(rows @ w) ** 2)


ROWS = jnp.arange(8.0).reshape(4, 2) / 8


def on_one_device(run, *names, **options):
    """Run a function of a point inside of a `shard_map` over one device."""
    kinds = (AxisType.Auto,) * len(names)
    mesh = jax.make_mesh((1,) * len(names), names, axis_types=kinds)
    inside = jax.shard_map(run, mesh=mesh, in_specs=P(), out_specs=P(), **options)
    return jax.jit(inside)(jnp.ones(2))


def test_a_call_outside_of_the_axis_is_refused():
    f = hotk.over_axis(loss, "data")
    with pytest.raises(hotk.StructureError, match="a call outside of"):
        hotk.gradient(f, jnp.ones(2), ROWS)
    with pytest.raises(hotk.StructureError, match="the axes 'rows'"):
        on_one_device(lambda w: hotk.gradient(f, w, ROWS), "rows")
    over = hotk.over_axis(lambda w: jnp.sum(w), "data", shared=(0, 1))
    with pytest.raises(hotk.StructureError, match="1 positional arguments"):
        on_one_device(over, "data")
    with pytest.raises(ValueError, match="'median'"):
        hotk.over_axis(loss, "data", "median")
    for axes, shared in [((), 0), (3, 0), (None, 0), ("data", 2.5), ("data", "w")]:
        with pytest.raises(ValueError, match="give one or several axes"):
            hotk.over_axis(loss, axes, shared=shared)


@pytest.mark.parametrize("vma", [True, False])
def test_auxiliary_outputs_and_other_arguments_are_passed_on(vma):
    def f(w, scale, rows=ROWS, name=""):
        assert name == "net"
        return scale * loss(w, rows), {"rows": len(rows)}

    over = hotk.over_axis(f, ("data", "model"), shared=(0, 1), has_aux=True)

    def both(w):
        call = lambda w, scale: over(w, scale, name="net")
        g, aux = hotk.gradient(call, w, jnp.array(2.0), has_aux=True)
        slope, _ = hotk.gradient(call, w, jnp.array(2.0), has_aux=True, argnums=1)
        return g, slope, aux["rows"]

    g, slope, count = on_one_device(both, "data", "model", check_vma=vma)
    w = jnp.ones(2)
    assert jnp.allclose(g, 2 * jax.grad(loss)(w, ROWS))
    assert jnp.allclose(slope, loss(w, ROWS))
    assert count == 4


def test_a_new_closure_over_the_axis_is_the_same_program():
    over = hotk.over_axis(loss, "data")
    assert over == hotk.over_axis(loss, "data")
    assert over != hotk.over_axis(loss, "data", "sum")
    assert "axis_name=('data',)" in repr(over)


ELSEWHERE = {
    "an operator": (
        lambda: hotk.hvp(loss, jnp.ones(2), jnp.ones(2), axis_name="d"),
        "",
    ),
    "an optimizer": (lambda: hotk.optim.newton_cg(axis_name="d"), ""),
    "minimize": (
        lambda: hotk.optim.minimize(
            loss, jnp.ones(2), hotk.optim.newton_cg(), axis_name="d"
        ),
        "",
    ),
    "factors": (
        lambda: hotk.KFACOperator(loss, loss, jnp.ones(2), ROWS, axis_name="d"),
        "outside of `shard_map`",
    ),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_the_name_of_an_axis_elsewhere_says_what_to_write(name, as_user):
    call, text = ELSEWHERE[name]
    with pytest.raises(TypeError, match=text or r"hotk\.over_axis\(f, \"data\"\)"):
        call()
