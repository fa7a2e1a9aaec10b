"""Operators in other processes: functions by their names, arrays by value."""

import os
import pickle
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close
from tests.reliability import pickled_functions
from tests.reliability.pickled_functions import OPERATORS, X


pytestmark = pytest.mark.usefixtures("as_user")


@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_that_was_pickled_is_the_same(name):
    H = OPERATORS[name]()
    again = pickle.loads(pickle.dumps(H))
    assert type(again) is type(H)
    assert again.index == H.index
    v = jax.tree.map(jnp.ones_like, H.like)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, again @ v, H @ v))
    assert close(again.matrix(), H.matrix())


def test_what_it_captured_is_what_it_was(monkeypatch):
    H = OPERATORS["function"]()
    expected = H.matrix()
    data = pickle.dumps(H)
    monkeypatch.setattr(pickled_functions, "SCALE", jnp.array([7.0, 8.0, 9.0]))
    assert close(pickle.loads(data).matrix(), expected)
    monkeypatch.setattr(pickled_functions, "SCALE", jnp.ones(()))
    with pytest.raises(hotk.StructureError, match="captures other arrays"):
        pickle.loads(data)


def test_a_function_that_computes_something_else_is_refused(monkeypatch):
    data = pickle.dumps(OPERATORS["function"]())
    monkeypatch.setattr(pickled_functions, "POWER", 3.0)
    with pytest.raises(hotk.StructureError, match=r"3\.0.*where it had .*4\.0"):
        pickle.loads(data)


def in_another_process(code, *paths, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, paths)],
        env=os.environ | {"JAX_ENABLE_X64": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.stdout.strip() + done.stderr[-3000:]


LOAD = """
    import pickle, sys
    import numpy as np

    with open(sys.argv[1], "rb") as file:
        loaded = pickle.load(file)
    for name, data, matrix in loaded:
        H = pickle.loads(data)
        np.testing.assert_allclose(H.matrix(), matrix, rtol=1e-12, atol=1e-12)
    print("fine")
"""


@pytest.mark.exhaustive
def test_another_process_computes_the_same(tmp_path):
    operators = {name: OPERATORS[name]() for name in OPERATORS}
    path = tmp_path / "operators"
    with path.open("wb") as file:
        rows = [
            (name, pickle.dumps(H), np.asarray(H.matrix()))
            for name, H in operators.items()
        ]
        pickle.dump(rows, file)
    # The tests promote strictly, which is a setting of the program.
    strict = {"JAX_NUMPY_DTYPE_PROMOTION": "strict"}
    assert in_another_process(LOAD, path, **strict) == "fine"
    said = in_another_process(LOAD, path, TEST_POWER="3", **strict)
    assert "the function has changed since the operator was pickled" in said


REFUSED = {
    "lambda": lambda: hotk.HessianOperator(lambda x: jnp.sum(x["a"] ** 2), X),
    "opaque": lambda: hotk.HessianOperator(pickled_functions.branching, X),
    "remade": lambda: hotk.HessianOperator(jax.checkpoint(pickled_functions.plain), X),
}
SAYS = {"lambda": "<lambda>", "opaque": "hotk.explain", "remade": "plain"}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pickle_does_not_find_says_what_to_write(name):
    with pytest.raises(TypeError, match="at the top of a module") as error:
        pickle.dumps(REFUSED[name]())
    assert SAYS[name] in str(error.value)


def test_an_operator_over_batches_says_what_to_send():
    loss = lambda x, rows: jnp.mean((rows @ x["a"]) ** 2)
    H = hotk.HessianOperator.over(loss, X, [jnp.ones((2, 3))])
    with pytest.raises(TypeError, match="Send `x`"):
        pickle.dumps(H)


def test_tables_of_an_operator_are_equal_by_value():
    H, other = OPERATORS["function"](), OPERATORS["where"]()
    assert pickle.loads(pickle.dumps(H.index)) == H.index
    assert hash(H.at(X).index) == hash(H.index)
    assert H.index != other.index
