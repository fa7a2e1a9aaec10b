"""`hvp` of several outputs: a product for each, or of their sum with weights."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests import reference
from tests.counting import compiles
from tests.helpers import close


X = {"w": jnp.array([0.5, -1.0]), "b": jnp.array(0.3)}
V = {"w": jnp.array([1.0, 2.0]), "b": jnp.array(-0.5)}
U = {"pair": jnp.array([2.0, -1.0]), "sine": jnp.array(4.0)}


def f(x, c=1.0):
    pair = jnp.stack([jnp.sum(x["w"] ** 3), x["w"][0] * x["b"] ** 2])
    return {"pair": c * pair, "sine": jnp.sin(x["b"])}


def known(x, v, c=1.0):
    """Return the product of each Hessian with v, by hand."""
    (w0, w1), b = np.asarray(x["w"]), float(x["b"])
    (v0, v1), t = np.asarray(v["w"]), float(v["b"])
    return {
        "pair": {
            "w": c * np.array([[6 * w0 * v0, 6 * w1 * v1], [2 * b * t, 0.0]]),
            "b": c * np.array([0.0, 2 * b * v0 + 2 * w0 * t]),
        },
        "sine": {"w": np.zeros(2), "b": np.array(-np.sin(b) * t)},
    }


def weighted(x, v, u, c=1.0):
    each = known(x, v, c)
    return {
        name: np.tensordot(np.asarray(u["pair"]), each["pair"][name], 1)
        + float(u["sine"]) * each["sine"][name]
        for name in ("w", "b")
    }


@pytest.mark.parametrize("nesting", reference.NESTINGS)
def test_a_product_for_each_output(nesting):
    mode = getattr(hotk, nesting)
    close(hotk.hvp(f, X, V, 3.0, mode=mode), known(X, V, 3.0))
    y, jacobian, products = hotk.value_gradient_and_hvp(f, X, V, mode=mode)
    close(y, f(X))
    close(jacobian, jax.jacobian(f)(X))
    close(products, known(X, V))


@pytest.mark.parametrize("nesting", reference.NESTINGS)
def test_weights_of_the_outputs(nesting):
    mode = getattr(hotk, nesting)
    close(hotk.hvp(f, X, V, 3.0, weights=U, mode=mode), weighted(X, V, U, 3.0))
    plain = {"pair": np.array([2, -1]), "sine": 4}  # cast
    y, gradient, product = hotk.value_gradient_and_hvp(f, X, V, weights=plain)
    total = lambda x: f(x)["pair"] @ U["pair"] + f(x)["sine"] * U["sine"]
    close(y, total(X))
    close(gradient, jax.grad(total)(X))
    close(product, weighted(X, V, U))


def test_batched_directions_come_first():
    vectors = jax.tree.map(lambda a, b: jnp.stack([a, b]), V, X)
    expected = jax.tree.map(lambda *rows: np.stack(rows), known(X, V), known(X, X))
    close(hotk.hvp(f, X, vectors, batched=True), expected)
    expected = jax.tree.map(
        lambda *rows: np.stack(rows), weighted(X, V, U), weighted(X, X, U)
    )
    close(hotk.hvp(f, X, vectors, batched=True, weights=U), expected)


def test_prepared_once():
    other = jax.tree.map(lambda a: a + 1, X)
    prepared = hotk.hvp.prepare(f, X, V, 3.0)
    close(prepared(other, V, 2.0), known(other, V, 2.0))
    prepared = hotk.hvp.prepare(f, X, V, 3.0, weights=U)
    double = jax.tree.map(lambda a: 2 * a, U)
    close(prepared(other, V, 2.0, weights=U), weighted(other, V, U, 2.0))
    with compiles() as count:
        close(prepared(X, V, 2.0, weights=double), weighted(X, V, double, 2.0))
    assert count() == 0


def test_under_transformations():
    xs = jax.tree.map(lambda a: jnp.stack([a, a + 1]), X)
    other = jax.tree.map(lambda a: a + 1, X)
    mapped = jax.jit(jax.vmap(lambda x: hotk.hvp(f, x, V)))(xs)
    rows = zip(*map(jax.tree.leaves, (known(X, V), known(other, V))), strict=True)
    close(jax.tree.leaves(mapped), [np.stack(row) for row in rows])
    # d/du of v' H(u) v, which is linear in the weights
    form = lambda u: jnp.vdot(hotk.hvp(f, X, V, weights=u)["w"], V["w"])
    slope = jax.grad(form)(U)
    each = known(X, V)
    close(slope["pair"], each["pair"]["w"] @ np.asarray(V["w"]))
    close(slope["sine"], 0.0)


def test_other_keywords():
    with_aux = lambda x: (f(x), x["b"])
    product, aux = hotk.hvp(with_aux, X, V, has_aux=True)
    close(product, known(X, V))
    close(aux, X["b"])
    product, aux = hotk.hvp(with_aux, X, V, has_aux=True, weights=U)
    close(product, weighted(X, V, U))
    close(aux, X["b"])
    swapped = lambda c, x: f(x, c)
    close(hotk.hvp(swapped, 3.0, V, X, argnums=1), known(X, V, 3.0))
    got = hotk.hvp(swapped, 3.0, V, X, argnums=1, weights=U)
    close(got, weighted(X, V, U, 3.0))
    close(hotk.hvp(f, X, V, kwargs={"c": 3.0}, weights=U), weighted(X, V, U, 3.0))
    held = {"w": jnp.zeros(2), "b": V["b"]}
    only = hotk.hvp(f, X, V, where={"w": False, "b": True})
    assert only["sine"]["w"] is None
    close(only["pair"]["b"], known(X, held)["pair"]["b"])


def test_a_function_that_returns_a_vector_and_then_a_scalar():
    x, v = np.array([0.5, 2.0]), np.array([1.0, -1.0])
    total = False
    g = lambda x: jnp.sum(x**3) if total else x**3
    for total in (False, True, False):
        expected = 6 * x * v
        close(hotk.hvp(g, x, v), expected if total else np.diag(expected))


def test_a_loop_and_a_rule_choose_their_modes():
    def loop(x):
        step = lambda c: (c[0] + 1, c[1] * x)
        return jax.lax.while_loop(lambda c: c[0] < 3, step, (0, jnp.ones_like(x)))[1]

    x, v = jnp.array([0.5, 2.0]), jnp.array([1.0, -1.0])
    close(hotk.hvp(loop, x, v), np.diag(6 * np.asarray(x * v)))

    @jax.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, u: (3 * x**2 * u,))
    close(hotk.hvp(cube, x, v), np.diag(6 * np.asarray(x * v)))


@pytest.mark.usefixtures("as_user")
def test_what_is_refused():
    for weights in (1.0, {"pair": jnp.ones(3), "sine": 1.0}):
        with pytest.raises(hotk.StructureError, match="`weights"):
            hotk.hvp(f, X, V, weights=weights)
    with pytest.raises(TypeError, match="no keyword `weights`"):
        hotk.quadratic_form(f, X, V, weights=U)
    z = jnp.array([1j])
    with pytest.raises(hotk.DtypeError, match="complex leaves"):
        hotk.hvp(lambda z: jnp.stack([z[0].real, z[0].imag]), z, z)
    with pytest.raises(hotk.OutputError, match="floating-point numbers"):
        hotk.hvp(lambda x: (x["b"], 3), X, V)


@pytest.mark.usefixtures("as_user")
def test_products_that_do_not_fit_are_refused():
    hotk.set_memory_budget(1000)
    try:
        x = jnp.ones(20)
        with pytest.raises(hotk.TooLargeError, match=r"hvp\(f, x, v\)"):
            hotk.hvp(jnp.sin, x, x)
    finally:
        hotk.set_memory_budget(None)


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("x", [jnp.ones(3), {"a": jnp.ones(3)}], ids=["array", "tree"])
def test_an_operator_is_of_one_number(x):
    H = hotk.HessianOperator(lambda x: jax.tree.leaves(x)[0] ** 3, x)
    calls = (
        lambda: H @ x,
        lambda: H.matrix(),
        lambda: H.solve(x),
        lambda: H.eigh(1),
        lambda: jax.jit(lambda x: H @ x)(x),
    )
    for call in calls:
        with pytest.raises(hotk.OutputError, match="must return one real number"):
            call()
