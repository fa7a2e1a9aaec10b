"""Programs that differ in arrays and numbers alone are one, run with other numbers.

`canonical_form` finds the numbers and `with_numbers` makes them arguments. What must
come out is what the function with the other number returns in JAX.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotk._core import (
    Unrecognized,
    canonical_form,
    jaxpr_as_fun,
    pruned,
    with_numbers,
)


X = jnp.array([0.3, -0.7, 1.2, 0.5])


def read(f, *args, movable=0):
    closed = jax.make_jaxpr(f)(*(args or (X,)))
    return closed, canonical_form(closed, movable, lambda equation: None)


def looped(c):
    return lambda x: jax.lax.while_loop(
        lambda y: jnp.sum(y) < 9.0, lambda y: jnp.abs(y) + c, x
    )


def scanned(c):
    return lambda x: jax.lax.scan(lambda s, y: (s * c + y, s), x[0], x)


def branched(c):
    return lambda x: jax.lax.cond(x[0] > 0.0, lambda y: y * c, lambda y: -y, x)


# From a number to a function in which it is written.
WRITTEN = {
    "an operand": lambda c: lambda x: jnp.sin(x) * c,
    "twice": lambda c: lambda x: (x + c) * c,
    "a jitted function": lambda c: lambda x: jax.jit(lambda y: y - c)(x) * 2.0,
    "a checkpoint": lambda c: lambda x: jax.checkpoint(lambda y: jnp.sin(y * c))(x),
    "a branch": branched,
    "a loop": looped,
    "a scan": scanned,
    "what a loop asks": lambda c: (
        lambda x: jax.lax.while_loop(
            lambda y: jnp.sum(y) < 9.0 * c, lambda y: jnp.abs(y) + 1.0, x
        )
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_program_with_another_number_is_the_same_run_with_that_number(name):
    make = WRITTEN[name]
    (closed, one), (_, other) = read(make(1.5)), read(make(2.25))
    assert one.key == other.key
    assert [n.path for n in one.numbers] == [n.path for n in other.numbers]
    assert [n.bits for n in one.numbers] != [n.bits for n in other.numbers]
    opened = with_numbers(closed, [n.path for n in one.numbers], 0)
    numbers = [jnp.asarray(n.value, n.kind[0]) for n in other.numbers]
    got = jaxpr_as_fun(opened)(*numbers, X)
    for leaf, wanted in zip(got, jax.tree.leaves(make(2.25)(X)), strict=True):
        np.testing.assert_allclose(leaf, wanted, rtol=1e-15)


def test_some_numbers_may_stay_as_they_are_written():
    closed, form = read(lambda x: (x + 2.0) * 3.0)
    [_, last] = form.numbers
    opened = with_numbers(closed, [last.path], 1)
    [got] = jaxpr_as_fun(opened)(X, jnp.asarray(5.0))
    np.testing.assert_allclose(got, (np.asarray(X) + 2) * 5)


def test_a_window_at_another_place_is_another_number():
    make = lambda i: lambda x: jax.lax.slice(x, (i,), (i + 2,)) * 2.0
    (closed, one), (_, other) = read(make(0)), read(make(2))
    assert one.key == other.key
    [place] = [n for n in one.numbers if "start" in n.path]
    opened = with_numbers(closed, [place.path], 0)
    [got] = jaxpr_as_fun(opened)(jnp.asarray(2, jnp.int32), X)
    np.testing.assert_array_equal(got, 2 * np.asarray(X)[2:])
    assert read(lambda x: jax.lax.slice(x, (0,), (3,)) * 2.0)[1].key != one.key


@pytest.mark.parametrize(
    "other",
    [
        lambda x: jnp.cos(x) * 2.0,
        lambda x: jnp.sin(x) + 2.0,
        lambda x: jnp.sin(x) * x,
        lambda x: jnp.sin(x) * np.array([2.0]),
        lambda x: jnp.sin(x),
    ],
    ids=["primitive", "operation", "variable", "array", "shorter"],
)
def test_programs_that_differ_in_more_have_other_keys(other):
    assert read(other)[1].key != read(lambda x: jnp.sin(x) * 2.0)[1].key


def test_numbers_of_another_kind_are_other_programs():
    single = X.astype(jnp.float32)
    same = lambda x: x * 2.0
    assert read(same, single)[1].key != read(same)[1].key


def test_movable_inputs_are_numbered_by_first_use_and_unused_ones_left_out():
    f = lambda a, b, c, x: (b * x) * a
    arrays = 2 * X, 3 * X, 4 * X
    closed, form = read(f, *arrays, X, movable=3)
    assert form.inputs == (1, 0)
    swapped = read(lambda a, b, c, x: (a * x) * b, *arrays, X, movable=3)[1]
    assert swapped.key == form.key
    assert swapped.inputs == (0, 1)
    small = pruned(closed, 3, form.inputs)
    [got] = jaxpr_as_fun(small)(arrays[1], arrays[0], X)
    np.testing.assert_allclose(got, f(*arrays, X))


def test_rules_count_as_the_caller_tells_them_apart():
    @jax.custom_jvp
    def ruled(x):
        return jnp.sin(x)

    ruled.defjvps(lambda t, _, x: jnp.cos(x) * t)
    closed = jax.make_jaxpr(lambda x: ruled(x))(X)
    one, other = (
        canonical_form(closed, 0, lambda _, k=k: k).key for k in ("one", "other")
    )
    assert one != other


def test_a_parameter_that_cannot_be_compared_is_refused():
    class Own:
        __hash__ = None

    primitive = jax.make_jaxpr(lambda x: jnp.sin(x))(X)
    equation = primitive.jaxpr.eqns[0].replace(params={"own": Own()})
    closed = primitive.replace(jaxpr=primitive.jaxpr.replace(eqns=[equation]))
    with pytest.raises(Unrecognized, match="Own"):
        canonical_form(closed, 0, lambda _: None)
