"""Exported programs: the same numbers, in a process without hotk as well."""

import dataclasses
import functools
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hotk


pytest.importorskip("flatbuffers")
SERVE = Path(__file__).with_name("serve.py")
shape = jax.ShapeDtypeStruct


def loss(w, X, y):
    return jnp.mean((jnp.tanh(X @ w) - y) ** 2)


def data(n, seed=0):
    random = np.random.default_rng(seed)
    return jnp.asarray(random.normal(size=(n, 3))), jnp.asarray(random.normal(size=n))


W, V = jnp.array([0.5, -1.0, 0.3]), jnp.array([1.0, 2.0, -1.0])


def symbolic():
    (n,) = jax.export.symbolic_shape("N")
    return shape((n, 3), float), shape((n,), float)


def solve(w, b, X, y):
    H = hotk.HessianOperator(lambda w: loss(w, X, y) + w @ w, w)
    return {"cg": hotk.linop.cg(H, b).x, "minres": hotk.linop.minres(H, b).x}


def largest(w, X, y):
    pairs = hotk.HessianOperator(loss, w, X, y).eigh(2)
    return pairs.values, jnp.abs(pairs.vectors)


OPTIMIZER = optax.chain(hotk.optim.newton_cg(), optax.scale(0.5))


def step(w, state, X, y):
    f = lambda w: loss(w, X, y)
    updates, state = OPTIMIZER.update(hotk.gradient(f, w), state, w, value_fn=f)
    return optax.apply_updates(w, updates), state


def by_name(tree):
    """Write a tree as an exported program does, by another way than it."""
    if isinstance(tree, tuple) and hasattr(tree, "_asdict"):
        tree = tree._asdict()
    if isinstance(tree, dict):
        return {name: by_name(value) for name, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(map(by_name, tree))
    if dataclasses.is_dataclass(tree):
        fields = dataclasses.fields(tree)
        moving = [f.name for f in fields if not f.metadata.get("static")]
        return {name: by_name(getattr(tree, name)) for name in moving}
    return tree


class Case(NamedTuple):
    """A program, the function that it stands for, and the arguments of some calls."""

    data: bytes
    function: object
    calls: list


X5, Y5 = data(5)
STATE = OPTIMIZER.init(W)
BATCHES = [data(n, n) for n in (3, 7, 100)]


def any_batch(f, *args):
    """Return the program of a function whose last arguments are a batch."""
    calls = [(*args, *batch) for batch in BATCHES]
    return Case(hotk.export(f, *args, *symbolic()), jax.jit(f), calls)


def one_batch(f, *args):
    return Case(hotk.export(f, *args), jax.jit(f), [args])


def closed():
    prepared = hotk.hvp.prepare(lambda w: loss(w, X5, Y5), W, V)
    return Case(hotk.export(prepared), prepared, [(W, V)])


def product():
    prepared = hotk.hvp.prepare(loss, W, V, X5, Y5)
    return Case(hotk.export(prepared), prepared, [(W, V, X5, Y5)])


def product_of_any_batch():
    prepared = hotk.hvp.prepare(loss, W, V, X5, Y5)
    return Case(
        hotk.export(prepared, batch="N"),
        lambda w, v, X, y: hotk.hvp(loss, w, v, X, y),
        [(W, V, *batch) for batch in BATCHES],
    )


CASES = {
    "hvp": product,
    "any_batch": product_of_any_batch,
    "closed": closed,
    "solve": lambda: one_batch(solve, W, V, X5, Y5),
    "solve_any_batch": lambda: any_batch(solve, W, V),
    "eigh": lambda: one_batch(largest, W, X5, Y5),
    "step": lambda: one_batch(step, W, STATE, X5, Y5),
    "step_any_batch": lambda: any_batch(step, W, STATE),
}


@pytest.mark.parametrize(
    "names",
    [
        ("hvp", "any_batch", "solve", "step"),
        pytest.param(
            ("closed", "eigh", "solve_any_batch", "step_any_batch"),
            marks=pytest.mark.exhaustive,
        ),
    ],
    ids="_".join,
)
def test_served_without_hotk(names, tmp_path):
    """The numbers are those of the process that exported, bit by bit.

    And those of the function itself but for rounding: XLA may compile the operations of
    both in other groups. As for users (`XLA_FLAGS=`), these are the same numbers too.
    """
    programs = {name: CASES[name]() for name in names}
    for name, case in programs.items():
        (tmp_path / f"{name}.bin").write_bytes(case.data)
        here = hotk.load(case.data)
        arrays = {"calls": len(case.calls)}
        for i, args in enumerate(case.calls):
            inputs = jax.tree.leaves(by_name(args))
            results = jax.tree.leaves(here(*args))
            expected = jax.tree.leaves(by_name(case.function(*args)))
            for a, b in zip(results, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
            arrays |= {f"{i}in{k}": a for k, a in enumerate(inputs)}
            arrays |= {f"{i}out{k}": a for k, a in enumerate(results)}
        np.savez(tmp_path / f"{name}.npz", **arrays)
    served = subprocess.run(
        [sys.executable, "-I", SERVE, tmp_path],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert served.returncode == 0, served.stderr[-3000:]
    assert json.loads(served.stdout) == dict.fromkeys(programs, 0.0)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("n", [3, 7, 100])
def test_a_symbolic_batch_is_any_batch(n):
    (N,) = jax.export.symbolic_shape("N")
    like = shape((N, 3), float), shape((N,), float)
    prepared = hotk.hvp.prepare(loss, W, V, *like)
    assert "args[0]: f64[N,3]" in repr(prepared)
    program = hotk.load(hotk.export(prepared))
    X, y = data(n, n)
    expected = jax.jvp(lambda w: jax.grad(loss)(w, X, y), (W,), (V,))[1]
    np.testing.assert_allclose(program(W, V, X, y), expected, rtol=1e-12)


def test_a_symbolic_point():
    (N,) = jax.export.symbolic_shape("N")
    x = shape((N,), float)
    prepared = hotk.hvp.prepare(lambda x: jnp.sum(jnp.sin(x)), x, x)
    program = hotk.load(hotk.export(prepared))
    np.testing.assert_allclose(program(W, V), -jnp.sin(W) * V, rtol=1e-12)


LOSSES = {
    "squares": hotk.curvature.SquaredError,
    "logistic": lambda y: hotk.curvature.SigmoidCrossEntropy(y > 0),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gauss_newton_of_a_loss_in_closed_form(name, dtype):
    """A mean over N examples: 1/N is a number of the program."""
    (N,) = jax.export.symbolic_shape("N")
    model = lambda w, X: X @ w
    product = lambda w, v, X, y: hotk.ggnvp(model, LOSSES[name](y), w, v, X)
    w, v = W.astype(dtype), V.astype(dtype)
    program = hotk.load(
        hotk.export(product, w, v, shape((N, 3), dtype), shape((N,), dtype))
    )
    for n in (3, 7):
        X, y = (a.astype(dtype) for a in data(n, n))
        p = jax.nn.sigmoid(X @ w)
        weights = 1.0 if name == "squares" else p * (1 - p)
        expected = X.T @ (weights * (X @ v)) / n
        got = program(w, v, X, y)
        assert got.dtype == dtype
        tol = 1e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(got, expected, rtol=tol, atol=tol)


@pytest.mark.exhaustive
def test_captured_arrays_are_constants_or_arguments():
    X, y = data(5)
    other = data(5, 1)
    f = lambda w: loss(w, X, y)
    prepared = hotk.hvp.prepare(f, W, V)
    constants = hotk.load(hotk.export(prepared))
    apart = hotk.load(hotk.export(prepared, captured="arguments"))
    function = hotk.load(hotk.export(prepared.__call__, W, V))
    np.testing.assert_array_equal(constants(W, V), prepared(W, V))
    np.testing.assert_array_equal(apart(prepared.leaves, W, V), prepared(W, V))
    np.testing.assert_array_equal(function(W, V), prepared(W, V))
    expected = jax.jvp(lambda w: jax.grad(loss)(w, *other), (W,), (V,))[1]
    swapped = [other[0] if a.ndim == 2 else other[1] for a in prepared.leaves]
    np.testing.assert_allclose(apart(tuple(swapped), W, V), expected, rtol=1e-12)


def test_captured_arrays_of_a_function_are_arguments():
    X, y = data(5)
    f = lambda w, v: hotk.hvp(lambda w: loss(w, X, y), w, v)
    program = hotk.load(hotk.export(f, W, V, captured="arguments"))
    leaves = hotk.Closure.of(f).leaves
    assert len(leaves) == 2
    np.testing.assert_array_equal(program(leaves, W, V), jax.jit(f)(W, V))
    # JAX holds what it compiles by a weak reference.
    np.testing.assert_array_equal(jax.jit(program)(leaves, W, V), jax.jit(f)(W, V))


def test_weak_types():
    """A Python number is one of the program as well, and promotes nothing."""
    w = W.astype("float32")
    f = lambda w, c: jnp.sum(c * w**3)
    prepared = hotk.gradient.prepare(f, w, 2.0)
    program = hotk.load(hotk.export(prepared))
    got = program(w, 3.0)
    assert got.dtype == "float32"
    np.testing.assert_allclose(got, 9 * w**2, rtol=1e-6)


def test_argnums_and_keywords():
    X, y = data(5)
    f = lambda X, w, y, c: c * loss(w, X, y)
    prepared = hotk.hvp.prepare(f, X, V, W, y, argnums=1, kwargs={"c": 2.0})
    program = hotk.load(hotk.export(prepared))
    expected = 3 * jax.jvp(lambda w: jax.grad(loss)(w, X, y), (W,), (V,))[1]
    got = program(X, V, W, y, kwargs={"c": 3.0})
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.exhaustive
def test_a_module_is_a_dict_of_its_fields():
    """Leaves that are not arrays, as activations are, are part of the program."""
    model = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
    mean = lambda model, X: jnp.mean(jax.vmap(model)(X) ** 2)
    X = jnp.ones((4, 2))
    prepared = hotk.gradient.prepare(mean, model, X)
    program = hotk.load(hotk.export(prepared, batch="N"))
    expected = prepared(model, X)
    got = program(model, X)
    weight = got["layers"][1]["weight"]
    np.testing.assert_array_equal(weight, expected.layers[1].weight)
    assert got["activation"] is None
    plain = program(got, X)["layers"][0]["bias"]  # a dict goes in as well
    moved = jax.tree.map(lambda a, g: g, model, expected, is_leaf=lambda a: a is None)
    moved = eqx.combine(moved, model)
    np.testing.assert_array_equal(plain, prepared(moved, X).layers[0].bias)


@jax.tree_util.register_pytree_node_class
class Pair:
    """A node whose children have no names."""

    def __init__(self, *both):
        self.both = both

    def tree_flatten(self):
        return self.both, None

    @classmethod
    def tree_unflatten(cls, _, both):
        return cls(*both)


def test_other_nodes_are_tuples():
    f = lambda d: {1: d["b"].both[1], 2: Pair(d["a"], d["b"].both[0])}
    program = hotk.load(hotk.export(f, {"b": Pair(W, 2 * V), "a": V}))
    for b in (Pair(W, 2 * V), (W, 2 * V)):
        one, (two, three) = program({"a": V, "b": b})
        np.testing.assert_array_equal(one, 2 * V)
        np.testing.assert_array_equal(two, V)
        np.testing.assert_array_equal(three, W)


def test_in_a_file(tmp_path):
    path = tmp_path / "gradient.bin"
    prepared = hotk.gradient.prepare(lambda x: jnp.sum(x**3), W)
    written = hotk.export(prepared, path=path, platforms=("cpu",))
    assert path.read_bytes() == written
    program = hotk.load(path)
    assert program.platforms == ("cpu",)
    assert repr(program) == "<ExportedProgram gradient(f64[3]) for cpu>"
    np.testing.assert_allclose(hotk.load(str(path))(W), 3 * W**2, rtol=1e-12)


def test_a_random_key():
    f = lambda x: jnp.sum(jnp.cosh(x))
    trace = lambda x, key: hotk.estimate.trace(hotk.HessianOperator(f, x), key).value
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        program = hotk.load(hotk.export(trace, W, key))
        np.testing.assert_allclose(program(W, key), trace(W, key), rtol=1e-12)


# ----- What cannot be


def counting():
    """Return an opaque function: it has a state that cannot be seen."""
    numbers = iter(range(1000))

    def f(w, *X):
        next(numbers)
        return jnp.sum(w**2) + sum(map(jnp.sum, X))

    return f


def damaged(data):
    """Return the bytes with other operations: JAX reads these last."""
    code = jax.export.deserialize(bytearray(data)).mlir_module_serialized
    return data.replace(code, code[:40] + bytes(len(code) - 40))


REFUSED = {
    "no function": (lambda: hotk.export(3, W), TypeError, "no function"),
    "no arguments": (lambda: hotk.export(jnp.sum), TypeError, "0 arguments"),
    "arguments twice": (
        lambda: hotk.export(hotk.gradient.prepare(jnp.sum, W), W),
        TypeError,
        "has its arguments already",
    ),
    "platform": (
        lambda: hotk.export(jnp.sum, W, platforms=("gpu",)),
        ValueError,
        "'cpu', 'cuda', 'rocm', 'tpu'",
    ),
    "captured": (
        lambda: hotk.export(jnp.sum, W, captured="leaves"),
        ValueError,
        "'constants' or 'arguments'",
    ),
    "batch of a function": (
        lambda: hotk.export(jnp.sum, W, batch="N"),
        ValueError,
        "symbolic_shape",
    ),
    "two sizes": (
        lambda: hotk.export(
            hotk.gradient.prepare(lambda w, X, y: jnp.sum(w), W, X5, Y5[:4]), batch="N"
        ),
        ValueError,
        r"args\[0\]: 5, args\[1\]: 4",
    ),
    "no batch": (
        lambda: hotk.export(hotk.gradient.prepare(jnp.sum, W), batch="N"),
        ValueError,
        "no array",
    ),
    "callback": (
        lambda: hotk.export(lambda w: jax.pure_callback(np.sin, w, w), W),
        ValueError,
        "calls back to Python",
    ),
    "opaque": (
        lambda: hotk.export(counting(), W, captured="arguments"),
        ValueError,
        "what the function captures cannot be seen",
    ),
    "no bytes": (lambda: hotk.load(b"abc"), ValueError, "3 bytes"),
    "dtype": (
        lambda: hotk.load(hotk.export(jnp.sin, W))(jnp.arange(3)),
        hotk.PreparationError,
        r"`args\[0\]`[^`]*f64\[3\][^`]*i64\[3\]",
    ),
    "structure": (
        lambda: hotk.load(hotk.export(jnp.sin, W))(W, W),
        hotk.PreparationError,
        "another structure",
    ),
    "size": (
        lambda: hotk.load(hotk.export(jnp.sin, W))(jnp.ones(4)),
        hotk.PreparationError,
        r"`args\[0\]`[^`]*f64\[3\][^`]*f64\[4\]",
    ),
    "a number as batch": (
        lambda: hotk.export(hotk.gradient.prepare(jnp.sum, W), batch=3),
        ValueError,
        'batch=3.`: `batch` is the name of a size, such as "N"',
    ),
    "no name": (
        lambda: hotk.export(hotk.gradient.prepare(jnp.sum, W), batch="1N"),
        ValueError,
        "`batch` is the name of a size",
    ),
    "nothing to load": (
        lambda: hotk.load(None),
        TypeError,
        "None is no bytes, no path",
    ),
    "a number to load": (lambda: hotk.load(3), TypeError, "int is no bytes, no path"),
    "a damaged program": (
        lambda: hotk.load(damaged(hotk.export(jnp.sin, W))),
        ValueError,
        "there is no program in it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_exported_or_called_is_named(name, as_user):
    call, error, text = REFUSED[name]
    with pytest.raises(error, match=f"(?s){text}"):
        call()


@pytest.mark.filterwarnings("ignore:.*opaque")
def test_an_opaque_function_has_no_symbolic_sizes(as_user):
    X, _ = symbolic()
    with pytest.raises(hotk.PreparationError, match="symbolic sizes"):
        hotk.hvp.prepare(counting(), W, V, X)
    assert hotk.hvp.prepare(counting(), W, V, X5)(W, V, X5).tolist() == [2.0, 4.0, -2.0]


def test_the_package_that_is_missing_is_named(monkeypatch):
    def missing(name, *rest):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    for call in (lambda: hotk.export(jnp.sin, W), lambda: hotk.load(b"")):
        with pytest.raises(
            ImportError, match=r'flatbuffers`: pip install "hotk\[export\]"'
        ):
            call()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("n", [5, 20])
def test_dense_derivatives_for_any_batch(n):
    f = lambda w, X: jnp.mean(jnp.tanh(X @ w) ** 2)
    w, X = jnp.linspace(-1.0, 1.0, n), jnp.cos(jnp.arange(7.0 * n)).reshape(7, n)
    prepared = hotk.hessian.prepare(f, w, X)
    program = hotk.load(hotk.export(prepared, batch="N", platforms=("cpu",)))
    for count in (2, 7):
        expected = jax.hessian(f)(w, X[:count])
        got = program(w, X[:count])
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("order", [2, 4])
def test_sums_of_derivatives_of_any_number_of_rows(order, as_user):
    """Which of two ways is less work depends on a size that is not known yet."""
    f = lambda w, X: jnp.mean(jnp.sin(X @ w))
    w, X = jnp.linspace(-1.0, 1.0, 3), jnp.cos(jnp.arange(21.0)).reshape(7, 3)
    operator = {2: hotk.laplacian, 4: hotk.biharmonic}[order]
    program = hotk.load(hotk.export(operator.prepare(f, w, X), batch="N"))
    for rows in (X[:2], X):
        angles, lengths = rows @ w, jnp.sum(rows**2, axis=1)
        sign = {2: -1, 4: 1}[order]
        expected = jnp.mean(sign * jnp.sin(angles) * lengths ** (order // 2))
        np.testing.assert_allclose(program(w, rows), expected, rtol=1e-10)


def test_a_sparsity_pattern_needs_sizes_that_are_numbers(as_user):
    (n,) = jax.export.symbolic_shape("n")
    f = lambda x, a: jnp.sum(a * x[None] ** 2)
    for x, a in (((n,), (3, n)), ((4,), (n, 4))):
        shapes = [jax.ShapeDtypeStruct(s, float) for s in (x, a)]
        with pytest.raises(hotk.PreparationError, match="sizes that are numbers"):
            hotk.sparse_hessian.prepare(f, *shapes)


def test_another_string_or_function_than_was_exported_is_refused():
    """The program of "sum" was run where "mean" was asked for."""

    def loss(w, kind, act):
        reduced = {"mean": jnp.mean, "sum": jnp.sum}[kind["reduction"]]
        return reduced(act(w) ** 2)

    w, names = jnp.arange(3.0), {"reduction": "sum"}
    program = hotk.load(hotk.export(hotk.gradient.prepare(loss, w, names, jnp.sin)))
    expected = 2 * np.sin(np.arange(3)) * np.cos(np.arange(3))
    np.testing.assert_allclose(program(w, names, jnp.sin), expected)
    np.testing.assert_allclose(program(w, {"reduction": None}, None), expected)
    for others in (({"reduction": "mean"}, jnp.sin), (names, jnp.cos)):
        with pytest.raises(hotk.PreparationError, match="another than was exported"):
            program(w, *others)


class Scaled:
    """A plain object with a state, and a method with that."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, w):
        return self.scale * w


class Layer(eqx.Module):
    w: jax.Array
    scale: float

    def __call__(self, w):
        return self.scale * self.w * w


def scaled_by(scale):
    return lambda w: scale * w


def by_default(scale):
    def f(w, scale=scale):
        return scale * w

    return f


STATES = {
    "closure": scaled_by,
    "default": by_default,
    "partial": lambda scale: functools.partial(jnp.multiply, scale),
    "object": Scaled,
    "method": lambda scale: Scaled(scale).__call__,
    "jit": lambda scale: jax.jit(scaled_by(scale)),
}


@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
def test_an_argument_with_another_state_than_was_exported_is_refused(make):
    """The program for 2 was run where the one for 3 was asked for."""
    w, loss = jnp.arange(3.0), lambda w, act: jnp.sum(act(w) ** 2)
    prepared = hotk.gradient.prepare(loss, w, make(2.0))
    program = hotk.load(hotk.export(prepared, platforms=("cpu",)))
    np.testing.assert_allclose(program(w, make(2.0)), 8 * np.arange(3.0))
    with pytest.raises(hotk.PreparationError, match="another than was exported"):
        program(w, make(3.0))


def test_numbers_of_a_module_at_the_point_are_part_of_the_program():
    loss = lambda layer: jnp.sum((layer.scale * layer.w) ** 2)
    layer = Layer(jnp.arange(3.0), 2.0)
    prepared = hotk.gradient.prepare(loss, layer)
    program = hotk.load(hotk.export(prepared, platforms=("cpu",)))
    for given in (layer, {"w": layer.w, "scale": None}):
        np.testing.assert_allclose(program(given)["w"], 8 * np.arange(3.0))
    with pytest.raises(hotk.PreparationError, match="another than was exported"):
        program(Layer(layer.w, 3.0))
