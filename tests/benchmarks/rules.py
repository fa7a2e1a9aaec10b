"""Functions with rules of their own, against the best nesting written by hand."""

import functools
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import lineax
import optimistix
from jax.experimental.ode import odeint

import hotk
from tests.benchmarks.interleaved import compare
from tests.benchmarks.subjects import convolutional, hvp_by_hand, perceptron
from tests.benchmarks.table import Row, of_ratio, run


def ruled_tanh() -> hotk.rule.Custom:
    """Return tanh with both rules of first order, as JAX has them."""
    tanh = hotk.rule.custom(jnp.tanh)

    @tanh.def_jvp
    def _(primals, tangents, *, y):
        del primals
        return (1 - y * y) * tangents[0]

    @tanh.def_vjp
    def _(primals, u, *, y):
        del primals
        return ((1 - y * y) * u,)

    return tanh


@jax.custom_vjp
def gelu(x):
    """Compute gelu, with a reverse rule whose forward pass calls it again."""
    return jax.nn.gelu(x)


gelu.defvjp(lambda x: (gelu(x), x), lambda x, u: (jax.vjp(jax.nn.gelu, x)[1](u)[0],))


def a_rule_costs_nothing() -> Iterator[Row]:
    """Compare a network through rules with the same through JAX's own."""
    sizes = (784, 256, 256, 10)
    ruled, plain = perceptron(sizes, 256, ruled_tanh()), perceptron(sizes, 256)
    x, v = plain.x, plain.v
    ours = hotk.hvp.prepare(ruled.f, x, v)
    theirs = hotk.hvp.prepare(plain.f, x, v)
    ratio = compare(lambda: ours(x, v), lambda: theirs(x, v))
    note = "; ".join(ours.info.rules)
    yield of_ratio("hvp through rules / without, MLP", ratio, 1.02, note)


def a_kernel_without_forward_rule() -> Iterator[Row]:
    """Compare the nesting that is chosen with the product as if there were no rule."""
    f, x = convolutional(activation=gelu).f, convolutional().x
    v, plain = convolutional().v, hvp_by_hand(convolutional().f)
    ours = hotk.hvp.prepare(f, x, v)
    ratio = compare(lambda: ours(x, v), lambda: plain(x, v), rounds=9)
    name = "hvp, conv net with a custom_vjp / the best nesting by hand"
    yield of_ratio(name, ratio, 1.2, ours.info.mode)


def a_solver_of_odes() -> Iterator[Row]:
    """Compare with reverse over reverse, the only nesting that JAX has for it."""

    def f(k):
        times = jnp.array([0.0, 1.0])
        return jnp.sum(odeint(lambda y, t: -k * y, k**2, times)[-1])

    k = jnp.linspace(0.5, 1.5, 5)
    ours = hotk.hessian.prepare(f, k)
    by_hand = jax.jit(jax.jacrev(jax.jacrev(f)))
    ratio = compare(lambda: ours(k), lambda: by_hand(k), rounds=9)
    yield of_ratio("hessian through odeint / by hand", ratio, 1.2, ours.info.mode)


def a_root(n: int, goal: float | None) -> Iterator[Row]:
    """Compare an implicit root with the same by `jax.lax.custom_root`."""
    a = jnp.linspace(0.5, 1.5, n)
    coupling = jnp.eye(n) + 0.01

    def residual(x, a):
        return coupling @ x + x**3 / 10 - a

    def solve(x0, a):
        def step(i, x):
            jacobian = coupling + jnp.diag(0.3 * x**2)
            return x - jnp.linalg.solve(jacobian, residual(x, a))

        return jax.lax.fori_loop(0, 8, step, x0)

    solution = hotk.rule.root(residual, solve)

    def dense(product, b):
        columns = jax.vmap(product, out_axes=1)(jnp.eye(len(b)))
        return jnp.linalg.solve(columns, b)

    def ours_of(a):
        return jnp.sum(solution(jnp.zeros(n), a) ** 2)

    def theirs_of(a):
        root = jax.lax.custom_root(
            lambda x: residual(x, a), jnp.zeros(n), lambda r, x: solve(x, a), dense
        )
        return jnp.sum(root**2)

    ours = hotk.hessian.prepare(ours_of, a)
    by_hand = jax.jit(jax.hessian(theirs_of))
    ratio = compare(lambda: ours(a), lambda: by_hand(a))
    name = f"hessian through a root, n={n} / by jax.lax.custom_root"
    yield of_ratio(name, ratio, goal, ours.info.mode)


def solvers_of_others(n: int, goal: float | None) -> Iterator[Row]:
    """Compare optimistix and lineax, as they are, with the best nesting by hand."""
    coupling = jax.random.normal(jax.random.key(0), (n, n)) / n
    p = jnp.linspace(-1.0, 1.0, n)
    newton = optimistix.Newton(rtol=1e-5, atol=1e-5)

    def of_root(p):
        residual = lambda y, p: y - jnp.tanh(coupling @ y + p)
        found = optimistix.root_find(residual, newton, jnp.zeros(n), p, throw=False)
        return jnp.sum(found.value**2)

    def of_solve(p):
        matrix = jnp.eye(n) + coupling @ coupling.T + jnp.diag(p**2)
        operator = lineax.MatrixLinearOperator(matrix)
        return jnp.sum(
            lineax.linear_solve(operator, jnp.sin(p), lineax.LU()).value ** 3
        )

    nestings = [
        lambda f: jax.jacfwd(jax.jacrev(f)),
        lambda f: jax.jacrev(jax.jacrev(f)),
        lambda f: jax.jacrev(jax.jacfwd(f)),
        lambda f: jax.jacfwd(jax.jacfwd(f)),
    ]
    for name, f in {"an optimistix root": of_root, "a lineax solve": of_solve}.items():
        ours = hotk.hessian.prepare(f, p)
        by_hand = [jax.jit(nesting(f)) for nesting in nestings]
        one = functools.partial(ours, p)
        ratios = [compare(one, functools.partial(h, p), rounds=9) for h in by_hand]
        worst = max(ratios, key=lambda ratio: ratio.median)
        title = f"hessian through {name}, n={n} / the best nesting by hand"
        yield of_ratio(title, worst, goal, ours.info.mode)


def a_scan_of_checkpoints() -> Iterator[Row]:
    """Compare temporary memory with the best of four nestings by hand."""
    layers, width, batch = 32, 64, 256
    weights = jax.random.normal(jax.random.key(0), (layers, width, width)) / 6
    x = jnp.ones((batch, width))
    layer = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))

    def f(weights):
        last, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, weights)
        return jnp.mean(last**2)

    along = lambda f, x, v: jax.jvp(f, (x,), (v,))[1]
    nestings = [
        lambda x, v: along(jax.grad(f), x, v),
        lambda x, v: jax.grad(lambda x: jnp.vdot(jax.grad(f)(x), v))(x),
        lambda x, v: jax.grad(lambda x: along(f, x, v))(x),
    ]
    used = [
        jax.jit(h).lower(weights, weights).compile().memory_analysis() for h in nestings
    ]
    best = min(memory.temp_size_in_bytes for memory in used)
    info = hotk.hvp.prepare(f, weights, weights).info
    name = "temporary memory, hvp through a scan of checkpoints / best by hand"
    yield Row(name, info.temporary_bytes / best, 1.2, None, info.mode)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from a_rule_costs_nothing()
    yield from a_kernel_without_forward_rule()
    yield from a_solver_of_odes()
    yield from solvers_of_others(100, 1.2)
    yield from solvers_of_others(40, None)  # as small as that, dispatch shows
    yield from a_scan_of_checkpoints()
    yield from a_root(100, 1.2)
    yield from a_root(20, None)  # a tenth of a millisecond: dispatch shows


if __name__ == "__main__":
    run(str(__doc__), measure)
