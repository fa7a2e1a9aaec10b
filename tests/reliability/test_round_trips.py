"""Results and states are equal after a round trip: pickle, equinox, orbax, flax."""

import copy
import io
import pickle
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hotk
from tests.counting import compiles
from tests.optim.optimizers import OPTIMIZERS, START, quadratic


def by_pickle(tree, folder):
    return pickle.loads(pickle.dumps(tree))


def by_copy(tree, folder):
    return copy.deepcopy(tree)


def by_equinox(tree, folder):
    """Into a tree of the same structure, of shapes alone."""
    stream = io.BytesIO()
    eqx.tree_serialise_leaves(stream, tree)
    stream.seek(0)
    return eqx.tree_deserialise_leaves(stream, eqx.filter_eval_shape(lambda: tree))


def by_orbax(tree, folder):
    checkpoint = pytest.importorskip("orbax.checkpoint")
    with checkpoint.StandardCheckpointer() as saved:
        saved.save(folder / "tree", tree)
        saved.wait_until_finished()
        return saved.restore(folder / "tree", jax.tree.map(jnp.zeros_like, tree))


def by_flax(tree, folder):
    """By its leaves: flax knows no items of `eqx.Enumeration`, such as an `Outcome`."""
    serialization = pytest.importorskip("flax.serialization")
    leaves, treedef = jax.tree.flatten(tree)
    data = serialization.to_bytes(leaves)
    blank = jax.tree.map(jnp.zeros_like, leaves)
    return treedef.unflatten(serialization.from_bytes(blank, data))


library = pytest.mark.library
ALWAYS = {"pickle": by_pickle, "copy": by_copy, "equinox": by_equinox}
WAYS = [
    *[pytest.param(way, id=name) for name, way in ALWAYS.items()],
    pytest.param(by_orbax, id="orbax", marks=library),
    pytest.param(by_flax, id="flax", marks=library),
]


def same(got, expected):
    assert type(got) is type(expected)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    leaves = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    for a, b in leaves:
        assert a.dtype == b.dtype
        assert np.array_equal(a, b, equal_nan=True)
    return True


@pytest.mark.thinned(4, "way")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_loop_goes_on_from_a_restored_state_as_if_nothing_had_been(
    name, way, tmp_path
):
    transform = optax.chain(optax.clip(10.0), OPTIMIZERS[name].make())

    def step(p, state):
        g = jax.grad(quadratic)(p)
        update, state = transform.update(g, state, p, value_fn=quadratic)
        return optax.apply_updates(p, update), state

    saved = step(START, transform.init(START))
    restored = way(saved, tmp_path)
    assert same(restored, saved)
    step(START, transform.init(START))  # what is computed eagerly is compiled here
    straight_on = step(*saved)
    before = hotk.cache_info().traces
    with compiles() as count:
        after = step(*restored)
    assert same(after, straight_on)
    # Arrays of orbax are bound to their device, those of flax are NumPy's: JAX compiles
    # once more for either.
    if way in ALWAYS.values():
        assert count() == 0
        assert hotk.cache_info().traces == before


SCALE = jnp.array([1.0, 2.0, 3.0])
X = {"a": jnp.array([0.5, -1.0, 2.0]), "b": jnp.array(1.5, float)}


def loss(x):
    return jnp.sum(SCALE * jnp.cosh(x["a"])) + x["b"] ** 4


def operator():
    return hotk.HessianOperator(loss, X)


KEY = jax.random.key(0)
RESULTS = {
    "solve": lambda: operator().solve(operator().gradient),
    "several": lambda: operator().solve(
        jax.tree.map(lambda a: jnp.stack([a, a]), X), batched=True
    ),
    "minres": lambda: hotk.linop.minres(operator(), operator().gradient),
    "steihaug": lambda: hotk.linop.steihaug(operator(), operator().gradient, 0.1),
    "eigh": lambda: operator().eigh(2),
    "inertia": lambda: hotk.linop.inertia(operator()),
    "trace": lambda: hotk.estimate.trace(operator(), KEY),
    "diagonal": lambda: hotk.estimate.diagonal(operator(), KEY),
    "logdet": lambda: hotk.estimate.logdet(operator(), KEY),
    "spectrum": lambda: hotk.estimate.spectrum(operator(), KEY),
    "minimum": lambda: hotk.optim.minimize(
        loss, X, hotk.optim.newton_cg(), max_steps=2
    ),
    "minimum of a chain": lambda: hotk.optim.minimize(
        loss, X, optax.chain(hotk.optim.sophia(0.1), optax.clip(1.0)), max_steps=2
    ),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("way", ALWAYS)
@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_what_it_was(name, way, tmp_path):
    result = RESULTS[name]()
    again = ALWAYS[way](result, tmp_path)
    assert same(again, result)
    assert repr(again) == repr(result)


@pytest.mark.exhaustive
def test_a_result_is_loaded_by_another_process(tmp_path):
    results = [RESULTS[name]() for name in ("solve", "eigh", "trace", "minimum")]
    path = tmp_path / "results"
    path.write_bytes(pickle.dumps((results, [repr(r) for r in results])))
    code = (
        "import pickle, sys\n"
        "results, shown = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert [repr(r) for r in results] == shown\n"
        "assert bool(results[0].converged)\n"
        "print('fine')\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "fine", done.stderr[-2000:]


def test_what_describes_a_function_is_equal_after_a_round_trip():
    info = hotk.gradient.prepare(loss, X).info
    shown = hotk.explain(loss), hotk.can_differentiate(loss, X), info
    for value in shown:
        assert repr(by_pickle(value, None)) == repr(value)
    for mode in (hotk.FORWARD_OVER_REVERSE, hotk.Auto(), hotk.Taylor()):
        assert by_pickle(mode, None) == mode
