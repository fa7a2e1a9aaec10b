"""Classical problems against exact tensors, and derivatives inside derivatives.

Each problem is written twice: with arrays, as one writes it in JAX, and entry by entry
with symbols, as in the literature. SymPy differentiates the second form, and evaluates
what it finds with 40 digits.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import sympy

import hotk
from tests import reference
from tests.helpers import close


class Problem(NamedTuple):
    f: Callable
    """With arrays."""
    symbols: Callable
    """From a list of symbols to an expression."""
    x: list[float]


PROBLEMS: dict[str, Callable[[], Problem]] = {}


def problem(make):
    PROBLEMS[make.__name__] = make
    return make


def squares(residuals):
    return sum(r**2 for r in residuals)


# --- Moré, Garbow and Hillstrom, Testing unconstrained optimization software (1981) ---


@problem
def rosenbrock():
    return Problem(
        lambda x: 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2,
        lambda x: squares([10 * (x[1] - x[0] ** 2), 1 - x[0]]),
        [-1.2, 1.0],
    )


@problem
def freudenstein_and_roth():
    def f(x):
        constant, linear = jnp.array([13.0, 29.0]), jnp.array([2.0, 14.0])
        inner = jnp.stack([5 - x[1], 1 + x[1]])
        return jnp.sum((x[0] - constant + (inner * x[1] - linear) * x[1]) ** 2)

    def symbols(x):
        a, b = x
        return squares(
            [-13 + a + ((5 - b) * b - 2) * b, -29 + a + ((b + 1) * b - 14) * b]
        )

    return Problem(f, symbols, [0.5, -2.0])


@problem
def powell_badly_scaled():
    return Problem(
        lambda x: (1e4 * x[0] * x[1] - 1) ** 2 + (jnp.sum(jnp.exp(-x)) - 1.0001) ** 2,
        lambda x: squares(
            [
                10000 * x[0] * x[1] - 1,
                sympy.exp(-x[0]) + sympy.exp(-x[1]) - sympy.Rational(10001, 10000),
            ]
        ),
        [0.1, 1.0],
    )


@problem
def brown_badly_scaled():
    return Problem(
        lambda x: (x[0] - 1e6) ** 2 + (x[1] - 2e-6) ** 2 + (x[0] * x[1] - 2) ** 2,
        lambda x: squares(
            [x[0] - 10**6, x[1] - sympy.Rational(2, 10**6), x[0] * x[1] - 2]
        ),
        [1.0, 1.0],
    )


@problem
def beale():
    def f(x):
        powers = jnp.cumprod(jnp.stack([x[1]] * 3))
        return jnp.sum((jnp.array([1.5, 2.25, 2.625]) - x[0] * (1 - powers)) ** 2)

    def symbols(x):
        constants = [sympy.Rational(n, 8) for n in (12, 18, 21)]
        return squares(c - x[0] * (1 - x[1] ** i) for i, c in enumerate(constants, 1))

    return Problem(f, symbols, [1.0, 0.8])


@problem
def jennrich_and_sampson():
    def f(x):
        i = jnp.arange(1.0, 11.0)
        return jnp.sum((2 + 2 * i - jnp.exp(jnp.outer(i, x)).sum(axis=1)) ** 2)

    def symbols(x):
        return squares(
            2 + 2 * i - sympy.exp(i * x[0]) - sympy.exp(i * x[1]) for i in range(1, 11)
        )

    return Problem(f, symbols, [0.3, 0.4])


@problem
def helical_valley():
    def f(x):
        angle = jnp.arctan2(x[1], x[0]) / (2 * jnp.pi)
        radius = jnp.hypot(x[0], x[1])
        return 100 * ((x[2] - 10 * angle) ** 2 + (radius - 1) ** 2) + x[2] ** 2

    def symbols(x):
        angle = sympy.atan(x[1] / x[0]) / (2 * sympy.pi) + sympy.Rational(1, 2)
        radius = sympy.sqrt(x[0] ** 2 + x[1] ** 2)
        return squares([10 * (x[2] - 10 * angle), 10 * (radius - 1), x[2]])

    return Problem(f, symbols, [-1.0, 0.25, 0.5])


BARD = [14, 18, 22, 25, 29, 32, 35, 39, 37, 58, 73, 96, 134, 210, 439]


@problem
def bard():
    def f(x):
        u = jnp.arange(1.0, 16.0)
        v = 16 - u
        w = jnp.minimum(u, v)
        model = x[0] + u / (v * x[1] + w * x[2])
        return jnp.sum((jnp.array(BARD) / 100 - model) ** 2)

    def symbols(x):
        residuals = []
        for u, y in enumerate(BARD, 1):
            v, w = 16 - u, min(u, 16 - u)
            model = x[0] + u / (v * x[1] + w * x[2])
            residuals.append(sympy.Rational(y, 100) - model)
        return squares(residuals)

    return Problem(f, symbols, [1.0, 1.0, 1.0])


@problem
def box_three_dimensional():
    def f(x):
        t = jnp.arange(1.0, 6.0) / 10
        a, b, c = x
        model = jnp.exp(-t * a) - jnp.exp(-t * b)
        return jnp.sum((model - c * (jnp.exp(-t) - jnp.exp(-10 * t))) ** 2)

    def symbols(x):
        a, b, c = x
        e = sympy.exp
        ts = [sympy.Rational(i, 10) for i in range(1, 6)]
        return squares(e(-t * a) - e(-t * b) - c * (e(-t) - e(-10 * t)) for t in ts)

    return Problem(f, symbols, [0.5, 8.0, 2.0])


@problem
def powell_singular():
    def f(x):
        matrix = jnp.array([[1.0, 10, 0, 0], [0, 0, 5**0.5, -(5**0.5)]])
        linear = matrix @ x
        return linear @ linear + (x[1] - 2 * x[2]) ** 4 + 10 * (x[0] - x[3]) ** 4

    def symbols(x):
        a, b, c, d = x
        return (
            (a + 10 * b) ** 2 + 5 * (c - d) ** 2 + (b - 2 * c) ** 4 + 10 * (a - d) ** 4
        )

    return Problem(f, symbols, [3.0, -1.0, 0.5, 1.0])


@problem
def wood():
    def f(x):
        odd, even = x[::2], x[1::2]
        scale = jnp.array([100.0, 90.0])
        valleys = jnp.sum(scale * (even - odd**2) ** 2 + (1 - odd) ** 2)
        return valleys + 10 * (jnp.sum(even) - 2) ** 2 + (even[0] - even[1]) ** 2 / 10

    def symbols(x):
        a, b, c, d = x
        return (
            100 * (b - a**2) ** 2
            + (1 - a) ** 2
            + 90 * (d - c**2) ** 2
            + (1 - c) ** 2
            + 10 * (b + d - 2) ** 2
            + (b - d) ** 2 / 10
        )

    return Problem(f, symbols, [-3.0, -1.0, -2.0, 0.5])


@problem
def brown_and_dennis():
    def f(x):
        t = jnp.arange(1.0, 9.0) / 5
        left = x[0] + t * x[1] - jnp.exp(t)
        right = x[2] + x[3] * jnp.sin(t) - jnp.cos(t)
        return jnp.sum((left**2 + right**2) ** 2)

    def symbols(x):
        a, b, c, d = x
        ts = [sympy.Rational(i, 5) for i in range(1, 9)]
        return squares(
            (a + t * b - sympy.exp(t)) ** 2 + (c + d * sympy.sin(t) - sympy.cos(t)) ** 2
            for t in ts
        )

    return Problem(f, symbols, [2.5, 0.5, -0.5, -0.1])


@problem
def extended_rosenbrock():
    def f(x):
        odd, even = x.reshape(-1, 2).T
        return jnp.sum(100 * (even - odd**2) ** 2 + (1 - odd) ** 2)

    def symbols(x):
        pairs = zip(x[::2], x[1::2], strict=True)
        return sum(100 * (b - a**2) ** 2 + (1 - a) ** 2 for a, b in pairs)

    return Problem(f, symbols, [-1.2, 1.0, 0.7, -0.4])


@problem
def penalty_one():
    def f(x):
        return 1e-5 * jnp.sum((x - 1) ** 2) + (jnp.sum(x**2) - 0.25) ** 2

    def symbols(x):
        small = sympy.Rational(1, 10**5)
        return (
            small * squares(a - 1 for a in x) + (squares(x) - sympy.Rational(1, 4)) ** 2
        )

    return Problem(f, symbols, [1.0, 2.0, 3.0, 4.0])


@problem
def penalty_two():
    def f(x):
        n = x.size
        i = jnp.arange(2.0, n + 1)
        e = jnp.exp(x / 10)
        y = jnp.exp(i / 10) + jnp.exp((i - 1) / 10)
        rough = jnp.sum((e[1:] + e[:-1] - y) ** 2)
        level = jnp.sum((e[1:] - jnp.exp(-0.1)) ** 2)
        weights = n - jnp.arange(float(n))
        total = (jnp.sum(weights * x**2) - 1) ** 2
        return (x[0] - 0.2) ** 2 + 1e-5 * (rough + level) + total

    def symbols(x):
        n, e = len(x), lambda a: sympy.exp(a / 10)
        small = sympy.Rational(1, 10**5)
        one = sympy.Integer(1)
        rough = squares(
            e(x[i - 1]) + e(x[i - 2]) - e(one * i) - e(one * (i - 1))
            for i in range(2, n + 1)
        )
        level = squares(e(x[i]) - e(-one) for i in range(1, n))
        total = sum((n - j) * x[j] ** 2 for j in range(n)) - 1
        first = (x[0] - sympy.Rational(1, 5)) ** 2
        return first + small * (rough + level) + total**2

    return Problem(f, symbols, [0.5, 0.4, 0.3, -0.2])


@problem
def variably_dimensioned():
    def f(x):
        i = jnp.arange(1.0, x.size + 1)
        s = i @ (x - 1)
        return jnp.sum((x - 1) ** 2) + s**2 + s**4

    def symbols(x):
        s = sum(i * (a - 1) for i, a in enumerate(x, 1))
        return squares(a - 1 for a in x) + s**2 + s**4

    return Problem(f, symbols, [0.75, 0.5, 0.25, 0.0])


@problem
def trigonometric():
    def f(x):
        n = x.size
        i = jnp.arange(1.0, n + 1)
        return jnp.sum(
            (n - jnp.sum(jnp.cos(x)) + i * (1 - jnp.cos(x)) - jnp.sin(x)) ** 2
        )

    def symbols(x):
        n, total = len(x), sum(map(sympy.cos, x))
        return squares(
            n - total + i * (1 - sympy.cos(a)) - sympy.sin(a)
            for i, a in enumerate(x, 1)
        )

    return Problem(f, symbols, [0.2, -0.7, 1.1])


@problem
def broyden_tridiagonal():
    def f(x):
        padded = jnp.pad(x, 1)
        return jnp.sum(((3 - 2 * x) * x - padded[:-2] - 2 * padded[2:] + 1) ** 2)

    def symbols(x):
        padded = [0, *x, 0]
        return squares(
            (3 - 2 * padded[i]) * padded[i] - padded[i - 1] - 2 * padded[i + 1] + 1
            for i in range(1, len(x) + 1)
        )

    return Problem(f, symbols, [-1.0, 0.3, -0.6, 0.9])


@problem
def broyden_banded():
    def f(x):
        n = x.size
        i, j = jnp.indices((n, n))
        near = (j != i) & (j >= i - 5) & (j <= i + 1)
        others = jnp.where(near, (x * (1 + x))[None, :], 0.0).sum(axis=1)
        return jnp.sum((x * (2 + 5 * x**2) + 1 - others) ** 2)

    def symbols(x):
        residuals = []
        for i, a in enumerate(x):
            near = [j for j in range(max(0, i - 5), min(len(x), i + 2)) if j != i]
            others = sum(x[j] * (1 + x[j]) for j in near)
            residuals.append(a * (2 + 5 * a**2) + 1 - others)
        return squares(residuals)

    return Problem(f, symbols, [-1.0, 0.5, -0.3, 0.8])


@problem
def discrete_boundary_value():
    def f(x):
        n = x.size
        h = 1 / (n + 1)
        t = h * jnp.arange(1.0, n + 1)
        padded = jnp.pad(x, 1)
        bend = 2 * x - padded[:-2] - padded[2:]
        return jnp.sum((bend + h**2 * (x + t + 1) ** 3 / 2) ** 2)

    def symbols(x):
        h, padded = sympy.Rational(1, len(x) + 1), [0, *x, 0]
        return squares(
            2 * padded[i]
            - padded[i - 1]
            - padded[i + 1]
            + h**2 * (padded[i] + i * h + 1) ** 3 / 2
            for i in range(1, len(x) + 1)
        )

    return Problem(f, symbols, [-0.2, 0.4, 0.3, -0.1])


@problem
def chebyquad():
    def f(x):
        def next_polynomial(carry, _):
            before, now = carry
            return (now, 2 * y * now - before), now.mean()

        n, y = x.size, 2 * x - 1
        means = jax.lax.scan(next_polynomial, (jnp.ones(n), y), length=n)[1]
        i = jnp.arange(1.0, n + 1)
        even = jnp.arange(1, n + 1) % 2 == 0
        integrals = jnp.where(even, -1 / jnp.where(even, i**2 - 1, 1.0), 0.0)
        return jnp.sum((means - integrals) ** 2)

    def symbols(x):
        n, residuals = len(x), []
        for i in range(1, n + 1):
            mean = sum(sympy.chebyshevt(i, 2 * a - 1) for a in x) / n
            integral = sympy.Rational(-1, i**2 - 1) if i % 2 == 0 else 0
            residuals.append(mean - integral)
        return squares(residuals)

    return Problem(f, symbols, [0.2, 0.45, 0.55, 0.9])


# --- others --------------------------------------------------------------------------


@problem
def morse():
    return Problem(
        lambda x: jnp.sum((1 - jnp.exp(1 - x)) ** 2),
        lambda x: squares(1 - sympy.exp(1 - a) for a in x),
        [0.0, 1.0, 2.0, 3.0],
    )


@problem
def lennard_jones():
    """Three atoms in a plane, by all their distances."""

    def f(x):
        atoms = x.reshape(3, 2)
        steps = atoms[:, None, :] - atoms[None, :, :]
        i, j = np.triu_indices(3, 1)
        r2 = jnp.sum(steps[i, j] ** 2, axis=-1)
        return jnp.sum(4 * (r2**-6 - r2**-3))

    def symbols(x):
        atoms = [(x[0], x[1]), (x[2], x[3]), (x[4], x[5])]
        energy = 0
        for (a, b), (c, d) in itertools.combinations(atoms, 2):
            r2 = (a - c) ** 2 + (b - d) ** 2
            energy += 4 * (r2**-6 - r2**-3)
        return energy

    return Problem(f, symbols, [0.0, 0.1, 1.2, -0.1, 0.5, 1.1])


@problem
def log_sum_exp():
    return Problem(
        jax.nn.logsumexp,
        lambda x: sympy.log(sum(map(sympy.exp, x))),
        [1.0, -2.0, 0.5],
    )


@problem
def logdet():
    def f(x):
        matrix = jnp.stack([jnp.stack([x[0], x[1]]), jnp.stack([x[1], x[2]])])
        return jnp.linalg.slogdet(matrix)[1]

    return Problem(f, lambda x: sympy.log(x[0] * x[2] - x[1] ** 2), [2.0, 0.5, 1.5])


# --- the exact tensors ---------------------------------------------------------------


class Tensors(NamedTuple):
    """Value, gradient, Hessian and third derivatives at a point, rounded once."""

    value: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray
    third: np.ndarray


@functools.cache
def exact(name) -> Tensors:
    problem = PROBLEMS[name]()
    n = len(problem.x)
    x = sympy.symbols(f"x:{n}", real=True)
    f = problem.symbols(list(x))
    derivatives = {(): f}
    for order in (1, 2, 3):
        for index in itertools.combinations_with_replacement(range(n), order):
            derivatives[index] = sympy.diff(derivatives[index[:-1]], x[index[-1]])
    evaluate = sympy.lambdify(x, list(derivatives.values()), "mpmath", cse=True)
    with mpmath.workdps(40):
        numbers = map(float, evaluate(*map(mpmath.mpf, problem.x)))
        numbers = dict(zip(derivatives, numbers, strict=True))
    tensors = [np.empty(order * (n,)) for order in range(4)]
    for tensor in tensors:
        for index in np.ndindex(tensor.shape):
            tensor[index] = numbers[tuple(sorted(index))]
    return Tensors(*tensors)


def close_to_exact(got, tensor):
    """Hold each entry to 1e-10, and sums that cancel to 1e-13 of the largest entry."""
    tensor = np.asarray(tensor)
    scale = np.abs(tensor).max(initial=0.0)
    close(got, tensor, rtol=1e-10, atol=1e-13 * scale)


def directions(n):
    """Return two directions without zeros, of about the same length."""
    i = np.arange(1.0, n + 1)
    return np.cos(i**2), np.sin(2 * i + 0.5)


each_problem = pytest.mark.parametrize("name", PROBLEMS)
each_nesting = pytest.mark.parametrize("nesting", reference.NESTINGS)


@pytest.mark.thinned(3)
@each_problem
def test_value_and_gradient(name):
    f, _, x = PROBLEMS[name]()
    value, gradient = hotk.value_and_gradient(f, np.array(x))
    close_to_exact(value, exact(name).value)
    close_to_exact(gradient, exact(name).gradient)


@pytest.mark.thinned(3, "nesting")
@each_nesting
@each_problem
def test_hvp(name, nesting):
    f, _, x = PROBLEMS[name]()
    v, _ = directions(len(x))
    got = hotk.hvp(f, np.array(x), v, mode=getattr(hotk, nesting))
    close_to_exact(got, exact(name).hessian @ v)


@pytest.mark.thinned(3, "nesting")
@each_nesting
@each_problem
def test_hessian(name, nesting):
    f, _, x = PROBLEMS[name]()
    got = hotk.hessian(f, np.array(x), mode=getattr(hotk, nesting))
    close_to_exact(got, exact(name).hessian)


@pytest.mark.thinned(4)
@each_problem
def test_quadratic_form_and_diagonal(name):
    f, _, x = PROBLEMS[name]()
    v, _ = directions(len(x))
    hessian = exact(name).hessian
    close_to_exact(hotk.quadratic_form(f, np.array(x), v), v @ hessian @ v)
    close_to_exact(hotk.hessian_diagonal(f, np.array(x)), np.diag(hessian))


def contracted(tensor, *vectors):
    for vector in vectors:
        tensor = tensor @ vector
    return tensor


def jvp_of_a_prepared_hvp(f, x, v, w):
    hvp = hotk.hvp.prepare(f, x, v)
    return hotk.jvp(lambda x: hvp(x, v), x, w)


def hvp_of_a_jvp(f, x, v, w):
    return hotk.hvp(lambda x: hotk.jvp(f, x, v), x, w)


def derivative_of_an_hvp(f, x, v, w):
    return hotk.derivative(lambda t: hotk.hvp(f, x + t * w, v), 0.0)


def prepared_hvp_of_a_prepared_jvp(f, x, v, w):
    jvp = hotk.jvp.prepare(f, x, v)
    hvp = hotk.hvp.prepare(lambda x: jvp(x, v), 0 * x, 0 * w)
    return hvp(x, w)


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    "way",
    [
        jvp_of_a_prepared_hvp,
        hvp_of_a_jvp,
        derivative_of_an_hvp,
        prepared_hvp_of_a_prepared_jvp,
    ],
    ids=lambda way: way.__name__,
)
@each_problem
def test_third_derivatives_along_two_directions(name, way):
    f, _, x = PROBLEMS[name]()
    v, w = directions(len(x))
    got = way(f, jnp.array(x), jnp.array(v), jnp.array(w))
    close_to_exact(got, contracted(exact(name).third, v, w))


@pytest.mark.thinned(5)
@each_problem
def test_gradient_of_a_quadratic_form(name):
    f, _, x = PROBLEMS[name]()
    v, _ = directions(len(x))
    got = hotk.gradient(lambda x: hotk.quadratic_form(f, x, v), np.array(x))
    close_to_exact(got, contracted(exact(name).third, v, v))


@pytest.mark.thinned(4)
@each_problem
def test_jacobian_of_a_hessian(name):
    f, _, x = PROBLEMS[name]()
    got = hotk.jacobian(functools.partial(hotk.hessian, f), np.array(x))
    close_to_exact(got, exact(name).third)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("inner", reference.NESTINGS)
@pytest.mark.parametrize("outer", ["Forward", "Reverse"])
def test_third_derivatives_in_every_mode(outer, inner):
    f, _, x = PROBLEMS["trigonometric"]()
    v, w = directions(len(x))
    mode = getattr(hotk, inner)

    def product(x):
        return hotk.hvp(f, x, v, mode=mode)

    third = exact("trigonometric").third
    got = hotk.jacobian(product, np.array(x), mode=getattr(hotk, outer)())
    close_to_exact(got, contracted(third, v))
    got = hotk.hvp(lambda x: hotk.jvp(f, x, v), np.array(x), w, mode=mode)
    close_to_exact(got, contracted(third, v, w))


def test_third_derivatives_of_a_quadratic_are_exactly_zero():
    matrix = np.array([[2.0, -1.0], [0.5, 3.0]])
    x, v = np.array([0.3, 0.7]), np.array([1.0, -2.0])
    f = lambda x: x @ (matrix @ x)
    got = hotk.jacobian(functools.partial(hotk.hessian, f), x)
    assert not got.any()
    assert not hotk.jvp(lambda x: hotk.hvp(f, x, v), x, v).any()
    assert not hotk.gradient(lambda x: hotk.quadratic_form(f, x, v), x).any()


def test_a_fourth_order_mixture():
    """Apply `quadratic_form` to itself: the fourth derivative along two directions."""
    f = lambda x: jnp.prod(x) * x[0] ** 2 + jnp.sum(x**4)
    x, v, w = np.array([0.5, -1.5, 2.0]), np.array([1.0, 2, -1]), np.array([3.0, 0, 1])
    s = sympy.symbols("a:3")
    a, b = sympy.symbols("t s")
    line = [xi + a * vi + b * wi for xi, vi, wi in zip(s, v, w, strict=True)]
    g = line[0] ** 3 * line[1] * line[2] + sum(e**4 for e in line)
    known = g.diff(a, 2, b, 2).subs({a: 0, b: 0, **dict(zip(s, x, strict=True))})
    inner = lambda x: hotk.quadratic_form(f, x, v)
    close(hotk.quadratic_form(inner, x, w), np.array(float(known)))
    close(w @ hotk.hessian(inner, x) @ w, np.array(float(known)))


# --- derivatives inside derivatives --------------------------------------------------
# A perturbation of the outer derivative may never be taken for one of the inner.

D = hotk.derivative


def test_forwarddiff_83_a_number():
    assert D(lambda x: x * D(lambda y: x + y, 1.0), 1.0) == 1.0


def test_mooncake_777():
    assert D(lambda x: x * D(lambda y: x + y**2, x), 1.0) == 4.0


def test_forwarddiff_83_a_vector():
    norm = jnp.linalg.norm
    v = np.array([1.0])
    nested = lambda v: jnp.sum(v) * D(lambda y: y * norm(v), 1.0)
    plain = lambda v: jnp.sum(v) * norm(v)
    close(hotk.gradient(nested, v), jax.grad(plain)(v))
    close(hotk.hessian(nested, v), jax.jit(jax.hessian(plain))(v))


def test_forwarddiff_a_jacobian_of_a_gradient():
    matrix = np.cos(np.arange(80.0)).reshape(10, 8)
    x, y = np.sin(np.arange(8.0)), np.sin(np.arange(10.0))
    inner = lambda x: hotk.gradient(lambda y: y @ (matrix @ x), y)
    close(hotk.jacobian(inner, x), matrix)


MASS, GRAVITY = 1.0, 9.8


def lagrangian(q, speed):
    return MASS / 2 * speed @ speed - MASS * GRAVITY * q[1]


def test_forwarddiff_238_mixed_derivatives_of_a_lagrangian():
    q, speed = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    momentum = lambda q: hotk.gradient(lambda s: lagrangian(q, s), speed)
    assert (hotk.jacobian(momentum, q) == np.zeros((2, 2))).all()


def test_forwarddiff_238_the_legendre_transformation():
    q, p = np.array([1.0, 2.0]), np.array([5.0, 6.0])

    def hamiltonian(q):
        f = lambda speed: lagrangian(q, speed)
        zero = jnp.zeros_like(p)
        _, gradient, hessian = hotk.value_gradient_and_hessian(f, zero)
        speed = jnp.linalg.solve(hessian, p - gradient)
        return p @ speed - f(speed)

    close(hamiltonian(q), np.array(61 / 2 + GRAVITY * 2))
    close(hotk.gradient(hamiltonian, q), np.array([0.0, GRAVITY]))
    close(hotk.hessian(hamiltonian, q), np.zeros((2, 2)))


def test_forwarddiff_267_a_captured_nest_of_tuples():
    nest = [(1, (2), [(3, (4, 5, [1, 2, (3, (4, 5), [5])]), (5))])]
    inner = lambda nest, x: x[0]
    g = lambda x: inner(nest, x)
    h = lambda x: g(x)
    assert hotk.hessian(h, np.array([1.0])).tolist() == [[0.0]]


def test_forwarddiff_834_a_silent_zero():
    def inner(x):
        length = lambda y: jnp.sqrt(x**2 + y**2 + 1)
        return D(length, 2.0)

    close(D(inner, 3.0), np.array(-6 / 14**1.5))


def test_forwarddiff_845_stopped_gradients_for_every_block():
    f = lambda z: jnp.sum(z**2) + jax.lax.stop_gradient(z[0]) * z[1]
    z = np.array([3.0, -1.0])
    for nesting, size in itertools.product(reference.NESTINGS, (None, 1, 2, 3)):
        got = hotk.hessian(f, z, mode=getattr(hotk, nesting), block_size=size)
        assert (got == 2 * np.eye(2)).all()


def test_a_derivative_of_a_shifted_function_applied_twice():
    """Of a function that returns functions, a case that confuses tags of levels."""
    shifted = lambda f: lambda x: D(lambda u: f(x + u), 0.0)
    close(shifted(shifted(jnp.exp))(1.0), np.exp(1.0))
    close(shifted(shifted(shifted(jnp.sin)))(0.7), -np.cos(0.7))


def test_taylordiff_59_fifth_mixed_derivative():
    by_x = lambda y: hotk.second_derivative(lambda x: x**2 * y**3, 1.7)
    assert D(functools.partial(hotk.second_derivative, by_x), 0.3) == 12.0


def test_taylordiff_99_gradient_of_a_third_derivative():
    def f(x, p):
        a, b = p
        return jnp.stack([a * x**3 + b, b * jnp.sin(x - a), jnp.sqrt(x + b)])

    def third(p):
        second = lambda x: hotk.second_derivative(f, x, p)
        return jnp.sum(D(second, 0.7))

    p = np.array([1.3, 2.1])
    np.testing.assert_allclose(third(p), 6.0953800766, rtol=1e-10)
    expected = [7.1857491941, -0.8508578184]
    np.testing.assert_allclose(hotk.gradient(third, p), expected, rtol=1e-9)


def test_zygote_726_third_derivatives_of_morse():
    second = functools.partial(
        hotk.second_derivative, lambda x: (1 - jnp.exp(1 - x)) ** 2
    )
    got = [float(D(second, float(x))) for x in range(4)]
    expected = [-53.6758851, -6, -0.3469234, 0.1241455]
    np.testing.assert_allclose(got, expected, atol=5e-8)


X = np.array([0.5, -1.2])
V = np.array([2.0, 0.25])
W = np.array([-1.0, 3.0])


def cubes(x, y):
    """Mix two points: third order in one, second in the other."""
    return jnp.sum(x**3 * y**2)


@each_nesting
def test_an_hvp_by_one_point_inside_an_hvp_by_the_other(nesting):
    """The inner product is `6 x y^2 v`; what is summed is quadratic in y."""
    mode = getattr(hotk, nesting)
    inner = lambda y: jnp.sum(hotk.hvp(lambda x: cubes(x, y), X, V, mode=mode))
    close(hotk.hvp(inner, X, W, mode=mode), 12 * X * V * W)


@pytest.mark.thinned(2)
@each_nesting
def test_an_hvp_at_the_point_that_the_outer_one_moves(nesting):
    """Sum of `6 x y^2 v` at y = x: the outer product sees `6 x^3 v`."""
    mode = getattr(hotk, nesting)
    inner = lambda z: jnp.sum(hotk.hvp(lambda x: cubes(x, z), z, V, mode=mode))
    close(hotk.hvp(inner, X, W, mode=mode), 36 * X * V * W)


def test_a_direction_that_the_outer_derivative_moves():
    """`H(z) z` for a sum of fourth powers is `12 z^3`."""
    f = lambda x: jnp.sum(x**4)
    product = lambda z: hotk.hvp(f, z, z)
    close(hotk.jacobian(product, X), np.diag(36 * X**2))
    form = lambda z: hotk.quadratic_form(f, z, z)
    close(hotk.hessian(form, X), np.diag(144 * X**2))


def test_three_levels_with_the_point_of_each_in_each():
    """`x` times the derivative by y of `y^2 z x` summed, and so on inward."""

    def outer(x):
        def middle(y):
            inner = lambda z: z**3 * y**2 * x
            return hotk.second_derivative(inner, x * y)

        return x * D(middle, x)

    # inner'' = 6 z y^2 x at z = x y: 6 x^2 y^3; by y at y = x: 18 x^4; times x
    close(D(outer, 1.3), np.array(90 * 1.3**4))
    close(hotk.second_derivative(outer, 1.3), np.array(360 * 1.3**3))


def test_a_prepared_inside_sees_the_point_outside():
    prepared = hotk.hvp.prepare(cubes, X, V, W)
    inner = lambda y: jnp.sum(prepared(X, V, y))
    close(hotk.gradient(inner, W), 12 * X * V * W)
    close(hotk.hvp(inner, W, V), 12 * X * V * V)
    through = hotk.gradient.prepare(inner, W)
    close(through(W), 12 * X * V * W)


def test_a_minimum_found_inside_moves_with_the_point():
    """One Newton step minimizes a quadratic: at `-x^2 / 2` it is `-x^4 / 4`."""

    def least(x):
        f = lambda y: jnp.sum(y**2 + x**2 * y)
        start = jnp.zeros_like(x)
        _, gradient, hessian = hotk.value_gradient_and_hessian(f, start)
        return f(start - jnp.linalg.solve(hessian, gradient))

    close(hotk.gradient(least, X), -(X**3))
    close(hotk.hessian(least, X), np.diag(-3 * X**2))
    close(hotk.jvp(lambda x: hotk.hvp(least, x, V), X, W), -6 * X * V * W)


def test_constants_of_the_outer_derivative_have_no_slope():
    inner = lambda y: D(lambda x: x**2, 3.0) + 0.0 * y
    assert D(inner, 1.0) == 0.0
    assert hotk.second_derivative(inner, 1.0) == 0.0
