"""Every operator on every case: direct, prepared on zeros, twice, jitted, mapped."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.cases import (
    CASES,
    MODIFIERS,
    OPERATORS,
    SCENARIOS,
    arr_to_num_outer_product,
    fourth_power,
    mat_to_mat,
    num_to_num,
    num_to_vec,
    rosenbrock,
    stale_state_as_argument,
    vec_to_vec,
)
from tests.helpers import close


def each_pair(cases, operators=OPERATORS):
    """Run a test for each case and each operator whose result the case knows."""
    pairs = [(make, name) for make in cases for name in operators]
    pairs = [(make, name) for make, name in pairs if name in make.operators]
    return pytest.mark.parametrize(
        ("make", "name"), pairs, ids=[f"{make.__name__}-{name}" for make, name in pairs]
    )


# --- direct and prepared -------------------------------------------------------------


@pytest.mark.thinned(14, "name")
@each_pair(CASES)
def test_direct_and_prepared_on_zeros_each_is_right_twice(make, name):
    case, operator = make(), getattr(hotk, name)
    prepared = operator.prepare(case.f, *case.inputs_before(name))
    for _ in range(2):
        close(prepared(*case.inputs(name)), getattr(case, name))
        close(operator(case.f, *case.inputs(name)), getattr(case, name))


@pytest.mark.thinned(8, "name")
@pytest.mark.parametrize("modify", MODIFIERS, ids=lambda modify: modify.__name__)
@each_pair([num_to_num, num_to_vec, arr_to_num_outer_product, vec_to_vec, mat_to_mat])
def test_a_modified_function_is_right_directly_and_prepared(make, name, modify):
    case, operator = modify(make()), getattr(hotk, name)
    prepared = operator.prepare(case.f, *case.inputs_before(name))
    for _ in range(2):
        close(prepared(*case.inputs(name)), getattr(case, name))
        close(operator(case.f, *case.inputs(name)), getattr(case, name))


# --- under transformations -----------------------------------------------------------


def numbers_of(inputs):
    """Split arguments into arrays and the rest; Python numbers become arrays."""
    moving, fixed = eqx.partition(inputs, eqx.is_inexact_array_like)
    return jax.tree.map(jnp.asarray, moving), fixed


def called(operator, f, fixed, moving):
    return operator(f, *eqx.combine(moving, fixed))


@pytest.mark.thinned(10, "name")
@each_pair(CASES, ["jvp", "vjp", "hvp", "second_derivative"])
def test_jit_changes_nothing(make, name):
    case = make()
    moving, fixed = numbers_of(case.inputs(name))
    operator = functools.partial(called, getattr(hotk, name), case.f, fixed)
    close(jax.jit(operator)(moving), getattr(case, name))


@pytest.mark.thinned(5)
@each_pair(SCENARIOS)
def test_vmap_is_a_loop_directly_and_prepared(make, name):
    case, operator = make(), getattr(hotk, name)
    prepared = operator.prepare(case.f, *case.inputs_before(name))
    inputs = case.inputs(name)
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), inputs)
    expected = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), getattr(case, name))
    close(jax.vmap(prepared)(*stacked), expected)
    close(jax.vmap(functools.partial(operator, case.f))(*stacked), expected)


@pytest.mark.thinned(6)
@each_pair(SCENARIOS)
def test_a_prepared_under_jit_is_right(make, name):
    case, operator = make(), getattr(hotk, name)
    prepared = operator.prepare(case.f, *case.inputs_before(name))
    close(jax.jit(prepared)(*case.inputs(name)), getattr(case, name))


# --- what a preparation refuses ------------------------------------------------------


@pytest.mark.thinned(8)
@each_pair([arr_to_num_outer_product, vec_to_vec])
@pytest.mark.parametrize("on_mismatch", ["raise", "retrace"])
def test_prepared_for_a_smaller_point(make, name, on_mismatch):
    case, operator = make(), getattr(hotk, name)
    inputs = case.inputs(name)
    smaller = [leaf[: leaf.size // 2] if leaf.ndim else leaf for leaf in inputs]
    prepared = operator.prepare(case.f, *smaller, on_mismatch=on_mismatch)
    if on_mismatch == "raise":
        with pytest.raises(hotk.PreparationError):
            prepared(*inputs)
    else:
        close(prepared(*inputs), getattr(case, name))


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize(
    "change",
    [
        lambda x, v, a: (x[:2], v[:2], a),
        lambda x, v, a: (x, v[:2], a),
        lambda x, v, a: (x[None], v[None], a),
        lambda x, v, a: (x.astype(jnp.float32), v.astype(jnp.float32), a),
        lambda x, v, a: (x, v, a[:2]),
        lambda x, v, a: (x, v, (a,)),
        lambda x, v, a: (x, v, a.astype(jnp.float32)),
        lambda x, v, a: (x, v),
        lambda x, v, a: (x, v, a, a),
        lambda x, v, a: ((x,), (v,), a),
    ],
    ids=[
        "size",
        "size of v",
        "rank",
        "dtype",
        "size of an argument",
        "structure of an argument",
        "dtype of an argument",
        "one argument less",
        "one argument more",
        "structure",
    ],
)
def test_a_mismatch_raises(change):
    case = stale_state_as_argument()
    prepared = hotk.hvp.prepare(case.f, *case.inputs_before("hvp"))
    with pytest.raises(hotk.PreparationError):
        prepared(*change(*case.inputs("hvp")))
    close(prepared(*case.inputs("hvp")), case.hvp)


@pytest.mark.usefixtures("as_user")
def test_another_function_does_not_bind():
    prepared = hotk.hvp.prepare(rosenbrock().f, *rosenbrock().inputs("hvp"))
    with pytest.raises(hotk.PreparationError):
        prepared.bind(lambda x: jnp.sum(x**4))


def test_single_precision_stays_single():
    case = rosenbrock()
    x, v = case.x.astype(jnp.float32), case.v.astype(jnp.float32)
    got = hotk.value_gradient_and_hvp(case.f, x, v)
    expected = case.value, case.gradient, case.hvp
    single = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), expected)
    close(got, single, rtol=1e-5)


def test_one_preparation_serves_two_points_in_turn():
    case = fourth_power()
    prepared = hotk.second_derivative.prepare(case.f, 1.0)
    got = [float(prepared(x)) for x in (2.0, 3.0, 2.0, 3.0)]
    assert got == [48.0, 108.0, 48.0, 108.0]
