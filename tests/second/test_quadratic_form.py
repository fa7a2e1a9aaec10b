"""The second derivative along a direction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.cases import SCENARIOS, each_dtype, knowing
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


@pytest.mark.thinned(5)
@knowing("quadratic_form")
def test_known_by_hand(make):
    case = make()
    got = hotk.quadratic_form(case.f, *case.inputs("quadratic_form"))
    close(got, case.quadratic_form)


@each_nesting
def test_is_the_direction_twice_on_the_hessian(nesting):
    got = hotk.quadratic_form(wave, X, V, mode=getattr(hotk, nesting))
    close(got, V @ HESSIAN @ V)
    close(got, V @ jax.jit(jax.hessian(wave))(X) @ V)


@each_nesting
def test_is_quadratic_in_the_direction(nesting):
    q = lambda v: hotk.quadratic_form(wave, X, v, mode=getattr(hotk, nesting))
    np.testing.assert_allclose(q(-3 * V), 9 * q(V), rtol=1e-13)
    np.testing.assert_allclose(q(V + W) + q(V - W), 2 * (q(V) + q(W)), rtol=1e-13)
    np.testing.assert_allclose(q(V + W) - q(V - W), 4 * V @ HESSIAN @ W, rtol=1e-13)


def test_euler_for_a_homogeneous_function():
    f = lambda x: x[0] * x[1] * x[2] ** 2 - x[0] ** 4
    np.testing.assert_allclose(hotk.quadratic_form(f, X, X), 12 * f(X), rtol=1e-13)


@each_nesting
def test_of_degree_below_two_is_exactly_zero(nesting):
    mode = getattr(hotk, nesting)
    assert hotk.quadratic_form(lambda x: x @ V - 2.0, X, W, mode=mode) == 0.0
    assert hotk.quadratic_form(lambda x: jnp.array(7.0), X, W, mode=mode) == 0.0


def test_needs_no_reverse_pass():
    """A loop of unknown length has no reverse mode, the form has a value."""

    def loop(x):
        def more(carry):
            i, y = carry
            return i + 1, y * x[1]

        return jax.lax.while_loop(lambda c: c[0] < 3, more, (0, x[0]))[1]

    got = hotk.quadratic_form(loop, X[:2], V[:2])
    a, b = X[:2]
    hessian = np.array([[0, 3 * b**2], [3 * b**2, 6 * a * b]])
    close(got, V[:2] @ hessian @ V[:2])


@pytest.mark.thinned(2)
@each_nesting
@each_dtype
def test_keeps_the_dtype(dtype, nesting):
    x = jnp.array([1.0, 2.0, -0.5], dtype)
    v = jnp.array([1.0, -1.0, 2.0], dtype)
    f = lambda x: jnp.sum(x**3)
    got = hotk.quadratic_form(f, x, v, mode=getattr(hotk, nesting))
    close(got, np.array([6.0]).astype(x.dtype)[0])


def test_for_complex_parameters_is_the_second_derivative_along_the_line():
    z, v = np.array([1 + 2j, -0.5 + 1j]), np.array([0.25 - 1j, 3 + 0.5j])
    f = lambda z: (z[0] ** 2 * z[1]).real
    line = lambda t: f(z + jax.lax.complex(t, 0 * t) * v)
    close(hotk.quadratic_form(f, z, v), jax.grad(jax.grad(line))(0.0))
    value = 2 * v[0] ** 2 * z[1] + 4 * z[0] * v[0] * v[1]
    close(hotk.quadratic_form(f, z, v), np.array(value.real))


def test_jit_changes_nothing():
    got = jax.jit(lambda x, v: hotk.quadratic_form(wave, x, v))(X, V)
    close(got, V @ HESSIAN @ V)


def test_vmap_is_a_loop():
    xs, vs = np.stack([X, 2 * X, W]), np.stack([V, W, X])
    got = jax.vmap(lambda x, v: hotk.quadratic_form(wave, x, v))(xs, vs)
    loop = [reference.quadratic_form(wave, x, v) for x, v in zip(xs, vs, strict=True)]
    close(got, jnp.stack(loop))


def test_differentiating_it_gives_the_third_derivative():
    form = lambda x: hotk.quadratic_form(lambda x: jnp.sum(x**4), x, V)
    close(jax.grad(form)(X), 24 * X * V**2)
    close(jax.jvp(form, (X,), (W,))[1], np.sum(24 * X * V**2 * W))


def test_its_gradient_by_the_direction_is_twice_the_product():
    form = lambda v: hotk.quadratic_form(wave, X, v)
    close(jax.grad(form)(V), 2 * HESSIAN @ V)


def test_aux_travels_beside():
    f = lambda x, c: (c * jnp.sum(x**3), {"count": jnp.array(3)})
    got = hotk.quadratic_form(f, X, V, 2.0, has_aux=True)
    close(got, (np.sum(12 * X * V**2), {"count": np.array(3)}))


@each_nesting
def test_a_batch_of_directions_is_a_loop(nesting):
    vs = np.stack([V, W, -V, 0 * V])
    got = hotk.quadratic_form(wave, X, vs, batched=True, mode=getattr(hotk, nesting))
    close(got, np.array([v @ HESSIAN @ v for v in vs]))


@knowing("quadratic_form", SCENARIOS)
def test_a_direction_and_its_opposite(make):
    case = make()
    x, v, *args = case.inputs("quadratic_form")
    moving = reference.differentiable_part(None, v)[1]
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), moving)
    got = hotk.quadratic_form(case.f, x, both, *args, batched=True)
    close(got, np.stack([case.quadratic_form, case.quadratic_form]))


@pytest.mark.usefixtures("as_user")
def test_what_does_not_fit_is_refused():
    with pytest.raises(hotk.StructureError):
        hotk.quadratic_form(wave, X, V[:2])
    with pytest.raises(hotk.DtypeError):
        hotk.quadratic_form(wave, X, jnp.array(V, jnp.float32))
    with pytest.raises(hotk.OutputError):
        hotk.quadratic_form(lambda x: x, X, V)
