"""Problems with bounds alone, with their starts, bounds and minima.

Those of Moré, Garbow and Hillstrom have the bounds of Gay (1984), A trust-region
approach to linearly constrained optimization, Lecture Notes in Mathematics 1066,
72-105. The others are from Hock and Schittkowski (1981), Test examples for nonlinear
programming codes, Lecture Notes in Economics and Mathematical Systems 187; some of
their starts are outside of the bounds, and are clipped here. The minima of the first
kind are those on which methods of SciPy agree: `test_bounds.py` certifies that they are
minima.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tests.optim import problems


INF = np.inf


class Bounded(NamedTuple):
    """A function with bounds.

    Attributes:
        f: The function; of a sum of squares the residuals.
        start: The start, within the bounds.
        lower: The lower bounds.
        upper: The upper ones.
        minima: Of the function, or of the sum of squares.
        squares: Whether it is a sum of squares.
    """

    f: Callable[[Any], Any]
    start: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    minima: tuple[float, ...]
    squares: bool

    def value(self, x):
        """Return the function, or the sum of squares."""
        y = self.f(x)
        return jnp.sum(y**2) if self.squares else y

    def solved(self, y):
        """Whether a value is a minimum to six digits, or small where that is 0."""
        scale = max(abs(float(self.value(jnp.asarray(self.start)))), 1.0)
        return any(
            abs(y - m) <= (1e-6 * abs(m) if m else 1e-10 * scale) for m in self.minima
        )


def bounded(f, start, lower, upper, *minima, squares=True):
    start = np.array(start, float)
    lower, upper = (
        np.broadcast_to(np.array(b, float), start.shape) for b in (lower, upper)
    )
    return Bounded(f, np.clip(start, lower, upper), lower, upper, minima, squares)


def hs25(x):
    t = jnp.arange(1.0, 100.0) / 100
    return jnp.exp(-((25 + (-50 * jnp.log(t)) ** (2 / 3) - x[1]) ** x[2]) / x[0]) - t


def hs110(x):
    return jnp.sum(jnp.log(x - 2) ** 2 + jnp.log(10 - x) ** 2) - jnp.prod(x) ** 0.2


def rosenbrock(x):
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def hs3(x):
    return x[1] + 1e-5 * (x[1] - x[0]) ** 2


def hs4(x):
    return (x[0] + 1) ** 3 / 3 + x[1]


def hs5(x):
    a, b = x
    return jnp.sin(a + b) + (a - b) ** 2 - 1.5 * a + 2.5 * b + 1


def hs45(x):
    return 2 - jnp.prod(x) / 120


def plain(f, start, lower, upper, *minima):
    return bounded(f, start, lower, upper, *minima, squares=False)


# From the book, with the local minimum of the second that it names as well.
HOCK_SCHITTKOWSKI = {
    "HS1": plain(rosenbrock, [-2, 1], [-INF, -1.5], INF, 0.0),
    "HS2": plain(rosenbrock, [-2, 1], [-INF, 1.5], INF, 0.05042618790, 4.94122931798),
    "HS3": plain(hs3, [10, 1], [-INF, 0], INF, 0.0),
    "HS4": plain(hs4, [1.125, 0.125], [1, 0], INF, 8 / 3),
    "HS5": plain(hs5, [0, 0], [-1.5, -3], [4, 3], -(3**0.5) / 2 - np.pi / 3),
    "HS25": bounded(hs25, [100, 12.5, 3], [0.1, 0, 0], [100, 25.6, 5], 0.0),
    "HS38": bounded(problems.wood, [-3, -1, -3, -1], -10, 10, 0.0),
    "HS45": plain(hs45, [2] * 5, 0, [1, 2, 3, 4, 5], 1.0),
    "HS110": plain(hs110, [9] * 10, 2.001, 9.999, -45.77846971),
}
# Lower bounds, upper bounds, minima.
GAY: dict[str, tuple[Any, ...]] = {
    "Rosenbrock": ([-50, 0], [0.5, 100], 0.25),
    "Freudenstein and Roth": ([0, -30], [20, -0.9], 48.9852019969),
    "Powell, badly scaled": ([0, 1], [1, 9], 1.51259367e-10),
    "Brown, badly scaled": ([0, 3e-5], [1e6, 100], 784.0),
    "Beale": ([0.6, 0.5], [10, 100], 0.0),
    "Jennrich and Sampson": ([0.26, 0], [10, 20], 124.383112916),
    "helical valley": ([-100, -1, -1], [0.8, 1, 1], 0.990422121),
    "Bard": ([0.1, 0, 0], [50, 100, 50], 9.58228472e-3),
    "Gaussian": ([0.398, 1, -0.5], [4.2, 2, 0.1], 1.12793277e-8),
    "Meyer": ([0.006, 0, 0], [2, 3e5, 3e4], 127.4517712),
    "Gulf": ([0, 0, 0], [10, 10, 10], 5.121685716),
    "Box": ([0, 5, 0], [2, 9.5, 20], 1.143481803e-4),
    "Powell, singular": ([0.1, -20, -1, -1], [100, 20, 1, 50], 1.878196301e-4),
    "Wood": ([-100] * 4, [0, 10, 100, 100], 1.5567008, 7.093836425),
    "Kowalik and Osborne": ([0, -1, 0.13, 0.12], [10, 12, 13, 12], 3.078307235e-4),
    "Brown and Dennis": ([-10, 0, -100, -20], [100, 15, 0, 0.2], 88860.47977),
    "Osborne 1": ([0, 0, -50, 0, 0], [50, 1.9, -0.1, 10, 10], 5.470283343e-5),
    "Biggs": ([0, 0, 0, 1, 0, 0], [2, 8, 1, 7, 5, 5], 5.320986591e-4),
    "Osborne 2": (
        [1, 0.5, 0, 0.6, *[0] * 7],
        [150, *[100] * 4, *[500] * 3, 100, 10, 0],
        0.510230522,
    ),
    "Watson": ([-0.015, *[-10] * 5], [10, *[100] * 4, 0.99], 2.289606438e-3),
    "Brown, almost linear": (
        [0, 1, *[0] * 8],
        [100, 100, 0.9, *[100] * 7],
        6.093178577e-3,
    ),
    "linear, full rank": ([-0.5, *[-2] * 9], 100, 10.25),
    "linear, rank 1": ([-0.9, *[-2] * 9], 100, 380 / 82),
    "linear, rank 1 with zeros": ([0, -0.4, 0.3, *[0] * 7], 100, 6.89),
    "Chebyquad": ([0, 0, 0.1, *[0] * 5], [0.04, 0.2, 0.3, *[1] * 5], 3.592242386e-3),
}
CLASSICAL = {
    name: bounded(
        problems.PROBLEMS[name].residuals,
        problems.PROBLEMS[name].start,
        lower,
        upper,
        *minima,
    )
    for name, (lower, upper, *minima) in GAY.items()
}
BOUNDED = {**HOCK_SCHITTKOWSKI, **CLASSICAL}
