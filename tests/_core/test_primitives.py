"""The table of primitives knows the installed JAX, and the rules know the table."""

import collections
import types

import jax
import jax.numpy as jnp
import pytest

from hotk._core import TRAITS, ProgramKind, _by_numpy, _primitives, _programs, traits_of
from hotk._core._canonical import OPEN
from hotk._mode.series import _control, _elementary, _rules
from tests.counting import primitives_of_jax


HOW_TO_MEND = (
    "Add each to the row of hotk/_core/_primitives.py whose traits it has, or to one "
    "without traits if you are not sure: then JAX's own rule serves it."
)
# Tables of functions, each of which serves one primitive.
BY_NUMPY = {
    name: table
    for name, table in vars(_by_numpy).items()
    if name.isupper() and isinstance(table, dict)
}


def test_every_primitive_of_jax_has_a_row():
    missing = sorted(primitives_of_jax() - TRAITS.keys())
    assert not missing, f"JAX {jax.__version__} has {', '.join(missing)}. {HOW_TO_MEND}"


def test_no_primitive_has_two_rows():
    names = [name for _, row in _primitives._ROWS for name in row.split()]
    twice = [name for name, count in collections.Counter(names).items() if count > 1]
    assert not twice


@pytest.mark.parametrize(
    "table",
    [*BY_NUMPY.values(), _rules.RULES],
    ids=[*BY_NUMPY, "RULES"],
)
def test_a_rule_is_for_a_primitive_with_a_row(table):
    # known by their name, where they have a rule
    functions_of_jax = {*_programs._OWN_FUNCTIONS.values()}
    assert table.keys() - functions_of_jax <= TRAITS.keys()


def test_numpy_moves_what_only_moves_numbers():
    moves = {name for name, traits in TRAITS.items() if traits.moves}
    assert _by_numpy.MOVES.keys() == moves


def test_an_elementary_function_has_one_number_or_a_quotient():
    for name in _elementary.ELEMENTARY.keys() - {"slogdet", "div"}:
        assert TRAITS[name].univariate, name


def test_series_go_into_every_program_but_of_functions_with_rules():
    # a call is its program, whatever its operands are
    assert {*_control.STRUCTURAL} == {*ProgramKind} - {
        ProgramKind.RULED,
        ProgramKind.CALL,
    }
    assert {*ProgramKind} - {ProgramKind.RULED, ProgramKind.SOLVE} == OPEN


def test_an_unknown_primitive_has_no_traits():
    primitive = types.SimpleNamespace(name="of_a_later_jax")
    assert not any(traits_of(types.SimpleNamespace(primitive=primitive)))


def test_what_is_constant_in_pieces_is_nothing_else():
    for name, traits in TRAITS.items():
        if traits.constant:
            assert traits.linear is None, name
            assert not traits.bilinear, name
            assert not traits.univariate, name


SAMPLE = jnp.array([0.25, 0.5, 0.75])
UNIVARIATE = sorted(n for n, t in TRAITS.items() if t.univariate)


@pytest.mark.parametrize("name", UNIVARIATE)
def test_a_function_of_one_number_has_a_diagonal_derivative(name):
    if not hasattr(jax.lax, name):
        pytest.skip("this JAX has no such function")
    function = getattr(jax.lax, name)
    whole = (lambda x: function(x, 3)) if name == "integer_pow" else function
    x = SAMPLE + 1 if name == "acosh" else SAMPLE
    jacobian = jax.jacobian(whole)(x)
    assert jnp.array_equal(jacobian, jnp.diag(jnp.diag(jacobian)))
