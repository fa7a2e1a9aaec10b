"""Sparse derivatives over several devices: the whole loss, in every setting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.devices import run_on_eight_devices
from tests.helpers import close


OVER_AXIS = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax import lax
    from jax.sharding import AxisType, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((8,), ("r",), axis_types=(AxisType.Auto,))
    d, w = jnp.linspace(0.1, 2, 16), jnp.linspace(0.5, 1.5, 4)
    chain = lambda w: jnp.sum((w[1:] - w[:-1] ** 2) ** 2)

    # Each as one device computes it, and as all together do.
    def plain(w, d):
        return jnp.mean(d**2) * chain(w)

    def centered(w, d, mean=lambda z: lax.pmean(jnp.mean(z, 0), "r")):
        z = d[:, None] * w
        return jnp.mean(jnp.sum(jnp.sin(z) * (z - mean(z)) ** 2, 1))

    def gathered(w, d, all_of=lambda z: lax.all_gather(z, "r", tiled=True)):
        z = d[:, None] * w
        return jnp.mean(jnp.sum(jnp.sin(z) * all_of(z).mean(0) ** 2, 1))

    ring = lambda z: lax.ppermute(z, "r", [(i, (i + 1) % 8) for i in range(8)])

    def moved(w, d, move=ring):
        z = d[:, None] * w
        return jnp.mean(jnp.sum(jnp.sin(z) * move(z) ** 2, 1))

    def solved(w, d):
        return jnp.linalg.solve(jnp.diag(w + jnp.mean(d)) + 0.1, w) @ w

    def looping(w, d):
        body = lambda c: (c[0] + 1, c[1] * jnp.mean(d) + jnp.sum(w**3))
        return lax.while_loop(lambda c: c[0] < 2, body, (0, jnp.sum(w**4)))[1]

    each = lambda f: lambda w, d: jnp.mean(jax.vmap(lambda d: f(w, d))(d.reshape(8, 2)))
    cases = {{
        "plain": (plain, plain),
        "pmean": (centered, lambda w, d: centered(w, d, lambda z: z.mean(0))),
        "all_gather": (gathered, lambda w, d: gathered(w, d, lambda z: z)),
        "ppermute": (moved, lambda w, d: moved(w, d, lambda z: jnp.roll(z, 2, 0))),
        "solve": (solved, each(solved)),
        "while": (looping, each(looping)),
    }}
    part, whole = cases["{case}"]
    F = hotk.over_axis(part, "r")
    f = lambda w, d: F(w, d) + chain(w)  # a term without data too
    exact = lambda w: whole(w, d) + chain(w)
    H = np.asarray(jax.jacfwd(jax.jacfwd(exact))(w))
    ones = jnp.ones(4)

    def run(g, want):
        over = jax.shard_map(
            g, mesh=mesh, in_specs=(P(), P("r")), out_specs=P(), check_vma={check}
        )
        np.testing.assert_allclose(jax.jit(over)(w, d), want, rtol=1e-4, atol=1e-6)

    dense = lambda w, d: hotk.sparse_hessian(f, w, d).todense()
    run(dense, H)
    third = jax.jacfwd(jax.jacfwd(jax.jacfwd(exact)))(w)
    run(lambda w, d: jax.jacfwd(lambda w: dense(w, d))(w), third)
    if "{case}" != "while":
        run(lambda w, d: jax.jacrev(lambda w: dense(w, d))(w), third)
        gradient = lambda w, d: hotk.gradient(f, w, d)
        run(lambda w, d: hotk.sparse_jacobian(gradient, w, d).todense(), H)
    if "{case}" == "plain":
        triple = lambda w, d: hotk.value_gradient_and_sparse_hessian(f, w, d)
        run(lambda w, d: triple(w, d)[0], exact(w))
        run(lambda w, d: triple(w, d)[1], jax.grad(exact)(w))
        run(lambda w, d: triple(w, d)[2].todense(), H)
        operator = lambda w, d: hotk.HessianOperator(f, w, d)
        run(lambda w, d: operator(w, d).sparse().todense(), H)
        solution = lambda w, d: operator(w, d).solve(ones, method="sparse", tol=1e-9).x
        run(solution, np.linalg.solve(H, ones))
        step = lambda kind: lambda w, d: (
            lambda t: t.update(
                hotk.gradient(f, w, d), t.init(w), w, value_fn=lambda w: f(w, d)
            )[0]
        )(hotk.optim.newton(linear_solver=kind))
        run(step("sparse"), jax.jit(lambda: (lambda t: t.update(
            jax.grad(exact)(w), t.init(w), w, value_fn=exact)[0]
        )(hotk.optim.newton(linear_solver="dense")))())
        model = hotk.over_axis(lambda w, d: w * jnp.mean(d), "r")
        loss = lambda z: jnp.sum(z**4)
        m = float(d.mean())
        run(lambda w, d: hotk.sparse_ggn(model, loss, w, d).todense(),
            np.diag(12 * m**4 * np.asarray(w) ** 2))
    print("fine")
"""

CASES = ["plain", "pmean", "all_gather", "ppermute", "solve", "while"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_derivatives_are_those_of_the_whole(case, check):
    run_on_eight_devices(OVER_AXIS.format(case=case, check=check))


EXPLICIT = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import NamedSharding, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    X = jax.device_put(jnp.linspace(0.5, 1.5, 8), NamedSharding(mesh, P("d")))
    point = lambda n: jnp.linspace(0.5, 0.9, n)
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    chain = lambda w: jnp.sum((w[1:] - w[:-1] ** 2) ** 2)
    f = lambda w, X: jnp.mean(X**2) * jnp.sum(w**4) + chain(w)
    inside = jax.shard_map(
        lambda w, X: jax.lax.psum(jnp.sum(jnp.tanh(X[:, None] * w) ** 2), "d"),
        mesh=mesh, in_specs=(P(), P("d")), out_specs=P(),
    )
    row = lambda w, X: jnp.mean(X**2) * w**3
    divided = lambda w, X: X * w[0] ** 2 + X * w[1]
    w = point(6)
    near(hotk.hessian(f, w, X, block_size=4), jax.hessian(f)(w, X))
    J = hotk.jacobian(row, w, X, block_size=4, mode=hotk.Forward())
    near(J, jax.jacfwd(row)(w, X))
    near(hotk.sparse_hessian(inside, w, X).todense(), jax.hessian(inside)(w, X))
    near(hotk.sparse_jacobian(divided, w, X).todense(), jax.jacfwd(divided)(w, X))
    w = point(300)
    exact = jax.hessian(inside)(w, X)
    near(hotk.HessianOperator(inside, w, X).matrix(), exact)
    w, h = point(2100), jnp.mean(X**2)
    H = hotk.sparse_hessian(f, w, X)
    near(H.diagonal(), 12 * h * w**2
         + np.r_[0, 2 * np.ones(2099)] + np.r_[12 * w[:-1] ** 2 - 4 * w[1:], 0])
    t = hotk.optim.newton()
    g = hotk.gradient(f, w, X)
    step = t.update(g, t.init(w), w, value_fn=lambda w: f(w, X))[0]
    assert np.isfinite(step).all() and step @ g < 0
    with jax.set_mesh(mesh):  # where the type of the point says how it is divided
        w = jax.device_put(point(16), NamedSharding(mesh, P("d")))
        cosh = lambda w: jnp.sum(jnp.cosh(w))
        near(hotk.sparse_hessian(cosh, w).todense(), np.diag(np.cosh(point(16))))
        # the largest is the last: 0.54, with the derivatives 1.5 and 2
        largest = lambda w: jnp.max(w**2 - 0.3 * w) ** 2
        product = hotk.hvp(largest, w, w)
        near(product, np.r_[np.zeros(15), (2 * 1.5**2 + 4 * 0.54) * 0.9])
    print("fine")
"""


@pytest.mark.exhaustive
def test_explicit_axes_of_a_mesh():
    run_on_eight_devices(EXPLICIT)


INSIDE = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, PartitionSpec as P
    from tests.sparse.programs import PROGRAMS

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((8,), ("r",), axis_types=(AxisType.Auto,))
    f = PROGRAMS["{name}"]
    # both signs of the number by which a branch is chosen
    X = jnp.asarray(np.random.default_rng(0).normal(size=(8, 24)))
    dense = lambda x: hotk.sparse_hessian(f, x).todense()
    for outer in (lambda g: g, jax.jacfwd):
        each = lambda x: outer(dense)(x[0])[None]
        over = jax.shard_map(each, mesh=mesh, in_specs=P("r"), out_specs=P("r"))
        want = jax.lax.map(outer(jax.jacfwd(jax.jacfwd(f))), X)
        np.testing.assert_allclose(jax.jit(over)(X), want, rtol=1e-8, atol=1e-8)
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [
        *("relu", "batched solve", "sort", "maximum pool", "cond", "switch"),
        *("map", "loop with a counter", "gather under vmap", "interpolation"),
    ],
)
def test_each_device_at_a_point_of_its_own(name):
    """Inside of `shard_map`, whose types say which arrays vary."""
    run_on_eight_devices(INSIDE.format(name=name))


def test_a_sum_over_points_that_vary_has_no_symmetric_block():
    """Each value depends on all points: what `jax.hessian` gives, row by row."""
    f = lambda x: jnp.sum(jax.lax.psum(jnp.sin(x), "b")) * jnp.sum(x**3)
    X = jnp.array([[0.3, 0.7], [1.1, -0.4], [0.2, 0.9]])
    over = lambda g: jax.vmap(g, axis_name="b")(X)
    want = np.asarray(over(jax.hessian(f)))
    assert abs(want - want.swapaxes(1, 2)).max() > 0.1
    close(over(lambda x: hotk.sparse_hessian(f, x).todense()), want)
    triple = hotk.value_gradient_and_sparse_hessian
    close(over(lambda x: triple(f, x)[2].todense()), want)


ON_HOST = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    dense = np.diag(np.full(5, 2.5)) - np.eye(5, k=1) - np.eye(5, k=-1)
    at = np.nonzero(dense)
    A = hotk.SparseMatrix.from_coo(dense[at], *at, symmetric=True)
    b, t = jnp.arange(1.0, 6.0), jnp.linspace(0.5, 2.0, 8)
    times = lambda t: hotk.SparseMatrix(A.values * t**2, A.pattern)
    inverse = np.linalg.inv(dense)
    cases = {
        "values": (lambda t: times(t).solve(b) @ b, lambda t: b @ inverse @ b / t**2),
        "right side": (lambda t: A.solve(b * t) @ b, lambda t: b @ inverse @ b * t),
        "logdet": (
            lambda t: times(t).logdet(), lambda t: jnp.linalg.slogdet(dense * t**2)[1]
        ),
        "selected inverse": (
            lambda t: times(t).selected_inverse().diagonal() @ b,
            lambda t: jnp.diagonal(inverse) @ b / t**2,
        ),
    }
    share = lambda f, out: jax.jit(
        jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=out)
    )
    for name, (f, known) in cases.items():
        close = lambda a, b: np.testing.assert_allclose(
            a, b, rtol=1e-10, atol=1e-12, err_msg=name
        )
        each = jax.vmap(jax.grad(known))(t)
        total = lambda t: jax.lax.psum(f(t[0]), "d")
        close(share(total, P())(t), jax.vmap(known)(t).sum())
        close(share(lambda t: jax.grad(f)(t[0])[None], P("d"))(t), each)
        close(share(jax.grad(total), P("d"))(t), each)
        if "inverse" not in name:
            found = share(lambda t: jax.hessian(f)(t[0])[None], P("d"))(t)
            close(found, jax.vmap(jax.hessian(known))(t))
        try:  # that of which device?
            share(lambda t: f(t[0]), P())(t)
        except ValueError:
            continue
        raise AssertionError(name)
    print("fine")
"""


def test_what_is_computed_on_the_host_varies_by_device():
    run_on_eight_devices(ON_HOST)
