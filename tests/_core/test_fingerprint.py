"""Two programs have one key if, and only if, they compute the same numbers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotk._core import Unrecognized, fingerprint


X = jnp.arange(3.0)
WEIGHTS = np.array([1.0, 2.0, 3.0])


def key(f, *args, lift=False):
    return fingerprint(jax.make_jaxpr(f)(*(args or (X,))), lift=lift)[0]


@jax.custom_jvp
def ruled(x):
    return jnp.sin(x)


@jax.custom_jvp
def ruled_otherwise(x):
    return jnp.sin(x)


ruled.defjvps(lambda t, _, x: jnp.cos(x) * t)
ruled_otherwise.defjvps(lambda t, _, x: 2 * jnp.cos(x) * t)

# Each twice: written anew, it is the same program.
PROGRAMS = {
    "sum": lambda: lambda x: jnp.sum(x),
    "sum of two": lambda: lambda x: jnp.sum(x + x),
    "doubled": lambda: lambda x: jnp.sum(2.0 * x),
    "tripled": lambda: lambda x: jnp.sum(3.0 * x),
    "plus zero": lambda: lambda x: jnp.sum(x + 0.0),
    "plus the other zero": lambda: lambda x: jnp.sum(x + -0.0),
    "plus nan": lambda: lambda x: jnp.sum(x + np.nan),
    "largest": lambda: lambda x: jnp.max(x),
    "sorted": lambda: lambda x: jnp.sort(x),
    "cumulated": lambda: lambda x: jax.lax.cumsum(x),
    "cumulated from behind": lambda: lambda x: jax.lax.cumsum(x, reverse=True),
    "a jitted constant": lambda: lambda x: jax.jit(lambda y: y * WEIGHTS)(x),
    "another constant": lambda: lambda x: jax.jit(lambda y: y * (WEIGHTS + 1))(x),
    "a branch": lambda: lambda x: jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
    "the other branch": lambda: lambda x: jax.lax.cond(x[0] > 0, jnp.cos, jnp.sin, x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_traced_again_has_the_same_key(name):
    make = PROGRAMS[name]
    first, again = key(make()), key(make())
    assert first == again
    assert hash(first) == hash(again)


def test_programs_that_differ_in_anything_have_other_keys():
    keys = {name: key(make()) for name, make in PROGRAMS.items()}
    for one, other in itertools.combinations(keys, 2):
        assert keys[one] != keys[other], (one, other)


def test_shape_dtype_and_weak_type_of_the_inputs_count():
    f = lambda x: x * x
    points = [X, X[:2], X.astype(jnp.float32), jnp.asarray(1.0), jnp.ones(())]
    keys = [key(f, point) for point in points]
    assert len({*keys}) == len(points)


def test_names_of_functions_do_not_count():
    def named(y):
        return jnp.sin(y)

    def otherwise(y):
        return jnp.sin(y)

    one, other = (key(lambda x, f=f: jax.jit(f)(x)) for f in (named, otherwise))
    assert one == other


def test_derivative_rules_do_not_count():
    """So a key is good for running a program and not for differentiating it."""
    assert key(lambda x: ruled(x)) == key(lambda x: ruled_otherwise(x))


def test_lifted_constants_are_handed_back_and_only_their_types_count():
    keys, constants = zip(
        *(
            fingerprint(jax.make_jaxpr(lambda x, w=w: x * w)(X), lift=True)
            for w in (WEIGHTS, WEIGHTS + 1)
        ),
        strict=True,
    )
    assert keys[0] == keys[1]
    assert [float(w[0]) for (w,) in constants] == [1.0, 2.0]
    assert key(lambda x: x * WEIGHTS) != key(lambda x: x * (WEIGHTS + 1))


def test_a_tracer_among_the_constants_is_refused():
    def outer(y):
        with pytest.raises(Unrecognized, match="tracer"):
            key(lambda x: x * y)
        return y

    jax.make_jaxpr(outer)(X)


def test_a_constant_of_many_bytes_is_refused():
    large = np.zeros(1 + (1 << 21))
    with pytest.raises(Unrecognized, match="content"):
        key(lambda x: x[0] * large)
