"""Members of enumerations print as their text."""

import jax
import pytest

from hotk.linop import Method, Reason
from hotk.optim import LinearSolver, Outcome, Stop


@pytest.mark.parametrize(
    ("enumeration", "name", "text"),
    [
        (Stop, "converged", "the gradient is below the tolerance"),
        (Outcome, "accepted", "the step was taken"),
        (LinearSolver, "dense", "from the whole matrix"),
        (Reason, "converged", "the residual is below the tolerance"),
        (Method, "cg", "conjugate gradients"),
    ],
)
def test_a_member_prints_as_its_text(enumeration, name, text):
    member = getattr(enumeration, name)
    others = [getattr(enumeration, other) for other in enumeration._name_to_item]
    choose = jax.jit(lambda p: enumeration.where(p, member, others[-1]))
    assert str(member) == str(choose(True)) == f"{member}" == text
    assert enumeration[member] == text
