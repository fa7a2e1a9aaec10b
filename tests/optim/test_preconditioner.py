"""Optimizers with a preconditioner: the same steps, from fewer products."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles
from tests.helpers import close


KEY = jax.random.key(0)
# Two leaves, so that steps could be flat; a condition of 1e6.
X = jax.random.normal(KEY, (60, 20)) * jnp.logspace(0, -3, 20)[None]
Y = (X[:, 0] > 0.1).astype(float)
LOSS = hotk.curvature.SigmoidCrossEntropy(Y)
P = {"w": jnp.zeros((10, 2)), "c": jnp.zeros(1)}
NYSTROM = functools.partial(hotk.linop.nystrom, rank=12)


def model(p):
    return X @ p["w"].reshape(-1) + p["c"]


def objective(p):
    return LOSS(model(p))


def flat(p):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(p)])


def jacobi(A, key):
    del key
    return hotk.Diagonal(A.diagonal())


def scaled(scale):
    return lambda A, key: hotk.Diagonal(jax.tree.map(lambda d: scale * d, A.diagonal()))


def make(name, **options):
    if name == "newton_cg":
        return hotk.optim.scale_by_newton_cg(damping=1e-6, max_tol=1e-10, **options)
    if name == "natural_gradient":
        return hotk.optim.scale_by_natural_gradient(damping=1e-6, tol=1e-10, **options)
    return hotk.optim.scale_by_levenberg_marquardt(
        damping=1e-6, max_tol=1e-10, **options
    )


OF = {
    "newton_cg": objective,
    "natural_gradient": hotk.curvature.Fisher(model, LOSS),
    "levenberg_marquardt": hotk.curvature.GaussNewton(model, LOSS),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OF)
@pytest.mark.parametrize("preconditioner", [NYSTROM, jacobi])
def test_steps_solve_the_same_system_from_fewer_products(name, preconditioner):
    g = jax.grad(objective)(P)
    plain, other = make(name), make(name, preconditioner=preconditioner)
    state = plain.update(g, plain.init(P), P, value_fn=OF[name])[1]
    near, after = other.update(g, other.init(P), P, value_fn=OF[name])
    # a linear model: all three matrices are the Hessian
    tree = jax.tree.structure(P)
    whole = lambda v: tree.unflatten([v[:1], v[1:].reshape(10, 2)])
    hessian = np.asarray(jax.hessian(lambda v: objective(whole(v)))(jnp.zeros(21)))
    damping = getattr(after, "damping", 1e-6)
    expected = np.linalg.solve(hessian + float(damping) * np.eye(21), flat(g))
    close(flat(near), expected, rtol=1e-4, atol=1e-5)
    assert state.preconditioner is None
    assert int(after.preconditioner.age) == 1
    assert int(after.iterations) < 0.9 * int(state.iterations)


def test_one_operator_serves_several_updates():
    transform = make("newton_cg", preconditioner=NYSTROM, update_every=3)
    state, p, seen = transform.init(P), P, []
    for _ in range(4):
        g = jax.grad(objective)(p)
        step, state = transform.update(g, state, p, value_fn=objective)
        p = jax.tree.map(lambda a, s: a - 0.5 * s, p, step)
        seen.append(np.asarray(state.preconditioner.arrays[1]))
    assert (seen[0] == seen[1]).all()
    assert (seen[1] == seen[2]).all()
    assert (seen[2] != seen[3]).any()


def test_a_preconditioner_that_is_made_anew_compiles_nothing():
    g = jax.grad(objective)(P)
    for k in range(3):
        with compiles() as counted:
            scale = jnp.asarray(1.0 + k)
            near = scaled(scale)
            transform = make("newton_cg", preconditioner=near)
            transform.update(g, transform.init(P), P, value_fn=objective)
    assert counted() == 0


def ridge(p):
    return objective(p) + 1e-3 * sum(jnp.sum(a**2) for a in jax.tree.leaves(p))


@pytest.mark.exhaustive
def test_it_runs_in_the_loop_and_with_a_filter():
    transform = hotk.optim.newton_cg(preconditioner=NYSTROM)
    found = hotk.optim.minimize(ridge, P, transform, tol=1e-8)
    plain = hotk.optim.minimize(ridge, P, hotk.optim.newton_cg(), tol=1e-8)
    close(flat(found.x), flat(plain.x), rtol=1e-5, atol=1e-6)
    some = hotk.optim.newton_cg(preconditioner=NYSTROM, where=lambda a: a.ndim == 2)
    found = hotk.optim.minimize(ridge, P, some, max_steps=3)
    assert not found.x["c"].any()
    assert found.x["w"].any()


SCALES = jnp.array([1.0, 30.0, 0.2, 5.0])


@pytest.mark.parametrize("radius", [None, 0.3])
def test_a_region_of_a_preconditioner_is_a_ball_in_other_coordinates(radius):
    """Steps are those of the plain method on `f(y / sqrt(d))`, until they get short."""
    target = jnp.array([3.0, -1.0, 2.0, 1.0])
    f = lambda x: jnp.sum(jnp.cosh(x - target)) + x[0] * x[1] - (x[2] * x[3]) ** 2 / 9
    root = jnp.sqrt(SCALES)
    near = lambda A, key: hotk.Diagonal(SCALES)
    options = {"max_tol": 1e-10, "radius": radius}
    ours = hotk.optim.trust_region(preconditioner=near, **options)
    plain = hotk.optim.trust_region(subproblem="steihaug", **options)
    h = lambda y: f(y / root)
    x, y = jnp.zeros(4), jnp.zeros(4)
    a, b = ours.init(x), plain.init(y)
    outcomes = []
    for _ in range(4):
        s, a = ours.update(jax.grad(f)(x), a, x, value_fn=f)
        t, b = plain.update(jax.grad(h)(y), b, y, value_fn=h)
        close(s, t / root, rtol=1e-9)
        close(a[0].control, b[0].control, rtol=1e-9)
        x, y = x + s, y + t
        outcomes.append(float(jnp.linalg.norm(t) / b[0].control))
    assert min(outcomes) < 1.01  # the boundary of a region was reached


@pytest.mark.exhaustive
def test_a_trust_region_takes_fewer_products_with_a_preconditioner():
    transform = hotk.optim.trust_region(preconditioner=NYSTROM, max_tol=1e-6)
    plain = hotk.optim.trust_region(subproblem="steihaug", max_tol=1e-6)
    found = hotk.optim.minimize(ridge, P, transform, tol=1e-8, max_steps=100)
    other = hotk.optim.minimize(ridge, P, plain, tol=1e-8, max_steps=100)
    close(flat(found.x), flat(other.x), rtol=1e-5, atol=1e-6)
    blocks = lambda A, key: hotk.linop.LeafBlocks.of(A)
    f = lambda p: ridge(p) + jnp.sum((p["w"] ** 2 - 1.0) ** 2)
    start = jax.tree.map(lambda a: a + 0.1, P)
    transform = hotk.optim.trust_region(preconditioner=blocks, update_every=1)
    found = hotk.optim.minimize(f, start, transform, tol=1e-8, max_steps=100)
    assert found.converged
    assert float(found.smallest_curvature) < 0


@pytest.mark.parametrize("kept", ["dict", "numpy", "attribute"])
def test_what_a_preconditioner_captured_is_read_in_each_update(kept):
    """One preconditioned step is alpha M^-1 g, with the M of now."""
    D, ones = np.array([1.0, 10.0, 100.0]), np.ones(3)
    f = lambda x: jnp.sum(jnp.asarray(D) * x**2) / 2
    held = {"dict": {"m": ones}, "numpy": ones.copy()}.get(kept)
    if kept == "attribute":
        held = types.SimpleNamespace(m=jnp.ones(3))

    def entries():
        if kept == "numpy":
            return held
        return held["m"] if kept == "dict" else held.m

    near = lambda A, key: hotk.Diagonal(jnp.asarray(entries()))
    transform = hotk.optim.scale_by_newton_cg(
        preconditioner=near, max_steps=1, max_tol=1e-9, update_every=1, damping=0.0
    )
    x, state = jnp.ones(3), transform.init(jnp.ones(3))
    for m in (ones, np.array([1.0, 6.0, 10.0]), np.array([3.0, 5.0, 70.0])):
        if kept == "numpy":
            held[:] = m
        elif kept == "dict":
            held["m"] = m
        else:
            held.m = jnp.asarray(m)
        with compiles() as counted:
            step, state = transform.update(jax.grad(f)(x), state, x, value_fn=f)
        z = D / m
        close(np.asarray(step), (D @ z) / (D @ (z * z)) * z, rtol=1e-9)
    if kept != "dict":  # another dict of arrays of NumPy is other static data
        assert counted() == 0


def test_what_is_no_function_is_refused():
    with pytest.raises(TypeError, match="a function of an operator"):
        hotk.optim.newton_cg(preconditioner=hotk.Diagonal(jnp.ones(2)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="update_every"):
        hotk.optim.newton_cg(preconditioner=NYSTROM, update_every=0)
    for choice in ({"system": "samples"}, {"linear_solver": "sparse"}):
        with pytest.raises(ValueError, match="by factors"):
            make("levenberg_marquardt", preconditioner=NYSTROM, **choice)
    with pytest.raises(ValueError, match="'exact' solves by factors"):
        hotk.optim.trust_region(preconditioner=NYSTROM, subproblem="exact")
    transform = make("newton_cg", preconditioner=NYSTROM)
    state = transform.init({"w": jnp.zeros((11, 2)), "c": jnp.zeros(1)})
    with pytest.raises(hotk.StructureError, match="other parameters"):
        transform.update(jax.grad(objective)(P), state, P, value_fn=objective)


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda A, key: hotk.linop.LeafBlocks.of(A),
        lambda A, key: hotk.linop.nystrom(A, 3, key),
    ],
    ids=["LeafBlocks", "nystrom"],
)
def test_entries_that_nothing_uses_and_empty_leaves_are_no_obstacle(make):
    f = lambda p: jnp.sum(jnp.cosh(p["x"][:4] - 1)) + jnp.sum(p["none"])
    p = {"x": jnp.zeros(5), "none": jnp.zeros(0)}
    transform = hotk.optim.newton_cg(preconditioner=make)
    found = hotk.optim.minimize(f, p, transform, max_steps=30)
    assert found.converged
    close(found.x["x"], np.array([1.0, 1, 1, 1, 0]), rtol=1e-6)


def test_blocks_that_are_not_definite_have_no_inverse():
    H = hotk.HessianOperator(lambda x: x[0] ** 2 - x[1] ** 2, jnp.ones(3))
    blocks = hotk.linop.LeafBlocks.of(H)
    with pytest.raises(hotk.NotPositiveDefiniteError, match="the eigenvalue -2"):
        blocks.inverse()
    close(blocks.inverse(3.0) @ jnp.ones(3), np.array([1 / 5, 1, 1 / 3]), rtol=1e-12)


def test_products_in_blocks_with_an_empty_leaf():
    p = {"a": jnp.zeros(5), "none": jnp.zeros(0)}
    f = lambda p: jnp.sum(p["a"] ** 2) + jnp.sum(p["none"])
    v = {"a": jnp.ones((3, 5)), "none": jnp.zeros((3, 0))}
    found = hotk.HessianOperator(f, p).many(v, 2)
    close(found["a"], 2 * np.ones((3, 5)))
    assert found["none"].shape == (3, 0)
