"""Minima are differentiable: by closed forms, mpmath and SciPy."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.linalg

import hotk
from hotk.optim import levenberg_marquardt, minimize, newton, newton_cg, trust_region
from tests.helpers import close


A = np.array([[1.0, 0.5], [2.0, -1.0], [0.0, 1.5], [0.7, 0.2]])
Y = np.array([1.0, 3.0, -1.0, 0.5])
SIGNS = np.array([1.0, -1.0, -1.0, 1.0])
DECAY = 0.3


def fit(decay, a, y, **options):
    """Fit by ridge regression, with captured arrays and an array that is passed."""
    f = lambda w, decay: jnp.sum((a @ w - y) ** 2) + decay * jnp.sum(w**2)
    return minimize(f, jnp.zeros(2), args=(decay,), **{"tol": 1e-11, **options})


def ridge(decay, a, y):
    """The minimum and the value there, in closed form by NumPy.

    Also the derivatives by the decay, to second order, and by y.
    """
    inverse = np.linalg.inv(a.T @ a + decay * np.eye(2))
    w = inverse @ a.T @ y
    slope = -inverse @ w
    return {
        "x": w,
        "value": np.sum((a @ w - y) ** 2) + decay * np.sum(w**2),
        "x by decay": slope,
        "x by decay twice": -2 * inverse @ slope,
        "x by y": inverse @ a.T,
        "value by decay": np.sum(w**2),
        "value by decay twice": 2 * w @ slope,
        "value by y": -2 * (a @ w - y),
        "value by y twice": 2 * (np.eye(4) - a @ inverse @ a.T),
    }


ROADS = {
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "jit": lambda f, i: jax.jit(jax.jacrev(f, i)),
    "hotk": lambda f, i: lambda *a: hotk.jacobian(f, *a, argnums=i),
}
each_road = pytest.mark.parametrize("take", ROADS.values(), ids=ROADS)


@pytest.mark.exhaustive
@each_road
def test_ridge_regression_to_first_order(take):
    given = DECAY, jnp.asarray(A), jnp.asarray(Y)
    known = ridge(DECAY, A, Y)
    x, value = lambda *a: fit(*a).x, lambda *a: fit(*a).value
    close(take(x, 0)(*given), known["x by decay"], rtol=1e-9)
    close(take(x, 2)(*given), known["x by y"], rtol=1e-9)
    close(take(value, 0)(*given), known["value by decay"], rtol=1e-9)
    close(take(value, 2)(*given), known["value by y"], rtol=1e-9, atol=1e-9)
    # dx = inverse (dA' (y - A x) - A' dA x)
    inverse = np.linalg.inv(A.T @ A + DECAY * np.eye(2))
    rest = Y - A @ known["x"]
    by_a = np.einsum("ik,j->ijk", inverse, rest)
    by_a -= np.einsum("ij,k->ijk", inverse @ A.T, known["x"])
    close(take(x, 1)(*given), by_a, rtol=1e-9, atol=1e-9)


SECOND = {
    "jax": lambda f, x: jax.hessian(f)(x),
    "jit of grad": lambda f, x: jax.jit(jax.jacfwd(jax.grad(f)))(x),
    "hotk": lambda f, x: hotk.hessian(f, x),
    "reverse over reverse": lambda f, x: hotk.hessian(
        f, x, mode=hotk.REVERSE_OVER_REVERSE
    ),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("take", SECOND.values(), ids=SECOND)
def test_ridge_regression_to_second_order(take):
    a, y, known = jnp.asarray(A), jnp.asarray(Y), ridge(DECAY, A, Y)
    weights = jnp.array([1.0, -2.0])
    f = lambda decay: weights @ fit(decay, a, y).x
    expected = np.asarray(weights) @ known["x by decay twice"]
    close(take(f, jnp.asarray(DECAY)), expected, rtol=1e-8)
    f = lambda decay: fit(decay, a, y).value
    close(take(f, jnp.asarray(DECAY)), known["value by decay twice"], rtol=1e-8)
    f = lambda y: fit(DECAY, a, y).value
    close(take(f, y), known["value by y twice"], rtol=1e-8, atol=1e-8)


TRANSFORMS = {
    "trust_region": trust_region(),
    "exact": trust_region(subproblem="exact"),
    "newton": newton(),
    "newton_cg": newton_cg(),
    "levenberg_marquardt": levenberg_marquardt(),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_the_derivative_does_not_depend_on_the_method(transform):
    def slope(decay):
        residuals = lambda w: jnp.concatenate([A @ w - Y, jnp.sqrt(decay) * w])
        f = hotk.curvature.LeastSquares(residuals)
        return minimize(f, jnp.zeros(2), transform, tol=1e-9, max_steps=200).x

    found = jax.jit(jax.jacrev(slope))(DECAY)
    close(found, ridge(DECAY, A, Y)["x by decay"], rtol=1e-7)


@pytest.mark.exhaustive
def test_minima_of_gauss_newton_functions_have_the_derivatives_of_their_values():
    """r = (p - y[0], p^2 - y[1]): g = p - y[0] + 2 p (p^2 - y[1]) is zero at p(y).

    By hand: p' = (1, 2 p) / s with s = 1 + 6 p^2 - 2 y[1], which is not the slope of
    Gauss and Newton, 1 + 4 p^2; of half the sum of squares the gradient is -r, and by
    y[0] twice 1 - p'[0].
    """
    y = jnp.array([1.0, 2.0])
    r = lambda p, y: jnp.stack([p - y[0], p**2 - y[1]])
    f = hotk.curvature.LeastSquares(r)
    run = lambda y: minimize(
        f, jnp.array(1.2), levenberg_marquardt(), args=(y,), tol=1e-12
    )
    by_rule = hotk.rule.minimum(f, lambda p, y: run(y).x)
    by_root = hotk.rule.root(jax.grad(f), lambda p, y: run(y).x)
    p = np.roots([2.0, 0.0, 1.0 - 2 * 2.0, -1.0]).real.max()
    slope = np.array([1.0, 2 * p]) / (1 + 6 * p**2 - 4.0)
    for take in (jax.jacfwd, lambda f: jax.jit(jax.jacrev(f))):
        close(take(lambda y: run(y).x)(y), slope, rtol=1e-8)
        close(take(lambda y: by_rule(jnp.array(1.2), y))(y), slope, rtol=1e-8)
        close(take(lambda y: by_root(jnp.array(1.2), y))(y), slope, rtol=1e-8)
    close(jax.grad(lambda y: run(y).value)(y), np.array([1 - p, 2 - p**2]), rtol=1e-8)
    twice = jax.hessian(lambda y: run(y).value)(y)[0, 0]
    close(twice, np.array(1 - slope[0]), rtol=1e-8)


def test_a_run_that_goes_on_has_the_derivatives_of_its_minimum():
    """The minimum is at c, whatever the state of the run before was made of."""
    f = lambda x, c: jnp.sum(jnp.cosh(x - c))

    def run(c):
        first = minimize(f, jnp.zeros(2), args=(c,), max_steps=2)
        return minimize(f, first.x, args=(c,), state=first.state, tol=1e-9).x

    close(jax.jit(jax.jacrev(run))(3.0), np.ones(2), rtol=1e-8)
    close(jax.jit(jax.jacfwd(run))(3.0), np.ones(2), rtol=1e-8)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["squares", "model", "Fisher"])
def test_a_gauss_newton_function_is_differentiated_with_its_own_hessian(kind):
    """One unknown with residuals that do not vanish: the formula, by hand.

    The Gauss-Newton matrix leaves out r r'', the Fisher matrix of Student's t more.
    """
    model = lambda p: jnp.stack([jnp.exp(p), p])
    loss = {
        "squares": None,
        "model": lambda z: jnp.sum(z**2) / 2,
        "Fisher": hotk.curvature.StudentTLoss(np.zeros((2, 1)), 5.0, reduction="sum"),
    }[kind]
    shift = np.array([0.5, 2.0])

    def objective(y):
        residuals = lambda p: model(p) - jnp.stack([y, jnp.asarray(shift[1])])
        if loss is None:
            return hotk.curvature.LeastSquares(residuals)
        if kind == "Fisher":
            return hotk.curvature.Fisher(lambda p: residuals(p)[:, None], loss)
        return hotk.curvature.GaussNewton(residuals, loss)

    def solve(y):
        found = minimize(objective(y), jnp.array(0.3), tol=1e-11, max_steps=200)
        return found.x, found.value

    def by_hand(y, p):
        """Of each residual the first and second derivatives of its loss."""
        r = np.array([np.exp(p) - y, p - shift[1]])
        if kind == "Fisher":  # 3 log(1 + r^2 / 5)
            first, second = 6 * r / (5 + r**2), 6 * (5 - r**2) / (5 + r**2) ** 2
        else:
            first, second = r, np.ones(2)
        e = np.exp(p)
        bend = second[0] * e**2 + first[0] * e + second[1]
        slope = second[0] * e / bend
        return slope, second[0] - second[0] * e * slope

    x = float(solve(0.5)[0])
    slope, twice = by_hand(0.5, x)
    for take in (jax.jacrev, jax.jacfwd):
        close(take(solve)(0.5)[0], slope, rtol=1e-9)
    close(jax.jacfwd(jax.jacrev(lambda y: solve(y)[1]))(0.5), twice, rtol=1e-8)
    inner = hotk.rule.minimum(
        lambda p, y: objective(y)(p), lambda p, y: jax.lax.stop_gradient(solve(y)[0])
    )
    close(jax.grad(lambda y: inner(jnp.array(0.3), y))(0.5), slope, rtol=1e-9)


def test_the_start_and_what_steps_are_made_of_have_no_part():
    f = lambda x0, rate: minimize(
        lambda x: jnp.sum(jnp.cosh(x - 1)), x0, newton(rate), tol=1e-9, max_steps=99
    ).x.sum()
    assert jax.grad(f, (0, 1))(jnp.zeros(()), 0.9) == (0, 0)


def logistic(decay):
    """The weights of a logistic regression by mpmath, to thirty digits."""
    rows = [
        [mpmath.mpf(float(s)) * float(a) for a in row]
        for s, row in zip(SIGNS, A, strict=True)
    ]

    def gradient(u, v):
        shares = [1 / (1 + mpmath.exp(p * u + q * v)) for p, q in rows]
        part = lambda i: -sum(s * r[i] for s, r in zip(shares, rows, strict=True))
        return part(0) + decay * u, part(1) + decay * v

    return mpmath.findroot(gradient, (0, 0))


@pytest.mark.exhaustive
def test_logistic_regression_against_thirty_digits():
    def held_out(log_decay):
        margins = jnp.asarray(SIGNS[:, None] * A)
        f = lambda w: (
            jnp.sum(jnp.logaddexp(0, -margins @ w))
            + jnp.exp(log_decay) / 2 * jnp.sum(w**2)
        )
        w = minimize(f, jnp.zeros(2), tol=1e-12).x
        return jnp.logaddexp(0, w[0] - 2 * w[1])

    def known(log_decay):
        w = logistic(mpmath.exp(log_decay))
        return mpmath.log(1 + mpmath.exp(w[0] - 2 * w[1]))

    with mpmath.workdps(30):
        first, second = (float(mpmath.diff(known, -0.5, n)) for n in (1, 2))
    close(jax.grad(held_out)(-0.5), first, rtol=1e-8)
    close(hotk.second_derivative(held_out, -0.5), second, rtol=1e-8)


@pytest.mark.exhaustive
def test_logistic_regression_as_jaxopt_differentiates_it():
    jaxopt = pytest.importorskip("jaxopt")
    margins = jnp.asarray(SIGNS[:, None] * A)

    def f(w, decay):
        return jnp.sum(jnp.logaddexp(0, -margins @ w)) + decay * jnp.sum(w**2)

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        solver = jaxopt.BFGS(f, tol=1e-12, maxiter=500)
        theirs = jax.jacobian(lambda c: solver.run(jnp.zeros(2), c).params)(0.3)
    ours = lambda c: minimize(f, jnp.zeros(2), args=(c,), tol=1e-12).x
    close(jax.jacobian(ours)(0.3), theirs, rtol=1e-7)


@pytest.mark.exhaustive
def test_a_gaussian_process_is_tuned_by_newtons_method_through_its_fit():
    """Minimize the negative marginal likelihood, whose weights a `minimize` finds."""
    t = jnp.linspace(0.0, 1.0, 7)
    y = jnp.sin(5 * t)

    def kernel(theta):
        gaps = (t[:, None] - t[None, :]) / jnp.exp(theta[0])
        return jnp.exp(-(gaps**2) / 2) + jnp.exp(theta[1]) * jnp.eye(7)

    def by_solution(theta):
        K = kernel(theta)
        f = lambda a: a @ K @ a / 2 - y @ a
        found = minimize(f, jnp.zeros(7), newton(), tol=1e-11, max_steps=20)
        root = hotk.HessianOperator(f, jnp.zeros(7)).cholesky()
        return y @ found.x / 2 + jnp.sum(jnp.log(jnp.diagonal(root)))

    def closed(theta):
        K = kernel(theta)
        return (y @ jnp.linalg.solve(K, y) + jnp.linalg.slogdet(K)[1]) / 2

    theta = jnp.array([-1.0, -3.0])
    close(jax.jit(jax.grad(by_solution))(theta), jax.grad(closed)(theta), rtol=1e-8)
    close(hotk.hessian(by_solution, theta), jax.hessian(closed)(theta), rtol=1e-8)
    exact = trust_region(subproblem="exact")
    found = minimize(by_solution, theta, exact, tol=1e-8, max_steps=30)
    assert bool(found.converged)
    close(found.x, minimize(closed, theta, exact, tol=1e-8).x, rtol=1e-7)


@pytest.mark.exhaustive
def test_a_minimum_of_a_tree_that_is_held_in_part():
    """f = (u - 3 c)^2 + (v - u)^2 with c held: u = v = 3 c."""
    f = lambda p: (p["u"] - 3 * p["c"]) ** 2 + jnp.sum((p["v"] - p["u"]) ** 2)
    where = {"u": True, "v": True, "c": False, "n": False}

    def found(c):
        start = {"u": jnp.asarray(0.0), "v": jnp.zeros(2), "c": c, "n": 3}
        return minimize(f, start, tol=1e-10, where=where).x

    slope = jax.jacobian(lambda c: {k: v for k, v in found(c).items() if k != "n"})
    close(slope(2.0), {"u": 3.0, "v": np.full(2, 3.0), "c": 1.0}, rtol=1e-9)
    assert found(2.0)["n"] == 3


@pytest.mark.exhaustive
def test_under_vmap_and_scan_in_closures_of_closures():
    """x = c / (1 + k), so dx / dc = 1 / (1 + k)."""

    def loss(c, k):
        inner = lambda x: (x - c) ** 2
        whole = lambda x: inner(x) + k * x**2
        return minimize(whole, jnp.asarray(0.0), tol=1e-12).x ** 2

    ks = np.array([0.5, 1.0, 2.0])
    expected = 2 * 3.0 / (1 + ks) ** 2
    slopes = jax.vmap(jax.grad(loss), (None, 0))(3.0, jnp.asarray(ks))
    close(slopes, expected, rtol=1e-9)
    step = lambda total, k: (total + loss(jnp.sin(total), k), None)
    run = lambda c: jax.lax.scan(step, c, jnp.asarray(ks))[0]

    def by_hand(c):
        slope = 1.0
        for k in ks:
            slope *= 1 + np.sin(2 * c) / (1 + k) ** 2
            c = c + np.sin(c) ** 2 / (1 + k) ** 2
        return slope

    close(jax.jit(jax.grad(run))(0.7), by_hand(0.7), rtol=1e-9)


@pytest.mark.exhaustive
def test_many_unknowns_are_solved_for_by_products():
    scale = np.linspace(1.0, 2.0, 3000)
    f = lambda x, c: (  # the last term makes the Hessian dense
        jnp.sum(scale * (x - c) ** 2 + jnp.cosh(x - c)) + jnp.sum(x - c) ** 2 / 3000
    )
    x = lambda c: minimize(f, jnp.zeros(3000), args=(c,), tol=1e-9).x
    close(jax.jvp(jax.jit(x), (0.5,), (1.0,))[1], np.ones(3000), rtol=1e-8)


@pytest.mark.parametrize("n", [3000, 20_000])
def test_systems_of_many_unknowns_are_solved_by_sparse_factors(n):
    """Against SciPy's banded solver: an iteration gives NaN for the longer chain."""
    h = 1 / (n + 1)

    def energy(u, load):
        slopes = jnp.sum(jnp.diff(jnp.pad(u, 1)) ** 2) / (2 * h)
        return slopes + h * jnp.sum(u**4 / 4 - load * u)

    def end(load):
        return minimize(energy, jnp.zeros(n), newton(linear_solver="sparse"), args=load)

    def by_load(right, u):
        bands = np.array([np.full(n, -1 / h), 2 / h + 3 * h * u**2, np.full(n, -1 / h)])
        return scipy.linalg.solve_banded((1, 1), bands, right)

    u = np.asarray(end((1.0,)).x)
    first = by_load(np.full(n, h), u)
    second = by_load(-6 * h * u * first**2, u)
    mean = lambda load: jnp.mean(end((load,)).x)
    close(jax.grad(mean)(1.0), first.mean(), rtol=1e-7)
    close(jax.jit(jax.hessian(mean))(1.0), second.mean(), rtol=1e-6)


def test_a_large_singular_hessian_gives_nan():
    f = lambda x, a: jnp.sum((x[1:] - x[:-1] - a) ** 2)
    end = lambda a: minimize(f, jnp.zeros(3000), newton_cg(), args=(a,), tol=1e-6)
    assert np.isnan(jax.jit(jax.grad(lambda a: end(a).x[0]))(0.0))


@pytest.mark.exhaustive
def test_what_has_not_converged_says_so(as_user):
    run = lambda decay: fit(decay, A, Y, max_steps=1)
    with pytest.raises(hotk.ModeError, match="largest number of steps") as caught:
        jax.grad(lambda decay: run(decay).x.sum())(DECAY)
    assert "max_steps" in str(caught.value)
    for of in (lambda found: found.x.sum(), lambda found: found.value):
        traced = jax.jit(jax.value_and_grad(lambda decay, of=of: of(run(decay))))
        value, slope = traced(DECAY)
        assert np.isfinite(value)
        assert np.isnan(slope)
        assert np.isnan(hotk.gradient(lambda decay, of=of: of(run(decay)), DECAY))
    # what is not differentiated may stand inside
    assert jax.grad(lambda t: t + fit(DECAY, A, Y, max_steps=1).x.sum() * 0)(1.0) == 1


@pytest.mark.exhaustive
def test_a_singular_hessian_is_none_of_a_wrong_number(as_user):
    """The sum of both weights is determined, their difference is not."""
    f = lambda w, c: (w[0] + w[1] - c) ** 2 + c**2
    run = lambda c: minimize(f, jnp.zeros(2), args=(c,), tol=1e-10)
    with pytest.warns(hotk.SingularHessianWarning, match="where="):
        assert np.isnan(jax.grad(lambda c: run(c).x[0])(3.0))
    assert np.isnan(jax.jit(jax.grad(lambda c: run(c).x[0]))(3.0))
    close(jax.jit(jax.grad(lambda c: run(c).value))(3.0), 6.0, rtol=1e-8)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["gradient_norm", "history", "smallest_curvature"])
def test_other_results_have_no_derivative_that_might_be_wrong(name, as_user):
    run = lambda decay: jnp.sum(getattr(fit(decay, A, Y), name))
    with pytest.raises(hotk.ModeError, match="`x` or `value`"):
        jax.grad(run)(DECAY)
    assert np.isnan(jax.jvp(run, (DECAY,), (1.0,))[1])


def test_without_a_derivative_nothing_is_computed_for_one():
    program = jax.make_jaxpr(lambda decay: fit(decay, A, Y).x)(DECAY)
    assert "linear_solve" not in str(program)
    lowered = jax.jit(lambda decay: fit(decay, A, Y).x).lower(DECAY).as_text()
    assert "getrf" not in lowered
    slope = jax.jit(jax.grad(lambda decay: fit(decay, A, Y).value)).lower(DECAY)
    assert "getrf" not in slope.compile().as_text()


def test_as_users_have_it(default_settings):
    slope = jax.grad(lambda decay: fit(decay, A, Y, tol=1e-4).x.sum())(DECAY)
    expected = ridge(DECAY, A, Y)["x by decay"].sum()
    np.testing.assert_allclose(slope, expected, rtol=1e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("inside", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_a_variable_at_its_bound_is_held_there(inside):
    """Of min (x - a)^T A (x - a) with x[1] = 1, by hand: x[0] follows the rest."""
    A = jnp.array([[2.0, 0.5], [0.5, 1.0]])
    f = lambda x, a: (x - a) @ A @ (x - a)
    upper = jnp.array([jnp.inf, 1.0])
    run = lambda a: hotk.optim.minimize(
        f, jnp.zeros(2), args=(a,), bounds=(None, upper), tol=1e-10
    )
    a = jnp.array([0.5, 3.0])
    found = run(a)
    assert found.active.tolist() == [0, 1]
    close(found.x, np.array([0.5 + 0.25 * 2, 1.0]), rtol=1e-9)
    slope = inside(jax.jacobian(lambda a: run(a).x))(a)
    close(slope, np.array([[1.0, 0.25], [0.0, 0.0]]), atol=1e-9)
    # f at the minimum is (1 - 0.25 / 2) (1 - a[1])^2
    curved = inside(jax.hessian(lambda a: run(a).value))(a)
    close(curved, np.array([[0.0, 0.0], [0.0, 2 * 0.875]]), atol=1e-8)


ROADS_BY_BOUNDS = {
    "keyword": lambda f, a, sides: minimize(
        f, jnp.zeros(2), args=(a,), bounds=sides, tol=1e-10
    ),
    "transformation": lambda f, a, sides: minimize(
        f, jnp.zeros(2), trust_region(bounds=sides), args=(a,), tol=1e-10
    ),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("run", ROADS_BY_BOUNDS.values(), ids=ROADS_BY_BOUNDS)
def test_a_variable_at_its_bound_moves_with_it(run, as_user):
    """As above with x[1] <= u: x[0] = a[0] + (a[1] - u) / 4, f = 7/8 (u - a[1])^2."""
    A = jnp.array([[2.0, 0.5], [0.5, 1.0]])
    f = lambda x, a: (x - a) @ A @ (x - a)
    at = jnp.array([0.5, 3.0]), jnp.array(1.0)
    sides = lambda u: (jnp.array([-9.0, -jnp.inf]), jnp.array([9.0, 1.0]) * u)
    of = lambda part: lambda a, u: getattr(run(f, a, sides(u)), part)
    for take in (jax.jacfwd, lambda *of: jax.jit(jax.jacrev(*of))):
        close(take(of("x"), 1)(*at), np.array([-0.25, 1.0]), atol=1e-9)
        close(take(of("value"), 1)(*at), np.array(-3.5), atol=1e-9)
    by_both = jax.jacfwd(jax.grad(of("value"), 1), (0, 1))(*at)
    close(by_both, (np.array([0.0, -1.75]), np.array(1.75)), atol=1e-8)
    with pytest.raises(hotk.ModeError, match="`x` or `value`"):
        jax.grad(lambda a: of("multipliers")(a, 1.0).sum())(at[0])


@pytest.mark.exhaustive
def test_a_fixed_variable_is_where_its_bounds_are():
    """With x[1] = t exactly, also where the slope along it is zero."""
    f = lambda x, c: (x[0] - c * x[1]) ** 2 + (x[1] - c) ** 2
    run = lambda c, t: minimize(
        f,
        jnp.ones(2),
        args=(c,),
        bounds=(jnp.stack([-9 * t, t]), jnp.stack([9 * t, t])),
    )
    by_c, by_t = jax.jacfwd(lambda c, t: run(c, t).x, (0, 1))(1.0, jnp.array(1.0))
    close(by_c, np.array([1.0, 0.0]), atol=1e-7)
    close(by_t, np.array([1.0, 1.0]), atol=1e-7)


@pytest.mark.exhaustive
def test_whether_a_minimum_is_singular_is_told_by_the_hessian_of_the_values(as_user):
    """(p^2 + c p + 1)^2 / 2 at p = -c / 2: the slope of the residual is zero there."""
    squares = hotk.curvature.LeastSquares(lambda p, c: p**2 + c * p + 1)
    at = jnp.array(0.0)
    slope = jax.grad(lambda c: minimize(squares, at, args=(c,)).x)(0.0)
    assert float(slope) == pytest.approx(-0.5)


def test_an_error_in_a_transformation_names_the_function(as_user):
    def several(x):
        return x

    with pytest.raises(hotk.OutputError, match=r"several.*must return one real number"):
        jax.jit(lambda x: minimize(several, x).x)(jnp.ones(2))


@pytest.mark.exhaustive
def test_a_loop_in_the_objective_has_forward_derivatives():
    """Halved and added to three times, x counts for 7/4 of itself: x = 4 a^2 / 7."""

    def f(x, a):
        def once(state):
            return state[0] + 1, state[1] / 2 + x

        _, s = jax.lax.while_loop(lambda state: state[0] < 3, once, (0, 0 * x))
        return jnp.sum((s - a**2) ** 2)

    a = jnp.array([1.0, -2.0])
    run = lambda a: minimize(f, jnp.zeros(2), args=(a,), tol=1e-12).x
    close(run(a), 4 * np.array([1.0, 4.0]) / 7, rtol=1e-9)
    close(jax.jacfwd(run)(a), np.diag([8.0, -16.0]) / 7, atol=1e-9)
    close(hotk.jacobian(run, a), np.diag([8.0, -16.0]) / 7, atol=1e-9)
    bent = jax.jit(jax.jacfwd(jax.jacfwd(run)))(a)
    close(bent[0], np.diag([8.0, 0.0]) / 7, atol=1e-8)
    found = hotk.rule.minimum(f, lambda x0, a: 4 * a**2 / 7)
    close(jax.jacfwd(lambda a: found(a, a))(a), np.diag([8.0, -16.0]) / 7, atol=1e-9)


def coupled(c):
    return lambda x: jnp.sum(jnp.cosh(x) * c) + jnp.sum(x[1:] * x[:-1]) ** 2


AT, TIMES = jnp.linspace(0.0, 1.0, 6), jnp.linspace(0.0, 1.0, 20)
DECAYS = lambda p, t: p[0] * jnp.exp(-p[1] * t)
SOLVED = {
    "solve": lambda c: hotk.HessianOperator(coupled(c), AT).solve(jnp.ones(6)).x,
    "solve, several": lambda c: (
        hotk.HessianOperator(coupled(c), AT).solve(jnp.ones((2, 6)), batched=True).x
    ),
    "solve, sparse": lambda c: (
        hotk.HessianOperator(coupled(c), AT).solve(jnp.ones(6), method="sparse").x
    ),
    "eigh": lambda c: hotk.HessianOperator(coupled(c), AT).eigh(2).values,
    "minimize": lambda c: minimize(lambda x: coupled(c)(x) - jnp.sum(x), AT).x,
    "its value": lambda c: minimize(lambda x: coupled(c)(x) - jnp.sum(x), AT).value,
    "fit": lambda c: (
        hotk.statistics.fit(DECAYS, TIMES, c * jnp.exp(-(TIMES**2)), jnp.ones(2)).x
    ),
}


WITHOUT_CHECKS = """
import jax, jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
from tests.counting import compiles, traces
from tests.optim.test_derivatives import SOLVED
for name, solved in SOLVED.items():
    slope = jax.grad(lambda c: jnp.sum(solved(c) ** 2))
    points = [jnp.asarray(2.0 + i) for i in range(4)]
    found = [slope(c) for c in points[:2]]
    with compiles() as compiled, traces() as traced:
        found += [slope(c) for c in points[2:]]
    different = len({float(each) for each in found})
    print(name, compiled(), traced(), different, sep=": ")
"""


@pytest.mark.exhaustive
def test_a_derivative_outside_of_jit_is_traced_once():
    """Functions that are made anew in each call, of other numbers.

    In a process of its own: functions that check the types of what they are given are
    opaque, and those are traced in each call.
    """
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_CHECKS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.splitlines() == [f"{name}: 0: 0: 4" for name in SOLVED], (
        found.stderr
    )
