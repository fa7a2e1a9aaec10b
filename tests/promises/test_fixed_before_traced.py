"""Promise 3: a `Prepared` is immutable, and known before anything traces it."""

import copy
import dataclasses
import gc
import inspect
import itertools
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.counting import compiles
from tests.devices import run_on_eight_devices
from tests.helpers import close
from tests.promises.telling import X, direction, uncached_gradient, uncached_hvp


pytestmark = pytest.mark.usefixtures("as_user")

V = direction(X)
B = jnp.array([1.0, 2.0, 3.0])


@pytest.fixture
def hotk():
    """Start each test with nothing prepared."""
    import hotk

    hotk.clear_cache()
    return hotk


@pytest.fixture
def tick():
    """Count the traces: a builtin is static by identity."""
    return itertools.count().__next__


def quartic(b, x):
    return jnp.sum(b * jnp.sin(x) ** 4)


def make(tick, b=B):
    """Return a function that captures an array and counts its traces."""

    def f(x):
        tick()
        return quartic(b, x)

    return f


def plain(b=B):
    """Return the operator that a `Prepared` stands for, uncached."""
    return lambda x, v: uncached_hvp(lambda x: quartic(b, x), x, v)


# ----- A value that never changes


def test_it_is_a_module_that_cannot_be_changed(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    assert isinstance(prepared, eqx.Module)
    assert isinstance(prepared, hotk.Prepared)
    for field in dataclasses.fields(prepared):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(prepared, field.name, None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        prepared.something_else = 1
    close(prepared(X, V), plain()(X, V))


def test_its_leaves_are_the_captured_arrays(hotk, tick):
    leaves = jax.tree.leaves(hotk.hvp.prepare(make(tick), X, V))
    assert len(leaves) == 1
    close(leaves[0], B)


def test_it_survives_flattening_copying_and_comparing(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    leaves, treedef = jax.tree.flatten(prepared)
    again = [
        treedef.unflatten(leaves),
        jax.tree.map(lambda leaf: leaf, prepared),
        copy.copy(prepared),
        eqx.combine(*eqx.partition(prepared, eqx.is_array)),
    ]
    hash(treedef)
    for other in again:
        assert jax.tree.structure(other) == treedef
    with compiles() as count:
        for other in again:
            close(other(X, V), prepared(X, V))
    assert (count(), tick()) == (0, 1)


def test_calling_it_changes_nothing_in_it(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    before = jax.tree.flatten(prepared)
    text = str(prepared)
    prepared(X, V)
    jax.jit(lambda x: prepared(x, V))(X)
    jax.vmap(prepared, (0, None))(jnp.stack([X, X]), V)
    after = jax.tree.flatten(prepared)
    assert all(a is b for a, b in zip(before[0], after[0], strict=True))
    assert before[1] == after[1]
    assert str(prepared) == text


# ----- Under transformations

PAIR = (jnp.stack([X, 2.0 * X]), jnp.stack([V, 3.0 * V]))

UNDER = {
    "nothing": lambda p: p(X, V),
    "jit": lambda p: jax.jit(lambda x, v: p(x, v))(X, V),
    "jit of it": lambda p: jax.jit(p)(X, V),
    "filter_jit of it": lambda p: eqx.filter_jit(p)(X, V),
    "jit in jit": lambda p: jax.jit(lambda x: jax.jit(lambda v: p(x, v))(V))(X),
    "vmap": lambda p: jax.vmap(p)(*PAIR),
    "vmap of the direction": lambda p: jax.vmap(p, (None, 0))(X, PAIR[1]),
    "vmap of the point": lambda p: jax.vmap(p, (0, None), 1)(PAIR[0], V),
    "vmap with a name": lambda p: jax.vmap(
        lambda x, v: jax.lax.psum(p(x, v), "i"), axis_name="i"
    )(*PAIR),
    "vmap of vmap": lambda p: jax.vmap(jax.vmap(p, (None, 0)), (0, None))(*PAIR),
    "jit of vmap": lambda p: jax.jit(jax.vmap(p))(*PAIR),
    "jvp": lambda p: jax.jvp(p, (X, V), (V, X)),
    "jvp of the point": lambda p: jax.jvp(lambda x: p(x, V), (X,), (V,)),
    "vjp": lambda p: jax.vjp(p, X, V)[1](V),
    "grad": lambda p: jax.grad(lambda x: jnp.sum(p(x, V) ** 2))(X),
    "grad of the direction": lambda p: jax.grad(lambda v: jnp.sum(p(X, v) ** 2))(V),
    "value_and_grad": lambda p: jax.value_and_grad(lambda x: p(x, V)[0])(X),
    "grad of grad": lambda p: jax.grad(
        lambda x: jnp.sum(jax.grad(lambda y: jnp.sum(p(y, V)))(x) ** 2)
    )(X),
    "hessian": lambda p: jax.hessian(lambda x: jnp.sum(p(x, V)))(X),
    "jacfwd": lambda p: jax.jacfwd(p, 1)(X, V),
    "jacrev": lambda p: jax.jacrev(p, 1)(X, V),
    "linearize": lambda p: jax.linearize(lambda x: p(x, V), X)[1](V),
    "linear_transpose": lambda p: jax.linear_transpose(lambda v: p(X, v), V)(V),
    "checkpoint": lambda p: jax.grad(
        lambda x: jnp.sum(jax.checkpoint(lambda x: p(x, V))(x))
    )(X),
    "scan": lambda p: jax.lax.scan(
        lambda x, v: (jnp.tanh(p(x, v)), p(x, v)), X, PAIR[1]
    ),
    "grad of scan": lambda p: jax.grad(
        lambda x: jnp.sum(
            jax.lax.scan(lambda x, v: (jnp.tanh(p(x, v)), None), x, PAIR[1])[0]
        )
    )(X),
    "map": lambda p: jax.lax.map(lambda xv: p(*xv), PAIR),
    "while_loop": lambda p: jax.lax.while_loop(
        lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(p(s[1], V))), (0, X)
    ),
    "jvp of while_loop": lambda p: jax.jvp(
        lambda x: jax.lax.while_loop(
            lambda s: s[0] < 3, lambda s: (s[0] + 1, jnp.tanh(p(s[1], V))), (0, x)
        )[1],
        (X,),
        (V,),
    ),
    "fori_loop": lambda p: jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(p(x, V)), X),
    "cond": lambda p: jax.lax.cond(X[0] > 0, lambda x: p(x, V), lambda x: -x, X),
    "both branches": lambda p: jax.lax.cond(
        X[0] > 0, lambda x: p(x, V), lambda x: p(x, 2.0 * V), X
    ),
    "switch": lambda p: jax.lax.switch(1, [lambda x: x, lambda x: p(x, V)], X),
    "custom_vjp": lambda p: _with_rule(p)(X),
    "associative_scan": lambda p: jax.lax.associative_scan(
        jax.vmap(lambda a, b: p(a, b)), PAIR[0]
    ),
    "disable_jit": lambda p: _without_jit(p),
    "a mesh": lambda p: _under_a_mesh(p),
    "jit of vmap of grad of scan": lambda p: jax.jit(
        jax.vmap(
            jax.grad(
                lambda x, v: jnp.sum(
                    jax.lax.scan(lambda x, _: (jnp.tanh(p(x, v)), None), x, length=2)[0]
                )
            )
        )
    )(*PAIR),
}


def _with_rule(p):
    @jax.custom_vjp
    def g(x):
        return jnp.sum(p(x, V))

    g.defvjp(lambda x: (g(x), x), lambda x, u: (u * p(x, V),))
    return jax.grad(g)


def _without_jit(p):
    with jax.disable_jit():
        return p(X, V)


def _under_a_mesh(p):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(mesh):
        return p(X, V), jax.jit(lambda x: p(x, V))(X)


@pytest.mark.thinned(6)
@pytest.mark.parametrize("under", UNDER.values(), ids=UNDER)
def test_it_works_under(under, hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    close(under(prepared), under(plain()))
    assert tick() == 1


@pytest.mark.thinned(8)
@pytest.mark.parametrize("under", UNDER.values(), ids=UNDER)
def test_a_prepared_gradient_works_under(under, hotk, tick):
    """As above, for an operator that takes no direction."""
    prepared = hotk.gradient.prepare(make(tick), X)
    reference = lambda x: uncached_gradient(lambda x: quartic(B, x), x)
    close(under(lambda x, v: v * prepared(x)), under(lambda x, v: v * reference(x)))
    assert tick() == 1


def test_it_can_be_asked_for_its_shape_and_its_jaxpr(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    shape = jax.eval_shape(prepared, X, V)
    assert (shape.shape, shape.dtype) == (X.shape, X.dtype)
    jaxpr = jax.make_jaxpr(prepared)(X, V)
    close(jax.core.eval_jaxpr(jaxpr.jaxpr, jaxpr.consts, X, V)[0], plain()(X, V))
    assert tick() == 1


def test_it_is_lowered_and_compiled_ahead_of_time(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    compiled = jax.jit(lambda x, v: prepared(x, v)).lower(X, V).compile()
    close(compiled(X, V), plain()(X, V))
    assert tick() == 1


# ----- As an argument


def test_it_is_an_argument_of_a_jitted_function(hotk, tick):
    @jax.jit
    def run(prepared, x, v):
        return prepared(x, v)

    first = hotk.hvp.prepare(make(tick), X, V)
    second = first.bind(make(tick, 2.0 * B))
    close(run(first, X, V), plain()(X, V))
    with compiles() as count:
        got = run(second, X, V)
    assert (count(), tick()) == (0, 1)
    close(got, plain(2.0 * B)(X, V))


def test_it_is_carried_through_a_loop(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)

    def body(carry, _):
        p, x = carry
        return (jax.tree.map(lambda b: 2.0 * b, p), jnp.tanh(p(x, V))), None

    (last, x), _ = jax.lax.scan(body, (prepared, X), length=2)
    expected = jnp.tanh(plain(2.0 * B)(jnp.tanh(plain()(X, V)), V))
    close(x, expected)
    close(last(X, V), plain(4.0 * B)(X, V))
    assert tick() == 1


def test_a_map_over_it_changes_what_it_captured(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    doubled = jax.tree.map(lambda leaf: 2.0 * leaf, prepared)
    close(doubled(X, V), 2.0 * plain()(X, V))
    close(prepared(X, V), plain()(X, V))
    assert tick() == 1


def test_a_batch_of_them_is_mapped_over(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, 2.0 * leaf]), prepared)
    got = jax.vmap(lambda p: p(X, V))(batch)
    close(got, jnp.stack([plain()(X, V), 2.0 * plain()(X, V)]))
    assert tick() == 1


@pytest.mark.exhaustive
def test_it_is_differentiated_with_respect_to_what_it_captured(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    expected = jax.grad(lambda b: jnp.sum(plain(b)(X, V) ** 2))(B)
    plainly = jax.grad(lambda p: jnp.sum(p(X, V) ** 2))(prepared)
    filtered = eqx.filter_grad(lambda p: jnp.sum(p(X, V) ** 2))(prepared)
    for gradient in (plainly, filtered):
        close(jax.tree.leaves(gradient), [expected])
    assert tick() == 1


def test_it_is_returned_by_a_jitted_function(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    returned = jax.jit(lambda p: jax.tree.map(jnp.negative, p))(prepared)
    close(returned(X, V), -plain()(X, V))
    assert tick() == 1


def test_it_is_the_leaf_of_a_module(hotk, tick):
    class Solver(eqx.Module):
        product: Any
        step: float

        def __call__(self, x):
            return x - self.step * self.product(x, V)

    solver = Solver(hotk.hvp.prepare(make(tick), X, V), 0.1)
    expected = X - 0.1 * plain()(X, V)
    close(solver(X), expected)
    close(eqx.filter_jit(solver)(X), expected)
    close(eqx.filter_vmap(solver)(jnp.stack([X, X])), jnp.stack([expected] * 2))
    assert tick() == 1


# ----- Inside another


def test_it_is_prepared_inside_another_to_depth_three(hotk, tick):
    f = make(tick)
    first = hotk.gradient.prepare(f, X)
    second = hotk.hvp.prepare(lambda x: jnp.sum(first(x) ** 2), X, V)
    third = hotk.gradient.prepare(lambda x: jnp.sum(second(x, V) ** 2), X)

    def reference(x):
        inner = lambda x: jnp.sum(jax.grad(lambda y: quartic(B, y))(x) ** 2)
        return jnp.sum(jax.jvp(jax.grad(inner), (x,), (V,))[1] ** 2)

    close(third(X), jax.grad(reference)(X), rtol=1e-9)
    twice = 2.0 * X
    with jax.no_tracing(True), compiles() as count:
        got = third(twice)
    assert (count(), tick()) == (0, 1)
    close(got, jax.grad(reference)(2.0 * X), rtol=1e-9)


def test_the_third_derivative_is_a_jvp_of_it(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    third = hotk.jvp.prepare(lambda x: prepared(x, V), X, V)
    expected = jax.jvp(lambda x: plain()(x, V), (X,), (V,))[1]
    close(third(X, V), expected)
    close(hotk.jvp(lambda x: prepared(x, V), X, V), expected)
    assert tick() == 1


def test_a_direct_call_inside_a_prepared_is_traced_once(hotk, tick):
    f = make(tick)

    def outer(x):
        return jnp.sum(hotk.gradient(f, x) ** 2)

    prepared = hotk.hvp.prepare(outer, X, V)
    reference = lambda x: jnp.sum(jax.grad(lambda y: quartic(B, y))(x) ** 2)
    for k in (1.0, 2.0, 3.0):
        close(prepared(k * X, V), uncached_hvp(reference, k * X, V))
    assert tick() == 1


@pytest.mark.exhaustive
def test_an_outer_preparation_is_never_invalidated(hotk, tick):
    f = make(tick)
    inner = hotk.hvp.prepare(f, X, V)
    outer = hotk.gradient.prepare(lambda x: jnp.sum(inner(x, V) ** 2), X)
    jitted = jax.jit(lambda x: outer(x) + inner(x, V))
    expected, jit_expected = outer(X), jitted(X)

    inner(X, V)
    inner.bind(make(tick, 2.0 * B))(X, V)
    jax.tree.map(lambda b: 3.0 * b, inner)(X, V)
    with pytest.raises(hotk.PreparationError):
        inner(X[:2], V[:2])
    with pytest.raises(hotk.PreparationError):
        outer(X[:2])
    hotk.gradient(f, X)
    hotk.hvp.prepare(f, X, V)(X, V)
    jax.vmap(inner)(*PAIR)
    jax.jvp(inner, (X, V), (V, X))
    hotk.clear_cache()
    gc.collect()
    traced = tick()

    with jax.no_tracing(True), compiles() as count:
        again, jit_again = outer(X), jitted(X)
    assert (count(), tick() - traced - 1) == (0, 0)
    close(again, expected)
    close(jit_again, jit_expected)


def test_an_inner_prepared_of_an_outer_function_may_be_exchanged(hotk, tick):
    """The inner one is captured: its arrays are leaves of the outer one."""
    inner = hotk.gradient.prepare(make(tick), X)

    def over(inner):
        return lambda x: jnp.sum(inner(x) ** 2)

    outer, twice = hotk.hvp.prepare(over(inner), X, V), 2.0 * B
    with compiles() as count:
        other = outer.bind(over(inner.bind(make(tick, twice))))
        got = other(X, V)
    assert (count(), tick()) == (0, 1)
    close(got, 4.0 * outer(X, V))


# ----- It holds the function as it was


def test_it_holds_the_function_as_it_was(hotk):
    scales, table, buffer = [2.0], {"c": jnp.ones(3)}, np.full(3, 3.0)

    def f(x):
        return scales[0] * jnp.sum(table["c"] * buffer * x**3)

    prepared = hotk.hvp.prepare(f, X, V)
    expected = 36.0 * X * V
    scales[0], table["c"] = 5.0, jnp.full(3, 7.0)
    buffer[:] = 11.0
    close(prepared(X, V), expected)
    close(jax.jit(lambda x: prepared(x, V))(X), expected)
    close(hotk.hvp(f, X, V), 6.0 * 5.0 * 7.0 * 11.0 * X * V)
    close(prepared(X, V), expected)
    close(hotk.hvp.prepare(f, X, V)(X, V), 6.0 * 5.0 * 7.0 * 11.0 * X * V)


AGAIN = {
    "jit": lambda p: jax.jit(lambda x, v: p(x, v))(X, V),
    "vmap": lambda p: jax.vmap(p)(*(a[:1] for a in PAIR))[0],
    "vmap with a name": lambda p: jax.vmap(p, axis_name="i")(*(a[:1] for a in PAIR))[0],
    "jvp": lambda p: jax.jvp(p, (X, V), (V, X))[0],
    "vjp": lambda p: jax.vjp(p, X, V)[0],
    "cleared caches": lambda p: (jax.clear_caches(), p(X, V))[1],
    "disable_jit": lambda p: _without_jit(p),
    "a mesh": lambda p: _under_a_mesh(p)[0],
    "checkpoint": lambda p: jax.checkpoint(p)(X, V),
}


class Opaque:
    """It has slots and writes: nothing can be known about it."""

    __slots__ = ("log", "scale")

    def __call__(self, x):
        self.log.append(0)
        return self.scale * jnp.sum(x**3)


@pytest.mark.thinned(9)
@pytest.mark.parametrize("kind", ["walked", "opaque"])
@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
def test_it_holds_the_function_as_it_was_if_jax_traces_it_again(again, kind, hotk):
    state = {"scale": 2.0}
    opaque = Opaque()
    opaque.scale, opaque.log = 2.0, []
    f = opaque if kind == "opaque" else lambda x: state["scale"] * jnp.sum(x**3)
    prepared = hotk.hvp.prepare(f, X, V)
    state["scale"] = opaque.scale = 5.0
    close(again(prepared), 12.0 * X * V)


@pytest.mark.exhaustive
def test_it_keeps_working_when_the_function_is_gone(hotk, tick):
    def scoped():
        b = jnp.array([1.0, 2.0, 3.0])
        return hotk.hvp.prepare(make(tick, b), X, V)

    prepared = scoped()
    gc.collect()
    hotk.clear_cache()
    close(prepared(X, V), plain()(X, V))
    close(jax.jit(lambda x: prepared(x, V))(X), plain()(X, V))
    assert tick() == 1


# ----- Other arrays for the same program


def test_bind_gives_it_other_captured_arrays(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    prepared(X, V)  # JAX calls the first look into its own cache a trace
    arrays = (jnp.ones(3), jnp.zeros(3), B)
    with jax.no_tracing(True), compiles() as count:
        others = [prepared.bind(make(tick, b)) for b in arrays]
        got = [other(X, V) for other in others]
        kept = prepared(X, V)
    assert (count(), tick()) == (0, 1)
    for result, b in zip(got, arrays, strict=True):
        close(result, plain(b)(X, V))
    close(kept, plain()(X, V))
    assert all(isinstance(other, hotk.Prepared) for other in others)
    assert all(other.signature == prepared.signature for other in others)


def test_bind_works_with_tracers(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    bound = lambda b: prepared.bind(make(tick, b))(X, V)
    close(jax.jit(bound)(2.0 * B), plain(2.0 * B)(X, V))
    close(
        jax.vmap(bound)(jnp.stack([B, 2.0 * B])),
        jax.vmap(lambda b: plain(b)(X, V))(jnp.stack([B, 2.0 * B])),
    )
    close(jax.jacfwd(bound)(B), jax.jacfwd(lambda b: plain(b)(X, V))(B))
    assert tick() == 1


def test_bind_refuses_another_function(hotk, tick):
    prepared = hotk.hvp.prepare(make(tick), X, V)
    others = [
        lambda x: jnp.sum(x**3),
        make(itertools.count().__next__),
        make(tick, jnp.ones(4)),
        make(tick, jnp.ones(3, jnp.float32)),
        make(tick, 2.0),
        make(tick, (B,)),
    ]
    for other in others:
        with pytest.raises(hotk.PreparationError, match="✗"):
            prepared.bind(other)
    close(prepared.bind(make(tick, 2.0 * B))(X, V), plain(2.0 * B)(X, V))


def closure_over(table, power=3):
    def inner(x):
        return jnp.sum(x**power)

    return lambda x: inner(x) * len(table)


def test_bind_says_what_differs(hotk):
    def refusal(f, g):
        with pytest.raises(hotk.PreparationError) as caught:
            hotk.gradient.prepare(f, X).bind(g)
        crossed = [line for line in str(caught.value).splitlines() if "✗" in line]
        return "\n".join(crossed)

    two = closure_over({"a": 1, "b": 2})
    assert "cell `table`: prepared 2 attributes or entries, called 3" in refusal(
        two, closure_over({"a": 1, "b": 2, "c": 3})
    )
    assert "prepared 2, called 4" in refusal(two, closure_over({"a": 1, "b": 4}))
    assert "cell `power`: prepared 3, called 4" in refusal(
        two, closure_over({"a": 1, "b": 2}, 4)
    )
    first = lambda x: jnp.sum(x**3)
    second = lambda x: jnp.sum(jnp.sin(x))
    line = first.__code__.co_firstlineno
    name = "test_fixed_before_traced.py"
    text = refusal(first, second)
    assert f"({name}:{line}), called function <lambda> ({name}:{line + 1})" in text
    same = (lambda x: jnp.sum(x**3), lambda x: jnp.sum(x**2))
    assert "(None, 3), called" in refusal(*same)
    assert refusal(*same).endswith("(None, 2)")
    assert "called sum" in refusal(first, jnp.sum)


def test_bind_to_an_opaque_function_says_why(hotk):
    held = hotk.gradient.prepare(lambda x: jnp.sum(x**3), X)
    numbers = iter([2.0])
    with pytest.raises(hotk.PreparationError, match=r"\.py:\d+\), opaque: "):
        held.bind(lambda x: next(numbers) * jnp.sum(x**3))


# ----- Prepared while something is traced


def test_it_may_be_prepared_inside_a_trace(hotk, tick):
    @jax.jit
    def run(b, x):
        prepared = hotk.hvp.prepare(make(tick, b), x, V)
        return prepared(x, V) + prepared(2.0 * x, V)

    close(run(B, X), plain()(X, V) + plain()(2.0 * X, V))
    assert tick() == 1


OTHERS = ".*derivative|.*divergence|cross_"


def test_all_operators_prepare(hotk, tick):
    f = make(tick)
    points = {"x": X, "v": V, "u": jnp.ones(())}
    operators = {
        name: operator
        for folder in (hotk._first, hotk._second)
        for name, operator in vars(folder).items()
        # Those take one number, two arguments, or a vector field.
        if hasattr(operator, "prepare") and not re.match(OTHERS, name)
    }
    assert len(operators) >= 14
    for name, operator in operators.items():
        parameters = inspect.signature(operator).parameters
        arguments = [points[letter] for letter in parameters if letter in points]
        doubled = [2.0 * a for a in arguments]
        prepared = operator.prepare(f, *arguments)
        with compiles() as count:
            got = prepared(*arguments)
            again = prepared(*doubled)
        assert count() == 0, name
        close(got, operator(f, *arguments))
        close(again, operator(f, *doubled))
    assert tick() == 1


def test_constants_are_arguments_of_the_prepared(hotk, tick):
    def f(x, c, table):
        tick()
        return c * table["n"] * jnp.sum(table["a"] * x**3)

    prepared = hotk.hvp.prepare(f, X, V, 2.0, {"a": B, "n": 3.0})
    prepared(X, V, 2.0, {"a": B, "n": 3.0})
    doubled = 2.0 * B
    with jax.no_tracing(True), compiles() as count:
        got = prepared(X, V, 5.0, {"a": doubled, "n": 7.0})
    assert (count(), tick()) == (0, 1)
    close(got, 6.0 * 5.0 * 7.0 * doubled * X * V)


# ----- On many devices


def test_it_works_under_shard_map():
    """In a process of its own: the number of devices is fixed at the start.

    For the types that `shard_map` gives with `check_vma` a program is traced anew, of
    the function as it was held, as `jax.jit` does with its own.
    """
    code = """
        import itertools
        import jax, jax.numpy as jnp
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        jax.config.update("jax_enable_x64", True)
        import hotk

        assert jax.device_count() == 8
        tick = itertools.count().__next__
        mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
        b = jnp.arange(1.0, 4.0)
        x = jnp.linspace(-1.0, 1.0, 24).reshape(8, 3)
        v = jnp.cos(x)

        def f(x):
            tick()
            return jnp.sum(b * jnp.sin(x) ** 4)

        b0 = b
        g = jax.grad(lambda x: jnp.sum(b0 * jnp.sin(x) ** 4))
        plain = lambda x, v: jax.jvp(g, (x,), (v,))[1]
        prepared = hotk.hvp.prepare(f, x[:1], v[:1])
        b = 7.0 * b  # not seen: the function is held as it was
        for check in (False, True):
            assert not check or tick() == 1, "traced again"
            run = jax.shard_map(
                lambda x, v: prepared(x, v), mesh=mesh,
                in_specs=(P("d"), P("d")), out_specs=P("d"), check_vma=check,
            )
            for call in (run, jax.jit(run)):
                assert jnp.allclose(call(x, v), plain(x, v), atol=1e-12), check
            mapped = jax.jit(jax.grad(lambda x, v: jnp.sum(run(x, v) ** 2)))
            expected = jax.grad(lambda x, v: jnp.sum(plain(x, v) ** 2))(x, v)
            assert jnp.allclose(mapped(x, v), expected, atol=1e-12), check
        replicated = jax.shard_map(
            lambda x, v: jax.lax.pmean(prepared(x, v), "d"), mesh=mesh,
            in_specs=(P(), P()), out_specs=P(),
        )
        assert jnp.allclose(replicated(x[:1], v[:1]), plain(x[:1], v[:1]), atol=1e-12)

        as_argument = jax.jit(lambda p, x, v: jax.shard_map(
            lambda p, x, v: p(x, v), mesh=mesh,
            in_specs=(P(), P("d"), P("d")), out_specs=P("d"),
        )(p, x, v))
        assert jnp.allclose(as_argument(prepared, x, v), plain(x, v), atol=1e-12)
        b = b0

        on_mesh = NamedSharding(mesh, P("d"))
        xs, vs = jax.device_put((x, v), on_mesh)
        sharded = hotk.hvp.prepare(f, xs, vs)
        out = sharded(xs, vs)
        assert out.sharding.is_equivalent_to(on_mesh, 2), out.sharding
        assert jnp.allclose(out, plain(x, v), atol=1e-12)
        out = jax.jit(lambda x, v: sharded(x, v))(xs, vs)
        assert out.sharding.is_equivalent_to(on_mesh, 2), out.sharding
        print("fine")
    """
    run_on_eight_devices(code)
