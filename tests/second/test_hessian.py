"""All second derivatives, as `jax.hessian` gives them."""

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
    """Couple each entry with the next."""
    return jnp.sum(jnp.sin(x[:-1] * x[1:])) + jnp.sum(jnp.exp(x))


def chain_hessian(x):
    p, n = x[:-1] * x[1:], len(x)
    square = np.append(x[1:] ** 2 * np.sin(p), 0) + np.append(
        0, x[:-1] ** 2 * np.sin(p)
    )
    next_ = np.cos(p) - p * np.sin(p)
    k = np.arange(n - 1)
    hessian = np.diag(np.exp(x) - square)
    hessian[k, k + 1] = hessian[k + 1, k] = next_
    return hessian


@pytest.mark.thinned(6)
@knowing("hessian")
def test_known_by_hand(make):
    case = make()
    close(hotk.hessian(case.f, *case.inputs("hessian")), case.hessian)


@each_nesting
def test_is_that_of_jax(nesting):
    got = hotk.hessian(chain, X, mode=getattr(hotk, nesting))
    close(got, chain_hessian(X))
    close(got, jax.jit(jax.hessian(chain))(X))


def mixed_powers(x):
    a, [b, c] = x["a"], x["b"]
    return jnp.sum(jnp.outer(a**2, b)) * c**3 + jnp.sum(jnp.cos(a)) * c


TREE = {"a": jnp.array([1.0, -2.0]), "b": [jnp.array([0.5, 3.0, 2.0]), jnp.array(0.7)]}


@pytest.mark.thinned(1)
@each_nesting
@pytest.mark.parametrize("block_size", [None, 1, 4, 6, 10])
def test_has_the_structure_of_jax(nesting, block_size):
    mode = getattr(hotk, nesting)
    got = hotk.hessian(mixed_powers, TREE, mode=mode, block_size=block_size)
    close(got, jax.jit(jax.hessian(mixed_powers))(TREE))


@pytest.mark.thinned(1)
@each_nesting
def test_of_several_outputs_has_the_structure_of_jax(nesting):
    def f(x):
        outer = jnp.outer(x["a"] ** 2, x["b"][0])
        return {"outer": outer * x["b"][1], "number": (mixed_powers(x),)}

    got = hotk.hessian(f, TREE, mode=getattr(hotk, nesting))
    close(got, jax.jit(jax.hessian(f))(TREE))


def test_other_leaves_are_none():
    x = {"a": jnp.array([1.0, 2.0]), "n": jnp.arange(2), "none": None, "word": "up"}
    f = lambda x: jnp.sum(x["a"] ** 3 * x["n"].astype(float))
    row = {"a": np.diag([0.0, 12.0]), "n": None, "none": None, "word": None}
    close(hotk.hessian(f, x), row | {"a": row})


@pytest.mark.parametrize("empty", [{}, (), [], {"a": ()}], ids=str)
def test_of_an_empty_tree_is_that_tree(empty):
    assert hotk.hessian(lambda x: jnp.array(3.0), empty) == empty


@each_nesting
def test_an_empty_leaf_has_empty_blocks(nesting):
    x = {"a": jnp.array([1.0, 2.0]), "none": jnp.zeros((0, 3))}
    f = lambda x: jnp.sum(x["a"] ** 3) + jnp.sum(x["none"] ** 2)
    expected = {
        "a": {"a": np.diag([6.0, 12.0]), "none": np.zeros((2, 0, 3))},
        "none": {"a": np.zeros((0, 3, 2)), "none": np.zeros((0, 3, 0, 3))},
    }
    close(hotk.hessian(f, x, mode=getattr(hotk, nesting)), expected)


@pytest.mark.thinned(4, "nesting")
@each_nesting
@each_block_size
def test_every_block_size_gives_the_same(block_size, nesting):
    mode = getattr(hotk, nesting)
    got = hotk.hessian(chain, X, block_size=block_size, mode=mode)
    close(got, chain_hessian(X))


@pytest.mark.parametrize("block_size", range(1, 5))
def test_every_block_size_gives_the_same_for_several_outputs(block_size):
    got = hotk.hessian(jnp.cumprod, np.array([1.0, 2.0, 3.0]), block_size=block_size)
    expected = np.zeros((3, 3, 3))
    expected[1] = [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    expected[2] = [[0, 3, 2], [3, 0, 1], [2, 1, 0]]
    close(got, expected)


@each_block_size
def test_one_program_whether_the_blocks_fit_or_not(block_size):
    x = jnp.array(X)
    with compiles() as count:
        hotk.hessian(lambda x: chain(x) + block_size, x, block_size=block_size)
    assert count() == 1


def test_the_directions_of_a_block_compile_nothing_else():
    x = jnp.linspace(0.0, 1.0, 37)  # sizes that no other test has
    with compiles() as count:
        hotk.hessian(lambda x: chain(x) + 11, x, block_size=11)
    assert count() == 1


@each_nesting
def test_is_symmetric_to_the_last_bits(nesting):
    got = np.asarray(hotk.hessian(chain, X, mode=getattr(hotk, nesting)))
    np.testing.assert_allclose(got, got.T, rtol=1e-14, atol=1e-14)


@each_nesting
def test_of_degree_below_two_is_exactly_zero(nesting):
    mode = getattr(hotk, nesting)
    got = hotk.hessian(lambda x: 3 * jnp.sum(x) - 2.0, X, mode=mode)
    assert got.shape == (5, 5)
    assert not got.any()


@each_nesting
def test_a_quadratic_function_gives_its_matrix_exactly(nesting):
    matrix = np.array([[2.0, -1.0, 0.5], [-1.0, 0.0, 3.0], [0.5, 3.0, 8.0]])
    f = lambda x: x @ (matrix @ x) / 2
    got = hotk.hessian(f, X[:3], mode=getattr(hotk, nesting))
    assert (got == matrix).all()


@pytest.mark.thinned(6, "nesting")
@each_nesting
@each_dtype
def test_keeps_the_dtype(dtype, nesting):
    x = jnp.array([1.0, 2.0, -0.5], dtype)
    got = hotk.hessian(lambda x: jnp.sum(x**3), x, mode=getattr(hotk, nesting))
    close(got, np.diag([6.0, 12.0, -3.0]).astype(x.dtype))


@pytest.mark.thinned(1, "nesting")
@each_nesting
@pytest.mark.parametrize("block_size", [None, 3])
def test_keeps_each_dtype_of_a_tree(nesting, block_size):
    x = {"half": jnp.array([1.0, -2.0], "float32"), "full": jnp.array([3.0, 0.5])}
    f = lambda x: jnp.sum(x["half"].astype(float) ** 2 * x["full"] ** 3)
    mode = getattr(hotk, nesting)
    got = hotk.hessian(f, x, mode=mode, block_size=block_size)
    a, b = np.array([1.0, -2.0]), np.array([3.0, 0.5])
    single = np.float32
    cross = np.diag(6 * a * b**2)
    close(got["half"]["half"], np.diag(2 * b**3).astype(single))
    close(got["full"]["full"], np.diag(6 * a**2 * b))
    for block in (got["half"]["full"], got["full"]["half"]):
        np.testing.assert_allclose(block, cross, rtol=1e-6)


def test_jit_changes_nothing():
    close(jax.jit(lambda x: hotk.hessian(chain, x))(X), chain_hessian(X))
    blocks = jax.jit(lambda x: hotk.hessian(chain, x, block_size=2))
    close(blocks(X), chain_hessian(X))


def test_vmap_is_a_loop():
    xs = np.stack([X, 2 * X, -X])
    loop = np.stack([chain_hessian(x) for x in xs])
    close(jax.vmap(lambda x: hotk.hessian(chain, x))(xs), loop)
    close(jax.vmap(lambda x: hotk.hessian(chain, x, block_size=2))(xs), loop)


@pytest.mark.thinned(1)
@each_nesting
@pytest.mark.parametrize("block_size", [None, 2])
def test_differentiating_it_gives_the_third_derivatives(nesting, block_size):
    def hessian(x):
        f = lambda x: x[0] ** 2 * x[1] ** 3 * x[2]
        return hotk.hessian(f, x, mode=getattr(hotk, nesting), block_size=block_size)

    x, y, z = X[:3]
    third = np.zeros((3, 3, 3))
    entries = {
        (0, 0, 1): 6 * y**2 * z,
        (0, 0, 2): 2 * y**3,
        (0, 1, 1): 12 * x * y * z,
        (0, 1, 2): 6 * x * y**2,
        (1, 1, 1): 6 * x**2 * z,
        (1, 1, 2): 6 * x**2 * y,
    }
    for (i, j, k), entry in entries.items():
        for place in {(i, j, k), (i, k, j), (j, i, k), (j, k, i), (k, i, j), (k, j, i)}:
            third[place] = entry
    close(jax.jacfwd(hessian)(X[:3]), third)
    close(jax.jacrev(hessian)(X[:3]), third)


def test_aux_travels_beside():
    f = lambda x, c: (c * jnp.sum(x**3), {"count": jnp.array(3), "x": x})
    aux = {"count": np.array(3), "x": X}
    close(hotk.hessian(f, X, 2.0, has_aux=True), (np.diag(12 * X), aux))
    got = hotk.hessian(f, X, 2.0, has_aux=True, block_size=2)
    close(got, (np.diag(12 * X), aux))


@pytest.mark.usefixtures("as_user")
def test_complex_parameters_are_refused_and_the_product_named():
    with pytest.raises(hotk.DtypeError, match="hvp"):
        hotk.hessian(lambda z: jnp.sum(z.real**2), jnp.array([1j, 2.0]))


@pytest.mark.usefixtures("as_user")
def test_integers_alone_are_refused():
    with pytest.raises(hotk.DtypeError):
        hotk.hessian(lambda x: jnp.array(1.0), jnp.arange(3))
