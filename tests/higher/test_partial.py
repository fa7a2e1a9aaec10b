"""Mixed partial derivatives and differential operators, against sympy."""

import collections
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy

import hotk
from tests.helpers import close


SYMBOLS = sympy.symbols("a b c")
FORMULA = (
    sympy.exp(SYMBOLS[0] * SYMBOLS[1]) * sympy.sin(SYMBOLS[2])
    + SYMBOLS[0] ** 4 * SYMBOLS[1] ** 2
    + sympy.log(1 + SYMBOLS[0] ** 2 + SYMBOLS[2] ** 2)
)
FUNCTION = sympy.lambdify(SYMBOLS, FORMULA, "jax")
AT = (0.3, 0.7, 1.1)


def f(x):
    return FUNCTION(*x)


def exact(index, formula=FORMULA):
    pairs = [(s, k) for s, k in zip(SYMBOLS, index, strict=True) if k]
    made = sympy.diff(formula, *pairs) if pairs else formula
    return float(made.evalf(30, subs=dict(zip(SYMBOLS, AT, strict=True))))


INDICES = [i for i in itertools.product(range(4), repeat=3) if sum(i) <= 4]
INDICES += [(6, 0, 0), (2, 2, 2), (3, 2, 1), (5, 0, 1)]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_against_sympy(index):
    close(hotk.partial(f, jnp.array(AT), index), exact(index), rtol=1e-9, atol=1e-9)


def test_published_numbers():
    g = lambda x: x[0] ** 2 * x[1] ** 3
    close(hotk.partial(g, jnp.array([0.4, 1.7]), (2, 3)), 12.0, rtol=1e-10)

    def third(p):
        u = lambda x: jnp.stack(
            [p[0] * x**3 + p[1], p[1] * jnp.sin(x - p[0]), jnp.sqrt(x + p[1])]
        )
        return jnp.sum(hotk.partial(u, 0.7, 3))

    p = jnp.array([1.3, 2.1])
    close(third(p), 6.0953800766, rtol=1e-10)
    close(jax.grad(third)(p), np.array([7.1857491941, -0.8508578184]), rtol=1e-9)


def test_ways_to_write_a_multi_index():
    u = lambda p: jnp.sin(p["x"]) * jnp.exp(2 * p["t"]) * p["y"] ** 2
    p = {"x": 1.0, "t": 0.2, "y": 3.0, "n": 2}
    wanted = -math.sin(1) * 2 * math.exp(0.4) * 9
    for index in (
        "xxt",
        ("x", "t", "x"),
        {"x": 2, "t": 1},
        {"x": 2, "t": 1, "y": 0, "n": 0},
        {"x": np.int64(2), "t": np.array(1)},
    ):
        close(hotk.partial(u, p, index), wanted, rtol=1e-10)
    named = lambda p: p["time"] ** 3 * p["x"]
    point = {"time": 2.0, "x": 5.0}
    close(hotk.partial(named, point, ("time", "time", "x")), 12.0, rtol=1e-10)
    close(hotk.partial(lambda t: t**5, 2.0, 3), 240.0)
    pair = (jnp.ones((2, 2)), 3.0)
    g = lambda x: x[0][0, 1] ** 2 * x[0][1, 0] * x[1] ** 2
    index = ([[0, 2], [1, 0]], 1)
    close(hotk.partial(g, pair, index), 12.0, rtol=1e-10)
    close(hotk.partial(g, pair, (np.zeros((2, 2), int), 2)), 2.0, rtol=1e-10)


def test_an_index_that_does_not_belong_to_the_point_is_refused():
    u, p = (lambda p: p["x"] * p["n"]), {"x": 1.0, "n": 2}
    for index in ("xz", {"z": 1}, (1, 2), 3, {"x": 1.5}, {"x": (1, 0)}):
        with pytest.raises(hotk.StructureError, match="multi-index"):
            hotk.partial(u, p, index)
    with pytest.raises(hotk.DtypeError, match="n"):
        hotk.partial(u, p, "xn")
    with pytest.raises(ValueError, match="zero or more"):
        hotk.partial(u, p, {"x": -1})
    with pytest.raises(hotk.StructureError, match=r"\(2, 0, 1\)"):
        hotk.partial(f, jnp.array(AT), (1, 0))
    with pytest.raises(hotk.StructureError, match="as 2"):
        hotk.partial(jnp.sin, 1.0, (1,))
    with pytest.raises(hotk.DtypeError, match="complex"):
        hotk.partial(jnp.abs, 1.0 + 1j, 1)
    with pytest.raises(hotk.TooLargeError, match="at most 33"):
        hotk.partial(jnp.exp, np.float32(0.0), 34)


# ---- sums of them

OPERATORS = {
    "heat": {(0, 0, 1): 1.0, (2, 0, 0): -0.5, (0, 2, 0): -0.5},
    "of first order": {(1, 0, 0): 2.0, (0, 0, 1): -3.0, (0, 0, 0): 4.0},
    "the function itself": {(0, 0, 0): 3.0},
    "Korteweg, de Vries": {(3, 0, 0): 1.0, (0, 0, 1): 1.0, (1, 0, 0): 6.0},
    "Kuramoto, Sivashinsky": {(4, 0, 0): 1.0, (2, 0, 0): 1.0, (0, 0, 1): 1.0},
    "plate": {(4, 0, 0): 1.0, (2, 2, 0): 2.0, (0, 4, 0): 1.0},
    "of all orders": {
        (0, 0, 0): 1.5,
        (1, 0, 0): -1.0,
        (1, 1, 0): 2.0,
        (1, 1, 1): 0.5,
        (2, 2, 0): -2.0,
        (3, 1, 1): 0.1,
        (2, 2, 2): 0.01,
    },
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("block_size", [None, 2])
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_against_sympy(name, block_size):
    coefficients = OPERATORS[name]
    expected = sum(c * exact(index) for index, c in coefficients.items())
    operator = hotk.differential_operator(coefficients)
    found = operator(f, jnp.array(AT), block_size=block_size)
    close(found, expected, rtol=1e-9)


def test_coefficients_are_leaves():
    hotk.clear_cache()
    x = jnp.array(AT)
    apply = lambda k: hotk.differential_operator({(2, 0, 0): k, (0, 1, 1): 1.0})(f, x)
    for k in (1.0, 2.5, jnp.asarray(-3.0)):
        close(apply(k), float(k) * exact((2, 0, 0)) + exact((0, 1, 1)))
    assert hotk.cache_info().compiles == 1
    close(jax.grad(apply)(2.0), exact((2, 0, 0)))
    close(jax.jit(apply)(2.0), apply(2.0))


def test_complex_coefficients_need_complex_values():
    wave = lambda p: jnp.exp(1j * (2.0 * p["x"] - 4.0 * p["t"]))
    schroedinger = hotk.differential_operator({"t": 1j, "xx": 1.0})
    close(schroedinger(wave, {"x": 0.3, "t": 0.2}), 0j, atol=1e-12)
    with pytest.raises(hotk.DtypeError, match="complex"):
        schroedinger(lambda p: p["x"] * p["t"], {"x": 0.3, "t": 0.2})


def test_trees_and_points_in_a_batch():
    heat = hotk.differential_operator({"t": 1.0, "xx": -0.5})
    u = lambda p, a: {"u": jnp.exp(-0.5 * a**2 * p["t"]) * jnp.sin(a * p["x"])}
    points = {"x": jnp.linspace(0, 1, 5), "t": jnp.linspace(0, 2, 5)}
    found = jax.vmap(lambda p: heat(u, p, 3.0))(points)
    close(found, {"u": np.zeros(5)}, atol=1e-12)
    prepared = heat.prepare(u, {"x": 0.0, "t": 0.0}, 3.0)
    found = prepared({"x": 0.1, "t": 0.2}, heat.coefficients, 3.0)
    close(found, {"u": 0.0}, atol=1e-12)
    found, aux = heat(lambda p: (p["t"] ** 2, p["x"]), points_at(points), has_aux=True)
    close((found, aux), (2 * 0.5, 0.25))


@pytest.mark.exhaustive
def test_points_with_arrays_in_a_dict():
    u = lambda p: jnp.exp(p["t"]) * p["x"][0] ** 3 * p["x"][1]
    p = {"t": 0.0, "x": jnp.array([2.0, 5.0])}
    terms = [({"t": 1}, 1.0), ({"x": (2, 0)}, 3.0), ({"x": [1, 1], "t": 1}, 1.0)]
    operator = hotk.differential_operator(terms)
    expected = 8.0 * 5 + 3 * 6 * 2 * 5 + 3 * 4
    close(operator(u, p), expected)
    close(jax.jit(lambda operator, p: operator(u, p))(operator, p), expected)
    assert hash(operator.indices)
    pair = lambda p: p[0] * p[1]["x"][1] ** 3
    nested = hotk.differential_operator([((1, {"x": (0, 2)}), 2.0)])
    close(jax.jit(lambda o, p: o(pair, p))(nested, (2.0, p)), 2.0 * 6 * 5)
    array = hotk.differential_operator([(np.array([2, 0]), 1.0)])
    close(array(lambda x: x[0] ** 3, jnp.array([2.0, 0.0])), 12.0)


Point = collections.namedtuple("Point", "x t")


@pytest.mark.parametrize(
    ("p", "index"),
    [
        (collections.OrderedDict(x=2.0, t=3.0), "xt"),
        (collections.OrderedDict(x=2.0, t=3.0), {"t": 1, "x": 1}),
        (collections.defaultdict(float, x=2.0, t=3.0), ("x", "t")),
        (Point(2.0, 3.0), Point(1, 1)),
        ([2.0, 3.0], [1, 1]),
    ],
)
def test_points_of_any_kind(p, index):
    g = lambda p: math.prod(jax.tree.leaves(p)) ** 2
    close(hotk.partial(g, p, index), 4 * 6.0)


def test_the_keys_that_count_are_enough_at_any_depth():
    p = {"a": {"x": 2.0, "y": 3.0}, "b": (1.0, 5.0)}
    g = lambda p: p["a"]["x"] ** 2 * p["a"]["y"] * p["b"][1]
    close(hotk.partial(g, p, {"a": {"x": 2}}), 30.0)
    close(hotk.partial(g, p, {"a": {"x": 1}, "b": (0, 1)}), 12.0)
    for wrong in ({"a": {"z": 1}}, {"b": (1,)}, {"b": 1}, {"a": 1}, [1, 2], 3):
        with pytest.raises(hotk.StructureError, match="multi-index"):
            hotk.partial(g, p, wrong)


def test_coefficients_of_other_python_types_are_the_same_program():
    hotk.clear_cache()
    for c in (1, 2.0, 3, jnp.asarray(4.0)):
        found = hotk.differential_operator({(2, 0, 0): c})(f, jnp.array(AT))
        close(found, float(c) * exact((2, 0, 0)))
    assert hotk.cache_info().compiles == 1


def test_coefficients_that_depend_on_the_point():
    burgers = lambda u, p: hotk.differential_operator({"t": 1.0, "x": u(p)})(u, p)
    u = lambda p: p["x"] / (1 + p["t"])  # u_t + u u_x = 0
    points = {"x": jnp.linspace(0, 1, 5), "t": jnp.linspace(0, 2, 5)}
    close(jax.vmap(lambda p: burgers(u, p))(points), np.zeros(5), atol=1e-14)


def points_at(points):
    return {name: values[1] for name, values in points.items()}


def test_operators_that_are_none_are_refused():
    with pytest.raises(TypeError, match="dict"):
        hotk.differential_operator({(2, 0)})
    with pytest.raises(TypeError, match="dict"):
        hotk.differential_operator([3, 0])
    with pytest.raises(TypeError, match="not a number"):
        hotk.differential_operator({"xx": lambda p: p["x"]})
    with pytest.raises(TypeError, match="not a number"):
        hotk.differential_operator({"xx": None})
    with pytest.raises(ValueError, match="no term"):
        hotk.differential_operator({})
    with pytest.raises(hotk.StructureError, match="one number"):
        hotk.differential_operator({(2, 0): jnp.ones(2)})
    with pytest.raises(hotk.StructureError, match="multi-index"):
        hotk.differential_operator({(2, 0): 1.0})(f, jnp.array(AT))
    u, p = lambda p: p["pos"] * p["t"], {"pos": 1.0, "t": 2.0}
    with pytest.raises(hotk.StructureError, match=r"not one of \['pos', 't'\]"):
        hotk.partial(u, p, "pos")
    with pytest.raises(hotk.StructureError, match=r"which is of shape \(3,\)"):
        hotk.partial(f, jnp.array(AT), (2, 0))


# ---- of some leaves

WHERE = {"x": True, "t": True, "z": False, "n": False}
AWAY = {"x": 0.4, "t": 0.2, "z": jnp.array([1.0 + 2.0j]), "n": 2}


def wave(p):
    return jnp.sin(p["x"]) * jnp.exp(2 * p["t"]) * jnp.abs(p["z"][0]) ** p["n"]


# d^3 wave / dx^2 dt and d wave / dt at `AWAY`, where |z|^2 is 5.
XXT = -math.sin(0.4) * 2 * math.exp(0.4) * 5
T = math.sin(0.4) * 2 * math.exp(0.4) * 5


@pytest.mark.parametrize(
    "where",
    [WHERE, lambda a: not jnp.iscomplexobj(a), lambda a: jnp.ndim(a) == 0],
    ids=["a tree", "a predicate", "another"],
)
def test_where_leaves_out_what_could_not_be_differentiated(where):
    with pytest.raises(hotk.DtypeError, match="complex"):
        hotk.partial(wave, AWAY, "xxt")
    close(hotk.partial(wave, AWAY, "xxt", where=where), XXT)
    prepared = hotk.partial.prepare(wave, AWAY, "xxt", where=where)
    close(prepared({**AWAY, "z": 2 * AWAY["z"]}), 4 * XXT)
    operator = hotk.differential_operator({"xxt": 2.0, "t": -1.0})
    close(operator(wave, AWAY, where=where), 2 * XXT - T)
    prepared = operator.prepare(wave, AWAY, where=where)
    other = hotk.differential_operator({"xxt": 1.0, "t": 3.0})
    close(prepared(AWAY, other.coefficients), XXT + 3 * T)


def test_where_counts_places_among_the_leaves_that_it_selects():
    g = lambda p: p["a"][0] * p["b"][1] ** 3 * p["c"] ** 2
    p = {"a": jnp.array([2.0, 7.0]), "b": jnp.array([5.0, 3.0]), "c": 2.0}
    where = {"a": False, "b": True, "c": True}
    index = {"b": (0, 2), "c": 1}
    close(hotk.partial(g, p, index, where=where), 2.0 * 6 * 3 * 2 * 2)
    terms = [(index, 1.0), ({"b": (0, 1)}, 10.0)]
    found = hotk.differential_operator(terms)(g, p, where=where)
    close(found, 144.0 + 10 * 2 * 3 * 9 * 4)


def test_an_index_of_a_leaf_that_where_leaves_out_is_refused():
    where = {"x": True, "t": False, "z": False, "n": False}
    heat = hotk.differential_operator({"t": 1.0, "xx": -1.0})
    for call in (
        lambda: hotk.partial(wave, AWAY, "xt", where=where),
        lambda: heat(wave, AWAY, where=where),
    ):
        with pytest.raises(hotk.DtypeError, match=r"x\['t'\]") as caught:
            call()
        assert "`where=` does not select it" in str(caught.value)
