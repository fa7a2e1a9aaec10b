"""Trajectories by direct collocation: IPOPT with derivatives of hotk, and CasADi.

`python -m tests.benchmarks.trajectories`; needs cyipopt and casadi. Both solve the same
problem by the same method: the trapezoidal rule, exact second derivatives, and one
IPOPT, that of cyipopt. "Derivatives" are those of one iteration: the gradient, the
constraints, their Jacobian, and the Hessian of the Lagrangian, at a new point each
time. CasADi's own IPOPT is another build of it, with other linear algebra; its time
stands in the note.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.benchmarks.ipopt_peers import (
    Contestant,
    Sides,
    compared,
    of_casadi,
    of_hotk,
)
from tests.benchmarks.table import Row, run


class Problem(NamedTuple):
    """A system that is to go from one state to another with little effort.

    Attributes:
        rate: The derivative of the states, from rows of states and inputs and the
            functions of JAX or CasADi.
        first: The state at the start.
        last: That at the end.
        inputs: The number of inputs.
        largest: The largest size of each input.
        duration: Seconds.
        rest: The inputs at rest, as a start.
        steps: Steps of Runge and Kutta in each interval, for multiple shooting; 0 for
            the trapezoidal rule.
    """

    rate: Callable[[Any, Any, Any], list[Any]]
    first: list[float]
    last: list[float]
    inputs: int
    largest: float
    duration: float
    rest: float
    steps: int = 0


def pendulum(s: Any, u: Any, m: Any) -> list[Any]:
    """Return the rates of a pendulum on a cart; Kelly (2017), section 6."""
    _, q, speed, w = s
    sine, cosine = m.sin(q), m.cos(q)
    push = 0.5 * 0.3 * w * w * sine + u[0]
    mass = 1.0 + 0.3 * sine * sine
    cart = (push + 0.3 * 9.81 * cosine * sine) / mass
    turn = -(push * cosine + 1.3 * 9.81 * sine) / (0.5 * mass)
    return [speed, w, cart, turn]


def quadrotor(s: Any, u: Any, m: Any) -> list[Any]:
    """Return the rates of a quadrotor in a plane, of one kilogram, with drag."""
    _, _, q, vx, vz, w = s
    thrust = u[0] + u[1]
    drag = 0.1 * m.sqrt(vx * vx + vz * vz + 1e-3)
    ax, az = -thrust * m.sin(q) - drag * vx, thrust * m.cos(q) - drag * vz - 9.81
    return [vx, vz, w, ax, az, 10.0 * (u[1] - u[0])]


def car(s: Any, u: Any, m: Any) -> list[Any]:
    """Return the rates of a car with a tire model of sines; Pacejka (2012)."""
    _, _, yaw, v, side, turn = s
    force, steer = 8.0 * u[0], 0.5 * u[1]
    forward = v + 5.0
    front = steer - m.atan((side + 1.2 * turn) / forward)
    rear = -m.atan((side - 1.4 * turn) / forward)
    grip = lambda slip: 9.0 * m.sin(1.4 * m.atan(8.0 * slip))
    ff, fr = grip(front), grip(rear)
    return [
        forward * m.cos(yaw) - side * m.sin(yaw),
        forward * m.sin(yaw) + side * m.cos(yaw),
        turn,
        force - 0.05 * forward * forward - ff * m.sin(steer) + side * turn,
        fr + ff * m.cos(steer) - forward * turn,
        1.2 * ff * m.cos(steer) - 1.4 * fr,
    ]


PROBLEMS = {
    "pendulum": Problem(pendulum, [0.0] * 4, [1.0, np.pi, 0.0, 0.0], 1, 20.0, 2.0, 0.0),
    "quadrotor": Problem(
        quadrotor, [0.0] * 6, [4.0, 2.0, 0.0, 0.0, 0.0, 0.0], 2, 15.0, 3.0, 4.905
    ),
    "car": Problem(
        car,
        [0.0, 0.0, 0.0, 5.0, 0.0, 0.0],
        [40.0, 3.5, 0.0, 5.0, 0.0, 0.0],
        2,
        1.0,
        4.0,
        0.1,
    ),
}


def runge_kutta(rate: Callable[[Any], Any], s: Any, h: float) -> Any:
    """Return the state after one step of the classical method of fourth order."""
    a = rate(s)
    b = rate(s + h / 2 * a)
    c = rate(s + h / 2 * b)
    d = rate(s + h * c)
    return s + h / 6 * (a + 2 * b + 2 * c + d)


def guess(problem: Problem, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a line of states, and inputs at rest."""
    along = np.linspace(0.0, 1.0, count + 1)[:, None]
    states = (1 - along) * np.array(problem.first) + along * np.array(problem.last)
    return states, np.full((count + 1, problem.inputs), problem.rest)


def by_hotk(problem: Problem, count: int) -> Contestant:
    """Return the problem with derivatives of hotk."""
    states, inputs = guess(problem, count)
    step = problem.duration / count
    weights = jnp.full((count + 1, 1), step).at[jnp.array([0, -1])].mul(0.5)

    def effort(z: dict[str, jax.Array]) -> jax.Array:
        return jnp.sum(weights * z["u"] ** 2)

    rate = lambda s, u: jnp.stack(problem.rate(s, u, jnp))

    def shot(s: jax.Array, u: jax.Array) -> jax.Array:
        h = step / problem.steps
        one = lambda s, _: (runge_kutta(lambda s: rate(s, u), s, h), None)
        return jax.lax.scan(one, s, None, length=problem.steps)[0]

    def constraints(z: dict[str, jax.Array]) -> dict[str, jax.Array]:
        x, u = z["x"], z["u"]
        if problem.steps:
            defects = x[1:] - jax.vmap(shot)(x[:-1], u[:-1])
        else:
            rates = rate(x.T, u.T).T
            defects = x[1:] - x[:-1] - step / 2 * (rates[1:] + rates[:-1])
        return {"dynamics": defects, "ends": jnp.stack([x[0], x[-1]])}

    ends = np.array([problem.first, problem.last])
    same = {"dynamics": 0.0, "ends": ends}
    largest = problem.largest
    sides = Sides({"u": -largest, "x": None}, {"u": largest, "x": None}, same, same)
    return of_hotk(effort, {"u": inputs, "x": states}, constraints, sides)


def by_casadi(problem: Problem, count: int, kind: str) -> Contestant:
    """Return the problem with derivatives of CasADi, in expressions of one kind."""
    import casadi

    states, inputs = guess(problem, count)
    n, m = states.shape[1], inputs.shape[1]
    step = problem.duration / count
    s, a = casadi.SX.sym("s", n), casadi.SX.sym("a", m)
    rate = problem.rate(casadi.vertsplit(s), casadi.vertsplit(a), casadi)
    f = casadi.Function("f", [s, a], [casadi.vertcat(*rate)])
    symbol = getattr(casadi, kind).sym
    u, x = symbol("u", m, count + 1), symbol("x", n, count + 1)

    def mapped(f: Any, x: Any, u: Any) -> Any:
        columns = x.shape[1]
        if kind == "MX":
            return f.map(columns)(x, u)
        return casadi.horzcat(*(f(x[:, i], u[:, i]) for i in range(columns)))

    if problem.steps:
        end = s
        for _ in range(problem.steps):
            end = runge_kutta(lambda s: f(s, a), end, step / problem.steps)
        shot = casadi.Function("shot", [s, a], [end])
        defects = x[:, 1:] - mapped(shot, x[:, :-1], u[:, :-1])
    else:
        rates = mapped(f, x, u)
        defects = x[:, 1:] - x[:, :-1] - step / 2 * (rates[:, 1:] + rates[:, :-1])
    weights = np.full((1, count + 1), step)
    weights[0, [0, -1]] *= 0.5
    effort = casadi.sum2(casadi.sum1(u * u) * weights)
    g = casadi.veccat(defects, x[:, 0], x[:, -1])
    nlp = {"x": casadi.veccat(u, x), "f": effort, "g": g}
    start = np.concatenate([inputs.ravel(), states.ravel()])
    ends = np.array([*problem.first, *problem.last])
    fixed = np.concatenate([np.zeros(n * count), ends])
    bound = np.full(len(start), np.inf)
    bound[: inputs.size] = problem.largest
    return of_casadi(nlp, start, Sides(-bound, bound, fixed, fixed))


def trajectories(variables: int = 10_400) -> Iterator[Row]:
    """Compare derivatives, first calls and whole solves of both."""
    for name, problem in PROBLEMS.items():
        points = variables // (len(problem.first) + problem.inputs)
        yield from both(name, problem, points)


def shooting(intervals: int = 200, steps: int = 10) -> Iterator[Row]:
    """Compare the same for multiple shooting."""
    problem = PROBLEMS["pendulum"]._replace(steps=steps)
    yield from both("pendulum, shooting", problem, intervals)


def both(name: str, problem: Problem, points: int) -> Iterator[Row]:
    """Compare one problem with both kinds of expressions."""
    theirs = {
        kind: functools.partial(by_casadi, problem, points, kind)
        for kind in ("SX", "MX")
    }
    yield from compared(name, functools.partial(by_hotk, problem, points), theirs)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    run(__doc__, trajectories, shooting)
