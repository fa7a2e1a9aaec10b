"""Entries of inverses by Takahashi's equations, against dense inverses of NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import hotk
from tests.helpers import close


def of_scipy(matrix):
    return hotk.SparseMatrix.from_scipy(scipy.sparse.csr_array(matrix), symmetric=True)


def chain(n):
    off = -np.ones(n - 1)
    return scipy.sparse.diags_array([off, np.full(n, 2.1), off], offsets=[-1, 0, 1])


def grid(k):
    """Return the Laplacian of a grid of two axes, whose factor fills in."""
    line, one = chain(k), scipy.sparse.eye_array(k)
    return scipy.sparse.kron(line, one) + scipy.sparse.kron(one, line)


def arrow(n):
    matrix = np.diag(np.arange(2.0, n + 2))
    matrix[0], matrix[:, 0] = 0.1, 0.1
    matrix[0, 0] = 50.0
    return matrix


# Its factor has zeros where the pattern says that it fills in.
CANCELLED = np.array(
    [
        [1.0, 0.0, 0.0, 0.0, 0.5, 0.0],
        [0.0, 1.0, 0.0, -1.0, 0.0, 1.0],
        [0.0, 0.0, 1.0, -1.0, -1.0, 0.0],
        [0.0, -1.0, -1.0, 3.0, 1.0, -1.0],
        [0.5, 0.0, -1.0, 1.0, 2.25, 0.5],
        [0.0, 1.0, 0.0, -1.0, 0.5, 2.25],
    ]
)
RANDOM = scipy.sparse.random_array((60, 60), density=0.05, rng=1)
MATRICES = {
    "chain": chain(50),
    "grid": grid(9),
    "random": RANDOM @ RANDOM.T + scipy.sparse.eye_array(60),
    "arrow": arrow(40),
    "diagonal": np.diag([1.0, 2.0, 4.0]),
    "dense": np.linalg.inv(np.eye(6) + 0.1),
    "cancelled": CANCELLED,
}


@pytest.mark.parametrize("name", MATRICES)
def test_entries_on_the_pattern_are_those_of_the_inverse(name):
    A = of_scipy(MATRICES[name])
    dense = np.linalg.inv(np.asarray(A.todense()))
    Z = A.selected_inverse()
    close(Z.values, dense[A.rows, A.cols], rtol=1e-12, atol=1e-15)
    close(Z.diagonal(), np.diag(dense), rtol=1e-12)
    F, b = A.cholesky(), np.random.default_rng(0).normal(size=(len(dense), 3))
    close(F.inverse_diagonal(), np.diag(dense), rtol=1e-12)
    root = F.inverse_root(np.eye(len(dense)))
    close(root @ root.T, dense, atol=1e-13)
    close(F.inverse_root(b, transposed=True), root.T @ b, atol=1e-13)
    close(F.inverse_root(b[:, 0]), root @ b[:, 0], atol=1e-13)
    close(A.logdet(), -np.linalg.slogdet(dense)[1], rtol=1e-12)


def test_the_derivative_of_the_log_determinant_is_the_inverse():
    A = of_scipy(MATRICES["grid"])
    dense = np.linalg.inv(np.asarray(A.todense()))
    of = lambda values: hotk.SparseMatrix(values, A.pattern).logdet()
    for gradient in (jax.grad(of), jax.jit(jax.grad(of))):
        close(gradient(A.values), dense[A.rows, A.cols], rtol=1e-12, atol=1e-15)
    batch = jnp.stack([A.values, 2 * A.values])
    n = len(dense)
    close(jax.vmap(of)(batch)[1] - of(A.values), n * np.log(2), rtol=1e-12)
    assert np.isnan(of(-A.values))


def of_numbers(A):
    """Return the log-determinant of symmetric changes of A, and that of JAX."""
    entries = np.random.default_rng(3).normal(size=(2, A.nnz))
    across = np.lexsort((A.rows, A.cols))
    entries = jnp.asarray(entries + entries[:, across]) / 200

    def values(t):
        return A.values * jnp.exp(t[0] / 3) + jnp.sin(t[1:]) @ entries

    def dense(t):
        matrix = jnp.zeros(A.shape).at[A.rows, A.cols].set(values(t))
        return jnp.linalg.slogdet(matrix)[1]

    return lambda t: hotk.SparseMatrix(values(t), A.pattern).logdet(), dense


def test_second_derivatives_by_the_entries_are_those_of_symmetric_matrices():
    A = of_scipy(arrow(5))

    def dense(values):
        matrix = jnp.zeros(A.shape).at[A.rows, A.cols].set(values)
        return jnp.linalg.slogdet((matrix + matrix.T) / 2)[1]

    of = lambda values: hotk.SparseMatrix(values, A.pattern).logdet()
    close(jax.hessian(of)(A.values), jax.hessian(dense)(A.values), rtol=1e-12)
    batch = jnp.stack([A.values, 2 * A.values])
    close(jax.vmap(jax.hessian(of))(batch), jax.vmap(jax.hessian(dense))(batch))


def test_second_derivatives_in_any_units():
    matrix, units = chain(20).toarray(), np.logspace(-100, 100, 20)
    A = of_scipy(matrix * units * units[:, None])
    along = np.where(matrix, np.cos(np.add.outer(np.arange(20), np.arange(20))), 0.0)
    entries = (along * units * units[:, None])[A.rows, A.cols]
    of = lambda t: hotk.SparseMatrix(A.values + t * entries, A.pattern).logdet()
    dense = lambda t: jnp.linalg.slogdet(matrix + t * along)[1]
    close(jax.hessian(of)(0.0), jax.hessian(dense)(0.0), rtol=1e-12)


def test_second_derivatives_of_what_is_not_definite():
    A = of_scipy(chain(5))
    of = lambda t: hotk.SparseMatrix(t * A.values, A.pattern).logdet()
    assert np.isnan(jax.hessian(of)(-1.0))
    close(jax.hessian(of)(2.0), -5 / 4)
    single = hotk.SparseMatrix(A.values.astype(jnp.float32), A.pattern)
    of = lambda t: hotk.SparseMatrix(t * single.values, A.pattern).logdet()
    second = jax.hessian(of)(jnp.float32(2))
    assert second.dtype == jnp.float32
    close(second, np.float32(-5 / 4))
    with pytest.raises(hotk.ModeError, match=r"two derivatives of a log-determinant"):
        jax.jacrev(jax.hessian(of))(jnp.float32(2))


def test_entries_of_the_inverse_inside_of_transformations():
    A = of_scipy(MATRICES["grid"])
    of = lambda t: hotk.SparseMatrix(A.values * t, A.pattern).selected_inverse().values
    known = lambda t: np.linalg.inv(np.asarray(A.todense()))[A.rows, A.cols] / t
    close(jax.jit(of)(2.0), known(2.0), rtol=1e-12, atol=1e-15)
    for derivative in (jax.jacfwd, jax.jacrev, lambda f: jax.jit(jax.jacrev(f))):
        close(derivative(of)(2.0), -known(4.0), rtol=1e-12, atol=1e-15)
    close(jax.vmap(of)(jnp.array([1.0, 2.0]))[1], known(2.0), rtol=1e-12, atol=1e-15)
    assert np.isnan(jax.jit(of)(-1.0)).all()
    with pytest.raises(hotk.ModeError, match="or one of the inverse"):
        jax.jacrev(jax.jacrev(of))(2.0)
    with pytest.raises(ValueError, match=r"`A\.selected_inverse\(\)`"):
        jax.jit(lambda t: (A.symmetrized() @ A * t).selected_inverse())(1.0)


SECOND = {
    "forward, reverse": jax.hessian,
    "reverse, forward": lambda f: jax.jacrev(jax.jacfwd(f)),
    "reverse, reverse": lambda f: jax.jacrev(jax.jacrev(f)),
    "forward, forward": lambda f: jax.jacfwd(jax.jacfwd(f)),
    "jit": lambda f: jax.jit(jax.hessian(f)),
    "hotk": lambda f: lambda t: hotk.hessian(f, t),
}


@pytest.mark.parametrize("how", SECOND)
def test_second_derivatives_in_a_loop(how):
    """There JAX loses the rule of a `jax.custom_jvp` in forward over reverse mode."""
    of, dense = of_numbers(of_scipy(MATRICES["arrow"]))

    def summed(f):
        step = lambda t: lambda total, scale: (total + f(scale * t), None)
        return lambda t: jax.lax.scan(step(t), 0.0, jnp.array([0.5, 1.0]))[0]

    t = jnp.array([0.3, -0.2, 0.5])
    close(SECOND[how](summed(of))(t), jax.hessian(summed(dense))(t), rtol=1e-9)


@pytest.mark.parametrize("how", SECOND)
@pytest.mark.parametrize("name", MATRICES)
def test_second_derivatives_of_the_log_determinant(name, how):
    of, dense = of_numbers(of_scipy(MATRICES[name]))
    t = jnp.array([0.3, -0.2, 0.5])
    close(SECOND[how](of)(t), jax.hessian(dense)(t), rtol=1e-9, atol=1e-12)


def test_what_has_no_selected_inverse_is_refused(as_user):
    A = of_scipy(MATRICES["chain"])
    with pytest.raises(hotk.NotPositiveDefiniteError):
        (-A).selected_inverse()
    general = hotk.SparseMatrix.from_coo([1.0, 2.0, 3.0], [0, 0, 1], [0, 1, 1])
    with pytest.raises(ValueError, match=r"F\.selected_inverse\(\)"):
        general.factorize().selected_inverse()
    with pytest.raises(ValueError, match="not known to be real and symmetric"):
        general.logdet()
    swap = hotk.SparseMatrix.from_coo([1.0, 1.0], [0, 1], [1, 0], symmetric=True)
    with pytest.raises(ValueError, match="pivots on its diagonal"):
        swap.factorize().selected_inverse()


@pytest.mark.exhaustive
def test_the_hessian_of_an_evidence():
    """Against Newton's method step by step and dense matrices."""
    n = 30
    counts = jnp.asarray(np.random.default_rng(0).poisson(3.0, n), float)

    def energy(z, theta):
        prior = jnp.sum(jnp.diff(z) ** 2) + 0.1 * jnp.sum((z - theta[1]) ** 2)
        return jnp.exp(theta[0]) * prior / 2 + jnp.sum(jnp.exp(z) - counts * z)

    def evidence(theta):
        newton = hotk.optim.newton(linear_solver="sparse")
        arguments = {"args": (theta,), "transform": newton, "tol": 1e-10}
        z = hotk.optim.minimize(energy, jnp.zeros(n), **arguments).x
        return energy(z, theta) + hotk.sparse_hessian(energy, z, theta).logdet() / 2

    def dense(theta):
        z = jnp.zeros(n)
        for _ in range(12):  # the last ones double the order that is exact
            g, H = (d(energy)(z, theta) for d in (jax.grad, jax.hessian))
            z = z - jnp.linalg.solve(H, g)
        H = jax.hessian(energy)(z, theta)
        return energy(z, theta) + jnp.linalg.slogdet(H)[1] / 2

    theta = jnp.array([1.0, 0.5])
    known = jax.jit(jax.jacfwd(jax.jacfwd(dense)))(theta)
    close(jax.hessian(evidence)(theta), known, rtol=1e-7)
    close(hotk.hessian(evidence, theta), known, rtol=1e-7)


@pytest.mark.exhaustive
def test_a_hundred_thousand_variables():
    """The variances of an autoregression are known: 1 / (1 - a^2) in its middle."""
    n, a = 100_000, 0.9
    diagonal, off = np.full(n, 1 + a * a), np.full(n - 1, -a)
    A = of_scipy(scipy.sparse.diags_array([off, diagonal, off], offsets=[-1, 0, 1]))
    variances = np.asarray(A.selected_inverse().diagonal())
    close(variances[n // 2], 1 / (1 - a * a), rtol=1e-12)
    close(variances[0], variances[-1], rtol=1e-12)


def with_zeros(n, seed):
    """Return a function and a point at which many entries of the pattern are zero."""
    random = np.random.default_rng(seed)
    x = jnp.asarray(random.normal(size=n) / 2 * (random.random(n) < 0.5))
    return lambda x: jnp.sum(x**2) + 0.1 * jnp.sum(x[1:] ** 2 * x[:-1]), x


@pytest.mark.thinned(4)
@pytest.mark.parametrize("n", [6, 12, 40])
@pytest.mark.parametrize("seed", range(3))
def test_entries_of_the_pattern_that_are_zero(n, seed):
    """SuperLU leaves them out of its factors."""
    f, x = with_zeros(n, seed)
    A = hotk.sparse_hessian(f, x)
    inverse, at = np.linalg.inv(jax.hessian(f)(x)), (A.pattern.rows, A.pattern.cols)
    close(A.selected_inverse().todense()[at], inverse[at])
    close(A.factorize().inverse_diagonal(), np.diag(inverse))
    logdet = lambda x: hotk.sparse_hessian(f, x).logdet()
    known = lambda x: jnp.linalg.slogdet(jax.hessian(f)(x))[1]
    close(jax.grad(logdet)(x), jax.grad(known)(x))


@pytest.mark.parametrize("n", [3, 6, 40])
def test_the_diagonal_of_an_inverse_where_the_matrix_has_no_entry(n):
    """The conditions of a minimum under a constraint."""
    f = lambda z: jnp.sum(z[:n] ** 2 * jnp.arange(1.0, n + 1)) + z[n] * jnp.sum(z[:n])
    A = hotk.sparse_hessian(f, jnp.ones(n + 1))
    assert A.nnz == 3 * n
    inverse = np.linalg.inv(A.todense())
    close(A.factorize().inverse_diagonal(), np.diag(inverse))


def test_the_matrix_of_a_product_if_it_is_sparse():
    found, x = hotk.sparse.traced_matrix_if_sparse, jnp.linspace(1.0, 2.0, 50)
    product = lambda v: x * v - jnp.pad(v[1:], (0, 1)) - jnp.pad(v[:-1], (1, 0))
    known = np.diag(x) - np.eye(50, k=1) - np.eye(50, k=-1)
    close(jax.jit(lambda x: found(product, x))(x).todense(), known)
    assert found(lambda v: x * jnp.vdot(x, v), x) is None  # dense
    assert found(lambda v: x * v, jax.lax.complex(x, x)) is None
