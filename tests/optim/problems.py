"""Test problems of Moré, Garbow and Hillstrom, with their starts and minima.

Moré, Garbow and Hillstrom (1981). Testing unconstrained optimization software. ACM
Trans. Math. Softw. 7(1), 17-41. All 35 are sums of squares; where the paper lists
several minima, any is a minimum. Numbers in brackets are those of the paper. The digits
of a minimum that the paper does not give are those on which SciPy and Newton's method
agree.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class Problem(NamedTuple):
    """A sum of squares.

    Attributes:
        residuals: From a point to the terms.
        start: The standard start.
        minima: The published minima.
        unit: The size of the smallest term near a minimum of 0.
    """

    residuals: Callable[[Any], Any]
    start: Any
    minima: tuple[float, ...]
    unit: float = 1.0

    def value(self, x):
        """Return the sum of squares."""
        return jnp.sum(self.residuals(x) ** 2)

    def solved(self, y):
        """Whether a value is one of the minima to 1e-5, or small where that is 0."""
        scale = float(self.value(jnp.asarray(self.start)))
        return any(
            abs(y - m) <= (1e-5 * m if m else 1e-10 * max(scale, 1.0))
            for m in self.minima
        )

    def digits(self, y):
        """Return the right digits of a value; where the minimum is 0, of the terms."""
        of_terms = abs(y) ** 0.5 / self.unit
        errors = [abs(y - m) / m if m else of_terms for m in self.minima]
        error = min(errors) if np.isfinite(y) else 1.0
        return float(np.clip(-np.log10(max(error, 1e-12)), 0, 12))

    def farther(self, factor):
        """Return the start times a factor: 1, 10, 100; of zeros all are the factor."""
        start = np.asarray(self.start, float)
        if factor == 1 or start.any():
            return factor * start
        return np.full_like(start, factor)


def rosenbrock(x):  # [1], [21]
    a, b = x[0::2], x[1::2]
    return jnp.concatenate([10 * (b - a**2), 1 - a])


def freudenstein_roth(x):  # [2]
    a = -13 + x[0] + ((5 - x[1]) * x[1] - 2) * x[1]
    b = -29 + x[0] + ((x[1] + 1) * x[1] - 14) * x[1]
    return jnp.stack([a, b])


def powell_badly_scaled(x):  # [3]
    return jnp.stack([1e4 * x[0] * x[1] - 1, jnp.sum(jnp.exp(-x)) - 1.0001])


def brown_badly_scaled(x):  # [4]
    return jnp.stack([x[0] - 1e6, x[1] - 2e-6, x[0] * x[1] - 2])


def beale(x):  # [5]
    y = jnp.array([1.5, 2.25, 2.625])
    return y - x[0] * (1 - x[1] ** jnp.arange(1.0, 4.0))


def jennrich_sampson(x):  # [6]
    i = jnp.arange(1.0, 11.0)
    return 2 + 2 * i - (jnp.exp(i * x[0]) + jnp.exp(i * x[1]))


def helical_valley(x):  # [7]
    angle = jnp.arctan(x[1] / x[0]) / (2 * jnp.pi) + jnp.where(x[0] < 0, 0.5, 0.0)
    length = jnp.sqrt(x[0] ** 2 + x[1] ** 2)
    return jnp.stack([10 * (x[2] - 10 * angle), 10 * (length - 1), x[2]])


BARD = (0.14, 0.18, 0.22, 0.25, 0.29, 0.32, 0.35, 0.39, 0.37, 0.58)
BARD = (*BARD, 0.73, 0.96, 1.34, 2.10, 4.39)


def bard(x):  # [8]
    u = jnp.arange(1.0, 16.0)
    v = 16 - u
    return jnp.array(BARD) - (x[0] + u / (v * x[1] + jnp.minimum(u, v) * x[2]))


GAUSSIAN = (0.0009, 0.0044, 0.0175, 0.0540, 0.1295, 0.2420, 0.3521, 0.3989)
GAUSSIAN = (*GAUSSIAN, *GAUSSIAN[-2::-1])


def gaussian(x):  # [9]
    t = (8 - jnp.arange(1.0, 16.0)) / 2
    return x[0] * jnp.exp(-x[1] * (t - x[2]) ** 2 / 2) - jnp.array(GAUSSIAN)


MEYER = (34780, 28610, 23650, 19630, 16370, 13720, 11540, 9744)
MEYER = (*MEYER, 8261, 7030, 6005, 5147, 4427, 3820, 3307, 2872)


def meyer(x):  # [10]
    t = 45 + 5 * jnp.arange(1.0, 17.0)
    return x[0] * jnp.exp(x[1] / (t + x[2])) - jnp.array(MEYER, float)


def gulf(x):  # [11]
    t = jnp.arange(1.0, 100.0) / 100
    y = 25 + (-50 * jnp.log(t)) ** (2 / 3)
    return jnp.exp(-(jnp.abs(y - x[1]) ** x[2]) / x[0]) - t


def box(x):  # [12]
    t = jnp.arange(1.0, 11.0) / 10
    left = jnp.exp(-t * x[0]) - jnp.exp(-t * x[1])
    return left - x[2] * (jnp.exp(-t) - jnp.exp(-10 * t))


def powell_singular(x):  # [13], [22]
    a, b, c, d = (x[i::4] for i in range(4))
    parts = [a + 10 * b, 5**0.5 * (c - d), (b - 2 * c) ** 2, 10**0.5 * (a - d) ** 2]
    return jnp.concatenate(parts)


def wood(x):  # [14]
    a, b, c, d = x
    parts = [10 * (b - a**2), 1 - a, 90**0.5 * (d - c**2), 1 - c]
    return jnp.stack([*parts, 10**0.5 * (b + d - 2), (b - d) / 10**0.5])


KOWALIK = (0.1957, 0.1947, 0.1735, 0.1600, 0.0844, 0.0627)
KOWALIK = (*KOWALIK, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246)
KOWALIK_U = (4, 2, 1, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625)


def kowalik_osborne(x):  # [15]
    u = jnp.array(KOWALIK_U)
    return jnp.array(KOWALIK) - x[0] * (u**2 + u * x[1]) / (u**2 + u * x[2] + x[3])


def brown_dennis(x):  # [16]
    t = jnp.arange(1.0, 21.0) / 5
    left = (x[0] + t * x[1] - jnp.exp(t)) ** 2
    return left + (x[2] + x[3] * jnp.sin(t) - jnp.cos(t)) ** 2


OSBORNE = (0.844, 0.908, 0.932, 0.936, 0.925, 0.908, 0.881, 0.850, 0.818, 0.784, 0.751)
OSBORNE = (*OSBORNE, 0.718, 0.685, 0.658, 0.628, 0.603, 0.580, 0.558, 0.538, 0.522)
OSBORNE = (*OSBORNE, 0.506, 0.490, 0.478, 0.467, 0.457, 0.448, 0.438, 0.431, 0.424)
OSBORNE = (*OSBORNE, 0.420, 0.414, 0.411, 0.406)


def osborne(x):  # [17]
    t = 10 * jnp.arange(33.0)
    return jnp.array(OSBORNE) - (
        x[0] + x[1] * jnp.exp(-t * x[3]) + x[2] * jnp.exp(-t * x[4])
    )


def biggs(x):  # [18]
    t = jnp.arange(1.0, 14.0) / 10
    y = jnp.exp(-t) - 5 * jnp.exp(-10 * t) + 3 * jnp.exp(-4 * t)
    made = x[2] * jnp.exp(-t * x[0]) - x[3] * jnp.exp(-t * x[1])
    return made + x[5] * jnp.exp(-t * x[4]) - y


OSBORNE_2 = (1.366, 1.191, 1.112, 1.013, 0.991, 0.885, 0.831, 0.847, 0.786, 0.725)
OSBORNE_2 = (*OSBORNE_2, 0.746, 0.679, 0.608, 0.655, 0.616, 0.606, 0.602, 0.626)
OSBORNE_2 = (*OSBORNE_2, 0.651, 0.724, 0.649, 0.649, 0.694, 0.644, 0.624, 0.661)
OSBORNE_2 = (*OSBORNE_2, 0.612, 0.558, 0.533, 0.495, 0.500, 0.423, 0.395, 0.375)
OSBORNE_2 = (*OSBORNE_2, 0.372, 0.391, 0.396, 0.405, 0.428, 0.429, 0.523, 0.562)
OSBORNE_2 = (*OSBORNE_2, 0.607, 0.653, 0.672, 0.708, 0.633, 0.668, 0.645, 0.632)
OSBORNE_2 = (*OSBORNE_2, 0.591, 0.559, 0.597, 0.625, 0.739, 0.710, 0.729, 0.720)
OSBORNE_2 = (*OSBORNE_2, 0.636, 0.581, 0.428, 0.292, 0.162, 0.098, 0.054)


def second_osborne(x):  # [19]
    t = jnp.arange(65.0) / 10
    made = x[0] * jnp.exp(-t * x[4])
    for height, width, place in zip(x[1:4], x[5:8], x[8:11], strict=True):
        made = made + height * jnp.exp(-width * (t - place) ** 2)
    return jnp.array(OSBORNE_2) - made


def watson(x):  # [20]
    t = jnp.arange(1.0, 30.0)[:, None] / 29
    j = jnp.arange(len(x) * 1.0)[None]
    slope = jnp.sum(j[:, 1:] * x[None, 1:] * t ** (j[:, 1:] - 1), axis=1)
    inner = slope - jnp.sum(x[None] * t**j, axis=1) ** 2 - 1
    return jnp.concatenate([inner, jnp.stack([x[0], x[1] - x[0] ** 2 - 1])])


def penalty(x):  # [23]
    return jnp.append(1e-5**0.5 * (x - 1), jnp.sum(x**2) - 0.25)


def second_penalty(x):  # [24]
    n, a = len(x), 1e-5**0.5
    i = jnp.arange(2.0, n + 1.0)
    y = jnp.exp(i / 10) + jnp.exp((i - 1) / 10)
    middle = a * (jnp.exp(x[1:] / 10) + jnp.exp(x[:-1] / 10) - y)
    later = a * (jnp.exp(x[1:] / 10) - jnp.exp(-0.1))
    last = jnp.sum((n - jnp.arange(n * 1.0)) * x**2) - 1
    return jnp.concatenate([jnp.stack([x[0] - 0.2]), middle, later, last[None]])


def variably_dimensioned(x):  # [25]
    weighted = jnp.sum(jnp.arange(1.0, len(x) + 1.0) * (x - 1))
    return jnp.concatenate([x - 1, jnp.stack([weighted, weighted**2])])


def trigonometric(x):  # [26]
    n, i = len(x), jnp.arange(1.0, len(x) + 1.0)
    return n - jnp.sum(jnp.cos(x)) + i * (1 - jnp.cos(x)) - jnp.sin(x)


def brown_almost_linear(x):  # [27]
    n = len(x)
    return jnp.append(x[:-1] + jnp.sum(x) - (n + 1), jnp.prod(x) - 1)


def boundary_value(x):  # [28]
    n = len(x)
    h = 1 / (n + 1)
    t = h * jnp.arange(1.0, n + 1.0)
    padded = jnp.pad(x, 1)
    return 2 * x - padded[:-2] - padded[2:] + h**2 * (x + t + 1) ** 3 / 2


def integral_equation(x):  # [29]
    n = len(x)
    h = 1 / (n + 1)
    t = h * jnp.arange(1.0, n + 1.0)
    cubes = (x + t + 1) ** 3
    low = (1 - t) * jnp.cumsum(t * cubes)
    tail = (1 - t) * cubes
    high = t * (jnp.sum(tail) - jnp.cumsum(tail))
    return x + h * (low + high) / 2


def broyden_tridiagonal(x):  # [30]
    padded = jnp.pad(x, 1)
    return (3 - 2 * x) * x - padded[:-2] - 2 * padded[2:] + 1


def broyden_banded(x):  # [31]
    n = len(x)
    distance = np.arange(n)[None, :] - np.arange(n)[:, None]
    near = ((distance >= -5) & (distance <= 1) & (distance != 0)).astype(float)
    return x * (2 + 5 * x**2) + 1 - jnp.asarray(near) @ (x * (1 + x))


def linear_full_rank(x):  # [32], m = 20
    parts = x - 2 * jnp.sum(x) / 20 - 1
    return jnp.append(parts, jnp.full(20 - len(x), -2 * jnp.sum(x) / 20 - 1))


def linear_rank_one(x):  # [33], m = 20
    weighted = jnp.sum(jnp.arange(1.0, len(x) + 1.0) * x)
    return jnp.arange(1.0, 21.0) * weighted - 1


def linear_rank_one_with_zeros(x):  # [34], m = 20
    weighted = jnp.sum(jnp.arange(2.0, len(x)) * x[1:-1])
    return jnp.pad(jnp.arange(1.0, 19.0), 1) * weighted - 1


def chebyquad(x):  # [35]
    n = len(x)
    t = 2 * x - 1
    terms, means = [jnp.ones_like(t), t], []
    for i in range(1, n + 1):
        if i > 1:
            terms.append(2 * t * terms[-1] - terms[-2])
        exact = -1 / (i**2 - 1) if i % 2 == 0 else 0.0
        means.append(jnp.mean(terms[i]) - exact)
    return jnp.stack(means)


def _boundary_start(n):
    t = np.arange(1, n + 1) / (n + 1)
    return t * (t - 1)


PROBLEMS = {
    "Rosenbrock": Problem(rosenbrock, [-1.2, 1.0], (0.0,)),
    "Freudenstein and Roth": Problem(
        freudenstein_roth, [0.5, -2.0], (0.0, 48.9842536792)
    ),
    "Powell, badly scaled": Problem(powell_badly_scaled, [0.0, 1.0], (0.0,), unit=1e-4),
    "Brown, badly scaled": Problem(brown_badly_scaled, [1.0, 1.0], (0.0,)),
    "Beale": Problem(beale, [1.0, 1.0], (0.0,)),
    "Jennrich and Sampson": Problem(jennrich_sampson, [0.3, 0.4], (124.362182356,)),
    "helical valley": Problem(helical_valley, [-1.0, 0.0, 0.0], (0.0,)),
    "Bard": Problem(bard, [1.0, 1.0, 1.0], (8.21487730658e-3, 17.4286933333)),
    "Gaussian": Problem(gaussian, [0.4, 1.0, 0.0], (1.12793276962e-8,)),
    "Meyer": Problem(meyer, [0.02, 4000.0, 250.0], (87.945855171,)),
    "Gulf": Problem(gulf, [5.0, 2.5, 0.15], (0.0,)),
    "Box": Problem(box, [0.0, 10.0, 20.0], (0.0,)),
    "Powell, singular": Problem(powell_singular, [3.0, -1.0, 0.0, 1.0], (0.0,)),
    "Wood": Problem(wood, [-3.0, -1.0, -3.0, -1.0], (0.0,)),
    "Kowalik and Osborne": Problem(
        kowalik_osborne, [0.25, 0.39, 0.415, 0.39], (3.07505603849e-4, 1.0273430487e-3)
    ),
    "Brown and Dennis": Problem(
        brown_dennis, [25.0, 5.0, -5.0, -1.0], (85822.2016264,)
    ),
    "Osborne 1": Problem(osborne, [0.5, 1.5, -1.0, 0.01, 0.02], (5.46489469748e-5,)),
    "Biggs": Problem(biggs, [1.0, 2.0, 1.0, 1.0, 1.0, 1.0], (0.0, 5.6556499255e-3)),
    "Osborne 2": Problem(
        second_osborne,
        [1.3, 0.65, 0.65, 0.7, 0.6, 3.0, 5.0, 7.0, 2.0, 4.5, 5.5],
        (4.01377362935e-2,),
    ),
    "Watson": Problem(watson, [0.0] * 6, (2.28767005355e-3,)),
    "Rosenbrock, extended": Problem(rosenbrock, [-1.2, 1.0] * 5, (0.0,)),
    "Powell, extended": Problem(powell_singular, [3.0, -1.0, 0.0, 1.0] * 3, (0.0,)),
    "penalty": Problem(penalty, [1.0, 2.0, 3.0, 4.0], (2.2499775009e-5,)),
    "second penalty": Problem(second_penalty, [0.5] * 4, (9.37629300736e-6,)),
    "variably dimensioned": Problem(
        variably_dimensioned, 1 - np.arange(1, 11) / 10, (0.0,)
    ),
    "trigonometric": Problem(trigonometric, [0.1] * 10, (0.0, 2.79505612188e-5)),
    "Brown, almost linear": Problem(brown_almost_linear, [0.5] * 10, (0.0, 1.0)),
    "boundary value": Problem(boundary_value, _boundary_start(10), (0.0,)),
    "integral equation": Problem(integral_equation, _boundary_start(10), (0.0,)),
    "Broyden, tridiagonal": Problem(broyden_tridiagonal, [-1.0] * 10, (0.0,)),
    "Broyden, banded": Problem(broyden_banded, [-1.0] * 10, (0.0,)),
    "linear, full rank": Problem(linear_full_rank, [1.0] * 10, (10.0,)),
    "linear, rank 1": Problem(linear_rank_one, [1.0] * 10, (380 / 82,)),
    "linear, rank 1 with zeros": Problem(
        linear_rank_one_with_zeros, [1.0] * 10, (454 / 74,)
    ),
    "Chebyquad": Problem(chebyquad, np.arange(1, 9) / 9, (3.51687372568e-3,)),
}

# Of those with any number of parameters, the other sizes that the paper has minima of;
# also that of Brown which MINPACK is tested with.
SIZES = {
    "Watson, 9": Problem(watson, [0.0] * 9, (1.39976013809e-6,)),
    "Watson, 12": Problem(watson, [0.0] * 12, (4.7223811e-10,)),
    "penalty, 10": Problem(penalty, np.arange(1.0, 11.0), (7.08765146709e-5,)),
    "second penalty, 10": Problem(second_penalty, [0.5] * 10, (2.93660537457e-4,)),
    "Brown, almost linear, 30": Problem(brown_almost_linear, [0.5] * 30, (0.0, 1.0)),
    "Chebyquad, 9": Problem(chebyquad, np.arange(1, 10) / 10, (0.0,)),
    "Chebyquad, 10": Problem(chebyquad, np.arange(1, 11) / 11, (6.50395480088e-3,)),
}
