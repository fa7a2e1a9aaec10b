"""Derivatives through operators are right, those through iterations are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


C, B = np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0, 0.5])


def make(c):
    return hotk.HessianOperator(lambda x, c: jnp.sum(c * x**4) / 12, jnp.ones(3), c)


ITERATIONS = {
    "cg": lambda A, b: hotk.linop.cg(A, b).x,
    "minres": lambda A, b: hotk.linop.minres(A, b).x,
    "solve": lambda A, b: A.solve(b).x,
    "batched solve": lambda A, b: A.solve(b[None], batched=True).x,
    "steihaug": lambda A, b: hotk.linop.steihaug(A, b, 9.0).x,
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("take", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("run", ITERATIONS.values(), ids=ITERATIONS)
def test_an_iteration_has_no_derivative(run, take, as_user):
    b, c = jnp.asarray(B), jnp.asarray(C)
    with pytest.raises(hotk.ModeError, match="another system with A"):
        take(lambda b: run(make(c), b))(b)
    with pytest.raises(hotk.ModeError, match="another system with A"):
        take(lambda c: run(make(c), b))(c)
    # what is not differentiated may stand inside
    slope = take(lambda t: t * jnp.ravel(run(make(c), b)))(jnp.asarray(2.0))
    np.testing.assert_allclose(np.abs(slope), np.abs(B) / C, rtol=1e-4)


def test_nor_have_eigenvalues(as_user):
    with pytest.raises(hotk.ModeError, match="v' dA v"):
        jax.jacfwd(lambda c: make(c).eigh(1).values)(jnp.asarray(C))


def test_products_and_matrices_have_theirs():
    c = jnp.asarray(C)
    close(jax.jacfwd(lambda c: make(c) @ jnp.asarray(B))(c), np.diag(B))
    close(jax.jacrev(lambda c: make(c) @ jnp.asarray(B))(c), np.diag(B))
    found = jax.jacfwd(lambda c: make(c).matrix())(c)
    close(found, np.einsum("ij,jk->ijk", np.eye(3), np.eye(3)))
