"""What is made of opaque functions is compiled once for all of equal programs."""

import threading

import jax
import jax.numpy as jnp
import pytest

import hotk
from tests.counting import compiles
from tests.helpers import close


X = jnp.array([0.5, 1.0, 2.0])
V = jnp.array([1.0, 0.5, -1.0])
KEY = jax.random.key(0)


def model_of(scale, power=4):
    """Return an object that no walk sees through: it takes a lock."""
    lock = threading.Lock()

    class Model:
        table = jnp.full(3, scale)

        def __call__(self, x):
            with lock:
                return jnp.sum(Model.table * x**power) + jnp.sum(jax.nn.softplus(x))

    assert hotk.explain(Model()).opaque
    return Model()


def plainly(scale, power=4):
    return lambda x: jnp.sum(scale * x**power) + jnp.sum(jax.nn.softplus(x))


TRANSFORM = hotk.optim.newton(1.0)
LOSS = hotk.curvature.SquaredError(V)


def step(f):
    slope = hotk.gradient(f, X)
    return TRANSFORM.update(slope, TRANSFORM.init(X), X, value_fn=f)[0]


def step_of_newton_cg(f):
    transform = hotk.optim.newton_cg(1.0, damping=0.0)
    slope = hotk.gradient(f, X)
    return transform.update(slope, transform.init(X), X, value_fn=f)[0]


def hessian(scale, power=4):
    return jax.hessian(plainly(scale, power))(X)


def newton(scale, power=4):
    gradient = jax.grad(plainly(scale, power))(X)
    return -jnp.linalg.solve(hessian(scale, power), gradient)


def lowest(scale, power=4):
    def nearer(x, _):
        f = plainly(scale, power)
        return x - jnp.linalg.solve(jax.hessian(f)(x), jax.grad(f)(x)), None

    return jax.lax.scan(nearer, -0.5 * jnp.ones(3), length=50)[0]


USES = {
    "eigh": (
        lambda f: hotk.HessianOperator(f, X).eigh(2).values,
        lambda *a: jnp.linalg.eigvalsh(hessian(*a))[1:],
    ),
    "solve": (
        lambda f: hotk.HessianOperator(f, X).solve(V).x,
        lambda *a: jnp.linalg.solve(hessian(*a), V),
    ),
    "product": (lambda f: hotk.HessianOperator(f, X) @ V, lambda *a: hessian(*a) @ V),
    "matrix": (lambda f: hotk.HessianOperator(f, X).matrix(), hessian),
    "linearize": (
        lambda f: hotk.HessianOperator(f, X).linearize() @ V,
        lambda *a: hessian(*a) @ V,
    ),
    "trace": (
        lambda f: hotk.estimate.trace(hotk.HessianOperator(f, X), KEY).value,
        lambda *a: jnp.trace(hessian(*a)),
    ),
    "logdet": (
        lambda f: hotk.estimate.logdet(hotk.HessianOperator(f, X), KEY).value,
        None,
    ),
    "ggn": (
        lambda f: (
            hotk.GGNOperator(lambda x: f(x) * x, hotk.curvature.SquaredError(V), X) @ V
        ),
        None,
    ),
    "step": (step, newton),
    "step of newton_cg": (step_of_newton_cg, None),
    "minimize": (
        lambda f: hotk.optim.minimize(f, X, TRANSFORM, tol=1e-6).x,
        lowest,
    ),
    "hessian": (lambda f: hotk.hessian(f, X), hessian),
}
each = pytest.mark.parametrize(("use", "truth"), USES.values(), ids=USES)


@pytest.mark.thinned(2)
@each
def test_a_second_opaque_function_compiles_nothing(use, truth):
    use(model_of(1.0)), use(model_of(1.5))
    jax.block_until_ready(jnp.full(3, 2.0))
    second = model_of(2.0)
    before = hotk.cache_info().compiles
    with compiles() as count:
        result = use(second)
    assert count() == 0
    assert hotk.cache_info().compiles == before
    if truth is not None:
        close(result, truth(2.0), rtol=1e-3, atol=1e-4)


@pytest.mark.exhaustive
@each
def test_another_program_is_another_result(use, truth):
    use(model_of(1.0))
    if truth is not None:
        close(use(model_of(1.0, power=6)), truth(1.0, 6), rtol=1e-3, atol=1e-4)


def ruled(slope):
    """Return an opaque function: all have one program, each has its own rule."""

    @jax.custom_jvp
    def power(x):
        return x**3

    @power.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return power(x), slope * x**2 * t

    class Model:
        table = jnp.ones(3)

        def __call__(self, x):
            return jnp.sum(power(x) * Model.table)

    return Model()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("mapped", [False, True])
def test_rules_of_the_user_are_told_apart(mapped):
    for slope in (3.0, 5.0, 3.0, 7.0):
        f = ruled(slope)
        g = (lambda x, f=f: jnp.sum(jax.vmap(f)(x[None]))) if mapped else f
        close(hotk.gradient(g, X), slope * X**2)
        close(hotk.hvp(g, X, V), 2 * slope * X * V)
        close(hotk.HessianOperator(g, X) @ V, 2 * slope * X * V)
        close(hotk.HessianOperator(g, X).matrix(), jnp.diag(2 * slope * X))


@pytest.mark.parametrize("rule", ["def_jvp", "def_vjp"])
def test_rules_of_hotk_are_told_apart(rule):
    for slope in (3.0, 5.0, 3.0):
        power = hotk.rule.custom(lambda x: x**3)
        if rule == "def_jvp":
            power.def_jvp(lambda p, t, slope=slope: slope * p[0] ** 2 * t[0])
        else:
            power.def_vjp(lambda p, u, slope=slope: (slope * p[0] ** 2 * u,))

        class Model:
            table = jnp.ones(3)

            def __call__(self, x, power=power):
                return jnp.sum(power(x) * Model.table)

        close(hotk.gradient(Model(), X), slope * X**2)
        close(hotk.HessianOperator(Model(), X).matrix(), jnp.diag(2 * slope * X))


GLOBAL_SLOPE = 3.0


@jax.custom_jvp
def cube(x):
    return x**3


@cube.defjvp
def cube_rule(primals, tangents):
    (x,), (t,) = primals, tangents
    return cube(x), GLOBAL_SLOPE * x**2 * t


def test_a_rule_that_reads_a_global_is_read_anew(monkeypatch):
    class Model:
        table = jnp.ones(3)

        def __call__(self, x):
            return jnp.sum(cube(x) * Model.table)

    for slope in (3.0, 4.0, 3.0):
        monkeypatch.setattr(f"{__name__}.GLOBAL_SLOPE", slope)
        close(hotk.gradient(Model(), X), slope * X**2)
        close(hotk.HessianOperator(Model(), X).matrix(), jnp.diag(2 * slope * X))


@pytest.mark.exhaustive
def test_compiles_of_solvers_and_estimates_are_counted():
    hotk.clear_cache()
    n = 131  # above the sizes whose matrix is decomposed on the host: all is compiled
    x = jnp.ones(n)
    operator = hotk.HessianOperator(lambda x: jnp.sum(x**4) + jnp.sum(x) ** 2, x)
    known = 0
    for use in (
        lambda: operator.eigh(2),
        lambda: operator.solve(x),
        lambda: hotk.estimate.trace(operator, KEY),
        lambda: operator.matrix(),
        lambda: operator.linearize() @ x,
    ):
        use()
        now = hotk.cache_info().compiles
        assert now > known
        use()
        assert hotk.cache_info().compiles == now
        known = now


def test_nothing_is_counted_inside_of_another_program():
    operator = hotk.HessianOperator(lambda x: jnp.sum(x**4) + jnp.sum(x) ** 2, X)
    before = hotk.cache_info().compiles
    jax.jit(lambda h: h.solve(V).x)(operator)
    assert hotk.cache_info().compiles == before
