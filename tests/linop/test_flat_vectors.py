"""What is given for a flat vector: no operator or solver drops a part of its numbers.

All operators of `hotk.linop`, by all methods and functions that take a vector.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.linop import AbstractOperator
from tests.helpers import close


N = 3
ROWS = np.array([[2.0, 0.5, 0.0], [0.5, 3.0, 1.0], [0.0, 1.0, 4.0]])
REAL, IMAGINARY = np.array([1.0, -2.0, 0.5]), np.array([5.0, 0.25, -3.0])
SPACES = {
    "array": lambda flat: flat,
    "tree": lambda flat: {"a": flat[:2], "b": flat[2:]},
    "matrix": lambda flat: flat.reshape(1, N),
}
flat_of = lambda p: jnp.concatenate([a.ravel() for a in jax.tree.leaves(p)])


def hessian(space, dtype=jnp.float64):
    rows = jnp.asarray(ROWS, dtype)
    f = lambda p: flat_of(p) @ rows @ flat_of(p) / 2
    return hotk.HessianOperator(f, space(jnp.ones(N, dtype)))


def gauss_newton(of, *more):
    root = jnp.asarray(np.linalg.cholesky(ROWS).T)
    loss = hotk.curvature.SquaredError(jnp.zeros(N))
    # the loss has a Hessian of 2 I / n or I: what counts here are the two vectors
    return lambda space: of(
        lambda p: root @ flat_of(p), loss, space(jnp.ones(N)), **dict(more)
    )


def over_data(space):
    f = lambda p, d: jnp.mean(d) * (flat_of(p) @ jnp.asarray(ROWS) @ flat_of(p)) / 2
    return hotk.HessianOperator.over(f, space(jnp.ones(N)), [jnp.ones(4)] * 2)


def kfac(space):
    del space  # its space is that of a layer
    p = {"w": jnp.ones((2, 1)), "b": jnp.ones(1)}
    x, y = jnp.arange(6.0).reshape(3, 2), jnp.zeros((3, 1))
    model = lambda p, x: x @ p["w"] + p["b"][None]
    return hotk.KFACOperator(model, hotk.curvature.SquaredError(y), p, x)


def mask(space):
    return jax.tree.map(lambda a: np.ones(a.shape, bool), space(REAL))


OPERATORS = {
    "HessianOperator": hessian,
    "GGNOperator": gauss_newton(hotk.GGNOperator),
    "FisherOperator": gauss_newton(hotk.FisherOperator),
    "KFACOperator": kfac,
    "DataOperator": over_data,
    "Linearized": lambda s: hessian(s).linearize("store"),
    "Diagonal": lambda s: hotk.Diagonal(s(jnp.arange(1.0, 1 + N))),
    "SparseOperator": lambda s: hotk.linop.SparseOperator(hessian(s).sparse()),
    "LowRank": lambda s: hotk.linop.nystrom(hessian(s), 2, jax.random.key(0)),
    "LeafBlocks": lambda s: hotk.linop.LeafBlocks.of(hessian(s)),
    "Sum": lambda s: hessian(s) + 0.5 * hotk.Identity(),
    "Product": lambda s: hotk.Identity() @ hessian(s),
    "Symmetric": lambda s: hotk.linop.Symmetric(hessian(s)),
    "Scaled": lambda s: 2.0 * hessian(s),
    "Restricted": lambda s: hessian(s).restrict(
        jax.tree.map(lambda a: np.ones(a.shape, bool), s(REAL))
    ),
    "Inverse": lambda s: hessian(s).inverse(),
    "Inverse by iteration": lambda s: hessian(s).inverse(method="solve"),
}
LINOP, ESTIMATE = hotk.linop, hotk.estimate
METHODS = {
    "@": lambda A, v: A @ v,
    "vector": lambda A, v: A.flat(A.vector(v)),
    "flat": lambda A, v: A.flat(v),
    "many": lambda A, v: A.many(v[None])[0],
    "quadratic_form": lambda A, v: A.quadratic_form(v),
    "matvec": lambda A, v: A.matvec(v),
    "rmatvec": lambda A, v: A.rmatvec(v),
    "solve": lambda A, v: A.flat(A.solve(v).x),
    "solve from a start": lambda A, v: A.flat(A.solve(v.real, x0=v).x),
    "solve many": lambda A, v: jax.vmap(A.flat)(A.solve(v[None], batched=True).x)[0],
    "cg": lambda A, v: A.flat(LINOP.cg(A, v).x),
    "minres": lambda A, v: A.flat(LINOP.minres(A, v).x),
    "steihaug": lambda A, v: A.flat(LINOP.steihaug(A, v, 1e3).x),
    "eigh": lambda A, v: A.eigh(1, v0=v).values,
    "jit": lambda A, v: jax.jit(lambda v: A @ v)(v),
}


def test_the_tables_are_complete():
    """Each operator and each function of a vector has a case, or says here why not."""
    classes = {n for n, c in vars(hotk.linop).items() if inspect.isclass(c)}
    operators = {
        n for n in classes if issubclass(getattr(hotk.linop, n), AbstractOperator)
    }
    abstract = {"AbstractOperator", "AbstractSymmetricOperator"}
    alike = {"EmpiricalFisherOperator", "SampledFisherOperator"}  # as `FisherOperator`
    no_space = {"Identity", "BlockDiagonal"}  # any space; made of operators as it is
    assert operators - abstract - alike - no_space <= set(OPERATORS)
    taking = {
        name
        for name, method in inspect.getmembers(AbstractOperator, inspect.isfunction)
        if not name.startswith("_")
        and {"v", "b", "vectors"} & set(inspect.signature(method).parameters)
    }
    assert taking - {"mv", "applied"} <= set(METHODS)


CASES = [
    (a, s) for a in OPERATORS for s in SPACES if a != "KFACOperator" or s == "tree"
]


@pytest.mark.thinned(20)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("operator", "space"), CASES)
def test_no_imaginary_part_is_lost(operator, space, method):
    A = OPERATORS[operator](SPACES[space])
    if not A.symmetric or (method == "jit" and A.on_host):
        pytest.skip("no such method of it")
    run = METHODS[method]
    for imaginary in (IMAGINARY, 0 * IMAGINARY):
        for v in (REAL + 1j * imaginary, jnp.asarray(REAL + 1j * imaginary)):
            with pytest.raises(hotk.HotkError, match=r"complex|c128"):
                run(A, v)


@pytest.mark.parametrize("space", SPACES)
def test_a_flat_vector_has_the_dtype_of_the_space(space):
    H, expected = hessian(SPACES[space], jnp.float32), ROWS @ REAL
    for v in (REAL, REAL.astype(np.float32), jnp.asarray(REAL, jnp.float32)):
        close(H.flat(H @ v), jnp.asarray(expected, jnp.float32))
    close(H.flat(H @ np.arange(N)), jnp.asarray(ROWS @ np.arange(N), jnp.float32))
    for lost in (jnp.asarray(REAL), jnp.arange(N), np.array(["a", "b", "c"])):
        for run in (METHODS["@"], METHODS["flat"], METHODS["solve"]):
            with pytest.raises(hotk.StructureError, match="not a vector of the space"):
                run(H, lost)


def test_a_flat_vector_of_numpy_is_copied():
    H, v = hessian(SPACES["tree"]), REAL.copy()
    held = H.vector(v)
    v[:] = 0
    close(held, SPACES["tree"](jnp.asarray(REAL)))


def test_a_sparse_matrix_keeps_both_parts_or_refuses():
    J = hotk.sparse_jacobian(lambda x: {"y": x[:2] ** 2}, jnp.asarray(REAL))
    with pytest.raises(hotk.StructureError, match="complex"):
        J @ jnp.asarray(REAL + 1j * IMAGINARY)
