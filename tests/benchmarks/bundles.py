"""Steps of Levenberg and Marquardt for cameras and points, beside Ceres.

`pip install pyceres`, then `python -m tests.benchmarks.bundles`. Ceres gets residuals
and Jacobians from here, through Python, one observation after the other; so only the
time of its linear solver is compared, with whole steps of hotk.
"""

import functools
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import hotk
from tests.benchmarks import sparse_problems as problems
from tests.benchmarks.table import Row, duration, run


STEPS = 20
STEPS_OF_CERES = 3  # of the same size each; Python takes seconds for the residuals


def steps_of_hotk(cameras: int, points: int) -> float:
    """Return the seconds of one step."""
    residuals, x = problems.bundle(cameras, points)
    loss = hotk.curvature.LeastSquares(residuals)
    transform = hotk.optim.levenberg_marquardt(linear_solver="sparse")
    fit = functools.partial(hotk.optim.minimize, loss, x, transform)
    fit(max_steps=STEPS)
    start = time.perf_counter()
    jax.block_until_ready(fit(max_steps=STEPS).x)
    return (time.perf_counter() - start) / STEPS


def steps_of_ceres(cameras: int, points: int) -> float:
    """Return the seconds of the linear solver for one step.

    One thread, dense Schur complement.
    """
    import pyceres

    given = problems.observed(cameras, points)
    blocks = {name: [*np.array(a)] for name, a in given.start.items()}
    one = lambda c, p, seen: problems.projected(c[None], p[None])[0] - seen
    value = jax.jit(one)
    linearized = jax.jit(lambda *at: (one(*at), *jax.jacfwd(one, (0, 1))(*at)))
    seen = np.asarray(given.seen)

    class Observation(pyceres.CostFunction):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.seen = seen[number]
            self.set_num_residuals(2)
            self.set_parameter_block_sizes([9, 3])

        def Evaluate(self, parameters: Any, residuals: Any, jacobians: Any) -> bool:
            if jacobians is None:
                residuals[:] = value(*parameters, self.seen)
                return True
            residuals[:], *both = map(np.asarray, linearized(*parameters, self.seen))
            for given, found in zip(jacobians, both, strict=True):
                if given is not None:
                    given[:] = found.ravel()
            return True

    problem = pyceres.Problem()
    pairs = zip(given.camera.tolist(), given.point.tolist(), strict=True)
    for number, (c, p) in enumerate(pairs):
        owners = [blocks["cameras"][c], blocks["points"][p]]
        problem.add_residual_block(Observation(number), None, owners)
    options = pyceres.SolverOptions()
    options.linear_solver_type = pyceres.LinearSolverType.DENSE_SCHUR
    options.max_num_iterations = STEPS_OF_CERES
    options.num_threads = 1
    options.minimizer_progress_to_stdout = False
    told = pyceres.SolverSummary()
    pyceres.solve(options, problem, told)
    count = told.num_successful_steps + told.num_unsuccessful_steps
    return told.linear_solver_time_in_seconds / count


def steps() -> Iterator[Row]:
    """Compare whole steps with the linear solver of Ceres."""
    for cameras, points in ((50, 10_000), (200, 50_000)):
        ours, theirs = steps_of_hotk(cameras, points), steps_of_ceres(cameras, points)
        name = f"a step, {cameras} cameras and {points} points / linear solver of Ceres"
        note = f"{duration(ours)} / {duration(theirs)}, one run each"
        yield Row(name, ours / theirs, 2.0, note=note)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    run(__doc__, steps)
