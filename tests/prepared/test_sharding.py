"""A `Prepared` for each sharding, and results that are divided as the point is."""

import jax
import jax.numpy as jnp
import pytest

import hotk
from hotk._primitive import divided_as
from tests.devices import run_on_eight_devices


SETUP = """
    import re, jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.{kind},))
    rng = np.random.default_rng(0)
    # no operation of the gradient by `u` is elementwise in `u`
    host = {{"W": rng.normal(size=(16, 8)) / 4, "u": rng.normal(size=8), "b": 0.3}}
    specs = {{"W": P("data", None), "u": P("data"), "b": P()}}
    X, Y = rng.normal(size=(32, 16)), rng.normal(size=32)
    place = lambda a, spec=P(): jax.device_put(a, NamedSharding(mesh, spec))

    ALL = NamedSharding(mesh, P())

    def loss(p, X, Y):
        if "{kind}" == "Explicit":  # a contraction over what is divided is not typed
            p = jax.tree.map(lambda a: jax.sharding.reshard(a, ALL), p)
        return jnp.mean((jnp.tanh(X @ p["W"] + p["b"]) @ p["u"] - Y) ** 2)

    whole = jax.tree.map(place, host)
    split = {{k: place(a, specs[k]) for k, a in host.items()}}
    v = jax.tree.map(jnp.cos, split)
    data = place(X), place(Y)

    def near(got, exact):
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(exact), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)

    def kept(tree, ahead=0):
        for name, leaf in tree.items():
            expected = NamedSharding(mesh, P(*[None] * ahead, *specs[name]))
            assert leaf.sharding.is_equivalent_to(expected, leaf.ndim), (name, leaf)
"""

PREPARED = """
    first = hotk.hvp.prepare(loss, whole, whole, *data)
    compiles = hotk.cache_info().compiles
    second = hotk.hvp.prepare(loss, split, split, *data)
    assert hotk.cache_info().compiles == compiles + 1
    assert second.program is not first.program
    sizes = [p.program.compiled.memory_analysis().output_size_in_bytes
             for p in (first, second)]
    numbers = host["W"].nbytes + host["u"].nbytes
    assert sizes[0] >= numbers > 7 * sizes[1] - 64 * 8, sizes
    assert hotk.hvp.prepare(loss, split, split, *data).program is second.program
    assert hotk.hvp.prepare(loss, whole, whole, *data).program is first.program
    with jax.log_compiles(False):
        import jax._src.test_util as counting
        with counting.count_jit_compilation_cache_miss() as count:
            for p, prepared in ((split, second), (whole, first)) * 2:
                prepared(p, p, *data)
    assert count() == 0, count()
    for p, prepared in ((split, first), (whole, second)):
        try:
            prepared(p, p, *data)
        except hotk.PreparationError as error:
            assert "sharding" in str(error) or "data" in str(error), error
        else:
            raise AssertionError("called with another sharding")
    kept(second(split, split, *data))
    near(second(split, split, *data), first(whole, whole, *data))
    print("fine")
"""

KEPT = """
    def f(p):
        return jnp.mean((jnp.tanh(X @ p["W"] + p["b"]) @ p["u"] - Y) ** 2)

    exact = jax.grad(f)(host)
    product = lambda v: jax.jvp(jax.grad(f), (host,), (v,))[1]
    hv = product(jax.tree.map(np.cos, host))
    cos = jax.tree.map(np.cos, host)

    near(hotk.gradient(loss, split, *data), exact)
    kept(hotk.gradient(loss, split, *data))
    _, g, h = hotk.value_gradient_and_hvp(loss, split, v, *data)
    near((g, h), (exact, hv))
    kept(g), kept(h)
    inside = jax.jit(lambda p, v: hotk.hvp(loss, p, v, *data))(split, v)
    near(inside, hv)
    kept(inside)
    batch = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), v)
    for found in (
        hotk.hvp(loss, split, batch, *data, batched=True),
        jax.jit(lambda p: jax.vmap(
            lambda v: hotk.hvp(loss, p, v, *data)
        )(batch))(split),
    ):
        near(found, jax.tree.map(lambda a: np.stack([a, 2 * a]), hv))
        if "{kind}" == "Auto":  # perhaps along another axis than the point
            for name in "Wu":
                shard = found[name].addressable_shards[0].data
                assert shard.size == found[name].size / 8, name
    scanned = jax.jit(lambda p: jax.lax.scan(
        lambda c, _: (hotk.hvp(loss, p, c, *data), 0), v, None, length=2)[0])(split)
    near(scanned, product(product(cos)))
    kept(scanned)
    third = jax.jit(lambda p: jax.jvp(
        lambda p: hotk.hvp(loss, p, v, *data), (p,), (v,))[1])(split)
    near(third, jax.jvp(lambda p: jax.jvp(jax.grad(f), (p,), (cos,))[1],
                        (host,), (cos,))[1])
    dot = lambda g: sum(jnp.sum(a**2) for a in jax.tree.leaves(g))
    with jax.set_mesh(mesh):
        back = jax.grad(lambda p: dot(hotk.gradient(loss, p, *data)))(split)
    near(back, jax.grad(lambda p: dot(jax.grad(f)(p)))(host))
    if "{kind}" == "Auto":
        kept(hotk.hessian_diagonal(loss, split, *data))
        kept(hotk.HessianOperator(loss, split, *data).diagonal())
        model = lambda p, X: jnp.tanh(X @ p["W"] + p["b"]) @ p["u"]
        squares = hotk.curvature.SquaredError(data[1])
        for make in (hotk.GGNOperator, hotk.FisherOperator):
            kept(make(model, squares, split, data[0]) @ v)
            kept((make(model, squares, split, data[0]) + hotk.Identity()).solve(v).x)
        # a separable function is seen to be one
        own = lambda p: sum(jnp.sum(jnp.cosh(a)) for a in jax.tree.leaves(p))
        found = hotk.HessianOperator(
            lambda p: dot(hotk.gradient(own, p)) / 2, split
        ).diagonal()
        near(found, jax.tree.map(lambda a: np.cosh(2 * a), host))
        kept(found)
        one = jax.tree.map(jnp.asarray, (host, cos, X, Y))
        call = jax.jit(lambda p, v, *a: hotk.hvp(loss, p, v, *a))
        exported = jax.export.export(call, platforms=("cpu", "cuda", "tpu"))(*one)
        assert len(exported.mlir_module_serialized)
        texts = [call.lower(*one).as_text() for _ in range(2)]
        assert texts[0] == texts[1] and "sharding_group" in texts[0]
    print("fine")
"""


@pytest.mark.counts
def test_a_second_sharding_is_prepared_by_itself():
    run_on_eight_devices(SETUP.format(kind="Auto") + PREPARED)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_results_are_divided_as_the_point_is(kind):
    run_on_eight_devices(SETUP.format(kind=kind) + KEPT.format(kind=kind))


def test_on_one_device_no_program_changes():
    x = jnp.ones(3)
    text = str(jax.make_jaxpr(lambda x: hotk.gradient(lambda x: x @ x, x))(x))
    assert "hotk_alike" not in text
    assert divided_as(x, x) is x


MESHES = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    X = np.random.default_rng(0).normal(size=(16, 8)).astype("f")
    y, w = np.cos(np.arange(16, dtype="f")), np.linspace(-1, 1, 8, dtype="f")
    # A derivative rule keeps the mesh of the arrays that it was traced with; `y` comes
    # first, so that the program is one of a family and not the function's own.
    loss = lambda w, X, y: jnp.mean(jax.nn.softplus(-y * (X @ w)))
    exact = jax.grad(loss)(w, X, y)
    for again in (False, True):
        for kind in (AxisType.Auto, AxisType.Explicit):
            for size, spec in ((8, P("d")), (8, P()), (2, P("d"))):
                mesh = jax.make_mesh((size,), "d", axis_types=(kind,))
                put = lambda a, spec=P(): jax.device_put(a, NamedSharding(mesh, spec))
                rows, point = (put(X, spec), put(y, spec)), put(w)
                with jax.no_tracing(again):
                    slope = hotk.gradient(lambda w: loss(w, *rows), point)
                np.testing.assert_allclose(slope, exact, rtol=1e-5, atol=1e-6)
                assert slope.sharding.is_equivalent_to(point.sharding, 1)
    print("fine")
"""


@pytest.mark.exhaustive
def test_arrays_on_another_mesh_have_their_own_program():
    # Along explicit axes the type of an array holds its mesh. A program that was
    # traced for another mesh raised JAX's error that the meshes differ.
    run_on_eight_devices(MESHES)
