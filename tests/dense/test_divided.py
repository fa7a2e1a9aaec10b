"""Dense results that are divided among devices: the same numbers, a part on each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import hotk
from tests.devices import run_on_eight_devices


SETUP = """
    import re, jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.{kind},) * 2)
    put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
    rng = np.random.default_rng(0)

    def near(got, exact):
        np.testing.assert_allclose(got, exact, rtol=1e-10, atol=1e-10)

    def collectives(text):
        names = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
        return re.findall(f"= .*[ ]({{names}})(?:-start)?[(]", text)

    def axis_of(a):
        return [d for d, size in enumerate(a.shape)
                if a.addressable_shards[0].data.shape[d] < size]
"""

ONE_ARRAY = """
    n, is_auto = 256, mesh.axis_types[0] == AxisType.Auto
    A, x = rng.normal(size=(32, n)) / 16, rng.normal(size=n)
    f = lambda x, A: jnp.sum(jnp.tanh(A @ x) ** 2) + jnp.sum(x**4)
    t = np.tanh(A @ x)
    curved = 2 * (1 - t**2) * (1 - 3 * t**2)
    exact = A.T @ (curved[:, None] * A) + np.diag(12 * x**2)
    slopes = (1 - t**2)[:, None] * A

    for rows in (None, "a", "b"):
        args = put(x), put(A, rows)
        for by, axis in (("columns", "a"), ("rows", "a"), ("columns", "b")):
            split = dict(split=by, mesh_axis=axis, block_size=32)
            prepared = hotk.hessian.prepare(f, *args, **split)
            found = prepared(*args)
            near(found, exact)
            place = int(by == "columns")
            assert axis_of(found) == [place], (rows, by, axis)
            memory = prepared.program.compiled.memory_analysis()
            part = 1 / mesh.shape[axis]
            sizes = memory.output_size_in_bytes, memory.temp_size_in_bytes
            limits = part * exact.nbytes, (part + 1 / 8) * exact.nbytes
            assert sizes[0] <= limits[0] and sizes[1] <= limits[1], (
                rows, by, axis, sizes, limits
            )
            known = collectives(prepared.program.compiled.as_text())
            assert (rows == axis) or rows or not known, (rows, by, axis, known)
            found = hotk.jacobian(
                lambda x, A: jnp.tanh(A @ x), *args, split=by, mesh_axis=axis
            )
            near(found, slopes)
            assert place in axis_of(found), (rows, by, axis)
            H = hotk.HessianOperator(f, *args)
            found = H.matrix(split=by, mesh_axis=axis)
            near(found, exact)
            assert place in axis_of(found), (rows, by, axis)
            some = np.arange(n) < 64
            try:
                found = H.block(some, ~some, split=by, mesh_axis=axis)
            except hotk.StructureError as error:
                assert not is_auto and "AxisType.Auto" in str(error), error
            else:
                near(found, exact[:64, 64:])
                assert is_auto and axis_of(found) == [place], (rows, by, axis)
    third = hotk.jacobian(
        lambda x: hotk.hessian(f, x, put(A)), put(x), split="columns", mesh_axis="a"
    )
    assert axis_of(third) == [2]
    near(third[0], hotk.derivative_tensor(
        lambda y: hotk.gradient(f, y, A)[0], x, order=2))
    H = hotk.HessianOperator(f, put(x), put(A))
    divided = H.matrix(split="columns", mesh_axis="a")
    gather = lambda a: jax.sharding.reshard(a, NamedSharding(mesh, P()))
    near(jnp.linalg.eigvalsh(gather(divided)), np.linalg.eigvalsh(exact))
    shifted = gather(divided) + 9 * np.eye(n)
    near(jnp.linalg.cholesky(shifted), np.linalg.cholesky(exact + 9 * np.eye(n)))
    try:
        near(jnp.linalg.eigvalsh(divided), np.linalg.eigvalsh(exact))
    except Exception as error:
        # of JAX, whose message names both types
        assert not is_auto and "sharded" in str(error), error
    else:
        assert is_auto
    whole = hotk.hessian.prepare(f, x, A, block_size=32).info.flops
    args = put(x), put(A)
    each = hotk.hessian.prepare(f, *args, split="columns", mesh_axis="a", block_size=32)
    # XLA counts the body of a loop once: eight windows of 32 columns, and the same
    # number of windows of 8 columns on each device
    assert each.info.flops <= 1.1 / 4 * whole, (each.info.flops, whole)
    with jax.set_mesh(mesh):
        split = dict(split="rows", mesh_axis="b")
        inside = jax.jit(lambda x, A: hotk.hessian(f, x, A, **split))
        near(inside(*args), exact)
        assert axis_of(inside(*args)) == [0]
    hotk.set_memory_budget(exact.nbytes // 2)
    try:
        hotk.hessian(f, *args)
    except hotk.TooLargeError:
        near(hotk.hessian(f, *args, split="rows", mesh_axis="a"), exact)
    else:
        raise AssertionError("the budget does not hold")
    try:
        hotk.hessian(f, *args, split="rows", mesh_axis="c")
    except hotk.StructureError as error:
        assert "one of 'a', 'b'" in str(error), error
    for wrong in (dict(split="rows"), dict(split="rows", mesh_axis="c")):
        try:
            H.matrix(**wrong)
        except hotk.StructureError as error:
            assert "one of 'a', 'b'" in str(error), error
        else:
            raise AssertionError(wrong)
    print("fine")
"""

TREES = """
    shapes = dict(a=(16,), b=(3, 8, 2), c=(3,), d=())
    x = {{k: rng.normal(size=s) for k, s in shapes.items()}}
    weights = {{k: rng.normal(size=s) for k, s in shapes.items()}}

    def f(x, c):
        total = sum(jnp.sum(weights[k] * a) for k, a in x.items())
        return c * total**2 + sum(jnp.sum(jnp.cosh(a)) for a in x.values())

    def several(x, c):
        return {{"y": jnp.stack([f(x, c), 2 * f(x, c)]), "z": f(x, c)}}

    c = 0.7
    exact = {{
        i: {{j: 2 * c * np.multiply.outer(weights[i], weights[j]) for j in x}}
        for i in x
    }}
    for k in x:
        size = x[k].size
        own = np.diag(np.cosh(x[k]).ravel()).reshape(2 * x[k].shape)
        exact[k][k] = exact[k][k] + own
    places = dict(a=0, b=1)
    specs = dict(a=("b",)) if {divided} else {{}}
    p = {{k: put(a, *specs.get(k, ())) for k, a in x.items()}}
    for by in ("columns", "rows"):
        split = dict(split=by, mesh_axis="a")
        found = hotk.hessian(f, p, c, **split)
        more = hotk.hessian(several, p, c, **split)
        slopes = hotk.jacobian(lambda p, c: jax.tree.map(jnp.sin, p), p, c, **split)
        H = hotk.HessianOperator(f, p, c)
        for i in x:
            for j in x:
                near(found[i][j], exact[i][j])
                near(more["z"][i][j], exact[i][j])
                near(more["y"][i][j], np.stack([exact[i][j], 2 * exact[i][j]]))
                if by == "columns" and i != "d" and j in places:
                    block = H.block(i, j, split=by, mesh_axis="a")
                    near(block, exact[i][j].reshape(x[i].size, x[j].size))
                    assert 1 in axis_of(block), (i, j)
                one = np.diag(np.cos(x[i]).ravel()).reshape(2 * x[i].shape)
                near(slopes[i][j], one if i == j else np.zeros(x[i].shape + x[j].shape))
                k, ahead = (j, x[i].ndim) if by == "columns" else (i, 0)
                if k in places:
                    assert ahead + places[k] in axis_of(found[i][j]), (i, j, by)
                    assert ahead + places[k] in axis_of(slopes[i][j]), (i, j, by)
    print("fine")
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_device_computes_and_holds_its_part(kind):
    run_on_eight_devices(SETUP.format(kind=kind) + ONE_ARRAY)


@pytest.mark.exhaustive
@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_trees_are_divided_leaf_by_leaf(kind, divided):
    code = TREES.format(divided=divided)
    run_on_eight_devices(SETUP.format(kind=kind) + code)


def squares(x):
    """Return a sum of squares."""
    return jnp.sum(x**2)


X = jnp.arange(4.0)


def on_a_mesh(shape=(1,), names=("data",)):
    """Return the point on a mesh of one device."""
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))
    return jax.device_put(X, NamedSharding(mesh, P()))


REFUSED = {
    "no mesh": (
        lambda: hotk.hessian(squares, X, split="rows"),
        hotk.StructureError,
        "no mesh to divide the result over",
    ),
    "no such axis": (
        lambda: hotk.hessian(squares, on_a_mesh(), split="rows", mesh_axis="model"),
        hotk.StructureError,
        "`mesh_axis=` one of 'data'",
    ),
    "no such split": (
        lambda: hotk.jacobian(squares, on_a_mesh(), split="blocks"),
        ValueError,
        "'columns' or 'rows'",
    ),
    "an axis alone": (
        lambda: hotk.hessian(squares, on_a_mesh(), mesh_axis="data"),
        ValueError,
        "alone",
    ),
    "a product": (
        lambda: hotk.gradient(squares, on_a_mesh(), split="rows"),
        TypeError,
        "has no dense result",
    ),
    "rows by forward mode": (
        lambda: hotk.jacobian(jnp.sin, on_a_mesh(), split="rows", mode=hotk.Forward()),
        hotk.ModeError,
        "does not compute rows",
    ),
    "complex outputs": (
        lambda: hotk.jacobian(
            lambda x: jax.lax.complex(x, x), on_a_mesh(), split="rows"
        ),
        hotk.DtypeError,
        "`f(x)` has complex leaves",
    ),
    "a block of three columns": (
        lambda: hotk.HessianOperator(squares, on_a_mesh((1,), ("data",))).block(
            np.arange(4) < 3, np.arange(4) < 3, split="rows", mesh_axis="model"
        ),
        hotk.StructureError,
        "`mesh_axis=` one of 'data'",
    ),
    "a tensor": (
        lambda: hotk.derivative_tensor(squares, on_a_mesh(), order=3, split="rows"),
        TypeError,
        "hotk.jacobian(lambda x: hotk.hessian(f, x), x",
    ),
    "a dense optimizer": (
        lambda: hotk.optim.newton(split="rows"),
        TypeError,
        "`newton_cg`, `trust_region`",
    ),
    "batches of data": (
        lambda: hotk.HessianOperator.over(
            lambda x, batch: squares(x - batch), on_a_mesh(), [X, X]
        ).matrix(split="rows"),
        hotk.StructureError,
        "batches of data",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_divided_is_refused(name, as_user):
    call, kind, text = REFUSED[name]
    with pytest.raises(kind) as raised:
        call()
    assert text in str(raised.value)


def test_inside_of_shard_map_the_axis_is_taken():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,))
    run = lambda x: hotk.hessian(squares, x, split="rows", mesh_axis="data")
    over = jax.shard_map(run, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(hotk.StructureError, match="outside of `shard_map`"):
        jax.jit(over)(X)


@pytest.mark.parametrize("split", ["columns", "rows"])
def test_on_a_mesh_of_one_device_nothing_changes(split):
    x = on_a_mesh()
    cubes = lambda x: jnp.sum(x**3)
    np.testing.assert_allclose(
        hotk.hessian(cubes, x, split=split), np.diag(6 * np.arange(4.0))
    )
    y, _, h = hotk.value_gradient_and_hessian(cubes, x, split=split, mesh_axis="data")
    assert y == 36
    np.testing.assert_allclose(h, np.diag(6 * np.arange(4.0)))
    prepared = hotk.hessian.prepare(cubes, x, split=split, block_size=2)
    np.testing.assert_allclose(prepared(x + 1), np.diag(6 * np.arange(1.0, 5.0)))
    np.testing.assert_allclose(
        hotk.HessianOperator(cubes, x).matrix(split=split), np.diag(6 * np.arange(4.0))
    )
    np.testing.assert_allclose(
        hotk.jacobian(lambda x: {"y": x**2}, x, split=split)["y"],
        np.diag(2 * np.arange(4.0)),
    )
