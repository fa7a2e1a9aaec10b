"""The diagonal of the Hessian, exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.cases import each_dtype, knowing
from tests.counting import compiles
from tests.helpers import close


X = np.array([0.3, -1.2, 2.0, 0.7, 1.1])

each_nesting = pytest.mark.parametrize("nesting", reference.NESTINGS)
each_block_size = pytest.mark.parametrize("block_size", range(1, 7))


def chain(x):
    return jnp.sum(jnp.sin(x[:-1] * x[1:])) + jnp.sum(jnp.exp(x))


def chain_diagonal(x):
    s = np.sin(x[:-1] * x[1:])
    return np.exp(x) - np.append(x[1:] ** 2 * s, 0) - np.append(0, x[:-1] ** 2 * s)


@pytest.mark.thinned(4)
@knowing("hessian_diagonal")
def test_known_by_hand(make):
    case = make()
    got = hotk.hessian_diagonal(case.f, *case.inputs("hessian_diagonal"))
    close(got, case.hessian_diagonal)


@pytest.mark.thinned(4, "nesting")
@each_nesting
@each_block_size
def test_every_nesting_and_block_size_gives_the_same(nesting, block_size):
    mode = getattr(hotk, nesting)
    got = hotk.hessian_diagonal(chain, X, mode=mode, block_size=block_size)
    close(got, chain_diagonal(X))


def test_is_the_diagonal_of_the_hessian_of_jax():
    close(hotk.hessian_diagonal(chain, X), jnp.diag(jax.jit(jax.hessian(chain))(X)))


@each_block_size
def test_one_program_whether_the_blocks_fit_or_not(block_size):
    x = jnp.array(X)
    with compiles() as count:
        f = lambda x: chain(x) + block_size
        hotk.hessian_diagonal(f, x, block_size=block_size)
    assert count() == 1


@pytest.mark.thinned(2)
@each_nesting
@pytest.mark.parametrize("block_size", [None, 4])
def test_has_the_structure_of_the_point(nesting, block_size):
    x = {"a": jnp.array([[1.0, -2.0]]), "b": [jnp.array([0.5, 3.0, 2.0]), 0.7]}
    f = lambda x: jnp.sum(x["a"] ** 3) * jnp.sum(x["b"][0] ** 2) * x["b"][1] ** 4
    got = hotk.hessian_diagonal(
        f, x, mode=getattr(hotk, nesting), block_size=block_size
    )
    a, b, c = np.array([[1.0, -2.0]]), np.array([0.5, 3.0, 2.0]), 0.7
    cubes, squares = np.sum(a**3), np.sum(b**2)
    expected = {
        "a": 6 * a * squares * c**4,
        "b": [2 * cubes * c**4 * np.ones(3), 12 * cubes * squares * c**2],
    }
    close(got, expected)


def test_other_leaves_are_none():
    x = {"a": jnp.array([1.0, 2.0]), "n": jnp.arange(2), "none": None, "word": "up"}
    f = lambda x: jnp.sum(x["a"] ** 3 * x["n"].astype(float))
    expected = {"a": np.array([0.0, 12.0]), "n": None, "none": None, "word": None}
    close(hotk.hessian_diagonal(f, x), expected)


@each_nesting
def test_of_degree_below_two_is_exactly_zero(nesting):
    mode = getattr(hotk, nesting)
    f = lambda x: 3 * jnp.sum(x) + x[0] * x[1]
    got = hotk.hessian_diagonal(f, X, mode=mode)
    assert got.tolist() == [0.0] * 5


@pytest.mark.thinned(8, "nesting")
@each_nesting
@each_dtype
def test_keeps_the_dtype(dtype, nesting):
    x = jnp.array([1.0, 2.0, -0.5], dtype)
    got = hotk.hessian_diagonal(lambda x: jnp.sum(x**3), x, mode=getattr(hotk, nesting))
    close(got, np.array([6.0, 12.0, -3.0]).astype(x.dtype))


def test_keeps_each_dtype_of_a_tree():
    names = ["bfloat16", "float16", "float32", "float64"]
    x = {name: jnp.array([1.0, -2.0], name) for name in names}
    f = lambda x: sum(jnp.sum(leaf.astype(float) ** 3) for leaf in x.values())
    got = hotk.hessian_diagonal(f, x)
    close(got, {name: np.array([6.0, -12.0]).astype(name) for name in names})


def test_needs_no_reverse_pass():
    def loop(x):
        def more(carry):
            i, y = carry
            return i + 1, y * x

        return jnp.sum(jax.lax.while_loop(lambda c: c[0] < 3, more, (0, x))[1])

    close(hotk.hessian_diagonal(loop, X), 12 * X**2)


def test_jit_changes_nothing():
    close(jax.jit(lambda x: hotk.hessian_diagonal(chain, x))(X), chain_diagonal(X))


def test_vmap_is_a_loop():
    xs = np.stack([X, 2 * X, -X])
    got = jax.vmap(lambda x: hotk.hessian_diagonal(chain, x, block_size=2))(xs)
    close(got, np.stack([chain_diagonal(x) for x in xs]))


@pytest.mark.thinned(1)
@each_nesting
def test_differentiating_it_gives_third_derivatives(nesting):
    def diagonal(x):
        f = lambda x: x[0] ** 2 * x[1] ** 3
        return hotk.hessian_diagonal(f, x, mode=getattr(hotk, nesting))

    x, y = X[:2]
    expected = np.array([[0.0, 6 * y**2], [12 * x * y, 6 * x**2]])
    close(jax.jacfwd(diagonal)(X[:2]), expected)
    close(jax.jacrev(diagonal)(X[:2]), expected)


def test_aux_travels_beside():
    f = lambda x, c: (c * jnp.sum(x**3), {"count": jnp.array(3), "x": x})
    got = hotk.hessian_diagonal(f, X, 2.0, has_aux=True)
    close(got, (12 * X, {"count": np.array(3), "x": X}))


@pytest.mark.usefixtures("as_user")
def test_what_does_not_fit_is_refused():
    with pytest.raises(hotk.OutputError):
        hotk.hessian_diagonal(lambda x: x, X)
    with pytest.raises(hotk.DtypeError):
        hotk.hessian_diagonal(lambda x: jnp.array(1.0), jnp.arange(3))
