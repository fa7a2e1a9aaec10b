"""Derivative tensors and contractions, against sympy and nested Jacobians."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close
from tests.higher.test_partial import AT, exact, f


X = jnp.array(AT)


def nested(f, order):
    return functools.reduce(lambda g, _: jax.jacfwd(g), range(order), f)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("order", range(7))
def test_all_entries_against_sympy(order):
    known = {}
    for places in itertools.combinations_with_replacement(range(3), order):
        known[places] = exact(tuple(places.count(i) for i in range(3)))
    got = np.asarray(hotk.derivative_tensor(f, X, order=order))
    stored = hotk.derivative_tensor(f, X, order=order, symmetric=True)
    assert got.shape == (3,) * order
    size = max(map(abs, known.values()))
    for places in itertools.product(range(3), repeat=order):
        wanted = known[tuple(sorted(places))]
        assert abs(got[places] - wanted) <= 1e-10 * size
        assert abs(float(stored[places]) - wanted) <= 1e-10 * size
    close(stored.full(), got)
    assert stored.entries.shape == (math.comb(order + 2, order),)


@pytest.mark.exhaustive
@pytest.mark.parametrize("block_size", [None, 3])
def test_trees_and_several_outputs(block_size):
    def g(p):
        y = p["a"] ** 3 * jnp.sin(p["b"])
        return {"u": y, "v": jnp.stack([jnp.sum(y), jnp.prod(p["b"])])}

    p = {"a": jnp.asarray(0.7), "b": jnp.array([0.3, 1.2])}
    for order in (1, 2, 3):
        got = hotk.derivative_tensor(g, p, order=order, block_size=block_size)
        close(got, jax.tree.map(np.asarray, nested(g, order)(p)), atol=1e-10)


def test_polynomials_of_lower_degree_give_zero():
    cubic = lambda x: jnp.sum(x) ** 3
    close(hotk.derivative_tensor(cubic, X, order=4), np.zeros((3,) * 4), atol=1e-12)
    assert np.ptp(np.asarray(hotk.derivative_tensor(cubic, X, order=3))) < 1e-12


def test_entries_by_any_order_of_their_places():
    stored = hotk.derivative_tensor(f, X, order=3, symmetric=True)
    close(stored[2, 0, 1], exact((1, 1, 1)))
    close(stored[-1, 0, 0], exact((2, 0, 1)))
    for places in ((0, 1), (0, 1, 3), (0, 0, -4)):
        with pytest.raises(IndexError):
            stored[places]
    several = hotk.derivative_tensor(lambda x: x**4, X, order=3, symmetric=True)
    assert several[0, 0, 0].shape == (3,)
    close(several[1, 1, 1], np.array([0.0, 24 * AT[1], 0.0]), atol=1e-12)


def test_what_does_not_fit_is_refused():
    before = hotk.memory_budget()
    hotk.set_memory_budget(1 << 16)
    try:
        with pytest.raises(hotk.TooLargeError, match="symmetric=True"):
            hotk.derivative_tensor(lambda x: jnp.sum(x**4), jnp.ones(30), order=4)
        with pytest.raises(hotk.TooLargeError, match="tvp"):
            hotk.derivative_tensor(
                lambda x: jnp.sum(x**4), jnp.ones(60), order=4, symmetric=True
            )
    finally:
        hotk.set_memory_budget(before)
    with pytest.raises(hotk.TooLargeError):
        hotk.derivative_tensor(lambda x: jnp.sum(x**4), jnp.ones(10000), order=4)


@pytest.mark.parametrize("order", [-1, 2.0, None, True])
def test_an_order_that_is_none_is_refused(order):
    with pytest.raises((TypeError, ValueError), match="order"):
        hotk.derivative_tensor(f, X, order=order)


# ---- contractions

DIRECTIONS = np.random.default_rng(0).normal(size=(6, 3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", range(1, 7))
def test_contractions_with_different_directions(count):
    vs = DIRECTIONS[:count]
    tensor = nested(f, count)(X)
    expected = np.einsum(
        tensor, range(count), *itertools.chain(*((v, [i]) for i, v in enumerate(vs)))
    )
    close(hotk.tvp(f, X, *vs), float(expected), rtol=1e-9)


def test_directions_of_different_size_do_not_drown_each_other():
    g = lambda x: x[0] * x[1] * x[2]
    e = np.eye(3)
    close(hotk.tvp(g, X, 1e-8 * e[0], 1e8 * e[1], e[2]), 1.0, rtol=1e-12)
    assert hotk.tvp(g, X, 0 * e[0], e[1], e[2]) == 0.0
    slope = jax.grad(lambda v: hotk.tvp(g, X, v, e[1], e[2]))(jnp.array([3.0, 1, 1]))
    close(slope, e[0], atol=1e-12)
    curve = jax.hessian(lambda v: hotk.tvp(g, X, v, v, jnp.asarray(e[2])))(X)
    close(curve, np.array([[0.0, 2, 0], [2, 0, 0], [0, 0, 0]]), atol=1e-11)


def test_trees_arguments_batches_and_auxiliary_outputs():
    def g(p, c):
        return c * p["a"] ** 2 * jnp.sum(p["b"]), p["n"]

    p = {"a": 2.0, "b": np.ones(2, np.float32), "n": 1}
    zero = np.zeros(2, np.float32)
    da = {"a": 1.0, "b": zero, "n": None}
    db = {"a": 0.0, "b": zero + 3, "n": None}
    found, aux = hotk.tvp(g, p, da, da, db, args=(5.0,), has_aux=True)
    close((found, aux), (5.0 * 2 * 6, 1), rtol=1e-6)
    several = [np.stack([v, 2 * v]) for v in DIRECTIONS[:3]]
    one = float(hotk.tvp(f, X, *DIRECTIONS[:3]))
    close(hotk.tvp(f, X, *several, batched=True), np.array([one, 8 * one]))
    prepared = hotk.tvp.prepare(f, X, *DIRECTIONS[:3])
    close(prepared(X, tuple(map(jnp.asarray, DIRECTIONS[:3]))), one)
    wave = lambda z: jnp.exp(z) * jnp.conj(z)
    z, v = np.asarray(0.3 + 0.4j), np.asarray(1.0 - 2.0j)
    along = hotk.derivatives(wave, z, v, order=3)[3]
    close(hotk.tvp(wave, z, v, v, v), np.asarray(along))


def test_bad_directions_are_refused():
    with pytest.raises(hotk.StructureError, match="no direction"):
        hotk.tvp(f, X)
    with pytest.raises(hotk.StructureError):
        hotk.tvp(f, X, X, jnp.ones(2))
    with pytest.raises(hotk.DtypeError):
        hotk.tvp(f, X, X, jnp.ones(3, jnp.float32))
    with pytest.raises(TypeError):
        hotk.tvp(f, X, X, X, order=2)


def test_a_symmetric_tensor_is_not_taken_for_an_array():
    stored = hotk.derivative_tensor(f, jnp.asarray(X), order=3, symmetric=True)
    assert stored.shape == stored.full().shape
    with pytest.raises(TypeError, match="full"):
        list(stored)
    with pytest.raises(TypeError, match="full"):
        np.asarray(stored)
    with pytest.raises(TypeError, match="3 integers"):
        stored[:, 0, 0]
    with pytest.raises(IndexError, match="3 places"):
        stored[0]


def test_orders_are_whole_numbers():
    orders = [len(hotk.derivatives(jnp.exp, 0.0, 1.0, order=k)) for k in np.arange(3)]
    assert orders == [1, 2, 3]
    with pytest.raises(TypeError, match="argument of `f`"):
        hotk.taylor(jnp.exp, 0.0, 1.0, 3)
    for order in (True, 2.0, "2"):
        with pytest.raises(TypeError, match="integer"):
            hotk.derivatives(jnp.exp, 0.0, 1.0, order=order)


def test_nothing_in_or_nothing_out():
    for symmetric in (False, True):
        for order in (0, 1, 3):
            tensor = hotk.derivative_tensor
            none = tensor(jnp.sum, jnp.zeros(0), order=order, symmetric=symmetric)
            empty = lambda x: x[:0]
            out = tensor(empty, jnp.ones(2), order=order, symmetric=symmetric)
            full = (lambda a: a.full()) if symmetric else (lambda a: a)
            assert full(none).shape == (0,) * order
            assert full(out).shape == (0,) + (2,) * order


def test_orders_beyond_the_whole_numbers_of_a_machine():
    tensor = hotk.derivative_tensor(
        lambda x: jnp.exp(x[0] + 2 * x[1]), jnp.zeros(2), order=12, symmetric=True
    )
    for k in (0, 3, 6, 12):
        entry = tensor[(0,) * (12 - k) + (1,) * k]
        np.testing.assert_allclose(entry, 2.0**k, rtol=1e-6)


@pytest.mark.parametrize("size", [1e-13, 1e13])
def test_small_and_large_directions_in_single_precision(size):
    d = jnp.full(2, size, jnp.float32)
    f = lambda x: jnp.exp(jnp.sum(x) / np.float32(size))
    close(hotk.tvp(f, jnp.zeros(2, jnp.float32), d, d, d), np.float32(8), rtol=1e-5)
