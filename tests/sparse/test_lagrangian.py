"""An objective and its constraints with all their derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles, traces
from tests.helpers import close


def hanging(x):
    """Potential energy, and by how much links are too long: derivatives by hand."""
    links = jnp.sum(jnp.diff(x, axis=0) ** 2, axis=1)
    return jnp.sum(x[:, 1] ** 3), {"links": links - 1, "end": x[0, :1] * x[-1, 1]}


def by_hand(x, weight, multipliers):
    """Gradient, Jacobian (rows `end`, then `links`) and Hessian of the Lagrangian."""
    n = len(x)
    gradient, jacobian = np.zeros((n, 2)), np.zeros((n, n, 2))
    hessian = np.zeros((n, 2, n, 2))
    gradient[:, 1] = 3 * x[:, 1] ** 2
    jacobian[0, 0, 0], jacobian[0, -1, 1] = x[-1, 1], x[0, 0]
    hessian[0, 0, -1, 1] = hessian[-1, 1, 0, 0] = multipliers["end"][0]
    for i in range(n):
        hessian[i, 1, i, 1] += weight * 6 * x[i, 1]
    for k in range(n - 1):
        jacobian[k + 1, k + 1] = 2 * (x[k + 1] - x[k])
        jacobian[k + 1, k] = -jacobian[k + 1, k + 1]
        for i, j, sign in (
            (k, k, 1),
            (k + 1, k + 1, 1),
            (k, k + 1, -1),
            (k + 1, k, -1),
        ):
            for c in range(2):
                hessian[i, c, j, c] += sign * 2 * multipliers["links"][k]
    return gradient, jacobian.reshape(n, -1), hessian.reshape(2 * n, 2 * n)


def case(n=6, dtype=np.float64):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2)).astype(dtype)
    return x, {"links": rng.normal(size=n - 1).astype(dtype), "end": x[1, :1]}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("weight", [0.3, 0.0])
def test_values_and_derivatives(dtype, weight):
    x, multipliers = case(dtype=dtype)
    with jax.enable_x64(dtype == np.float64):
        (y, g), gradient, J, H = hotk.sparse_lagrangian(
            hanging, jnp.asarray(x), (weight, multipliers)
        )
        parts = by_hand(x.astype(np.float64), weight, multipliers)
        tol = 1e-5 if dtype == np.float32 else 1e-12
        for got, exact in zip((gradient, J.todense(), H.todense()), parts, strict=True):
            assert got.dtype == dtype
            np.testing.assert_allclose(got, exact, rtol=tol, atol=tol)
        np.testing.assert_allclose(y, np.sum(x[:, 1].astype(float) ** 3), rtol=tol)
        np.testing.assert_allclose(g["end"], x[0, :1] * x[-1, 1], rtol=tol)
    # an entry for each pair of coordinates that a term has, once
    assert (J.shape, J.nnz, H.shape) == ((6, 12), 22, (12, 12))
    assert H.nnz == 12 + 2 * 2 * 5 + 2


def test_a_minimum_of_hock_and_schittkowski():
    """Newton's method for the conditions of a minimum of problem 71."""
    f = lambda x: (
        x[0] * x[3] * (x[0] + x[1] + x[2]) + x[2],
        jnp.stack([jnp.prod(x) - 25, x @ x - 40, x[0] - 1]),  # all hold with equality
    )
    with jax.enable_x64(True):
        x, multipliers = jnp.array([1.0, 4.7, 3.9, 1.4]), jnp.array([-0.5, 0.2, -1])
        for _ in range(12):
            (y, g), gradient, J, H = hotk.sparse_lagrangian(f, x, (1.0, multipliers))
            J = J.todense()
            conditions = jnp.block([[H.todense(), J.T], [J, jnp.zeros((3, 3))]])
            step = jnp.linalg.solve(conditions, -jnp.concatenate([gradient, g]))
            x, multipliers = x + step[:4], step[4:]
        solution = [1.0, 4.74299963, 3.82114998, 1.37940829]
        np.testing.assert_allclose(x, solution, rtol=1e-8)
        assert float(y) == pytest.approx(17.0140173, rel=1e-8)


def test_other_multipliers_weights_and_closures_are_neither_traced_nor_compiled():
    x, multipliers = case(dtype=np.float32)
    make = lambda scale: lambda x: (scale * hanging(x)[0], hanging(x)[1])
    ask = lambda scale, weight: hotk.sparse_lagrangian(
        make(jnp.asarray(scale)), x, (weight, multipliers)
    )
    ask(1.0, 0.5)
    with traces() as traced, compiles() as compiled:
        found = ask(2.0, 0.25)
    assert traced() == compiled() == 0
    exact = by_hand(x, 0.5, multipliers)[2]
    np.testing.assert_allclose(found[3].todense(), exact, rtol=1e-5, atol=1e-5)


def test_prepared_under_jit_and_derived_once_more():
    x, multipliers = case(dtype=np.float32)
    u = (0.5, multipliers)
    prepared = hotk.sparse_lagrangian.prepare(hanging, x, u)
    exact = by_hand(2 * x, 0.5, multipliers)
    _, _, J, _ = prepared(2 * x, u)
    np.testing.assert_allclose(J.todense(), exact[1], rtol=1e-5, atol=1e-5)
    inside = jax.jit(lambda x: hotk.sparse_lagrangian(hanging, x, u)[3].todense())
    np.testing.assert_allclose(inside(2 * x), exact[2], rtol=1e-5, atol=1e-5)
    # d/dx of the sum of the Hessian: the links cancel, 6 for each height
    total = lambda x: jnp.sum(hotk.sparse_lagrangian(hanging, x, u)[3].diagonal())
    close(jax.grad(total)(jnp.asarray(x)), np.tile(np.float32([0, 3]), (6, 1)))
    both = jax.vmap(lambda x: hotk.sparse_lagrangian(hanging, x, u)[1])
    close(both(jnp.stack([x, 2 * x]))[1], exact[0].astype("f"))


def test_trees_parts_and_auxiliary_outputs():
    def f(p, c):
        return (c * jnp.sum(p["u"] ** 2), p["u"][1:] * p["u"][:-1]), p["s"]

    p = {"u": jnp.arange(1.0, 4.0), "s": jnp.asarray(3.0)}
    (y, aux), gradient, J, H = hotk.sparse_lagrangian(
        f,
        p,
        (1.0, jnp.array([2.0, 5.0])),
        2.0,
        has_aux=True,
        where={"u": True, "s": False},
    )
    close(y[1], np.array([2.0, 6.0]))
    close(aux, p["s"])
    close(gradient["u"], np.array([4.0, 8.0, 12.0]))
    assert gradient["s"] is None
    close(J.todense(), np.array([[2.0, 1, 0], [0, 3, 2]]))
    close(H.todense(), np.array([[4.0, 2, 0], [2, 4, 5], [0, 5, 4]]))


def test_without_constraints():
    (_, g), gradient, J, H = hotk.sparse_lagrangian(
        lambda x: (jnp.sum(x**3), ()), jnp.ones(3), (2.0, ())
    )
    assert g == ()
    assert J.shape == (0, 3)
    close(gradient, 3 * np.ones(3))
    close(H.todense(), 12 * np.eye(3))


@pytest.mark.parametrize(
    ("f", "got"),
    [
        (lambda x: jnp.sum(x), "f64[]"),
        (lambda x: (x, x), "tuple of f64[3], f64[3]"),
        (lambda x: [jnp.sum(x), x], "list of"),
        (lambda x: (jnp.sum(x), jax.lax.complex(x, x)), "c128[3]"),
        (lambda x: (jnp.sum(x), x > 0), "bool[3]"),
        (lambda x: (jnp.sum(x), None), "tuple of f64[]"),
        (lambda x: (jnp.sum(x), x, x), "tuple of f64[], f64[3], f64[3]"),
    ],
)
def test_what_is_no_objective_with_constraints_is_refused(f, got):
    with pytest.raises(hotk.OutputError, match="objective and its constraints") as info:
        hotk.sparse_lagrangian(f, jnp.ones(3), (1.0, jnp.ones(3)))
    assert got in str(info.value)


def test_multipliers_that_do_not_fit_say_which():
    x, multipliers = case(dtype=np.float32)
    short = multipliers | {"links": multipliers["links"][:2]}
    with pytest.raises(hotk.StructureError, match=r"u\[1\]\['links'\]"):
        hotk.sparse_lagrangian(hanging, x, (1.0, short))
    with pytest.raises(hotk.StructureError, match="structure"):
        hotk.sparse_lagrangian(hanging, x, (1.0, {"links": multipliers["links"]}))
    with pytest.raises(hotk.StructureError, match="structure"):
        hotk.sparse_lagrangian(hanging, x, multipliers)
