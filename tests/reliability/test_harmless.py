"""A function that keeps what it computes gives what it gave after any call."""

import gc
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hotk
import hotk.testing
from tests.reliability.lazy import LAZY, plain


X = jnp.array([1.0, 2.0, 3.0])
V = jnp.array([1.0, 0.5, -1.0])

NEWTON, SGD = hotk.optim.newton(1.0), optax.sgd(1e-2)

gradient = jax.grad(plain)
hessian = jax.hessian(plain)
value = plain
along = lambda x, v: lambda t: plain(x + t * v)


def product(x, v):
    return jax.jvp(gradient, (x,), (v,))[1]


def third(x, v):
    return jax.grad(jax.grad(jax.grad(along(x, v))))(0.0)


# Each call, and the same by plain JAX of a function that keeps nothing.
CALLS = {
    "jvp": (hotk.jvp, lambda x, v: gradient(x) @ v),
    "vjp": (lambda f, x, v: hotk.vjp(f, x, 2.0), lambda x, v: 2 * gradient(x)),
    "value_and_vjp": (
        lambda f, x, v: hotk.value_and_vjp(f, x, 2.0),
        lambda x, v: (value(x), 2 * gradient(x)),
    ),
    "gradient": (lambda f, x, v: hotk.gradient(f, x), lambda x, v: gradient(x)),
    "jacobian": (lambda f, x, v: hotk.jacobian(f, x), lambda x, v: gradient(x)),
    "derivative": (
        lambda f, x, v: hotk.derivative(lambda t: f(x + t * v), 0.0),
        lambda x, v: gradient(x) @ v,
    ),
    "second_derivative": (
        lambda f, x, v: hotk.second_derivative(lambda t: f(x + t * v), 0.0),
        lambda x, v: v @ hessian(x) @ v,
    ),
    "hvp": (hotk.hvp, product),
    "hvp, reverse over reverse": (
        lambda f, x, v: hotk.hvp(
            f, x, v, mode=hotk.Nested(hotk.Reverse(), hotk.Reverse())
        ),
        product,
    ),
    "quadratic_form": (hotk.quadratic_form, lambda x, v: v @ hessian(x) @ v),
    "hessian": (lambda f, x, v: hotk.hessian(f, x), lambda x, v: hessian(x)),
    "hessian_diagonal": (
        lambda f, x, v: hotk.hessian_diagonal(f, x),
        lambda x, v: jnp.diag(hessian(x)),
    ),
    "laplacian": (
        lambda f, x, v: hotk.laplacian(f, x),
        lambda x, v: jnp.trace(hessian(x)),
    ),
    "derivatives": (
        lambda f, x, v: hotk.derivatives(f, x, v, order=3),
        lambda x, v: [value(x), gradient(x) @ v, v @ hessian(x) @ v, third(x, v)],
    ),
    "taylor": (
        lambda f, x, v: hotk.taylor(f, x, v, order=2),
        lambda x, v: [value(x), gradient(x) @ v, v @ hessian(x) @ v / 2],
    ),
    "tvp": (lambda f, x, v: hotk.tvp(f, x, v, v, v), third),
    "hvp.prepare": (lambda f, x, v: hotk.hvp.prepare(f, x, v)(x, v), product),
    "hessian.prepare": (
        lambda f, x, v: hotk.hessian.prepare(f, x)(x),
        lambda x, v: hessian(x),
    ),
    "product of an operator": (
        lambda f, x, v: hotk.HessianOperator(f, x) @ v,
        product,
    ),
}
# These take longer to compile, or return no number.
REPORTS = {
    "can_differentiate": lambda f: bool(hotk.can_differentiate(f, X)),
    "lint": lambda f: not hotk.rule.lint(f, X),
    "locate_nan": lambda f: hotk.locate_nan(hotk.hvp, f, X, V).primitive is None,
    "explain": lambda f: bool(hotk.explain(f).name),
}
LARGE = {
    "check": lambda f: hotk.testing.check(f, X).passed,
    "matrix": lambda f: close(hotk.HessianOperator(f, X).matrix(), hessian(X)),
    "eigh": lambda f: close(
        hotk.HessianOperator(f, X).eigh(1).values, jnp.linalg.eigvalsh(hessian(X))[2:]
    ),
    "solve": lambda f: close(
        hotk.HessianOperator(f, X).solve(V).x, jnp.linalg.solve(hessian(X), V)
    ),
    "GGN product": lambda f: close(
        hotk.GGNOperator(f, lambda z: z**2, X) @ V,
        2 * gradient(X) * (gradient(X) @ V),
    ),
    "linearize": lambda f: close(
        hotk.HessianOperator(f, X).linearize() @ V, product(X, V)
    ),
    "at": lambda f: close(hotk.HessianOperator(f, X).at(2 * X) @ V, product(2 * X, V)),
    "trace": lambda f: close(
        hotk.estimate.trace(hotk.HessianOperator(f, X), jax.random.key(0)).value,
        jnp.trace(hessian(X)),
    ),
    "step": lambda f: close(
        NEWTON.update(gradient(X), NEWTON.init(X), X, value_fn=f)[0],
        -jnp.linalg.solve(hessian(X), gradient(X)),
    ),
    "minimize": lambda f: bool(
        hotk.optim.minimize(lambda x: f(jnp.abs(x)), X, SGD, max_steps=3).value
        < value(X)
    ),
}


def some_with_some(calls):
    """Make a test of all pairs, nearly all of them slow: together they take minutes.

    Each kind of cache goes through three calls in every run, and each call meets at
    least three kinds.
    """
    found = []
    for i, (kind, make) in enumerate(LAZY.items()):
        often = {(i + part * len(calls) // 3) % len(calls) for part in range(3)}
        for j, (name, call) in enumerate(calls.items()):
            marks = () if j in often else pytest.mark.slow
            found.append(pytest.param(make, call, id=f"{kind}-{name}", marks=marks))
    return pytest.mark.parametrize(("make", "call"), found)


@pytest.fixture(scope="module", autouse=True)
def only_what_is_new():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return True


def tracers():
    gc.collect()
    found = (o for o in gc.get_objects() if issubclass(type(o), jax.core.Tracer))
    return set(map(id, found))


@pytest.fixture(autouse=True)
def no_tracer_stays():
    before = tracers()
    yield
    assert tracers() <= before


def check_unharmed(f):
    close(f(X), value(X))
    close(f(2 * X), value(2 * X))
    close(jax.jit(lambda x: f(x))(X), value(X))


@pytest.mark.thinned(2)
@some_with_some(CALLS)
def test_a_cache_is_filled_with_what_can_be_used_again(make, call):
    (call, truth), f = call, make()
    for x in (X, X / 2):
        jax.tree.map(close, call(f, x, V), truth(x, V))
        check_unharmed(f)


@pytest.mark.thinned(4)
@some_with_some(REPORTS)
def test_a_report_leaves_the_function_as_it_was(make, call):
    f = make()
    for _ in range(2):
        assert call(f)
        check_unharmed(f)


SOME = {
    name: LAZY[name]
    for name in ("memo of a module", "attribute of an object", "helper of a class")
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("ask", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("make", SOME.values(), ids=SOME)
def test_operators_and_optimizers_leave_the_function_as_it_was(ask, make):
    f = make()
    for _ in range(2):
        assert ask(f)
        check_unharmed(f)


@pytest.mark.thinned(5)
@some_with_some(CALLS)
def test_a_function_that_fails_once_works_afterwards(make, call):
    (call, truth), inner, fails = call, make(), [True]

    def f(x):
        y = inner(x)
        if fails[0]:
            raise ValueError("not today")
        return y

    with pytest.raises(ValueError, match="not today"):
        call(f, X, V)
    check_unharmed(inner)
    fails[0] = False
    jax.tree.map(close, call(f, X, V), truth(X, V))
    check_unharmed(f)


class Counted:
    calls = 0
    log: ClassVar = []

    def __call__(self, x):
        Counted.calls += 1
        Counted.log.append(x.shape)
        return Counted.calls * jnp.sum(x**3)


@pytest.mark.parametrize("name", ["gradient", "hvp", "vjp", "hessian", "hvp.prepare"])
def test_a_counter_of_a_class_counts_one_for_each_call(name):
    Counted.calls, Counted.log = 0, []
    call, _ = CALLS[name]
    first = jax.tree.map(lambda a: a / 3, call(lambda x: jnp.sum(x**3) * 3, X, V))
    for count in (1, 2, 3):
        made = call(Counted(), X, V)
        assert (Counted.calls, len(Counted.log)) == (count, count)
        close(made, count * first)


@pytest.mark.parametrize("name", ["gradient", "hvp", "quadratic_form", "hessian"])
def test_what_a_failing_function_wrote_stands_as_in_plain_jax(name):
    class Model:
        steps: ClassVar = []

        def __call__(self, x):
            Model.steps.append("begun")
            raise ValueError("not today")

    for count in (1, 2):
        with pytest.raises(ValueError, match="not today"):
            CALLS[name][0](Model(), X, V)
        assert Model.steps == ["begun"] * count


def test_what_does_not_depend_on_the_point_is_a_value():
    """A function that branches on what it has computed from what it captured."""
    table = jnp.arange(100.0)

    class Model:
        def __call__(self, x):
            high = jnp.max(Model.table * 1.0)
            assert not isinstance(high, jax.core.Tracer)
            return jnp.sum(x**3) * (2.0 if high > 5 else 1.0)

    Model.table = table
    close(hotk.hvp(Model(), X, V), 12 * X * V)
    close(hotk.hessian(Model(), X), jnp.diag(12 * X))
    close(hotk.hvp.prepare(Model(), X, V)(X, V), 12 * X * V)
    close(hotk.HessianOperator(Model(), X) @ V, 12 * X * V)


def test_named_axes_around_an_opaque_function():
    class Model:
        kept = jnp.ones(3)

        def __call__(self, x):
            size = jax.lax.psum(1, "i")
            index = jax.lax.axis_index("i")
            return jnp.sum(x**3 * Model.kept) * size * (index + 1).astype(x.dtype)

    model = Model()
    batch = jnp.stack([X, 2 * X])
    made = jax.vmap(lambda x: hotk.hvp(model, x, V), axis_name="i")(batch)
    close(made[0], 12 * X * V)
    close(made[1], 48 * X * V)
    close(jax.jit(lambda x: hotk.hvp(lambda y: jnp.sum(y**3), x, V))(X), 6 * X * V)


def test_what_is_printed_is_printed_once_a_call(capfd):
    class Model:
        kept = jnp.ones(3)

        def __call__(self, x):
            jax.debug.print("constant {}", 7)
            jax.debug.print("point {}", x[0])
            return jnp.sum(x**3 * Model.kept)

    hotk.gradient(Model(), X)
    jax.effects_barrier()
    assert capfd.readouterr().out.count("constant 7") == 1
    prepared = hotk.gradient.prepare(Model(), X)
    jax.effects_barrier()
    assert capfd.readouterr().out == ""
    for _ in range(2):
        prepared(X)
        jax.effects_barrier()
        assert capfd.readouterr().out.count("constant 7") == 1


def test_a_callback_of_a_prepared_function_is_called_each_time():
    numbers = iter(range(1, 100))

    class Model:
        kept = jnp.ones(3)

        def __call__(self, x):
            shape = jax.ShapeDtypeStruct((), x.dtype)
            count = jax.pure_callback(lambda: np.asarray(next(numbers), x.dtype), shape)
            return jnp.sum(x**3 * Model.kept) * jax.lax.stop_gradient(count)

    prepared = hotk.gradient.prepare(Model(), X)
    first, second = prepared(X), prepared(X)
    assert float(second[0]) > float(first[0])
