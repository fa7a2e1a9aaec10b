"""`scaling=`: what regions and dampings are measured with, by formulas in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk import optim
from tests.counting import compiles


SIZE = {"a": jnp.array([2.0, 0.25]), "b": jnp.array(8.0)}
INVERSE = np.diag([0.5, 4.0, 0.125])
X = {"a": jnp.array([0.3, -0.7]), "b": jnp.array(1.1)}
A = np.random.default_rng(3).normal(size=(5, 3))
B = np.random.default_rng(4).normal(size=5)


def flat(tree):
    return np.concatenate([np.ravel(tree["a"]), np.ravel(tree["b"])])


def residuals(p):
    x = jnp.concatenate([p["a"], p["b"][None]])
    return jnp.sin(jnp.asarray(A) @ x) - jnp.asarray(B)


def parts():
    """Return the Jacobian and the gradient by hand."""
    x = flat(X)
    J = np.cos(A @ x)[:, None] * A
    return J, J.T @ (np.sin(A @ x) - B)


def one_step(transform, f, x=X, gradient=None, **extra):
    gradient = jax.grad(f)(x) if gradient is None else gradient
    step, state = transform.update(gradient, transform.init(x), x, value_fn=f, **extra)
    return step, state


@pytest.mark.parametrize(
    ("scaling", "D"), [(None, np.eye(3)), (SIZE, INVERSE), (3.0, np.eye(3) / 3)]
)
def test_the_shift_of_newton_is_that_of_the_formula(scaling, D):
    H = A.T @ A
    f = lambda p: jnp.sum((jnp.asarray(A) @ hotk.linop.space.flattened(p)) ** 2) / 2
    transform = optim.newton(1.0, damping=0.5, scaling=scaling)
    step, _ = one_step(transform, f)
    expected = -np.linalg.solve(H + 0.5 * D @ D, H @ flat(X))
    np.testing.assert_allclose(flat(step), expected, rtol=1e-9)


def test_by_the_hessian_the_shift_is_relative():
    H = A.T @ A
    f = lambda p: jnp.sum((jnp.asarray(A) @ hotk.linop.space.flattened(p)) ** 2) / 2
    step, state = one_step(optim.newton(1.0, damping=0.5), f)
    expected = -np.linalg.solve(H + 0.5 * np.diag(np.diag(H)), H @ flat(X))
    np.testing.assert_allclose(flat(step), expected, rtol=1e-9)
    scale = jax.tree.leaves(optax_state(state, "scale"))[0]
    np.testing.assert_allclose(scale, np.sqrt(np.diag(H)), rtol=1e-9)


def optax_state(state, field):
    found = [
        getattr(node, field)
        for node in jax.tree.leaves(state, is_leaf=lambda n: hasattr(n, field))
        if hasattr(node, field)
    ]
    return found[0]


@pytest.mark.parametrize("by", ["factors", "iteration"])
@pytest.mark.parametrize("scaling", [None, SIZE])
def test_the_damping_of_levenberg_and_marquardt_is_that_of_the_formula(scaling, by):
    J, g = parts()
    options = {} if by == "factors" else {"linear_solver": "cg", "max_tol": 1e-12}
    transform = optim.levenberg_marquardt(
        damping=0.1, scaling=scaling, max_acceleration=0.0, **options
    )
    f = hotk.curvature.LeastSquares(residuals)
    step, state = one_step(transform, f)
    solver = str(optax_state(state, "solver"))
    assert ("factor" in solver) == (by == "factors")
    damping = float(optax_state(state, "damping"))
    assert damping > 0
    D = np.eye(3) if scaling is None else INVERSE
    expected = -np.linalg.solve(J.T @ J + damping * D @ D, g)
    np.testing.assert_allclose(flat(step), expected, rtol=1e-8)


def test_the_damping_of_a_natural_gradient_is_that_of_the_formula():
    J, g = parts()
    f = hotk.curvature.Fisher(
        residuals, hotk.curvature.SquaredError(jnp.zeros(5), reduction="sum")
    )
    F = J.T @ J  # of half the sum of squares
    transform = optim.natural_gradient(1.0, damping=0.3, tol=1e-12, scaling=SIZE)
    step, _ = one_step(transform, f, gradient=jax.grad(f)(X))
    factor = flat(jax.grad(f)(X))[0] / g[0]  # the unit of the loss
    expected = -np.linalg.solve(factor * F + 0.3 * INVERSE @ INVERSE, factor * g)
    np.testing.assert_allclose(flat(step), expected, rtol=1e-8)


@pytest.mark.parametrize("subproblem", ["steihaug", "exact"])
def test_a_region_is_round_in_the_sizes(subproblem):
    transform = optim.trust_region(radius=0.01, subproblem=subproblem, scaling=SIZE)
    f = lambda p: jnp.sum(residuals(p) ** 2) / 2
    step, _ = one_step(transform, f)
    assert np.linalg.norm(INVERSE @ flat(step)) == pytest.approx(0.01, rel=1e-6)
    g = parts()[1]
    # of so small a region the step goes along the gradient there
    along = -np.linalg.solve(INVERSE @ INVERSE, g)
    cosine = (INVERSE @ along) @ (INVERSE @ flat(step))
    cosine /= np.linalg.norm(INVERSE @ along) * 0.01
    assert cosine > 0.999


@pytest.mark.parametrize(
    "method", ["newton", "trust_region", "cubic_newton", "levenberg_marquardt"]
)
def test_sizes_that_change_compile_nothing(method):
    make = getattr(optim, method)
    f = hotk.curvature.LeastSquares(residuals)
    one_step(make(scaling=SIZE), f)
    others = {"a": jnp.array([5.0, 3.0]), "b": jnp.array(0.1)}
    with compiles() as count:
        one_step(make(scaling=others), f)
    assert count() == 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["newton", "trust_region", "cubic_newton"])
def test_a_leaf_without_a_gradient_is_not_measured(method):
    """As if the function had no such parameter, and what was known of it stays."""
    f = lambda p: jnp.sum(residuals(p) ** 2) / 2
    transform = getattr(optim, method)(1.0)
    gradient = jax.grad(f)(X)
    step, state = transform.update(
        {"a": gradient["a"], "b": None}, transform.init(X), X, value_fn=f
    )
    assert step["b"] is None
    alone = lambda a: f({"a": a, "b": X["b"]})
    expected, _ = one_step(transform, alone, X["a"])
    np.testing.assert_allclose(step["a"], expected, rtol=1e-6)
    scale = optax_state(state, "scale")
    assert scale.shape == (3,)
    H = np.asarray(jax.hessian(alone)(X["a"]))
    np.testing.assert_allclose(scale, [*np.sqrt(abs(np.diag(H))), 0], rtol=1e-6)
    transform.update(gradient, state, X, value_fn=f)
    with pytest.raises(hotk.StructureError, match="of the 3 parameters"):
        transform.update(gradient, transform.init({"a": X["a"]}), X, value_fn=f)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: optim.newton(scaling="jacobian"), ValueError, "'hessian', None"),
        (lambda: optim.natural_gradient(0.1, scaling="fisher"), ValueError, "of None"),
        (
            lambda: optim.levenberg_marquardt(scaling=2.0, bounds=(0, 1)).init(X),
            ValueError,
            "does not go with bounds",
        ),
        (
            lambda: optim.levenberg_marquardt(scaling=2.0, system="samples"),
            ValueError,
            "system='samples'` does not go with sizes",
        ),
        (
            lambda: optim.trust_region(scaling=2.0, preconditioner=lambda A, key: A),
            ValueError,
            "preconditioner=` does not go with sizes",
        ),
        (lambda: optim.newton(scaling=-1.0).init(X), ValueError, "not positive"),
        (lambda: optim.newton(scaling={"a": 1.0}).init(X), hotk.StructureError, "tree"),
        (
            lambda: optim.cubic_newton(scaling={"a": jnp.ones(3), "b": 1.0}).init(X),
            hotk.StructureError,
            r"size of `params\['a'\]` has another shape",
        ),
        (lambda: optim.newton(scaling=1j).init(X), TypeError, "not a real number"),
    ],
)
def test_a_scaling_that_is_none_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()
