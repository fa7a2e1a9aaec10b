"""What NumPy does in place of JAX, it does to the last bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotk._core._by_numpy import ARITHMETIC, COMPARISONS, LOGIC, MOVES, ORDERED, RING


# No quotient of these is below the normal range, where XLA has zero and NumPy has not.
FLOATS = np.array([[0.1, -0.0, 3e-9], [np.inf, 7.3, -1e200]])
INTEGERS = np.array([[1, -(2**62), 3], [2**62, 5, -7]])
FLAGS = np.array([[True, False, True], [False, False, True]])
ARRAYS = {"f": FLOATS, "i": INTEGERS, "b": FLAGS}

# Functions of JAX by the primitive that they become.
MOVED = {
    "broadcast_in_dim": lambda x: jax.lax.broadcast_in_dim(x, (4, 2, 3), (1, 2)),
    "concatenate": lambda x: jax.lax.concatenate([x, x[::-1]], 1),
    "copy": lambda x: jnp.copy(x),
    "reshape": lambda x: jax.lax.reshape(x, (3, 2)),
    "rev": lambda x: jax.lax.rev(x, (1,)),
    "slice": lambda x: jax.lax.slice(x, (0, 0), (2, 3), (1, 2)),
    "split": lambda x: jax.lax.split(x, (1, 2), 1),
    "squeeze": lambda x: jax.lax.squeeze(x[:, :1], (1,)),
    "transpose": lambda x: jax.lax.transpose(x, (1, 0)),
}


def replayed(closed, tables, x):
    """Run a program by the tables, one operation after the other."""
    [variable] = closed.jaxpr.invars
    known = {variable: x}
    for equation in closed.jaxpr.eqns:
        values = [known[a] for a in equation.invars]
        made = tables[equation.primitive.name](*values, **equation.params)
        several = equation.primitive.multiple_results
        made = made if several else [made]
        known.update(zip(equation.outvars, made, strict=True))
    return [known[a] for a in closed.jaxpr.outvars]


def same_bits(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        other = np.asarray(other)
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("name", MOVED)
def test_what_only_moves_numbers(name, kind):
    closed = jax.make_jaxpr(MOVED[name])(ARRAYS[kind])
    assert name in {equation.primitive.name for equation in closed.jaxpr.eqns}
    same_bits(
        replayed(closed, MOVES, ARRAYS[kind]),
        jax.tree.leaves(MOVED[name](jnp.asarray(ARRAYS[kind]))),
    )


PAIRS = [
    *(("f", name, ARITHMETIC) for name in ("add", "sub", "mul", "div")),
    *(("i", name, RING) for name in ("add", "sub", "mul")),
    *(("f", name, ORDERED) for name in ("max", "min")),
    *((kind, name, COMPARISONS) for kind in "fi" for name in COMPARISONS),
    *(("b", name, LOGIC) for name in ("and", "or", "xor")),
]
NAMES = {"and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor"}


@pytest.mark.parametrize(("kind", "name", "table"), PAIRS)
def test_what_takes_two(kind, name, table):
    x, y = ARRAYS[kind], ARRAYS[kind][::-1].copy()
    with np.errstate(all="ignore"):
        got = table[name](x, y)
    wanted = getattr(jax.lax, NAMES.get(name, name))(jnp.asarray(x), jnp.asarray(y))
    finite = np.isfinite(got)  # which NaN it is is not told
    same_bits([got[finite]], [np.asarray(wanted)[finite]])
    np.testing.assert_array_equal(got, wanted)


SINGLES = [
    ("f", "neg", ARITHMETIC),
    ("f", "square", ARITHMETIC),
    ("f", "abs", ORDERED),
    ("i", "neg", RING),
    ("b", "not", LOGIC),
]


@pytest.mark.parametrize(("kind", "name", "table"), SINGLES)
def test_what_takes_one(kind, name, table):
    x = ARRAYS[kind]
    with np.errstate(all="ignore"):
        got = table[name](x)
    function = {"not": jax.lax.bitwise_not}.get(name) or getattr(jax.lax, name)
    same_bits([got], [function(jnp.asarray(x))])


def test_a_root():
    x = np.abs(FLOATS)
    same_bits([ARITHMETIC["sqrt"](x)], [jax.lax.sqrt(jnp.asarray(x))])


@pytest.mark.parametrize(
    ("kind", "name", "function", "table"),
    [
        ("f", "reduce_max", jnp.max, ORDERED),
        ("f", "reduce_min", jnp.min, ORDERED),
        ("b", "reduce_and", jnp.all, LOGIC),
        ("b", "reduce_or", jnp.any, LOGIC),
    ],
)
def test_what_reduces(kind, name, function, table):
    got = table[name](ARRAYS[kind], axes=(1,), out_sharding=None)
    same_bits([got], [function(jnp.asarray(ARRAYS[kind]), axis=1)])
