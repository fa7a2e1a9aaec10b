"""Losses with a root, a least-squares fit or a minimum of Optimistix inside."""

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
import optimistix as optx

from tests.everyday.corpus import everyday


SOLVER = optx.Newton(rtol=1e-6, atol=1e-6)


@everyday("root of a scalar equation")
def root(seed):
    target = jnp.asarray(np.random.default_rng(seed).normal(size=3))
    solver = optx.Newton(rtol=1e-5, atol=1e-5)

    def equation(y, theta):
        return y + 0.3 * jnp.sin(y) - theta

    def loss(theta):
        found = optx.root_find(equation, solver, theta, args=theta)
        return jnp.sum((found.value - target) ** 2)

    return loss, jnp.array([0.5, -0.2, 0.9]), ()


@everyday("root with the solver of the module")
def root_of_module(seed):
    A = np.random.default_rng(seed).normal(size=(3, 3)) * 0.2

    def implicit_layer(params, x):
        def residual(z, args):
            W, b = args
            return jnp.tanh(W @ z + x) + b - z

        return optx.root_find(residual, SOLVER, jnp.zeros(3), args=params).value

    def loss(params, x):
        return jnp.sum(implicit_layer(params, x) ** 2)

    return loss, (jnp.asarray(A), jnp.array([0.1, 0.2, -0.1])), (jnp.ones(3),)


class Equilibrium(eqx.Module):
    """A layer whose output is a fixed point."""

    weight: jax.Array
    solver: optx.AbstractFixedPointSolver
    steps: int = eqx.field(static=True, default=64)

    def __call__(self, u):
        def update(z, u):
            return jnp.tanh(self.weight @ z + u)

        return optx.fixed_point(
            update, self.solver, jnp.zeros_like(u), u, max_steps=self.steps
        ).value


@everyday("fixed point of a contraction")
def fixed_point(seed):
    rng = np.random.default_rng(seed)
    W, data = (
        jnp.asarray(0.2 * rng.normal(size=(4, 4))),
        jnp.asarray(rng.normal(size=4)),
    )

    layer = Equilibrium(W, optx.FixedPointIteration(rtol=1e-6, atol=1e-6))
    return (
        lambda u: jnp.sum((layer(u) - data) ** 2),
        jnp.array([0.1, 0.4, -0.2, 0.3]),
        (),
    )


@everyday("sensitivity of a least-squares fit")
def fit(seed):
    t = jnp.linspace(0.0, 1.0, 8)
    y = jnp.exp(-1.5 * t) + 0.01 * jnp.asarray(
        np.random.default_rng(seed).normal(size=8)
    )

    def residuals(rate, weights):
        return weights * (jnp.exp(-rate * t) - y)

    solver = optx.LevenbergMarquardt(rtol=1e-6, atol=1e-6)

    def loss(weights):
        solution = optx.least_squares(
            residuals, solver, jnp.array(1.0), args=weights, throw=False
        )
        return (solution.value - 1.5) ** 2

    return loss, jnp.linspace(0.5, 1.5, 8), ()


@everyday("inner minimum by BFGS")
def inner_minimum(seed):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(12, 3)), rng.normal(size=12)
    validation = rng.normal(size=3)

    def ridge(w, log_penalty):
        return jnp.mean((X @ w - y) ** 2) + jnp.exp(log_penalty) * jnp.sum(w**2)

    def outer(log_penalty):
        solver = optx.BFGS(rtol=1e-5, atol=1e-5)
        best = optx.minimise(ridge, solver, jnp.zeros(3), args=log_penalty).value
        return jnp.sum((best - validation) ** 2)

    return outer, jnp.array(-1.0), ()


@everyday(
    "bisection with bounds in the options",
    slow="a Python number inside of what is solved is another program each time: "
    "capture it as an array",
)
def bisection(seed):
    price = float(np.random.default_rng(seed).uniform(0.4, 0.6))

    def implied(volatility, strikes):
        def gap(y, args):
            strike, sigma = args
            return jax.nn.sigmoid(y * sigma) - price * strike

        def solve(strike):
            return optx.root_find(
                gap,
                optx.Bisection(rtol=1e-6, atol=1e-6),
                0.0,
                args=(strike, volatility),
                options={"lower": -10.0, "upper": 10.0},
                max_steps=100,
                throw=False,
            ).value

        return jnp.sum(jax.vmap(solve)(strikes))

    return implied, jnp.array(1.2), (jnp.array([0.8, 1.0, 1.2]),)


@everyday("Gauss-Newton with CG of lineax inside")
def gauss_newton_cg(seed):
    shift = jnp.asarray(np.random.default_rng(seed).normal(size=3) * 0.1)
    solver = optx.GaussNewton(
        rtol=1e-6, atol=1e-6, linear_solver=lx.AutoLinearSolver(well_posed=None)
    )

    def residual(y, theta):
        return jnp.concatenate([y - theta, jnp.sin(y) - shift])

    @eqx.filter_jit
    def loss(theta):
        found = optx.least_squares(residual, solver, theta, args=theta)
        return jnp.sum(found.value**2)

    return loss, jnp.array([0.2, 0.1, -0.3]), ()


@everyday("minimum by an optax optimizer")
def by_optax(seed):
    centre = jnp.asarray(np.random.default_rng(seed).normal(size=2))
    solver = optx.OptaxMinimiser(optax.sgd(0.3), rtol=1e-5, atol=1e-5)

    def bowl(y, scale):
        return jnp.sum(scale * (y - centre) ** 2) + 0.1 * jnp.sum(y**4)

    def outer(scale):
        found = optx.minimise(bowl, solver, jnp.zeros(2), args=scale, throw=False)
        return jnp.sum(found.value**2)

    return outer, jnp.array([0.7, 0.9]), ()
