"""A diagonal by one product is taken only where the program proves that it is right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk._dense import is_entrywise


N = 4
W = jnp.linspace(0.5, 2.0, N)
M = jnp.asarray(np.random.default_rng(0).normal(size=(N, N)))

MIXING = {
    "roll": lambda v: jnp.roll(v, 1),
    "flip": lambda v: v[::-1],
    "flip twice": lambda v: v[::-1][::-1],
    "cumulative sum": jnp.cumsum,
    "gather": lambda v: v[jnp.array([1, 0, 2, 3])],
    "gather with duplicates": lambda v: v[jnp.array([0, 0, 0, 0])],
    "scatter": lambda v: jnp.zeros(N).at[jnp.array([3, 2, 1, 0])].add(v),
    "matrix": lambda v: M @ v,
    "sum": lambda v: jnp.full(N, jnp.sum(v)),
    "mean": lambda v: v - jnp.mean(v, keepdims=True),
    "first": lambda v: v[0] * jnp.ones(N),
    "slices": lambda v: jnp.concatenate([v[2:], v[:2]]),
    "transposed": lambda v: v.reshape(2, 2).T.reshape(N),
    "swapped axes": lambda v: jnp.swapaxes(v.reshape(2, 2), 0, 1).ravel(),
    "reshaped and multiplied": lambda v: (v.reshape(2, 2) @ M[:2, :2]).reshape(N),
    "difference": lambda v: v - jnp.append(v[1:], 0.0),
    "padded": lambda v: jnp.pad(v, (1, 0))[:N],
    "convolution": lambda v: jnp.convolve(v, jnp.array([1.0, 2.0]), mode="same"),
    "sorted": lambda v: v[jnp.argsort(-W)],
    "fourier": lambda v: jnp.fft.ifft(1j * jnp.fft.fft(v)).real,
    "in jit": jax.jit(lambda v: jnp.roll(v, 2)),
    "in checkpoint": jax.checkpoint(lambda v: v[::-1]),
    "in a scan": lambda v: jax.lax.scan(lambda c, a: (c + a, c), 0.0, v)[1],
    "in cond": lambda v: jax.lax.cond(W[0] > 0, jnp.flip, lambda v: v, v),
    "broadcast": lambda v: jnp.sum(jnp.outer(v, W), axis=0),
}

SEPARABLE = {
    "times": lambda v: W * v,
    "sums": lambda v: 2 * v - v / W,
    "in jit": jax.jit(lambda v: -W * v),
    "in checkpoint": jax.checkpoint(lambda v: W * v),
    "chosen": lambda v: jnp.where(W > 1, v, 3 * v),
    "reshaped": lambda v: (v.reshape(2, 2) * W.reshape(2, 2)).reshape(N),
    "cast": lambda v: v.astype(jnp.float32).astype(v.dtype),
    "zero": jnp.zeros_like,
    "constant parts": lambda v: v * jnp.sum(W) * M[0, 0],
}


def matrix_of(push):
    return np.stack([np.asarray(push(e)) for e in jnp.eye(N)], axis=1)


@pytest.mark.parametrize("push", MIXING.values(), ids=MIXING)
def test_a_map_that_mixes_entries_is_not_taken_for_a_diagonal(push):
    assert not is_entrywise(push, jnp.ones(N))


@pytest.mark.parametrize("push", SEPARABLE.values(), ids=SEPARABLE)
def test_a_diagonal_map_is_recognized(push):
    assert is_entrywise(push, jnp.ones(N))
    matrix = matrix_of(push)
    np.testing.assert_allclose(push(jnp.ones(N)), np.diag(matrix))
    assert (matrix == np.diag(np.diag(matrix))).all()


BETWEEN_LEAVES = {
    "swapped": lambda v: [v[1], v[0]],
    "added": lambda v: [v[0] + v[1], v[1]],
    "copied": lambda v: [v[0], v[0]],
    "in jit": jax.jit(lambda v: [v[1], v[0]]),
    "through a reshape": lambda v: [v[1].reshape(2, 2).reshape(N), v[0]],
}


@pytest.mark.parametrize("push", BETWEEN_LEAVES.values(), ids=BETWEEN_LEAVES)
def test_a_map_between_leaves_is_not_taken_for_a_diagonal(push):
    assert not is_entrywise(push, [jnp.ones(N), jnp.ones(N)])


def test_leaves_apart_are_recognized():
    assert is_entrywise(lambda v: [2 * v[0], W * v[1]], [jnp.ones(N), jnp.ones(N)])


FUNCTIONS = {
    "neighbors": lambda x: jnp.sum(x[1:] * x[:-1]) + jnp.sum(x**3),
    "mirror": lambda x: jnp.sum(x * x[::-1]) + jnp.sum(x**3),
    "rolled": lambda x: jnp.sum(jnp.roll(x, 1) ** 2 * x),
    "sorted": lambda x: jnp.sum(jnp.sort(x)[:2] ** 3),
    "sorted with weights": lambda x: jnp.sum(W * jnp.sort(-x) ** 3),
    "gathered": lambda x: jnp.sum(x[jnp.array([1, 0, 3, 2])] ** 2 * x),
    "cumulative": lambda x: jnp.sum(jnp.cumsum(x) ** 2),
    "matrix": lambda x: x @ M @ x,
    "transposed": lambda x: jnp.sum(x.reshape(2, 2).T * x.reshape(2, 2)) ** 2,
    "largest": lambda x: jnp.max(x) ** 3 + jnp.sum(x**4),
    "softmax": lambda x: jax.nn.logsumexp(x),
    "norm": lambda x: jnp.linalg.norm(x),
    "separable": lambda x: jnp.sum(W * jnp.cos(x)),
    "separable in a loop": lambda x: sum(jnp.sin(x[i]) * x[i] for i in range(N)),
    "separable with branches": lambda x: jnp.sum(jnp.where(x > 0, x**3, x**4)),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_the_diagonal_of_a_hessian_is_that_of_the_matrix(f):
    x = jnp.array([0.75, -1.5, 2.0, 0.25])
    expected = np.diag(np.asarray(jax.hessian(f)(x)))
    got = hotk.HessianOperator(f, x).diagonal()
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)


def test_the_diagonal_for_leaves_that_meet():
    f = lambda x: jnp.sum(x["a"] * x["b"]) + jnp.sum(x["a"] ** 3)
    x = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0])}
    got = hotk.HessianOperator(f, x).diagonal()
    np.testing.assert_allclose(got["a"], [6.0, 12.0])
    np.testing.assert_allclose(got["b"], 0.0)
