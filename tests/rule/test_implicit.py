"""Solutions of equations: derivatives by the implicit function theorem."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree

import hotk
from hotk.rule import fixed_point, linear_solve, minimum, root
from tests import reference
from tests.helpers import close


NESTINGS = [getattr(hotk, name) for name in reference.NESTINGS]
each_nesting = pytest.mark.parametrize("mode", NESTINGS, ids=reference.NESTINGS)


def newton(residual, x, steps=30):
    """Solve by a loop that has no reverse mode."""

    def step(state):
        x, i = state
        return x - residual(x) / jax.grad(residual)(x), i + 1

    return jax.lax.while_loop(lambda s: s[1] < steps, step, (x, 0))[0]


SQUARE_ROOTS = {
    "root": root(lambda x, a: x**2 - a, lambda x, a: newton(lambda x: x**2 - a, x)),
    "minimum": minimum(
        lambda x, a: x**3 / 3 - a * x, lambda x, a: newton(lambda x: x**2 - a, x)
    ),
    "fixed_point": fixed_point(
        lambda x, a: (x + a / x) / 2, lambda x, a: newton(lambda x: x**2 - a, x)
    ),
    "root by Python": root(lambda x, a: x**2 - a, lambda x, a: jnp.sqrt(a)),
}
each_root = pytest.mark.parametrize("name", SQUARE_ROOTS)


@pytest.mark.thinned(1, "mode")
@each_nesting
@each_root
def test_a_square_root_to_second_order(name, mode):
    f = lambda a: SQUARE_ROOTS[name](jnp.asarray(1.0), a)
    close(f(4.0), 2.0)
    close(hotk.second_derivative(f, 4.0, mode=mode), -1 / 32)


@pytest.mark.exhaustive
@each_root
def test_a_square_root_to_fourth_order(name):
    f = lambda a: SQUARE_ROOTS[name](jnp.asarray(1.0), a)
    third = jax.grad(jax.grad(jax.grad(f)))
    close(third(4.0), 3 / 8 * 4.0**-2.5)
    close(jax.jvp(third, (4.0,), (1.0,))[1], -15 / 16 * 4.0**-3.5)


@pytest.mark.thinned(1)
@each_nesting
def test_what_is_captured_moves_the_solution(mode):
    """x + x^3 / 10 = a b, elementwise, with a captured and b given."""

    def loss(theta):
        doubled = 2 * theta["a"]

        @root(lambda x, b: x + x**3 / 10 - b * doubled)
        def solve(x0, b):
            step = lambda i, x: x - (x + x**3 / 10 - b * doubled) / (1 + 0.3 * x**2)
            return jax.lax.fori_loop(0, jnp.asarray(20), step, x0)

        return jnp.sum(solve(jnp.zeros(2), jnp.sin(theta["b"])) ** 2)

    def by_hand(c):
        """x(c), its first and its second derivative, for x + x^3 / 10 = c."""
        residual = lambda x, k: x + x**3 / 10 - k
        roots = [scipy.optimize.brentq(residual, -9, 9, (k,), xtol=1e-15) for k in c]
        x = np.array(roots)
        slope = 1 / (1 + 0.3 * x**2)
        return x, slope, -0.6 * x * slope**3

    a, b = np.array([0.4, 0.9]), 1.1
    x, first, second = by_hand(2 * a * np.sin(b))
    bend = 2 * (first**2 + x * second)  # of x^2 by c
    expected = bend * (2 * np.sin(b)) ** 2
    got = hotk.hessian(loss, {"a": jnp.asarray(a), "b": jnp.asarray(b)}, mode=mode)
    close(got["a"]["a"], np.diag(expected))
    by_b = bend * (2 * a * np.cos(b)) ** 2 - 2 * x * first * 2 * a * np.sin(b)
    close(got["b"]["b"], np.sum(by_b))


@pytest.mark.exhaustive
def test_any_python_solves_where_nothing_is_traced():
    objective = lambda w, c: jnp.sum((w - 1) ** 2) + c * jnp.sum(w**2)

    def solve(w0, c):
        f = lambda w: float(np.sum((w - 1) ** 2) + c * np.sum(w**2))
        return scipy.optimize.minimize(f, np.asarray(w0), tol=1e-12).x

    solution = minimum(objective, solve)
    slope = jax.grad(lambda c: solution(jnp.zeros(3), c).sum())(1.0)
    close(slope, -3 / 4, rtol=1e-6)


@pytest.mark.thinned(1)
@each_nesting
def test_a_linear_system(mode):
    def f(a):
        return linear_solve(lambda v: jnp.stack([a * v[0], v[0] + v[1]]), jnp.ones(2))[
            1
        ]

    close(f(2.0), 0.5)  # x0 = 1 / a, x1 = 1 - 1 / a
    close(hotk.second_derivative(f, 2.0, mode=mode), -2 / 8)


@pytest.mark.exhaustive
def test_a_solver_of_ones_own_serves_both_directions():
    calls = []

    def solver(product, b):
        calls.append(1)
        return jax.scipy.sparse.linalg.gmres(product, b, tol=1e-12)[0]

    A = jnp.array([[3.0, 1.0], [0.5, 2.0]])
    x = root(
        lambda x, b: A @ x - b,
        lambda x0, b: jnp.linalg.solve(A, b),
        linear_solver=solver,
    )
    inverse = np.linalg.inv(A)
    b = jnp.array([1.0, 2.0])
    close(jax.jacfwd(lambda b: x(b, b))(b), inverse, rtol=1e-8)
    close(jax.jacrev(lambda b: x(b, b))(b), inverse, rtol=1e-8)
    assert calls


def test_aux_comes_back_without_derivative():
    solve = lambda x0, a: (jnp.sqrt(a), {"steps": jnp.asarray(3), "seen": a * 2})
    solution = root(lambda x, a: x**2 - a, solve, has_aux=True)
    x, aux = solution(1.0, 4.0)
    assert (x.item(), aux["steps"].item(), aux["seen"].item()) == (2.0, 3, 8.0)
    close(jax.grad(lambda a: solution(1.0, a)[0])(4.0), 0.25)
    close(jax.grad(lambda a: solution(1.0, a)[1]["seen"])(4.0), 0.0)


@pytest.mark.exhaustive
def test_under_jit_vmap_and_scan():
    f = lambda a: SQUARE_ROOTS["root"](1.0, a)
    second = jax.grad(jax.grad(f))
    a = np.array([1.0, 4.0, 9.0])
    expected = -0.25 * a**-1.5
    close(jax.jit(jax.vmap(second))(jnp.asarray(a)), expected)
    scan = lambda s: jax.lax.scan(lambda t, b: (t + f(s * b), None), 0.0, points)[0]
    points = jnp.asarray(a)
    close(hotk.second_derivative(scan, 1.0), np.sum(a**2 * expected))


def test_mistakes_are_named(as_user):
    wrong = root(lambda x, a: x.sum() - a, lambda x0, a: x0)
    with pytest.raises(hotk.OutputError, match="another structure or shape"):
        jax.grad(lambda a: wrong(jnp.ones(2), a).sum())(1.0)
    big = root(lambda x, a: x - a, lambda x0, a: x0 + a)
    with pytest.raises(hotk.TooLargeError, match="2048"):
        jax.grad(lambda a: big(jnp.ones(3000), a).sum())(1.0)


# ---- solutions that are trees, some of whose equations do not move


@pytest.mark.exhaustive
def test_equations_that_do_not_hold_the_parameter():
    residual = lambda x, a: (x[0] ** 2 - a, x[1] - x[0])
    solution = hotk.rule.root(residual, lambda x0, a: (jnp.sqrt(a), jnp.sqrt(a)))
    second = lambda a: solution(None, a)[1]
    for mode in NESTINGS:
        close(hotk.second_derivative(second, 4.0, mode=mode), -1 / 32)
    close(jax.grad(second)(4.0), 0.25)


def test_a_minimum_over_a_tree_of_parameters():
    def objective(p, c):
        bias = (p["b"] - 1) ** 2
        return jnp.sum((p["w"] - 1) ** 2) + c * jnp.sum(p["w"] ** 2) + bias

    solve = lambda p0, c: {"w": jnp.ones(2) / (1 + c), "b": jnp.ones(())}
    fit = hotk.rule.minimum(objective, solve)
    loss = lambda c: jnp.sum(fit(None, c)["w"])
    close(hotk.gradient(loss, 1.0), -0.5)
    close(jax.grad(loss)(1.0), -0.5)
    close(hotk.second_derivative(loss, 1.0), 0.5)


@pytest.mark.exhaustive
def test_a_linear_system_of_several_arrays():
    b = lambda a: {"w": a * jnp.ones(2), "b": jnp.zeros(())}
    product = lambda c, v: {"w": c * v["w"], "b": v["b"]}
    solve = hotk.rule.linear_solve
    f = lambda a, c: jnp.sum(solve(lambda v: product(c, v), b(a))["w"])
    close(jax.grad(f)(2.0, 2.0), 1.0)
    close(jax.grad(f, argnums=1)(2.0, 2.0), -1.0)
    close(hotk.hessian(lambda z: f(z[0], z[1]), np.array([2.0, 2.0]))[1, 1], 1.0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", [*NESTINGS, hotk.Auto()], ids=str)
def test_an_equation_with_a_reverse_rule_of_jax(mode):
    act = jax.custom_vjp(jnp.tanh)
    act.defvjp(lambda z: (act(z), z), lambda z, u: (u * (1 - jnp.tanh(z) ** 2),))

    def walk(z, t):
        return jax.lax.fori_loop(0, 60, lambda i, z: jnp.tanh(0.3 * z + t), z)

    f, known = (
        lambda t, g=g: jnp.sum(
            hotk.rule.fixed_point(lambda z, t: g(0.3 * z + t), walk)(jnp.zeros(2), t)
        )
        for g in (act, jnp.tanh)
    )
    expected = jax.hessian(known)(jnp.ones(2))
    close(hotk.hessian(f, jnp.ones(2), mode=mode), expected)


def test_a_solver_without_its_rules():
    solution = hotk.rule.root(lambda x, a: x**2 - a, lambda x0, a: (x0 + a / x0) / 2)
    f = lambda a: solution(1.0, a)
    known = 1 / (2 * 2.5)
    close(hotk.gradient(f, 4.0), known)
    for functions in ((), (solution,)):
        with hotk.rule.disabled(*functions):
            close(hotk.gradient(f, 4.0), 0.5)
    close(hotk.gradient(f, 4.0), known)


def test_what_is_no_solver_or_system_is_refused():
    root = hotk.rule.root(lambda x, a: x - a, lambda x0, a: a, has_aux=True)
    with pytest.raises(hotk.OutputError, match="has_aux"):
        root(0.0, 1.0)
    with pytest.raises(TypeError, match="lambda v: A @ v"):
        hotk.rule.linear_solve(jnp.eye(2), jnp.ones(2))
    with pytest.raises(hotk.DtypeError, match="Convert"):
        hotk.rule.linear_solve(lambda v: v, jnp.ones(2, int))
    for product in (lambda v: v.astype(complex), lambda v: v.astype("f")):
        with pytest.raises(hotk.DtypeError, match="alike"):
            hotk.rule.linear_solve(product, jnp.ones(2))
    for product in (lambda v: v[:1], lambda v: (v, v)):
        with pytest.raises(hotk.StructureError, match="alike"):
            hotk.rule.linear_solve(product, jnp.ones(2))
    mixed = hotk.rule.root(lambda x, a: (x - a).astype(complex), lambda x0, a: a)
    with pytest.raises(hotk.OutputError, match="complex"):
        jax.jvp(lambda a: mixed(0.0, a), (1.0,), (1.0,))
    with pytest.raises(TypeError, match="has no rules"), hotk.rule.disabled(jnp.sin):
        pass


@pytest.mark.exhaustive
@jax.numpy_dtype_promotion("standard")
def test_systems_of_real_and_complex_numbers_and_of_conjugates():
    draw = np.random.default_rng(0).normal
    A = draw(size=(3, 3)) + 1j * draw(size=(3, 3)) + 4 * np.eye(3)
    b = {"c": draw(size=3) + 1j * draw(size=3), "r": draw(size=3)}
    scale = jnp.arange(2.0, 5.0)

    def times(v, scale):
        c = A @ v["c"] + 0.2 * jnp.conj(v["c"]) + 1j * v["r"]
        return {"c": c, "r": scale * v["r"] + 0.3 * v["c"].imag}

    def flat(v):
        return jnp.concatenate([v["c"].real, v["c"].imag, v["r"]])

    def by_its_matrix(scale, b):
        tree = lambda u: {"c": u[:3] + 1j * u[3:6], "r": u[6:]}
        units = jax.vmap(lambda u: flat(times(tree(u), scale)), out_axes=1)
        return tree(jnp.linalg.solve(units(jnp.eye(9)), flat(b)))

    def solved(scale, b):
        return linear_solve(lambda v: times(v, scale), b)

    x = solved(scale, b)
    close(flat(times(x, scale)), flat(b))
    assert x["r"].dtype == jnp.float64
    weighed = lambda solve: lambda scale, b: jnp.sum(jnp.sin(flat(solve(scale, b))))
    ours, known = weighed(solved), weighed(by_its_matrix)
    for a, c in zip(
        *(jax.grad(f, 1)(scale, b).values() for f in (ours, known)), strict=True
    ):
        close(a, c, rtol=1e-9)
    close(jax.hessian(ours)(scale, b), jax.hessian(known)(scale, b), rtol=1e-9)
    one = linear_solve(lambda v: 3 * v + jnp.conj(v), jnp.array([4 + 2j]))
    close(one, np.array([1 + 1j]))
    # a symmetry of complex numbers, whose transpose is no conjugate transpose
    S = A + A.T
    total = lambda solve: lambda c: jnp.sum(jnp.sin(jnp.real(solve(c))))
    by_rule = lambda c: linear_solve(lambda v: S @ v, c, symmetric=True)
    expected = jax.grad(total(lambda c: jnp.linalg.solve(S, c)))(b["c"])
    close(jax.grad(total(by_rule))(b["c"]), expected, rtol=1e-9)


def test_unknowns_that_are_narrower_than_the_equation():
    narrow = lambda x0, t: jnp.sqrt(t).astype(jnp.float32)
    solution = root(lambda x, t: x**2 - t, narrow)
    close(jax.grad(lambda t: solution(jnp.float32(1), t))(2.0), 0.125**0.5, rtol=1e-6)


@pytest.mark.exhaustive
def test_complex_unknowns_of_equations_that_are_not_holomorphic():
    step = lambda z, r: 0.3 * jnp.conj(z) + r * (1 + 1j)
    walk = lambda z, r: jax.lax.fori_loop(0, 60, lambda i, z: step(z, r), z)
    point = hotk.rule.fixed_point(step, walk)
    found = jax.jvp(lambda r: point(0j, r), (1.0,), (1.0,))[1]
    close(found, np.asarray(1 / 0.7 + 1j / 1.3))
    draw = np.random.default_rng(0).normal
    b, r = (draw(size=s) + 1j * draw(size=s) for s in ((4, 2), (4,)))

    def misfit(z, t):
        e = b @ z - t * r
        return jnp.sum(e.real**2 + e.imag**2)

    least = np.linalg.lstsq(b, r)[0]
    fit = hotk.rule.minimum(misfit, lambda z, t: jnp.asarray(least) * t)
    found = jax.jvp(lambda t: fit(None, t), (1.0,), (1.0,))[1]
    close(found, least)


@pytest.mark.exhaustive
def test_a_complex_root_to_second_order():
    solution = hotk.rule.root(lambda z, a: z**2 - a, lambda z, a: jnp.sqrt(a + 0j))
    f = lambda a: jnp.imag(solution(1j, a))
    for mode in NESTINGS:
        close(hotk.second_derivative(f, -4.0, mode=mode), -1 / 32)


def test_half_precision():
    solution = hotk.rule.root(lambda x, a: x**2 - a, lambda x, a: jnp.sqrt(a))
    found = jax.grad(lambda a: solution(None, a))(jnp.bfloat16(4.0))
    assert (found, found.dtype) == (0.25, jnp.bfloat16)


class Marker:
    """An object that is not an array and no function."""


STATIC_LEAVES = {
    "a function": jnp.tanh,
    "a string": "name",
    "an object": Marker(),
    "an integer": 3,
    "a Boolean": True,
    "an array of integers": np.arange(2),
    "a key": jax.random.key(0),
}
# The solution is sqrt(a): at a = 4 it is 2, and its derivatives are 1/4 and -1/32.
EQUATIONS = {
    hotk.rule.root: lambda x, a: {**x, "w": x["w"] ** 2 - a},
    hotk.rule.fixed_point: lambda x, a: {**x, "w": (x["w"] + a / x["w"]) / 2},
    hotk.rule.minimum: lambda x, a: (x["w"] ** 2 - a) ** 2,
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("kind", EQUATIONS)
@pytest.mark.parametrize("name", STATIC_LEAVES)
def test_an_unknown_may_hold_what_is_no_float(name, kind):
    leaf = STATIC_LEAVES[name]
    solve = lambda x0, a: {**x0, "w": jnp.sqrt(a)}
    root = kind(EQUATIONS[kind], solve)
    start = {"w": jnp.ones(()), "other": leaf}
    other = root(start, 4.0)["other"]
    assert other is leaf or bool(jnp.all(other == jnp.asarray(leaf)))
    f = lambda a: root(start, a)["w"]
    assert close(f(4.0), 2.0)
    assert close(jax.grad(f)(4.0), 0.25)
    assert close(jax.jit(jax.grad(f))(4.0), 0.25)
    assert close(hotk.gradient(f, 4.0), 0.25)
    assert close(hotk.second_derivative(f, 4.0), -1 / 32)


@pytest.mark.exhaustive
def test_a_network_with_its_activation_is_an_unknown():
    """The derivative by the weight decay is `-dL/dw H^-1 d(grad)/dlog_decay`, by hand.

    The gradient of the decay term by its logarithm is the term's own gradient.
    """
    inputs = jax.random.normal(jax.random.key(0), (8, 2))
    targets = jnp.sin(inputs[:, 0])
    net = eqx.nn.MLP(2, "scalar", 3, 1, activation=jnp.tanh, key=jax.random.key(1))
    unravel = ravel_pytree(eqx.filter(net, eqx.is_array))[1]
    whole = lambda flat: eqx.combine(unravel(flat), eqx.filter(net, callable))

    def loss(net):
        return jnp.mean((jax.vmap(net)(inputs) - targets) ** 2)

    def inner(net, log_decay):
        flat = ravel_pytree(eqx.filter(net, eqx.is_inexact_array))[0]
        return loss(net) + jnp.exp(log_decay) * jnp.sum(flat**2)

    def solve(net, log_decay):
        f = lambda flat: inner(whole(flat), log_decay)
        flat = ravel_pytree(eqx.filter(net, eqx.is_inexact_array))[0]
        step = lambda i, w: w - jnp.linalg.solve(jax.hessian(f)(w), jax.grad(f)(w))
        w = jax.lax.fori_loop(0, 300, lambda i, w: w - 0.1 * jax.grad(f)(w), flat)
        return whole(jax.lax.fori_loop(0, 5, step, w))

    best = hotk.rule.minimum(inner, solve)
    log_decay = jnp.asarray(-1.0)
    trained = best(net, log_decay)
    assert jax.tree.structure(trained) == jax.tree.structure(net)
    w = ravel_pytree(eqx.filter(trained, eqx.is_inexact_array))[0]
    of_loss = jax.grad(lambda w: loss(whole(w)))(w)
    hessian = jax.hessian(lambda w: inner(whole(w), log_decay))(w)
    expected = -of_loss @ np.linalg.solve(hessian, 2 * jnp.exp(log_decay) * w)
    outer = lambda log_decay: loss(best(net, log_decay))
    assert close(jax.grad(outer)(log_decay), expected, rtol=1e-4)
    assert close(hotk.gradient(outer, log_decay), expected, rtol=1e-4)


def scaled_matrix(n, least, seed):
    """Return a matrix in units from 1e-8 to 1e8, with a given least singular value."""
    generator = np.random.default_rng(seed)
    u, v = (np.linalg.qr(generator.normal(size=(n, n)))[0] for _ in range(2))
    values = generator.uniform(0.5, 2.0, n)
    values[0] = least
    rows, columns = 10.0 ** generator.uniform(-8, 8, (2, n))
    return rows[:, None] * ((u * values) @ v.T) * columns


def test_a_regular_matrix_is_solved_in_any_units():
    """Of single precision, in units of equations and unknowns, powers of two."""
    random = np.random.default_rng(0)
    solve = jax.jit(lambda A, b: linear_solve(lambda v: A @ v, b))
    count = 0
    while count < 300:
        plain = random.normal(size=(3, 3)) * (random.random((3, 3)) < 0.7)
        if np.linalg.cond(plain) > 30:
            continue
        count += 1
        rows, columns = 2.0 ** random.integers(-20, 21, size=(2, 3))
        x = random.normal(size=3)
        matrix = (rows[:, None] * plain * columns).astype(np.float32)
        got = solve(matrix, (rows * (plain @ x)).astype(np.float32))
        error = np.asarray(got, float) * columns - x
        assert np.abs(error).max() < 1e-4 * np.abs(x).max()


def test_a_root_in_mixed_units_has_its_derivative():
    plain = np.array([[1.0, 0, 1], [0.5, 1, 0], [0, 1, 1]])
    rows, columns = np.array([8.0, 0.5, 1 / 16]), 2.0 ** np.array([-13, 12, -13])
    matrix = jnp.asarray(rows[:, None] * plain * columns, jnp.float32)
    b = jnp.asarray(rows * plain.sum(1), jnp.float32)
    known = jnp.asarray(1 / columns, jnp.float32)
    solved = root(lambda x, t: matrix @ x - t * b, lambda x0, t: t * known)
    at = lambda t: solved(jnp.zeros(3, jnp.float32), t)
    close(jax.jacfwd(at)(jnp.float32(1)), known, rtol=1e-5)
    close(jax.jacrev(at)(jnp.float32(1)), known, rtol=1e-5)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [2, 5, 40])
def test_a_singular_matrix_is_told_in_any_units(n, seed):
    b = jnp.ones(n)
    product = lambda a: lambda v: jnp.asarray(a) @ v
    singular = hotk.rule.linear_solve(product(scaled_matrix(n, 0.0, seed)), b)
    assert np.isnan(singular).all()
    a = scaled_matrix(n, 1e-8, seed)
    x = np.asarray(hotk.rule.linear_solve(product(a), b))
    # The residual beside what it is a sum of: the solution is as good as rounding lets.
    assert np.all(np.abs(a @ x - 1) <= 1e-13 * n * (np.abs(a) @ np.abs(x) + 1))


@pytest.mark.parametrize("rule", ["root", "minimum", "fixed_point"])
def test_a_rule_without_a_solver_says_so(rule):
    missing = getattr(hotk.rule, rule)(lambda x, a: x**2 - a)
    with pytest.raises(TypeError, match=rf"hotk\.rule\.{rule}\(equation, solve\)"):
        missing(jnp.ones(()), 2.0)
