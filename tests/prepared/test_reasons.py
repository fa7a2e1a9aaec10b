"""A call that is traced again says what was new about it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk


pytestmark = pytest.mark.usefixtures("as_user")

X = jnp.array([0.5, -1.0, 2.0])
RATE = 1.0


@pytest.fixture(autouse=True)
def empty():
    hotk.clear_cache()


def last():
    return hotk.cache_info().reasons[-1].split(": ", 1)[1]


def test_a_static_field_of_a_module_has_its_name():
    key = jax.random.key(0)
    for width in (8, 16):
        net = eqx.nn.MLP(3, 1, width, 1, key=key)
        _, rest = eqx.partition(net, eqx.is_array)
        hotk.gradient(lambda x: rest.width_size * jnp.sum(x**2), X)  # noqa: B023
    assert last() == "cell `rest`.width_size: 8 -> 16"


def test_what_differs_in_a_function_that_is_held_is_named():
    for scale in (2.0, 3.0, 4.0):
        held = hotk.Closure.of(lambda x: scale * jnp.sum(x**2))  # noqa: B023
        hotk.gradient(lambda x: held(x), X)  # noqa: B023
    assert last() == "cell `held`, cell `scale`: 3.0 -> 4.0"


def test_a_key_of_a_dict_that_is_no_string_stands_apart():
    table = {1: 2.0}
    rows = hotk.explain(lambda x: table[1] * jnp.sum(x)).rows
    assert "cell `table` key 1" in [row[0] for row in rows]


def test_a_captured_number():
    scaled = lambda c: lambda x: c * jnp.sum(x**2)
    hotk.gradient(scaled(0.5), X)
    hotk.gradient(scaled(0.25), X)
    assert last() == "cell `c`: 0.5 -> 0.25"


def test_a_global(monkeypatch):
    f = lambda x: RATE * jnp.sum(x**2)
    hotk.gradient(f, X)
    monkeypatch.setitem(globals(), "RATE", 2.0)
    hotk.gradient(f, X)
    assert last() == "global `RATE`: 1.0 -> 2.0"


def test_a_default():
    def f(x, k=3):
        return k * jnp.sum(x)

    hotk.gradient(f, X)
    f.__defaults__ = (4,)
    hotk.gradient(f, X)
    assert last() == "default `k`: 3 -> 4"


def test_an_attribute():
    class Task:
        step = 0

        def loss(self, x):
            return self.step * jnp.sum(x)

    task = Task()
    for step in (1, 2):
        task.step = step
        hotk.gradient(task.loss, X)
    assert last() == ".__self__.step: 1 -> 2"
    assert "Task.loss" in hotk.cache_info().reasons[-1]


def test_an_attribute_beside_others_that_are_not_read():
    class Task:
        def __init__(self):
            self.unread, self.decay, self.step = 0.1, 0.1, 0

        def loss(self, x):
            return self.decay * jnp.sum(x)

    task = Task()
    for task.decay in (0.1, 0.2):
        hotk.gradient(task.loss, X)
    assert last() == ".__self__.decay: 0.1 -> 0.2"


def test_the_content_of_an_index():
    picked = lambda i: lambda x: jnp.sum(x[i] ** 2)
    prepared = hotk.sparse_hessian.prepare(picked(jnp.array([0, 1])), X)
    text = r"prepared the content array\(\[0, 1\].*, called the content array\(\[1, 2\]"
    with pytest.raises(hotk.PreparationError, match=text):
        prepared.bind(picked(jnp.array([1, 2])))


def test_an_array_that_becomes_a_number():
    scaled = lambda c: lambda x: jnp.sum(c * x)
    hotk.gradient(scaled(jnp.ones(())), X)
    hotk.gradient(scaled(1.0), X)
    assert last() == "cell `c`: an array -> float"


def test_another_function_structure_or_signature():
    hotk.gradient(lambda x: jnp.sum(x), X)
    hotk.gradient(lambda x: jnp.sum(2 * x), X)
    assert last() == "another function"
    g = lambda x, c: jnp.sum(jax.tree.leaves(x)[0]) * c
    hotk.gradient(g, X, 1.0)
    hotk.gradient(g, [X], 1.0)
    assert last() == "another structure of the arguments"
    hotk.gradient(g, [X[:2]], 1.0)
    assert last() == "a new signature"


def test_bind_names_what_differs():
    def make(c):
        return lambda x: c * jnp.sum(x)

    prepared = hotk.gradient.prepare(make(1.0), X)
    with pytest.raises(hotk.PreparationError) as error:
        prepared.bind(make(2.0))
    assert "✗ function, cell `c`: prepared 1.0, called 2.0" in str(error.value)
    assert "retrace" not in str(error.value)


def test_what_is_shown_in_a_notebook_is_escaped():
    f = lambda x: RATE * jnp.sum(x)
    prepared = hotk.gradient.prepare(f, X)
    hotk.gradient(f, X)
    for shown in (prepared, hotk.cache_info(), hotk.explain(f, lambda x: jnp.sum(x))):
        assert "<lambda>" not in shown._repr_html_()
        assert "&lt;lambda&gt;" in shown._repr_html_()


def test_the_paths_of_a_model_are_those_of_python():
    net = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    places = [row[0] for row in hotk.explain(lambda x: net(x)).rows]
    assert "cell `net`.layers[0].weight" in places


def test_objects_that_answer_every_name():
    table = {"rate": 0.5}

    class Names:
        def __getattr__(self, name):
            return table[name]

    names = Names()
    f = lambda x: names.rate * jnp.sum(x**2)
    assert hotk.gradient(f, X).tolist() == X.tolist()
    assert "Names" in str(hotk.explain(f))


def test_numbers_of_numpy_show_their_value(monkeypatch):
    f = lambda x: RATE * jnp.sum(x)
    monkeypatch.setitem(globals(), "RATE", np.float64(2.0))
    hotk.gradient(f, X)
    monkeypatch.setitem(globals(), "RATE", np.float64(3.0))
    hotk.gradient(f, X)
    assert last() == "global `RATE`: np.float64(2.0) -> np.float64(3.0)"


def test_an_attribute_that_came_is_counted():
    class Model:
        def __init__(self):
            self.k = 2

        def __call__(self, x):
            return self.k * jnp.sum(x)

    model = Model()
    hotk.gradient(model, X)
    model.log = 1
    hotk.gradient(model, X)
    assert last() == "the function: it has 2 attributes or entries, not 1"
    model.k = 3
    hotk.gradient(model, X)
    assert last() == ".k: 2 -> 3"


def test_other_code_is_told_from_no_difference():
    first = lambda x: jnp.sum(x**3)
    second = lambda x: jnp.sum(x**3)
    assert "Their code or its line differs" in str(hotk.explain(first, second))
    assert "Their code" not in str(hotk.explain(first, first))


def test_an_equal_function_in_another_column_is_named():
    pair = lambda x: jnp.sum(x**3), lambda x: jnp.sum(x**3)
    prepared = hotk.gradient.prepare(pair[0], jnp.ones(2))
    with pytest.raises(
        hotk.PreparationError, match=r"py:\d+\) in another column, call"
    ):
        prepared.bind(pair[1])


def test_the_same_number_is_explained_at_each_place():
    low, high = 2, 2
    rows = hotk.explain(lambda x: low * jnp.sum(x) ** high).rows
    assert {row[0] for row in rows} >= {"cell `low`", "cell `high`"}


@pytest.mark.parametrize(
    ("one", "other"),
    [(np.int8(1), np.int8(2)), (range(3), range(4)), ({1}, {2}), ("a" * 50, "b" * 50)],
    ids=["NumPy", "range", "set", "text"],
)
def test_two_values_are_both_shown(one, other):
    make = lambda v: lambda x: (v, jnp.sum(x))[1]
    assert "cell `v`: " in str(hotk.explain(make(one), make(other)))
    hotk.gradient(make(one), X)
    hotk.gradient(make(other), X)
    was, _, now = last().partition(": ")[2].partition(" -> ")
    assert was != now


def test_more_defaults_than_arguments_are_numbered():
    def f(x):
        return jnp.sum(x)

    f.__defaults__ = (1.0, 2.0, 3.0)
    places = [row[0] for row in hotk.explain(f).rows]
    assert places == ["test_more_defaults_than_arguments_are_numbered.<locals>.f"] + [
        f"default `{i}`" for i in range(3)
    ]
