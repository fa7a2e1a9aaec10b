"""Operators on some entries of a space, and blocks, against the whole matrix."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import hotk
from tests.counting import compiles
from tests.helpers import close


X = {
    "w": jnp.array([[0.5, -1.0], [2.0, 1.5], [0.25, -0.75]]),
    "b": jnp.array(0.75),
    "c": jnp.array([3.0, -2.0]),
    "n": 4,
}
MASKS = {
    "rows": {"w": np.array([True, False, True]), "b": False, "c": True, "n": False},
    "entries": {
        "w": np.array([[True, False], [False, True], [True, True]]),
        "b": True,
        "c": np.array([False, True]),
        "n": False,
    },
    "flat": np.arange(9) % 2 == 0,
}
# In the order of the index: b, c, w.
PLACES = {
    "rows": [1, 2, 3, 4, 7, 8],
    "entries": [0, 2, 3, 6, 7, 8],
    "flat": [0, 2, 4, 6, 8],
}


def mixed(x):
    inner = jnp.sum(jnp.sin(x["w"] @ x["c"])) ** 2 + x["b"] ** 3
    return inner + x["n"] * jnp.exp(x["b"] * x["w"][0, 0]) * x["c"][1]


def exact():
    floating = {name: a for name, a in X.items() if name != "n"}
    flat, unravel = ravel_pytree(floating)
    hessian = jax.jit(jax.hessian(lambda z: mixed({**unravel(z), "n": 4})))(flat)
    return np.asarray(hessian)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MASKS)
def test_it_is_the_rows_and_columns_of_the_entries(name):
    H = hotk.HessianOperator(mixed, X)
    R, places = H.restrict(MASKS[name]), PLACES[name]
    expected = exact()[np.ix_(places, places)]
    close(R.matrix(), expected)
    v = jnp.arange(1.0, len(places) + 1)
    close(R @ v, expected @ v)
    b = R.flat(R.take(H.gradient))
    close(b, np.asarray(H.flat(H.gradient))[places])
    full = np.zeros(9)
    full[places] = v
    close(H.flat(R.embed(v)), full)
    close(R.solve(b, tol=1e-12).x, R.vector(np.linalg.solve(expected, b)))
    assert R.symmetric
    assert repr(R).startswith("Restricted(HessianOperator(")


def test_vectors_are_what_a_mask_takes_of_a_leaf():
    like = hotk.HessianOperator(mixed, X).restrict(MASKS["rows"]).like
    close(like, {"w": X["w"][np.array([0, 2])], "b": None, "c": X["c"], "n": None})


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "make",
    [
        lambda: hotk.HessianOperator(mixed, X).linearize(),
        lambda: 2.0 * hotk.HessianOperator(mixed, X) + 0.5 * hotk.Identity(),
        lambda: hotk.GGNOperator(
            lambda x: x["w"] @ x["c"] * x["b"],
            hotk.curvature.SquaredError(jnp.ones(3), reduction="sum"),
            X,
        ),
        lambda: hotk.HessianOperator.over(
            lambda x, rows: jnp.mean((rows @ x["c"]) ** 2) * x["b"] + mixed(x),
            X,
            [np.arange(4.0).reshape(2, 2), np.ones((1, 2))],
        ),
    ],
    ids=["linearized", "sum", "ggn", "batches"],
)
def test_every_operator_is_restricted(make):
    A = make()
    R, places = A.restrict(MASKS["entries"]), PLACES["entries"]
    whole = np.asarray(A.matrix())
    close(R.matrix(), whole[np.ix_(places, places)], rtol=1e-12)
    close(A.block(MASKS["rows"], "w"), whole[PLACES["rows"], 3:], rtol=1e-12)


def test_complex_leaves_keep_both_parts():
    f = lambda z: jnp.sum(jnp.abs(z) ** 4) + jnp.real(z[0] * z[2]) ** 2
    H = hotk.HessianOperator(f, jnp.array([1.0 + 2j, 0.5 - 1j, -1.0 + 0.5j]))
    R = H.restrict(np.array([True, False, True]))
    places = [0, 2, 3, 5]
    close(R.matrix(), np.asarray(H.matrix())[np.ix_(places, places)])


@pytest.mark.parametrize("part", ["c", lambda a: a.ndim == 1])
def test_whole_leaves_are_those_of_where(part):
    H = hotk.HessianOperator(mixed, X)
    R = H.restrict(part)
    assert isinstance(R, hotk.HessianOperator)
    close(R.matrix(), exact()[1:3, 1:3])
    close(R.gradient, {"w": None, "b": None, "c": H.gradient["c"], "n": None})
    moved = R.at({**X, "c": jnp.array([1.0, 1.0])})
    at = {**X, "c": jnp.array([1.0, 1.0])}
    close(moved.matrix(), hotk.HessianOperator(mixed, at).block("c", "c"))
    # The one that it was made from is what it was.
    close(H.matrix(), exact())
    rows = R.restrict(
        {"w": False, "b": False, "c": np.array([False, True]), "n": 0 > 1}
    )
    close(rows.matrix(), exact()[2:3, 2:3])


def test_blocks_by_paths_filters_and_masks():
    H, whole = hotk.HessianOperator(mixed, X), exact()
    close(H.block("w", lambda a: a.ndim == 1), whole[3:, 1:3])
    close(H.block(MASKS["flat"], "b"), whole[PLACES["flat"], :1])
    rows, columns = PLACES["rows"], PLACES["entries"]
    close(H.block(MASKS["rows"], MASKS["entries"]), whole[np.ix_(rows, columns)])


def test_it_passes_through_transformations_and_other_masks_compile_nothing():
    product, v = jax.jit(lambda R, v: R @ v), jnp.ones(2)
    three = hotk.HessianOperator(lambda x: jnp.prod(x), jnp.array([1.0, 2.0, 3.0]))
    close(
        product(three.restrict(np.array([True, True, False])), v), np.array([3.0, 3.0])
    )
    with compiles() as count:
        found = product(three.restrict(np.array([False, True, True])), v)
    close(found, np.array([1.0, 1.0]))
    assert count() == 0
    batch = jax.vmap(lambda v: three.restrict(np.array([True, False, True])) @ v)
    close(batch(jnp.eye(2)), np.array([[0.0, 2.0], [2.0, 0.0]]))


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize(
    ("part", "error", "says"),
    [
        ("d", KeyError, "there are 'b', 'c', 'w'"),
        (lambda a: False, hotk.StructureError, "nothing is selected"),
        (np.zeros(9, bool), hotk.StructureError, "nothing is selected"),
        (np.array([0, 2]), TypeError, "np.isin"),
        (2, TypeError, "np.isin"),
        (np.int64(2), TypeError, "np.isin"),
        (["b", "c"], TypeError, "a tree of `True` and `False`"),
        (np.ones(8, bool), hotk.StructureError, "does not fit"),
        ({**MASKS["rows"], "c": np.ones(3, bool)}, hotk.StructureError, r"f\w+\[2\]"),
        ({"w": MASKS["rows"]["w"]}, hotk.StructureError, "does not fit"),
    ],
    ids=[
        "path",
        "nothing",
        "false",
        "indices",
        "index",
        "index of NumPy",
        "paths",
        "length",
        "shape",
        "structure",
    ],
)
def test_what_is_no_part_is_refused(part, error, says):
    H = hotk.HessianOperator(mixed, X)
    for call in (H.restrict, lambda p: H.block(p, "b"), H.linearize().restrict):
        with pytest.raises(error, match=says):
            call(part)


def test_a_filter_of_leaves_names_the_way_to_entries():
    with pytest.raises(TypeError, match=r"restrict\(mask\)"):
        hotk.gradient(lambda x: jnp.sum(x), jnp.ones(3), where=np.ones(3, bool))


def test_the_last_layer_of_a_network():
    model = eqx.nn.MLP(2, 1, 4, 1, key=jax.random.key(0))
    data = jnp.arange(6.0).reshape(3, 2)
    f = lambda model: jnp.mean(jax.vmap(model)(data) ** 2)
    H = hotk.HessianOperator(f, model).restrict(".layers[1]")
    hidden = jax.nn.relu(jax.vmap(model.layers[0])(data))
    features = np.concatenate([hidden, np.ones((3, 1))], 1)
    close(H.matrix(), 2 * features.T @ features / 3, rtol=1e-5)


def test_one_number_is_selected_by_one_boolean():
    f = lambda p: jnp.sum(p["w"] ** 2) * p["s"]
    H = hotk.HessianOperator(f, {"w": jnp.array([1.0, -1.0]), "s": jnp.array(2.0)})
    by_values = H.restrict(jax.tree.map(lambda a: a > 0, H.x))
    close(by_values.matrix(), np.array([[0.0, 2.0], [2.0, 4.0]]))
    for yes in (np.array(True), jnp.array(True), np.bool_(True), True):
        some = H.restrict({"w": np.array([False, True]), "s": yes})
        close(some.matrix(), np.array([[0.0, -2.0], [-2.0, 4.0]]))
    close(H.restrict({"w": jnp.array(True), "s": jnp.array(False)}).size, 2)
    listed = hotk.HessianOperator(lambda x: jnp.prod(x), jnp.array([1.0, 2.0, 3.0]))
    close(listed.restrict([True, False, True]).matrix(), np.array([[0, 2.0], [2, 0]]))


def test_a_mask_that_is_a_tracer_is_refused(as_user):
    H = hotk.HessianOperator(lambda x: jnp.sum(x**2), jnp.ones(3))
    with pytest.raises(TypeError, match="make the mask with NumPy"):
        jax.jit(lambda mask: H.restrict(mask).matrix())(np.ones(3, bool))


@pytest.mark.thinned(1)
@pytest.mark.parametrize("part", ["c", MASKS["rows"], MASKS["flat"]], ids=str)
def test_a_newton_step_on_a_part_is_written_in_one_way(part):
    H = hotk.HessianOperator(mixed, X)
    for A in (H, H + 0.5 * hotk.Identity()):
        R = A.restrict(part)
        step = R.embed(R.solve(R.take(H.gradient), tol=1e-12).x)
        places = PLACES["rows" if part is MASKS["rows"] else "flat"]
        places = [1, 2] if isinstance(part, str) else places
        damped = exact() + (0.0 if A is H else 0.5) * np.eye(9)
        expected = np.zeros(9)
        block = damped[np.ix_(places, places)]
        gradient = np.asarray(H.flat(H.gradient))
        expected[places] = np.linalg.solve(block, gradient[places])
        close(H.flat(step), expected, rtol=1e-6)
