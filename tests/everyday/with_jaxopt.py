"""Objectives, projections and implicit layers of JAXopt."""

import jax
import jax.numpy as jnp
import jaxopt
import numpy as np
from jaxopt import objective, projection
from jaxopt.implicit_diff import custom_root

from tests.everyday.corpus import everyday


def classes(seed, rows=15, columns=3, kinds=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, columns)), rng.integers(0, kinds, rows)


@everyday("multiclass logistic regression, regularized", library="jaxopt")
def multiclass(seed):
    X, y = classes(seed)

    def loss(params, l2reg, data):
        return objective.l2_multiclass_logreg(params, l2reg=l2reg, data=data)

    return loss, 0.1 * jnp.linspace(-1, 1, 12).reshape(3, 4), (0.1, (X, y))


@everyday("least squares of a fixed data set", library="jaxopt")
def least_squares(seed):
    rng = np.random.default_rng(seed)
    data = (jnp.asarray(rng.normal(size=(12, 3))), jnp.asarray(rng.normal(size=12)))
    return lambda w: objective.least_squares(w, data), jnp.array([0.1, -0.2, 0.4]), ()


@everyday("validation loss of a ridge fit, implicitly", library="jaxopt")
def ridge(seed):
    rng = np.random.default_rng(seed)
    X, y = jnp.asarray(rng.normal(size=(12, 3))), jnp.asarray(rng.normal(size=12))
    held_out = jnp.asarray(rng.normal(size=(5, 3)))

    def objective_of(params, l2reg, X, y):
        error = X @ params - y
        return jnp.mean(error**2) + l2reg * jnp.sum(params**2)

    @custom_root(jax.grad(objective_of))
    def ridge_solver(init, l2reg, X, y):
        XX, Xy = X.T @ X, X.T @ y
        return jnp.linalg.solve(XX + len(y) * l2reg * jnp.eye(3), Xy)

    def validation(log_penalty):
        best = ridge_solver(None, jnp.exp(log_penalty), X, y)
        return jnp.mean((held_out @ best) ** 2)

    return validation, jnp.array(-1.0), ()


@everyday("projection onto a ball and a simplex", library="jaxopt")
def projections(seed):
    target = np.random.default_rng(seed).normal(size=4)

    def distance(x):
        inside = projection.projection_l2_ball(x, 1.0)
        weights = projection.projection_simplex(x)
        return jnp.sum((inside - target) ** 2) + jnp.sum(weights**2 * target)

    return distance, jnp.array([0.9, -0.4, 0.7, 1.1]), ()


@everyday("fixed point by iteration, unrolled", library="jaxopt")
def unrolled(seed):
    A = jnp.asarray(0.1 * np.random.default_rng(seed).normal(size=(3, 3)))
    solver = jaxopt.FixedPointIteration(
        lambda z, b: jnp.tanh(A @ z + b), maxiter=5, implicit_diff=False, jit=True
    )

    def loss(b):
        return jnp.sum(solver.run(jnp.zeros(3), b).params ** 2)

    return loss, jnp.array([0.1, 0.2, -0.3]), ()


@everyday(
    "gradient descent, differentiated implicitly",
    library="jaxopt",
    slow="a rule made at each run holds the solver, which holds the data: write the "
    "solution with `hotk.rule.minimum`",
)
def implicit_descent(seed):
    rng = np.random.default_rng(seed)
    X, y = jnp.asarray(rng.normal(size=(8, 2))), jnp.asarray(rng.normal(size=8))

    def inner(w, log_penalty):
        return jnp.mean((X @ w - y) ** 2) + jnp.exp(log_penalty) * w @ w

    solver = jaxopt.GradientDescent(inner, stepsize=0.1, maxiter=20, acceleration=False)

    def outer(log_penalty):
        return jnp.sum(solver.run(jnp.zeros(2), log_penalty).params ** 2)

    return outer, jnp.array(-0.5), ()


@everyday("binary losses, batched by name", library="jaxopt")
def binary(seed):
    X, y = classes(seed, kinds=2)
    logistic = jax.vmap(jaxopt.loss.binary_logistic_loss)

    def loss(w):
        return jnp.mean(logistic(y, X @ w)) + 0.01 * jaxopt.tree_util.tree_l2_norm(
            w, squared=True
        )

    return loss, jnp.array([0.1, -0.2, 0.4]), ()
