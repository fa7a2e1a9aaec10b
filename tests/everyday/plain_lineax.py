"""Losses with linear solves of Lineax inside."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np

from tests.everyday.corpus import everyday


def definite(seed, n=4):
    A = np.random.default_rng(seed).normal(size=(n, n))
    return A @ A.T + n * np.eye(n)


@everyday("dense matrix, solver chosen automatically")
def dense(seed):
    A = jnp.asarray(definite(seed))

    def energy(p):
        operator = lx.MatrixLinearOperator(A + jnp.diag(jnp.exp(p)))
        return p @ lx.linear_solve(operator, p).value

    return energy, jnp.array([0.1, 0.2, -0.3, 0.4]), ()


@everyday("CG of the closure on a function")
def by_cg(seed):
    A, b = jnp.asarray(definite(seed)), jnp.linspace(-1.0, 1.0, 4)
    solver = lx.CG(rtol=1e-6, atol=1e-6)

    def loss(log_diagonal):
        def product(x):
            return A @ x + jnp.exp(log_diagonal) * x

        operator = lx.FunctionLinearOperator(
            product,
            jax.ShapeDtypeStruct(b.shape, b.dtype),
            tags=lx.positive_semidefinite_tag,
        )
        return b @ lx.linear_solve(operator, b, solver).value

    return loss, jnp.array([0.1, 0.2, -0.3, 0.4]), ()


@everyday("tridiagonal system of a diffusion")
def tridiagonal(seed):
    source = np.random.default_rng(seed).normal(size=6)

    def misfit(log_k):
        k = jnp.exp(log_k)
        operator = lx.TridiagonalLinearOperator(
            2.0 + k[:-1] + k[1:], -k[1:-1], -k[1:-1]
        )
        u = lx.linear_solve(operator, jnp.asarray(source), lx.Tridiagonal()).value
        return jnp.sum(u**2)

    return misfit, jnp.linspace(-0.3, 0.3, 7), ()


class NewtonStep(eqx.Module):
    """One step of Newton's method with a solver that is a field."""

    matrix: jax.Array
    solver: lx.AbstractLinearSolver = lx.AutoLinearSolver(well_posed=True)

    def __call__(self, y):
        def residual(y, args):
            return self.matrix @ y + 0.1 * y**3

        operator = lx.JacobianLinearOperator(residual, y)
        step = lx.linear_solve(operator, residual(y, None), self.solver).value
        return jnp.sum((y - step) ** 2)


@everyday("Jacobian operator in a module")
def newton_step(seed):
    return NewtonStep(jnp.asarray(definite(seed))), jnp.array([1.0, 0.5, -0.5, 0.2]), ()


@everyday("least squares by QR, shapes by name")
def by_qr(seed):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(10, 3)), rng.normal(size=10)

    def held_out(log_weights):
        root = jnp.exp(0.5 * log_weights)
        operator = lx.MatrixLinearOperator(root[:, None] * X)
        w = lx.linear_solve(operator, root * y, solver=lx.QR()).value
        return jnp.sum((X @ w - y) ** 2)

    return held_out, jnp.linspace(-0.5, 0.5, 10), ()


@everyday("sum of a captured operator and a diagonal")
def captured_operator(seed):
    base = lx.MatrixLinearOperator(
        jnp.asarray(definite(seed)), lx.positive_semidefinite_tag
    )
    vector = jnp.linspace(0.5, 1.5, 4)

    def loss(d):
        operator = base + lx.DiagonalLinearOperator(d**2)
        tagged = lx.TaggedLinearOperator(operator, lx.positive_semidefinite_tag)
        dense = lx.MatrixLinearOperator(
            tagged.as_matrix(), lx.positive_semidefinite_tag
        )
        return vector @ lx.linear_solve(dense, vector, lx.Cholesky()).value

    return loss, jnp.array([1.0, 0.5, -0.5, 0.2]), ()
