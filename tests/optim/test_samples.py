"""Gauss-Newton steps in the space of the samples, against dense solutions by NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hotk
from hotk.optim import LinearSolver
from tests.counting import compiles
from tests.helpers import close


X = jax.random.normal(jax.random.key(0), (6, 3))
Y = jnp.arange(6) % 3
# A least-squares solution with more parameters than residuals.
P = {
    "a": jax.random.normal(jax.random.key(1), (3, 8)),
    "b": jax.random.normal(jax.random.key(2), (8, 3)),
}
CLASSES = hotk.curvature.SoftmaxCrossEntropy(Y)


def logits(p, x):
    return jnp.tanh(x @ p["a"]) @ p["b"]


def residual(p, x):
    return jnp.sum(logits(p, x)) - 1.0


def flat(p):
    return np.concatenate([np.ravel(a) for a in jax.tree.leaves(p)])


def jacobian(f, p):
    rows = jax.jacobian(f)(p)
    size = jax.eval_shape(f, p).size
    return np.concatenate(
        [np.asarray(a).reshape(size, -1) for a in jax.tree.leaves(rows)], axis=1
    )


def residuals(p):
    return jax.vmap(lambda x: residual(p, x))(X)


def half(p):
    return jnp.sum(residuals(p) ** 2) / 2


def lm(**options):
    return hotk.optim.scale_by_levenberg_marquardt(
        system="samples", max_acceleration=0.0, **options
    )


def solver_of(state):
    return LinearSolver[state.solver]


@pytest.mark.parametrize("damping", [1e-1, 1e-9])
def test_a_step_solves_the_damped_system_of_the_parameters(damping):
    j, r = jacobian(residuals, P), np.asarray(residuals(P))
    g = j.T @ r
    transform = lm(damping=damping, accept=-1e9)
    step, state = transform.update(
        jax.grad(half)(P), transform.init(P), P, residual_fn=residual, examples=X
    )
    # by singular values, as the matrix of the parameters loses half of the digits
    left, sizes, right = np.linalg.svd(j, full_matrices=False)
    expected = right.T @ (sizes / (sizes**2 + float(state.damping)) * (left.T @ r))
    close(flat(step), expected, rtol=1e-6, atol=1e-9)
    assert solver_of(state) == "by factors in the space of the samples"
    model = g @ -expected + expected @ j.T @ j @ expected / 2
    close(state.predicted, -model, rtol=1e-6)


def test_another_gradient_than_that_of_the_residuals_is_solved_for_as_well():
    """As that of a loss with weight decay: rows cannot tell all of it."""
    j = jacobian(residuals, P)
    other = jax.tree.map(lambda a: 0.3 * a, P)
    g = jax.tree.map(jnp.add, jax.grad(half)(P), other)
    transform = lm(damping=0.1, accept=-1e9)
    step, state = transform.update(
        g, transform.init(P), P, residual_fn=residual, examples=X
    )
    matrix = j.T @ j + float(state.damping) * np.eye(j.shape[1])
    close(flat(step), np.linalg.solve(matrix, flat(g)), rtol=1e-8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("samples", [None, 400])
def test_natural_gradients_agree_with_the_dense_fisher_matrix(samples):
    batch = lambda p: jax.vmap(lambda x: logits(p, x))(X)
    g = jax.grad(lambda p: CLASSES(batch(p)))(P)
    j = jacobian(batch, P).reshape(len(X), 3, -1)
    q = np.asarray(jax.nn.softmax(batch(P)))
    blocks = [np.diag(p) - np.outer(p, p) for p in q]
    fisher = sum(a.T @ h @ a for a, h in zip(j, blocks, strict=True)) / len(X)
    expected = np.linalg.solve(fisher + 0.1 * np.eye(len(fisher)), flat(g))
    options = {"damping": 0.1, "samples": samples}
    transform = hotk.optim.scale_by_natural_gradient(system="samples", **options)
    step, state = transform.update(
        g, transform.init(P), P, model_fn=logits, loss_fn=CLASSES, examples=X
    )
    rough = samples is not None
    close(flat(step), expected, rtol=0.2 if rough else 1e-10, atol=0.1 * rough)
    assert state.residual < 1e-10
    by_products = hotk.optim.scale_by_natural_gradient(
        system="parameters", tol=1e-12, **options
    )
    same, _ = by_products.update(
        g, by_products.init(P), P, model_fn=logits, loss_fn=CLASSES, examples=X
    )
    close(flat(step), flat(same), rtol=1e-8)


@pytest.mark.exhaustive
def test_single_precision_does_not_cancel():
    """The form (g - A'c) / damping would lose all digits at this damping."""
    narrow = lambda tree: jax.tree.map(lambda a: a.astype(jnp.float32), tree)
    j, r = jacobian(residuals, P), np.asarray(residuals(P))
    left, sizes, right = np.linalg.svd(j, full_matrices=False)
    damping = 1e-5 * sizes[0] ** 2
    expected = right.T @ (sizes / (sizes**2 + damping) * (left.T @ r))
    p, examples = narrow(P), narrow(X)
    f = hotk.curvature.Fisher(
        hotk.curvature.PerExample(residual, examples),
        hotk.curvature.SquaredError(jnp.zeros(len(X), jnp.float32), reduction="sum"),
    )
    transform = hotk.optim.scale_by_natural_gradient(damping=damping, system="samples")
    step, _ = transform.update(jax.grad(f)(p), transform.init(p), p, value_fn=f)
    assert step["a"].dtype == jnp.float32
    error = np.linalg.norm(flat(step) - expected) / np.linalg.norm(expected)
    assert error < 3e-3, error


def test_a_damping_that_is_too_small_grows():
    twice = jnp.concatenate([X, X])  # a singular Gram matrix
    loss = hotk.curvature.SquaredError(jnp.zeros(12), reduction="sum")
    transform = hotk.optim.scale_by_natural_gradient(damping=0.0, system="samples")
    g = jax.grad(half)(P)
    step, state = transform.update(
        g, transform.init(P), P, model_fn=residual, loss_fn=loss, examples=twice
    )
    assert hotk.optim.Outcome[state.outcome] == "the step was taken"
    assert np.isfinite(flat(step)).all()
    assert state.curvature > 0


@pytest.mark.exhaustive
def test_several_kinds_of_residuals_filters_and_flat_steps():
    """All take the same steps: of the leaves that move."""
    parts = (residual, lambda p, x: 0.1 * jnp.sum(logits(p, x) ** 2))
    f = hotk.curvature.LeastSquares(parts, (X, X[:2]))
    plain = lambda p: (
        (
            jnp.sum(residuals(p) ** 2)
            + jnp.sum(jax.vmap(lambda x: parts[1](p, x))(X[:2]) ** 2)
        )
        / 2
    )
    close(f(P), plain(P))
    for where in (None, lambda leaf: leaf.shape == (8, 3)):
        transform = hotk.optim.levenberg_marquardt(system="samples", where=where)
        found = hotk.optim.minimize(f, P, transform, max_steps=3)
        p, state = P, transform.init(P)
        for _ in range(3):
            step, state = transform.update(
                jax.grad(plain)(p), state, p, residual_fn=parts, examples=(X, X[:2])
            )
            p = optax.apply_updates(p, step)
        close(flat(found.x), flat(p), rtol=1e-6)
        moved = [bool(jnp.any(found.x[k] != P[k])) for k in "ab"]
        assert moved == [where is None, True]


def test_new_examples_compile_nothing():
    transform = hotk.optim.levenberg_marquardt(system="samples")
    state = transform.init(P)
    for k in range(3):
        with compiles() as counted:
            shifted = X + 0.1 * k
            g = jax.grad(half)(P)
            transform.update(g, state, P, residual_fn=residual, examples=shifted)
    assert counted() == 0


@pytest.mark.parametrize(("rows", "chosen"), [(X, "samples"), (None, "parameters")])
def test_auto_counts(rows, chosen):
    """Few residuals go by samples; more of them than parameters never."""
    examples = jnp.tile(X, (10, 1)) if rows is None else rows
    f = hotk.curvature.LeastSquares(residual, examples)
    transform = hotk.optim.scale_by_levenberg_marquardt()
    state = transform.update(jax.grad(f)(P), transform.init(P), P, value_fn=f)[1]
    by_samples = solver_of(state) == "by factors in the space of the samples"
    assert by_samples == (chosen == "samples")


@pytest.mark.exhaustive
def test_auto_leaves_networks_of_many_classes_to_products():
    """Ten rows an example: 640 of them, for 1210 parameters."""
    x = jax.random.normal(jax.random.key(3), (64, 64))
    p = {"a": jnp.ones((64, 16)) / 8, "b": jnp.ones((16, 10)) / 4}
    loss = hotk.curvature.SoftmaxCrossEntropy(jnp.arange(64) % 10)
    f = hotk.curvature.GaussNewton(hotk.curvature.PerExample(logits, x), loss)
    transform = hotk.optim.scale_by_levenberg_marquardt()
    state = transform.update(jax.grad(f)(p), transform.init(p), p, value_fn=f)[1]
    assert solver_of(state) == "by conjugate gradients"


@pytest.mark.parametrize(
    "f", [half, lambda p: 2 * hotk.curvature.LeastSquares(residual, X)(p)]
)
def test_a_function_without_rows_is_refused(f):
    transform = lm()
    with pytest.raises(hotk.StructureError, match="examples="):
        transform.update(jax.grad(half)(P), transform.init(P), P, value_fn=f)


def test_bad_choices_and_examples_are_refused():
    with pytest.raises(ValueError, match="system"):
        hotk.optim.levenberg_marquardt(system="rows")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="system"):
        hotk.optim.natural_gradient(1.0, system="rows")  # type: ignore[arg-type]
    with pytest.raises(hotk.StructureError, match="leading axis"):
        hotk.curvature.PerExample(residual, {"x": X, "y": Y[:2]})
    with pytest.raises(hotk.StructureError, match="one tree for each"):
        hotk.curvature.PerExample((residual, residual), X)
    both = hotk.curvature.PerExample((residual, logits), (X, X))
    with pytest.raises(hotk.StructureError, match="different shapes"):
        both(P)


def test_the_acceleration_follows_the_curve_of_the_residuals():
    """Residuals (x, y - x^2): the accelerated step stays on the parabola."""
    r = lambda p, e: jnp.where(e == 0, p[0] - 2.0, 30.0 * (p[1] - p[0] ** 2))
    p, examples = jnp.array([0.0, 0.0, 0.0]), jnp.arange(2)
    f = hotk.curvature.LeastSquares(r, examples)
    options = {"system": "samples", "damping": 1e-9, "max_rejections": 0}
    ends = []
    for most in (0.0, 1e3):
        transform = hotk.optim.levenberg_marquardt(max_acceleration=most, **options)
        step, _ = transform.update(jax.grad(f)(p), transform.init(p), p, value_fn=f)
        ends.append(np.asarray(p + step))
    close(ends[0], np.zeros(3))  # to (2, 0), which increases f: rejected
    close(ends[1], np.array([2.0, 4.0, 0.0]), rtol=1e-5, atol=1e-5)
