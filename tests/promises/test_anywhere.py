"""The same numbers on one device and on eight, however data and parameters are split.

Along automatic and explicit axes of a mesh; inside of `shard_map` see
`tests/rule/test_over_axis.py`.
"""

import pytest

from tests.devices import run_on_eight_devices


SETUP = """
    import re, jax, jax.numpy as jnp, numpy as np, optax, hotk
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    KIND, WHAT = "{kind}", "{what}"
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType[KIND],))
    ALL = NamedSharding(mesh, P())
    rng = np.random.default_rng(0)
    host = {{"W": rng.normal(size=(8, 3)) / 3, "u": rng.normal(size=3), "b": 0.3}}
    X, Y = rng.normal(size=(32, 8)), rng.normal(size=32)
    specs = {{"W": P("data", None)}} if WHAT == "parameters" else {{}}
    rows = P("data") if WHAT == "data" else P()

    def gathered(p):
        # along explicit axes a sum over what is divided has no type of its own
        if KIND == "Explicit" and WHAT == "parameters" and jax.typeof(
            p["W"]
        ).sharding.mesh.axis_names:
            return jax.tree.map(lambda a: jax.sharding.reshard(a, ALL), p)
        return p

    def model(p, X):
        p = gathered(p)
        return jnp.tanh(X @ p["W"] + p["b"]) @ p["u"]

    def loss(p, X, Y):
        own = sum(jnp.sum(a**2) for a in jax.tree.leaves(gathered(p)))
        return jnp.mean((model(p, X) - Y) ** 2) + own

    place = lambda a, spec=P(): jax.device_put(a, NamedSharding(mesh, spec))
    many = (
        {{k: place(a, specs.get(k, P())) for k, a in host.items()}},
        place(X, rows), place(Y, rows),
    )
    one = jax.tree.map(jnp.asarray, (host, X, Y))
    key = jax.random.key(0)
    cosines = lambda p: jax.tree.map(jnp.cos, p)

    def flat(tree):
        return np.concatenate([np.ravel(np.asarray(a)) for a in jax.tree.leaves(tree)])

    def check(name, op, exact=None):
        found = op(*many)
        exact = flat(op(*one)) if exact is None else flat(exact)
        np.testing.assert_allclose(
            flat(found), exact, rtol=1e-10, atol=1e-10, err_msg=name
        )
        if isinstance(found, dict) and found.keys() == host.keys():
            for k, a in found.items():
                if isinstance(a, jax.Array) and a.shape == np.shape(host[k]):
                    spec = NamedSharding(mesh, specs.get(k, P()))
                    same = a.sharding.is_equivalent_to(spec, a.ndim)
                    assert same, (name, k, a.sharding)

    def within_its_bars(name, op, exact):
        # on one device a small space is computed exactly, or in another order
        found = op(*many)
        far = np.abs(flat(found.value) - flat(exact))
        assert np.mean(far <= 4 * flat(found.error) + 1e-8) > 0.95, (name, found, exact)

    def from_flat(a):
        return loss({{"W": a[:24].reshape(8, 3), "b": a[24], "u": a[25:]}}, X, Y)

    start = np.concatenate([host["W"].ravel(), [host["b"]], host["u"]])
    A = np.asarray(jax.jit(jax.hessian(from_flat))(start))
    slope = np.asarray(jax.jit(jax.grad(from_flat))(start))
    v = np.concatenate([np.cos(host["W"]).ravel(), [np.cos(0.3)], np.cos(host["u"])])
    H = lambda p, X, Y: hotk.HessianOperator(loss, p, X, Y)
    G = lambda p, X, Y: hotk.GGNOperator(
        model, hotk.curvature.SquaredError(Y), p, X
    ) + hotk.Identity()
    tree = lambda a: {{"W": a[:24].reshape(8, 3), "b": a[24], "u": a[25:]}}
"""

OPERATORS = """
    order = np.r_[0:24, 24, 25:28]
    check("gradient", lambda p, *a: hotk.gradient(loss, p, *a), tree(slope))
    check("hvp", lambda p, *a: hotk.hvp(loss, p, cosines(p), *a), tree(A @ v))
    check("H @ v", lambda p, *a: H(p, *a) @ cosines(p), tree(A @ v))
    check("linearized", lambda p, *a: H(p, *a).linearize("store") @ cosines(p),
          tree(A @ v))
    check("matrix", lambda p, *a: H(p, *a).matrix(), A)
    check("diagonal", lambda p, *a: hotk.hessian_diagonal(loss, p, *a),
          tree(np.diag(A)))
    check("form", lambda p, *a: hotk.quadratic_form(loss, p, cosines(p), *a), v @ A @ v)
    each = {
        "value_and_gradient": lambda p, *a: hotk.value_and_gradient(loss, p, *a),
        "all": lambda p, *a: hotk.value_gradient_and_hvp(loss, p, cosines(p), *a),
        "batched": lambda p, *a: hotk.hvp(
            loss, p, jax.tree.map(lambda b: jnp.stack([b, 2 * b]), p), *a, batched=True
        ),
        "hessian": lambda p, *a: hotk.hessian(loss, p, *a),
        "jacobian": lambda p, X, Y: hotk.jacobian(model, p, X),
        "jvp": lambda p, X, Y: hotk.jvp(model, p, cosines(p), X),
        "vjp": lambda p, X, Y: hotk.vjp(model, p, model(p, X), X),
        "laplacian": lambda p, *a: hotk.laplacian(loss, p, *a),
        "derivatives": lambda p, *a: hotk.derivatives(
            loss, p, cosines(p), *a, order=3
        ),
        "tvp": lambda p, *a: hotk.tvp(
            lambda p: loss(p, *a), p, p, cosines(p), p
        ),
        "ggnvp": lambda p, X, Y: hotk.ggnvp(
            model, hotk.curvature.SquaredError(Y), p, cosines(p), X
        ),
        "fvp": lambda p, X, Y: hotk.fvp(
            model, hotk.curvature.SquaredError(Y), p, cosines(p), X
        ),
        "H.diagonal": lambda *a: H(*a).diagonal(),
        "H.block": lambda *a: H(*a).block("W", "u"),
        "cholesky": lambda *a: G(*a).cholesky(),
        "derivative_tensor": lambda p, *a: hotk.derivative_tensor(
            lambda b, p, *a: loss({**p, "b": b}, *a), p["b"], p, *a, order=3
        ),
    }
    for name, op in each.items():
        check(name, op)
    print("fine")
"""

SOLVERS = """
    positive = lambda *a: G(*a)
    B = np.asarray(positive(*one).matrix())
    check("cg", lambda *a: hotk.linop.cg(positive(*a), cosines(a[0]), tol=1e-13).x,
          tree(np.linalg.solve(B, v)))
    check("minres", lambda *a: hotk.linop.minres(H(*a), cosines(a[0]), tol=1e-13).x,
          tree(np.linalg.solve(A, v)))
    check("solve", lambda *a: positive(*a).solve(cosines(a[0]), tol=1e-13).x,
          tree(np.linalg.solve(B, v)))
    check("eigh", lambda *a: H(*a).eigh(3, tol=1e-12).values,
          np.linalg.eigvalsh(A)[-3:])
    check("matrix of a GGN", lambda *a: positive(*a).matrix(), B)
    each = {
        "steihaug": lambda *a: hotk.linop.steihaug(positive(*a), cosines(a[0]), 0.1).x,
    }
    for name, op in each.items():
        check(name, op)
    within_its_bars("trace", lambda *a: hotk.estimate.trace(H(*a), key), np.trace(A))
    within_its_bars("estimated diagonal",
                    lambda *a: hotk.estimate.diagonal(H(*a), key), tree(np.diag(A)))
    within_its_bars("logdet", lambda *a: hotk.estimate.logdet(positive(*a), key),
                    np.linalg.slogdet(B)[1])
    largest = hotk.estimate.spectrum(H(*many), key).largest
    np.testing.assert_allclose(largest, np.linalg.eigvalsh(A)[-1], rtol=1e-3)
    print("fine")
"""

OPTIMIZERS = """
    o = hotk.optim

    def steps(transform, f, p, count=2):
        state = transform.init(p)
        for _ in range(count):
            value, g = hotk.value_and_gradient(f, p)
            update, state = transform.update(
                g, state, p, value=value, grad=g, value_fn=f
            )
            p = optax.apply_updates(p, update)
        return p

    # systems are solved to the end: where a truncated solve stops, rounding decides
    each = {
        "newton_cg": lambda: o.newton_cg(max_tol=1e-13),
        "trust_region": lambda: o.trust_region(max_tol=1e-13),
        "sophia": lambda: o.sophia(0.1),
        "adahessian": lambda: o.adahessian(0.1),
        "newton": o.newton,
        "cubic": o.cubic_newton,
        "exact": lambda: o.trust_region(subproblem="exact"),
    }
    for name, make in each.items():
        check(name, lambda p, X, Y: steps(make(), lambda p: loss(p, X, Y), p))
    squares = lambda X, Y: (lambda p: hotk.curvature.GaussNewton(
        lambda p: model(p, X) - Y, lambda z: jnp.mean(z**2))(p))
    check("levenberg_marquardt", lambda p, X, Y: steps(
        o.levenberg_marquardt(max_tol=1e-13), squares(X, Y), p))
    check("minimize", lambda p, X, Y: hotk.optim.minimize(
        lambda p: loss(p, X, Y), p, o.newton_cg(max_tol=1e-13), tol=1e-12).x)
    print("fine")
"""

# One sum for several arrays is an optimization of XLA.
OPTIMIZED = """
    import os
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "0"
"""

REDUCTIONS = """
    batch = jax.tree.map(lambda a: jnp.stack([a] * 8), many[0])
    each = {
        "gradient": (hotk.gradient, ()),
        "hvp": (hotk.hvp, (many[0],)),
        "all": (hotk.value_gradient_and_hvp, (many[0],)),
        "batched": (hotk.hvp, (batch,)),
    }
    def count(text):
        return len(re.findall(r"= .*[ ]all-reduce(?:-start)?[(]", text))

    for name, (op, directions) in each.items():
        options = {"batched": True} if name == "batched" else {}
        made = op.prepare(loss, many[0], *directions, *many[1:], **options)
        assert count(made.program.compiled.as_text()) == 1, name
    operator = H(*many)
    run = jax.jit(lambda H, v: H @ v).lower(operator, cosines(many[0]))
    assert count(run.compile().as_text()) == 1
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("what", ["data", "parameters"])
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize(
    "code", [OPERATORS, SOLVERS, OPTIMIZERS], ids=["operators", "solvers", "optimizers"]
)
def test_eight_devices_give_the_numbers_of_one(code, kind, what):
    run_on_eight_devices(SETUP.format(kind=kind, what=what) + code)


@pytest.mark.exhaustive
def test_a_product_takes_one_sum_over_the_devices():
    run_on_eight_devices(
        OPTIMIZED + SETUP.format(kind="Auto", what="data") + REDUCTIONS
    )
