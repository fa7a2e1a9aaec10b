"""Laplacians of functions whose parts depend on few numbers each, such as electrons."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk._core import work
from tests.helpers import close
from tests.sparse.random_programs import FURTHER, drawn


ELECTRONS = 4
POINT = jnp.asarray(np.random.default_rng(0).normal(size=(ELECTRONS, 3)))
_SIZES = [(3, 8), (8, 8), (8, ELECTRONS), (4, 5), (3 * ELECTRONS, 5)]
_WEIGHTS = [
    jnp.asarray(np.random.default_rng(i).normal(size=s) / 2)
    for i, s in enumerate(_SIZES)
]
TO_FEATURES, BETWEEN, TO_ORBITALS, WITH_NORM, OF_ALL = _WEIGHTS


@pytest.fixture(autouse=True)
def always_by_support(monkeypatch):
    """With few directions the way along all of them may be less work."""
    monkeypatch.setattr("hotk._higher._contract._FEW", 0)


def features(x):
    h = jnp.tanh(x @ TO_FEATURES)
    return jnp.tanh(h @ BETWEEN) + h


def orbitals(x):
    return (
        features(x) @ TO_ORBITALS * jnp.exp(-jnp.linalg.norm(x, axis=1, keepdims=True))
    )


def distances(x):
    apart = x[:, None] - x[None]
    return jnp.sqrt(jnp.sum(apart**2, -1) + jnp.eye(len(x)))


def jastrow(x):
    r = distances(x)
    return jnp.sum(jnp.triu(r / (1 + r), 1))


def logdet(a):
    return jnp.linalg.slogdet(a)[1]


def two_spins(x):
    phi = orbitals(x)
    return logdet(phi[:2, :2]) + logdet(phi[2:, 2:])


def mean_field(x):
    h = features(x)
    mean = jnp.broadcast_to(jnp.mean(h, 0), h.shape)
    return jnp.sum(
        jnp.sin(jnp.concatenate([h, mean], 1) @ jnp.concatenate([BETWEEN, BETWEEN]))
    )


def attention(x):
    h = features(x)
    return jnp.sum(jax.nn.softmax(h @ h.T) @ h)


def with_norm(x):
    r = jnp.linalg.norm(x, axis=1, keepdims=True)
    return jnp.sum(jnp.sin(jnp.concatenate([x, r], 1) @ WITH_NORM))


def activations(x):
    y = x @ TO_FEATURES
    return jnp.sum(
        jax.nn.softplus(y) * jax.nn.gelu(y) * jax.nn.silu(y) + jax.nn.relu(y) ** 3
    )


def padded(x):
    longer = jnp.concatenate([x, x[:3] ** 2])[:, :1]
    return jnp.sum(jnp.sin(jnp.pad(x, ((1, 2), (0, 1)))) ** 2 * longer)


def looped(x):
    step = lambda c, row: (jnp.tanh(c + row), jnp.sum(c * row))
    return jnp.sum(jax.lax.scan(step, jnp.sin(x[0]), jnp.sin(x))[1])


def branched(x):
    y = jnp.sin(x)
    return jax.lax.cond(x[0, 0] > 0, lambda y: jnp.sum(y**3), jnp.prod, y)


FUNCTIONS = {
    "entry by entry": lambda x: jnp.sum(jnp.sin(x) * x),
    "potential": lambda x: jnp.sum(jnp.triu(1 / distances(x), 1)),
    "Jastrow factor": jastrow,
    "Slater determinant": lambda x: logdet(orbitals(x)),
    "its transpose": lambda x: logdet(orbitals(x).T),
    "a matrix that moves as a whole": lambda x: logdet(orbitals(x) * x[0, 0]),
    "Slater-Jastrow": lambda x: logdet(orbitals(x)) + jastrow(x),
    "two spins": two_spins,
    "several determinants": lambda x: jax.nn.logsumexp(
        logdet(jnp.stack([orbitals(x), orbitals(2 * x)]))
    ),
    "determinant": lambda x: jnp.linalg.det(orbitals(x)),
    "inverse": lambda x: jnp.sum(jnp.linalg.inv(orbitals(x))),
    "mean field": mean_field,
    "attention": attention,
    "coordinates and norms": with_norm,
    "all numbers in a layer": lambda x: jnp.sum(jnp.tanh(x.reshape(-1) @ OF_ALL)),
    "activations": activations,
    "padded and joined": padded,
    "rolled": lambda x: jnp.sum(jnp.roll(x, 1, 0) * x**2),
    "by vmap": lambda x: jnp.sum(jax.vmap(lambda a: jnp.exp(-a @ a) * a)(x)),
    "einsum": lambda x: jnp.sum(jnp.einsum("ia,ja->ij", x, jnp.sin(x)) ** 2),
    "chosen": lambda x: jnp.sum(jnp.where(x > 0, x**2, jnp.sin(x))),
    "several results": lambda x: {"a": x**3 * x[0, 0], "b": jnp.sum(x[0] * x[1])},
    "complex": lambda x: jnp.exp(
        jax.lax.complex(jnp.sum(orbitals(x) ** 2), jnp.sum(x))
    ),
    "gathered": lambda x: jnp.sum(x[jnp.array([0, 1, 3])] * x[jnp.array([1, 2, 0])]),
    "loop": looped,
    "branch": branched,
    "checkpoint": lambda x: jnp.sum(jax.checkpoint(jnp.sin)(jnp.cos(x)) ** 3),
    "rule": lambda x: hotk.safe.norm(jnp.sin(x)) ** 3,
    "cumulated": lambda x: jnp.sum(jnp.cumsum(x, 0) ** 3) * jnp.max(x),
}


def traces(f, x, weights=1.0):
    """Return the weighted traces of dense Hessians by JAX."""
    shape = (x.size, x.size)
    hessians = jax.jacfwd(jax.jacfwd(f))(x)
    diagonal = lambda h: jnp.einsum(
        "...ii->...i", h.reshape(*h.shape[: -2 * x.ndim], *shape)
    )
    return jax.tree.map(lambda h: jnp.sum(diagonal(h) * weights, -1), hessians)


def as_index(power, i, shape):
    """Return the multi-index of one number of a point of two axes."""
    index = np.zeros(shape, int)
    index.flat[i] = power
    return tuple(map(tuple, index.tolist()))


def everything(x):
    return {name: f(x) for name, f in FUNCTIONS.items()}


@pytest.mark.exhaustive
def test_laplacians_are_traces_of_hessians():
    # together: they are compiled as one program
    found = jax.jit(lambda x: hotk.laplacian(everything, x))(POINT)
    expected = jax.jit(lambda x: traces(everything, x))(POINT)
    for name in FUNCTIONS:
        close(
            found[name],
            jax.tree.map(np.asarray, expected[name]),
            rtol=1e-11,
            atol=1e-11,
        )


@pytest.mark.exhaustive
def test_weights_of_a_differential_operator():
    c = np.linspace(-1.0, 2.0, POINT.size)
    index = lambda i: as_index(2, i, POINT.shape)
    terms = [(index(i), c[i]) for i in range(POINT.size)]
    operator = hotk.differential_operator(terms)
    names = ("Slater-Jastrow", "attention", "two spins")
    f = lambda x: [FUNCTIONS[name](x) for name in names]
    found = jax.jit(lambda x: operator(f, x))(POINT)
    expected = jax.jit(lambda x: traces(f, x, c))(POINT)
    close(found, list(map(np.asarray, expected)), rtol=1e-11, atol=1e-11)


@pytest.mark.exhaustive
def test_fourth_derivatives_of_sums_over_pairs():
    x = POINT[:3, :2]
    unit = np.eye(6)
    index = lambda i: as_index(4, i, x.shape)
    operator = hotk.differential_operator([(index(i), 1.0) for i in range(6)])
    f = lambda x: jnp.sum(jnp.triu(jnp.sin(distances(x)), 1)) + jnp.sum(x**5 @ x[0])
    found = jax.jit(lambda x: operator(f, x))(x)

    def fourth(i):
        g = lambda t: f(x + t * unit[i].reshape(3, 2))
        for _ in range(4):
            g = jax.jacfwd(g)
        return g(0.0)

    close(found, sum(np.asarray(fourth(i)) for i in range(6)), rtol=1e-9)


@pytest.mark.exhaustive
def test_transformations_of_jax_go_through():
    f = lambda x, c: FUNCTIONS["Slater-Jastrow"](c * x)
    laplacian = lambda x, c: hotk.laplacian(f, x, c)
    dense = lambda x, c: traces(lambda x: f(x, c), x)
    xs = jnp.stack([POINT, 2 * POINT])
    ours, theirs = (
        jax.jit(jax.vmap(jax.value_and_grad(g, (0, 1)), (0, None)))(xs, 0.7)
        for g in (laplacian, dense)
    )
    close(ours, jax.tree.map(np.asarray, theirs), rtol=1e-8, atol=1e-9)


def test_trees_and_leaves_that_are_held():
    f = lambda p: jnp.sum(jnp.sin(p["r"] @ p["w"])) * p["t"]
    p = {"r": POINT, "w": TO_FEATURES, "t": jnp.asarray(0.3)}
    found = hotk.laplacian(f, p, where={"r": True, "w": False, "t": True})
    y = np.asarray(POINT @ TO_FEATURES)
    slopes = np.sum(np.asarray(TO_FEATURES) ** 2, 0)
    close(found, -0.3 * np.sum(np.sin(y) * slopes), rtol=1e-12)


def _work_of(f, x):
    """Count the work of a Laplacian."""
    hotk.clear_cache()
    return work(jax.make_jaxpr(lambda x: hotk.laplacian(f, x))(x).jaxpr)


@pytest.mark.exhaustive
def test_what_electrons_save_in_work(monkeypatch):
    x = jnp.asarray(np.random.default_rng(1).normal(size=(20, 3)))
    wide = jnp.asarray(np.random.default_rng(2).normal(size=(8, 20)))

    def f(x):
        return logdet(features(x) @ wide) + jastrow(x)

    names = ["Jastrow factor", "coordinates and norms", "activations", "by vmap"]
    few = [_work_of(g, x) for g in (f, *map(FUNCTIONS.get, names))]
    monkeypatch.setattr("hotk._higher._laplacian.unit_seeds", lambda x: None)
    many = [_work_of(g, x) for g in (f, *map(FUNCTIONS.get, names))]
    for name, a, b in zip(["both", *names], few, many, strict=True):
        assert 5 * a < b, name


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_few_directions_the_way_with_less_work_is_taken(name, monkeypatch):
    f = FUNCTIONS[name]
    by_support = _work_of(f, POINT)
    monkeypatch.setattr("hotk._higher._contract._FEW", 48)
    chosen = _work_of(f, POINT)
    monkeypatch.setattr("hotk._higher._laplacian.unit_seeds", lambda x: None)
    assert chosen == min(by_support, _work_of(f, POINT))


def test_small_functions_of_pairs_are_right_and_along_all_directions(monkeypatch):
    monkeypatch.setattr("hotk._higher._contract._FEW", 48)
    by_support = [_work_of(f, POINT) for f in (jastrow, features)]
    found = jax.jit(lambda x: hotk.laplacian(jastrow, x))(POINT)
    close(found, np.asarray(traces(jastrow, POINT)), rtol=1e-11)
    monkeypatch.setattr("hotk._higher._laplacian.unit_seeds", lambda x: None)
    dense = [_work_of(f, POINT) for f in (jastrow, features)]
    assert by_support[0] == dense[0]
    assert 2 * by_support[1] < dense[1]


def test_separable_functions_of_many_numbers_take_linear_memory():
    x = jnp.linspace(-1.0, 1.0, 100_000)
    f = lambda x: jnp.sum(jnp.cos(x[1:] - x[:-1] ** 2))
    compiled = jax.jit(lambda x: hotk.laplacian(f, x)).lower(x).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 40 * x.nbytes
    a, b = np.asarray(x[1:]), np.asarray(x[:-1])
    u = a - b**2
    expected = np.sum(-np.cos(u) * (1 + 4 * b**2) + 2 * np.sin(u))
    close(compiled(x), expected, rtol=1e-9)


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", [*range(0, 40, 4), *range(FURTHER, FURTHER + 40, 4)])
def test_random_programs(first):
    programs = drawn(first)
    f = lambda x: (programs.sums(x), list(map(jnp.sin, programs.outputs(x))))
    # written as users write them, with the promotions of NumPy
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        found = jax.jit(lambda x: hotk.laplacian(f, x))(programs.x)
        expected = jax.jit(lambda x: traces(f, x))(programs.x)
    close(found, jax.tree.map(np.asarray, expected), rtol=1e-9, atol=1e-9)
