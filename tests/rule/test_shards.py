"""Parameters that `shard_map` divides, on eight devices, against whole ones on one."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec as P

import hotk
from tests.devices import run_on_eight_devices


SETUP = """
    import jax, jax.numpy as jnp, numpy as np, optax, hotk
    from jax.sharding import AxisType, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    VMA, o = {vma}, hotk.optim
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(0)
    p = {{
        "W": jnp.asarray(rng.normal(size=(8, 3)) / 3),
        "b": jnp.asarray(0.3),
        "u": jnp.asarray(rng.normal(size=3)),
    }}
    specs = {{"W": P("data"), "b": P(), "u": P()}}
    X, Y = jnp.asarray(rng.normal(size=(32, 8))), jnp.asarray(rng.normal(size=32))
    v, key = jax.tree.map(jnp.cos, p), jax.random.key(0)

    def model(p, X):
        return jnp.tanh(X @ p["W"] + p["b"]) @ p["u"]

    def whole(p, X, Y):
        own = sum(jnp.sum(a**2) for a in jax.tree.leaves(p))
        return jnp.mean((model(p, X) - Y) ** 2) + own

    def gathered(p):
        return {{**p, "W": jax.lax.all_gather(p["W"], "data", tiled=True)}}

    def part(p, X, Y):
        return whole(gathered(p), X, Y)

    over = hotk.over_axis(part, "data")

    def flat(tree):
        return np.concatenate([np.ravel(a) for a in jax.tree.leaves(tree)])

    def inside(op, f=over, marked=True):
        def run(p, v, X, Y):
            if marked:
                p, v = hotk.as_shards(p, specs), hotk.as_shards(v, specs)
            return hotk.from_shards(op(f, p, v, X, Y))
        return jax.jit(jax.shard_map(
            run, mesh=mesh, in_specs=(specs, specs, P("data"), P("data")),
            out_specs=specs if op in LIKE else P(), check_vma=VMA,
        ))

    LIKE = set()

    def check(name, op, like=True, tol=1e-10, f=over, exact=whole):
        if like:
            LIKE.add(op)
        got = flat(inside(op, f)(p, v, X, Y))
        known = flat(jax.jit(lambda p, v: op(exact, p, v, X, Y))(p, v))
        np.testing.assert_allclose(got, known, rtol=tol, atol=tol, err_msg=name)

    def refused(name, op, f=over, marked=True, what="part|Shard|unit", error=None):
        import re
        try:
            inside(op, f, marked)(p, v, X, Y)
        except error or hotk.StructureError as raised:
            assert re.search(what, str(raised)), (name, raised)
        else:
            raise AssertionError(name + ": one device's result, silently")

    H = hotk.HessianOperator
"""

PRODUCTS = """
    check("gradient", lambda f, p, v, *a: hotk.gradient(f, p, *a))
    check("hvp", lambda f, p, v, *a: hotk.hvp(f, p, v, *a))
    check("form", lambda f, p, v, *a: hotk.quadratic_form(f, p, v, *a), like=False)
    solve = lambda f, p, v, *a: hotk.linop.cg(
        H(f, p, *a) + 5 * hotk.Identity(), v, tol=1e-13
    ).x
    check("cg", solve)
    known = jax.hessian(lambda q: whole(q, X, Y))(p)
    product = inside(lambda f, p, v, *a: hotk.hvp(f, p, v, *a)["u"])
    exact = sum(np.tensordot(known["u"][k], v[k], v[k].ndim) for k in p)
    np.testing.assert_allclose(product(p, v, X, Y), exact, rtol=1e-10)

    refused("hessian", lambda f, p, v, *a: hotk.hessian(f, p, *a), what="unit")
    refused("unmarked", lambda f, p, v, *a: hotk.gradient(f, p, *a), marked=False,
            what="as_shards")
    penalty = lambda p, *a: over(p, *a) + sum(
        jnp.sum(a**2) for a in jax.tree.leaves(p)
    )
    refused("penalty", lambda f, p, v, *a: hotk.hvp(f, p, v, *a), f=penalty,
            what="outside of `over_axis`")
    print("fine")
"""

SOLVERS = """
    check("all at once", lambda f, p, v, *a: hotk.value_gradient_and_hvp(
        f, p, v, *a)[2])
    third = lambda f, p, v, *a: hotk.derivatives(f, p, v, *a, order=3)
    check("third", third, like=False)
    check("H @ v", lambda f, p, v, *a: H(f, p, *a) @ v)
    check("stored", lambda f, p, v, *a: H(f, p, *a).linearize("store") @ v)
    check("form", lambda f, p, v, *a: H(f, p, *a).quadratic_form(v), like=False)
    check("minres", lambda f, p, v, *a: hotk.linop.minres(
        H(f, p, *a), v, tol=1e-13).x)
    check("solve", lambda f, p, v, *a: H(f, p, *a).solve(v, tol=1e-13).x)
    check("steihaug", lambda f, p, v, *a: hotk.linop.steihaug(
        H(f, p, *a), v, 0.1, tol=1e-13).x)
    check("preconditioned", lambda f, p, v, *a: hotk.linop.cg(
        H(f, p, *a) + 5 * hotk.Identity(), v, tol=1e-13,
        preconditioner=hotk.Diagonal(jax.tree.map(jnp.ones_like, v)),
    ).x)
    check("eigh", lambda f, p, v, *a: H(f, p, *a).eigh(3, tol=1e-12).values, False)
    vectors = lambda f, p, v, *a: jax.tree.map(
        lambda b: jnp.abs(b[0]), H(f, p, *a).eigh(1, tol=1e-12).vectors)
    check("eigenvector", vectors, tol=1e-7)
    squares = hotk.curvature.SquaredError
    sharded = lambda p, X: model(gathered(p) if len(p["W"]) == 1 else p, X)
    def ggn(f, p, v, X, Y):
        named = dict(axis_name="data") if f is over else {}
        return hotk.GGNOperator(sharded, squares(Y), p, X, **named) @ v
    check("GGN", ggn)
    print("fine")
"""

ESTIMATES = """
    matrix = np.asarray(H(whole, p, X, Y).matrix())
    def estimate(op):
        both = lambda f, p, v, *a: (lambda e: (e.value, e.error))(op(f, p, v, *a))
        return inside(both)(p, v, X, Y)
    e = hotk.estimate
    definite = np.linalg.slogdet(matrix + 5 * np.eye(28))[1]
    exact = {
        "trace": (lambda f, p, v, *a: e.trace(H(f, p, *a), key, samples=10),
                  np.trace(matrix)),
        "hutchinson": (lambda f, p, v, *a: e.trace(
            H(f, p, *a), key, samples=60, method="hutchinson"), np.trace(matrix)),
        "hutch++": (lambda f, p, v, *a: e.trace(
            H(f, p, *a), key, samples=8, method="hutch++"), np.trace(matrix)),
        "as many as dimensions": (
            lambda f, p, v, *a: e.trace(H(f, p, *a), key, samples=28),
            np.trace(matrix)),
        "logdet": (lambda f, p, v, *a: e.logdet(
            H(f, p, *a) + 5 * hotk.Identity(), key, samples=20, steps=20), definite),
    }
    for name, (op, known) in exact.items():
        value, error = estimate(op)
        far = abs(float(value) - known)
        assert far <= 4 * float(error) + 1e-7 * abs(known), (name, value, error, known)
        assert name != "hutchinson" or error > 0
    diagonal = lambda f, p, v, *a: e.diagonal(H(f, p, *a), key, samples=20).value
    LIKE.add(diagonal)
    found = flat(inside(diagonal)(p, v, X, Y))
    assert np.max(np.abs(found - np.diag(matrix))) < 0.3 * np.max(matrix), found
    # a sample of this size from the parts of eight devices has no two alike
    run = lambda f, p, v, *a: hotk.linop.space.random(key, v)
    LIKE.add(run)
    rows = inside(run)(p, v, X, Y)["W"]
    assert len(np.unique(np.asarray(rows))) == 24, rows
    print("fine")
"""

OPTIMIZERS = """
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
        "newton_cg": o.newton_cg(max_tol=1e-13),
        "trust_region": o.trust_region(subproblem="steihaug", max_tol=1e-13),
        "levenberg_marquardt": o.levenberg_marquardt(max_tol=1e-13),
    }
    def sums(gather):
        def f(p, X, Y):
            r = lambda p: model(gather(p), X) - Y
            return hotk.curvature.GaussNewton(r, lambda z: jnp.mean(z**2))(p)
        return f
    for name, transform in each.items():
        op = lambda f, p, v, *a: steps(transform, f, p, *a)
        is_sum = name == "levenberg_marquardt"
        f = hotk.over_axis(sums(gathered), "data") if is_sum else over
        check(name, op, f=f, exact=sums(lambda p: p) if is_sum else whole, tol=1e-9)
    check("minimize", lambda f, p, v, *a: o.minimize(
        lambda q: f(q, *a), p, o.newton_cg(max_tol=1e-13), tol=1e-12).x)
    # of a diagonal Hessian every draw of signs gives the diagonal
    apart = lambda p, X, Y: sum(jnp.sum(jnp.cosh(a)) for a in jax.tree.leaves(p))
    joined = hotk.over_axis(lambda p, X, Y: apart(gathered(p), X, Y), "data")
    for transform in (o.sophia(0.1, every=1), o.adahessian(0.1)):
        op = lambda f, p, v, *a: steps(transform, f, p, *a)
        check("diagonal", op, f=joined, exact=apart)
    for name, transform in {
        "newton": o.newton(), "cubic": o.cubic_newton(),
        "exact": o.trust_region(subproblem="exact"),
        "sparse": o.trust_region(subproblem="exact", linear_solver="sparse"),
        "samples": o.levenberg_marquardt(system="samples"),
        "nystrom": o.newton_cg(
            preconditioner=lambda A, key: hotk.linop.nystrom(A, 4, key)),
    }.items():
        f = hotk.over_axis(sums(gathered), "data") if name == "samples" else over
        refused(name, lambda f, p, v, *a: steps(transform, f, p, *a), f=f)
    print("fine")
"""

REFUSED = """
    each = {
        "diagonal": lambda f, p, v, *a: hotk.hessian_diagonal(f, p, *a),
        "laplacian": lambda f, p, v, *a: hotk.laplacian(f, p, *a),
        "jacobian": lambda f, p, v, *a: hotk.jacobian(f, p, *a),
        "tensor": lambda f, p, v, *a: hotk.derivative_tensor(f, p, *a, order=3),
        "sparse": lambda f, p, v, *a: hotk.sparse_hessian(f, p, *a),
        "all": lambda f, p, v, *a: hotk.value_gradient_and_hessian(f, p, *a),
        "matrix": lambda f, p, v, *a: H(f, p, *a).matrix(),
        "H.diagonal": lambda f, p, v, *a: H(f, p, *a).diagonal(),
        "block": lambda f, p, v, *a: H(f, p, *a).block("u", "b"),
        "cholesky": lambda f, p, v, *a: H(f, p, *a).cholesky(),
        "inertia": lambda f, p, v, *a: H(f, p, *a).inertia(),
        "flat": lambda f, p, v, *a: H(f, p, *a).flat(v),
        "nystrom": lambda f, p, v, *a: hotk.linop.nystrom(
            H(f, p, *a), 4, key) @ v,
        "factors": lambda f, p, v, *a: H(f, p, *a).solve(v, method="sparse"),
    }
    for name, op in each.items():
        refused(name, op)
    bare = lambda f, p, v, *a: H(f, p, *a) @ hotk.from_shards(v)
    refused("a plain vector", bare, what="vector|structure")
    refused("another axis", lambda f, p, v, *a: hotk.gradient(
        f, jax.tree.map(lambda a: a, {**p, "W": hotk.Shard(p["W"].value, ("model",))}),
        *a), what="'model'")
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("vma", [True, False])
def test_products_and_solutions_are_those_of_whole_parameters(vma):
    run_on_eight_devices(SETUP.format(vma=vma) + PRODUCTS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize(
    "code",
    [SOLVERS, ESTIMATES, OPTIMIZERS, REFUSED],
    ids=["solvers", "estimates", "optimizers", "refused"],
)
def test_all_sums_are_over_the_devices_or_refused(code, vma):
    run_on_eight_devices(SETUP.format(vma=vma) + code)


def test_marks_outside_of_the_axis_are_refused():
    with pytest.raises(hotk.StructureError, match=r"`x\['w'\]` is not divided along"):
        hotk.as_shards({"w": jnp.ones(2)}, {"w": P("data")})
    with pytest.raises(TypeError, match="PartitionSpec"):
        hotk.as_shards({"w": jnp.ones(2)}, {"w": "data"})
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    mark = lambda w: hotk.from_shards(hotk.as_shards(w, P("data")))
    run = jax.shard_map(mark, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(hotk.StructureError, match="is not divided along 'data'"):
        run(jnp.ones(2))


def test_a_tree_without_parts_stays_as_it_is():
    tree = {"w": jnp.ones(2), "n": 3, "f": None}
    marked = hotk.from_shards(hotk.as_shards(tree, P()))
    assert marked["w"] is tree["w"]
    assert (marked["n"], marked["f"]) == (3, None)
