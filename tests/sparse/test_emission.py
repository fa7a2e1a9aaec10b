"""What is computed once, and read from one array with several factors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hotk
from hotk._core import equations
from hotk.sparse._ordered import in_order
from hotk.sparse._parts import Parts
from hotk.sparse._shared import Multiple, multiples
from hotk.sparse._sums import sorted_positions, summed


# Large enough that entries are added group by group.
N = 3000
RNG = np.random.default_rng(0)
X = jnp.asarray(RNG.normal(size=N))
S, T = RNG.permutation(N), RNG.permutation(N)
S, T = S[S != T], T[S != T]
MIXED = np.stack([RNG.permutation(N) for _ in range(4)], axis=1)


def _edges(x):
    """Sum a function of differences: entries that differ by signs, and meet."""
    return jnp.sum(jnp.cosh(x[S] - x[T]))


def _signs(x):
    """Sum terms of which entries of both signs meet at one position."""
    a, b, c, d = (x[MIXED[:, k]] for k in range(4))
    near = jnp.sum(jnp.sin(a - b + 2 * c)) + jnp.sum((c - d) ** 3)
    return near + jnp.sum(jnp.cos(x[1:] - x[:-1])) + jnp.sum(jnp.cos(x[:-1] + x[1:]))


def _with_a_hub(x):
    return jnp.sum(jnp.sin(x[0] - x[1:])) + jnp.sum(jnp.sin(x[S] + x[0]))


def _loops(x):
    """Edges from a node to itself are on the diagonal twice."""
    return jnp.sum(jnp.sin(x[MIXED[:, 0]] * x[np.r_[MIXED[:9, 0], MIXED[9:, 1]]]))


def _vectors(x):
    p = x.reshape(-1, 3)
    at, to = S[S < 1000][:900], T[T < 1000][:900]
    d = p[at] - p[to]
    return jnp.sum(jnp.sqrt(jnp.sum(d * d, axis=1) + 0.1) ** 3)


def _banded(x):
    r = x * (2 + 5 * x**2)
    for k in range(1, 6):
        r = r.at[k:].add(-x[:-k] * (1 + x[:-k]))
    return jnp.sum(r.at[:-1].add(-x[1:]) ** 2)


FUNCTIONS = {
    "edges": _edges,
    "both signs": _signs,
    "a hub": _with_a_hub,
    "edges to oneself": _loops,
    "edges of vectors": _vectors,
    "a band": _banded,
    "a chain": lambda x: jnp.sum(jnp.exp(x[1:] - x[:-1] ** 2)),
    "windows": lambda x: jnp.sum(
        jax.nn.logsumexp(x[np.arange(N - 3)[:, None] + np.arange(4)], axis=1)
    ),
    "an arrow": lambda x: x[0] ** 2 * jnp.sum(x[1:] ** 2) + jnp.sum(x**4),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_products_of_hessians_with_many_entries_are_those_of_jax(name):
    f = FUNCTIONS[name]
    found = hotk.sparse_hessian(f, X)
    assert found.nnz < 0.02 * N**2
    product = jax.jit(lambda v: jax.jvp(jax.grad(f), (X,), (v,))[1])
    for v in RNG.normal(size=(3, N)):
        expected = product(jnp.asarray(v))
        assert np.allclose(found.to_scipy() @ v, expected, rtol=1e-11, atol=1e-11)


def _multiples(f):
    x, y = jnp.linspace(1.0, 2.0, 5), jnp.linspace(3.0, 4.0, 5)
    found = multiples(jax.make_jaxpr(lambda: f(x, y))())
    for a, b in zip(found, f(x, y), strict=True):
        assert (np.asarray(a.multiplied()) == np.asarray(b)).all()  # to the last bit
    return found


SHARED = {
    "products in either order": lambda x, y: [2 * x * y, -(y * x), x * y],
    "differences": lambda x, y: [x - y, y - x, 2 * x - 2 * y],
    "moved": lambda x, y: [(-x)[1:4].reshape(3, 1), (4 * x)[1:4].reshape(3, 1)],
    "padded": lambda x, y: [
        lax.pad(-x, 0.0, [(1, 1, 0)]),
        lax.pad(x, 0.0, [(1, 1, 0)]),
    ],
    "divided": lambda x, y: [-x / y, 0.5 * x / y],
    "sums of two halves": lambda x, y: [x + x, x],
    "joined": lambda x, y: [jnp.concatenate([-x, -y]), jnp.concatenate([x, y])],
}
APART = {
    "sums of other parts": lambda x, y: [x + y, 2 * x + y],
    "sines": lambda x, y: [jnp.sin(-x), jnp.sin(x)],
    "factors that round": lambda x, y: [3 * x, x],
    "joined with other signs": lambda x, y: [
        jnp.concatenate([-x, y]),
        jnp.concatenate([x, y]),
    ],
    "cut at other places": lambda x, y: [x[1:4], x[0:3]],
}


@pytest.mark.parametrize("name", SHARED)
def test_multiples_are_of_one_array(name):
    assert len({id(a.array) for a in _multiples(SHARED[name])}) == 1


@pytest.mark.parametrize("name", APART)
def test_other_arrays_are_not_shared(name):
    assert len({id(a.array) for a in _multiples(APART[name])}) == 2


def test_edges_are_read_from_one_array():
    # four entries for each edge, and one second derivative
    program = jax.make_jaxpr(lambda x: hotk.sparse_hessian(_edges, x).values)(X)
    joined = [
        e
        for e in equations(program.jaxpr)
        if e.primitive.name == "hotk_written" and len(e.invars) == 1
    ]
    assert {e.invars[0].aval.shape for e in joined} == {(S.size,)}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("counts", [(2, 3, 1), (1, 1, 1), (40, 2, 9)])
def test_sums_with_factors(counts):
    arrays = [jnp.asarray(RNG.normal(size=3000)) for _ in counts]
    parts = [Multiple(f, a) for a in arrays for f in (1.0, -1.0, 0.5)]
    rows = [RNG.integers(0, 3000 // n, 3000) for n in counts for _ in range(3)]
    rows = np.concatenate(rows)
    cols = np.zeros_like(rows)
    expected = np.bincount(rows, np.concatenate([p.multiplied() for p in parts]))
    read = Parts(parts)
    order, first, counted = sorted_positions(rows, cols, 1, read.kinds)
    places = []

    def total():
        sums, placed = summed(read, order, first, counted)
        places.append(rows[order][first][placed])
        return jnp.concatenate(sums)

    found = np.zeros(expected.size)
    values = np.asarray(jax.jit(total)())
    found[places[0]] = values
    assert np.allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("columns", [1, 2, 3, 5])
def test_rows_of_a_band_are_side_by_side(columns):
    arrays = [jnp.asarray(RNG.normal(size=2000)) for _ in range(columns)]
    body = np.arange(1500)[:, None] + 2000 * np.arange(columns)
    places = np.concatenate([[7, 3], body.ravel(), np.arange(50)])
    found = in_order(arrays, places)
    assert (found == jnp.concatenate(arrays)[places]).all()
    program = jax.make_jaxpr(lambda *arrays: in_order(arrays, places))(*arrays)
    gathers = [e for e in equations(program.jaxpr) if e.primitive is lax.gather_p]
    assert bool(gathers) == (columns > 3)
