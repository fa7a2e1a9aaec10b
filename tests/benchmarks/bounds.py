"""Minima within bounds, beside L-BFGS-B, trust-constr and trf of SciPy.

The problems of Moré, Garbow and Hillstrom with the bounds of Gay, those of Hock and
Schittkowski with bounds alone, and the regressions of NIST from the near start in two
boxes: one around start and solution, and one that leaves the solution out, at the
middle between the start and it in the first parameter. In float64; SciPy's methods
with tolerances of 1e-8 for the gradient, hotk's with their defaults, at most a thousand
steps. Solved is a value to six digits. A minimum that is not known is the least value
that any of the methods reaches. Work is counted in gradients: a value without
its gradient is a third, a product two, a Jacobian of n columns n thirds and one.
With `--each` every run is printed.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import hotk
from tests.benchmarks.regressions import counted
from tests.benchmarks.table import Row, run
from tests.optim.bounded_problems import BOUNDED, Bounded
from tests.optim.nist import REGRESSIONS


LIMIT = 1000


class End(NamedTuple):
    """Where a method stopped.

    Attributes:
        value: The value there.
        converged: Whether it says that it converged.
        work: In gradients.
        seconds: Of the second run.
    """

    value: float
    converged: bool
    work: float
    seconds: float


def nist(binding: bool) -> Iterator[tuple[str, Bounded]]:
    """Return the regressions in boxes."""
    for name, known in REGRESSIONS.items():
        start, end = known.starts[1], known.certified
        room = 10 * abs(start - end) + abs(end)
        lower, upper = np.minimum(start, end) - room, np.maximum(start, end) + room
        # the data of Lanczos1 are exact
        least = known.sum_of_squares if known.sum_of_squares > 1e-20 else 0.0
        minima: tuple[float, ...] = (least,)
        if binding:
            middle, minima = (start[0] + end[0]) / 2, ()
            limit = lower if start[0] > end[0] else upper
            limit[0] = middle
        yield name, Bounded(known.residuals, start, lower, upper, minima, True)


SETS: dict[str, Callable[[], dict[str, Bounded]]] = {
    "classical": lambda: BOUNDED,
    "NIST, solution inside": lambda: dict(nist(binding=False)),
    "NIST, solution outside": lambda: dict(nist(binding=True)),
}


def objective(problem: Bounded) -> Any:
    """Return half the sum of squares, or the function."""
    return hotk.curvature.LeastSquares(problem.f) if problem.squares else problem.f


def of_hotk(transform: Any) -> Callable[[Bounded], Callable[[], Any]]:
    """Return `minimize` with a transformation, and its work."""

    def method(problem: Bounded) -> Callable[[], Any]:
        f, n = objective(problem), len(problem.start)
        box = problem.lower, problem.upper

        def solve() -> Any:
            found = hotk.optim.minimize(
                f,
                jnp.asarray(problem.start),
                summed(transform),
                bounds=box,
                max_steps=LIMIT,
            )
            (_, trials), total = found.state
            steps, products = int(found.steps), int(total)
            factored = found.state[0][0][0].solver == hotk.optim.LinearSolver.factored
            # products: one in each step for the length of the first, at most
            second = (1 + n / 3) * steps if factored else 2 * products + 2
            work = 1 + steps + int(trials) / 3 + second
            return float(found.value), bool(found.converged), work

        return solve

    return method


def summed(transform: Any) -> Any:
    """Count trials and products of a transformation in its state."""
    inner = counted(transform)

    def init(params: Any) -> Any:
        return inner.init(params), jnp.zeros((), int)

    def update(gradient: Any, state: Any, params: Any = None, **more: Any) -> Any:
        updates, after = inner.update(gradient, state[0], params, **more)
        [products] = [
            part.iterations
            for part in jax.tree.leaves(after, is_leaf=_is_ours)
            if _is_ours(part)
        ]
        return updates, (after, state[1] + products)

    return type(inner)(init, update)


def _is_ours(part: Any) -> bool:
    return isinstance(part, hotk.optim.GlobalizedState)


def of_minimize(name: str) -> Callable[[Bounded], Callable[[], Any]]:
    """Return a method of `scipy.optimize.minimize`."""

    def method(problem: Bounded) -> Callable[[], Any]:
        f = objective(problem)
        both = jax.jit(jax.value_and_grad(f))
        product = jax.jit(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1])
        options = {"maxiter": LIMIT, "gtol": 1e-8}
        more: dict[str, Any] = {}
        if name == "L-BFGS-B":
            options |= {"ftol": 1e-15, "maxfun": 10 * LIMIT}
        box = scipy.optimize.Bounds(problem.lower, problem.upper)  # type: ignore

        def solve() -> Any:
            counts = {"both": 0, "product": 0}

            def fun(x: Any) -> Any:
                counts["both"] += 1
                y, g = both(x)
                return float(y), np.asarray(g)

            def hessp(x: Any, v: Any) -> Any:
                counts["product"] += 1
                return np.asarray(product(x, np.asarray(v, float)))

            if name == "trust-constr":
                more["hessp"] = hessp
            found = scipy.optimize.minimize(
                fun,
                problem.start,
                jac=True,
                method=name,
                bounds=box,
                options=options,
                **more,
            )
            work = counts["both"] + 2 * counts["product"]
            return float(found.fun), bool(found.success), work

        return solve

    return method


def of_trf(problem: Bounded) -> Callable[[], Any]:
    """Return the bounded method of `scipy.optimize.least_squares`."""
    r, jacobian = jax.jit(problem.f), jax.jit(jax.jacfwd(problem.f))

    def solve() -> Any:
        found = scipy.optimize.least_squares(
            lambda x: np.asarray(r(x)),
            problem.start,
            lambda x: np.asarray(jacobian(x)),
            bounds=(problem.lower, problem.upper),
            x_scale="jac",
            max_nfev=LIMIT,
        )
        work = found.nfev / 3 + (1 + len(problem.start) / 3) * found.njev
        return float(found.cost), bool(found.success), work

    return solve


METHODS: dict[str, Callable[[Bounded], Callable[[], Any]]] = {
    "trust_region": of_hotk(hotk.optim.trust_region()),
    "levenberg_marquardt": of_hotk(hotk.optim.levenberg_marquardt()),
    "L-BFGS-B": of_minimize("L-BFGS-B"),
    "trust-constr": of_minimize("trust-constr"),
    "trf": of_trf,
}
OF_SQUARES = ("levenberg_marquardt", "trf")
BESIDE = {
    "trust_region": ("L-BFGS-B", "trust-constr"),
    "levenberg_marquardt": ("L-BFGS-B", "trf"),
}


def ends(method: str, problem: Bounded) -> End:
    """Minimize twice: to compile, and to measure the time."""
    solve = METHODS[method](problem)
    with np.errstate(all="ignore"):
        try:
            solve()
            begin = time.perf_counter()
            value, converged, work = solve()
        except (ValueError, np.linalg.LinAlgError):  # not finite, or equal bounds
            return End(np.nan, False, np.nan, 0.0)
    factor = 2 if problem.squares else 1
    return End(factor * value, converged, work, time.perf_counter() - begin)


def is_solved(problem: Bounded, value: float, least: float) -> bool:
    """Whether a value is one of the minima, or the least one."""
    if problem.minima:
        return problem.solved(value)
    return bool(abs(value - least) <= 1e-6 * abs(least) + 1e-20)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    with jax.enable_x64(True):
        for name, make in SETS.items():
            yield from of_set(name, make())


def of_set(name: str, tasks: dict[str, Bounded]) -> Iterator[Row]:
    """Compare the methods on a set of problems."""
    # trust-constr takes minutes for the regressions
    methods = [m for m in METHODS if m != "trust-constr" or name == "classical"]
    found: dict[str, dict[str, End]] = {m: {} for m in methods}
    for task, problem in tasks.items():
        for method in methods:
            if problem.squares or method not in OF_SQUARES:
                found[method][task] = ends(method, problem)
    values = lambda t: [e[t].value for e in found.values() if t in e]
    least = {t: np.nanmin(values(t)) for t in tasks}
    solved = {
        m: {t for t, e in each.items() if is_solved(tasks[t], e.value, least[t])}
        for m, each in found.items()
    }
    if EACH:
        for method, each in found.items():
            for task, end in each.items():
                mark = "solved" if task in solved[method] else "-"
                print(f"{method:<20} {task:<28} {mark:<7}", end, flush=True)
    for method, each in found.items():
        missed = [t for t in each if t not in solved[method]]
        beside = [p for p in BESIDE.get(method, ()) if p in found]
        peers = [len(found[p]) - len(solved[p]) for p in beside]
        seconds = sum(e.seconds for e in each.values())
        note = f"of {len(each)}; {seconds:.3g} s for all; {'; '.join(missed)}"
        yield Row(
            f"{name}, {method}: not solved",
            len(missed),
            min(peers) if peers else None,
            None,
            note,
        )
        for peer in beside:
            common = solved[method] & solved[peer]
            ratios = [each[t].work / found[peer][t].work for t in common]
            times = sum(each[t].seconds for t in common)
            theirs = sum(found[peer][t].seconds for t in common)
            yield Row(
                f"{name}, {method}: work / {peer}, median",
                statistics.median(ratios),
                1.0,
                None,
                f"on {len(common)} that both solve; {times:.3g} s / {theirs:.3g} s",
            )


EACH = "--each" in sys.argv


if __name__ == "__main__":
    if EACH:
        sys.argv.remove("--each")
    run(str(__doc__), measure)
