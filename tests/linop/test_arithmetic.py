"""Sums, multiples and products of operators."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


X, V = np.array([0.5, -1.0, 2.0]), np.array([1.0, 0.5, -2.0])
D = np.array([1.0, 3.0, -2.0])
H = hotk.HessianOperator(lambda x: jnp.sum(x**4) + jnp.sum(x) ** 2, X)
G = hotk.HessianOperator(lambda x: jnp.prod(x), X)
A = np.diag(12 * X**2) + 2.0
B = np.array([[0, X[2], X[1]], [X[2], 0, X[0]], [X[1], X[0], 0]])
EYE, DIAGONAL = hotk.Identity(), hotk.Diagonal(D)

EXPRESSIONS = {
    "sum": (H + G, A + B),
    "difference": (H - G, A - B),
    "negative": (-H, -A),
    "multiple": (0.1 * H, 0.1 * A),
    "multiple from the right": (H * 3, 3 * A),
    "quotient": (H / 4, A / 4),
    "damped": (H + 0.1 * EYE, A + 0.1 * np.eye(3)),
    "identity first": (0.1 * EYE + H, A + 0.1 * np.eye(3)),
    "minus identity": (EYE - H, np.eye(3) - A),
    "diagonal": (DIAGONAL, np.diag(D)),
    "plus diagonal": (H + DIAGONAL, A + np.diag(D)),
    "product": (H @ G, A @ B),
    "product of three": (H @ G @ DIAGONAL, A @ B @ np.diag(D)),
    "product with identity": (2 * EYE @ H, 2 * A),
    "of expressions": ((H - 2 * G) @ (G / 2 + EYE), (A - 2 * B) @ (B / 2 + np.eye(3))),
    "square": (G @ G - H, B @ B - A),
}


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("operator", "matrix"), EXPRESSIONS.values(), ids=list(EXPRESSIONS)
)
def test_an_expression_is_that_of_the_matrices(operator, matrix):
    close(operator @ V, matrix @ V)
    close(operator.matrix(), matrix)
    close(operator.diagonal(), np.diag(matrix))
    close(operator.quadratic_form(V), V @ matrix @ V)
    close(operator.many(jnp.asarray([V, X])), np.stack([V, X]) @ matrix.T)


FACTORS = {
    "float": 2.5,
    "int": 2,
    "bool": True,
    "NumPy's number": np.float64(2.5),
    "NumPy's float32": np.float32(2.5),
    "NumPy's array": np.array(2.5),
    "array": jnp.array(2.5),
    "array of integers": jnp.array(2),
}


@pytest.mark.parametrize("c", FACTORS.values(), ids=FACTORS)
def test_a_factor_is_any_real_number(c):
    for made in (c * H, H * c):
        assert isinstance(made, hotk.linop.AbstractOperator)
        close(made @ V, float(c) * A @ V)
    close((H / c) @ V, A @ V / float(c))


@pytest.mark.usefixtures("as_user")
def test_a_factor_that_is_no_real_number_is_refused():
    for c in (1j, np.array(1j), jnp.ones(3), np.ones(3), "2", None, [1.0]):
        with pytest.raises(TypeError):
            c * H
        with pytest.raises(TypeError):
            H * c
    for other in (1.0, V, None):
        with pytest.raises(TypeError):
            H + other
        with pytest.raises(TypeError):
            H - other


@pytest.mark.parametrize("number", [0.1, np.ones(3), jnp.ones(3)])
def test_a_number_is_no_term_of_a_sum(number):
    with pytest.raises(TypeError, match=r"hotk\.Identity\(\)"):
        H + number
    with pytest.raises(TypeError, match=r"A - hotk\.Diagonal\(d\)"):
        H - number


def test_a_factor_is_differentiated_and_mapped_over():
    slope = jax.grad(lambda c: jnp.sum((c * H + c**2 * EYE) @ V))(0.5)
    close(slope, np.sum(A @ V + V))
    got = jax.vmap(lambda c: (c * H).matrix())(jnp.array([1.0, 2.0]))
    close(got, np.stack([A, 2 * A]))
    entries = jax.grad(lambda d: hotk.Diagonal(d).quadratic_form(V))(D)
    close(entries, V**2)


@pytest.mark.usefixtures("as_user")
def test_a_product_is_not_known_to_be_symmetric_and_solvers_refuse_it():
    product = H @ G
    assert not product.symmetric
    for solver in (hotk.linop.cg, hotk.linop.minres, hotk.linop.solve):
        with pytest.raises(TypeError, match="symmetric"):
            solver(product, V)
    with pytest.raises(TypeError, match="symmetric"):
        hotk.linop.steihaug(product, V, 1.0)
    with pytest.raises(TypeError, match="symmetric"):
        product.eigh(1)


def test_what_is_symmetric_is_known():
    symmetric = [H, -H, 2 * H, H + G, DIAGONAL, EYE, EYE @ H, H @ (2 * EYE), EYE @ EYE]
    symmetric += [H @ H, H @ G @ H, -(H @ DIAGONAL @ H)]
    assert all(operator.symmetric for operator in symmetric)
    assert not any(
        o.symmetric for o in (H @ G @ G, 2 * (H @ G), H + H @ G, H @ DIAGONAL)
    )


@pytest.mark.usefixtures("as_user")
def test_operators_of_different_spaces_do_not_meet():
    shape = hotk.Diagonal(np.ones(4))
    structure = hotk.Diagonal({"a": np.ones(3)})
    dtype = hotk.Diagonal(np.ones(3, np.float32))
    for other in (shape, structure, dtype):
        for make in (
            lambda o: H + o,
            lambda o: H - o,
            lambda o: H @ o,
            lambda o: o @ H,
        ):
            with pytest.raises(hotk.StructureError, match="different spaces") as error:
                make(other)
            assert str(error.value).count("f64[3]") >= 1


def test_a_diagonal_for_complex_entries_multiplies_the_parts():
    d, v = np.array([2 + 3j, 1 - 1j]), np.array([1 + 1j, 2 + 4j])
    operator = hotk.Diagonal(d)
    close(operator @ v, np.array([2 + 3j, 2 - 4j]))
    close(operator.matrix(), np.diag([2.0, 1.0, 3.0, -1.0]))
    close(operator.diagonal(), d)


@pytest.mark.exhaustive
def test_complex_operators_are_scaled_and_added():
    f = lambda z: jnp.sum(jnp.abs(z) ** 4)
    z, v = np.array([1 + 2j, 0.5 - 1j]), np.array([1 - 1j, 2j])
    C = hotk.HessianOperator(f, z)
    embedded = lambda x: jnp.sum((x[:2] ** 2 + x[2:] ** 2) ** 2)
    matrix = np.asarray(jax.hessian(embedded)(np.append(z.real, z.imag)))
    close((2 * C + EYE).matrix(), 2 * matrix + np.eye(4))
    product = (2 * matrix - np.eye(4)) @ np.append(v.real, v.imag)
    close((2 * C - EYE) @ v, product[:2] + 1j * product[2:])


def test_a_diagonal_takes_numbers_of_python():
    operator = hotk.Diagonal({"a": 2.0, "b": [1.0, 3.0]})
    close(operator.matrix(), np.diag([2.0, 1.0, 3.0]))


@pytest.mark.usefixtures("as_user")
def test_identity_alone_has_no_size():
    for operator in (EYE, 2 * EYE, EYE + EYE):
        close(operator @ V, np.asarray((operator + H) @ V - A @ V))
        for ask in (
            lambda o: o.size,
            lambda o: o.index,
            lambda o: o.matrix(),
            lambda o: o.diagonal(),
            lambda o: o.eigh(1),
            lambda o: o.block("", ""),
        ):
            with pytest.raises(TypeError, match="identities alone"):
                ask(operator)


def test_a_sum_of_python_is_the_sum():
    close(sum([H, G, H]).matrix(), 2 * H.matrix() + G.matrix())
    for other in (1, 2.0, np.ones(3)):
        with pytest.raises(TypeError, match="terms of a sum are operators"):
            other + H
