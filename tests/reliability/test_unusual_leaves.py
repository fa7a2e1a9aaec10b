"""Unusual leaves of a point, of further arguments, and captured: one test a line.

The page "Unusual leaves" has these lines. The oracle is the same derivative of the
function of the other leaves, written by hand.
"""

import enum
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import hotk
from tests.counting import compiles, traces
from tests.devices import run_on_eight_devices
from tests.helpers import close


pytestmark = pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")

W = jnp.array([0.3, -0.7, 1.1])
V = jnp.array([1.0, -0.5, 2.0])
KEY = jax.random.key(3)


class Kind(enum.Enum):
    SQUARE = 2
    CUBE = 3


# ---- leaves that pass through: `f(w, leaf)` is the sum of w^3 times a number


def drawn(key):
    return jax.random.uniform(key)


def of_callable(function):
    return function(1.0)


def of_text(text):
    return 2.0 if text in ("two", b"two") else 1.0


def of_numbers(numbers):
    return jnp.sum(jnp.asarray(numbers).astype(float))


def of_large_numbers(numbers):
    return float(np.sum(numbers % 1000))


def of_objects(array):
    return float(len(array[0]))


def of_nothing(leaf):
    return 3.0 if leaf is None else 1.0


def of_shape(leaf):
    return float(leaf.shape[0])


def of_dtype(dtype):
    return 2.0 if dtype == jnp.float32 else 1.0


def of_member(member):
    return float(member.value)


# name: the leaf, what the function makes of it, and the number that this is
PASSING = {
    "typed key": (KEY, drawn, float(jax.random.uniform(KEY))),
    "None": (None, of_nothing, 3.0),
    "function": (jnp.exp, of_callable, float(np.exp(1.0))),
    "string": ("two", of_text, 2.0),
    "bytes": (b"two", of_text, 2.0),
    "dtype": (jnp.float32, of_dtype, 2.0),
    "enum": (Kind.CUBE, of_member, 3.0),
    "integers": (jnp.array([1, 2, 3]), of_numbers, 6.0),
    "booleans": (jnp.array([True, False, True]), of_numbers, 2.0),
    "int4": (jnp.array([1, 2, 3], jnp.int4), of_numbers, 6.0),
    "Python int": (3, of_numbers, 3.0),
    "Python bool": (True, of_numbers, 1.0),
    "NumPy int": (np.int32(3), of_numbers, 3.0),
    "NumPy integers": (np.array([1, 2]), of_numbers, 3.0),
    "huge int": (2**70, of_large_numbers, 424.0),
    "NumPy strings": (np.array(["abc"]), of_objects, 3.0),
    "NumPy objects": (np.array([(1, 2), None], object), of_objects, 2.0),
    "float0": (np.zeros(3, jax.dtypes.float0), of_shape, 3.0),
    "shape": (jax.ShapeDtypeStruct((4,), jnp.float64), of_shape, 4.0),
    "Ref": (
        lambda: jax.new_ref(jnp.array([1.0, 2.0])),
        lambda r: of_numbers(r[...]),
        3.0,
    ),
}


def passing(name):
    leaf, number, expected = PASSING[name]
    return leaf() if name == "Ref" else leaf, number, expected


def same(a, b):
    """Whether a leaf that passed through is what it was."""
    if isinstance(a, (jax.Array, np.ndarray)):
        return a.dtype == b.dtype and bool((a == b).all())
    return a is b or a == b


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", PASSING)
def test_a_leaf_of_the_point_passes_through(name):
    leaf, number, c = passing(name)
    f = lambda p: jnp.sum(p["w"] ** 3) * number(p["leaf"])
    p, v = {"w": W, "leaf": leaf}, {"w": V, "leaf": None}
    alone = lambda w: jnp.sum(w**3) * c
    gradient, product = jax.jvp(jax.grad(alone), (W,), (V,))
    assert close(hotk.gradient(f, p), {"w": gradient, "leaf": None})
    assert close(hotk.hvp(f, p, v), {"w": product, "leaf": None})
    assert close(hotk.hvp(f, p, {"w": V, "leaf": leaf}), {"w": product, "leaf": None})
    hessian = hotk.hessian(f, p)
    assert hessian["leaf"] is None
    assert close(hessian["w"], {"w": jax.hessian(alone)(W), "leaf": None})
    given = {"w": None, "leaf": True}
    with pytest.raises(hotk.DtypeError):
        hotk.gradient(f, p, where=lambda a: False)
    with pytest.raises(hotk.HotkError, match="where"):
        hotk.gradient(f, p, where=given)
    if name != "shape":  # there a shape stands for an array
        assert close(hotk.gradient.prepare(f, p)(p), {"w": gradient, "leaf": None})


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", PASSING)
def test_operators_and_optimizers_at_such_a_point(name):
    leaf, number, c = passing(name)
    # convex, so that all of them take the step of Newton
    f = lambda p: jnp.sum(jnp.cosh(p["w"])) * number(p["leaf"])
    p, v = {"w": W, "leaf": leaf}, {"w": V, "leaf": None}
    H = hotk.HessianOperator(f, p)
    assert H.size == 3
    assert close(H @ v, {"w": c * jnp.cosh(W) * V, "leaf": None})
    assert close((H.at(p) @ v)["w"], c * jnp.cosh(W) * V)
    step = H.solve(H.gradient, tol=1e-12).x
    assert close(step, {"w": jnp.tanh(W), "leaf": None})
    found = hotk.optim.minimize(f, p, hotk.optim.newton(1.0), max_steps=1)
    assert close(found.x["w"], W - jnp.tanh(W))
    assert same(found.x["leaf"], leaf)
    transform = hotk.optim.newton(1.0)
    state = transform.init(eqx.filter(p, eqx.is_inexact_array))
    update, _ = transform.update(hotk.gradient(f, p), state, p, value_fn=f)
    assert close(update, {"w": -jnp.tanh(W), "leaf": None})


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", PASSING)
def test_as_a_further_argument_and_captured(name):
    leaf, number, c = passing(name)
    f = lambda w, leaf: jnp.sum(w**3) * number(leaf)
    expected = 6 * c * W * V
    assert close(hotk.hvp(f, W, V, leaf), expected)
    assert close(hotk.HessianOperator(f, W, leaf) @ V, expected)
    assert close(hotk.hvp(lambda w: f(w, leaf), W, V), expected)
    assert close(hotk.HessianOperator(lambda w: f(w, leaf), W) @ V, expected)
    backwards = lambda leaf, w: f(w, leaf)
    assert close(hotk.hvp(backwards, leaf, V, W, argnums=1), expected)
    assert close(hotk.hvp(f, W, V, kwargs={"leaf": leaf}), expected)
    if name != "shape":
        assert close(hotk.hvp.prepare(f, W, V, leaf)(W, V, leaf), expected)


def test_another_key_or_integer_is_another_argument():
    f = lambda p: jnp.sum(p["w"] ** 3) * jax.random.uniform(p["key"]) * p["n"]
    points = [{"w": W, "key": jax.random.key(k), "n": k} for k in range(4)]
    expected = [3 * W**2 * jax.random.uniform(p["key"]) * p["n"] for p in points]
    hotk.gradient(f, points[0])
    with compiles() as count, traces() as traced:
        got = [hotk.gradient(f, p)["w"] for p in points]
    assert count() == traced() == 0
    assert close(got, expected)


def test_another_string_or_function_is_another_program():
    f = lambda p: jnp.sum(p["w"] ** 3) * of_text(p["text"]) * p["act"](1.0)
    for text, number in (("two", 2.0), ("one", 1.0), ("two", 2.0)):
        for act in (jnp.exp, jnp.sin, lambda t: 5.0 * t):
            got = hotk.gradient(f, {"w": W, "text": text, "act": act})["w"]
            assert close(got, 3 * W**2 * number * act(1.0))


def test_integers_that_jax_has_no_room_for_are_not_cut(default_settings):
    w = jnp.ones(2)
    f = lambda w, n: jnp.sum(w**3) * np.sum(n % 1000)
    for n in (np.array([2**40 + 1]), np.int64(2**40 + 1), 2**40 + 1):
        expected = [6.0 * 777] * 2
        assert hotk.hvp(f, w, w, n).tolist() == expected
        assert hotk.hvp.prepare(f, w, w, n)(w, w, n).tolist() == expected
        H = hotk.HessianOperator(f, w, n)
        assert (H @ w).tolist() == (H.at(w, n) @ w).tolist() == expected
        with pytest.raises(hotk.StructureError, match="make a new operator"):
            H.at(w, n + 1)


# ---- leaves that are differentiated


DIFFERENTIATED = {
    "NumPy": np.array([1.0, -2.0]),
    "NumPy float32": np.array([1.0, -2.0], np.float32),
    "NumPy scalar": np.float32(1.5),
    "NumPy bfloat16": np.array([1.0, -2.0], ml_dtypes.bfloat16),
    "Python float": 1.5,
    "weak": jax.jit(lambda: 1.5)(),
    "weak array": jax.lax.full((2,), 1.5),
    "bfloat16": jnp.array([1.0, -2.0], jnp.bfloat16),
    "float16": jnp.array([1.0, -2.0], jnp.float16),
    "float8_e4m3fn": jnp.array([1.0, -2.0], jnp.float8_e4m3fn),
    "float8_e5m2": jnp.array([1.0, -2.0], jnp.float8_e5m2),
    "empty": jnp.zeros((0, 2)),
}


def of_both(p):
    leaf = jnp.asarray(p["leaf"]).astype(p["w"].dtype)
    return jnp.sum(p["w"] ** 2) * 2 + jnp.sum((leaf - 0.5) ** 2)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_a_leaf_that_is_differentiated(name):
    """As JAX has it for the array that the leaf stands for."""
    leaf = DIFFERENTIATED[name]
    p = {"w": W, "leaf": leaf}
    array = jax.tree.map(jnp.asarray, p)
    v = jax.tree.map(jnp.ones_like, array)
    gradient, product = jax.jvp(jax.grad(of_both), (array,), (v,))
    assert close(hotk.gradient(of_both, p), gradient)
    assert close(hotk.hvp(of_both, p, v), product)
    block = lambda a, b: jnp.zeros((*a.shape, *b.shape), a.dtype)
    expected = jax.tree.map(lambda a: jax.tree.map(lambda b: block(a, b), array), array)
    expected["w"]["w"] += 4 * jnp.eye(3)
    unit = jnp.eye(jnp.size(leaf), dtype=array["leaf"].dtype)
    shape = expected["leaf"]["leaf"].shape
    expected["leaf"]["leaf"] = (unit + unit).reshape(shape)
    assert close(hotk.hessian(of_both, p), expected)
    assert close(hotk.gradient.prepare(of_both, p)(p), gradient)
    H = hotk.HessianOperator(of_both, p)
    assert H.size == 3 + jnp.size(leaf)
    assert close(H @ v, product)
    at_minimum = {"w": 0 * W, "leaf": jnp.full_like(array["leaf"], 0.5)}
    step = jax.tree.map(lambda a, b: a - b, array, at_minimum)
    # Each product is rounded to the dtype of the leaf: no residual is below that.
    eps = float(jnp.finfo(array["leaf"].dtype).eps)
    solution = H.solve(H.gradient, tol=max(1e-12, eps))
    assert close(solution.x, step, rtol=max(1e-10, eps))
    transform = hotk.optim.newton(1.0)
    found = hotk.optim.minimize(of_both, p, transform, max_steps=1)
    assert close(found.x, at_minimum)
    update, _ = transform.update(gradient, transform.init(p), p, value_fn=of_both)
    assert close(update, jax.tree.map(jnp.negative, step))


def test_a_numpy_leaf_is_copied_and_never_written():
    leaf = np.array([1.0, -2.0])
    H = hotk.HessianOperator(lambda p: jnp.sum(p["leaf"] ** 3), {"leaf": leaf})
    leaf[0] = 100.0
    assert close((H @ {"leaf": np.ones(2)})["leaf"], jnp.array([6.0, -12.0]))
    p = {"leaf": leaf}
    hotk.optim.minimize(lambda p: jnp.sum(p["leaf"] ** 2), p, hotk.optim.newton(1.0))
    assert leaf.tolist() == [100.0, -2.0]


def test_complex_leaves(as_user):
    f = lambda p: jnp.sum(p["w"] ** 2) * jnp.abs(p["z"]) ** 2
    for z in (2.0 + 1j, np.complex128(2 + 1j), jnp.array(2.0 + 1j)):
        p = {"w": W, "z": z}
        array = jax.tree.map(jnp.asarray, p)
        v = {"w": V, "z": jnp.asarray(1.0 - 1j)}
        gradient, product = jax.jvp(jax.grad(f), (array,), (v,))
        assert close(hotk.gradient(f, p), gradient)
        assert close(hotk.hvp(f, p, v), product)
        with pytest.raises(hotk.DtypeError, match=r"hotk\.hvp"):
            hotk.hessian(f, p)
        with pytest.raises(hotk.DtypeError, match=r"params\['z'\]"):
            hotk.optim.minimize(f, p, hotk.optim.newton(1.0))
        # held fixed it is no matter
        held = hotk.hessian(f, p, where={"w": True, "z": False})
        assert close(held["w"]["w"], 10.0 * jnp.eye(3))


# ---- sharded, deleted


@pytest.mark.exhaustive
def test_sharded_leaves():
    run_on_eight_devices("""
        import jax, jax.numpy as jnp, numpy as np, hotk
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

        mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
        split = NamedSharding(mesh, P("a"))
        w = jax.device_put(jnp.arange(1.0, 9.0), split)
        f = lambda p: jnp.sum(jnp.cosh(p["w"])) * p["b"] + p["b"] ** 2
        p, v = {"w": w, "b": 2.0}, {"w": w, "b": None}
        where = {"w": True, "b": False}
        got = hotk.hvp(f, p, v, where=where)["w"]
        np.testing.assert_allclose(got, 2 * jnp.cosh(w) * w, rtol=1e-5)
        H = hotk.HessianOperator(f, p, where=where)
        step = H.solve(H.gradient).x["w"]
        np.testing.assert_allclose(step, jnp.tanh(w), rtol=1e-3)
        found = hotk.optim.minimize(
            f, p, hotk.optim.newton_cg(1.0), max_steps=1, where=where
        ).x["w"]
        for a in (got, (H @ v)["w"], found):
            assert a.sharding.is_equivalent_to(split, 1), a.sharding
        assert not w.is_deleted()
        print("fine")
    """)


def deleted():
    a = jnp.array([1.0, 2.0, 3.0])
    a.delete()
    return a


def weighted(p):
    return jnp.sum(p["w"] ** 3 * p["leaf"])


NAMED = {
    "point": ("x['leaf']", lambda p: hotk.gradient(weighted, p)),
    "direction": ("v['leaf']", lambda p: hotk.hvp(weighted, {"w": W, "leaf": W}, p)),
    "argument": (
        "args[0]['leaf']",
        lambda p: hotk.gradient(lambda w, p: jnp.sum(w * p["leaf"]), W, p),
    ),
    "captured": (
        "`f` captures",
        lambda p: hotk.gradient(lambda w: jnp.sum(w * p["leaf"]), W),
    ),
    "prepared": (
        "x['leaf']",
        lambda p: hotk.gradient.prepare(weighted, {"w": W, "leaf": W})(p),
    ),
    "operator": (
        "x['leaf']",
        lambda p: hotk.HessianOperator(weighted, p) @ {"w": W, "leaf": W},
    ),
    "minimize": (
        "x['leaf']",
        lambda p: hotk.optim.minimize(weighted, p, hotk.optim.newton(1.0)),
    ),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", NAMED)
def test_a_deleted_array_is_named(name):
    """Also where the program is known already."""
    leaf, call = NAMED[name]
    for _ in range(2):
        with pytest.raises(RuntimeError, match="deleted") as error:
            call({"w": W, "leaf": deleted()})
        notes = "\n".join(error.value.__notes__)
        assert leaf in notes
        assert "f64[3], was deleted or donated" in notes
        assert "optim(" not in notes
        call({"w": W, "leaf": W})


def test_a_donated_array_is_named():
    step = jax.jit(lambda p: jax.tree.map(jnp.sin, p), donate_argnums=0)
    p = {"w": jnp.array([1.0, 2.0]), "leaf": jnp.array([3.0, 4.0])}
    moved = step(p)
    if p["w"].is_deleted():  # not every backend donates
        with pytest.raises(RuntimeError, match="deleted") as error:
            hotk.gradient(weighted, p)
        assert any("x['leaf']" in note for note in error.value.__notes__)
    assert close(hotk.gradient(weighted, moved), jax.grad(weighted)(moved))


def test_an_error_of_the_user_gets_no_such_note():
    def f(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine") as error:
        hotk.gradient(f, W)
    assert not any("deleted" in n for n in getattr(error.value, "__notes__", []))


# ---- references


def test_a_captured_reference_is_read_at_each_call():
    ref = jax.new_ref(jnp.array([1.0, 2.0]))
    f = lambda w: jnp.sum(w**3) * jnp.sum(ref[...])
    step = jax.jit(lambda w: hotk.gradient(f, w))
    for factor in (3.0, 6.0, 12.0):
        assert close(hotk.gradient(f, W), 3 * W**2 * factor)
        assert close(hotk.hvp(f, W, V), 6 * W * V * factor)
        assert close(step(W), 3 * W**2 * factor)
        assert close(jax.vmap(step)(W[None]), (3 * W**2 * factor)[None])
        held = hotk.HessianOperator(f, W), hotk.gradient.prepare(f, W)
        ref[...] *= 2.0
        # these hold what they were made with
        assert close(held[0] @ V, 6 * W * V * factor)
        assert close(held[1](W), 3 * W**2 * factor)


def test_a_reference_that_is_written_is_written_once_a_call():
    """As by `jax.grad`."""
    ref = jax.new_ref(jnp.array(0.0))

    def f(w):
        ref[...] += 1.0
        return jnp.sum(w**3)

    for count in (1.0, 2.0, 3.0):
        assert close(hotk.hvp(f, W, V), 6 * W * V)
        assert float(ref[...]) == count


def test_a_reference_made_inside_is_differentiated_through():
    def f(w):
        ref = jax.new_ref(w * 2)
        ref[0] += 1.0
        return jnp.sum(ref[...] ** 3)

    expected = jax.jvp(jax.grad(f), (W,), (V,))[1]
    assert close(hotk.hvp(f, W, V), expected)
    assert close(hotk.HessianOperator(f, W) @ V, expected)


def test_a_reference_alone_is_no_point(as_user):
    ref = jax.new_ref(W)
    with pytest.raises(hotk.DtypeError, match=r"read it first, as in `x\[\.\.\.\]`"):
        hotk.gradient(lambda r: jnp.sum(r[...]), ref)


# ---- shapes


def test_a_shape_stands_for_an_array_in_prepare_alone(as_user):
    shape = jax.ShapeDtypeStruct((3,), jnp.float64)
    f = lambda w: jnp.sum(w**3)
    assert close(hotk.gradient.prepare(f, shape)(W), 3 * W**2)
    for call in (
        lambda: hotk.gradient(f, shape),
        lambda: hotk.HessianOperator(f, shape),
        lambda: hotk.optim.minimize(f, shape, hotk.optim.newton(1.0)),
    ):
        with pytest.raises(hotk.DtypeError, match=r"Shapes are for `\.prepare`"):
            call()
    with pytest.raises(hotk.PreparationError, match=r"called f64\[3\] Shape"):
        hotk.gradient.prepare(f, shape)(shape)


# ---- one array in two places


def test_an_array_in_two_places_is_two_leaves():
    a = jnp.array([1.0, 2.0])
    f = lambda p: jnp.sum(p["a"] ** 2 * p["b"])
    tied = {"a": a, "b": a}
    assert close(hotk.gradient(f, tied), {"a": 2 * a * a, "b": a**2})
    assert close(hotk.hessian(f, tied), jax.hessian(f)(tied))
    got = hotk.gradient(f, tied, where={"a": True, "b": False})
    assert close(got, {"a": 2 * a * a, "b": None})
    # held fixed where it is captured or an argument
    assert close(hotk.gradient(lambda x: jnp.sum(x**2 * a), a), 2 * a * a)
    assert close(hotk.gradient(lambda x, y: jnp.sum(x**2 * y), a, a), 2 * a * a)
    g = lambda p: jnp.sum((p["a"] - 1) ** 2) + jnp.sum((p["b"] - 3) ** 2)
    found = hotk.optim.minimize(g, tied, hotk.optim.newton(1.0), max_steps=1)
    assert close(found.x, {"a": jnp.full(2, 1.0), "b": jnp.full(2, 3.0)})
    assert a.tolist() == [1.0, 2.0]


class Tied(eqx.Module):
    shared: eqx.nn.Shared

    def __init__(self, key):
        embedding = eqx.nn.Embedding(4, 3, key=key)
        linear = eqx.nn.Linear(3, 4, use_bias=False, key=key)
        self.shared = eqx.nn.Shared(
            (embedding, linear), where=lambda p: p[1].weight, get=lambda p: p[0].weight
        )

    def __call__(self, token):
        embedding, linear = self.shared()
        return linear(embedding(token))


@pytest.mark.exhaustive
def test_a_weight_shared_by_equinox_is_one_leaf():
    tokens, scale = jnp.array([0, 2, 3]), jnp.array([1.0, 2.0, 3.0, 4.0])[None]
    f = lambda model: jnp.sum(jax.vmap(model)(tokens) ** 2 * scale)
    by_hand = lambda w: jnp.sum((w[tokens] @ w.T) ** 2 * scale)
    model = Tied(jax.random.key(0))
    (w,) = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
    (gradient,) = jax.tree.leaves(hotk.gradient(f, model))
    assert close(gradient, jax.grad(by_hand)(w))
    H = hotk.HessianOperator(f, model)
    flat = lambda v: by_hand(v.reshape(4, 3))
    assert close(H.matrix(), jax.hessian(flat)(w.ravel()))
    found = hotk.optim.minimize(f, model, hotk.optim.newton_cg(1.0), max_steps=2)
    assert float(found.value) < float(f(model))
    (after,) = jax.tree.leaves(eqx.filter(found.x, eqx.is_inexact_array))
    assert close(found.value, by_hand(after))


# ---- states of modules


class Normalized(eqx.Module):
    linear: eqx.nn.Linear
    norm: eqx.nn.BatchNorm

    def __init__(self, key):
        self.linear = eqx.nn.Linear(3, 2, key=key)
        self.norm = eqx.nn.BatchNorm(2, axis_name="batch", mode="batch")

    def __call__(self, x, state):
        h, state = self.norm(self.linear(x), state)
        return jnp.tanh(h), state


DATA = jax.random.normal(jax.random.key(1), (5, 3))


def with_state(model, state):
    run = jax.vmap(model, axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    out, state = run(DATA, state)
    return jnp.sum(out**3), state


@pytest.fixture
def as_libraries():
    """Promote as libraries do: strict promotion is not for them."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.exhaustive
@pytest.mark.usefixtures("as_libraries")
def test_a_state_of_equinox_is_an_argument_and_comes_back_as_auxiliary_output():
    model, state = eqx.nn.make_with_state(Normalized)(jax.random.key(0))
    expected, after = eqx.filter_grad(with_state, has_aux=True)(model, state)
    before = jax.tree.map(jnp.copy, jax.tree.leaves(state))
    got, new = hotk.gradient(with_state, model, state, has_aux=True)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    assert close(jax.tree.leaves(got), jax.tree.leaves(expected))
    assert close(jax.tree.leaves(new), jax.tree.leaves(after))
    assert close(jax.tree.leaves(state), before)  # the old state is as it was
    value = lambda model, state: with_state(model, state)[0]
    v = jax.tree.map(jnp.ones_like, eqx.filter(model, eqx.is_inexact_array))
    product = eqx.filter_jvp(
        eqx.filter_grad(lambda m: value(m, state)), (model,), (v,)
    )[1]
    H = hotk.HessianOperator(value, model, state)
    assert close(jax.tree.leaves(H @ v), jax.tree.leaves(product))
    captured = hotk.hvp(lambda m: value(m, state), model, v)
    assert close(jax.tree.leaves(captured), jax.tree.leaves(product))
    found = hotk.optim.minimize(
        value, model, hotk.optim.newton_cg(1.0), args=(state,), max_steps=1
    )
    assert float(found.value) < float(value(model, state))


@pytest.mark.exhaustive
@pytest.mark.library
@pytest.mark.usefixtures("as_libraries")
def test_modules_and_variables_of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self):
            rngs = nnx.Rngs(0)
            double = {"param_dtype": jnp.float64, "rngs": rngs}
            self.linear = nnx.Linear(3, 2, **double)
            self.norm = nnx.BatchNorm(2, **double)
            self.drop = nnx.Dropout(0.5, rngs=rngs)
            self.rate = 0.3

        def __call__(self, x):
            return self.drop(jnp.tanh(self.norm(self.linear(x)))) * self.rate

    net = Net()
    net.eval()
    f = lambda net: jnp.sum(net(DATA) ** 3)
    expected = nnx.grad(f)(net)
    got = hotk.gradient(f, net, where=nnx.Param)
    assert close(jax.tree.leaves(got), jax.tree.leaves(expected))
    assert type(got.linear.kernel) is nnx.Param
    assert jax.tree.leaves(got.norm.mean) == []
    graph, params, rest = nnx.split(net, nnx.Param, ...)
    of_params = lambda params: f(nnx.merge(graph, params, rest))
    v = jax.tree.map(jnp.ones_like, params)
    product = jax.jvp(jax.grad(of_params), (params,), (v,))[1]
    H = hotk.HessianOperator(f, net, where=nnx.Param)
    assert H.size == sum(a.size for a in jax.tree.leaves(params))
    flat = lambda tree: jnp.concatenate([a.ravel() for a in jax.tree.leaves(tree)])
    ones = jax.tree.map(jnp.ones_like, H.like)
    assert close(flat(H @ ones), flat(product))
    assert close(flat(hotk.hvp(of_params, params, v)), flat(product))
    before = jax.tree.map(jnp.copy, jax.tree.leaves(net))
    found = hotk.optim.minimize(
        f, net, hotk.optim.newton_cg(1.0), max_steps=1, where=nnx.Param
    )
    assert float(found.value) < float(f(net))
    assert close(float(f(found.x)), float(found.value))
    same = functools.partial(jax.tree.map, jnp.array_equal)
    leaves = jax.tree.leaves(net)
    assert all(
        map(
            bool,
            same(
                [a for a in leaves if a.dtype == float],
                [a for a in before if a.dtype == float],
            ),
        )
    )


@pytest.mark.library
@pytest.mark.usefixtures("as_libraries")
@pytest.mark.filterwarnings("ignore:scatter inputs:FutureWarning")  # flax: float32
def test_statistics_of_nnx_are_returned_not_written():
    """hotk changes no module of the user; what a call would write is an output."""
    nnx = pytest.importorskip("flax.nnx")
    norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0), param_dtype=jnp.float64)
    f = lambda norm: jnp.sum(norm(DATA) ** 3)
    got = hotk.gradient(f, norm, where=nnx.Param)
    assert float(jnp.sum(norm.mean[...])) == 0.0
    graph, params, rest = nnx.split(norm, nnx.Param, ...)

    def with_statistics(params, rest):
        # Without a copy the variables of `rest` would be written: flax refuses that.
        whole = nnx.merge(graph, params, rest, copy=True)
        return f(whole), nnx.state(whole, nnx.BatchStat)

    gradient, statistics = hotk.gradient(with_statistics, params, rest, has_aux=True)
    assert close(jax.tree.leaves(gradient), jax.tree.leaves(got))
    nnx.update(norm, statistics)
    mean = jnp.asarray(0.01 * jnp.mean(DATA, 0), norm.mean.dtype)
    assert close(norm.mean[...], mean)
    assert close(jax.tree.leaves(gradient), jax.tree.leaves(nnx.grad(f)(norm)))
