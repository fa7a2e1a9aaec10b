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
