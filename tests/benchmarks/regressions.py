"""Least squares from far starts, beside SciPy and optimistix: what is reached.

The 27 regressions of NIST from both starts; the same with parameters in other units,
each multiplied by a power of ten from -4 to 4; and the problems of Moré, Garbow and
Hillstrom from the standard start and from ten times that. All in float64, with the
default tolerances and at most a thousand steps. For NIST digits are those of the worst
parameter, for the others those of the value, and of the residuals where they vanish.
With less than four digits, a fit with the sum of squares of NIST is imprecise; one that
converged where SciPy gets no lower is elsewhere, in another minimum or at a saddle
point; all others did not reach the minimum, and are wrong if they say that they
converged. With `--each` every fit is printed.
"""

import collections
import functools
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optimistix
import scipy.optimize

import hotk
from tests.benchmarks.table import Row, run
from tests.optim.nist import REGRESSIONS
from tests.optim.problems import PROBLEMS, SIZES


LIMIT = 1000


class Task(NamedTuple):
    """A sum of squares, and where to start.

    Attributes:
        name: Of the problem, and of the start.
        residuals: From parameters and their units.
        start: In these units.
        unit: The units.
        digits: From parameters to how many digits are right.
        least: The sum of squares; 0 where the digits are those of the value.
    """

    name: str
    residuals: Callable[[Any, Any], Any]
    start: np.ndarray
    unit: np.ndarray
    digits: Callable[[Any], float]
    least: float


class End(NamedTuple):
    """Where a method stopped.

    Attributes:
        x: The parameters.
        converged: Whether it says that it converged.
        residuals: How often they were evaluated.
        jacobians: How often the Jacobian was, or was linearized.
    """

    x: np.ndarray
    converged: bool
    residuals: int
    jacobians: int


class Fit(NamedTuple):
    """What a method made of a task.

    Attributes:
        task: The name.
        end: Where it stopped.
        digits: How many are right.
        kind: "solved", "imprecise", "elsewhere" or "not reached".
        seconds: Of the second run.
    """

    task: str
    end: End
    digits: float
    kind: str
    seconds: float

    @property
    def wrong(self) -> bool:
        """Whether it says that it converged, and did not."""
        return self.end.converged and self.kind == "not reached"


def nist(scaled: bool) -> Iterator[list[Task]]:
    """Return the tasks of each regression."""
    for name, known in REGRESSIONS.items():
        unit = np.ones(len(known.certified))
        if scaled:
            drawn = np.random.default_rng(zlib.crc32(name.encode()))
            unit = 10.0 ** drawn.integers(-4, 5, len(unit))
        rest = unit, known.digits, known.sum_of_squares
        yield [
            Task(f"{name}, {i}", in_units(known.residuals), start * unit, *rest)
            for i, start in enumerate(known.starts, 1)
        ]


def classical() -> Iterator[list[Task]]:
    """Return the tasks of each problem."""
    for name, problem in {**PROBLEMS, **SIZES}.items():
        digits = lambda x, p=problem: p.digits(float(p.value(jnp.asarray(x))))
        rest = np.ones(len(problem.start)), digits, 0.0
        yield [
            Task(
                f"{name}, x{k}", in_units(problem.residuals), problem.farther(k), *rest
            )
            for k in (1, 10)
        ]


@functools.cache  # one function, and so one program, for all units
def in_units(residuals: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the residuals of parameters in units."""
    return lambda p, unit: residuals(p / unit)


def counted(transform: Any) -> optax.GradientTransformationExtraArgs:
    """Count the trials of a transformation in its state."""

    def init(params: Any) -> Any:
        return transform.init(params), jnp.zeros((), int)

    def update(gradient: Any, state: Any, params: Any = None, **more: Any) -> Any:
        updates, inner = transform.update(gradient, state[0], params, **more)
        rejected = optax.tree_utils.tree_get_all_with_path(inner, "rejections")
        return updates, (inner, state[1] + 1 + sum(n for _, n in rejected))

    return optax.GradientTransformationExtraArgs(init, update)


def of_hotk(transform: Any, **tolerances: float) -> Callable[[Any], Any]:
    """Return `minimize` with a transformation."""

    @functools.cache
    def method(residuals: Any) -> Callable[[Task], End]:
        f = hotk.curvature.LeastSquares(residuals)

        def fit(task: Task) -> End:
            found = hotk.optim.minimize(
                f,
                jnp.asarray(task.start),
                counted(transform),
                args=(jnp.asarray(task.unit),),
                max_steps=LIMIT,
                **tolerances,
            )
            steps, trials = int(found.steps), int(found.state[1])
            x = np.asarray(found.x)
            return End(x, bool(found.converged), 1 + trials, 1 + steps)

        return fit

    return method


def of_scipy(name: str) -> Callable[[Any], Any]:
    """Return `scipy.optimize.least_squares` with a method."""

    @functools.cache
    def method(residuals: Any) -> Callable[[Task], End]:
        r, jacobian = jax.jit(residuals), jax.jit(jax.jacfwd(residuals))

        def fit(task: Task) -> End:
            try:
                found = least_squares(r, jacobian, task.unit, task.start, name)
            except (ValueError, np.linalg.LinAlgError):  # something is not finite
                return End(task.start, False, 0, 0)
            return End(found.x, bool(found.success), found.nfev, found.njev or 0)

        return fit

    return method


def least_squares(
    r: Any, jacobian: Any, unit: Any, start: Any, name: str, **tolerances: Any
) -> Any:
    """Call SciPy, with its scaling of the parameters by the Jacobian."""
    with np.errstate(all="ignore"):
        return scipy.optimize.least_squares(
            lambda x: np.asarray(r(x, unit)),
            start,
            lambda x: np.asarray(jacobian(x, unit)),
            method=name,
            x_scale="jac",
            max_nfev=LIMIT,
            **tolerances,
        )


@functools.cache
def of_optimistix(residuals: Any) -> Callable[[Task], End]:
    """Return optimistix's Levenberg-Marquardt."""
    solver = optimistix.LevenbergMarquardt(rtol=1e-8, atol=1e-8)

    @jax.jit
    def solve(start: Any, unit: Any) -> Any:
        found = optimistix.least_squares(
            residuals, solver, start, unit, max_steps=LIMIT, throw=False
        )
        converged = found.result == optimistix.RESULTS.successful
        return found.value, converged, found.stats["num_steps"]

    def fit(task: Task) -> End:
        x, converged, steps = solve(jnp.asarray(task.start), jnp.asarray(task.unit))
        return End(np.asarray(x), bool(converged), int(steps), int(steps))

    return fit


METHODS: dict[str, Callable[[Any], Any]] = {
    "levenberg_marquardt": of_hotk(hotk.optim.levenberg_marquardt()),
    "levenberg_marquardt, xtol": of_hotk(hotk.optim.levenberg_marquardt(), xtol=1e-8),
    "trust_region": of_hotk(hotk.optim.trust_region()),
    "trust_region, steihaug": of_hotk(hotk.optim.trust_region(subproblem="steihaug")),
    "cubic_newton": of_hotk(hotk.optim.cubic_newton()),
    "SciPy lm": of_scipy("lm"),
    "SciPy trf": of_scipy("trf"),
    "optimistix": of_optimistix,
}
PEERS = ("SciPy lm", "SciPy trf", "optimistix")
SETS = {
    "NIST": lambda: nist(scaled=False),
    "NIST, other units": lambda: nist(scaled=True),
    "classical": classical,
}


def fits(method: Any, problems: Iterator[list[Task]]) -> list[Fit]:
    """Fit all, each twice: to compile, and to measure the time."""
    found = []
    for tasks in problems:
        fit = method(tasks[0].residuals)
        for task in tasks:
            fit(task)
            begin = time.perf_counter()
            end = fit(task)
            seconds = time.perf_counter() - begin
            digits = task.digits(end.x / task.unit)
            found.append(Fit(task.name, end, digits, kind(task, end, digits), seconds))
    return found


def kind(task: Task, end: End, digits: float) -> str:
    """Tell where a method stopped."""
    if digits >= 4:
        return "solved"
    value = float(jnp.sum(task.residuals(jnp.asarray(end.x), task.unit) ** 2))
    if value <= (1 + 1e-4) * task.least:
        return "imprecise"
    stays = end.converged and value < (1 + 1e-4) * lower(task, end.x)
    return "elsewhere" if stays else "not reached"


def lower(task: Task, x: np.ndarray) -> float:
    """Return the least sum of squares that SciPy gets to from a point."""
    x, unit = x / task.unit, np.ones_like(task.unit)
    r = jax.jit(lambda x, _: task.residuals(x * task.unit, task.unit))
    jacobian = jax.jit(jax.jacfwd(r))
    tolerances = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-15)
    found = [np.inf]
    for name in ("trf", "lm"):
        try:
            ended = least_squares(r, jacobian, unit, x, name, **tolerances)
        except (ValueError, np.linalg.LinAlgError):
            continue
        found.append(2 * float(ended.cost))
    return min(found)


def rows(name: str, all_fits: dict[str, list[Fit]]) -> Iterator[Row]:
    """Count what the methods reach on one set of problems."""
    names = lambda fits: "; ".join(f.task for f in fits)
    unsolved = {m: [f for f in found if f.digits < 4] for m, found in all_fits.items()}
    fewest = min(len(unsolved[m]) for m in PEERS)
    known = {f.task: f for f in all_fits["SciPy lm"]}
    for method, found in all_fits.items():
        ours, what = method not in PEERS, f"{name}, {method}:"
        kinds = collections.Counter(f.kind for f in unsolved[method])
        counts = ", ".join(f"{count} {k}" for k, count in kinds.items())
        note = f"of {len(found)}; {counts}: {names(unsolved[method])}"
        less = len(unsolved[method])
        yield Row(
            f"{what} less than 4 digits", less, fewest if ours else None, None, note
        )
        yield Row(f"{what} less than 8 digits", sum(f.digits < 8 for f in found))
        wrong = [f for f in found if f.wrong]
        goal = 0 if ours else None
        yield Row(f"{what} wrong, but converged", len(wrong), goal, None, names(wrong))
        silent = [f for f in found if f.digits >= 4 and not f.end.converged]
        yield Row(
            f"{what} right, not converged", len(silent), None, None, names(silent)
        )
        both = [f for f in found if min(f.digits, known[f.task].digits) >= 4]
        ratio = statistics.median(
            f.end.residuals / known[f.task].end.residuals for f in both
        )
        jacobians = statistics.median(
            f.end.jacobians / known[f.task].end.jacobians for f in both
        )
        seconds = sum(f.seconds for f in found)
        note = f"where both solve; Jacobians {jacobians:.3g}; {seconds:.3g} s for all"
        goal = 1.0 if ours else None
        yield Row(f"{what} residuals / SciPy lm", ratio, goal, None, note)


def table(found: dict[str, list[Fit]]) -> Iterator[str]:
    """Write each fit in a line."""
    for name, each in found.items():
        for f in each:
            said = "converged" if f.end.converged else "not converged"
            verdict = "WRONG" if f.wrong else f.kind
            what = f"{name:<26}{f.task:<31}{f.digits:5.2f} {said:<14}{verdict:<16}"
            counts = f"{f.end.residuals:5d} {f.end.jacobians:5d} {f.seconds * 1e3:8.1f}"
            yield what + counts


def measure() -> Iterator[Row]:
    """Measure all of it."""
    with jax.enable_x64(True):
        for name, problems in SETS.items():
            found = {m: fits(method, problems()) for m, method in METHODS.items()}
            if EACH:
                print(f"--- {name}: digits, residuals, Jacobians, ms")
                print("\n".join(table(found)), flush=True)
            yield from rows(name, found)


EACH = "--each" in sys.argv


if __name__ == "__main__":
    if EACH:
        sys.argv.remove("--each")
    run(str(__doc__), measure)
