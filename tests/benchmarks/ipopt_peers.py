"""One IPOPT with derivatives of hotk and of CasADi, in turns."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import PyTree

from hotk.interop import ipopt_problem
from tests.benchmarks.interleaved import Ratio, compare
from tests.benchmarks.table import Row, of_ratio


T = TypeVar("T")

OPTIONS = {"tol": 1e-8, "max_iter": 300, "linear_solver": "mumps"}


class Contestant(NamedTuple):
    """A way to solve a problem.

    Attributes:
        derivatives: Computes those of one iteration at a flat vector.
        solve: Solves, and returns the value, the iterations and the flat solution.
        start: The flat vector at the start.
        solve_alone: Solves with the library's own IPOPT and returns the iterations.
    """

    derivatives: Callable[[np.ndarray], Any]
    solve: Callable[[], tuple[float, int, np.ndarray]]
    start: np.ndarray
    solve_alone: Callable[[], int] | None = None


class Sides(NamedTuple):
    """Bounds of variables and of constraints, as `IpoptProblem.solve` takes them."""

    lb: PyTree
    ub: PyTree
    cl: PyTree
    cu: PyTree


def of_hotk(
    f: Callable[..., Any], start: PyTree, g: Callable[..., Any], sides: Sides
) -> Contestant:
    """Return a problem with derivatives of hotk."""
    made = ipopt_problem(f, start, constraints=g)
    multipliers = np.linspace(-1.0, 1.0, made.m)

    def derivatives(z: np.ndarray) -> None:
        made.gradient(z)
        made.constraints(z)
        made.jacobian(z)
        made.hessian(z, multipliers, 1.0)

    def solve() -> tuple[float, int, np.ndarray]:
        steps = [0]
        made.intermediate = lambda mode, step, *_: steps.append(step)
        _, info = made.solve(**sides._asdict(), print_level=0, **OPTIONS)
        assert info["status"] == 0, info["status_msg"]
        return info["obj_val"], steps[-1], info["x"]

    return Contestant(derivatives, solve, made.x0)


def of_casadi(nlp: Mapping[str, Any], start: np.ndarray, sides: Sides) -> Contestant:
    """Return a problem with derivatives of CasADi; bounds are flat."""
    import casadi

    options = {f"ipopt.{name}": value for name, value in OPTIONS.items()}
    options |= {"ipopt.print_level": 0, "print_time": False, "ipopt.sb": "yes"}
    solver = casadi.nlpsol("solver", "ipopt", nlp, options)
    callbacks = _Callbacks(solver)
    multipliers = np.linspace(-1.0, 1.0, nlp["g"].numel())

    def derivatives(z: np.ndarray) -> None:
        callbacks.gradient(z)
        callbacks.jacobian(z)
        callbacks.hessian(z, multipliers, 1.0)

    def solve() -> tuple[float, int, np.ndarray]:
        import cyipopt

        n, m = len(start), len(multipliers)
        made = cyipopt.Problem(n=n, m=m, problem_obj=callbacks, **sides._asdict())
        for name, value in {**OPTIONS, "print_level": 0}.items():
            made.add_option(name, value)
        z, info = made.solve(start)
        assert info["status"] == 0, info["status_msg"]
        return info["obj_val"], callbacks.steps, z

    def solve_alone() -> int:
        lb, ub, cl, cu = sides
        solver(x0=start, lbx=lb, ubx=ub, lbg=cl, ubg=cu)
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


def compared(
    name: str,
    make_ours: Callable[[], Contestant],
    make_theirs: Mapping[str, Callable[[], Contestant]],
) -> Iterator[Row]:
    """Compare derivatives, first calls and whole solves of one problem.

    Args:
        name: Its name.
        make_ours: Makes it with derivatives of hotk.
        make_theirs: Makes it with those of CasADi, by their kind.
    """
    built, ours = cpu_seconds(make_ours)
    first, _ = cpu_seconds(functools.partial(ours.derivatives, ours.start))
    for kind, make in make_theirs.items():
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
