"""Laplacians and biharmonics, against nested derivatives of JAX and known answers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles
from tests.functions import POINT, VECTOR
from tests.helpers import close
from tests.higher.test_series import SAME, SINGLE_PRECISION


def second(f, v):
    """Return x to the second derivative of f along v."""
    along = lambda g: lambda x: jax.jvp(g, (x,), (v,))[1]
    return along(along(f))


def summed(f, x):
    """Return the Laplacian by nested forward derivatives, each direction by itself."""
    directions = jnp.eye(x.size).reshape(-1, *x.shape)
    each = jax.vmap(lambda v: second(f, v)(x))(directions)
    return jax.tree.map(lambda a: jnp.sum(a, axis=0), each)


@pytest.mark.thinned(2)
@pytest.mark.filterwarnings("ignore::hotk.ZeroHessianWarning")  # relu and its like
@pytest.mark.parametrize("name", VECTOR)
def test_functions_of_arrays(name):
    got = hotk.laplacian(VECTOR[name], POINT)
    expected = jax.jit(lambda x: summed(SAME.get(name, VECTOR[name]), x))(POINT)
    tolerance = SINGLE_PRECISION.get(name, 1e-10)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        size = max(1.0, np.max(np.abs(b), initial=0.0))
        close(a, np.asarray(b), rtol=0, atol=tolerance * size)


@jax.custom_jvp
def restless(x):
    return jnp.sin(x)


@restless.defjvp
def _(primals, tangents):
    (x,), (t,) = primals, tangents
    return jnp.sin(x) + 0 * t, jnp.cos(x) * t


def attention(x):
    q, k, v = (jnp.sin(x * (i + 1.3)) for i in range(3))
    return jnp.sum(jax.nn.softmax(q @ k.T) @ v)


def recurrent(x):
    step = lambda c, row: (jnp.tanh(c * row + jnp.roll(c, 1)), jnp.sum(c * row))
    last, outputs = jax.lax.scan(step, x[0], x)
    return jnp.sum(last) + jnp.prod(outputs)


def waiting(x):
    grow = lambda c: (c[0] + 1, c[1] * jnp.cos(c[1]))
    done = lambda c: (c[0] < 4) & (jnp.sum(c[1]) < 100)
    return jnp.sum(jax.lax.while_loop(done, grow, (0, x))[1])


HARD = {
    "attention": attention,
    "scan over rows that move": recurrent,
    "while loop": waiting,
    "slogdet": lambda x: jnp.linalg.slogdet(x @ x.T + jnp.eye(3))[1],
    "branch": lambda x: jax.lax.cond(x[0, 0] > 0, lambda x: jnp.sum(x**3), jnp.sum, x),
    "checkpoint": lambda x: jnp.sum(jax.checkpoint(jnp.sin)(x) ** 3),
    "products of what moves": lambda x: jnp.sum((x @ x.T) ** 2 * (x @ x.T) / x[0, 0]),
    "convolution": lambda x: jnp.sum(jnp.convolve(x[0], x[1]) ** 2),
    "rule": lambda x: hotk.safe.norm(x) ** 3,
    "rule of JAX that makes its value anew": lambda x: jnp.sum(restless(x) * x),
    "several outputs": lambda x: {"a": x**3, "b": jnp.sum(x[0] * x[1])},
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("block_size", [None, 1, 4])
@pytest.mark.parametrize("name", HARD)
def test_programs_and_blocks(name, block_size):
    x = jnp.asarray(np.linspace(0.2, 1.4, 12).reshape(3, 4))
    got = hotk.laplacian(HARD[name], x, block_size=block_size)
    expected = jax.jit(lambda x: summed(HARD[name], x))(x)
    close(got, jax.tree.map(np.asarray, expected), rtol=1e-10, atol=1e-10)


def test_known_answers():
    x = jnp.array([0.3, 0.7, -0.4])
    harmonic = lambda x: 1 / jnp.linalg.norm(x)
    close(hotk.laplacian(harmonic, x), 0.0, atol=1e-9)
    wave = lambda x, k: jnp.sin(jnp.dot(k, x))
    k = jnp.array([1.0, 2.0, -0.5])
    close(hotk.laplacian(wave, x, k), -np.sum(k**2) * np.sin(np.dot(k, x)))
    close(hotk.biharmonic(wave, x, k), np.sum(k**2) ** 2 * np.sin(np.dot(k, x)))
    gauss = lambda x: jnp.exp(-jnp.sum(x**2))
    r = np.sum(np.asarray(x) ** 2)
    close(hotk.laplacian(gauss, x), (4 * r - 6) * np.exp(-r))
    close(hotk.biharmonic(gauss, x), (16 * r**2 - 80 * r + 60) * np.exp(-r))
    plate = lambda x: jnp.sum(x**2) ** 2  # 4! + ... = 8 n + 4 n^2 for n numbers
    close(hotk.biharmonic(plate, x), 8.0 * 3 * (3 + 2))
    y, found = hotk.value_and_laplacian(lambda x: jnp.sum(x**4), x)
    close((y, found), (np.sum(np.asarray(x) ** 4), 12 * r))


def test_trees_integers_auxiliary_outputs_and_precisions():
    def f(p, c):
        value = c * p["w"] ** 2 * jnp.sum(p["h"].astype(float) ** 3) * p["n"]
        return value, p["n"]

    p = {"w": 2.0, "n": 3, "h": np.full(2, 2.0, np.float32)}
    expected = 5.0 * (2 * 16 * 3 + 4 * 2 * 12 * 3)
    found, aux = hotk.laplacian(f, p, 5.0, has_aux=True)
    close((found, aux), (expected, 3), rtol=1e-6)
    (y, aux), found = hotk.value_and_laplacian(f, p, 5.0, has_aux=True)
    close((y, aux, found), (5.0 * 4 * 16 * 3, 3, expected), rtol=1e-6)
    half = hotk.laplacian(lambda x: jnp.sum(x**3), np.ones(3, np.float32))
    close(half, np.float32(18.0))
    wave = lambda x: jnp.exp(jax.lax.complex(0.0, jnp.sum(x)))
    close(hotk.laplacian(wave, jnp.ones(2)), -2 * np.exp(2j))
    close(hotk.laplacian(lambda x: jnp.sum(x), jnp.ones((0, 2))), 0.0)
    assert hotk.laplacian(lambda x: 2.0, jnp.ones(2)) == 0.0


@pytest.mark.exhaustive
def test_it_composes_with_the_transformations_of_jax():
    f = lambda x, c: jnp.sum(jnp.tanh(c * x) ** 3)
    laplacian = lambda x, c: hotk.laplacian(f, x, c)
    expected = lambda x, c: summed(lambda x: f(x, c), x)
    x = jnp.array([0.3, -0.8])
    close(jax.jit(laplacian)(x, 0.7), np.asarray(expected(x, 0.7)))
    close(jax.grad(laplacian)(x, 0.7), np.asarray(jax.grad(expected)(x, 0.7)))
    slope = jax.grad(expected, argnums=1)(x, 0.7)
    close(jax.grad(laplacian, argnums=1)(x, 0.7), np.asarray(slope))
    xs = jnp.stack([x, 2 * x, -x])
    mapped = jax.vmap(laplacian, (0, None))(xs, 0.7)
    close(mapped, np.asarray([expected(x, 0.7) for x in xs]))
    step = lambda c, x: (c + laplacian(x, 0.7), None)
    close(jax.lax.scan(step, 0.0, xs)[0], np.sum(mapped))
    hessian = hotk.hessian(lambda x: laplacian(x, 0.7), x)
    wanted = jax.jacfwd(jax.jacfwd(lambda x: expected(x, 0.7)))(x)
    close(hessian, np.asarray(wanted), atol=1e-9)


def scaled(weight):
    return lambda x: jnp.sum(weight * x**2)


def test_a_fresh_closure_is_not_compiled_again():
    hotk.clear_cache()
    for scale in (1.0, 2.0, 3.0):
        found = hotk.laplacian(scaled(jnp.asarray(scale)), jnp.ones(3))
        close(found, 6 * scale)
    assert hotk.cache_info().compiles == 1
    prepared = hotk.laplacian.prepare(lambda x: jnp.sum(x**3), jnp.ones(3))
    x = 2 * jnp.ones(3)
    prepared(x)
    with compiles() as counted:
        close(prepared(x), 36.0)
    assert counted() == 0
    assert prepared.info.mode == "taylor"


def test_the_memory_is_that_of_first_derivatives():
    weights = [np.ones((a, b)) / a for a, b in ((100, 128), (128, 128), (128, 1))]

    def f(x):
        for w in weights[:-1]:
            x = jnp.tanh(x @ w)
        return jnp.sum(x @ weights[-1])

    batch = jnp.ones((16, 100))
    ours = jax.jit(jax.vmap(lambda x: hotk.laplacian(f, x)))
    dense = jax.jit(jax.vmap(lambda x: jnp.trace(jax.hessian(f)(x))))
    memory = [
        g.lower(batch).compile().memory_analysis().temp_size_in_bytes
        for g in (ours, dense)
    ]
    assert memory[0] * 8 < memory[1]
    close(ours(batch), np.asarray(dense(batch)))


def test_bad_input_is_refused():
    with pytest.raises(hotk.DtypeError):
        hotk.laplacian(lambda x: x, 1)
    with pytest.raises(hotk.DtypeError, match="complex"):
        hotk.laplacian(jnp.abs, 1.0 + 2j)
    with pytest.raises(hotk.OutputError):
        hotk.laplacian(jnp.argmax, jnp.ones(3))
    with pytest.raises(hotk.ModeError):
        hotk.laplacian(jnp.sum, jnp.ones(3), mode=hotk.Forward())
    with pytest.raises(ValueError, match="block_size"):
        hotk.laplacian(jnp.sum, jnp.ones(3), block_size=0)
    with pytest.raises(TypeError, match="order"):
        hotk.laplacian(jnp.sum, jnp.ones(3), order=2)


def test_polynomials_of_lower_degree_give_zero():
    x = jnp.linspace(0.1, 0.9, 5)
    cubic = lambda x: jnp.sum(x) ** 3 + jnp.prod(x[:3])
    close(hotk.biharmonic(cubic, x), 0.0, atol=1e-12)
    assert math.isclose(hotk.laplacian(lambda x: x[0] * x[1], x), 0.0, abs_tol=1e-15)


EMPTY = {
    "linear": lambda a: jnp.sum(a),
    "nonlinear": lambda a: jnp.sum(jnp.sin(a)),
    "square": lambda a: jnp.sum(a**2),
    "joined": lambda a: jnp.sum(jnp.concatenate([a.ravel(), jnp.ones(2)]) ** 2),
}


@pytest.mark.thinned(5)
@pytest.mark.parametrize("shape", [(0,), (0, 2), (3, 0)])
@pytest.mark.parametrize("term", EMPTY.values(), ids=EMPTY)
def test_a_leaf_without_entries_adds_nothing(term, shape):
    f = lambda t: jnp.sum(t[0] ** 4) + term(t[1])
    x = (jnp.ones(3), jnp.zeros(shape))
    close(hotk.laplacian(f, x), jnp.asarray(36.0))
    close(hotk.biharmonic(f, x), jnp.asarray(72.0))


WITHOUT_ENTRIES = {
    "slice": lambda x: jnp.sum(x[:0] ** 2),
    "product": lambda x: jnp.sum((jnp.ones((0, 3)) @ x[:3]) ** 2),
    "outer": lambda x: jnp.sum(jnp.sin(x[:0, None] * x[None])),
    "joined": lambda x: jnp.sum(jnp.concatenate([x[:0], x[:0]]) ** 3),
    "mapped": lambda x: jnp.sum(jax.vmap(lambda a: jnp.sum(a * x) ** 2)(x[:0])),
    "matrices": lambda x: jnp.sum(x[:0].reshape(0, 4) @ x[:8].reshape(4, 2)),
    "sums": lambda x: jnp.sum(jnp.cumsum(x[:0] ** 2)),
    "loop": lambda x: jnp.sum(jax.lax.scan(lambda c, a: (c, c * a), x[0], x[:0])[1]),
}


@pytest.mark.parametrize("name", WITHOUT_ENTRIES)
def test_an_array_without_entries_on_the_way_adds_nothing(name):
    f = lambda x: WITHOUT_ENTRIES[name](x) + jnp.sum(jnp.concatenate([x[:0], x]) ** 3)
    x = jnp.arange(1.0, 9.0) / 5
    close(hotk.laplacian(f, x), 6 * jnp.sum(x))
    close(hotk.hessian_diagonal(f, x), 6 * x)
