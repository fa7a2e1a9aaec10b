"""Which programs are the same with NumPy arrays in place of tracers.

A function closes over the array `w`, and NumPy works on it before JAX does; the other
program has it as an argument. Same means: same for every content of that shape.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotk._core import SHORT, same_once_moved, same_program


X = jnp.arange(6.0).reshape(2, 3)
W = np.array([0.5, 1.5])
N = np.array([2, 1, 0])
FLAGS = np.array([True, False])


def programs(f, w, x=X):
    """Trace a function with the array as an argument, and as a constant."""
    return jax.make_jaxpr(f)(w, x), jax.make_jaxpr(lambda x: f(w, x))(x)


def moved(f, w, *, narrow=False, short=False, finite=False):
    return same_once_moved(
        *programs(f, w),
        [w, None],
        [narrow, False],
        short=[short, False],
        finite=finite,
    )


SAME = {
    "as it is": (lambda w, x: w @ x, W),
    "a new axis": (lambda w, x: w[:, None] * x, W),
    "reversed": (lambda w, x: w[::-1] @ x, W),
    "a part": (lambda w, x: w[1:] * x, W),
    "another shape": (lambda w, x: w.reshape(2, 1) * x, W),
    "arithmetic with all digits": (lambda w, x: (2.0 * w + 1.0) @ x, W),
    "the largest": (lambda w, x: w.max() * x, W),
    "a comparison of integers": (lambda w, x: jnp.where(w > 1, x, 0.0), N),
    "arithmetic of integers": (lambda w, x: x[:, :2] * (w + 1)[0], N),
    "logic": (lambda w, x: jnp.where((~w)[:, None], x, 0.0), FLAGS),
    "not used": (lambda w, x: jnp.sin(x), W),
}


@pytest.mark.parametrize("name", SAME)
def test_what_numpy_does_as_jax_does_is_the_same(name):
    f, w = SAME[name]
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        assert moved(f, w)


def test_arithmetic_of_what_has_lost_digits_is_not():
    """NumPy rounds a sum of two doubles once, JAX each of them and the sum."""
    f = lambda w, x: (w + w * w)[:, None] * x
    assert moved(f, W)
    assert not moved(f, W, narrow=True)


def test_comparing_what_has_lost_digits_is_not():
    with jax.numpy_rank_promotion("allow"):
        f = lambda w, x: jnp.where((w > 1.0)[:, None], x, 0.0)
        assert moved(f, W)
        assert not moved(f, W, narrow=True)


def test_an_integer_compares_where_32_bits_have_room_for_it():
    f = lambda w, x: jnp.where(w * 2 > 1, x, 0.0)
    with jax.numpy_rank_promotion("allow"):
        assert SHORT * 2 < 2**31
        assert moved(f, N, narrow=True, short=True)
        assert not moved(f, N, narrow=True, short=False)


def test_whether_a_float_is_finite_is_known_if_it_never_becomes_infinite():
    f = lambda w, x: jnp.where(jnp.isfinite(w)[:, None], x, 0.0)
    one = jax.make_jaxpr(f)(W, X)
    other = jax.make_jaxpr(lambda x: jnp.where(np.isfinite(W)[:, None], x, 0.0))(X)
    taken = [W, None], [False, False]
    short = [False, False]
    assert same_once_moved(one, other, *taken, short=short, finite=True)
    assert not same_once_moved(one, other, *taken, short=short, finite=False)


def test_another_content_or_another_operation_is_another_program():
    f = lambda w, x: w[:, None] * x
    first = jax.make_jaxpr(f)(W, X)
    for other in (lambda x: f(W + 1, x), lambda x: W[:, None] + x):
        second = jax.make_jaxpr(other)(X)
        taken = first, second, [W, None]
        assert not same_program(*taken)
        assert not same_once_moved(
            *taken, [False, False], short=[False, False], finite=False
        )


def test_without_moves_a_constant_that_became_an_argument_is_enough():
    assert same_program(*programs(lambda w, x: w @ x, W), [W, None])
    assert not same_program(*programs(lambda w, x: w[:, None] * x, W), [W, None])
