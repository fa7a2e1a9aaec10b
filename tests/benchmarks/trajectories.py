"""Trajectories by direct collocation: IPOPT with derivatives of hotk, and CasADi.

`python -m tests.benchmarks.trajectories`; needs cyipopt and casadi. Both solve the same
problem by the same method: the trapezoidal rule, exact second derivatives, and one
IPOPT, that of cyipopt. "Derivatives" are those of one iteration: the gradient, the
constraints, their Jacobian, and the Hessian of the Lagrangian, at a new point each
time. CasADi's own IPOPT is another build of it, with other linear algebra; its time
stands in the note.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from hotk.interop import ipopt_problem
from tests.benchmarks.interleaved import Ratio, compare
from tests.benchmarks.table import Row, of_ratio, run


T = TypeVar("T")


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


class Contestant(NamedTuple):
    """A way to solve a problem.

    Attributes:
        derivatives: Computes those of one iteration at a flat vector.
        solve: Solves, and returns the value, the iterations and the solution.
        start: The flat vector at the start.
        solve_alone: Solves with the library's own IPOPT and returns the iterations.
    """

    derivatives: Callable[[np.ndarray], Any]
    solve: Callable[[], tuple[float, int, np.ndarray]]
    start: np.ndarray
    solve_alone: Callable[[], int] | None = None


def guess(problem: Problem, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a line of states, and inputs at rest."""
    along = np.linspace(0.0, 1.0, count + 1)[:, None]
    states = (1 - along) * np.array(problem.first) + along * np.array(problem.last)
    return states, np.full((count + 1, problem.inputs), problem.rest)


OPTIONS = {"tol": 1e-8, "max_iter": 300, "linear_solver": "mumps"}


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

    start = {"u": inputs, "x": states}
    made = ipopt_problem(effort, start, constraints=constraints)
    multipliers = np.linspace(-1.0, 1.0, made.m)

    def derivatives(z: np.ndarray) -> None:
        made.gradient(z)
        made.constraints(z)
        made.jacobian(z)
        made.hessian(z, multipliers, 1.0)

    def solve() -> tuple[float, int, np.ndarray]:
        steps = [0]
        made.intermediate = lambda mode, step, *_: steps.append(step)
        ends = np.array([problem.first, problem.last])
        same = {"dynamics": 0.0, "ends": ends}
        x, info = made.solve(
            lb={"u": -problem.largest, "x": None},
            ub={"u": problem.largest, "x": None},
            cl=same,
            cu=same,
            print_level=0,
            **OPTIONS,
        )
        assert info["status"] == 0, info["status_msg"]
        return info["obj_val"], steps[-1], np.asarray(x["x"])

    return Contestant(derivatives, solve, made.x0)


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
    options = {f"ipopt.{name}": value for name, value in OPTIONS.items()}
    options |= {"ipopt.print_level": 0, "print_time": False, "ipopt.sb": "yes"}
    solver = casadi.nlpsol("solver", "ipopt", nlp, options)
    start = np.concatenate([inputs.ravel(), states.ravel()])
    ends = np.array([*problem.first, *problem.last])
    fixed = np.concatenate([np.zeros(n * count), ends])
    bound = np.full(len(start), np.inf)
    bound[: inputs.size] = problem.largest
    callbacks = _Callbacks(solver)
    multipliers = np.linspace(-1.0, 1.0, g.numel())

    def derivatives(z: np.ndarray) -> None:
        callbacks.gradient(z)
        callbacks.jacobian(z)
        callbacks.hessian(z, multipliers, 1.0)

    def solve() -> tuple[float, int, np.ndarray]:
        import cyipopt

        made = cyipopt.Problem(
            n=len(start), m=len(fixed), problem_obj=callbacks,
            lb=-bound, ub=bound, cl=fixed, cu=fixed,
        )  # fmt: skip
        for name, value in {**OPTIONS, "print_level": 0}.items():
            made.add_option(name, value)
        z, info = made.solve(start)
        assert info["status"] == 0, info["status_msg"]
        return info["obj_val"], callbacks.steps, z[inputs.size :].reshape(states.shape)

    def solve_alone() -> int:
        solver(x0=start, lbx=-bound, ubx=bound, lbg=fixed, ubg=fixed)
        return solver.stats()["iter_count"]

    return Contestant(derivatives, solve, start, solve_alone)


class _Callbacks:
    """CasADi's functions of a problem, as cyipopt calls them."""

    def __init__(self, solver: Any) -> None:
        names = ("f", "g", "grad_f", "jac_g", "hess_l")
        self.f, self.g, self.df, self.dg, self.h = (
            solver.get_function(f"nlp_{name}") for name in names
        )
        self.steps = 0

    def objective(self, z: np.ndarray) -> float:
        return float(self.f(z, []))

    def constraints(self, z: np.ndarray) -> np.ndarray:
        return np.array(self.g(z, [])).ravel()

    def gradient(self, z: np.ndarray) -> np.ndarray:
        return np.array(self.df(z, [])[-1]).ravel()

    def jacobianstructure(self) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = self.dg.sparsity_out(1).get_triplet()
        return np.array(rows), np.array(columns)

    def jacobian(self, z: np.ndarray) -> np.ndarray:
        return np.array(self.dg(z, [])[1].nonzeros())

    def hessianstructure(self) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = self.h.sparsity_out(0).get_triplet()  # of the upper triangle
        return np.array(columns), np.array(rows)

    def hessian(self, z: np.ndarray, multipliers: np.ndarray, factor: float) -> Any:
        return np.array(self.h(z, [], factor, multipliers).nonzeros())

    def intermediate(self, mode: int, step: int, *_: float) -> None:
        self.steps = step


def cpu_seconds(call: Callable[[], T]) -> tuple[float, T]:
    """Return CPU seconds and the result of a call."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def near(z: np.ndarray) -> Callable[[], np.ndarray]:
    """Return a function that gives another point each time."""
    count = itertools.count()
    return lambda: z + 1e-3 * np.sin(np.arange(len(z)) + next(count))


def trajectories(variables: int = 10_400) -> Iterator[Row]:
    """Compare derivatives, first calls and whole solves of both."""
    for name, problem in PROBLEMS.items():
        points = variables // (len(problem.first) + problem.inputs)
        yield from compared(name, problem, points)


def shooting(intervals: int = 200, steps: int = 10) -> Iterator[Row]:
    """Compare the same for multiple shooting."""
    problem = PROBLEMS["pendulum"]._replace(steps=steps)
    yield from compared("pendulum, shooting", problem, intervals)


def compared(name: str, problem: Problem, points: int) -> Iterator[Row]:
    """Compare all of one problem."""
    built, ours = cpu_seconds(functools.partial(by_hotk, problem, points))
    first, _ = cpu_seconds(functools.partial(ours.derivatives, ours.start))
    for kind in ("SX", "MX"):
        make = functools.partial(by_casadi, problem, points, kind)
        their_built, theirs = cpu_seconds(make)
        their_first, _ = cpu_seconds(
            functools.partial(theirs.derivatives, theirs.start)
        )
        mine, other = near(ours.start), near(theirs.start)
        ratio = compare(
            lambda mine=mine: ours.derivatives(mine()),
            lambda theirs=theirs, other=other: theirs.derivatives(other()),
            rounds=15,
        )
        before = f"before the first {built + first:.1f} and "
        before += f"{their_built + their_first:.1f} CPU s"
        note = f"{len(ours.start)} variables; {before}"
        yield of_ratio(f"{name}, CasADi {kind}: derivatives", ratio, 0.5, note)
        yield whole(f"{name}, CasADi {kind}: solve", ours, theirs)


def whole(title: str, ours: Contestant, theirs: Contestant) -> Row:
    """Compare solves, in turns."""
    times = []
    for _ in range(3):
        mine, (value, steps, x) = cpu_seconds(ours.solve)
        other, (their_value, their_steps, y) = cpu_seconds(theirs.solve)
        times.append((mine, other))
    ratio = Ratio.of(*map(list, zip(*times, strict=True)))
    assert theirs.solve_alone is not None
    alone, own_steps = cpu_seconds(theirs.solve_alone)
    apart = float(np.max(np.abs(x - y)))
    note = f"{steps} and {their_steps} steps, values {value:.6g} and {their_value:.6g}"
    note += f", states apart {apart:.0e}; CasADi's own IPOPT {alone:.2f} s, {own_steps}"
    return of_ratio(title, ratio, 1.0, note)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    run(__doc__, trajectories, shooting)
