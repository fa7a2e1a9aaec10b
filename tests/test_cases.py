"""The known answers are right: JAX alone finds them too."""

import jax
import pytest

from tests import reference
from tests.cases import CASES, MODIFIERS, OPERATORS, SCENARIOS
from tests.helpers import close


each_case = pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)


@each_case
def test_a_case_knows_what_it_says_it_knows(make):
    case = make()
    assert {name for name in OPERATORS if getattr(case, name) is not None} == set(
        make.operators
    )
    assert case.value is not None


@pytest.mark.thinned(3)
@each_case
def test_known_answers_are_those_of_jax(make):
    case = make()

    @jax.jit
    def answers(x, v):
        v = {"jvp": (v,), "hvp": (v,), "quadratic_form": (v,), "vjp": (case.u,)}
        return {
            name: getattr(reference, name)(f, x, *v.get(name, ()))
            for name in make.operators
        } | {"value": f(x)}

    f, x = reference.differentiable_part(case.f, case.x, case.args)
    _, v = reference.differentiable_part(case.f, case.v)
    got = answers(x, v)
    for name in got:
        close(got[name], getattr(case, name))


@pytest.mark.thinned(10)
@pytest.mark.parametrize("modify", MODIFIERS, ids=lambda modify: modify.__name__)
@pytest.mark.parametrize("make", SCENARIOS, ids=lambda make: make.__name__)
def test_a_modified_case_has_the_value_it_says(make, modify):
    case = modify(make())
    close(case.f(case.x, *case.args), case.value)
    before = case.inputs_before("value")
    assert jax.tree.structure(before) == jax.tree.structure(case.inputs("value"))
