"""Functions of NumPy with their derivatives."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.rule import external
from tests import reference
from tests.devices import run_on_eight_devices
from tests.helpers import close


W = np.array([1.0, 2.0, 3.0])
X, B = np.array([0.3, 0.7, 1.2]), 0.8
NESTINGS = [getattr(hotk, name) for name in reference.NESTINGS]
each_nesting = pytest.mark.parametrize("mode", NESTINGS, ids=reference.NESTINGS)


def fun(x, b):
    return np.array([np.sum(np.sin(x) * W) * b, np.sum(x**2)])


def jvp(primals, tangents):
    (x, b), (t, s) = primals, tangents
    along = np.sum(np.cos(x) * W * t) * b + np.sum(np.sin(x) * W) * s
    return np.array([along, 2 * np.sum(x * t)])


def vjp(primals, u):
    x, b = primals
    return np.cos(x) * W * b * u[0] + 2 * x * u[1], np.sum(np.sin(x) * W) * u[0]


def hvp(primals, tangents, u):
    (x, b), (t, s) = primals, tangents
    by_x = -np.sin(x) * W * b * u[0] * t + np.cos(x) * W * s * u[0] + 2 * t * u[1]
    return by_x, np.sum(np.cos(x) * W * t) * u[0]


GIVEN = {
    "vjp": {"vjp": vjp},
    "jvp": {"jvp": jvp},
    "jvp vjp": {"jvp": jvp, "vjp": vjp},
    "vjp hvp": {"vjp": vjp, "hvp": hvp},
    "all": {"jvp": jvp, "vjp": vjp, "hvp": hvp},
}
each_choice = pytest.mark.parametrize("given", GIVEN)


def make(given):
    shape = jax.ShapeDtypeStruct((2,), jnp.float64)
    return external(fun, result_shape=shape, **GIVEN[given])


def hessian_by_hand():
    """Of y0^2 y1 by (x, b)."""
    y0, y1 = fun(X, B)
    g0 = np.append(np.cos(X) * W * B, np.sum(np.sin(X) * W))
    g1 = np.append(2 * X, 0)
    h0 = np.diag(np.append(-np.sin(X) * W * B, 0))
    h0[:3, 3] = h0[3, :3] = np.cos(X) * W
    h1 = np.diag([2.0, 2, 2, 0])
    mixed = np.outer(g0, g1) + np.outer(g1, g0)
    return 2 * y1 * np.outer(g0, g0) + 2 * y0 * mixed + 2 * y0 * y1 * h0 + y0**2 * h1


def loss(f):
    return lambda z: (lambda y: y[0] ** 2 * y[1])(f(z[:3], z[3]))


Z = jnp.asarray(np.append(X, B))


@pytest.mark.thinned(2)
@each_nesting
@each_choice
def test_the_hessian_in_every_nesting(given, mode):
    exact = "hvp" in GIVEN[given]
    got = hotk.hessian(loss(make(given)), Z, mode=mode)
    # a central difference in float64 has a relative error of about 4e-11
    close(got, hessian_by_hand(), rtol=1e-10 if exact else 1e-8, atol=1e-12)


@each_choice
def test_first_derivatives(given):
    y0, y1 = fun(X, B)
    gradient = 2 * y0 * y1 * np.append(np.cos(X) * W * B, np.sum(np.sin(X) * W))
    gradient += y0**2 * np.append(2 * X, 0)
    close(hotk.gradient(loss(make(given)), Z), gradient)
    close(hotk.jvp(loss(make(given)), Z, Z), np.dot(gradient, Z))


def test_single_precision_takes_its_difference_in_double(default_settings):
    f = external(np.sin, result_shape=lambda x: x, vjp=lambda p, u: (np.cos(p[0]) * u,))
    close(hotk.second_derivative(f, 0.5), np.float32(-np.sin(0.5)), rtol=2e-7)


def test_jit_vmap_and_a_scan():
    f = make("all")
    x, b = jnp.stack([jnp.asarray(X), 2 * X]), jnp.array([B, B])
    expected = np.stack([fun(X, B), fun(2 * X, B)])
    close(jax.jit(jax.vmap(f))(x, b), expected)
    close(jax.lax.map(lambda a: f(*a), (x, b)), expected)
    close(jax.vmap(jax.grad(loss(f)))(jnp.stack([Z, Z]))[1], jax.grad(loss(f))(Z))


def test_how_often_the_host_is_called():
    count = itertools.count()
    tick = count.__next__

    def counted(primals, u):
        tick()
        return vjp(primals, u)

    shape = jax.ShapeDtypeStruct((2,), jnp.float64)
    f = external(fun, result_shape=shape, vjp=counted)
    hotk.gradient(loss(f), Z).block_until_ready()
    assert next(count) == 1


@pytest.mark.exhaustive
def test_no_rule_is_an_error_that_names_the_function(as_user):
    f = external(fun, result_shape=jax.ShapeDtypeStruct((2,), jnp.float64))
    close(f(X, B), fun(X, B))
    with pytest.raises(
        hotk.ModeError, match=r"external\(fun\).*(?s:.*)test_external.py"
    ):
        hotk.gradient(loss(f), Z)
    third = jax.jacfwd(jax.hessian(loss(make("all"))))
    with pytest.raises(hotk.ModeError, match="of this order"):
        third(Z)


def test_info_tells_of_the_finite_difference():
    f = external(np.sin, result_shape=lambda x: x, vjp=lambda p, u: (np.cos(p[0]) * u,))
    product = hotk.hvp.prepare(lambda x: f(x), 0.5, 1.0)
    assert "sin: hvp (a central difference of vjp)" in product.info.rules
    assert "central difference" in str(product.info)


def test_of_complex_numbers_no_rule_is_derived(as_user):
    f = external(np.exp, result_shape=lambda z: z, vjp=lambda p, u: (np.exp(p[0]) * u,))
    g = lambda z: jnp.real(f(z))
    close(hotk.gradient(g, 1j), np.exp(1j))  # as `jax.grad` of the real part of exp
    close(hotk.gradient(g, 1j), np.asarray(jax.grad(lambda z: jnp.exp(z).real)(1j)))
    with pytest.raises(hotk.DtypeError, match="complex"):
        hotk.jvp(g, 1j, 1.0 + 0j)


def test_the_step_of_a_difference_knows_only_what_moves():
    rule = lambda p, u: (np.cos(p[0]) * p[1] * u, np.sin(p[0]) * u)
    f = external(lambda a, b: np.sin(a) * b, result_shape=lambda a, b: a, vjp=rule)
    large = jnp.asarray(1e6)
    found = hotk.second_derivative(lambda a: f(a, large), jnp.asarray(0.3))
    close(found, np.asarray(-1e6 * np.sin(0.3)), rtol=1e-8)


def test_what_a_rule_of_the_host_returns_wrongly_is_named():
    f = external(np.sin, result_shape=lambda x: x, vjp=lambda p, u: (u, u))
    with pytest.raises(Exception, match="`vjp` of sin") as error:
        jax.block_until_ready(hotk.gradient(lambda x: jnp.sum(f(x)), jnp.ones(2)))
    assert "one entry for each argument" in str(error.value)
    f = external(lambda x: x[:1], result_shape=lambda x: x, vjp=lambda p, u: (u,))
    with pytest.raises(Exception, match="another structure or shape than was declared"):
        jax.block_until_ready(f(jnp.ones(2)))


class Simulator:
    """A function of the host that holds an array of JAX."""

    def __init__(self, a):
        self.a = a

    def __call__(self, v):
        return np.asarray(self.a) * v

    def value(self, v):
        return np.asarray(self.a) * v

    def reverse(self, primals, u):
        return (np.asarray(self.a) * u,)


def _by_method(simulator):
    return simulator.value, simulator.reverse


def _by_object(simulator):
    return simulator, simulator.reverse


def _by_cells(simulator):
    return lambda v: np.asarray(simulator.a) * v, lambda p, u: simulator.reverse(p, u)


def _by_partial(simulator):
    value = lambda s, v: np.asarray(s.a) * v
    reverse = lambda s, p, u: s.reverse(p, u)
    return functools.partial(value, simulator), functools.partial(reverse, simulator)


def _by_jitted(simulator):
    scale = lambda v: np.asarray(jax.jit(lambda v: simulator.a * v)(v))
    return scale, lambda p, u: (scale(u),)


@pytest.mark.thinned(2)
@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
@pytest.mark.parametrize(
    "parts", [_by_method, _by_object, _by_cells, _by_partial, _by_jitted]
)
def test_the_host_reads_the_array_of_jax_that_is_there_now(parts):
    simulator = Simulator(jnp.array([1.0, 2.0]))
    value, reverse = parts(simulator)
    g = hotk.rule.external(value, result_shape=lambda v: v, vjp=reverse)
    f = lambda x: jnp.sum(g(x) ** 2)
    x = jnp.array([0.5, 1.0])
    for a in ([1.0, 2.0], [1.0, 2.0], [3.0, 1.0], [1.0, 2.0]):
        simulator.a = jnp.array(a)
        expected = 2 * np.array(a) ** 2 * np.asarray(x)
        assert close(hotk.gradient(f, x), expected)
        assert close(jax.jit(lambda x: hotk.gradient(f, x))(x), expected)
    assert close(hotk.gradient.prepare(f, x)(x), expected)


@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_two_objects_with_equal_arrays_are_not_one():
    x = jnp.array([0.5, 1.0])
    a = jnp.array([1.0, 2.0])
    one, other = Simulator(a), Simulator(a)

    def gradient(simulator):
        g = hotk.rule.external(
            simulator.value, result_shape=lambda v: v, vjp=simulator.reverse
        )
        return hotk.gradient(lambda x: jnp.sum(g(x) ** 2), x)

    assert close(gradient(one), 2 * a**2 * x)
    one.a = jnp.array([7.0, 7.0])
    assert close(gradient(other), 2 * a**2 * x)


@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_only_the_rule_reads_an_array_of_jax():
    a, x = jnp.array([1.0, 2.0]), jnp.array([0.5, 1.0])
    g = hotk.rule.external(
        lambda v: np.array([1.0, 2.0], v.dtype) * v,
        result_shape=lambda v: v,
        vjp=lambda p, u: (np.asarray(a) * u,),
    )
    assert close(hotk.gradient(lambda x: jnp.sum(g(x) ** 2), x), np.array([1.0, 8.0]))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
def test_a_solver_on_the_host_reads_an_array_of_jax():
    """The minimum of `(x - a b)^2` over `x` is `a b`, its derivative by `a` is `b`."""
    b = jnp.array([2.0, 3.0])

    def solve(x0, a):
        host = lambda a: np.asarray(a) * np.asarray(b)
        return jax.pure_callback(host, jax.ShapeDtypeStruct((2,), x0.dtype), a)

    best = hotk.rule.minimum(lambda x, a: jnp.sum((x - a * b) ** 2), solve)
    f = lambda a: jnp.sum(best(jnp.zeros(2), a) ** 2)
    for values in ([2.0, 3.0], [2.0, 3.0], [4.0, 1.0]):
        b = jnp.array(values)
        expected = 2 * 1.5 * np.sum(np.array(values) ** 2)
        assert close(hotk.gradient(f, jnp.asarray(1.5)), expected)


@pytest.mark.filterwarnings("ignore::hotk.OpaqueWarning")
@pytest.mark.parametrize("name", ["__call__", "value"])
def test_a_callback_of_an_object_reads_its_array_of_jax(name):
    simulator = Simulator(jnp.array([1.0, 2.0]))
    host = simulator if name == "__call__" else simulator.value
    shape = jax.ShapeDtypeStruct((2,), jnp.asarray(1.0).dtype)

    def f(x):
        known = jax.pure_callback(host, shape, jax.lax.stop_gradient(x))
        return jnp.sum(x * known)

    x = jnp.array([0.5, 1.0])
    for a in ([1.0, 2.0], [1.0, 2.0], [3.0, 1.0]):
        simulator.a = jnp.array(a)
        assert close(hotk.gradient(f, x), np.array(a) * np.asarray(x))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
@pytest.mark.parametrize("given", ["jvp", "vjp"])
def test_derived_rules_of_small_dtypes(given, dtype):
    """To NumPy bfloat16 is no floating number."""

    def wide(f):
        return lambda *a: f(*(np.float32(b) for b in a)).astype(dtype)

    rule = {
        "jvp": lambda p, t: wide(lambda x, t: np.cos(x) * t)(p[0], t[0]),
        "vjp": lambda p, u: (wide(lambda x, u: np.cos(x) * u)(p[0], u),),
    }[given]
    f = external(wide(np.sin), result_shape=lambda x: x, **{given: rule})
    x, v = jnp.array([0.5, 1.0], dtype), jnp.ones(2, dtype)
    total = lambda x: jnp.sum(f(x))
    found = hotk.jvp(f, x, v), jax.grad(total)(x), hotk.hvp(total, x, v)
    for got, wanted in zip(found, (np.cos, np.cos, lambda x: -np.sin(x)), strict=True):
        assert got.dtype == dtype
        np.testing.assert_allclose(
            got.astype(float), wanted(np.array([0.5, 1.0])), rtol=2e-2
        )


@pytest.mark.thinned(9)
@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
@pytest.mark.parametrize("given", ["jvp", "vjp"])
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_a_batch_in_one_call(axes, given, method):
    """As `jax.pure_callback` has it: derived rules are those of each element."""

    def fun(a, b):
        return a * np.sum(np.sin(b), axis=-1, keepdims=True)

    def jvp(primals, tangents):
        (a, b), (t, s) = primals, tangents
        return fun(t, b) + a * np.sum(np.cos(b) * s, axis=-1, keepdims=True)

    def vjp(primals, u):
        a, b = primals
        return fun(u, b), np.sum(u * a, axis=-1, keepdims=True) * np.cos(b)

    rule = {given: {"jvp": jvp, "vjp": vjp}[given]}
    f = external(fun, result_shape=lambda a, b: a, vmap_method=method, **rule)
    known = lambda a, b: a * jnp.sum(jnp.sin(b))
    a = np.arange(6.0).reshape(3, 2) / 7
    # The step of a difference is that of its element.
    b = np.array([[0.1, 0.2, 0.3], [1.0, 0.5, 0.2], [1e4, 2e4, 1e4]])
    a, b = a if axes[0] == 0 else a[1], b if axes[1] == 0 else b[0]

    def everything(f):
        squares = lambda a, b: jnp.sum(f(a, b) ** 2)
        derivatives = jax.grad(squares, (0, 1)), jax.jacfwd(jax.grad(squares), (0, 1))
        return [jax.vmap(g, axes)(a, b) for g in (f, *derivatives)]

    found, expected = map(jax.tree.leaves, (everything(f), everything(known)))
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got[:2], wanted[:2], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("mask", [True, 1, np.uint8(1)])
@pytest.mark.parametrize("given", ["jvp", "vjp"])
def test_an_argument_that_is_not_differentiated(given, mask):
    """A mask of booleans, of which there is no difference."""
    rule = {
        "jvp": lambda p, t: np.where(p[1], np.cos(p[0]), 1.0) * t[0],
        "vjp": lambda p, u: (np.where(p[1], np.cos(p[0]), 1.0) * u, None),
    }[given]
    choose = lambda x, m: np.where(m, np.sin(x), x)
    f = external(choose, result_shape=lambda x, m: x, **{given: rule})
    total = lambda x: jnp.sum(f(x, jnp.asarray(mask)))
    x = jnp.array([1.0, 2.0])
    close(hotk.gradient(total, x), np.cos([1.0, 2.0]))
    close(hotk.hvp(total, x, jnp.ones(2)), -np.sin([1.0, 2.0]), rtol=1e-8)


def test_arguments_of_different_size_have_steps_of_their_own():
    """One step for all was 6 for the second argument: a sign was wrong."""
    f = hotk.rule.external(
        lambda x: 1e-6 * x[0] ** 2 + np.sin(x[1]),
        result_shape=lambda x: jax.ShapeDtypeStruct((), x.dtype),
        vjp=lambda p, u: (np.array([2e-6 * p[0][0], np.cos(p[0][1])]) * u,),
    )
    x, v = jnp.array([1e6, 1.0]), jnp.ones(2)
    close(hotk.hvp(f, x, v), np.array([2e-6, -np.sin(1.0)]), rtol=1e-4)
    close(hotk.quadratic_form(f, x, v), np.array(2e-6 - np.sin(1.0)), rtol=1e-4)


IN_SHARD_MAP = """
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, PartitionSpec as P

    jax.config.update("jax_enable_x64", True)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    t, same = jnp.linspace(0.5, 2.0, 8), {"result_shape": lambda t: t}
    cases = [
        hotk.rule.external(np.sin, jvp=lambda p, t: np.cos(p[0]) * t[0], **same),
        hotk.rule.external(np.sin, vjp=lambda p, u: (np.cos(p[0]) * u,), **same),
        hotk.rule.external(np.sin, **same),
    ]
    share = lambda f, *specs: jax.jit(
        jax.shard_map(f, mesh=mesh, in_specs=specs[:-1], out_specs=specs[-1])
    )
    for k, f in enumerate(cases):
        close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, err_msg=str(k))
        total = lambda s, t: jax.lax.psum(f(s * t[0]), "d")
        close(share(total, P(), P("d"), P())(1.5, t), jnp.sin(1.5 * t).sum())
        if k < 2:
            by_t = share(jax.grad(lambda t: total(1.5, t)), P("d"), P("d"))(t)
            close(by_t, 1.5 * jnp.cos(1.5 * t))
            known = jnp.sum(t * jnp.cos(1.5 * t))
            close(share(jax.grad(total), P(), P("d"), P())(1.5, t), known)
            close(jax.grad(share(total, P(), P("d"), P()))(1.5, t), known)
        try:  # that of which device?
            share(lambda t: f(t[0]), P("d"), P())(t)
        except ValueError:
            continue
        raise AssertionError(k)
    print("fine")
"""


def test_in_shard_map_results_vary_by_device():
    """To `jax.pure_callback` they are the same: gradients were 8 times as large."""
    run_on_eight_devices(IN_SHARD_MAP)
