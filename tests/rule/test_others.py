"""Solvers of other libraries as they are, and checkpoints, in every nesting."""

import functools

import jax
import jax.numpy as jnp
import lineax
import numpy as np
import pytest

import hotk
from tests import counting, reference
from tests.helpers import close


optimistix = pytest.importorskip("optimistix")

MODES = [hotk.Auto(), *(getattr(hotk, name) for name in reference.NESTINGS)]
each_mode = pytest.mark.parametrize("mode", MODES, ids=str)
A = np.random.default_rng(0).normal(size=(5, 5)) / 3
P = np.linspace(-1.0, 1.0, 5)


NEWTON = optimistix.Newton(rtol=1e-13, atol=1e-13)


def residual(y, p):
    return y - jnp.tanh(A @ y + p)


def newton_root(y0, p):
    return optimistix.root_find(residual, NEWTON, y0, args=p, throw=False).value


@functools.cache
def unrolled():
    """Return the Hessian through all steps to the fixed point, written out."""

    def f(p):
        step = lambda y, _: (jnp.tanh(A @ y + p), None)
        return jnp.sum(jax.lax.scan(step, jnp.zeros(5), length=500)[0] ** 2)

    return jax.jit(jax.hessian(f))(P)


@pytest.mark.thinned(1)
@each_mode
def test_a_root_of_optimistix(mode):
    f = lambda p: jnp.sum(newton_root(jnp.zeros(5), p) ** 2)
    close(hotk.hessian(f, P, mode=mode), unrolled(), rtol=1e-8)


@pytest.mark.exhaustive
def test_a_root_of_optimistix_is_traced_once():
    def loss_at(scale):
        newton = optimistix.Newton(rtol=1e-12, atol=1e-12, norm=jnp.linalg.norm)

        def loss(p):
            shifted = lambda y, p: y + scale * jnp.sin(y) - p
            return jnp.sum(optimistix.root_find(shifted, newton, p, args=p).value ** 2)

        return loss

    p, v = jnp.array([0.5, -0.2]), jnp.array([1.0, 2.0])
    losses = [loss_at(jnp.array(scale)) for scale in (0.1, 0.2, 0.3)]
    hotk.clear_cache()
    for loss in losses[:2]:
        hotk.hvp(loss, p, v)
    assert "captures a tracer" not in str(hotk.cache_info().reasons)
    with counting.traces() as traces, counting.compiles() as compiles:
        product = hotk.hvp(losses[2], p, v)
    assert traces() == compiles() == 0
    # y + s sin y = p, so y' = 1 / (1 + s cos y) and y'' = s sin(y) y'^3
    y = optimistix.root_find(
        lambda y, p: y + 0.3 * jnp.sin(y) - p, NEWTON, p, args=p
    ).value
    first = 1 / (1 + 0.3 * jnp.cos(y))
    assert close(product, 2 * (first**2 + y * 0.3 * jnp.sin(y) * first**3) * v)


@pytest.mark.thinned(1)
@each_mode
def test_optimistix_as_the_solver_of_a_root(mode):
    solution = hotk.rule.root(residual, newton_root)
    f = lambda p: jnp.sum(solution(jnp.zeros(5), p) ** 2)
    close(hotk.hessian(f, P, mode=mode), unrolled(), rtol=1e-8)


@pytest.mark.exhaustive
def test_optimistix_as_the_solver_of_a_minimum():
    ridge = lambda y, p: jnp.sum((y - p) ** 2) + jnp.sum(y**2)
    bfgs = optimistix.BFGS(rtol=1e-12, atol=1e-12)

    def solve(y0, p):
        return optimistix.minimise(ridge, bfgs, y0, args=p, throw=False).value

    solution = hotk.rule.minimum(ridge, solve)
    f = lambda p: jnp.sum(solution(jnp.zeros(5), p) ** 3)
    close(hotk.hessian(f, P), np.diag(6 * P / 8), rtol=1e-8)


@pytest.mark.thinned(1)
@each_mode
def test_a_linear_solve_of_lineax(mode):
    def matrix(p):
        return jnp.eye(5) + A @ A.T + jnp.diag(p**2)

    def f(p):
        operator = lineax.MatrixLinearOperator(matrix(p))
        return jnp.sum(
            lineax.linear_solve(operator, jnp.sin(p), lineax.LU()).value ** 3
        )

    written_out = lambda p: jnp.sum((jnp.linalg.inv(matrix(p)) @ jnp.sin(p)) ** 3)
    known = jax.jit(jax.hessian(written_out))(P)
    close(hotk.hessian(f, P, mode=mode), known, rtol=1e-8)


# ---- checkpoints


def network(layer):
    def f(weights):
        x = jnp.ones((256, 32), weights.dtype)
        last, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        return jnp.mean(last**2)

    return f


def dense(x, w):
    return jnp.tanh(x @ w)


def temporary(function, *at):
    compiled = jax.jit(function).lower(*at).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@functools.cache
def by_hand():
    """Return the bytes of the product in three nestings, written by hand."""
    f = network(jax.checkpoint(dense))
    along = lambda f, x, v: jax.jvp(f, (x,), (v,))[1]
    w = jnp.ones((16, 32, 32)) / 6
    return {
        "forward over reverse": temporary(lambda x, v: along(jax.grad(f), x, v), w, w),
        "reverse over reverse": temporary(
            lambda x, v: jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), v))(x), w, w
        ),
        "reverse over forward": temporary(
            lambda x, v: jax.grad(lambda x: along(f, x, v))(x), w, w
        ),
    }


@pytest.mark.exhaustive
def test_a_scan_of_checkpoints_keeps_its_memory_saving():
    w = jnp.ones((16, 32, 32)) / 6
    best = min(by_hand().values())
    assert best < by_hand()["reverse over reverse"] / 1.5  # the choice matters
    saved = hotk.hvp.prepare(network(jax.checkpoint(dense)), w, w).info
    kept = hotk.hvp.prepare(network(dense), w, w).info
    assert saved.temporary_bytes <= 1.2 * best
    assert saved.temporary_bytes < 0.6 * kept.temporary_bytes


@pytest.mark.exhaustive
def test_so_does_one_with_a_reverse_rule():
    """JAX has reverse over reverse alone for it."""

    @jax.custom_vjp
    def tanh(x):
        return jnp.tanh(x)

    tanh.defvjp(lambda x: (tanh(x), x), lambda x, u: (u / jnp.cosh(x) ** 2,))
    w = jnp.ones((16, 32, 32)) / 6
    layer = jax.checkpoint(lambda x, w: tanh(x @ w))
    prepared = hotk.hvp.prepare(network(layer), w, w)
    assert prepared.info.temporary_bytes <= 1.2 * min(by_hand().values())
    f = network(jax.checkpoint(dense))
    close(prepared(w, w), jax.jvp(jax.grad(f), (w,), (w,))[1])
