"""Functions with rules of their own, in every nesting and to any order."""

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.rule import custom, disabled, which
from tests import reference
from tests.counting import compiles
from tests.helpers import close


X = np.array([0.3, 0.7, 1.2])
C = np.array([1.0, 2.0, 3.0])
V = np.array([1.0, -1.0, 0.5])
NESTINGS = [getattr(hotk, name) for name in reference.NESTINGS]
each_nesting = pytest.mark.parametrize("mode", NESTINGS, ids=reference.NESTINGS)
RULES = [
    "".join(letters)
    for count in range(4)
    for letters in itertools.combinations("jvh", count)
]
each_subset = pytest.mark.parametrize("rules", RULES, ids=lambda r: r or "none")


def plain(x, c):
    return jnp.sum(jnp.sin(x) * c) + jnp.prod(x)


def back(x, c, u):
    return u * (jnp.cos(x) * c + jnp.prod(x) / x), u * jnp.sin(x)


class Ruled:
    """The function above with some of its rules; `used` counts how often they run."""

    def __init__(self, rules):
        self.used = {name: itertools.count() for name in rules}
        ticks = {name: count.__next__ for name, count in self.used.items()}
        self.f = custom(lambda x, c: plain(x, c))
        if "j" in rules:

            @self.f.def_jvp
            def _(primals, tangents):
                ticks["j"]()
                x, c = primals
                by_x, by_c = back(x, c, 1.0)
                return jnp.sum(by_x * tangents[0]) + jnp.sum(by_c * tangents[1])

        if "v" in rules:

            @self.f.def_vjp
            def _(primals, u, *, y):
                ticks["v"]()
                return back(*primals, u + 0 * y)

        if "h" in rules:

            @self.f.def_hvp
            def _(primals, tangents, u):
                ticks["h"]()
                return jax.jvp(lambda x, c: back(x, c, u), primals, tangents)[1]


def hessian_by_hand():
    product = np.prod(X)
    own = np.outer(1 / X, 1 / X) * product
    np.fill_diagonal(own, -np.sin(X) * C)
    gradient = np.cos(X) * C + product / X
    value = np.sum(np.sin(X) * C) + product
    return 2 * np.outer(gradient, gradient) + 2 * value * own


def squared(f):
    c = jnp.asarray(C)
    return lambda x: f(x, c) ** 2


@pytest.mark.thinned(5, "mode")
@each_nesting
@each_subset
def test_every_subset_of_rules_has_every_nesting(rules, mode):
    ruled = Ruled(rules)
    f = squared(ruled.f)
    close(hotk.hvp(f, jnp.asarray(X), V, mode=mode), hessian_by_hand() @ V)
    used = {name for name, count in ruled.used.items() if next(count)}
    assert used >= {"h"} & set(rules)
    if rules:
        assert used


WRAPPED = {
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x])).mean(),
    "scan": lambda f: (
        lambda x: jax.lax.scan(
            lambda total, _: (total + f(x) / 3, None), jnp.zeros(()), None, length=3
        )[0]
    ),
    "carried": lambda f: (
        lambda x: f(
            jax.lax.scan(lambda y, _: (y + 0 * f(y), None), x, None, length=2)[0]
        )
    ),
    "checkpoint": jax.checkpoint,
    "cond": lambda f: lambda x: jax.lax.cond(x[0] > 0, f, lambda x: 0 * f(x), x),
}


@pytest.mark.thinned(4, "mode")
@each_nesting
@pytest.mark.parametrize("rules", ["v", "jvh"])
@pytest.mark.parametrize("wrap", WRAPPED)
def test_inside_of_what_jax_has(wrap, rules, mode):
    f = WRAPPED[wrap](squared(Ruled(rules).f))
    close(hotk.hvp(f, jnp.asarray(X), V, mode=mode), hessian_by_hand() @ V, rtol=1e-9)


SCALAR_WRAPPED = {
    "bare": lambda f: f,
    "jit": jax.jit,
    "vmap": lambda f: lambda x: jax.vmap(f)(x[None])[0],
    "scan": lambda f: (
        lambda x: jax.lax.scan(lambda y, _: (f(y), None), x, None, length=1)[0]
    ),
    "checkpoint": jax.checkpoint,
}


@pytest.mark.thinned(10)
@each_nesting
@pytest.mark.parametrize("wrap", SCALAR_WRAPPED)
def test_each_mode_uses_its_own_rule(wrap, mode):
    """Both rules are wrong, each by a factor that tells it apart."""
    f = custom(lambda x: x**2)
    f.def_jvp(lambda primals, tangents: 10 * primals[0] * tangents[0])
    f.def_vjp(lambda primals, u: (100 * primals[0] * u,))
    second = hotk.second_derivative(SCALAR_WRAPPED[wrap](f), 3.0, mode=mode)
    close(second, 100.0 if mode.inner == hotk.Reverse() else 10.0)


def test_a_rule_that_does_not_call_itself_is_there_at_second_order():
    """JAX gives -0.223 for the first and 0 for the second."""
    foo = custom(lambda x: jnp.exp(-x))
    foo.def_jvp(lambda primals, tangents: primals[0] * tangents[0])
    # d/dx foo^2 = 2 foo x, so d2 = 2 x^2 + 2 foo
    expected = 2 * 1.5**2 + 2 * np.exp(-1.5)
    assert abs(expected - 4.946) < 1e-3
    cube = custom(lambda x: x**3)
    cube.def_vjp(lambda primals, u: (3 * primals[0] ** 2 * u,))
    for mode in NESTINGS:
        second = functools.partial(hotk.second_derivative, mode=mode)
        close(second(lambda x: foo(x) ** 2, 1.5), expected)
        close(second(cube, 2.0), 12.0)
    close(jax.hessian(lambda x: foo(x) ** 2)(1.5), expected)
    close(jax.grad(jax.grad(cube))(2.0), 12.0)


@pytest.mark.exhaustive
@each_subset
def test_third_order(rules):
    f = Ruled(rules).f
    third = lambda g: jax.jvp(jax.hessian(squared(g)), (jnp.asarray(X),), (V,))[1]
    h = 1e-4
    steps = [jax.hessian(squared(plain))(jnp.asarray(X + s * h * V)) for s in (1, -1)]
    close(third(f), np.asarray((steps[0] - steps[1]) / (2 * h)), rtol=1e-6, atol=1e-6)


def test_the_second_order_rule_runs():
    f = custom(lambda x: x**2)
    f.def_vjp(lambda primals, u: (2 * primals[0] * u,))
    f.def_hvp(lambda primals, tangents, u: (7.0 * tangents[0] * u,))
    for mode in NESTINGS:
        close(hotk.second_derivative(f, 3.0, mode=mode), 7.0)


def test_a_rule_for_one_mode_alone():
    f = custom(lambda x: x**2)
    f.def_jvp(lambda primals, tangents: 10.0 * tangents[0], modes=(hotk.Forward,))
    assert which(f, hotk.Forward()) == "jvp"
    assert which(f, hotk.Reverse()) == "body"
    close(hotk.derivative(f, 3.0, mode=hotk.Forward()), 10.0)
    close(hotk.gradient(f, 3.0), 6.0)
    with pytest.raises(TypeError, match="modes"):
        f.def_jvp(lambda p, t: t, modes=(hotk.Nested,))


def test_rules_can_be_switched_off():
    f, g = custom(lambda x: x**2), custom(lambda x: x**2)
    for one in (f, g):
        one.def_jvp(lambda primals, tangents: 10.0 * tangents[0])
    both = lambda x: f(x) + g(x)
    close(hotk.gradient(both, 3.0), 20.0)
    with disabled(f):
        close(hotk.gradient(both, 3.0), 16.0)
        with disabled(g):
            close(jax.jit(jax.grad(both))(3.0), 12.0)
        assert which(f, hotk.Forward()) == "body"
    with disabled():
        close(hotk.gradient(both, 3.0), 12.0)
    close(hotk.gradient(both, 3.0), 20.0)


def test_trees_integers_strings_and_functions_as_arguments():
    f = custom(
        lambda p, n, how, act: (
            {"a": act(p["w"]).sum() * n, "n": n + 1} if how == "sum" else None
        )
    )

    @f.def_vjp
    def _(primals, u):
        p, n, how, act = primals
        assert how == "sum"
        assert u["n"] is None
        slope = jax.vmap(jax.grad(act))(p["w"])
        return {"w": u["a"] * slope * n, "b": None}, None, None, None

    p = {"w": jnp.array([1.0, 2.0]), "b": jnp.ones(())}
    loss = lambda p: f(p, jnp.asarray(3), "sum", jnp.sin)["a"]
    for mode in NESTINGS:
        got = hotk.hessian(loss, p, mode=mode)
        close(got["w"]["w"], np.diag(-3 * np.sin([1.0, 2.0])), atol=1e-12)
        close(got["b"]["w"], np.zeros(2))


def test_keywords_are_taken_by_position():
    f = custom(lambda x, scale=2.0: scale * x**2)
    f.def_jvp(lambda p, t: 2 * p[1] * p[0] * t[0] + p[0] ** 2 * t[1])
    close(jax.grad(lambda x: f(x, scale=3.0))(2.0), 12.0)
    close(jax.grad(f)(2.0), 8.0)


def test_what_is_captured_is_no_argument(as_user):
    def loss(a):
        f = custom(lambda x: a * x**2)
        f.def_jvp(lambda p, t: 2 * a * p[0] * t[0])
        return f(3.0)

    close(jax.jit(loss)(2.0), 18.0)
    with pytest.raises(hotk.ModeError, match="captured"):
        jax.grad(loss)(2.0)


def test_a_captured_tracer_of_the_outside_is_followed():
    def curvature(a):
        f = custom(lambda x: a * x**3)
        f.def_vjp(lambda p, u: (3 * a * p[0] ** 2 * u,))
        return hotk.second_derivative(f, 2.0)

    close(jax.jit(curvature)(5.0), 60.0)
    close(jax.vmap(curvature)(jnp.array([1.0, 2.0])), np.array([12.0, 24.0]))


def test_a_built_thing_is_built_once_and_never_differentiated():
    built = itertools.count()
    tick = built.__next__

    def build(x):
        tick()
        assert not isinstance(x, jax.core.Tracer)
        return jnp.linspace(1.0, 2.0, x.shape[0]), "static"

    @functools.partial(custom, build=build)
    def f(x, *, built):
        return jnp.sum(built[0] * x**3)

    @f.def_vjp
    def _(primals, u, *, built):
        assert built[1] == "static"
        return (3 * built[0] * primals[0] ** 2 * u,)

    x = jnp.array([1.0, 2.0, 3.0])
    product = hotk.hvp.prepare(f, x, x)
    for _ in range(1000):
        got = product(x, x)
    close(got, 6 * np.array([1.0, 1.5, 2.0]) * np.array([1.0, 4.0, 9.0]))
    close(jax.jit(lambda x: product(x, x))(x), np.asarray(got))
    jax.jvp(lambda x: product(x, x), (x,), (x,))
    assert next(built) == 1
    hotk.clear_cache()  # drops what was built as well
    f(x)
    assert next(built) == 3


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda p, u: (p[0],), "shape"),
        (lambda p, u: (p[0] * u, p[0] * u), "structure"),
        (lambda p, u: ({"a": u},), "structure"),
        (lambda p, u: (jnp.float32(1) * jnp.ones(2, jnp.float32),), "dtype"),
    ],
    ids=["shape", "count", "tree", "dtype"],
)
def test_a_wrong_rule_is_named(rule, text, as_user):
    f = custom(lambda x: jnp.sum(x, keepdims=True)[:1])
    if text == "shape":
        f.def_vjp(lambda p, u: (u,))
    else:
        f.def_vjp(rule)
    with pytest.raises((hotk.StructureError, hotk.DtypeError), match=text) as caught:
        jax.grad(lambda x: f(x)[0])(jnp.ones(2))
    assert "test_custom.py" in str(caught.value)


def test_which_says_which():
    f = custom(jnp.sin)
    assert which(f, hotk.Reverse()) == "body"
    f.def_vjp(lambda p, u: (jnp.cos(p[0]) * u,))
    assert which(f, hotk.Forward()) == "vjp, transposed"
    assert "forward mode" in which(f, hotk.FORWARD_OVER_REVERSE)
    f.def_hvp(lambda p, t, u: (-jnp.sin(p[0]) * t[0] * u,))
    assert which(f, hotk.REVERSE_OVER_REVERSE) == "vjp, then hvp"
    with pytest.raises(hotk.DtypeError, match="expected a function with rules"):
        which(jnp.sin, hotk.Forward())


def test_a_change_of_the_rules_is_seen():
    f = custom(lambda x: x**2)
    f.def_jvp(lambda p, t: 10.0 * t[0])
    close(hotk.gradient(f, 3.0), 10.0)
    f.def_jvp(lambda p, t: 20.0 * t[0])
    close(hotk.gradient(f, 3.0), 20.0)


def test_a_fresh_function_with_rules_is_not_compiled_again():
    def fresh(a):
        f = custom(lambda x: jnp.sum(a * x**2))
        f.def_vjp(lambda p, u: (2 * a * p[0] * u,))
        return f

    x, a, other = jnp.ones(3), jnp.arange(3.0), jnp.arange(3.0) + 1
    hotk.hvp(fresh(a), x, x)
    with compiles() as count:
        got = hotk.hvp(fresh(other), x, x)
        made = count()
    assert made == 0
    close(got, np.array([2.0, 4.0, 6.0]))


def test_info_tells_which_rules_run():
    f = custom(lambda x: x**2)
    f.def_vjp(lambda p, u: (2 * p[0] * u,))
    name = "test_info_tells_which_rules_run.<locals>.<lambda>"
    found = hotk.jvp.prepare(f, 3.0, 1.0).info.rules
    assert found == (f"{name}: vjp, transposed",)
    assert hotk.gradient.prepare(f, 3.0).info.rules == (f"{name}: vjp",)
    assert hotk.gradient.prepare(jnp.sin, 3.0).info.rules == ()


# ---- what users do, and do wrong


class Spring:
    def __init__(self, stiffness):
        self.stiffness = stiffness

    @custom
    def energy(self, x):
        return self.stiffness * jnp.sum(x**2) / 2

    @energy.def_vjp
    def _(primals, u):
        self, x = primals
        return None, 3 * self.stiffness * x * u  # instead of 1: to see that it runs


class SpringModule(eqx.Module):
    stiffness: jax.Array

    @custom
    def energy(self, x):
        return self.stiffness * jnp.sum(x**2) / 2


@SpringModule.energy.def_jvp
def _(primals, tangents):
    (self, x), (d_self, d_x) = primals, tangents
    by_x = 3 * self.stiffness * jnp.sum(x * d_x)
    return by_x + d_self.stiffness * jnp.sum(x**2) / 2


@pytest.mark.parametrize("make", [Spring, SpringModule])
def test_rules_of_a_method(make):
    for stiffness in (2.0, 5.0):
        f = make(jnp.asarray(stiffness)).energy
        close(hotk.gradient(f, X), 3 * stiffness * X)
        close(hotk.hvp(f, X, V), 3 * stiffness * V)
    module = SpringModule(jnp.asarray(2.0))
    by_module = hotk.gradient(lambda m: m.energy(X), module)
    close(by_module.stiffness, np.sum(X**2) / 2)


@pytest.mark.parametrize("f", [jnp.sin, jax.jit(jnp.sin)])
def test_functions_of_libraries_keep_their_rules_at_second_order(f):
    ruled = custom(f)
    ruled.def_jvp(lambda p, t: 3 * jnp.cos(p[0]) * t[0])

    def g(x):
        return jax.lax.scan(lambda c, _: (ruled(c), None), x, length=1)[0]

    close(hotk.gradient(g, 0.5), 3 * np.cos(0.5))
    close(hotk.second_derivative(g, 0.5), -3 * np.sin(0.5))


def clipped():
    f = custom(lambda x: x * 1.0)
    f.def_vjp(lambda p, u: (jnp.clip(u, -0.1, 0.1),))
    return f


@pytest.mark.parametrize("mode", [*NESTINGS, hotk.Auto()], ids=str)
def test_a_rule_that_is_not_linear_has_no_second_derivative(mode):
    c = clipped()
    close(hotk.gradient(lambda x: c(x) ** 2, 3.0), 0.1)
    with pytest.raises(hotk.ModeError, match="not linear in the cotangent"):
        hotk.second_derivative(lambda x: c(x) ** 2, 3.0, mode=mode)


def test_a_rule_that_is_not_linear_is_not_transposed():
    with pytest.raises(hotk.ModeError, match="not linear"):
        hotk.jvp(clipped(), 3.0, 1.0)


@pytest.mark.parametrize("kind", ["def_vjp", "def_jvp"])
def test_a_forgotten_return_is_told_of(kind):
    f = custom(lambda x: x**2)

    def forgetful(primals, u):
        2 * primals[0]

    getattr(f, kind)(forgetful)
    with pytest.raises(hotk.StructureError, match="return"):
        hotk.gradient(f, 2.0)


def test_a_list_and_a_bare_array_are_cotangents_as_well():
    for pack in (list, tuple, lambda made: made[0]):
        f = custom(lambda x: x**2)
        f.def_vjp(lambda p, u, pack=pack: pack([3 * p[0] * u]))
        close(hotk.gradient(f, 2.0), 6.0)


def test_keywords_that_rules_cannot_know_are_named():
    f = custom(lambda x, *, scale=1.0: x * scale)
    f.def_vjp(lambda p, u: (u,))
    with pytest.raises(TypeError, match="`scale` a positional"):
        f(1.0, scale=2.0)
    with pytest.raises(TypeError, match="must be a function"):
        custom(3)


def test_which_takes_classes_of_modes_and_nothing_else():
    f = hotk.rule.external(
        np.sin, result_shape=lambda x: x, jvp=lambda p, t: np.cos(p[0]) * t[0]
    )
    assert which(f, hotk.Forward) == which(f, hotk.Forward()) == "jvp"
    for mode in ("forward", hotk.Auto(), None):
        with pytest.raises(hotk.ModeError, match="which"):
            which(f, mode)


def test_one_mode_stands_for_a_tuple_of_one():
    f = custom(lambda x: x**2)
    f.def_jvp(lambda p, t: 7 * t[0], modes=hotk.Forward)
    close(hotk.gradient(f, 2.0, mode=hotk.Forward()), 7.0)
    close(hotk.gradient(f, 2.0, mode=hotk.Reverse()), 4.0)


def test_an_error_in_a_rule_comes_with_its_line():
    f = custom(lambda x: x**2)

    @f.def_jvp
    def rule(primals, tangents):
        return primals * tangents

    with pytest.raises(hotk.ModeError) as error:
        hotk.gradient(f, 2.0)
    line = rule.__code__.co_firstlineno + 2
    assert f"in test_custom.py:{line}" in str(error.value)


def test_a_mode_chosen_with_rules_is_chosen_anew_without():
    loop = lambda x: jax.lax.while_loop(lambda y: y < 9.0, lambda y: y * y, x)
    f = custom(lambda x: loop(x))
    f.def_vjp(lambda p, u: (5 * u,))
    g = lambda x: f(x)
    for _ in range(2):
        close(hotk.gradient(g, 2.0), 5.0)
        with disabled():
            close(hotk.gradient(g, 2.0), 4 * 2.0**3)


@each_nesting
def test_a_complex_number_from_a_reverse_rule_alone(mode):
    f = custom(lambda x: x * (1 + 2j))
    f.def_vjp(lambda p, u: ((u * (1 + 2j)).real,))
    found = jax.jvp(f, (jnp.array(0.3),), (jnp.array(1.0),))[1]
    close(found, np.asarray(1 + 2j))
    x = jnp.array(0.3)
    g = lambda x: (f(x).real ** 2 + f(x).imag ** 2) ** 2
    close(hotk.hvp(g, x, x, mode=mode), np.asarray(300 * 0.3**3))


def test_rules_for_one_mode_each_are_transposed_for_the_other():
    f = custom(lambda x: x**2)
    f.def_jvp(lambda p, t: 3 * p[0] * t[0], modes=hotk.Reverse)
    f.def_vjp(lambda p, u: (5 * p[0] * u,), modes=hotk.Forward)
    close(hotk.gradient(f, 1.0, mode=hotk.Forward()), 5.0)
    close(hotk.gradient(f, 1.0, mode=hotk.Reverse()), 3.0)


def odd_cube():
    f = custom(lambda x: x**3)
    f.def_jvp(lambda p, t: 7 * p[0] * t[0])
    return f


@pytest.mark.parametrize("inside_first", [True, False])
def test_a_prepared_operator_and_direct_calls_with_and_without_rules(inside_first):
    hotk.clear_cache()
    f, x = odd_cube(), jnp.asarray(2.0)
    g = lambda x: f(x)
    if inside_first:
        with disabled(f):
            close(hotk.gradient(g, x), np.asarray(12.0))
    prepared = hotk.gradient.prepare(g, x)
    for _ in range(2):
        close(prepared(x), np.asarray(14.0))
        close(hotk.gradient(g, x), np.asarray(14.0))
        with disabled(f):
            close(prepared(x), np.asarray(14.0))  # it is as it was prepared
            close(hotk.gradient(g, x), np.asarray(12.0))
            close(jax.jit(lambda x: hotk.gradient(g, x))(x), np.asarray(12.0))


def test_one_of_two_functions_of_the_host_without_its_rules():
    make = lambda fun, slope: hotk.rule.external(
        fun, result_shape=lambda x: x, vjp=lambda p, u: (slope * u,)
    )
    sine, cosine = make(np.sin, 2.0), make(np.cos, 3.0)
    with disabled(sine):
        close(hotk.gradient(cosine, 1.0), 3.0)
        with pytest.raises(hotk.ModeError):
            hotk.gradient(sine, 1.0)
    close(hotk.gradient(sine, 1.0), 2.0)
