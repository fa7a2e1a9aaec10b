"""Minimizers on the problems of CUTEst, beside those of SciPy.

The problems are those of the package sif2jax (Haffner and Viljoen), without bounds or
with bounds alone, of at most `--size` variables (60 if not given) and more than
`--above` (none). `--methods` names those to run, with a slash between, and `--seconds`
the longest run: it ends at the next step. `pip install --no-deps sif2jax`: what else it
needs is there. In float64, at most a thousand steps; SciPy's methods with tolerances of
1e-8 for the gradient, hotk's with their defaults.

A run solves a problem where its value is the least of all methods to six digits, or
where it ends in another minimum: what a step of Newton's method promises there, by the
absolute values of the eigenvalues of the scaled Hessian, is below 1e-9 of the value (or
1e-14 of what the method has won), and no eigenvalue is negative. Of more than 500
variables the value alone counts. Variables at a bound
to which the gradient holds them are left out of it. With `--each` every run that does
not solve its problem, or says so wrongly, is printed.
"""

import argparse
import signal
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import hotk
from tests.benchmarks.table import Row, run


LIMIT = 1000
OURS: dict[str, Callable[..., Any]] = {
    "trust_region": lambda: hotk.optim.trust_region(),
    "trust_region, sparse": lambda: hotk.optim.trust_region(linear_solver="sparse"),
    "trust_region, steihaug": lambda: hotk.optim.trust_region(subproblem="steihaug"),
    "newton": lambda: hotk.optim.newton(),
    "newton_cg": lambda: hotk.optim.newton_cg(),
    "cubic_newton": lambda: hotk.optim.cubic_newton(),
}
USUAL = (
    "trust_region",
    "trust_region, steihaug",
    "newton",
    "newton_cg",
    "cubic_newton",
)
FREE = ("trust-exact", "trust-ncg", "Newton-CG", "BFGS", "L-BFGS-B")
BOUNDED = ("L-BFGS-B", "trust-constr", "TNC")


class Problem(NamedTuple):
    """A problem of CUTEst.

    Attributes:
        name: Its name.
        f: The function.
        start: The start.
        bounds: Lower and upper ones.
    """

    name: str
    f: Callable[[Any], Any]
    start: np.ndarray
    bounds: tuple[np.ndarray, np.ndarray] | None


class End(NamedTuple):
    """Where a method stopped.

    Attributes:
        x: The point.
        value: The value there.
        converged: Whether it says that it converged.
        steps: How many it took.
        text: What it says.
    """

    x: np.ndarray
    value: float
    converged: bool
    steps: int
    text: str


class Asked(NamedTuple):
    """What is to be run.

    Attributes:
        size: The most variables.
        above: There are more than these.
        methods: Names of methods; all but the sparse one if there are none.
        seconds: The longest run, zero for any.
        each: Whether each run that fails is printed.
    """

    size: int = 60
    above: int = 0
    methods: tuple[str, ...] = ()
    seconds: int = 0
    each: bool = False


class TooLate(Exception):
    """A run has taken too many seconds."""


def problems(bounded: bool, size: int, above: int = 0) -> Iterator[Problem]:
    """Return the problems of at most so many variables, and more than some."""
    from sif2jax import cutest

    listed = (
        cutest.bounded_minimisation_problems
        if bounded
        else cutest.unconstrained_minimisation_problems
    )
    for problem in listed:
        start = np.asarray(problem.y0, float)
        if start.ndim != 1 or not above < start.size <= size:
            continue
        bounds = None
        if bounded:
            lower, upper = problem.bounds
            bounds = (
                np.broadcast_to(np.asarray(lower, float), start.shape).copy(),
                np.broadcast_to(np.asarray(upper, float), start.shape).copy(),
            )
            start = np.clip(start, *bounds)
        f = lambda x, problem=problem: problem.objective(x, problem.args)
        yield Problem(problem.name, f, start, bounds)


def of_hotk(transform: Callable[..., Any]) -> Callable[[Problem], End]:
    """Return `minimize` with a transformation."""

    def solve(problem: Problem) -> End:
        found = hotk.optim.minimize(
            problem.f,
            jnp.asarray(problem.start),
            transform=transform(),
            max_steps=LIMIT,
            bounds=problem.bounds,
        )
        x = np.asarray(found.x)
        return End(
            x,
            float(problem.f(jnp.asarray(x))),
            bool(found.converged),
            int(found.steps),
            str(found.reason),
        )

    return solve


def of_scipy(method: str) -> Callable[[Problem], End]:
    """Return a method of SciPy."""
    second = {
        "trust-exact": "hess",
        "trust-ncg": "hessp",
        "Newton-CG": "hessp",
        "trust-constr": "hess",
    }

    def solve(problem: Problem) -> End:
        gradient = jax.jit(jax.grad(problem.f))
        asked: dict[str, Any] = {}
        if second.get(method) == "hess":
            hessian = jax.jit(jax.hessian(problem.f))
            asked["hess"] = lambda x: np.asarray(hessian(x))
        if second.get(method) == "hessp":
            product = jax.jit(lambda x, v: jax.jvp(jax.grad(problem.f), (x,), (v,))[1])
            asked["hessp"] = lambda x, v: np.asarray(product(x, v))
        value = jax.jit(problem.f)
        # Newton-CG has no tolerance for the gradient, and TNC no limit of its steps.
        options: dict[str, Any] = {"maxiter": LIMIT, "gtol": 1e-8}
        if method == "Newton-CG":
            options = {"maxiter": LIMIT, "xtol": 1e-10}
        if method == "TNC":
            options = {"maxfun": 10 * LIMIT, "gtol": 1e-8}
        if method == "L-BFGS-B":
            options |= {"ftol": 1e-14, "maxfun": 10 * LIMIT}
        if problem.bounds is not None:
            asked["bounds"] = scipy.optimize.Bounds(*problem.bounds)
        try:
            with np.errstate(all="ignore"):
                found = scipy.optimize.minimize(
                    lambda x: float(value(x)),
                    problem.start,
                    jac=lambda x: np.asarray(gradient(x)),
                    method=method,
                    options=options,
                    **asked,
                )
        except (ValueError, np.linalg.LinAlgError) as error:
            return End(problem.start, np.inf, False, 0, str(error))
        return End(
            np.asarray(found.x),
            float(found.fun),
            bool(found.success),
            int(found.get("nit", 0)),
            str(found.message),
        )

    return solve


def is_minimum(problem: Problem, end: End) -> bool:
    """Whether a point is a minimum, as the head of this module says."""
    x = jnp.asarray(end.x)
    gradient = np.asarray(jax.jit(jax.grad(problem.f))(x))
    hessian = np.asarray(jax.jit(jax.hessian(problem.f))(x))
    if not (np.isfinite(gradient).all() and np.isfinite(hessian).all()):
        return False
    free = np.ones(len(gradient), bool)
    if problem.bounds is not None:
        lower, upper = problem.bounds
        free &= ~((end.x <= lower) & (gradient >= 0))
        free &= ~((end.x >= upper) & (gradient <= 0))
    if not free.any():
        return True
    gradient, hessian = gradient[free], hessian[np.ix_(free, free)]
    scale = np.sqrt(np.abs(np.diagonal(hessian)))
    scale = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(hessian / np.outer(scale, scale))
    along = vectors.T @ (gradient / scale)
    floor = max(1e-14 * np.abs(values).max(), np.finfo(float).tiny)
    promised = float(np.sum(along**2 / 2 / np.maximum(np.abs(values), floor)))
    won = float(problem.f(jnp.asarray(problem.start))) - end.value
    little = 1e-9 * abs(end.value) + 1e-14 * max(won, 0.0)
    return promised <= little and values.min() >= -1e-7 * values.max()


def solved(problem: Problem, end: End, least: float) -> bool:
    """Whether a run solves its problem."""
    if not np.isfinite(end.value):
        return False
    won = float(problem.f(jnp.asarray(problem.start))) - least
    near = end.value - least <= 1e-6 * abs(least) + 1e-14 * max(won, 0.0)
    return near or (len(end.x) <= 500 and is_minimum(problem, end))


def in_time(
    method: Callable[[Problem], End], problem: Problem, seconds: int
) -> tuple[End, float]:
    """Run a method, at most for so many seconds, and return what it took."""

    def stop(number: int, frame: object) -> None:
        del number, frame
        raise TooLate

    began = time.perf_counter()
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        end = method(problem)
    except TooLate:
        end = End(problem.start, np.inf, False, 0, f"more than {seconds} seconds")
    finally:
        signal.alarm(0)
    return end, time.perf_counter() - began


def measure(bounded: bool, asked: Asked) -> Iterator[Row]:
    """Run all methods on all problems without bounds, or on those with them."""
    with jax.enable_x64(True):
        yield from measured(bounded, asked)


def measured(bounded: bool, asked: Asked) -> Iterator[Row]:
    """Run them in the precision that is set."""
    methods: dict[str, Callable[[Problem], End]] = {}
    theirs = BOUNDED if bounded else FREE
    for name in asked.methods or ((USUAL[:1] if bounded else USUAL) + theirs):
        if name not in (*OURS, *FREE, *BOUNDED):
            raise ValueError(f"{name!r} is none of {(*OURS, *FREE, *BOUNDED)}.")
        methods[name] = of_hotk(OURS[name]) if name in OURS else of_scipy(name)
    missed: dict[str, list[str]] = {name: [] for name in methods}
    wrong: dict[str, list[str]] = {name: [] for name in methods}
    unsure: dict[str, list[str]] = {name: [] for name in methods}
    steps: dict[str, int] = dict.fromkeys(methods, 0)
    count = 0
    seconds: dict[str, float] = dict.fromkeys(methods, 0.0)
    for problem in problems(bounded, asked.size, asked.above):
        count += 1
        ends = {}
        for name, method in methods.items():
            ends[name], took = in_time(method, problem, asked.seconds)
            seconds[name] += took
        values = [e.value for e in ends.values()]
        least = min(filter(np.isfinite, values), default=np.inf)
        for name, end in ends.items():
            ok = solved(problem, end, least)
            steps[name] += end.steps
            if not ok:
                missed[name].append(problem.name)
            if end.converged and not ok:
                wrong[name].append(problem.name)
            if ok and not end.converged:
                unsure[name].append(problem.name)
            if asked.each and name in OURS and (not ok or not end.converged):
                print(
                    f"{problem.name:12} {name:20} {end.value:.12e} least {least:.12e} "
                    f"{end.steps} steps, converged {end.converged}, solved {ok}: "
                    f"{end.text}",
                    flush=True,
                )
        jax.clear_caches()
    kind = "bounded" if bounded else "unconstrained"
    best = min((len(missed[m]) for m in theirs if m in methods), default=None)
    goal = best if bounded or asked.above else 1
    rows = [(f"not solved, of {count}", missed, goal)]
    rows += [("no minimum, called converged", wrong, 0)]
    rows += [("a minimum, not called converged", unsure, None)]
    for name in methods:
        ours = name in OURS
        for what, of, wanted in rows if ours else rows[:1]:
            note = ", ".join(of[name])
            aim = wanted if ours else None
            yield Row(f"{kind}, {name}: {what}", len(of[name]), aim, None, note)
        yield Row(f"{kind}, {name}: steps", steps[name])
        yield Row(f"{kind}, {name}: seconds, compiling included", seconds[name])


if __name__ == "__main__":
    own = argparse.ArgumentParser(add_help=False)
    own.add_argument("--size", type=int, default=60)
    own.add_argument("--above", type=int, default=0)
    own.add_argument("--methods", type=lambda a: tuple(a.split("/")), default=())
    own.add_argument("--seconds", type=int, default=0)
    own.add_argument("--each", action="store_true")
    options, sys.argv[1:] = own.parse_known_args()
    asked = Asked(**vars(options))
    run(str(__doc__), *(partial(measure, b, asked) for b in (False, True)))
