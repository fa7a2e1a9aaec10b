"""Parameters of differential equations, fitted through Diffrax."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from diffrax import (
    ConstantStepSize,
    ControlTerm,
    CubicInterpolation,
    DirectAdjoint,
    Dopri5,
    Euler,
    ForwardMode,
    Heun,
    ImplicitEuler,
    MultiTerm,
    ODETerm,
    PIDController,
    SaveAt,
    StepTo,
    Tsit5,
    VeryChord,
    VirtualBrownianTree,
    backward_hermite_coefficients,
    diffeqsolve,
)

from tests.everyday.corpus import everyday


TIMES = jnp.linspace(0.0, 1.0, 4)


def observed(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def decay(seed, **options):
    data = observed(seed, 4)

    def vector_field(t, y, args):
        return -args * y

    def loss(rate):
        solution = diffeqsolve(
            ODETerm(vector_field),
            Heun(),
            t0=0.0,
            t1=1.0,
            dt0=0.25,
            y0=jnp.array(1.0),
            args=rate,
            saveat=SaveAt(ts=TIMES),
            max_steps=4,
            **options,
        )
        return jnp.mean((solution.ys - data) ** 2)

    return loss, jnp.array(0.7), ()


directly = functools.partial(decay, adjoint=DirectAdjoint())


@everyday(
    "decay with the default adjoint",
    library="diffrax",
    reference=directly,
)
def decay_by_default(seed):
    return decay(seed)


@everyday(
    "decay by forward derivatives",
    library="diffrax",
    reference=directly,
)
def decay_forward(seed):
    return decay(seed, adjoint=ForwardMode())


@everyday("Lotka-Volterra with step size control", library="diffrax")
def lotka_volterra(seed):
    data = jnp.abs(observed(seed, (4, 2)))
    term = ODETerm(
        lambda t, y, p: jnp.stack(
            [p[0] * y[0] - p[1] * y[0] * y[1], -p[2] * y[1] + p[3] * y[0] * y[1]]
        )
    )
    solver, controller = Dopri5(), PIDController(rtol=1e-2, atol=1e-2)
    saveat, adjoint = SaveAt(ts=TIMES), DirectAdjoint()

    def loss(log_parameters):
        solution = diffeqsolve(
            term,
            solver,
            0.0,
            1.0,
            0.3,
            jnp.array([1.0, 0.5]),
            args=jnp.exp(log_parameters),
            saveat=saveat,
            stepsize_controller=controller,
            max_steps=4,
            adjoint=adjoint,
        )
        return jnp.mean((solution.ys - data) ** 2)

    return loss, jnp.array([0.1, -0.2, 0.3, -0.4]), ()


class Func(eqx.Module):
    """The right side of a neural differential equation."""

    out_scale: jax.Array
    mlp: eqx.nn.MLP

    def __init__(self, data_size, width_size, depth, *, key):
        self.out_scale = jnp.array(1.0)
        self.mlp = eqx.nn.MLP(
            in_size=data_size,
            out_size=data_size,
            width_size=width_size,
            depth=depth,
            activation=jax.nn.softplus,
            final_activation=jnp.tanh,
            key=key,
        )

    def __call__(self, t, y, args):
        return self.out_scale * self.mlp(y)


class NeuralODE(eqx.Module):
    """A neural differential equation with its solver."""

    func: Func

    def __call__(self, ts, y0):
        solution = diffeqsolve(
            ODETerm(self.func),
            Tsit5(),
            t0=ts[0],
            t1=ts[-1],
            dt0=ts[1] - ts[0],
            y0=y0,
            stepsize_controller=ConstantStepSize(),
            saveat=SaveAt(ts=ts),
            max_steps=4,
            adjoint=DirectAdjoint(),
        )
        return solution.ys


@everyday("neural differential equation", library="diffrax")
def neural_ode(seed):
    model = NeuralODE(Func(2, 4, 1, key=jax.random.PRNGKey(seed)))
    params, static = eqx.partition(model, eqx.is_inexact_array)
    batch = observed(seed, (3, 4, 2))

    def loss(params, ti, yi):
        model = eqx.combine(params, static)
        predicted = jax.vmap(model, in_axes=(None, 0))(ti, yi[:, 0])
        return jnp.mean((yi - predicted) ** 2)

    return loss, params, (TIMES, batch)


@everyday("stochastic equation with a fixed Brownian path", library="diffrax")
def stochastic(seed):
    key = jax.random.PRNGKey(seed)

    def loss(theta):
        drift = lambda t, y, args: -theta[0] * y
        diffusion = lambda t, y, args: theta[1]
        path = VirtualBrownianTree(t0=0.0, t1=1.0, tol=0.3, shape=(), key=key)
        terms = MultiTerm(ODETerm(drift), ControlTerm(diffusion, path))
        solution = diffeqsolve(
            terms,
            Euler(),
            0.0,
            1.0,
            dt0=0.5,
            y0=jnp.array(1.0),
            saveat=SaveAt(t1=True),
            adjoint=DirectAdjoint(),
            max_steps=4,
        )
        return jnp.sum(solution.ys**2)

    return loss, jnp.array([0.5, 0.2]), ()


@everyday("stiff equation by implicit Euler", library="diffrax")
def stiff(seed):
    data = observed(seed, 2)

    def loss(k):
        def field(t, y, args):
            return jnp.stack([-k[0] * y[0] + k[1] * y[1], k[0] * y[0] - k[1] * y[1]])

        solution = diffeqsolve(
            ODETerm(field),
            ImplicitEuler(root_finder=VeryChord(rtol=1e-4, atol=1e-4)),
            0.0,
            0.5,
            0.25,
            jnp.array([1.0, 0.0]),
            stepsize_controller=ConstantStepSize(),
            max_steps=4,
            adjoint=DirectAdjoint(),
        )
        return jnp.sum((solution.ys[-1] - data) ** 2)

    return loss, jnp.array([2.0, 0.5]), ()


@everyday("equation driven by interpolated data", library="diffrax")
def controlled(seed):
    ts = jnp.linspace(0.0, 1.0, 5)
    path = CubicInterpolation(
        ts, backward_hermite_coefficients(ts, observed(seed, (5, 2)))
    )

    def field(t, y, theta):
        return jnp.tanh(theta @ y)[:, None] * jnp.array([[1.0, 0.5], [-0.5, 1.0]])

    def loss(theta):
        term = ControlTerm(field, path).to_ode()
        solution = diffeqsolve(
            term,
            Heun(),
            0.0,
            1.0,
            dt0=None,
            y0=jnp.array([1.0, -1.0]),
            args=theta,
            stepsize_controller=StepTo(ts=ts),
            adjoint=DirectAdjoint(),
            max_steps=4,
        )
        return jnp.sum(solution.ys[0] ** 2)

    return loss, jnp.array([[0.3, -0.1], [0.2, 0.4]]), ()


class Oscillator:
    """A fit of an oscillator, written as a class with a configuration."""

    def __init__(self, data, *, dt=0.25, adjoint=None):
        self.data = data
        self.dt = dt
        self.solver = Heun()
        self.adjoint = adjoint or DirectAdjoint()

    def field(self, t, state, args):
        position, speed = state
        return speed, -args["k"] * position - args["c"] * speed

    def residuals(self, params):
        solution = diffeqsolve(
            ODETerm(self.field),
            self.solver,
            0.0,
            1.0,
            self.dt,
            (jnp.array(1.0), jnp.array(0.0)),
            args=params,
            saveat=SaveAt(ts=TIMES, fn=lambda t, y, args: y[0]),
            adjoint=self.adjoint,
            max_steps=4,
        )
        return solution.ys - self.data

    def loss(self, params):
        return 0.5 * jnp.sum(self.residuals(params) ** 2)


@everyday(
    "oscillator as a class with a method",
    library="diffrax",
)
def oscillator(seed):
    problem = Oscillator(observed(seed, 4))
    return problem.loss, {"k": jnp.array(2.0), "c": jnp.array(0.3)}, ()
