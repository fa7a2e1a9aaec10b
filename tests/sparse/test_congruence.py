"""Hessians of a loss of a model from the rows of its Jacobian: against dense JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.curvature import GaussNewton, HuberLoss, LeastSquares, SquaredError
from hotk.sparse import _stages
from tests.counting import traces


RNG = np.random.default_rng(0)
CAMERA = RNG.integers(0, 3, 20)
POINT = np.repeat(np.arange(5), 4)
SEEN = jnp.asarray(RNG.normal(size=(20, 2)))
X = {
    "cameras": jnp.asarray(RNG.normal(size=(3, 3))),
    "points": jnp.asarray(RNG.normal(size=(5, 3))),
}


def residuals(x):
    """Return what cameras see of points, less what was seen."""
    c, p = x["cameras"][CAMERA], x["points"][POINT]
    moved = jnp.cross(c, p) + p**2
    return jnp.tanh(moved[:, :2]) * (1 + moved[:, 2:] ** 2) - SEEN.astype(p.dtype)


def coupled(z):
    """Return a loss whose Hessian couples neighboring residuals."""
    return jnp.sum(jnp.log1p(z**2)) + jnp.sum(z[1:, 0] * z[:-1, 1])


LOSSES = {
    "squares": lambda z: jnp.sum(z**2) / 2,
    "robust": lambda z: jnp.sum(jnp.sqrt(1 + z**2)),
    "coupled": coupled,
    "of this library": SquaredError(jnp.ones((20, 2))),
    "Huber": HuberLoss(jnp.zeros((20, 2)), delta=0.5),
}


def by_hand(model, loss, x, extra=lambda z, x: 0.0):
    """Return `K' M K` of the dense derivatives by JAX, the rows of K at the end."""
    flat, unflatten = jax.flatten_util.ravel_pytree(x)
    z = model(x)
    shape, count = z.shape, z.size
    total = lambda both: (
        loss(both[:count].reshape(shape))
        + extra(both[:count].reshape(shape), unflatten(both[count:]))
    )
    J = jax.jacfwd(lambda v: model(unflatten(v)).reshape(-1))(flat)
    K = jnp.concatenate([J, jnp.eye(flat.size)])
    M = jax.hessian(total)(jnp.concatenate([z.reshape(-1), flat]))
    return K.T @ M @ K


@pytest.fixture
def congruent(monkeypatch):
    """Prefer this way, however short a model is, and count its matrices."""
    found = []
    compute = _stages.as_product

    def counted(*args, **kwargs):
        found.append(compute(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(_stages, "as_product", counted)
    monkeypatch.setattr(_stages, "FEW", 0)
    monkeypatch.setattr(_stages, "_AS_LONG", 0.0)
    hotk.clear_cache()
    yield found
    hotk.clear_cache()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", LOSSES)
def test_losses(name, congruent):
    loss = LOSSES[name]
    H = hotk.sparse_ggn(residuals, loss, X)
    assert len(congruent) == 1
    assert H.symmetric
    np.testing.assert_allclose(H.todense(), by_hand(residuals, loss, X), atol=1e-12)
    pattern = hotk.sparsity(GaussNewton(residuals, loss), X)
    assert pattern == H.pattern
    # points are never coupled, and each with the cameras that see it
    if name != "coupled":
        pairs = {(int(c), int(p)) for c, p in zip(CAMERA, POINT, strict=True)}
        assert H.block("points", "cameras").nnz == 9 * len(pairs)
        assert H.block("points", "points").nnz == 9 * 5


@pytest.mark.exhaustive
def test_terms_of_the_point_itself(congruent):
    loss = LOSSES["robust"]
    f = lambda x: 3 * GaussNewton(residuals, loss)(x) + jnp.sum(x["points"] ** 4)
    want = by_hand(
        residuals, lambda z: 3 * loss(z), X, lambda z, x: jnp.sum(x["points"] ** 4)
    )
    np.testing.assert_allclose(hotk.sparse_hessian(f, X).todense(), want, atol=1e-12)
    g = lambda x: GaussNewton(residuals, loss)(x) * x["points"][0, 0] ** 2
    want = by_hand(
        residuals,
        lambda z: 0.0,
        X,
        lambda z, x: loss(z) * x["points"][0, 0] ** 2,
    )
    np.testing.assert_allclose(hotk.sparse_hessian(g, X).todense(), want, atol=1e-11)
    assert len(congruent) == 2


def test_a_point_that_is_changed_before_has_its_second_derivative(congruent):
    # of exp: it is no part of the model, whose second derivative is left out
    loss = LOSSES["squares"]
    f = lambda x: GaussNewton(residuals, loss)(jax.tree.map(jnp.exp, x))
    at = jax.tree.map(jnp.exp, X)
    e = jax.flatten_util.ravel_pytree(at)[0]
    g = jax.flatten_util.ravel_pytree(jax.grad(lambda x: loss(residuals(x)))(at))[0]
    want = jnp.outer(e, e) * by_hand(residuals, loss, at) + jnp.diag(g * e)
    np.testing.assert_allclose(hotk.sparse_hessian(f, X).todense(), want, rtol=1e-9)
    assert not congruent


def test_a_model_that_captures_the_point(congruent):
    # the weights are no part of the point of the model
    r = lambda w, v: w[1:] * v[:-1] - 1.0
    f = lambda x: LeastSquares(functools.partial(r, v=x["v"]))(x["w"])
    x = {"v": jnp.arange(1.0, 5.0), "w": jnp.arange(2.0, 6.0)}
    got = hotk.sparse_hessian(f, x).todense()
    J = jax.jacfwd(lambda w: r(w, x["v"]))(x["w"])
    np.testing.assert_allclose(got[4:, 4:], J.T @ J)
    g = lambda v, w: jnp.sum(r(w, v) ** 2) / 2
    own = jax.hessian(g)(x["v"], x["w"])
    np.testing.assert_allclose(got[:4, :4], own)
    mixed = jax.jacfwd(jax.grad(g), 1)(x["v"], x["w"])
    np.testing.assert_allclose(got[:4, 4:], mixed)
    assert not congruent


@pytest.mark.exhaustive
def test_a_flat_point_and_selected_leaves(congruent):
    flat, unflatten = jax.flatten_util.ravel_pytree(X)
    f = LeastSquares(residuals)
    want = by_hand(residuals, LOSSES["squares"], X)
    H = hotk.sparse_hessian(lambda v: f(unflatten(v)), flat)
    np.testing.assert_allclose(H.todense(), want, atol=1e-12)
    H = hotk.sparse_hessian(f, X, where={"cameras": False, "points": True})
    np.testing.assert_allclose(H.todense(), want[9:, 9:], atol=1e-12)
    assert len(congruent) == 2


@pytest.mark.usefixtures("congruent")
def test_derivatives_of_the_entries():
    """The Gauss-Newton matrix depends on the point, as a product of Jacobians does."""
    weights = jnp.asarray(RNG.normal(size=(24, 24)))

    def by_jax(x):
        J = jax.jacfwd(lambda v: residuals(unflatten(v)).reshape(-1))(x)
        return jnp.sum(weights * (J.T @ J))

    flat, unflatten = jax.flatten_util.ravel_pytree(X)
    f = LeastSquares(residuals)
    got = lambda v: jnp.sum(weights * hotk.sparse_hessian(f, unflatten(v)).todense())
    np.testing.assert_allclose(jax.grad(got)(flat), jax.grad(by_jax)(flat), rtol=1e-9)
    along = jnp.ones_like(flat)
    second = lambda f: jax.jvp(jax.grad(f), (flat,), (along,))[1]
    np.testing.assert_allclose(second(got), second(by_jax), rtol=1e-8)
    step = 1e-5 * along
    slope = (by_jax(flat + step) - by_jax(flat - step)) / 2e-5
    np.testing.assert_allclose(jnp.vdot(jax.grad(got)(flat), along), slope, rtol=1e-7)


@pytest.mark.thinned(2)
@pytest.mark.usefixtures("congruent")
@pytest.mark.parametrize("inside", ["jit", "vmap", "scan", "prepare"])
def test_within_other_transformations(inside):
    f = LeastSquares(residuals)
    values = lambda x: hotk.sparse_hessian(f, x).todense()
    points = [jax.tree.map(lambda a, k=k: (1 + 0.1 * k) * a, X) for k in range(3)]
    want = [by_hand(residuals, LOSSES["squares"], x) for x in points]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *points)
    if inside == "jit":
        got = [jax.jit(values)(x) for x in points]
    elif inside == "vmap":
        got = jax.vmap(values)(stacked)
    elif inside == "scan":
        got = jax.lax.scan(lambda c, x: (c, values(x)), 0, stacked)[1]
    else:
        prepared = hotk.sparse_hessian.prepare(f, X)
        got = [prepared(x).todense() for x in points]
    np.testing.assert_allclose(np.stack(got), np.stack(want), rtol=1e-9, atol=1e-11)


def test_a_mapped_loss_is_symmetric_and_is_left_to_the_algebra(congruent):
    one = GaussNewton(lambda q: q[1:] * q[:-1], LOSSES["squares"])
    x = jnp.arange(1.0, 7.0).reshape(2, 3)
    H = hotk.sparse_hessian(lambda p: jnp.sum(jax.vmap(one)(p)), x)
    J = [np.array([[q[1], q[0], 0], [0, q[2], q[1]]]) for q in np.asarray(x)]
    want = np.zeros((6, 6))
    want[:3, :3], want[3:, 3:] = (j.T @ j for j in J)
    np.testing.assert_allclose(H.todense(), want)
    assert H.symmetric
    assert not congruent


@pytest.mark.exhaustive
def test_rows_of_many_lengths(congruent):
    """So many lengths are left to the algebra, and the numbers are the same."""

    def model(x):
        return jnp.stack([jnp.sum(x[: k + 1]) ** 2 for k in range(30)])

    x = jnp.linspace(0.5, 1.0, 30)
    H = hotk.sparse_ggn(model, LOSSES["squares"], x)
    want = by_hand(model, LOSSES["squares"], x)
    np.testing.assert_allclose(H.todense(), want, rtol=1e-12)
    assert {*congruent} == {None}


@pytest.mark.usefixtures("congruent")
def test_a_rule_of_the_user():
    @jax.custom_vjp
    def doubled(x):  # its derivative is that of 3 x
        return 2 * x

    doubled.defvjp(lambda x: (2 * x, None), lambda _, u: (3 * u,))
    model = lambda x: doubled(x)[1:] * doubled(x)[:-1]
    x = jnp.arange(1.0, 5.0)
    J = np.zeros((3, 4))
    for i in range(3):
        J[i, i], J[i, i + 1] = 6 * x[i + 1], 6 * x[i]
    H = hotk.sparse_ggn(model, LOSSES["squares"], x)
    np.testing.assert_allclose(H.todense(), J.T @ J)


@pytest.mark.usefixtures("congruent")
def test_rows_that_are_constant_and_columns_that_occur_twice():
    def model(x):
        return jnp.stack([jnp.ones(()), x[0] * x[0], x[1] + x[2] * x[1], x[0] * x[0]])

    x = jnp.array([2.0, 3.0, 5.0, 7.0])
    H = hotk.sparse_ggn(model, LOSSES["squares"], x)
    J = np.array([[0, 0, 0, 0], [4, 0, 0, 0], [0, 6, 3, 0], [4, 0, 0, 0]])
    np.testing.assert_allclose(H.todense(), J.T @ J)
    assert H.nnz == 5


@pytest.mark.usefixtures("congruent")
def test_single_precision_keeps_its_dtype():
    x = jax.tree.map(lambda a: a.astype(jnp.float32), X)
    H = hotk.sparse_ggn(residuals, LOSSES["robust"], x)
    assert H.dtype == jnp.float32
    want = by_hand(residuals, LOSSES["robust"], X)
    np.testing.assert_allclose(H.todense(), want, rtol=2e-5, atol=2e-5)


def test_indices_of_numpy_in_a_model_stay_leaves():
    """JAX computes with them where the model is traced, as it does with a constant."""

    def make(camera, point):
        def model(x):
            return x["cameras"][camera] * x["points"][point]

        return LeastSquares(model)

    hotk.clear_cache()
    for k in range(3):
        camera, point = np.roll(CAMERA, k), np.roll(POINT, -k)
        got = hotk.hvp(make(camera, point), X, X)
        z = X["cameras"][camera] * X["points"][point]
        want = np.zeros((3, 3))
        # J v = 2 z, and the derivative by a camera is the point that it sees
        np.add.at(want, camera, 2 * np.asarray(z * X["points"][point]))
        np.testing.assert_allclose(got["cameras"], want, rtol=1e-12)
    assert hotk.cache_info().traces == 1
    with traces() as count:
        hotk.hvp(make(CAMERA[::-1].copy(), POINT), X, X)
    assert count() == 0
