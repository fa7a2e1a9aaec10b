"""What a problem holds is as it was when the problem was made."""

import jax.numpy as jnp
import numpy as np
import pytest

from hotk.interop import PrecisionWarning, scipy_problem
from tests.counting import compiles
from tests.helpers import close


def quartic(x):
    return jnp.sum(x**4)


def test_the_function_is_frozen():
    scale, shift = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    f = lambda x, shift: jnp.sum(scale * x**2 + shift)
    problem = scipy_problem(f, np.ones(2), shift)
    scale[:], shift[:] = 0.0, 0.0
    z = problem.x0
    assert problem.fun(z) == 10.0
    close(problem.hessp(z, z), np.array([2.0, 4.0]))
    close(problem.hess(z), np.diag([2.0, 4.0]))


def test_an_object_with_state_is_frozen():
    class Model:
        def __init__(self):
            self.factor = 2.0
            self.calls = 0

        def __call__(self, x, power):
            self.calls += 1
            return self.factor * jnp.sum(x["w"] ** power)

    model = Model()
    problem = scipy_problem(model, {"w": np.ones(2)}, 3)
    model.factor = 5.0
    z = problem.x0
    assert problem.fun(z) == 4.0
    close(problem.jac(z), np.array([6.0, 6.0]))
    close(problem.hessp(z, z), np.array([12.0, 12.0]))
    close(problem.hess(z), np.diag([12.0, 12.0]))
    calls = model.calls
    problem.minimize("trust-ncg")
    assert model.calls == calls


@pytest.mark.parametrize(
    "kind", [np.array, jnp.array, int], ids=["numpy", "jax", "python"]
)
def test_captured_values_may_decide(kind):
    sign, count = kind(1), kind(3)

    def f(x, count):
        total = sum(jnp.sum(x**k) for k in range(int(count)))
        return total if sign > 0 else -total

    problem = scipy_problem(f, np.ones(2), count)
    z = problem.x0
    assert problem.fun(z) == 6.0
    close(problem.hessp(z, z), np.array([2.0, 2.0]))
    close(problem.hess(z), np.diag([2.0, 2.0]))


def test_numpy_may_compute_with_a_further_argument():
    weights = np.linspace(0, 1, 200)
    f = lambda x, w: jnp.sum(x**2) * np.sin(w).sum()
    problem = scipy_problem(f, np.ones(2), weights)
    total = 2 * np.sin(weights).sum()
    close(problem.hess(problem.x0), np.diag([total, total]))


def test_other_data_need_no_compile():
    def make(data, damping):
        f = lambda x, c: jnp.sum((data @ x) ** 4) + c * jnp.sum(x**2)
        problem = scipy_problem(f, np.ones(2), damping)
        z = problem.x0
        return problem.fun(z), problem.hessp(z, z), problem.hess(z)

    first, second = np.eye(2), 2 * np.eye(2)
    make(first, 0.5)
    with compiles() as count:
        value, product, matrix = make(second, 0.25)
    assert count() == 0
    assert value == 32.5
    close(product, np.full(2, 192.5))
    close(matrix, np.diag([192.5, 192.5]))


def test_a_python_number_takes_the_dtype_of_an_array():
    x0 = {"a": 2.0, "b": np.ones(2, np.float32)}
    f = lambda x, c: jnp.sum(x["a"] * x["b"] ** 2 * c)
    with pytest.warns(PrecisionWarning):
        problem = scipy_problem(f, x0, 0.5)
    close(problem.jac([2.0, 1.0, 3.0]), np.array([5.0, 2.0, 6.0]))
    close(problem.hessp([2.0, 1.0, 3.0], [1.0, 0, 0]), np.array([0.0, 1.0, 3.0]))
