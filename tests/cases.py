"""Functions with a point and all derivatives known by hand.

A case is built when asked for, by a function of the list `CASES`. The numbers are
written out or computed with NumPy from a formula, never by differentiating.
`tests/test_cases.py` holds them to JAX.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest


class Case(NamedTuple):
    """A function, where to look at it, and what must come out.

    An operator that the case says nothing about has `None`.
    """

    f: Callable
    x: Any
    v: Any = None
    """A direction with the structure of x."""
    u: Any = None
    """Weights with the structure of f(x)."""
    args: tuple = ()
    args_before: tuple | None = None
    """What to prepare with; zeros if `None`."""
    value: Any = None
    jvp: Any = None
    vjp: Any = None
    derivative: Any = None
    gradient: Any = None
    jacobian: Any = None
    hvp: Any = None
    quadratic_form: Any = None
    second_derivative: Any = None
    hessian: Any = None
    hessian_diagonal: Any = None

    def inputs(self, operator: str) -> tuple:
        """Return the arguments of an operator of this name, after `f`."""
        return (self.x, *self._direction(operator), *self.args)

    def inputs_before(self, operator: str) -> tuple:
        """Return zeros like the inputs, to prepare with."""
        args = zeros(self.args) if self.args_before is None else self.args_before
        return (zeros(self.x), *zeros(self._direction(operator)), *args)

    def _direction(self, operator):
        if operator in {"jvp", "hvp", "quadratic_form"}:
            return (self.v,)
        return (self.u,) if operator == "vjp" else ()


def zeros(tree):
    """Replace every array and every Python float in a tree by zeros."""

    def zero(leaf):
        if eqx.is_array_like(leaf) and not isinstance(leaf, bool | int):
            return leaf * 0
        return leaf

    return jax.tree.map(zero, tree)


OPERATORS = Case._fields[Case._fields.index("jvp") :]
CASES: list[Callable[[], Case]] = []


def case(*operators):
    """Enter a builder of a case in the list, with what the case knows."""

    def enter(make):
        assert set(operators) <= set(OPERATORS)
        make.operators = operators
        CASES.append(make)
        return make

    return enter


def knowing(operator: str, cases=CASES):
    """Run a test once for each case that knows the result of an operator."""
    cases = [make for make in cases if operator in make.operators]
    return pytest.mark.parametrize("make", cases, ids=lambda make: make.__name__)


FIRST = ("jvp", "vjp", "jacobian")
SECOND = (*FIRST, "gradient", "hvp", "quadratic_form", "hessian", "hessian_diagonal")
NUMBER = ("derivative", "second_derivative")


def scalar_valued(f, x, v, value, gradient, hessian, **more) -> Case:
    """Complete a case of a real function of one real array."""
    value, gradient, hessian = map(np.asarray, (value, gradient, hessian))
    x, v, n = np.asarray(x), np.asarray(v), np.size(x)
    product = (hessian.reshape(n, n) @ v.reshape(n)).reshape(x.shape)
    numbers = {}
    if x.ndim == 0:
        numbers = {"derivative": gradient, "second_derivative": hessian}
    return Case(
        f,
        jnp.array(x),
        jnp.array(v),
        jnp.array(-1 / 12),
        value=value,
        jvp=np.sum(gradient * v),
        vjp=-gradient / 12,
        gradient=gradient,
        jacobian=gradient,
        hvp=product,
        quadratic_form=np.sum(v * product),
        hessian=hessian,
        hessian_diagonal=np.diag(hessian.reshape(n, n)).reshape(x.shape),
        **numbers,
        **more,
    )


def array_valued(f, x, v, u, value, jacobian, **more) -> Case:
    """Complete a case of an array-valued function of one array."""
    x, v, u = map(np.asarray, (x, v, u))
    return Case(
        f,
        jnp.array(x),
        jnp.array(v),
        jnp.array(u),
        value=value,
        jvp=np.tensordot(jacobian, v, x.ndim),
        vjp=np.tensordot(u, jacobian, u.ndim),
        jacobian=jacobian,
        **more,
    )


def vec(x):
    """Stack the columns of a matrix."""
    return x.reshape(-1, order="F")


def columns(x):
    """Undo `vec` for a matrix of two rows."""
    return x.reshape(2, -1, order="F")


# --- the default scenarios of DifferentiationInterface ------------------------------

SIX = np.arange(1.0, 7.0)
TWELVE = np.arange(-11.0, 12.0, 2.0)


@case(*SECOND, *NUMBER)
def num_to_num():
    x = 0.42
    return scalar_valued(jnp.sin, x, 3.14, np.sin(x), np.cos(x), -np.sin(x))


@case(*FIRST)
def onevec_to_onevec():
    x = np.array([0.42])
    return array_valued(
        jnp.sin, x, [3.14], [-1 / 12], np.sin(x), np.cos(x).reshape(1, 1)
    )


def _two_waves(x):
    return jnp.sin(jnp.array([1.0, 2.0]) * x)


@case(*FIRST, *NUMBER, "hessian")
def num_to_vec():
    x, a = 0.42, np.array([1.0, 2.0])
    slope = a * np.cos(a * x)
    bend = -(a**2) * np.sin(a * x)
    np.testing.assert_allclose(bend, [-0.40776045, -2.97857248], rtol=1e-8)
    return array_valued(
        _two_waves,
        x,
        3.14,
        [-3.0, 4.0],
        np.sin(a * x),
        slope,
        derivative=slope,
        second_derivative=bend,
        hessian=bend,
    )


@case(*FIRST, *NUMBER, "hessian")
def num_to_mat():
    def f(x):
        return jnp.stack([_two_waves(x), _two_waves(3 * x)], axis=1)

    x, a = 0.42, np.array([[1.0, 3.0], [2.0, 6.0]])
    slope = a * np.cos(a * x)
    bend = -(a**2) * np.sin(a * x)
    numbers = [[-0.40776045, -8.56881307], [-2.97857248, -20.96390338]]
    np.testing.assert_allclose(bend, numbers, rtol=1e-8)
    return array_valued(
        f,
        x,
        3.14,
        [[-3.0, 4.0], [7.0, -1.0]],
        np.sin(a * x),
        slope,
        derivative=slope,
        second_derivative=bend,
        hessian=bend,
    )


def _powers_by_outer_product(x):
    return jnp.sum(jnp.outer(x.ravel() ** 4, x.ravel() ** 6))


def _powers_by_two_loops(x):
    x = x.ravel()

    def row(i, total):
        return jax.lax.fori_loop(
            0, x.size, lambda j, total: total + x[i] ** 4 * x[j] ** 6, total
        )

    return jax.lax.fori_loop(0, x.size, row, jnp.zeros(()))


POWERS_GRADIENT = [282334.0, 2586272, 10571418, 31173376, 76241750, 164178144]
POWERS_DIAGONAL = [874350.0, 4328496, 13097646, 33514560, 81557550, 198091440]
POWERS_PRODUCT = [-2541006.0, -23276448, -95142762, -280560384, -686175750, -1477603296]


def _powers(f, shape):
    """Look at f at 1..6, entries of a matrix numbered down its columns."""
    hessian = 24 * (np.outer(SIX**3, SIX**5) + np.outer(SIX**5, SIX**3))
    np.fill_diagonal(hessian, POWERS_DIAGONAL)
    x, gradient, product = (
        np.reshape(a, shape, order="F") for a in (SIX, POWERS_GRADIENT, POWERS_PRODUCT)
    )
    hessian = hessian.reshape(2 * shape, order="F")
    case = scalar_valued(f, x, -x, 152814025.0, gradient, hessian)
    return case._replace(hvp=product)


@case(*SECOND)
def arr_to_num_outer_product():
    return _powers(_powers_by_outer_product, (6,))


@case(*SECOND)
def arr_to_num_two_loops():
    return _powers(_powers_by_two_loops, (6,))


@case(*SECOND)
def mat_to_num_outer_product():
    return _powers(_powers_by_outer_product, (2, 3))


@case(*SECOND)
def mat_to_num_two_loops():
    return _powers(_powers_by_two_loops, (2, 3))


def _sine_and_cosine(x):
    """Return value and Jacobian of `[sin(x); cos(x)]`."""
    jacobian = np.concatenate([np.diag(np.cos(x)), np.diag(-np.sin(x))])
    return np.concatenate([np.sin(x), np.cos(x)]), jacobian


@case(*FIRST)
def vec_to_vec():
    def f(x):
        return jnp.concatenate([jnp.sin(x), jnp.cos(x)])

    return array_valued(f, SIX, -SIX, TWELVE, *_sine_and_cosine(SIX))


@case(*FIRST)
def vec_to_mat():
    def f(x):
        return jnp.stack([jnp.sin(x), jnp.cos(x)], axis=1)

    value, jacobian = _sine_and_cosine(SIX)
    return array_valued(
        f,
        SIX,
        -SIX,
        TWELVE.reshape((6, 2), order="F"),
        value.reshape((6, 2), order="F"),
        jacobian.reshape((6, 2, 6), order="F"),
    )


@case(*FIRST)
def mat_to_vec():
    def f(x):
        return jnp.concatenate([jnp.sin(vec(x)), jnp.cos(vec(x))])

    x = columns(SIX)
    value, jacobian = _sine_and_cosine(SIX)
    return array_valued(
        f, x, -x, TWELVE, value, jacobian.reshape((12, 2, 3), order="F")
    )


@case(*FIRST)
def mat_to_mat():
    def f(x):
        return jnp.stack([jnp.sin(vec(x)), jnp.cos(vec(x))], axis=1)

    x = columns(SIX)
    value, jacobian = _sine_and_cosine(SIX)
    return array_valued(
        f,
        x,
        -x,
        TWELVE.reshape((6, 2), order="F"),
        value.reshape((6, 2), order="F"),
        jacobian.reshape((6, 2, 2, 3), order="F"),
    )


SCENARIOS = tuple(CASES)


# --- modifiers of a scenario ---------------------------------------------------------


def _times(case, factor, **changes):
    """Multiply all that a case knows by a number."""
    known = {
        name: getattr(case, name) * factor
        for name in ("value", *OPERATORS)
        if getattr(case, name) is not None
    }
    return case._replace(**known, **changes)


class _Scaled:
    """A callable with numbers inside, one of them in a list."""

    def __init__(self, f):
        self.f, self.a, self.b = f, 3, [4]

    def __call__(self, x):
        return (self.a + self.b[0]) * self.f(x)


def closurify(case):
    """Multiply by 7 = 3 + 4, both held by a callable object."""
    return _times(case, 7, f=_Scaled(case.f))


def constantify(case):
    """Multiply by an argument, 3; it was -3 at preparation."""
    f = case.f
    return _times(case, 3, f=lambda x, a: a * f(x), args=(3.0,), args_before=(-3.0,))


class _Buffers(NamedTuple):
    first: Any
    rest: tuple


def cachify(case):
    """Write the result into buffers, given as an argument, and read it there."""
    f = case.f

    def through_buffers(x, buffers):
        y = f(x)
        kept = _Buffers(y, (buffers.rest[0].at[...].set(y), {"spare": y * 0}))
        return kept.rest[0]

    empty = jnp.zeros(np.shape(case.value))
    buffers = _Buffers(empty, (empty, {"spare": empty}))
    return case._replace(f=through_buffers, args=(buffers,))


def constantorcachify(case):
    """Multiply by 7 = 3 + 4, a number and a buffer; prepared with other values."""
    f = case.f

    def scaled(x, a, buffer):
        return (a + buffer["b"][0]) * f(x)

    def args(a, b):
        return (a, {"b": [jnp.array(b)]})

    return _times(case, 7, f=scaled, args=args(3.0, 4.0), args_before=args(6.0, 12.0))


MODIFIERS = (closurify, constantify, cachify, constantorcachify)


# --- sparse --------------------------------------------------------------------------


def _difference_matrix(n):
    return np.eye(n - 1, n, 1) - np.eye(n - 1, n)


@case(*FIRST)
def squared_differences():
    x = SIX**2 / 3
    steps = np.diff(x)
    jacobian = 2 * steps[:, None] * _difference_matrix(6)
    return array_valued(
        lambda x: jnp.diff(x) ** 2, x, -x, [1.0, -2, 3, -4, 5], steps**2, jacobian
    )


def _squares_and_cubes(from_matrix, to_matrix):
    def f(x):
        steps = jnp.diff(vec(x))
        join = jnp.stack if to_matrix else jnp.concatenate
        return join([steps**2, steps**3], axis=-1)

    x = SIX**2 / 3
    steps, differences = np.diff(x), _difference_matrix(6)
    value = np.concatenate([steps**2, steps**3])
    jacobian = np.concatenate(
        [2 * steps[:, None] * differences, 3 * steps[:, None] ** 2 * differences]
    )
    u = np.cos(np.arange(10.0))
    if to_matrix:
        u, value = u.reshape((5, 2), order="F"), value.reshape((5, 2), order="F")
        jacobian = jacobian.reshape((5, 2, 6), order="F")
    if from_matrix:
        x = columns(x)
        jacobian = jacobian.reshape((*value.shape, 2, 3), order="F")
    return array_valued(f, x, -x, u, value, jacobian)


@case(*FIRST)
def differences_vec_to_vec():
    return _squares_and_cubes(False, False)


@case(*FIRST)
def differences_vec_to_mat():
    return _squares_and_cubes(False, True)


@case(*FIRST)
def differences_mat_to_vec():
    return _squares_and_cubes(True, False)


@case(*FIRST)
def differences_mat_to_mat():
    return _squares_and_cubes(True, True)


def _sum_of_cubed_differences(shape):
    def f(x):
        return jnp.sum(jnp.diff(vec(x)) ** 3)

    steps = np.ones(5)
    diagonal = 6 * (np.append(steps, 0) + np.append(0, steps))
    hessian = np.diag(diagonal) - np.diag(6 * steps, 1) - np.diag(6 * steps, -1)
    gradient = np.array([-3.0, 0, 0, 0, 0, 3])
    x = SIX.reshape(shape, order="F")
    v = np.array([1.0, -1, 2, 0.5, -3, 1]).reshape(shape, order="F")
    return scalar_valued(
        f,
        x,
        v,
        5.0,
        gradient.reshape(shape, order="F"),
        hessian.reshape(2 * shape, order="F"),
    )


@case(*SECOND)
def cubed_differences():
    return _sum_of_cubed_differences((6,))


@case(*SECOND)
def cubed_differences_of_a_matrix():
    return _sum_of_cubed_differences((2, 3))


def _band(width):
    """Return an upper band matrix of 50 columns without zeros in its band."""
    i, j = np.indices((50, 50))
    return np.where((j >= i) & (j <= i + width), np.cos(3.0 * i + j), 0.0)


def _square_linear_map(width):
    matrix, x = _band(width), np.linspace(1, 2, 50)
    u = np.sin(np.arange(50.0))
    jacobian = 2 * matrix * x
    return array_valued(lambda x: matrix @ x**2, x, -x, u, matrix @ x**2, jacobian)


def _square_quadratic_form(width):
    matrix, x = _band(width), np.linspace(1, 2, 50)
    squares, both = x**2, matrix + matrix.T
    hessian = 4 * both * np.outer(x, x) + 2 * np.diag(both @ squares)
    return scalar_valued(
        lambda x: x**2 @ (matrix @ x**2),
        x,
        -x,
        squares @ matrix @ squares,
        2 * x * (both @ squares),
        hessian,
    )


@case(*FIRST)
def square_linear_map_of_band_5():
    return _square_linear_map(5)


@case(*FIRST)
def square_linear_map_of_band_10():
    return _square_linear_map(10)


@case(*FIRST)
def square_linear_map_of_band_20():
    return _square_linear_map(20)


@case(*SECOND)
def square_quadratic_form_of_band_5():
    return _square_quadratic_form(5)


@case(*SECOND)
def square_quadratic_form_of_band_10():
    return _square_quadratic_form(10)


@case(*SECOND)
def square_quadratic_form_of_band_20():
    return _square_quadratic_form(20)


@case(*SECOND)
def linear():
    c = np.array([2.0, -1, 0.5])
    zero = np.zeros((3, 3))
    return scalar_valued(
        lambda x: jnp.array(c) @ x, [3.0, 1, 4], [1.0, 5, 9], 7.0, c, zero
    )


# --- complex numbers, empty arrays, trees --------------------------------------------


@case(*FIRST[:2])
def complex_square():
    z, v, u = 1 + 1j, 2 - 3j, -1 + 0.5j
    return Case(
        lambda z: z**2,
        jnp.array(z),
        jnp.array(v),
        jnp.array(u),
        value=np.array(z**2),
        jvp=np.array(2 * z * v),
        vjp=np.array(u * 2 * z),  # no conjugate, as jax.vjp
    )


@case("gradient", "hvp")
def squared_modulus():
    z, v = np.array([1 + 1j, -2 + 0.5j]), np.array([2 - 3j, 1j])
    return Case(
        lambda z: jnp.sum(z.real**2 + z.imag**2),
        jnp.array(z),
        jnp.array(v),
        value=np.array(6.25),
        gradient=2 * z.conj(),  # as jax.grad
        hvp=2 * v.conj(),
    )


@case(*SECOND)
def no_entries():
    none = np.zeros(0)
    return scalar_valued(
        lambda x: jnp.sum(jnp.sin(x)), none, none, 0.0, none, np.zeros((0, 0))
    )


@case(*SECOND)
def no_entries_in_a_matrix():
    none = np.zeros((2, 0))
    hessian = np.zeros((2, 0, 2, 0))
    return scalar_valued(lambda x: jnp.sum(x**3), none, none, 0.0, none, hessian)


@case("gradient", "hvp", "jvp", "hessian", "hessian_diagonal", "quadratic_form")
def empty_tree():
    return Case(
        lambda x: jnp.array(3.0),
        {},
        {},
        value=np.array(3.0),
        gradient={},
        hvp={},
        jvp=np.array(0.0),
        hessian={},
        hessian_diagonal={},
        quadratic_form=np.array(0.0),
    )


@case(*SECOND)
def components():
    a, b = np.array([1.0, 2.0]), np.array([[3.0], [4.0]])
    va, vb = np.array([0.5, -1.0]), np.array([[2.0], [0.25]])
    u = np.array(-1 / 12)
    gradient = {"a": np.cos(a), "b": -np.sin(b)}
    product = {"a": -np.sin(a) * va, "b": -np.cos(b) * vb}
    bb = np.zeros((2, 1, 2, 1))
    bb[[0, 1], 0, [0, 1], 0] = -np.cos(b[:, 0])
    return Case(
        lambda x: jnp.sum(jnp.sin(x["a"])) + jnp.sum(jnp.cos(x["b"])),
        {"a": jnp.array(a), "b": jnp.array(b)},
        {"a": jnp.array(va), "b": jnp.array(vb)},
        jnp.array(u),
        value=np.sum(np.sin(a)) + np.sum(np.cos(b)),
        jvp=np.sum(np.cos(a) * va) - np.sum(np.sin(b) * vb),
        vjp={"a": u * np.cos(a), "b": -u * np.sin(b)},
        jacobian=gradient,
        gradient=gradient,
        hvp=product,
        quadratic_form=np.sum(va * product["a"]) + np.sum(vb * product["b"]),
        hessian={
            "a": {"a": np.diag(-np.sin(a)), "b": np.zeros((2, 2, 1))},
            "b": {"a": np.zeros((2, 1, 2)), "b": bb},
        },
        hessian_diagonal={"a": -np.sin(a), "b": -np.cos(b)},
    )


class _Layer(eqx.Module):
    weight: Any
    count: Any
    activation: Callable
    name: str
    nothing: None = None
    power: int = eqx.field(static=True, default=3)


@case("gradient", "hvp", "jvp", "vjp", "quadratic_form", "hessian_diagonal")
def module_with_all_kinds_of_leaves():
    """Sum `count * square(weight) ** 3 / 3`, so that the slope is 2 count weight^5."""
    w, v, u = np.array([1.0, -2.0]), np.array([0.5, 3.0]), np.array(2.0)
    count = np.array([3, 1])

    def layer(weight):
        return _Layer(jnp.array(weight), jnp.array(count), jnp.square, "first")

    def result(weight):
        return _Layer(weight, None, None, None)

    def f(layer):
        assert layer.name == "first"
        weights = layer.count.astype(layer.weight.dtype)
        return jnp.sum(weights * layer.activation(layer.weight) ** layer.power) / 3

    slope, bend = 2 * count * w**5, 10 * count * w**4
    return Case(
        f,
        layer(w),
        layer(v),
        jnp.array(u),
        value=np.sum(count * w**6) / 3,
        jvp=np.sum(slope * v),
        vjp=result(u * slope),
        gradient=result(slope),
        hvp=result(bend * v),
        quadratic_form=np.sum(v * bend * v),
        hessian_diagonal=result(bend),
    )


@case("gradient", "hvp", "jvp", "quadratic_form", "hessian", "hessian_diagonal")
def integers_and_numbers():
    """`n.sum() * w * s**2` with an integer array n and Python floats w, s."""
    w, s, vw, vs = 3.0, -0.5, 2.0, 7.0
    n = np.array([1, 3])

    def f(x):
        assert x["skip"] is None
        return jnp.sum(x["n"]).astype(float) * x["w"] * x["s"] ** 2

    def tree(w, s, n=None):
        return {"w": w, "s": s, "n": n, "skip": None}

    def arrays(w, s):
        return tree(np.array(w), np.array(s))

    ww, ws, ss = 0.0, 8 * s, 8 * w
    return Case(
        f,
        tree(w, s, jnp.array(n)),
        tree(vw, vs),
        value=np.array(4 * w * s**2),
        jvp=np.array(4 * s**2 * vw + 8 * w * s * vs),
        gradient=arrays(4 * s**2, 8 * w * s),
        hvp=arrays(ww * vw + ws * vs, ws * vw + ss * vs),
        quadratic_form=np.array(ww * vw**2 + 2 * ws * vw * vs + ss * vs**2),
        hessian=tree(arrays(ww, ws), arrays(ws, ss)),
        hessian_diagonal=arrays(ww, ss),
    )


# --- examples of other packages ------------------------------------------------------


@case(*SECOND)
def rosenbrock():
    """Mooncake's tests."""
    return scalar_valued(
        lambda x: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2,
        [1.2, 1.2],
        [1.0, -2.0],
        5.8,
        [115.6, -48],
        [[1250.0, -480], [-480, 200]],
    )


@case(*SECOND, *NUMBER)
def fourth_power():
    """Mooncake's tests."""
    return scalar_valued(lambda x: x**4, 2.0, -0.5, 16.0, 32.0, 48.0)


@case(*SECOND, *NUMBER)
def sixth_power():
    """Mooncake's tests."""
    return scalar_valued(lambda x: x**6, 2.0, -0.5, 64.0, 192.0, 480.0)


@case(*SECOND, *NUMBER)
def fourth_power_at_three_halves():
    """DifferentiationInterface #1017, a silent zero."""
    return scalar_valued(lambda x: x**4, 1.5, 1.0, 5.0625, 13.5, 27.0)


@case(*SECOND)
def gams():
    """Mooncake's tests: every entry interacts with the last."""

    def f(x):
        return jnp.sum((x[:-1] ** 2 + x[-1] ** 2) ** 2 - 4 * x[:-1] + 3)

    x = np.array([0.0] + 9 * [1.0])
    v = np.cos(np.arange(10.0))
    hessian = np.diag([4.0] + 8 * [16.0] + [140.0])
    hessian[1:9, 9] = hessian[9, 1:9] = 8
    gradient = np.array([-4.0] + 8 * [4.0] + [68.0])
    return scalar_valued(f, x, v, 28.0, gradient, hessian)


@case(*SECOND)
def triangular_solve():
    """Mooncake #1246."""
    factor = np.array([[2.0, 0.0], [1.0, 3.0]])

    def f(x):
        return jnp.sum(jax.scipy.linalg.solve_triangular(factor, x, lower=True) ** 2)

    hessian = np.array([[5.0, -1.0], [-1.0, 2.0]]) / 9
    return scalar_valued(f, [1.0, 2.0], [3.0, -1.0], 0.5, [1 / 3, 1 / 3], hessian)


@case(*SECOND)
def hypotenuse():
    """Mooncake's tests."""
    return scalar_valued(
        lambda x: jnp.hypot(x[0], x[1]),
        [3.0, 4.0],
        [1.0, 0.0],
        5.0,
        [0.6, 0.8],
        [[0.128, -0.096], [-0.096, 0.072]],
    )


@case(*SECOND)
def two_arguments():
    """Mooncake's tests, the arguments in a tuple."""
    x, y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    vx, vy, u = np.array([0.5, -1.0]), np.array([2.0, 7.0]), -0.5
    gradient = (2 * x + [y[0], 0], 2 * y + [x[0], 0])
    product = (2 * vx + [vy[0], 0], 2 * vy + [vx[0], 0])
    same, cross = 2 * np.eye(2), np.diag([1.0, 0.0])
    return Case(
        lambda p: jnp.sum(p[0] ** 2) + jnp.sum(p[1] ** 2) + p[0][0] * p[1][0],
        (jnp.array(x), jnp.array(y)),
        (jnp.array(vx), jnp.array(vy)),
        jnp.array(u),
        value=np.array(33.0),
        jvp=np.sum(gradient[0] * vx) + np.sum(gradient[1] * vy),
        vjp=tuple(u * g for g in gradient),
        jacobian=gradient,
        gradient=gradient,
        hvp=product,
        quadratic_form=np.sum(vx * product[0]) + np.sum(vy * product[1]),
        hessian=((same, cross), (cross, same)),
        hessian_diagonal=(2 * np.ones(2), 2 * np.ones(2)),
    )


STALE = {
    "value": 1.342976,
    "gradient": [-0.9764864, -0.278528, -0.31232],
    "hessian": [
        [1.24731392, 0.0950272, 0.37888],
        [0.0950272, 0.309248, 0.02048],
        [0.37888, 0.02048, 0.0512],
    ],
}


def _solve_lower_triangle(p, data):
    zero = jnp.zeros(())
    diagonal = p[0] + 1
    rows = [[diagonal, zero, zero], [p[1], diagonal, zero], [p[2], p[1], diagonal]]
    matrix = jnp.stack([jnp.stack(row) for row in rows])
    return jnp.sum(jnp.linalg.solve(matrix, data) ** 2)


@case(*SECOND)
def stale_state_closed_over():
    """Mooncake #1238."""
    data = jnp.array([1.0, 2.0, 3.0])
    return scalar_valued(
        lambda p: _solve_lower_triangle(p, data), [1.5, 2, -1], [1.0, -1, 0.5], **STALE
    )


@case(*SECOND)
def stale_state_as_argument():
    """Mooncake #1238."""
    return scalar_valued(
        _solve_lower_triangle,
        [1.5, 2, -1],
        [1.0, -1, 0.5],
        **STALE,
        args=(jnp.array([1.0, 2.0, 3.0]),),
    )


@case(*SECOND)
def lagrangian():
    """DifferentiationInterface #206."""

    def f(x, multipliers):
        return jnp.sum(x**2) + multipliers @ jnp.diff(x) ** 3

    hessian = [[8.0, -6, 0, 0], [-6, 20, -12, 0], [0, -12, 32, -18], [0, 0, -18, 20]]
    return scalar_valued(
        f,
        [1.0, 2, 3, 4],
        [1.0, 0, -1, 2],
        36.0,
        [-1.0, 1, 3, 17],
        hessian,
        args=(jnp.array([1.0, 2.0, 3.0]),),
        args_before=(jnp.array([-5.0, 0.0, 11.0]),),
    )


@case(*SECOND)
def sine_of_a_product():
    """Enzyme's manual."""
    sine, cosine = np.sin(6), np.cos(6)
    hessian = [[-9 * sine, cosine - 6 * sine], [cosine - 6 * sine, -4 * sine]]
    known = scalar_valued(
        lambda x: jnp.sin(x[0] * x[1]),
        [2.0, 3.0],
        [5.0, 2.7],
        sine,
        [3 * cosine, 2 * cosine],
        hessian,
    )
    np.testing.assert_allclose(known.gradient, [2.8805108600, 1.9203405733], rtol=1e-9)
    np.testing.assert_allclose(known.hvp, [19.6926882637, 16.2010037598], rtol=1e-9)
    return known


@case(*SECOND)
def captured_matrix_of_ones():
    """Enzyme #2523, a silent zero."""
    ones = jnp.ones((3, 3))
    known = scalar_valued(
        lambda x: x @ ones @ x,
        np.ones(3),
        np.ones(3),
        9.0,
        [6.0] * 3,
        np.full((3, 3), 2.0),
    )
    assert known.hvp.tolist() == [6, 6, 6]
    return known


@case(*SECOND)
def cubes_times_fourth_powers():
    """Enzyme #2071."""
    x = np.arange(1.0, 13.0)
    s3, s4 = np.sum(x**3), np.sum(x**4)
    hessian = 12 * (np.outer(x**2, x**3) + np.outer(x**3, x**2))
    hessian += np.diag(6 * x * s4 + 12 * x**2 * s3)
    known = scalar_valued(
        lambda x: jnp.sum(x**3) * jnp.sum(x**4),
        x.reshape(4, 3),
        np.ones((4, 3)),
        s3 * s4,
        (3 * x**2 * s4 + 4 * x**3 * s3).reshape(4, 3),
        hessian.reshape(4, 3, 4, 3),
    )
    assert known.hvp.ravel().tolist() == [
        *(518076, 1374984, 2617524, 4292496, 6446700, 9126936),
        *(12380004, 16252704, 20791836, 26044200, 32056596, 38875824),
    ]
    return known


@case(*SECOND)
def stopped_gradient():
    """ForwardDiff #845: what is stopped must not depend on how many columns run."""

    def f(z):
        return jnp.sum(z**2) + jax.lax.stop_gradient(z[0]) * z[1]

    z = [3.0, -1.0]
    return scalar_valued(f, z, [1.0, 4.0], 7.0, [6.0, 1.0], 2 * np.eye(2))


@case(*FIRST, "hessian")
def cumulative_product():
    """ForwardDiff's manual: the Hessian of each output."""
    jacobian = np.array([[1.0, 0, 0], [2, 1, 0], [6, 3, 2]])
    hessian = np.zeros((3, 3, 3))
    hessian[1] = [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    hessian[2] = [[0, 3, 2], [3, 0, 1], [2, 1, 0]]
    return array_valued(
        jnp.cumprod,
        [1.0, 2.0, 3.0],
        [1.0, -1.0, 2.0],
        [1.0, 2.0, -1.0],
        np.array([1.0, 2.0, 6.0]),
        jacobian,
        hessian=hessian,
    )


@case(*SECOND)
def sum_of_cumulative_product():
    """HyperHessians.jl."""
    hessian = [[0.0, 16, 10, 6], [16, 0, 5, 3], [10, 5, 0, 2], [6, 3, 2, 0]]
    return scalar_valued(
        lambda x: jnp.sum(jnp.cumprod(x)),
        [1.0, 2, 3, 4],
        [1.0, -1, 0.5, 2],
        33.0,
        [33.0, 16, 10, 6],
        hessian,
    )


def _morse(x, bend):
    decay = np.exp(1 - x)
    known = scalar_valued(
        lambda x: (1 - jnp.exp(1 - x)) ** 2,
        x,
        -1.5,
        (1 - decay) ** 2,
        2 * (1 - decay) * decay,
        2 * decay * (2 * decay - 1),
    )
    np.testing.assert_allclose(known.second_derivative, bend, atol=5e-8)
    return known


@case(*SECOND, *NUMBER)
def morse_at_0():
    """Zygote #726, a NaN."""
    return _morse(0.0, 24.1196607)


@case(*SECOND, *NUMBER)
def morse_at_1():
    """Zygote #726, a NaN."""
    return _morse(1.0, 2.0)


@case(*SECOND, *NUMBER)
def morse_at_2():
    """Zygote #726, a NaN."""
    return _morse(2.0, -0.1944177)


@case(*SECOND, *NUMBER)
def morse_at_3():
    """Zygote #726, a NaN."""
    return _morse(3.0, -0.1974080)


WITH_ENTRIES = [make for make in CASES if make is not empty_tree]
"""Where a batch of directions has a length."""

each_dtype = pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "float32", "float64"]
)
