"""The Hessian times a direction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.cases import WITH_ENTRIES, each_dtype, knowing
from tests.helpers import close


X = np.array([0.3, -1.2, 2.0])
V = np.array([1.0, 0.5, -2.0])
W = np.array([-0.7, 3.0, 0.25])

each_nesting = pytest.mark.parametrize("nesting", reference.NESTINGS)


def wave(x):
    return jnp.sin(x[0] * x[1]) + jnp.exp(x[2]) * x[0]


S, C, E = np.sin(X[0] * X[1]), np.cos(X[0] * X[1]), np.exp(X[2])
HESSIAN = np.array(
    [
        [-(X[1] ** 2) * S, C - X[0] * X[1] * S, E],
        [C - X[0] * X[1] * S, -(X[0] ** 2) * S, 0.0],
        [E, 0.0, X[0] * E],
    ]
)


@pytest.mark.thinned(9)
@knowing("hvp")
def test_known_by_hand(make):
    case = make()
    close(hotk.hvp(case.f, *case.inputs("hvp")), case.hvp)


def test_is_the_product_with_the_hessian():
    close(hotk.hvp(wave, X, V), HESSIAN @ V)
    close(jax.jit(jax.hessian(wave))(X) @ V, HESSIAN @ V)


@each_nesting
def test_is_symmetric(nesting):
    mode = getattr(hotk, nesting)
    left = W @ hotk.hvp(wave, X, V, mode=mode)
    right = V @ hotk.hvp(wave, X, W, mode=mode)
    np.testing.assert_allclose(left, right, rtol=1e-13)
    np.testing.assert_allclose(left, W @ HESSIAN @ V, rtol=1e-13)


@each_nesting
def test_is_linear_in_the_direction(nesting):
    mode = getattr(hotk, nesting)
    got = hotk.hvp(wave, X, 3 * V - 0.5 * W, mode=mode)
    parts = 3 * hotk.hvp(wave, X, V, mode=mode) - 0.5 * hotk.hvp(wave, X, W, mode=mode)
    np.testing.assert_allclose(got, parts, rtol=1e-13)


@each_nesting
def test_euler_for_a_homogeneous_function(nesting):
    f = lambda x: x[0] * x[1] * x[2] ** 2 - x[0] ** 4
    product = hotk.hvp(f, X, X, mode=getattr(hotk, nesting))
    np.testing.assert_allclose(product, 3 * hotk.gradient(f, X), rtol=1e-13)
    np.testing.assert_allclose(X @ product, 12 * f(X), rtol=1e-13)


@each_nesting
@pytest.mark.parametrize(
    "f",
    [lambda x: jnp.array(7.0), lambda x: x @ V, lambda x: 3 * x[1] - 2.0],
    ids=["constant", "linear", "affine"],
)
def test_of_degree_below_two_is_exactly_zero(f, nesting):
    got = hotk.hvp(f, X, V, mode=getattr(hotk, nesting))
    assert got.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("empty", [{}, (), [], {"a": ()}], ids=str)
def test_of_an_empty_tree_is_that_tree(empty):
    assert hotk.hvp(lambda x: jnp.array(3.0), empty, empty) == empty


def test_values_of_numpy_and_python_are_points_and_directions():
    x = {"list": [1.5, np.float64(2.0)], "array": np.array([3.0])}
    v = {"list": [1, np.float32(-1.0)], "array": np.array([2], np.int32)}
    f = lambda x: x["list"][0] * x["list"][1] * x["array"][0]
    a, b, c = 1.5, 2.0, 3.0
    expected = {"list": [-c + 2 * b, c + 2 * a], "array": np.array([b - a])}
    close(hotk.hvp(f, x, v), expected)


@pytest.mark.thinned(10)
@each_nesting
@each_dtype
def test_keeps_the_dtype(dtype, nesting):
    x = jnp.array([1.0, 2.0, -0.5], dtype)
    v = jnp.array([1.0, -1.0, 2.0], dtype)
    got = hotk.hvp(lambda x: jnp.sum(x**3), x, v, mode=getattr(hotk, nesting))
    close(got, np.array([6.0, -12.0, -6.0]).astype(x.dtype))


@each_nesting
def test_keeps_each_dtype_of_a_tree(nesting):
    names = ["bfloat16", "float16", "float32", "float64"]
    x = {name: jnp.array([1.0, -2.0], name) for name in names}
    v = {name: jnp.array([0.5, 3.0], name) for name in names}

    def f(x):
        return sum(jnp.sum(leaf.astype(float) ** 3) for leaf in x.values())

    got = hotk.hvp(f, x, v, mode=getattr(hotk, nesting))
    close(got, {name: np.array([3.0, -36.0]).astype(name) for name in names})


@pytest.mark.thinned(2)
@each_nesting
def test_for_complex_parameters_is_the_conjugate_of_the_real_product(nesting):
    """So Newton's step for z solves with the conjugate of the gradient."""
    z, v = np.array([1 + 2j, -0.5 + 1j]), np.array([0.25 - 1j, 3 + 0.5j])

    def f(z):
        return (z[0] ** 2 * z[1]).real + jnp.sum(z.real**3 * z.imag)

    def embedded(x):
        return f(jax.lax.complex(x[:2], x[2:]))

    x, w = np.append(z.real, z.imag), np.append(v.real, v.imag)
    product = np.asarray(jax.jit(jax.hessian(embedded))(x)) @ w
    got = hotk.hvp(f, z, v, mode=getattr(hotk, nesting))
    close(got, product[:2] - 1j * product[2:])
    close(got, reference.hvp(f, z, v))


@pytest.mark.thinned(3)
@each_nesting
def test_complex_and_real_parameters_together(nesting):
    x = {"z": jnp.array([1 + 2j]), "r": jnp.array([0.5])}
    v = {"z": jnp.array([2 - 1j]), "r": jnp.array([3.0])}
    f = lambda x: ((x["z"] ** 3).imag * x["r"] ** 2)[0]
    got = hotk.hvp(f, x, v, mode=getattr(hotk, nesting))
    close(got, reference.hvp(f, x, v))


def test_jit_changes_nothing():
    close(jax.jit(lambda x, v: hotk.hvp(wave, x, v))(X, V), HESSIAN @ V)


def test_vmap_is_a_loop():
    xs, vs = np.stack([X, 2 * X, W]), np.stack([V, W, X])
    got = jax.vmap(lambda x, v: hotk.hvp(wave, x, v))(xs, vs)
    loop = [reference.hvp(wave, x, v) for x, v in zip(xs, vs, strict=True)]
    close(got, jnp.stack(loop))


@pytest.mark.thinned(3)
@each_nesting
def test_differentiating_it_gives_the_third_derivative(nesting):
    mode = getattr(hotk, nesting)
    slope = lambda x: W @ hotk.hvp(lambda x: jnp.sum(x**4), x, V, mode=mode)
    close(jax.grad(slope)(X), 24 * X * V * W)
    close(jax.jvp(slope, (X,), (X,))[1], np.sum(24 * X**2 * V * W))


def test_its_derivative_by_the_direction_is_the_hessian():
    close(jax.jacfwd(lambda v: hotk.hvp(wave, X, v))(V), HESSIAN)
    close(jax.jacrev(lambda v: hotk.hvp(wave, X, v))(V), HESSIAN)


def test_its_derivative_by_an_argument():
    product = lambda c: hotk.hvp(lambda x, c: c**2 * jnp.sum(x**3), X, V, c)
    close(jax.jacfwd(product)(5.0), 60 * X * V)
    close(jax.jacrev(product)(5.0), 60 * X * V)


@each_nesting
def test_aux_travels_beside(nesting):
    def f(x, c):
        return c * jnp.sum(x**3), {"count": jnp.array(3), "x": x}

    aux = {"count": np.array(3), "x": X}
    got = hotk.hvp(f, X, V, 2.0, has_aux=True, mode=getattr(hotk, nesting))
    close(got, (12 * X * V, aux))


@each_nesting
def test_a_batch_of_directions_is_a_loop(nesting):
    vs = np.stack([V, W, -V, 0 * V])
    got = hotk.hvp(wave, X, vs, batched=True, mode=getattr(hotk, nesting))
    close(got, vs @ HESSIAN)


def test_a_batch_of_one_or_none_has_its_axis():
    close(hotk.hvp(wave, X, V[None], batched=True), (HESSIAN @ V)[None])
    close(hotk.hvp(wave, X, np.zeros((0, 3)), batched=True), np.zeros((0, 3)))


def test_a_batch_with_aux_has_one_aux():
    vs = np.stack([V, W])
    f = lambda x: (wave(x), {"x": x})
    got = hotk.hvp(f, X, vs, batched=True, has_aux=True)
    close(got, (vs @ HESSIAN, {"x": X}))


@pytest.mark.thinned(3)
@knowing("hvp", WITH_ENTRIES)
def test_a_direction_and_its_opposite(make):
    case = make()
    x, v, *args = case.inputs("hvp")
    moving = reference.differentiable_part(None, v)[1]
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), moving)
    got = hotk.hvp(case.f, x, both, *args, batched=True)
    close(got, jax.tree.map(lambda leaf: np.stack([leaf, -leaf]), case.hvp))


@pytest.mark.usefixtures("as_user")
def test_a_direction_that_does_not_match_is_refused():
    x = {"a": jnp.array(X), "b": jnp.array(2.0)}
    f = lambda x: jnp.sum(x["a"]) * x["b"]
    a, b = jnp.array(V), jnp.array(1.0)
    for v in ({"a": a}, {"a": a[:1], "b": b}, {"a": a, "b": b[None]}, [a, b], a):
        with pytest.raises(hotk.StructureError):
            hotk.hvp(f, x, v)
    with pytest.raises(hotk.DtypeError):
        hotk.hvp(f, x, {"a": a.astype(jnp.float32), "b": b})
    with pytest.raises(hotk.DtypeError):
        hotk.hvp(f, x, {"a": a, "b": 1j})


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.sum(x) > 0,
        lambda x: jax.lax.complex(x[0], x[1]),
        lambda x: (jnp.sum(x), x > 0),
        lambda x: None,
    ],
    ids=["bool", "complex", "pair", "nothing"],
)
def test_anything_but_floating_numbers_is_refused(f):
    with pytest.raises(hotk.OutputError):
        hotk.hvp(f, X, V)


@pytest.mark.usefixtures("as_user")
def test_integers_alone_are_refused():
    with pytest.raises(hotk.DtypeError):
        hotk.hvp(lambda x: jnp.array(1.0), jnp.arange(3), jnp.arange(3))
