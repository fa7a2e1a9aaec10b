"""`where=`: which leaves are differentiated, and which numbers are configuration.

The oracle is the same operator of the function closed over the other leaves.
"""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hotk
from hotk.interop import scipy_problem
from tests.helpers import close


X = {
    "w": jnp.array([[0.3, -0.7], [1.1, 0.4]]),
    "b": jnp.array([0.2, -0.5]),
    "n": jnp.array([1, 2]),  # integers: never differentiated
    "s": 0.8,  # a number of Python in a dict is data, as for `jax.grad`
}
V = {"w": jnp.array([[1.0, 0.5], [-0.5, 2.0]]), "b": jnp.array([0.3, 0.6]), "s": 0.25}
C = jnp.array([0.9, -0.4])


def loss(x, c=C):
    z = jnp.tanh(x["w"] @ c + x["b"] * x["s"])
    return jnp.sum(z**3 * x["n"].astype(z.dtype)) + x["s"] ** 2 * jnp.sum(
        x["w"] @ x["b"]
    )


def many(x, c=C):
    return {"z": jnp.sin(x["w"] @ c) * x["b"], "y": x["s"] * jnp.sum(x["w"] ** 3)}


def of(names):
    """Return `loss` and `many` of some leaves alone, and these leaves."""
    rest = {k: a for k, a in X.items() if k not in names}
    only = lambda f: lambda part, *args: f({**rest, **part}, *args)
    return only, {k: X[k] for k in names}


def along(names, v=V):
    return {k: v[k] for k in names}


def without_none(tree):
    """Drop the places that are `None` from a tree of dicts."""
    if not isinstance(tree, dict):
        return tree
    return {k: without_none(a) for k, a in tree.items() if a is not None}


U = {"z": jnp.array([0.5, -1.5]), "y": jnp.array(2.0)}
OPERATORS = {
    "gradient": (hotk.gradient, loss, False, {}),
    "value_and_gradient": (hotk.value_and_gradient, loss, False, {}),
    "jvp": (hotk.jvp, many, True, {}),
    "value_and_jvp": (hotk.value_and_jvp, many, True, {}),
    "jacobian": (hotk.jacobian, many, False, {}),
    "value_and_jacobian": (hotk.value_and_jacobian, many, False, {}),
    "hvp": (hotk.hvp, loss, True, {}),
    "value_gradient_and_hvp": (hotk.value_gradient_and_hvp, loss, True, {}),
    "quadratic_form": (hotk.quadratic_form, loss, True, {}),
    "hessian": (hotk.hessian, loss, False, {}),
    "value_gradient_and_hessian": (hotk.value_gradient_and_hessian, loss, False, {}),
    "hessian_diagonal": (hotk.hessian_diagonal, loss, False, {}),
    "laplacian": (hotk.laplacian, loss, False, {}),
    "value_and_laplacian": (hotk.value_and_laplacian, loss, False, {}),
    "biharmonic": (hotk.biharmonic, loss, False, {}),
    "derivatives": (hotk.derivatives, many, True, {"order": 3}),
    "taylor": (hotk.taylor, many, True, {"order": 3}),
    "tvp": (hotk.tvp, loss, True, {}),
    "derivative_tensor": (hotk.derivative_tensor, loss, False, {"order": 2}),
}
SELECTIONS = {
    "a tree": ({"w": True, "b": False, "n": False, "s": True}, ("w", "s")),
    "a prefix": ({"w": False, "b": True, "n": True, "s": False}, ("b",)),
    "a predicate": (lambda a: jnp.ndim(a) > 0, ("b", "w")),
    "a number alone": (lambda a: jnp.ndim(a) == 0, ("s",)),
}


def leaves_match(got, expected):
    got, expected = (jax.tree.leaves(without_none(t)) for t in (got, expected))
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("where", SELECTIONS)
@pytest.mark.parametrize("name", OPERATORS)
def test_it_is_the_operator_of_the_function_closed_over_the_rest(name, where):
    operator, f, directed, named = OPERATORS[name]
    where, names = SELECTIONS[where]
    only, part = of(names)
    # A whole direction and one with `None` are the same: the rest does not count.
    whole = {**V, "n": None}
    rest = (whole,) if directed else ()
    got = operator(f, X, *rest, where=where, **named)
    expected = operator(only(f), part, *((along(names),) if directed else ()), **named)
    leaves_match(got, expected)
    if directed:
        filtered = {k: V[k] if k in names else None for k in X}
        leaves_match(operator(f, X, filtered, where=where, **named), expected)
    again = functools.partial(operator.prepare, where=where, **named)
    given = ((whole,),) if name == "tvp" else rest
    leaves_match(again(f, X, *rest)(X, *given), expected)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("where", SELECTIONS)
def test_it_is_what_jax_computes_of_that_function(where):
    where, names = SELECTIONS[where]
    only, part = of(names)
    part, v = (jax.tree.map(lambda a: jnp.asarray(a, float), t) for t in (part, V))
    leaves_match(hotk.gradient(loss, X, where=where), jax.grad(only(loss))(part))
    hessian = hotk.hessian(loss, X, where=where)
    leaves_match(hessian, jax.hessian(only(loss))(part))
    product = jax.jvp(jax.grad(only(loss)), (part,), (along(names, v),))[1]
    leaves_match(hotk.hvp(loss, X, {**V, "n": None}, where=where), product)


def test_pulling_back_fills_what_is_selected_alone():
    only, part = of(("b",))
    got = hotk.vjp(many, X, U, where=lambda a: jnp.ndim(a) == 1)
    assert got["w"] is None
    assert got["s"] is None
    leaves_match(got, hotk.vjp(only(many), part, U))


@pytest.mark.parametrize("where", SELECTIONS)
def test_nothing_more_is_traced_and_the_rest_may_change(where):
    where, names = SELECTIONS[where]

    def fresh(c):
        return lambda x: loss(x, c)

    before = hotk.cache_info()
    hotk.hvp(fresh(1.0 * C), X, V | {"n": None}, where=where)
    first = hotk.cache_info()
    assert first.traces - before.traces <= 1
    for factor in (2.0, 3.0):
        other = {k: a if k == "n" else a * factor for k, a in X.items()}
        got = hotk.hvp(fresh(C * factor), other, V | {"n": None}, where=where)
        held = {k: a for k, a in other.items() if k not in names}
        alone = lambda p, held=held, c=C * factor: loss({**held, **p}, c)
        part = {k: jnp.asarray(other[k]) for k in names}
        leaves_match(
            got,
            jax.jvp(
                jax.grad(alone),
                (part,),
                (
                    jax.tree.map(
                        lambda a, b: jnp.asarray(a, b.dtype), along(names), part
                    ),
                ),
            )[1],
        )
    assert hotk.cache_info().traces == first.traces


def test_two_filters_are_two_programs():
    whole = hotk.gradient(loss, X)
    for names in (("w",), ("b",), ("w", "b"), ("s",)):
        marks = {k: k in names for k in X}
        got = hotk.gradient(loss, X, where=marks)
        assert {k for k, a in got.items() if a is not None} == set(names)
        leaves_match(got, along(names, whole))


class Inner(eqx.Module):
    weight: jax.Array
    epsilon: float = 1e-2


class Outer(eqx.Module):
    first: Inner
    last: Inner
    rate: float
    depth: int
    act: Any = jnp.tanh

    def __call__(self, t):
        if type(self.rate) is not float:  # no `assert`: pytest rewrites those
            raise TypeError("the rate is traced")
        for _ in range(self.depth):
            t = self.act(self.first.weight @ t) + self.first.epsilon
        return self.rate * (self.last.weight @ t) + self.last.epsilon


def model(seed=0, rate=0.5, depth=2):
    first, last = np.random.default_rng(seed).normal(size=(2, 2, 2))
    return Outer(Inner(jnp.asarray(first)), Inner(jnp.asarray(last)), rate, depth)


def of_model(m):
    return jnp.sum(m(C) ** 2)


def by_jax(m):
    """Value and gradient of the arrays alone, by equinox."""
    return eqx.filter_value_and_grad(of_model)(m)


def test_numbers_inside_of_a_module_are_configuration():
    for m in (model(), model(1), model(0, rate=0.25), model(0, depth=3)):
        value, gradient = by_jax(m)
        got = hotk.value_and_gradient(of_model, m)
        assert close(got[0], value)
        assert eqx.tree_equal(jax.tree.structure(got[1]), jax.tree.structure(gradient))
        leaves = (jax.tree.leaves(t) for t in (got[1], gradient))
        assert all(close(a, b) for a, b in zip(*leaves, strict=True))
        v = eqx.filter(m, eqx.is_inexact_array)
        product = hotk.hvp(of_model, m, v)
        expected = eqx.filter_jvp(eqx.filter_grad(of_model), (m,), (v,))[1]
        leaves = (jax.tree.leaves(t) for t in (product, expected))
        assert all(close(a, b) for a, b in zip(*leaves, strict=True))


def test_a_module_of_the_same_configuration_is_not_traced_again():
    hotk.hessian(of_model, model(0))
    before = hotk.cache_info()
    hotk.hessian(of_model, model(1))
    assert hotk.cache_info().traces == before.traces


@pytest.mark.exhaustive
def test_configuration_has_no_row_and_is_never_changed():
    m = model()
    H = hotk.HessianOperator(of_model, m)
    assert H.size == 8
    assert "rate" not in str(H.index)
    assert "epsilon" not in str(H.index)
    found = hotk.optim.minimize(of_model, m, hotk.optim.newton_cg(), max_steps=5)
    assert (found.x.rate, found.x.depth, found.x.last.epsilon) == (0.5, 2, 1e-2)
    assert float(found.value) < float(of_model(m))


def test_solvers_of_scipy_leave_configuration_alone():
    m = model()
    found = scipy_problem(of_model, m).minimize("trust-ncg", maxiter=3)
    assert found.x.shape == (8,)
    after = found.tree
    assert (after.rate, after.depth, after.first.epsilon) == (0.5, 2, 1e-2)
    assert close(float(of_model(after)), found.fun)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Plain:
    a: Any
    b: float


def test_a_plain_dataclass_is_a_module():
    f = lambda p: p.a**3 * p.b
    gradient = hotk.gradient(f, Plain(jnp.array(2.0), 5.0))
    assert close(gradient.a, 60.0)
    assert gradient.b is None
    with pytest.raises(hotk.DtypeError, match="configuration"):
        hotk.gradient(f, Plain(2.0, 5.0))


@pytest.mark.parametrize("library", ["flax.struct", "chex"])
def test_dataclasses_of_libraries_are_modules(library):
    make = pytest.importorskip(library).dataclass

    @make
    class Record:
        a: Any
        b: float

    gradient = hotk.gradient(lambda p: p.a**3 * p.b, Record(a=jnp.array(2.0), b=5.0))
    assert close(gradient.a, 60.0)
    assert gradient.b is None


def test_modules_of_nnx():
    nnx = pytest.importorskip("flax.nnx")

    class Net(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.array([1.0, 2.0]))
            self.mean = nnx.BatchStat(jnp.array([0.5, 0.25]))
            self.rate = 0.3

    graph, state = nnx.split(Net())

    def f(state):
        net = nnx.merge(graph, state)
        return jnp.sum((net.w[...] * net.mean[...]) ** 2) * net.rate

    got = hotk.gradient(f, state, where=nnx.Param)
    assert close(jax.tree.leaves(got), [0.3 * 2 * jnp.array([0.25, 0.125])])


def test_a_class_selects_all_inside_of_its_instances():
    m = model()
    only_last = lambda part: of_model(eqx.tree_at(lambda t: t.last.weight, m, part))
    marks = eqx.tree_at(lambda t: t.last, m, True)  # a prefix: the module is a leaf
    marks = dataclasses.replace(marks, first=False, rate=False, depth=False, act=False)
    H = hotk.HessianOperator(of_model, m, where=marks)
    assert close(
        H.matrix(),
        jax.hessian(lambda p: only_last(p.reshape(2, 2)))(m.last.weight.ravel()),
    )
    got = hotk.gradient(of_model, m, where=Inner)
    assert close(got.last.weight, jax.grad(only_last)(m.last.weight))


WEIGHTS = {"w": jnp.array([[0.3, -0.7], [1.1, 0.4]]), "b": jnp.array([0.2, -0.5])}
DATA = jnp.array([[0.5, 1.0], [-1.0, 2.0], [1.5, -0.5]])
LABELS = jnp.array([0, 1, 1])
ENTROPY = hotk.curvature.SoftmaxCrossEntropy(LABELS)


def outputs(p, data=DATA):
    return jnp.tanh(data @ p["w"]) + p["b"][None]


CURVATURES = {
    "Hessian": lambda f, p, **k: hotk.HessianOperator(lambda p: ENTROPY(f(p)), p, **k),
    "GGN": lambda f, p, **k: hotk.GGNOperator(f, ENTROPY, p, **k),
    "Fisher": lambda f, p, **k: hotk.FisherOperator(f, ENTROPY, p, **k),
    "empirical": lambda f, p, **k: hotk.EmpiricalFisherOperator(f, ENTROPY, p, **k),
    "sampled": lambda f, p, **k: hotk.SampledFisherOperator(
        f, ENTROPY, p, key=jax.random.key(0), samples=3, **k
    ),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", CURVATURES)
def test_operators_over_some_leaves(name):
    make = CURVATURES[name]
    H = make(outputs, WEIGHTS, where={"w": False, "b": True})
    closed = lambda b: outputs({"w": WEIGHTS["w"], "b": b})
    expected = make(closed, WEIGHTS["b"])
    assert close(H.matrix(), expected.matrix())
    assert close(H.gradient["b"], expected.gradient)
    assert H.gradient["w"] is None
    assert close(H.value, expected.value)
    assert close((H @ {"w": None, "b": jnp.ones(2)})["b"], expected @ jnp.ones(2))
    assert (
        [str(row[0]) for row in H.index] == ["b"] if hasattr(H.index, "__iter__") else 1
    )
    moved = jax.tree.map(lambda a: a + 0.1, WEIGHTS)
    again = H.at(moved)
    closed_there = lambda b: outputs({"w": moved["w"], "b": b})
    assert close(again.matrix(), make(closed_there, moved["b"]).matrix())


def test_solvers_over_some_leaves():
    f = lambda p: jnp.sum((DATA @ p["w"] - 1.0) ** 2) + jnp.sum((p["b"] - 2.0) ** 4)
    H = hotk.HessianOperator(f, WEIGHTS, where={"w": True, "b": False})
    step = H.solve(H.gradient).x
    assert step["b"] is None
    w = WEIGHTS["w"] - step["w"]
    expected = jnp.linalg.lstsq(DATA, jnp.ones((3, 2)))[0]
    np.testing.assert_allclose(w, expected, rtol=1e-6, atol=1e-6)
    L = H.linearize("store")
    assert close(
        (L @ {"w": V["w"], "b": None})["w"], (H @ {"w": V["w"], "b": None})["w"]
    )


def test_data_in_batches_over_some_leaves():
    of_batch = lambda p, rows: jnp.mean(jnp.tanh(rows @ p["w"] + p["b"][None]) ** 2)
    batches = [DATA[:2], DATA[2:]]
    H = hotk.HessianOperator.over(
        of_batch, WEIGHTS, batches, where=lambda a: a.ndim == 1
    )
    closed = lambda b: of_batch({"w": WEIGHTS["w"], "b": b}, DATA)
    assert close(H.matrix(), jax.hessian(closed)(WEIGHTS["b"]))
    assert close((H @ {"w": None, "b": jnp.ones(2)})["b"], H.matrix() @ jnp.ones(2))


def test_products_of_curvature_over_some_leaves():
    v = {"w": None, "b": jnp.array([0.5, -1.0])}
    marks = {"w": False, "b": True}
    closed = lambda b: outputs({"w": WEIGHTS["w"], "b": b})
    for product in (hotk.ggnvp, hotk.fvp, hotk.empirical_fvp):
        got = product(outputs, ENTROPY, WEIGHTS, v, where=marks)
        assert got["w"] is None
        assert close(got["b"], product(closed, ENTROPY, WEIGHTS["b"], v["b"]))


TRANSFORMS = {
    "newton_cg": lambda: hotk.optim.newton_cg(1.0),
    "trust_region": lambda: hotk.optim.trust_region(),
    "newton": lambda: hotk.optim.newton(1.0),
    "sophia": lambda: hotk.optim.sophia(0.1),
    "adahessian": lambda: hotk.optim.adahessian(0.1),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_loop_of_equinox(name):
    """The same steps as on a dict of the arrays, and the configuration stays."""
    m, transform = model(), TRANSFORMS[name]()
    params = {"first": m.first.weight, "last": m.last.weight}
    whole = lambda p: eqx.tree_at(
        lambda t: (t.first.weight, t.last.weight), m, (p["first"], p["last"])
    )
    of_dict = lambda p: of_model(whole(p))
    state, other = transform.init(params), transform.init(eqx.filter(m, eqx.is_array))
    stepped = m
    for _ in range(3):
        updates, state = transform.update(
            jax.grad(of_dict)(params), state, params, value_fn=of_dict
        )
        params = optax.apply_updates(params, updates)
        gradient = eqx.filter_grad(of_model)(stepped)
        updates, other = transform.update(gradient, other, stepped, value_fn=of_model)
        stepped = eqx.apply_updates(stepped, updates)
    assert (stepped.rate, stepped.depth, stepped.first.epsilon) == (0.5, 2, 1e-2)
    for got, expected in (
        (stepped.first.weight, params["first"]),
        (stepped.last.weight, params["last"]),
    ):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)


def test_a_leaf_without_a_gradient_is_frozen():
    transform = hotk.optim.newton(1.0)
    f = lambda p: jnp.sum((p["a"] * p["b"] - 3.0) ** 2)
    p = {"a": jnp.array([2.0]), "b": jnp.array([5.0])}
    g = hotk.gradient(f, p, where={"a": False, "b": True})
    state = transform.init({"a": None, "b": p["b"]})
    updates, _ = transform.update(g, state, p, value_fn=f)
    assert updates["a"] is None
    assert close(p["b"] + updates["b"], jnp.array([1.5]))


def test_minimize_over_some_leaves():
    f = lambda p: jnp.sum((p["a"] * p["b"] - 3.0) ** 2)
    p = {"a": jnp.array([2.0]), "b": jnp.array([5.0])}
    found = hotk.optim.minimize(
        f, p, hotk.optim.newton_cg(), where={"a": False, "b": True}
    )
    assert close(found.x["a"], p["a"])
    assert close(found.x["b"], jnp.array([1.5]))


def test_gradients_of_another_structure_are_refused():
    transform, f = hotk.optim.newton(1.0), lambda p: jnp.sum(p["a"] ** 2)
    p = {"a": jnp.ones(2)}
    with pytest.raises(hotk.StructureError, match="`updates` must have the structure"):
        transform.update({"b": jnp.ones(2)}, transform.init(p), p, value_fn=f)


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize(
    ("where", "error", "words"),
    [
        ({"w": True}, hotk.StructureError, "structure of `x`"),
        (3, TypeError, "not a leaf filter"),
        ("w", TypeError, "lambda path, _: 'w' in jax.tree_util.keystr"),
        ({"w": 1.0, "b": 2.0}, TypeError, "not a leaf filter"),
        (lambda a: False, hotk.DtypeError, "selects none"),
        ({"w": False, "b": False, "n": True, "s": False}, hotk.DtypeError, "selects"),
        (eqx.Module, hotk.DtypeError, "selects none"),
    ],
)
def test_what_is_no_filter_is_refused(where, error, words):
    with pytest.raises(error, match=words):
        hotk.gradient(loss, X, where=where)
    with pytest.raises(error, match=words):
        hotk.HessianOperator(loss, X, where=where)
    with pytest.raises(error, match=words):
        hotk.optim.minimize(loss, X, hotk.optim.newton_cg(), where=where)


def test_an_error_in_a_predicate_is_the_users():
    def bad(leaf):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        hotk.gradient(loss, X, where=bad)
    assert hotk.gradient(loss, X)["w"] is not None


def test_an_error_in_a_predicate_says_what_a_predicate_is_given():
    """`where=` of `eqx.tree_at` is given the whole model, a filter of nnx a path."""
    with pytest.raises(AttributeError, match="layers") as found:
        hotk.gradient(loss, X, where=lambda model: model.layers[-1])
    [note] = found.value.__notes__
    assert note.startswith("`gradient(f, x)`: `where` is called with one leaf of `x`")
    with pytest.raises(TypeError, match="missing 1 required") as found:
        hotk.HessianOperator(loss, X, where=lambda path, leaf: "b" in path)
    [note] = found.value.__notes__
    assert "f64[" in note
    assert "tree of `True` and `False`" in note


def test_inside_of_transformations():
    marks = {"w": True, "b": False, "n": False, "s": False}
    direct = hotk.gradient(loss, X, where=marks)["w"]
    assert close(jax.jit(lambda x: hotk.gradient(loss, x, where=marks))(X)["w"], direct)
    batch = jax.tree.map(lambda a: jnp.stack([jnp.asarray(a)] * 2), X)
    mapped = jax.vmap(lambda x: hotk.gradient(loss, x, where=marks))(batch)
    assert close(mapped["w"], jnp.stack([direct] * 2))
    # The derivative of the result by what is held fixed is that of JAX.
    by_b = lambda b: hotk.gradient(loss, {**X, "b": b}, where=marks)["w"]
    expected = jax.jacobian(
        lambda b: jax.grad(lambda w: loss({**X, "w": w, "b": b}))(X["w"])
    )(X["b"])
    assert close(jax.jacobian(by_b)(X["b"]), expected)


def test_a_prepared_retraces_with_its_filter():
    f = lambda x: sum(jnp.sum(a**3) for a in jax.tree.leaves(x))
    where = lambda a: jnp.ndim(a) == 1
    prepared = hotk.gradient.prepare(
        f, {"a": jnp.ones(2), "b": jnp.ones((2, 2))}, where=where, on_mismatch="retrace"
    )
    got = prepared({"a": jnp.ones((3, 3)), "b": 2 * jnp.ones(4)})
    assert got["a"] is None
    assert close(got["b"], 12 * jnp.ones(4))


def test_a_gradient_of_configuration_is_refused():
    """`jax.grad` gives one: the loop would change what hotk promises to leave alone."""
    f = lambda p: (p.a - 1.0) ** 2 + (p.b - 3.0) ** 2
    p, transform = Plain(jnp.array(0.0), 0.0), hotk.optim.newton(1.0)
    state = transform.init(Plain(p.a, None))
    with pytest.raises(hotk.StructureError, match=r"`params\.b` is a number inside"):
        transform.update(jax.grad(f)(p), state, p, value_fn=f)
    for params in (p, Plain(0.0, 0.0)):
        with pytest.raises(hotk.StructureError, match="is a number inside"):
            transform.init(params)
    updates, _ = transform.update(hotk.gradient(f, p), state, p, value_fn=f)
    assert close(updates.a, 1.0)
    assert updates.b is None


@pytest.mark.parametrize("answer", ["raise", "cast"])
def test_a_prepared_names_the_configuration_that_differs(answer):
    h = lambda m: jnp.sum(m.weight**3) * m.epsilon
    prepared = hotk.gradient.prepare(h, Inner(jnp.ones(2), 0.5), on_mismatch=answer)
    with pytest.raises(hotk.PreparationError, match=r"✗ x\.epsilon: .*0\.5.*0\.7"):
        prepared(Inner(jnp.ones(2), 0.7))
    retracing = hotk.gradient.prepare(h, Inner(jnp.ones(2), 0.5), on_mismatch="retrace")
    assert close(retracing(Inner(jnp.ones(2), 0.7)).weight, 2.1 * jnp.ones(2))


NEEDED = {
    "a branch": lambda p: jnp.sum(p["a"] ** 3) * (2.0 if p["s"] > 0 else 5.0),
    "a count": lambda p: sum(jnp.sum(p["a"] ** 3) for _ in range(int(p["s"]))),
    "NumPy": lambda p: jnp.sum(p["a"] ** 3) * float(np.exp(np.asarray(p["s"]))),
}


@pytest.mark.parametrize("name", NEEDED)
@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_python_may_ask_for_the_value_of_what_is_held(name):
    f, x = NEEDED[name], {"a": jnp.array([1.0, 2.0]), "s": jnp.array(2.0)}
    marks = {"a": True, "s": False}
    alone = lambda a: f({"a": a, "s": x["s"]})
    expected = jax.hessian(alone)(x["a"])
    assert close(hotk.hessian(f, x, where=marks)["a"]["a"], expected)
    H = hotk.HessianOperator(f, x, where=marks)
    assert close(H.matrix(), expected)
    with pytest.raises(hotk.StructureError):
        H.at({"a": x["a"], "s": jnp.array(3.0)})


def test_shapes_are_enough_for_a_predicate():
    shape = jax.ShapeDtypeStruct
    f = lambda p: jnp.sum(p["a"] ** 3) * jnp.sum(p["b"])
    prepared = hotk.gradient.prepare(
        f,
        {"a": shape((2,), float), "b": shape((2, 2), float)},
        where=lambda a: a.ndim == 1,
    )
    got = prepared({"a": jnp.ones(2), "b": jnp.ones((2, 2))})
    assert close(got["a"], 12.0 * jnp.ones(2))
    assert got["b"] is None


def test_a_complex_leaf_may_be_frozen():
    f = lambda p: jnp.sum((p["a"] * jnp.abs(p["c"]) - 3.0) ** 2)
    p = {"a": jnp.ones(1), "c": jnp.array(3.0 + 4.0j)}
    transform = hotk.optim.newton(1.0)
    gradient = hotk.gradient(f, p, where={"a": True, "c": False})
    updates, _ = transform.update(
        gradient, transform.init({"a": p["a"], "c": None}), p, value_fn=f
    )
    assert close(p["a"] + updates["a"], jnp.array([0.6]))
    both, state = hotk.gradient(f, p), transform.init(p)
    with pytest.raises(hotk.DtypeError, match="is complex"):
        transform.update(both, state, p, value_fn=f)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Converted:
    a: Any

    def __post_init__(self):
        if isinstance(self.a, (bool, int, float)):
            self.a = jnp.asarray(self.a)


@pytest.mark.usefixtures("as_user")
def test_a_class_that_converts_its_fields():
    q, f = Converted(2.0), lambda q: q.a**3
    assert close(hotk.gradient(f, q).a, 12.0)
    marks = jax.tree.map(lambda a: True, q)
    assert close(hotk.gradient(f, q, where=marks).a, 12.0)
    transform = hotk.optim.newton(1.0)
    updates, _ = transform.update(hotk.gradient(f, q), transform.init(q), q, value_fn=f)
    assert close(updates.a, -1.0)
    found = hotk.optim.minimize(lambda q: (q.a - 1.0) ** 2, q, transform)
    assert close(found.x.a, 1.0)
    assert close(hotk.HessianOperator(f, q, where=marks).matrix(), jnp.array([[12.0]]))


def test_configuration_that_is_no_number():
    h = lambda m: jnp.sum(m.weight**3)
    m = Inner(jnp.ones(2), float("nan"))
    assert close(hotk.gradient(h, m).weight, 3.0 * jnp.ones(2))
    H = hotk.HessianOperator(h, m)
    moved = H.at(Inner(2.0 * jnp.ones(2), float("nan")))
    assert close(moved.matrix(), 12.0 * jnp.eye(2))


def test_a_filter_that_selects_all_is_the_same_program_as_none():
    f = lambda x: loss(x) ** 2
    v = V | {"n": None}
    expected = hotk.hvp(f, X, v)
    before = hotk.cache_info()
    for where in (
        lambda a: True,
        eqx.is_inexact_array_like,
        True,
        {"w": True, "b": True, "n": False, "s": True},
    ):
        leaves_match(hotk.hvp(f, X, v, where=where), expected)
        assert hotk.HessianOperator(f, X, where=where).selected is None
    after = hotk.cache_info()
    assert (after.traces, after.compiles) == (before.traces, before.compiles)


def test_a_point_of_numpy_is_the_same_program_as_one_of_jax():
    f = lambda x: jnp.sum(jnp.sin(x["w"] ** 2))
    points = [{"w": np.ones(3)}, {"w": jnp.ones(3)}, {"w": np.full(3, 2.0)}]
    before = hotk.cache_info().traces
    for p in points:
        assert close(hotk.gradient(f, p), jax.grad(f)(jax.tree.map(jnp.asarray, p)))
    assert hotk.cache_info().traces == before + 1


def test_a_filter_may_change_between_calls():
    marks = dict.fromkeys(X, False)
    chosen = [1]
    for names in (("w",), ("b",), ("w",), ("b", "s")):
        marks.update({k: k in names for k in X})
        got = hotk.gradient(loss, X, where=marks)
        assert {k for k, a in got.items() if a is not None} == set(names)
    where = lambda a: jnp.ndim(a) == chosen[0]
    for count, name in ((1, "b"), (2, "w"), (0, "s"), (1, "b")):
        chosen[0] = count
        got = hotk.gradient(loss, X, where=where)
        assert [k for k, a in got.items() if a is not None] == [name]


def test_a_filter_is_asked_about_whole_leaves(as_user):
    with pytest.raises(TypeError, match="asked whether to select a whole leaf") as e:
        hotk.gradient(loss, X, where=lambda a: jnp.asarray(a) > 0)
    assert "bool[" in str(e.value)
    # an array of one truth is one
    got = hotk.gradient(loss, X, where=lambda a: jnp.array(jnp.ndim(a) == 1))
    leaves_match(got, hotk.gradient(loss, X, where=lambda a: jnp.ndim(a) == 1))


NESTINGS = {
    "jit": lambda f, x: jax.jit(f)(x),
    "vmap": lambda f, x: jax.tree.map(
        lambda a: a[1], jax.vmap(f)(jax.tree.map(lambda a: jnp.stack([0 * a, a]), x))
    ),
    "scan": lambda f, x: jax.tree.map(
        lambda a: a[0], jax.lax.scan(lambda c, _: (c, f(c)), x, None, length=1)[1]
    ),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("nesting", NESTINGS)
@pytest.mark.parametrize("where", SELECTIONS)
def test_filters_inside_of_transformations(where, nesting):
    where, names = SELECTIONS[where]
    only, part = of(names)
    x = jax.tree.map(jnp.asarray, X)
    part, v = (jax.tree.map(lambda a: jnp.asarray(a, float), t) for t in (part, V))
    expected = jax.jvp(jax.grad(only(loss)), (part,), (along(names, v),))[1]
    product = lambda x: hotk.hvp(loss, x, v | {"n": None}, where=where)
    leaves_match(NESTINGS[nesting](product, x), expected)
    through = lambda s: jnp.sum(product(x | {"w": s * x["w"]})[names[0]])

    def by_jax(s):
        moved = X | {"w": s * x["w"]}
        alone = lambda p: loss({**moved, **p})
        at = {k: jnp.asarray(moved[k], float) for k in names}
        return jnp.sum(jax.jvp(jax.grad(alone), (at,), (along(names, v),))[1][names[0]])

    np.testing.assert_allclose(jax.grad(through)(1.0), jax.grad(by_jax)(1.0))
