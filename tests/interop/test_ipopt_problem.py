"""A constrained problem as cyipopt wants it."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import hotk
from hotk.interop import PrecisionWarning, ipopt_problem
from tests.counting import compiles
from tests.helpers import close


# Problem 71 of Hock and Schittkowski, with its solution to nine digits.
HS71 = np.array([1.0, 5.0, 5.0, 1.0])
SOLUTION = np.array([1.0, 4.742999644, 3.821149979, 1.379408293])
Z = np.array([1.5, 4.0, 3.5, 2.0])
WEIGHTS = np.array([0.5, -2.0])


def objective(x):
    return x[0] * x[3] * jnp.sum(x[:3]) + x[2]


def constraints(x):
    return jnp.stack([jnp.prod(x), jnp.sum(x**2)])


def lower(matrix):
    return np.asarray(matrix)[np.tril_indices(len(matrix))]


def lagrangian(x):
    return 0.25 * objective(x) + WEIGHTS @ constraints(x)


def test_callbacks_are_the_derivatives_of_jax():
    problem = ipopt_problem(objective, HS71, constraints=constraints)
    assert (problem.n, problem.m) == (4, 2)
    assert type(problem.objective(Z)) is float
    close(problem.objective(Z), 30.5)
    close(problem.gradient(Z), np.asarray(jax.jit(jax.grad(objective))(Z)))
    close(problem.constraints(Z), np.array([42.0, 34.5]))
    jacobian = np.zeros((2, 4))
    jacobian[problem.jacobianstructure()] = problem.jacobian(Z)
    close(jacobian, np.stack([42.0 / Z, 2 * Z]))
    triangle = problem.hessian(Z, WEIGHTS, 0.25)
    close(triangle, lower(jax.jit(jax.hessian(lagrangian))(Z)))
    rows, columns = problem.hessianstructure()
    assert (rows >= columns).all()
    assert len(set(zip(rows.tolist(), columns.tolist(), strict=True))) == 10


def test_constraints_of_trees_mixed_dtypes_and_complex_leaves():
    x0 = {"n": 3, "r": jnp.array([0.5, 2.0], jnp.float32), "z": np.array([1 + 2j])}

    def f(x):
        return jnp.sum(x["r"].astype(float)) ** 3 * x["z"][0].imag ** x["n"]

    def g(x):
        z = x["z"][0]
        return {"a": x["r"] ** 2, "b": (z**2).real, "c": [jnp.outer(x["r"], x["r"])]}

    def flat(x):
        r = x[:2]
        return jnp.concatenate(
            [r**2, (x[2] ** 2 - x[3] ** 2)[None], jnp.outer(r, r).ravel()]
        )

    z, weights = np.array([0.5, 2.0, 1.0, 2.0]), np.arange(1.0, 8.0)
    total = lambda x: 2 * (x[0] + x[1]) ** 3 * x[3] ** 3 + weights @ flat(x)
    with pytest.warns(PrecisionWarning):
        problem = ipopt_problem(f, x0, constraints=g)
    loose = {"rtol": 1e-5, "atol": 1e-5}
    assert problem.m == 7
    close(problem.x0, z)
    close(problem.constraints(z), np.asarray(flat(jnp.asarray(z))), **loose)
    jacobian = np.asarray(jax.jit(jax.jacobian(flat))(z))
    close(problem.jacobian(z), jacobian.ravel(), **loose)
    expected = lower(jax.jit(jax.hessian(total))(z))
    close(problem.hessian(z, weights, 2.0), expected, **loose)
    close(problem.unravel(z), x0)


def test_one_compile_a_callback():
    jnp.asarray(HS71)
    hotk.clear_cache()
    with compiles() as count:
        problem = ipopt_problem(objective, HS71, constraints=constraints)
        for shift in range(4):
            z = HS71 + shift
            problem.objective(z), problem.gradient(z)
            problem.constraints(z), problem.jacobian(z)
            problem.hessian(z, WEIGHTS * shift, float(shift))
    assert count() == 3


def test_a_solver_finds_the_known_solution():
    """SciPy's stands in for IPOPT: it takes the same callbacks."""
    problem = ipopt_problem(objective, HS71, constraints=constraints)

    def hessian(z, multipliers, factor):
        matrix = np.zeros((4, 4))
        rows, columns = problem.hessianstructure()
        matrix[rows, columns] = problem.hessian(z, multipliers, factor)
        matrix[columns, rows] = matrix[rows, columns]
        return matrix

    conditions = scipy.optimize.NonlinearConstraint(
        problem.constraints,
        [25.0, 40.0],
        [np.inf, 40.0],
        jac=lambda z: problem.jacobian(z).reshape(2, 4),
        hess=lambda z, v: hessian(z, v, 0.0),
    )
    result = scipy.optimize.minimize(
        problem.objective,
        problem.x0,
        jac=problem.gradient,
        hess=lambda z: hessian(z, np.zeros(2), 1.0),
        bounds=[(1.0, 5.0)] * 4,
        constraints=conditions,
        method="trust-constr",
        options={"gtol": 1e-12, "xtol": 1e-14, "barrier_tol": 1e-12},
    )
    np.testing.assert_allclose(result.x, SOLUTION, atol=1e-6)


def test_outputs_are_their_own_and_points_are_told_apart_by_content():
    problem = ipopt_problem(objective, HS71, constraints=constraints)
    z = Z.copy()
    calls = [
        problem.gradient,
        problem.constraints,
        problem.jacobian,
        lambda z: problem.hessian(z, WEIGHTS, 0.25),
    ]
    expected = [call(z) for call in calls]
    for call, kept in zip(calls, [e.copy() for e in expected], strict=True):
        got = call(z)
        assert got.dtype == np.float64
        assert got.flags.writeable
        got[:] = 0.0
        close(call(z), kept)
    z += 1.0
    for call, before in zip(calls, expected, strict=True):
        assert not np.array_equal(call(z), before)
    close(problem.jacobian(z), np.concatenate([np.prod(Z + 1) / (Z + 1), 2 * (Z + 1)]))


def test_without_constraints():
    problem = ipopt_problem(objective, HS71)
    assert problem.m == 0
    assert problem.constraints(Z).shape == problem.jacobian(Z).shape == (0,)
    assert [len(i) for i in problem.jacobianstructure()] == [0, 0]
    got = problem.hessian(Z, np.zeros(0), 2.0)
    close(got, 2 * lower(jax.jit(jax.hessian(objective))(Z)))


def test_further_arguments_go_to_both_and_are_frozen():
    shift = np.array([1.0, 2.0])
    f = lambda x, s: jnp.sum((x - s) ** 2)
    g = lambda x, s: x @ s
    problem = ipopt_problem(f, np.zeros(2), shift, constraints=g)
    shift[:] = 0.0
    close(problem.gradient(np.zeros(2)), np.array([-2.0, -4.0]))
    close(problem.jacobian(np.zeros(2)), np.array([1.0, 2.0]))
    close(problem.hessian(np.zeros(2), [1.0], 1.0), np.array([2.0, 0.0, 2.0]))


def test_captured_values_may_decide_and_objects_are_frozen():
    class Bound:
        def __init__(self):
            self.factor, self.calls = 3.0, 0

        def __call__(self, x):
            self.calls += 1
            return self.factor * jnp.sum(x**2)

    sign, bound = np.array(-1), Bound()
    f = lambda x: jnp.sum(x**3) if sign > 0 else -jnp.sum(x**3)
    problem = ipopt_problem(f, np.ones(2), constraints=bound)
    bound.factor = 0.0
    close(problem.constraints(np.ones(2)), np.array([6.0]))
    close(problem.hessian(np.ones(2), [2.0], 1.0), np.array([6.0, 0.0, 6.0]))


# ----- cyipopt


class Recorder:
    """Takes what `cyipopt.Problem` takes, and returns where it began."""

    def __init__(self, n, m, problem_obj=None, lb=None, ub=None, cl=None, cu=None):
        self.given = {"n": n, "m": m, "lb": lb, "ub": ub, "cl": cl, "cu": cu}
        self.problem = problem_obj
        self.options = {}

    def add_option(self, keyword, val):
        self.options[keyword] = val

    def solve(self, x, lagrange=(), zl=(), zu=()):
        n, m = self.given["n"], self.given["m"]
        self.start = {"x": x, "lagrange": lagrange, "zl": zl, "zu": zu}
        info = {"x": x + 1, "g": 1.0 * np.arange(m), "mult_g": 10.0 + np.arange(m)}
        info |= {"mult_x_L": np.arange(n) + 0.5, "mult_x_U": np.arange(n) + 0.25}
        return x, {"recorder": self, **info}


def test_solve_tells_ipopt_bounds_and_options(monkeypatch):
    fake = types.SimpleNamespace(Problem=Recorder)
    monkeypatch.setitem(sys.modules, "cyipopt", fake)
    problem = ipopt_problem(objective, HS71, constraints=constraints)
    tree, info = problem.solve(
        lb=1, ub=[5, 5, 5, 5], cl=[25, 40], cu=[np.inf, 40], tol=1e-9, print_level=0
    )
    close(tree, HS71)
    recorder = info["recorder"]
    assert recorder.problem is problem
    assert recorder.options == {"tol": 1e-9, "print_level": 0}
    given = {"n": 4, "m": 2, "lb": np.ones(4), "ub": np.full(4, 5.0)}
    given |= {"cl": np.array([25.0, 40.0]), "cu": np.array([np.inf, 40.0])}
    close(recorder.given, given)
    _, info = problem.solve()
    assert info["recorder"].given["lb"] is None
    close(info["recorder"].given["cl"], np.zeros(2))


def path(x):
    return {"start": x["q"][0], "steps": jnp.diff(x["q"]) - x["u"]}


TREE = {"q": np.array([1.0, 2.0, 4.0]), "u": np.array([0.5, 0.25]), "name": "path"}


def test_bounds_and_multipliers_are_trees(monkeypatch):
    fake = types.SimpleNamespace(Problem=Recorder)
    monkeypatch.setitem(sys.modules, "cyipopt", fake)
    effort = lambda x: jnp.sum(x["u"] ** 2)
    problem = ipopt_problem(effort, TREE, constraints=path)
    _, info = problem.solve(
        lb={"q": -5, "u": [-1.0, -2.0], "name": "path"},
        ub={"q": None, "u": 3.0, "name": "path"},
        cl={"start": None, "steps": 0.0},
        cu={"start": 1, "steps": [0.0, 7.0]},
    )
    given = info["recorder"].given
    close(given["lb"], np.array([-5.0, -5.0, -5.0, -1.0, -2.0]))
    close(given["ub"], np.array([np.inf, np.inf, np.inf, 3.0, 3.0]))
    close(given["cl"], np.array([-np.inf, 0.0, 0.0]))
    close(given["cu"], np.array([1.0, 0.0, 7.0]))
    close(info["values"], {"start": np.array(0.0), "steps": np.array([1.0, 2.0])})
    close(info["multipliers"]["steps"], np.array([11.0, 12.0]))
    lower, upper = info["bound_multipliers"]
    close(lower["u"], np.array([3.5, 4.5]))
    close(upper["q"], np.array([0.25, 1.25, 2.25]))
    _, again = problem.solve(warm_start=info, mu_init=1e-6)
    recorder = again["recorder"]
    options = {"warm_start_init_point": "yes", "mu_init": 1e-6}
    assert recorder.options == options
    close(recorder.start["x"], problem.x0 + 1)
    close(recorder.start["lagrange"], np.array([10.0, 11.0, 12.0]))
    close(recorder.start["zu"], np.arange(5) + 0.25)


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("lb", {"q": 0.0}),
        ("ub", [1.0, 2.0]),
        ("cl", {"start": 0.0, "steps": [1.0, 2.0, 3.0]}),
        ("cu", "none"),
    ],
)
def test_a_bound_of_another_structure_is_refused(monkeypatch, name, bound):
    fake = types.SimpleNamespace(Problem=Recorder)
    monkeypatch.setitem(sys.modules, "cyipopt", fake)
    problem = ipopt_problem(lambda x: jnp.sum(x["u"] ** 2), TREE, constraints=path)
    with pytest.raises(hotk.StructureError, match=f"`{name}` fits neither"):
        problem.solve(**{name: bound})


# Problems of Hock and Schittkowski (1981), by their numbers: objective, start,
# constraints, bounds of these, bounds of the variables, and the least value there.
FREE, NONE = 2e19, (None, None)
PROBLEMS = {
    6: (
        lambda x: (1 - x[0]) ** 2,
        [-1.2, 1.0],
        lambda x: 10 * (x[1] - x[0] ** 2),
        (0.0, 0.0),
        NONE,
        0.0,
    ),
    7: (
        lambda x: jnp.log(1 + x[0] ** 2) - x[1],
        [2.0, 2.0],
        lambda x: (1 + x[0] ** 2) ** 2 + x[1] ** 2,
        (4.0, 4.0),
        NONE,
        -np.sqrt(3.0),
    ),
    28: (
        lambda x: (x[0] + x[1]) ** 2 + (x[1] + x[2]) ** 2,
        [-4.0, 1.0, 1.0],
        lambda x: x[0] + 2 * x[1] + 3 * x[2],
        (1.0, 1.0),
        NONE,
        0.0,
    ),
    35: (
        lambda x: 9 - 8 * x[0] - 6 * x[1] - 4 * x[2] + 2 * x[0] ** 2 + 2 * x[1] ** 2
        + x[2] ** 2 + 2 * x[0] * x[1] + 2 * x[0] * x[2],
        [0.5, 0.5, 0.5],
        lambda x: x[0] + x[1] + 2 * x[2],
        (-FREE, 3.0),
        (0.0, FREE),
        1 / 9,
    ),
    43: (
        lambda x: jnp.array([1.0, 1.0, 2.0, 1.0]) @ x**2
        - jnp.array([5.0, 5.0, 21.0, -7.0]) @ x,
        [0.0] * 4,
        lambda x: [
            x @ x + jnp.array([1.0, -1.0, 1.0, -1.0]) @ x,
            jnp.array([1.0, 2.0, 1.0, 2.0]) @ x**2 - x[0] - x[3],
            2 * x[0] ** 2 + x[1] ** 2 + x[2] ** 2 + 2 * x[0] - x[1] - x[3],
        ],
        (-FREE, [8.0, 10.0, 5.0]),
        NONE,
        -44.0,
    ),
    71: (
        objective,
        HS71,
        constraints,
        ([25.0, 40.0], [FREE, 40.0]),
        (1.0, 5.0),
        17.0140172891563,
    ),
}  # fmt: skip


@pytest.mark.parametrize("number", PROBLEMS)
def test_ipopt_finds_the_known_solution(number):
    pytest.importorskip("cyipopt")
    f, start, g, (cl, cu), (lb, ub), least = PROBLEMS[number]
    problem = ipopt_problem(f, np.array(start), constraints=g)
    tree, info = problem.solve(lb=lb, ub=ub, cl=cl, cu=cu, tol=1e-10, print_level=0)
    assert info["status"] == 0
    np.testing.assert_allclose(f(jnp.asarray(tree)), least, atol=1e-7)
    if number == 71:
        np.testing.assert_allclose(tree, SOLUTION, atol=1e-6)


def test_ipopt_starts_again_where_it_was():
    pytest.importorskip("cyipopt")
    problem = ipopt_problem(objective, HS71, constraints=constraints)
    bounds = {"lb": 1.0, "ub": 5.0, "cl": [25.0, 40.0], "cu": [FREE, 40.0]}
    steps: list[int] = []
    problem.intermediate = lambda mode, count, *_: steps.append(count)
    _, info = problem.solve(**bounds, print_level=0)
    cold, steps[:] = steps[-1], []
    # the multipliers of the literature: -0.5523, 0.1615, and 1.0879 of x_1 >= 1
    np.testing.assert_allclose(info["multipliers"], [-0.5523, 0.1615], atol=1e-4)
    np.testing.assert_allclose(
        info["bound_multipliers"][0], [1.0879, 0, 0, 0], atol=1e-4
    )
    tree, info = problem.solve(
        **bounds, warm_start=info, mu_init=1e-9, bound_push=1e-9, print_level=0,
        warm_start_bound_push=1e-9, warm_start_mult_bound_push=1e-9,
    )  # fmt: skip
    assert info["status"] == 0
    np.testing.assert_allclose(tree, SOLUTION, atol=1e-6)
    assert steps[-1] < cold / 2


def test_ipopt_converges_as_with_derivatives_by_hand():
    """The same callbacks from JAX alone take the same steps."""
    cyipopt = pytest.importorskip("cyipopt")
    bounds = {"lb": np.ones(4), "ub": np.full(4, 5.0)}
    bounds |= {"cl": np.array([25.0, 40.0]), "cu": np.array([FREE, 40.0])}

    class ByHand:
        objective = staticmethod(lambda z: float(objective(z)))
        gradient = staticmethod(lambda z: np.asarray(jax.grad(objective)(z)))
        constraints = staticmethod(lambda z: np.asarray(constraints(z)))
        jacobian = staticmethod(lambda z: np.asarray(jax.jacobian(constraints)(z)))

        def hessianstructure(self):
            return np.tril_indices(4)

        def hessian(self, z, lagrange, factor):
            total = lambda x: factor * objective(x) + lagrange @ constraints(x)
            return lower(jax.hessian(total)(z))

        def intermediate(self, mode, count, *_):
            steps.append(count)

    def count(given):
        steps.clear()
        solver = cyipopt.Problem(n=4, m=2, problem_obj=given, **bounds)
        solver.add_option("print_level", 0)
        assert solver.solve(HS71.copy())[1]["status"] == 0
        return steps[-1]

    steps: list[int] = []
    ours = ipopt_problem(objective, HS71, constraints=constraints)
    ours.intermediate = lambda mode, count, *_: steps.append(count)
    assert count(ours) == count(ByHand()) <= 12


# ----- Errors


@pytest.mark.usefixtures("as_user")
def test_errors():
    with pytest.raises(hotk.OutputError, match="constraints"):
        ipopt_problem(objective, HS71, constraints=lambda x: jax.lax.complex(x, x))
    with pytest.raises(hotk.OutputError):
        ipopt_problem(lambda x: 2.0 * x, HS71)
    problem = ipopt_problem(objective, HS71, constraints=constraints)
    with pytest.raises(hotk.StructureError, match="`lagrange`"):
        problem.hessian(HS71, np.ones(3), 1.0)
    assert repr(problem) == "IpoptProblem(objective, n=4, m=2)"


def test_a_dense_hessian_that_cannot_fit_is_refused_at_once():
    problem = ipopt_problem(lambda x: jnp.sum(x**2), np.ones(100))
    hotk.set_memory_budget(1000)
    try:
        with pytest.raises(hotk.TooLargeError, match="trust-constr"):
            problem.hessianstructure()
    finally:
        hotk.set_memory_budget(None)
