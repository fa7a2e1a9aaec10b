"""Nothing is compiled or traced twice for the same program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles, traces
from tests.helpers import close


pytestmark = pytest.mark.usefixtures("as_user")

X = jnp.arange(1.0, 6.0)
B = jnp.array([1.0, -2.0, 0.5, 3.0, 1.0])
POINTS = [X + i for i in range(5)]
DATA = [jnp.linspace(1.0, 2.0 + i, 5) for i in range(4)]
VECTORS = jnp.stack([X, B, X + B])
PRECONDITIONERS = [hotk.Diagonal(1 / (1 + d)) for d in DATA]


def fresh(data):
    return hotk.HessianOperator(lambda x: jnp.sum(data * x**4) + jnp.sum(x) ** 2, X)


QUESTIONS = {
    "product": lambda H: H @ B,
    "many": lambda H: H.many(VECTORS),
    "many in blocks": lambda H: H.many(VECTORS, 2),
    "value": lambda H: H.value,
    "gradient": lambda H: H.gradient,
    "quadratic form": lambda H: H.quadratic_form(B),
    "matrix": lambda H: H.matrix(),
    "block": lambda H: H.block("", ""),
    "diagonal": lambda H: H.diagonal(),
    "solve": lambda H: H.solve(B),
    "batched solve": lambda H: H.solve(VECTORS, batched=True),
    "minres": lambda H: hotk.linop.minres(H, B, x0=X),
    "steihaug": lambda H: hotk.linop.steihaug(H, B, 1.0),
    "eigh": lambda H: H.eigh(2),
    "cholesky": lambda H: H.cholesky(1.0),
    "inertia": lambda H: (H.value, H.inertia()),
    "damped": lambda H: (H + 0.5 * hotk.Identity()).solve(B),
    "elsewhere": lambda H: H.at(B).matrix(),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_a_fresh_closure_over_new_data_compiles_nothing(ask):
    answers = [np.asarray(jax.tree.leaves(ask(fresh(DATA[0])))[0])]
    operators = [fresh(data) for data in DATA[1:]]
    with compiles() as compiled, traces() as traced:
        answers += [np.asarray(jax.tree.leaves(ask(H))[0]) for H in operators]
    assert compiled() == 0
    assert traced() == 0
    assert not any((answers[0] == other).all() for other in answers[1:])


def test_making_an_operator_of_known_code_traces_nothing():
    fresh(DATA[0])
    with compiles() as compiled, traces() as traced:
        fresh(DATA[1])
    assert compiled() == 0
    assert traced() == 0


@pytest.mark.thinned(2)
@pytest.mark.parametrize("ask", QUESTIONS.values(), ids=QUESTIONS)
def test_five_points_cost_one_compilation_at_most(ask):
    H = fresh(DATA[0])
    ask(H)
    with compiles() as compiled, traces() as traced:
        for x in POINTS:
            ask(H.at(x))
    assert compiled() == 0
    assert traced() == 0


def test_products_at_five_points_are_right():
    H = hotk.HessianOperator(lambda x: jnp.sum(x**3), X)
    for x in POINTS:
        np.testing.assert_allclose(H.at(x) @ B, 6 * x * B)


CHANGES = {
    "tolerance of solve": lambda H, i: H.solve(B, tol=10.0 ** -(i + 3)),
    "tolerance of batches": lambda H, i: H.solve(
        VECTORS, batched=True, tol=10.0 ** -(i + 3)
    ),
    "tolerance of eigh": lambda H, i: H.eigh(2, tol=10.0 ** -(i + 3)),
    "restarts": lambda H, i: H.eigh(2, max_restarts=i + 1),
    "steps": lambda H, i: hotk.linop.cg(H, B, max_steps=i + 1),
    "factor": lambda H, i: (0.1 * (i + 1) * H) @ B,
    "whole and broken factor": lambda H, i: (i * H if i % 2 else 0.5 * i * H) @ B,
    "divisor": lambda H, i: (H / (i + 1)).solve(B),
    "damping": lambda H, i: (H + 10.0**i * hotk.Identity()).solve(B),
    "damping of cholesky": lambda H, i: H.cholesky(10.0**i),
    "radius": lambda H, i: hotk.linop.steihaug(H, B, 0.5 + i),
    "preconditioner": lambda H, i: H.solve(B, preconditioner=PRECONDITIONERS[i]),
    "right-hand side": lambda H, i: H.solve(POINTS[i]),
    "start": lambda H, i: H.solve(B, x0=POINTS[i]),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("ask", CHANGES.values(), ids=CHANGES)
def test_a_number_that_varies_compiles_nothing(ask):
    H = fresh(DATA[0])
    ask(H, 0)
    with compiles() as compiled, traces() as traced:
        for i in (1, 2, 3):
            ask(H, i)
    assert compiled() == 0
    assert traced() == 0


@pytest.mark.thinned(1)
@pytest.mark.parametrize("ask", ["solve", "eigh", "minres"])
def test_a_captured_number_that_varies_compiles_at_most_twice(ask):
    compiled, data = [], DATA[1]
    with_numbers = lambda power, damping: hotk.HessianOperator(
        lambda x: jnp.sum(data * x**2) + damping * jnp.sum(x**2) * power, X
    )
    for power, damping in [(1, 0.5), (1, 0.25), (1, 3.0), (1, 4.0), (2, 7.0)]:
        with compiles() as count:
            H = with_numbers(power, damping)
            answer = QUESTIONS[ask](H)
        compiled.append(count())
        diagonal = 2 * np.asarray(data) + 2 * damping * power
        expected = np.sort(diagonal)[-2:] if ask == "eigh" else np.asarray(B) / diagonal
        got = np.sort(answer.values) if ask == "eigh" else answer.x
        assert np.allclose(got, expected, rtol=1e-4)
    assert compiled[2:4] == [0, 0]
    # In another program another number differs, and the name of the function is kept.
    assert "<lambda>" in H.f.skeleton.name


def test_an_operator_of_other_numbers_is_made_without_a_trace():
    data, other = jnp.ones(5), 3 * jnp.ones(5)
    make = lambda scale: hotk.HessianOperator(lambda x: jnp.sum(data * scale * x**4), X)
    for scale in (1.0, 2.0):
        make(scale) @ B
    data = other
    with traces() as traced:
        products = [make(scale) @ B for scale in (1.0, 2.0)]
    assert traced() == 0
    for scale, product in zip((1.0, 2.0), products, strict=True):
        assert close(product, 12 * scale * 3 * X**2 * B)


def test_functions_of_other_numbers_at_points_of_other_types():
    """The program that they share has the types of its arguments in it."""
    make = lambda unit, x: hotk.HessianOperator(lambda x: jnp.sum((x / unit) ** 3), x)
    for unit in (1.0, 2.0, 2.0):
        for dtype in ("float64", "float32"):
            x = jnp.arange(1.0, 4.0, dtype=dtype)
            product = make(unit, x) @ x
            assert product.dtype == dtype
            assert np.allclose(product, 6 * np.asarray(x) ** 2 / unit**3, rtol=1e-6)


def test_python_numbers_as_points_compile_nothing():
    H = hotk.HessianOperator(lambda x, c: c * x**3, 2.0, 1.0)
    H.matrix()
    with compiles() as compiled:
        assert H.at(3.0, 2.0).matrix().item() == 36.0
        assert H.at(4, 2).matrix().item() == 48.0
    assert compiled() == 0
