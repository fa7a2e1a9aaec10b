"""Minimizers on the problems of Moré, Garbow and Hillstrom, beside those of SciPy.

All run in float64 from the standard start until the gradient's norm is 1e-8 (SciPy's
Newton-CG has no such tolerance: until its steps are 1e-10 in the mean). Counted are
values, gradients and products with the Hessian; one Hessian of SciPy's trust-exact, and
one of ours, counts as one.
"""

import statistics
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

import hotk
from tests.benchmarks.table import Row, run
from tests.optim.problems import PROBLEMS


LIMIT = 1500
OURS = {
    "trust_region, steihaug": (
        hotk.optim.trust_region(subproblem="steihaug"),
        "trust-ncg",
    ),
    "trust_region, exact": (
        hotk.optim.trust_region(subproblem="exact"),
        "trust-exact",
    ),
    "newton_cg": (hotk.optim.newton_cg(), "Newton-CG"),
}


class Counted:
    """How often value, gradient and second derivatives were asked for."""

    def __init__(self, problem: Any) -> None:
        self.counts = {"value": 0, "gradient": 0, "product": 0}
        self.value = self._counting("value", jax.jit(problem.value), float)
        self.gradient = self._counting(
            "gradient", jax.jit(jax.grad(problem.value)), np.asarray
        )
        self.hessian = self._counting(
            "product", jax.jit(jax.hessian(problem.value)), np.asarray
        )
        product = jax.jit(lambda x, v: jax.jvp(jax.grad(problem.value), (x,), (v,))[1])
        self.product = self._counting("product", product, np.asarray)

    def _counting(self, name: str, f: Any, convert: Any) -> Any:
        def counted(*given: Any) -> Any:
            self.counts[name] += 1
            return convert(f(*given))

        return counted


def of_scipy(problem: Any, method: str) -> tuple[bool, dict[str, int]]:
    """Return whether SciPy solves a problem, and the counts."""
    counted = Counted(problem)
    exact = method == "trust-exact"
    options = {"xtol": 1e-10} if method == "Newton-CG" else {"gtol": 1e-8}
    with np.errstate(all="ignore"):
        try:
            found = scipy.optimize.minimize(
                counted.value,
                np.asarray(problem.start, float),
                jac=counted.gradient,
                hess=counted.hessian if exact else None,
                hessp=None if exact else counted.product,
                method=method,
                options={"maxiter": LIMIT, **options},
            )
        except (ValueError, np.linalg.LinAlgError):
            return False, counted.counts
    return problem.solved(float(found.fun)), counted.counts


def of_hotk(problem: Any, transform: Any) -> tuple[bool, dict[str, int]]:
    """Return whether a transformation solves a problem, and the counts."""
    x = jnp.asarray(problem.start, float)
    state = transform.init(x)
    counts = {"value": 0, "gradient": 1, "product": 1}  # one for the first radius
    gradient = jax.jit(jax.grad(problem.value))
    g, still = gradient(x), 0
    for _ in range(LIMIT):
        if jnp.linalg.norm(g) <= 1e-8 or still == 3:
            break
        updates, state = transform.update(g, state, x, value_fn=problem.value)
        still = still + 1 if not jnp.any(updates) else 0
        for part in state:
            if isinstance(part, hotk.optim.GlobalizedState):
                trials = int(part.rejections) + int(jnp.any(updates))
                dense = int(part.iterations) == trials * len(x) and trials > 0
                counts["value"] += trials
                counts["product"] += 1 if dense else int(part.iterations)
            elif isinstance(part, hotk.optim.NewtonCGState):
                counts["product"] += int(part.iterations)
            elif isinstance(part, hotk.optim.LineSearchState):
                counts["value"] += int(part.evaluations)
        x = x + updates
        g = gradient(x)
        counts["gradient"] += 1
    return problem.solved(float(problem.value(x))), counts


def measure() -> Iterator[Row]:
    """Measure all of it."""
    with jax.enable_x64(True):
        yield from counts()


def counts() -> Iterator[Row]:
    """Count the problems that are solved, and what it takes."""
    for name, (transform, method) in OURS.items():
        ours = {n: of_hotk(p, transform) for n, p in PROBLEMS.items()}
        theirs = {n: of_scipy(p, method) for n, p in PROBLEMS.items()}
        missed = [
            [n for n, (ok, _) in found.items() if not ok] for found in (ours, theirs)
        ]
        goal = 0 if "exact" in name else len(missed[1])
        note = f"{', '.join(missed[0]) or 'all solved'}; {method}: {len(missed[1])}"
        yield Row(
            f"{name}: not solved, of {len(PROBLEMS)}", len(missed[0]), goal, None, note
        )
        both = [n for n in PROBLEMS if ours[n][0] and theirs[n][0]]
        for what in ("value", "gradient", "product"):
            ratios = [ours[n][1][what] / max(theirs[n][1][what], 1) for n in both]
            note = f"on {len(both)} problems that both solve"
            row = f"{name}: {what}s / {method}, median"
            yield Row(row, statistics.median(ratios), 1.0, None, note)


if __name__ == "__main__":
    run(str(__doc__), measure)
