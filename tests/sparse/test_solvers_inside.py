"""Sparse derivatives of functions that solve equations, and their own derivatives.

A solver of JAX has a program for the solution and a rule for the derivative. What is
differentiated once more must be the rule.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hotk
from tests.helpers import close


X = jnp.array([0.7, 1.3, 0.4, 0.9])
B = jnp.array([1.0, 2.0, -1.0, 0.5])


def matrix(x):
    return jnp.diag(x) + 0.3 * jnp.outer(jnp.sin(x), x) + 2 * jnp.eye(4)


def held(x):
    fixed = lax.stop_gradient(x)
    run = lambda _, r: r / fixed
    return lax.custom_linear_solve(lambda v: v * x, x**2 + B, run, run)


def pair(x):
    fixed = lax.stop_gradient(x)
    forward = lambda _, r: (r[0] / fixed, (r[1] - r[0] / fixed) / fixed)
    back = lambda _, r: ((r[0] - r[1] / fixed) / fixed, r[1] / fixed)
    both = lambda v: (v[0] * x, v[1] * x + v[0])
    right = (x**2 + B, x[::-1])
    return sum(lax.custom_linear_solve(both, right, forward, back))


def solved(x):
    return jnp.linalg.solve(matrix(x), B * x)


def in_blocks(x):
    M = jnp.stack([matrix(x)[:2, :2], matrix(x)[2:, 2:]])
    return jnp.linalg.solve(M, x.reshape(2, 2, 1)).reshape(4)


FUNCTIONS = {
    "solve": solved,
    "solve of many": lambda x: jnp.linalg.solve(matrix(x), jnp.outer(B, x)).sum(1),
    "solve of blocks": in_blocks,
    "inv": lambda x: jnp.linalg.inv(matrix(x)) @ x,
    "tensorsolve": lambda x: jnp.linalg.tensorsolve(
        matrix(x).reshape(2, 2, 2, 2), x.reshape(2, 2)
    ).reshape(4),
    "matrix_power": lambda x: jnp.linalg.matrix_power(matrix(x), -2) @ x,
    "positive": lambda x: jax.scipy.linalg.solve(
        matrix(x) @ matrix(x).T, x, assume_a="pos"
    ),
    "expm": lambda x: jax.scipy.linalg.expm(matrix(x) / 5) @ x,
    "cg": lambda x: jax.scipy.sparse.linalg.cg(
        matrix(x) @ matrix(x).T, x, tol=1e-7, maxiter=30
    )[0],
    "held": held,
    "a pair": pair,
    "rule of hotk": lambda x: hotk.rule.linear_solve(lambda v: matrix(x) @ v, x),
    "checkpoint": jax.checkpoint(solved),
    "jit": jax.jit(solved),
    "scan": lambda x: lax.scan(
        lambda c, r: (jnp.linalg.solve(matrix(c), x) + r, None), x, jnp.ones((2, 4))
    )[0],
    "cond": lambda x: lax.cond(x[0] > 0, solved, in_blocks, x),
}
LOOP = {
    "while": lambda x: lax.while_loop(
        lambda c: c[0] < 2,
        lambda c: (c[0] + 1, jnp.linalg.solve(matrix(c[1]), c[1] ** 2)),
        (0, x),
    )[1]
}
F, R = hotk.Forward(), hotk.Reverse()
MODES = {
    "forward": F,
    "reverse": R,
    **{f"{a}{b}": hotk.Nested(m, n) for a, m in (("f", F), ("r", R)) for b, n in
       (("f", F), ("r", R))},
}  # fmt: skip


@pytest.mark.thinned(3)
@pytest.mark.parametrize("outer", ["value", "jacfwd", "jacrev"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*FUNCTIONS, *LOOP])
def test_values_and_derivatives(name, mode, outer):
    f, chosen = {**FUNCTIONS, **LOOP}[name], MODES[mode]
    if name in LOOP and (mode not in ("forward", "ff") or outer == "jacrev"):
        pytest.skip("a `while_loop` has no reverse mode")
    if isinstance(chosen, hotk.Nested):
        scalar = lambda x: jnp.sum(jnp.sin(f(x)) * B)
        sparse = lambda x: hotk.sparse_hessian(scalar, x, mode=chosen).todense()
        exact = jax.jacfwd(jax.jacfwd(scalar))
    else:
        sparse = lambda x: hotk.sparse_jacobian(f, x, mode=chosen).todense()
        exact = jax.jacfwd(f)
    if outer != "value":
        sparse = getattr(jax, outer)(sparse)
        exact = jax.jacfwd(exact)
    close(sparse(X), exact(X), rtol=3e-3, atol=3e-3)


def looping(x):
    half = lambda c: (c[0] + 1, c[1] * 0.5)
    return jnp.sum(solved(x)) + lax.while_loop(lambda c: c[0] < 1, half, (0, x[0]))[1]


@pytest.mark.exhaustive
def test_each_operator_and_under_vmap():
    H = jax.jacfwd(jax.jacfwd(looping))(X)
    _, g, found = hotk.value_gradient_and_sparse_hessian(looping, X)
    close(found.todense(), H)
    close(g, jax.jacfwd(looping)(X))
    operator = hotk.HessianOperator(looping, X)
    close(operator.sparse().todense(), H)
    shifted = hotk.HessianOperator(lambda x: looping(x) + jnp.sum(x**2), X)
    b = jnp.ones(4)
    direct = np.linalg.solve(np.asarray(H) + 2 * np.eye(4), b)
    close(shifted.solve(b, method="sparse").x, direct)
    each = jax.vmap(lambda x: hotk.sparse_hessian(looping, x).todense())
    close(each(jnp.stack([X, 2 * X]))[0], H)


def test_what_is_sparse_by_itself_beyond_its_size():
    blocks = 700

    def f(x):
        A = jax.vmap(lambda r: jnp.diag(r) + 0.1)(x.reshape(blocks, 3))
        u = jnp.linalg.solve(A, jnp.ones((blocks, 3, 1)))
        half = lambda c: (c[0] + 1, c[1] * 0.5)
        return jnp.sum(u) + lax.while_loop(lambda c: c[0] < 1, half, (0, x[0]))[1]

    row = jnp.array([1.0, 2.0, 3.0])
    one = lambda r: jnp.sum(jnp.linalg.solve(jnp.diag(r) + 0.1, jnp.ones(3)))
    block = jax.jacfwd(jax.jacfwd(one))(row)
    H = hotk.HessianOperator(f, jnp.tile(row, blocks))
    close(H.diagonal(), jnp.tile(jnp.diag(block), blocks))
    b = jnp.ones(3 * blocks)
    close(H.solve(b).x, jnp.tile(jnp.linalg.solve(block, jnp.ones(3)), blocks))


def test_blocks_stay_apart():
    H = hotk.sparse_hessian(
        lambda x: jnp.sum(
            jnp.linalg.solve(jax.vmap(jnp.diag)(x.reshape(5, 2)), jnp.ones((5, 2, 1)))
        ),
        jnp.arange(1.0, 11.0),
    )
    assert H.nnz <= 20
    close(H.diagonal(), 2 / jnp.arange(1.0, 11.0) ** 3)
