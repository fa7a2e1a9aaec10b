"""Promise 4: calling a `Prepared` with something else raises one error, with a list."""

import functools
import gc
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.counting import compiles, traces
from tests.devices import run_on_eight_devices
from tests.helpers import close


pytestmark = pytest.mark.usefixtures("as_user")

W, S = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), jnp.array(2.0, float)
POINT = {"w": W, "s": S}
DIRECTION = {"w": jnp.cos(W), "s": jnp.array(0.5, float)}
TABLE = {"a": jnp.ones(3), "kind": "cubic"}


@pytest.fixture
def hotk():
    """Import late: the type-checking hook must stand before."""
    import hotk

    return hotk


@pytest.fixture
def tick():
    """Count the traces: a builtin is static by identity."""
    return itertools.count().__next__


def make(tick):
    """Return a function of a tree, a number and a tree with a label."""

    def f(x, c, table):
        tick()
        power = 3 if table["kind"] == "cubic" else 4
        return c * x["s"] ** 2 * jnp.sum(table["a"][None] * x["w"] ** power)

    return f


def plain(x, v, c, table):
    """Return what a right call returns, uncached."""
    f = make(lambda: None)
    return jax.jvp(jax.grad(lambda x: f(x, c, table)), (x,), (v,))[1]


ARGUMENTS = (POINT, DIRECTION, 3.0, TABLE)


class Wrong(NamedTuple):
    """One argument that is not as prepared, and what the error must say of it."""

    arguments: tuple
    field: str
    prepared: str
    called: str


def wrong(number, leaf, value, prepared, called):
    """Replace one argument, or one leaf of it."""
    arguments = list(ARGUMENTS)
    root = ("x", "v", "args[0]", "args[1]")[number]
    if leaf is None:
        arguments[number] = value
        return Wrong(tuple(arguments), root, prepared, called)
    arguments[number] = {**arguments[number], leaf: value}
    return Wrong(tuple(arguments), f"['{leaf}']", prepared, called)


F32 = jnp.float32

WRONG = {
    "shape of the point": wrong(0, "w", W[:, :2], "f64[2,3]", "f64[2,2]"),
    "rank of the point": wrong(0, "w", W[0], "f64[2,3]", "f64[3]"),
    "a point that would broadcast": wrong(0, "w", W[:1], "f64[2,3]", "f64[1,3]"),
    "dtype of the point": wrong(0, "w", W.astype(F32), "f64[2,3]", "f32[2,3]"),
    "integers as the point": wrong(0, "w", W.astype(int), "f64[2,3]", "i64[2,3]"),
    "a complex point": wrong(0, "w", W.astype(complex), "f64[2,3]", "c128[2,3]"),
    "a weak type at the point": wrong(0, "s", 2.0, "f64[]", "weak"),
    "a weak array at the point": wrong(0, "s", jnp.asarray(2.0), "f64[]", "weak"),
    "a scalar with an axis": wrong(0, "s", S[None], "f64[]", "f64[1]"),
    "shape of the direction": wrong(1, "w", W[:1], "f64[2,3]", "f64[1,3]"),
    "dtype of the direction": wrong(1, "w", W.astype(F32), "f64[2,3]", "f32[2,3]"),
    "a scalar direction": wrong(1, "w", S, "f64[2,3]", "f64[]"),
    "numpy of another dtype": wrong(
        0, "w", np.ones((2, 3), np.float32), "f64[2,3]", "f32[2,3]"
    ),
    "numpy of another shape": wrong(0, "w", np.ones((3, 2)), "f64[2,3]", "f64[3,2]"),
    "an array for a number": wrong(2, None, jnp.array(3.0, float), "weak", "f64[]"),
    "an integer for a float": wrong(2, None, 3, "f64[]", "i64[]"),
    "a bool for a float": wrong(2, None, True, "f64[]", "bool[]"),
    "a complex for a float": wrong(2, None, 3.0 + 1j, "f64[]", "c128[]"),
    "shape of a constant": wrong(3, "a", jnp.ones(1), "f64[3]", "f64[1]"),
    "dtype of a constant": wrong(3, "a", jnp.ones(3, F32), "f64[3]", "f32[3]"),
    "a label": wrong(3, "kind", "quartic", "'cubic'", "'quartic'"),
    "an array for a label": wrong(3, "kind", S, "'cubic'", "f64[]"),
    "a label for an array": wrong(3, "a", "ones", "f64[3]", "'ones'"),
}

STRUCTURES = {
    "a missing leaf": ({"w": W}, DIRECTION, 3.0, TABLE),
    "a leaf too many": ({**POINT, "extra": S}, DIRECTION, 3.0, TABLE),
    "another name": ({"w": W, "t": S}, DIRECTION, 3.0, TABLE),
    "a list for a dict": ([W, S], DIRECTION, 3.0, TABLE),
    "a leaf for a tree": (W, DIRECTION, 3.0, TABLE),
    "none for a leaf": ({"w": W, "s": None}, DIRECTION, 3.0, TABLE),
    "a deeper tree": ({"w": (W,), "s": S}, DIRECTION, 3.0, TABLE),
    "another direction": (POINT, [DIRECTION["w"], DIRECTION["s"]], 3.0, TABLE),
    "a constant less": (POINT, DIRECTION, 3.0),
    "a constant more": (POINT, DIRECTION, 3.0, TABLE, 1.0),
    "no direction": (POINT,),
}


def lines(error, mark):
    return [line for line in str(error.value).splitlines() if mark in line]


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_one_field_that_differs_is_marked(case, hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    with pytest.raises(hotk.PreparationError) as error:
        prepared(*case.arguments)
    (crossed,) = lines(error, "✗")
    assert case.field in crossed or case.field.startswith("args")
    assert case.prepared in crossed
    assert case.called in crossed
    assert len(lines(error, "✓")) >= 6
    assert tick() == 1


@pytest.mark.parametrize("arguments", STRUCTURES.values(), ids=STRUCTURES)
def test_another_structure_is_marked(arguments, hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    with pytest.raises(hotk.PreparationError) as error:
        prepared(*arguments)
    assert lines(error, "✗")
    assert lines(error, "✓")
    assert tick() == 1


def test_every_field_is_listed_and_every_difference_is_marked(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    with pytest.raises(hotk.PreparationError) as error:
        prepared(
            {"w": W.astype(F32), "s": S},
            {"w": W, "s": S[None]},
            3,
            {"a": jnp.ones(4), "kind": "quartic"},
        )
    crossed, ticked = lines(error, "✗"), lines(error, "✓")
    assert len(crossed) == 5
    for value in ("f32[2,3]", "f64[1]", "i64[]", "f64[4]", "'quartic'"):
        assert any(value in line for line in crossed)
    assert any("x['s']" in line for line in ticked)
    assert any("v['w']" in line for line in ticked)


def test_it_is_a_type_error_of_hotk(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    with pytest.raises(TypeError) as error:
        prepared({"w": W[:1], "s": S}, *ARGUMENTS[1:])
    assert isinstance(error.value, hotk.HotkError)
    assert type(error.value) is hotk.PreparationError
    assert "hvp" in str(error.value)


@pytest.mark.thinned(17)
@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_the_right_call_costs_nothing_afterwards(case, hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    prepared(*ARGUMENTS)
    for _ in range(2):
        with pytest.raises(hotk.PreparationError):
            prepared(*case.arguments)
    with jax.no_tracing(True), compiles() as count:
        got = prepared(*ARGUMENTS)
    assert (count(), tick()) == (0, 1)
    close(got, plain(*ARGUMENTS))


def test_a_wrong_call_costs_no_compilation(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    with compiles() as count:
        for case in WRONG.values():
            with pytest.raises(hotk.PreparationError):
                prepared(*case.arguments)
    assert (count(), tick()) == (0, 1)


def test_the_check_costs_nothing_when_all_is_right(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    prepared(*ARGUMENTS)
    with jax.no_tracing(True), traces() as traced, compiles() as compiled:
        for k in (1.0, 2.0):
            x = jax.tree.map(lambda a: a, POINT)
            prepared(x, DIRECTION, k, TABLE)
    assert (traced(), compiled(), tick()) == (0, 0, 1)


@pytest.mark.parametrize(
    "under",
    [
        lambda p, x, rest: jax.jit(lambda x: p(x, *rest))(x),
        lambda p, x, rest: jax.jvp(lambda x: p(x, *rest), (x,), (x,)),
        lambda p, x, rest: jax.vjp(lambda x: p(x, *rest), x),
        lambda p, x, rest: jax.vmap(lambda x: p(x, *rest))(
            jax.tree.map(lambda a: a[None], x)
        ),
        lambda p, x, rest: jax.lax.scan(lambda x, _: (x, p(x, *rest)), x, length=2),
        lambda p, x, rest: jax.eval_shape(lambda x: p(x, *rest), x),
    ],
    ids=["jit", "jvp", "vjp", "vmap", "scan", "eval_shape"],
)
def test_a_mismatch_is_loud_under_transformations(under, hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    rest = ARGUMENTS[1:]
    for x in ({"w": W[:1], "s": S}, {"w": W.astype(F32), "s": S}):
        with pytest.raises(hotk.PreparationError, match="✗"):
            under(prepared, x, rest)
    under(prepared, POINT, rest)
    assert tick() == 1


def test_a_batch_is_no_point(hotk):
    """What plain JAX would broadcast without a word."""
    prepared = hotk.hvp.prepare(lambda x: jnp.sum(x**3), W[0], W[0])
    for x, v in ((W, W), (W, W[0]), (W[0], W), (W[0], S), (S, S), (W[0], W[:1])):
        with pytest.raises(hotk.PreparationError, match="✗"):
            prepared(x, v)


def test_batches_of_directions_have_one_length(hotk):
    vs = jnp.stack([W[0], W[1], W[0]])
    prepared = hotk.hvp.prepare(lambda x: jnp.sum(x**3), W[0], vs, batched=True)
    close(prepared(W[0], vs), 6.0 * W[0][None] * vs)
    for v in (vs[:2], vs[0], vs[:, :2]):
        with pytest.raises(hotk.PreparationError, match="✗"):
            prepared(W[0], v)


@pytest.mark.parametrize(
    "name", ["gradient", "hessian", "hessian_diagonal", "jacobian"]
)
def test_each_operator_is_as_loud(name, hotk):
    prepared = getattr(hotk, name).prepare(lambda x: jnp.sum(x**3), W[0])
    for x in (W[0, :2], W[0].astype(F32), [W[0]], 1.0):
        with pytest.raises(hotk.PreparationError, match="✗") as error:
            prepared(x)
        assert name in str(error.value)


def test_another_function_is_loud(hotk, tick):
    prepared = hotk.gradient.prepare(lambda x: jnp.sum(W[0] * x**3), W[0])
    with pytest.raises(hotk.PreparationError) as error:
        prepared.bind(lambda x: jnp.sum(W[0] * x**4))
    assert any("function" in line for line in lines(error, "✗"))


def test_another_function_among_the_constants_is_loud(hotk, tick):
    def f(x, g):
        tick()
        return jnp.sum(g(x))

    def scaled(c):
        return lambda y: c * y**3

    prepared = hotk.gradient.prepare(f, W[0], jnp.sin)
    close(prepared(W[0], jnp.sin), jnp.cos(W[0]))
    for other in (jnp.cos, lambda y: y**3):
        with pytest.raises(hotk.PreparationError, match="✗"):
            prepared(W[0], other)
    static = hotk.gradient.prepare(f, W[0], scaled(2.0))
    close(static(W[0], scaled(2.0)), 6.0 * W[0] ** 2)
    with pytest.raises(hotk.PreparationError, match="✗"):
        static(W[0], scaled(3.0))
    assert tick() == 2


def test_a_static_leaf_of_the_point_is_compared_by_value(hotk, tick):
    def f(x):
        tick()
        return jnp.sum(x["w"] ** 3) * len(x["name"]) * x["n"]

    prepared = hotk.gradient.prepare(f, {"w": W, "name": "abc", "n": 2})
    close(prepared({"w": W, "name": "".join("abc"), "n": 2})["w"], 18.0 * W**2)
    for other in ({"name": "abd"}, {"name": b"abc"}, {"name": None}, {"n": "2"}):
        with pytest.raises(hotk.PreparationError, match="✗"):
            prepared({"w": W, "name": "abc", "n": 2, **other})
    assert tick() == 1


def test_static_values_that_look_alike_differ(hotk):
    def f(x, options):
        return jnp.sum(x**3) * len(repr(options[0]))

    class Text(str):
        def __repr__(self):
            return "a long name"

    def wrapped(label):
        return (jax.tree_util.Partial(lambda: None), label)[1:]

    prepared = hotk.gradient.prepare(f, W[0], ("1",))
    for other in ((Text("1"),), (b"1",), ("1 ",), (None,)):
        with pytest.raises(hotk.PreparationError, match="✗"):
            prepared(W[0], other)
    close(prepared(W[0], wrapped("1")), 9.0 * W[0] ** 2)


@pytest.mark.parametrize(
    "setting",
    [
        lambda: jax.default_matmul_precision("highest"),
        lambda: jax.numpy_dtype_promotion("standard"),
        lambda: jax.enable_x64(False),
    ],
    ids=["precision", "promotion", "x64"],
)
def test_another_setting_is_loud(setting, hotk, tick):
    """JAX would trace again, without a word, another program."""

    def f(x):
        tick()
        return jnp.sum(jnp.sin(x @ x.T))

    prepared = hotk.gradient.prepare(f, W)
    prepared(W)
    with setting(), pytest.raises(hotk.PreparationError, match="✗"):
        prepared(W)
    with jax.no_tracing(True), compiles() as count:
        prepared(W)
    assert (count(), tick()) == (0, 1)


def test_an_opaque_function_cannot_be_traced_for_arrays_that_vary_by_device(hotk):
    calls = []
    f = lambda x: calls.append(1) or jnp.sum(2.0 * x**3)
    prepared = hotk.gradient.prepare(f, W)
    mesh, whole = jax.make_mesh((1,), ("d",)), jax.P("d")
    there = jax.shard_map(
        lambda x: prepared(x[0])[None], mesh=mesh, in_specs=whole, out_specs=whole
    )
    with pytest.raises(hotk.PreparationError, match="check_vma=False"):
        there(jax.device_put(W[None], jax.NamedSharding(mesh, whole)))


def test_another_setting_is_loud_where_arrays_vary_by_device(hotk):
    f = lambda x: jnp.sum(jnp.sin(x @ x.T))
    prepared = hotk.gradient.prepare(f, W)
    mesh, whole = jax.make_mesh((1,), ("d",)), jax.P("d")
    rows = jax.device_put(W[None], jax.NamedSharding(mesh, whole))
    there = jax.shard_map(
        lambda x: prepared(x[0])[None], mesh=mesh, in_specs=whole, out_specs=whole
    )
    assert close(there(rows)[0], jax.grad(f)(W))
    refused = pytest.raises(hotk.PreparationError, match="matmul_precision")
    with jax.default_matmul_precision("highest"), refused:
        there(rows)
    assert close(there(rows)[0], jax.grad(f)(W))


@pytest.mark.parametrize("answer", ["cast", "retrace"])
def test_another_setting_cannot_be_cast_but_traced_again(answer, hotk):
    f = lambda x: jnp.sum(jnp.sin(x @ x.T))
    prepared = hotk.gradient.prepare(f, W, on_mismatch=answer)
    prepared(W)
    with jax.default_matmul_precision("highest"):
        if answer == "cast":
            with pytest.raises(hotk.PreparationError, match="matmul_precision"):
                prepared(W)
        else:
            close(prepared(W), jax.grad(f)(W))


# ----- What is no mismatch


def test_numpy_arrays_of_the_same_signature_are_taken(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    x, v = ({k: np.array(a) for k, a in tree.items()} for tree in (POINT, DIRECTION))
    table = {"a": np.ones(3), "kind": "cubic"}
    with compiles() as count:
        got = prepared(x, v, 3.0, table)
    assert (count(), tick()) == (0, 1)
    close(got, plain(*ARGUMENTS))


def test_a_direction_of_python_numbers_is_taken(hotk):
    prepared = hotk.hvp.prepare(lambda x: x["s"] ** 3, {"s": S}, {"s": S})
    close(prepared({"s": S}, {"s": 2})["s"], 24.0 * jnp.ones(()))
    close(prepared({"s": S}, {"s": np.float32(2.0)})["s"], 24.0 * jnp.ones(()))


def test_the_order_of_a_dict_is_no_mismatch(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    x, v, c, table = ARGUMENTS
    reverse = lambda tree: dict(reversed(tree.items()))
    with compiles() as count:
        got = prepared(reverse(x), reverse(v), c, reverse(table))
    assert (count(), tick()) == (0, 1)
    close(got, plain(*ARGUMENTS))


def test_another_value_is_no_mismatch(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS)
    others = (
        jax.tree.map(lambda a: 2.0 * a, POINT),
        jax.tree.map(lambda a: -a, DIRECTION),
        -0.0,
        {"a": jnp.nan * jnp.ones(3), "kind": "cubic"},
    )
    close(prepared(*others), plain(*others))
    assert tick() == 1


# ----- Other answers than an error


def test_retrace_answers_with_the_right_result(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS, on_mismatch="retrace")
    narrow = (
        {"w": W[:, :2], "s": S},
        {"w": DIRECTION["w"][:, :2], "s": DIRECTION["s"]},
        3.0,
        {"a": jnp.ones(2), "kind": "cubic"},
    )
    quartic = (*ARGUMENTS[:3], {"a": jnp.ones(3), "kind": "quartic"})
    for arguments in (narrow, quartic, ARGUMENTS):
        close(prepared(*arguments), plain(*arguments))
    with compiles() as count:
        for arguments in (narrow, quartic, ARGUMENTS):
            prepared(*arguments)
    assert (count(), tick()) == (0, 3)


@pytest.mark.exhaustive
def test_retrace_compiles_once_for_each_signature(hotk, tick):
    def f(x):
        tick()
        return jnp.sum(x**3)

    hotk.clear_cache()
    gc.collect()  # a program of another test would be used as long as it lives
    prepared = hotk.hvp.prepare(f, W, W, on_mismatch="retrace")
    points = [W[0], W, W[0], W[:, 0], W[0]]
    with compiles() as count:
        got = [prepared(x, x) for x in points]
    assert (count(), tick()) == (2, 3)
    for result, x in zip(got, points, strict=True):
        close(result, 6.0 * x**2)


def test_retrace_keeps_the_function_as_it_was(hotk):
    scale = [2.0]

    def f(x):
        return scale[0] * jnp.sum(x**3)

    prepared = hotk.hvp.prepare(f, W, W, on_mismatch="retrace")
    scale[0] = 5.0
    close(prepared(W[0], W[0]), 12.0 * W[0] ** 2)
    close(prepared(W, W), 12.0 * W**2)


def test_retrace_keeps_numbers_and_functions_as_they_were(hotk):
    rate = 2.0

    def power(x):
        return x**3

    outer = functools.wraps(power)(lambda x: power(x))

    def f(x):
        return rate * jnp.sum(outer(x))

    prepared = hotk.hvp.prepare(f, W, W, on_mismatch="retrace")
    power.__code__ = (lambda x: x**5).__code__
    rate = 5.0
    close(prepared(W[0], W[0]), 12.0 * W[0] ** 2)
    close(prepared(W, W), 12.0 * W**2)
    close(hotk.hvp(f, W, W), 100.0 * W**4)


def test_cast_answers_in_the_prepared_dtype(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS, on_mismatch="cast")
    others = [
        ({"w": W.astype(F32), "s": S}, *ARGUMENTS[1:]),
        ({"w": W.astype(int), "s": S}, *ARGUMENTS[1:]),
        ({"w": W, "s": 2.0}, *ARGUMENTS[1:]),
        ({"w": np.asarray(W, np.float32), "s": S}, *ARGUMENTS[1:]),
        (POINT, {"w": DIRECTION["w"], "s": 0.5}, *ARGUMENTS[2:]),
        (POINT, DIRECTION, 3, TABLE),
        (POINT, DIRECTION, jnp.array(3.0, float), TABLE),
        (POINT, DIRECTION, 3.0, {"a": jnp.ones(3, F32), "kind": "cubic"}),
    ]
    for arguments in others:
        close(prepared(*arguments), plain(*ARGUMENTS))
    assert tick() == 1


@pytest.mark.parametrize(
    "name", ["shape of the point", "a label", "a scalar direction"]
)
def test_cast_does_not_broadcast_or_relabel(name, hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), *ARGUMENTS, on_mismatch="cast")
    with pytest.raises(hotk.PreparationError, match="✗"):
        prepared(*WRONG[name].arguments)
    close(prepared(*ARGUMENTS), plain(*ARGUMENTS))


def test_cast_does_not_drop_imaginary_parts(hotk):
    prepared = hotk.hvp.prepare(lambda x: jnp.sum(x**3), W, W, on_mismatch="cast")
    with pytest.raises(hotk.HotkError):
        prepared(W.astype(complex), W)


def test_another_answer_is_refused(hotk):
    with pytest.raises(ValueError, match="on_mismatch"):
        hotk.hvp.prepare(lambda x: jnp.sum(x**3), W, W, on_mismatch="ignore")


# ----- Devices


@pytest.mark.exhaustive
def test_another_sharding_is_loud():
    """In a process of its own: the number of devices is fixed at the start."""
    code = """
        import itertools
        import jax, jax.numpy as jnp
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        jax.config.update("jax_enable_x64", True)
        import hotk

        tick = itertools.count().__next__
        mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
        split, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
        x = jnp.linspace(-1.0, 1.0, 16)
        xs, xw = jax.device_put(x, split), jax.device_put(x, whole)
        other = jax.device_put(x, jax.devices()[3])

        def f(x):
            tick()
            return jnp.sum(x**3)

        def refused(prepared, *arguments):
            try:
                prepared(*arguments)
            except hotk.PreparationError as error:
                crossed = [l for l in str(error).splitlines() if "✗" in l]
                assert crossed, error
                return
            raise SystemExit(f"taken: {[a.sharding for a in arguments]}")

        prepared = hotk.hvp.prepare(f, xs, xs)
        for arguments in ((xw, xs), (xs, xw), (x, xs), (xw, xw), (other, other)):
            refused(prepared, *arguments)
        assert jnp.allclose(prepared(xs, xs), 6 * x * x)
        assert prepared(xs, xs).sharding.is_equivalent_to(split, 1)

        alone = hotk.hvp.prepare(f, x, x)
        refused(alone, xs, xs)
        assert jnp.allclose(alone(x, x), 6 * x * x)

        casting = hotk.hvp.prepare(f, xs, xs, on_mismatch="cast")
        assert jnp.allclose(casting(x, xw), 6 * x * x)
        assert casting(x, xw).sharding.is_equivalent_to(split, 1)
        # the types are the same on the mesh and on one device
        assert tick() == 1, "traced again"
        print("fine")
    """
    run_on_eight_devices(code)


def test_a_cast_rounds_nothing(hotk):
    prepared = hotk.gradient.prepare(
        lambda x, c: c * jnp.sum(x**2), jnp.ones(3), 2, on_mismatch="cast"
    )
    with pytest.raises(hotk.PreparationError):
        prepared(jnp.ones(3), 2.5)


def test_no_cast_mends_the_content_of_an_index(hotk):
    f = lambda x, i: jnp.sum(x[i] ** 3)
    x, first, second = jnp.ones(3), jnp.array([0, 1]), jnp.array([1, 2])
    prepared = hotk.sparse_hessian.prepare(f, x, first, on_mismatch="cast")
    assert prepared(x, first).nnz == 2
    with pytest.raises(hotk.PreparationError, match=r"content of args\[0\]"):
        prepared(x, second)
