"""Dtypes and weak types of results are those of the plain JAX expression."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk


POINTS = {
    "a Python float": 1.5,
    "a weak scalar": lambda: jnp.asarray(1.5),
    "a strong scalar": np.asarray(1.5),
    "a NumPy scalar": np.float32(1.5),
    "a wide NumPy scalar": np.float64(1.5),
    "bfloat16": lambda: jnp.asarray(1.5, jnp.bfloat16),
    "float16": lambda: jnp.asarray(1.5, jnp.float16),
    "a vector": np.array([1.0, 2.0], np.float32),
    "a mixed tree": {"a": 1.5, "b": np.array([1.0, 2.0])},
}

SCALARS = list(POINTS)[:-2]


ONE = jnp.ones((), jnp.float32)


def f(x):
    return sum(jnp.sum(jnp.sin(a) * a) for a in jax.tree.leaves(x))


def cubes(x):
    return [jnp.sin(a) * a for a in jax.tree.leaves(x)]


def ones(x):
    return jax.tree.map(lambda a: 1.0 if isinstance(a, float) else jnp.ones_like(a), x)


def product(x):
    return jax.jvp(jax.grad(f), (x,), (ones(x),))[1]


def entries(x):
    """Return the diagonal of the Hessian."""
    hessian = jax.hessian(f)(x)
    if isinstance(x, dict):
        return {k: diagonal(hessian[k][k]) for k in x}
    return diagonal(hessian)


def diagonal(block):
    return block if jnp.ndim(block) == 0 else jnp.diagonal(block)


SAME = {
    "gradient": (lambda x: hotk.gradient(f, x), jax.grad(f)),
    "value_and_gradient": (
        lambda x: hotk.value_and_gradient(f, x),
        jax.value_and_grad(f),
    ),
    "jvp": (
        lambda x: hotk.value_and_jvp(f, x, ones(x)),
        lambda x: jax.jvp(f, (x,), (ones(x),)),
    ),
    "vjp": (
        lambda x: hotk.vjp(f, x, np.ones((), jnp.result_type(f(x)))),
        lambda x: jax.vjp(f, x)[1](jnp.ones_like(f(x)))[0],
    ),
    "jacobian": (lambda x: hotk.jacobian(cubes, x), jax.jacobian(cubes)),
    "jacobian of a scalar": (lambda x: hotk.jacobian(f, x), jax.jacobian(f)),
    "hvp": (lambda x: hotk.hvp(f, x, ones(x)), product),
    "hessian": (lambda x: hotk.hessian(f, x), jax.hessian(f)),
    "hessian_diagonal": (lambda x: hotk.hessian_diagonal(f, x), entries),
}
SCALAR = {
    "derivative": (lambda x: hotk.derivative(f, x), jax.grad(f)),
    "second_derivative": (lambda x: hotk.second_derivative(f, x), jax.hessian(f)),
    "laplacian": (lambda x: hotk.laplacian(f, x), jax.hessian(f)),
    "quadratic_form": (lambda x: hotk.quadratic_form(f, x, ones(x)), product),
    "jacobian in forward mode": (
        lambda x: hotk.jacobian(f, x, mode=hotk.Forward()),
        jax.jacobian(f),
    ),
    "derivative_tensor": (
        lambda x: hotk.derivative_tensor(f, x, order=2),
        jax.jacfwd(jax.jacfwd(f)),
    ),
    "prepared": (lambda x: hotk.laplacian.prepare(f, x)(x), jax.hessian(f)),
}


def kinds(tree):
    leaves = [jnp.asarray(a) for a in jax.tree.leaves(tree)]
    return [(a.dtype.name, a.weak_type, a.shape) for a in leaves]


def plain(reference, x):
    """Evaluate as JAX does at arrays of its own."""
    as_jax = lambda a: a if isinstance(a, float) else jnp.asarray(a)
    return reference(jax.tree.map(as_jax, x))


def made(point):
    return point() if callable(point) else point


@pytest.mark.thinned(4)
@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
@pytest.mark.parametrize(("ours", "theirs"), SAME.values(), ids=SAME)
def test_results_have_the_type_of_plain_results(ours, theirs, point):
    x = made(point)
    with jax.numpy_dtype_promotion("standard"):
        assert kinds(ours(x)) == kinds(plain(theirs, x))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("point", SCALARS, ids=SCALARS)
@pytest.mark.parametrize(("ours", "theirs"), SCALAR.values(), ids=SCALAR)
def test_results_at_scalars_have_the_type_of_plain_results(ours, theirs, point):
    x = made(POINTS[point])
    assert kinds(ours(x)) == kinds(plain(theirs, x))


@pytest.mark.exhaustive
def test_arguments_that_are_not_differentiated_leave_the_type_alone():
    g = lambda x, c, n: c * f(x) * n
    for x in (1.5, np.float32(1.5)):
        for c, n in ((2.0, 3), (np.float32(2.0), np.int32(3)), (ONE, 2)):
            with jax.numpy_dtype_promotion("standard"):
                h = lambda x, c=c, n=n: g(x, c, n)
                want = kinds(jax.hessian(h)(x))
                assert kinds(hotk.hessian(g, x, c, n)) == want
                assert kinds(hotk.laplacian(g, x, c, n)) == want
                assert kinds(hotk.hessian_diagonal(g, x, c, n)) == want
