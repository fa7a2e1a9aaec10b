"""Every setting of JAX is obeyed at the moment of the call, and left as found."""

import functools
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles, settings
from tests.helpers import close
from tests.reliability.public_calls import CALLS


X = np.array([1.0, 2.0, 3.0])
V = np.array([1.0, 0.5, -1.0])

each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)


def cubic(x):
    return jnp.sum(x**3)


@each_call
def test_settings_are_left_as_found(call):
    before = settings()
    call(cubic, jnp.asarray(X), jnp.asarray(V))
    assert settings() == before


@each_call
def test_settings_are_left_as_found_by_a_failure(call):
    before = settings()
    with pytest.raises(ZeroDivisionError):
        call(lambda x: 1 / 0, jnp.asarray(X), jnp.asarray(V))
    assert settings() == before


def test_precision_may_change_from_call_to_call():
    for wide in (True, False, True, False):
        with jax.enable_x64(wide):
            out = hotk.hvp(cubic, X, V)
            assert out.dtype == (jnp.float64 if wide else jnp.float32)
            np.testing.assert_array_equal(out, 6 * X * V)


def test_precision_may_change_over_a_captured_numpy_array():
    weight = np.array([1.0, 2.0, 3.0])
    f = lambda x: jnp.sum(weight * x**3)
    for wide, factor in ((False, 1.0), (True, 2.0), (False, 3.0)):
        weight[:] = factor
        with jax.enable_x64(wide):
            out = hotk.hvp(f, X, V)
            assert out.dtype == (jnp.float64 if wide else jnp.float32)
            np.testing.assert_array_equal(out, factor * 6 * X * V)


def test_a_numpy_array_mutated_after_a_call_in_single_precision_is_not_stale():
    # the array that JAX itself keeps stale: float64, captured, while x64 is off
    with jax.enable_x64(False):
        a = np.ones(3)
        f = lambda x: jnp.sum(a * x**3)
        assert hotk.hvp(f, X, V).tolist() == (6 * X * V).tolist()
        a[:] = 5.0
        assert hotk.hvp(f, X, V).tolist() == (30 * X * V).tolist()
        g = lambda x, a: jnp.sum(a * x**3)
        assert hotk.hvp(g, X, V, a).tolist() == (30 * X * V).tolist()
        assert hotk.hvp(lambda x: jnp.sum(x**3), a, a).tolist() == [150.0] * 3


# A function that reads a setting while it is traced shows which trace was used.
SETTINGS = {
    "jax_default_matmul_precision": (jax.default_matmul_precision, "highest"),
    "jax_numpy_dtype_promotion": (jax.numpy_dtype_promotion, "standard"),
    "jax_numpy_rank_promotion": (jax.numpy_rank_promotion, "allow"),
    "jax_default_prng_impl": (jax.default_prng_impl, "rbg"),
    "jax_enable_x64": (jax.enable_x64, False),
    "jax_threefry_partitionable": (jax.threefry_partitionable, False),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_function_is_traced_under_the_settings_of_the_call(name):
    setting, value = SETTINGS[name]
    assert getattr(jax.config, name) != value

    def f(x):
        # fixed text, so that the closure captures no more than a string
        return jnp.sum(x**3) * (2.0 if getattr(jax.config, name) == value else 1.0)

    for _ in range(2):
        np.testing.assert_allclose(hotk.hvp(f, X, V), 6 * X * V)
        with setting(value):
            np.testing.assert_allclose(hotk.hvp(f, X, V), 12 * X * V, rtol=1e-6)


def test_settings_seen_again_compile_nothing():
    f = lambda x: jnp.sum(jnp.tanh(x) ** 2)
    x, v = jnp.asarray(X), jnp.asarray(V)

    def both():
        hotk.hvp(f, x, v)
        with jax.default_matmul_precision("highest"):
            hotk.hvp(f, x, v)

    both()
    with compiles() as count:
        both()
    assert count() == 0


def test_random_numbers_follow_the_default_generator():
    def f(x):
        return jnp.sum(x**3 * jax.random.uniform(jax.random.key(0), (3,)))

    with jax.default_prng_impl("rbg"):
        rbg = np.asarray(jax.random.uniform(jax.random.key(0), (3,)))
        np.testing.assert_allclose(hotk.hvp(f, X, V), 6 * X * V * rbg)
    threefry = np.asarray(jax.random.uniform(jax.random.key(0), (3,)))
    np.testing.assert_allclose(hotk.hvp(f, X, V), 6 * X * V * threefry)


def test_a_derivative_rule_follows_the_default_generator():
    drawn = lambda: jax.random.uniform(jax.random.key(0), (3,))

    @jax.custom_jvp
    def cubed(x):
        return x**3

    @cubed.defjvp
    def rule(primals, tangents):
        return cubed(*primals), 3 * primals[0] ** 2 * drawn() * tangents[0]

    # The program of the function is the same under both generators, its rule is not.
    for generator in ("threefry2x32", "rbg", "threefry2x32"):
        with jax.default_prng_impl(generator):
            slope = hotk.gradient(lambda x: jnp.sum(cubed(x)), jnp.asarray(X))
            np.testing.assert_allclose(slope, 3 * X**2 * drawn())


@each_call
def test_hotk_promotes_nothing_implicitly(call):
    # strict promotion and rank promotion "raise" are on in all tests; here with
    # dtypes that hotk's own constants could clash with
    assert jax.config.jax_numpy_dtype_promotion == "strict"
    x, v = jnp.asarray(X, jnp.float16), jnp.asarray(V, jnp.float16)
    for leaf in jax.tree.leaves(call(cubic, x, v)):
        assert leaf.dtype == jnp.float16


def test_promotion_is_judged_at_each_call():
    weight = np.array([1.0, 2.0, 3.0], np.float32)
    f = lambda x: jnp.sum(weight * x**3)
    with jax.numpy_dtype_promotion("standard"):
        assert close(hotk.hvp(f, X, V), jnp.asarray(6 * weight * X * V))
    with pytest.raises(jax.dtypes.TypePromotionError):
        hotk.hvp(f, X, V)
    with jax.numpy_dtype_promotion("standard"):
        assert close(hotk.hvp(f, X, V), jnp.asarray(6 * weight * X * V))


def test_rank_promotion_is_judged_at_each_call():
    f = lambda x: jnp.sum(jnp.ones((2, 3)) * x**3)
    with jax.numpy_rank_promotion("allow"):
        assert close(hotk.hvp(f, X, V), jnp.asarray(12 * X * V))
    with pytest.raises(ValueError, match="rank_promotion"):
        hotk.hvp(f, X, V)


@pytest.mark.thinned(15)
@each_call
def test_operators_work_without_jit(call):
    expected = call(cubic, jnp.asarray(X), jnp.asarray(V))
    with jax.disable_jit():
        assert close(call(cubic, jnp.asarray(X), jnp.asarray(V)), expected)
    assert close(call(cubic, jnp.asarray(X), jnp.asarray(V)), expected)


def test_without_jit_a_function_sees_the_state_of_the_call():
    weight = np.ones(3)
    f = lambda x: jnp.sum(weight * x**3)
    with jax.disable_jit():
        assert close(hotk.hvp(f, X, V), jnp.asarray(6 * X * V))
        weight[:] = 3.0
        assert close(hotk.hvp(f, X, V), jnp.asarray(18 * X * V))


def test_debug_nans_finds_the_nan():
    f = lambda x: jnp.sum(jnp.sqrt(x))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        jax.block_until_ready(hotk.hvp(f, -X, V))
    assert np.isnan(hotk.hvp(f, -X, V)).all()


def test_debug_nans_names_the_operation():
    def f(x):
        return jnp.sum(jnp.log(x) * x)

    calls = []

    def opaque(x):
        calls.append(1)
        return f(x)

    prepared = hotk.gradient.prepare(f, X)
    with jax.debug_nans(True):
        for call in (lambda x: hotk.gradient(f, x), prepared):
            for _ in range(2):
                with pytest.raises(FloatingPointError, match="encountered in log"):
                    call(-X)
        with pytest.raises(FloatingPointError, match="encountered in log"):
            hotk.gradient(opaque, -X)
        assert close(prepared(X), jax.grad(f)(X))


@pytest.mark.parametrize(
    "make", [None, hotk.optim.newton_cg], ids=["none", "newton_cg"]
)
def test_debug_nans_lets_a_finite_minimization_run(make):
    # outside of transformations no NaN stands behind the last value
    f = lambda x: jnp.sum(jnp.cosh(x) + x / 2)
    transform = None if make is None else make()
    with jax.debug_nans(True):
        found = hotk.optim.minimize(f, jnp.asarray(X), transform)
    assert bool(found.converged)
    assert np.allclose(found.x, np.arcsinh(-0.5), atol=1e-3)


def test_debug_nans_lets_a_fit_at_a_bound_be_shown(capsys):
    t = np.linspace(0, 4, 15)
    y = 2 * np.exp(-0.7 * t) + 0.05 * np.sin(9 * t)
    model = lambda p, t: p[0] * jnp.exp(-p[1] * t) + p[2]
    with jax.debug_nans(True):
        bounds = np.array([0, 0, 0.02]), np.array([1.8, 5, 1])
        found = hotk.statistics.fit(model, t, y, np.array([1, 0.5, 0.1]), bounds=bounds)
        assert "1.8" in str(found)
    shown = capsys.readouterr()
    assert "nan" not in (shown.out + shown.err).lower()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["x", "value"])
@pytest.mark.parametrize("derivative", [jax.grad, jax.jacfwd])
def test_debug_nans_lets_a_finite_minimum_be_differentiated(derivative, name):
    # what has no derivative, and what stands behind the last value, is NaN on purpose
    f = lambda x, c: jnp.sum(jnp.cosh(x) + c * x)
    start = jnp.zeros(2)
    result = lambda c: jnp.sum(getattr(hotk.optim.minimize(f, start, args=(c,)), name))
    with jax.debug_nans(True):
        found = derivative(result)(0.5)
    known = -2 / np.sqrt(1.25) if name == "x" else 2 * np.arcsinh(-0.5)
    assert np.allclose(found, known, atol=1e-3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("derivative", [jax.jacrev, jax.jacfwd])
def test_debug_nans_lets_a_finite_fit_be_differentiated(derivative):
    x = jnp.linspace(0.0, 2.0, 9)
    y = 1 + jnp.sin(9 * x)
    model = lambda p, x: p["a"] + p["b"] * x
    start = {"a": 0.0, "b": 0.0}
    intercept = lambda y: hotk.statistics.fit(model, x, y, start).x["a"]
    with jax.debug_nans(True):
        found = derivative(intercept)(y)
    known = np.linalg.pinv(np.stack([np.ones(9), x], axis=1))[0]
    assert np.allclose(found, known, atol=1e-3)


@pytest.mark.exhaustive
def test_debug_nans_lets_finite_eigenvalues_be_differentiated():
    f = lambda x: jnp.sum(jnp.arange(1.0, 4.0) * x**2)
    largest = lambda c: hotk.HessianOperator(lambda x: c * f(x), jnp.ones(3)).eigh(1)
    with jax.debug_nans(True):
        found = jax.jacfwd(lambda c: largest(c).values[0])(1.0)
    assert np.allclose(found, 6.0, atol=1e-3)


def test_the_default_device_is_obeyed():
    # two devices need a process of their own, as they are counted at the start
    program = textwrap.dedent("""
        import jax, jax.numpy as jnp, hotk
        one, two = jax.devices("cpu")
        f = lambda x: jnp.sum(x**3)
        host = [1.0, 2.0]
        import numpy as np
        for device in (one, two, one):
            with jax.default_device(device):
                out = hotk.hvp(f, np.array(host), np.ones(2))
            assert out.devices() == {device}, (out.devices(), device)
            assert out.tolist() == [6.0, 12.0]
        for device in (one, two, one):
            x = jax.device_put(np.array(host, np.float32), device)
            out = hotk.hvp(f, x, jax.device_put(np.ones(2, np.float32), device))
            assert out.devices() == {device}, (out.devices(), device)
            assert out.tolist() == [6.0, 12.0]
        prepared = hotk.hvp.prepare(f, x, x)
        print("done")
    """)
    flags = "--xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


# ----- Prepared under one setting, and again under another


@pytest.mark.parametrize("name", SETTINGS)
def test_an_operator_is_prepared_anew_for_other_settings(name):
    setting, value = SETTINGS[name]

    def f(x):
        return jnp.sum(x**3) * (2.0 if getattr(jax.config, name) == value else 1.0)

    for _ in range(2):
        np.testing.assert_allclose(hotk.hvp.prepare(f, X, V)(X, V), 6 * X * V)
        with setting(value):
            prepared = hotk.hvp.prepare(f, X, V)
            np.testing.assert_allclose(prepared(X, V), 12 * X * V, rtol=1e-6)


def over(size, operation):
    """Run under a named axis of this size; return what one of the lanes gives."""
    return jax.vmap(lambda _: operation(), axis_name="i")(jnp.zeros(size))[0]


NAMED = {
    "direct": lambda f: hotk.hvp(f, X, V),
    "prepared": lambda f: hotk.hvp.prepare(f, X, V)(X, V),
    "jitted": lambda f: jax.jit(lambda x: hotk.hvp(f, x, V))(X),
}


@pytest.mark.parametrize("first", NAMED)
@pytest.mark.parametrize("then", NAMED)
def test_a_named_axis_has_the_size_of_the_call(first, then):
    def f(x):
        return jnp.sum(x**3) * jax.lax.psum(1, "i")

    close(over(2, lambda: NAMED[first](f)), 12 * X * V)
    for size in (3, 2, 4):
        for ask in (first, then):
            close(over(size, lambda ask=ask: NAMED[ask](f)), size * 6 * X * V)


def test_a_function_may_ask_whether_an_axis_is_there():
    def f(x):
        try:
            return jnp.sum(x**3) * jax.lax.psum(1, "i")
        except NameError:
            return jnp.sum(x**3) * 10.0

    for _ in range(2):
        close(hotk.hvp(f, X, V), 60 * X * V)
        outside = hotk.hvp.prepare(f, X, V)
        over(3, lambda prepared=outside: prepared(X, V))
        close(over(3, lambda: hotk.hvp(f, X, V)), 18 * X * V)
        close(over(3, lambda: hotk.hvp.prepare(f, X, V)(X, V)), 18 * X * V)


def test_prepared_under_another_axis_is_loud():
    made = []

    def f(x):
        return jnp.sum(x**3) * jax.lax.psum(1, "i")

    over(2, lambda: made.append(hotk.hvp.prepare(f, X, V)) or jnp.zeros(()))
    close(over(2, lambda: made[0](X, V)), 12 * X * V)
    with pytest.raises(hotk.PreparationError, match=r"named axes: .*2.*called .*3"):
        over(3, lambda: made[0](X, V))
    with pytest.raises(hotk.PreparationError, match="named axes"):
        made[0](X, V)


def test_threefry_that_is_partitionable_gives_other_numbers_at_once():
    key = jax.random.key(0)

    def f(x):
        return jnp.sum(x**3 * jax.random.uniform(key, (3,)))

    def plain():
        return jax.jvp(jax.grad(f), (jnp.asarray(X),), (jnp.asarray(V),))[1]

    prepared = hotk.hvp.prepare(f, X, V)
    with jax.threefry_partitionable(False):
        with pytest.raises(hotk.PreparationError, match="threefry_partitionable"):
            prepared(X, V)
        expected = plain()
        close(hotk.hvp(f, X, V), expected)
        close(hotk.hvp.prepare(f, X, V)(X, V), expected)
    assert not np.allclose(expected, plain())
    close(hotk.hvp(f, X, V), plain())
    close(prepared(X, V), plain())


def test_keys_made_by_another_generator_are_loud():
    def f(x):
        return jnp.sum(x**3 * jax.random.uniform(jax.random.key(0), (3,)))

    prepared = hotk.hvp.prepare(f, X, V)
    expected = prepared(X, V)
    with (
        jax.default_prng_impl("rbg"),
        pytest.raises(hotk.PreparationError, match="threefry2x32, called rbg"),
    ):
        prepared(X, V)
    close(prepared(X, V), expected)


@pytest.mark.thinned(1)
@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")  # of `jnp.sum`
@pytest.mark.parametrize("f", [cubic, lambda x: jnp.sum(jnp.sin(x) * jnp.exp(x))])
def test_an_array_of_64_bits_stays_one_where_they_are_off(f):
    x, v = jnp.asarray(X), jnp.asarray(V)
    near = functools.partial(close, rtol=1e-6)  # the sum in `f` is one of 32 bits
    with jax.enable_x64(False):
        first, hessian = jax.grad(f)(x), np.asarray(jax.hessian(f)(x))
        assert hessian.dtype == np.float64
        near(hotk.gradient(f, x), first)
        near(hotk.hvp(f, x, v), jax.jvp(jax.grad(f), (x,), (v,))[1])
        near(hotk.hessian(f, x), hessian)
        near(hotk.hessian_diagonal(f, x), np.diagonal(hessian))
        near(hotk.jacobian(f, x), first)
        for mode in (hotk.Nested(hotk.Forward(), hotk.Forward()), hotk.Auto()):
            near(hotk.hessian(f, x, mode=mode), hessian)
        # what is like the value has its dtype: a sum is one of 32 bits here
        value = f(x).dtype
        np.testing.assert_allclose(hotk.laplacian(f, x), np.trace(hessian), rtol=1e-5)
        assert hotk.laplacian(f, x).dtype == value
        form = hotk.quadratic_form(f, x, v)
        np.testing.assert_allclose(form, V @ hessian @ V, rtol=1e-5)
