"""Second derivatives as public code takes them: inside of an outer `jit`, or in none.

Inside of `jit` nothing is gained by finding a compiled program again, only by a better
one. Without `jit` JAX evaluates derivatives operation by operation, and compiles the
loops of its solvers anew for each closure.
"""

import functools
import itertools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.sparse.linalg import cg

import hotk
from tests.benchmarks.interleaved import compare
from tests.benchmarks.subjects import normal
from tests.benchmarks.table import Row, of_ratio, run
from tests.benchmarks.taylor import at, scalar_network


def layers(*sizes: int) -> list[jax.Array]:
    """Make the weights of a network."""
    pairs = enumerate(itertools.pairwise(sizes))
    return [normal(i, a, b) / math.sqrt(a) for i, (a, b) in pairs]


def diagonals() -> Iterator[Row]:
    """Compare diagonals of Hessians with those of dense ones."""
    (a, b), X, Y = layers(16, 32, 10), normal(5, 64, 16), normal(6, 64, 10)
    x, tree = ravel_pytree((a, b))

    def by_parameters(x):
        a, b = tree(x)
        return jnp.mean((jnp.tanh(X @ a) @ b - Y) ** 2)

    by_point = scalar_network(100)
    subjects = [
        (f"MLP parameters, n={x.size}", by_parameters, x),
        ("MLP by its inputs, D=100", by_point, normal(12, 100)),
    ]
    for name, f, x in subjects:
        ours = jax.jit(functools.partial(hotk.hessian_diagonal, f))
        theirs = jax.jit(lambda x, f=f: jnp.diag(jax.hessian(f)(x)))
        ratio = at(x, ours, theirs)
        yield of_ratio(
            f"in jit: hessian_diagonal / jnp.diag(jax.hessian), {name}", ratio
        )


def lagrangian(params, q, speed):
    """Return the Lagrangian of a network with softplus, as in the literature."""
    y = jnp.concatenate([q, speed])
    for w in params[:-1]:
        y = jax.nn.softplus(y @ w)
    return (y @ params[-1])[0]


def acceleration_by_hand(params, q, speed):
    """Return the acceleration as the paper of Lagrangian networks writes it."""
    mass = jax.hessian(lagrangian, argnums=2)(params, q, speed)
    force = jax.grad(lagrangian, argnums=1)(params, q, speed)
    mixed = jax.jacobian(jax.jacobian(lagrangian, argnums=2), argnums=1)
    return jnp.linalg.solve(mass, force - mixed(params, q, speed) @ speed)


def acceleration(params, q, speed):
    """Return the same; the mixed term is a product and needs no matrix."""
    mass = hotk.hessian(lambda s: lagrangian(params, q, s), speed)
    force = hotk.gradient(lambda q: lagrangian(params, q, speed), q)
    momentum = lambda q: hotk.gradient(lambda s: lagrangian(params, q, s), speed)
    return jnp.linalg.solve(mass, force - hotk.jvp(momentum, q, speed))


def lagrangian_networks() -> Iterator[Row]:
    """Compare the accelerations of a batch, and the gradient of a training step."""
    for n in (2, 8, 30):
        params = layers(2 * n, 128, 128, 1)
        q, speed, measured = (normal(seed, 64, n) for seed in (20, 21, 22))
        many = [
            jax.jit(jax.vmap(one, in_axes=(None, 0, 0)))
            for one in (acceleration, acceleration_by_hand)
        ]

        def error(params, one, q=q, speed=speed, measured=measured):
            return jnp.mean((one(params, q, speed) - measured) ** 2)

        forward = [functools.partial(one, params, q, speed) for one in many]
        slopes = [jax.jit(jax.grad(functools.partial(error, one=one))) for one in many]
        training = [functools.partial(slope, params) for slope in slopes]
        name = f"{n} coordinates, batch 64"
        ratio = compare(*forward, rounds=9)
        yield of_ratio(f"in jit: Lagrangian network, acceleration, {name}", ratio)
        ratio = compare(*training, rounds=9)
        yield of_ratio(f"in jit: Lagrangian network, training gradient, {name}", ratio)


def without_jit() -> Iterator[Row]:
    """Compare calls from Python, with a new closure each time."""
    X, y = normal(30, 64, 10), normal(31, 64)
    w = normal(32, 10)

    def loss(w, row, target):
        return jnp.log1p(jnp.exp(-target * jnp.tanh(row @ w))) + 0.05 * w @ w

    mean = lambda w, X, y: jnp.mean(jax.vmap(loss, in_axes=(None, 0, 0))(w, X, y))

    def each(hessian):
        by_row = lambda row, target: hessian(lambda w: loss(w, row, target), w)
        return jax.vmap(by_row)(X, y)

    ratio = compare(
        lambda: each(hotk.hessian),
        lambda: each(lambda f, x: jax.hessian(f)(x)),
        rounds=7,
    )
    yield of_ratio("without jit: Hessians of 64 examples / jax.hessian", ratio)
    ratio = compare(
        lambda: hotk.hessian(lambda w: mean(w, X, y), w),
        lambda: jax.hessian(lambda w: mean(w, X, y))(w),
        rounds=7,
    )
    yield of_ratio("without jit: Hessian of a loss / jax.hessian", ratio)

    def step():
        H = hotk.HessianOperator(lambda w: mean(w, X, y), w)
        return H.solve(H.gradient).x

    def step_by_hand():
        gradient, product = jax.linearize(jax.grad(lambda w: mean(w, X, y)), w)
        return cg(product, gradient)[0]

    ratio = compare(step, step_by_hand, rounds=5)
    yield of_ratio("without jit: Newton-CG step / jax.linearize and cg", ratio)


def measure() -> Iterator[Row]:
    """Yield all rows."""
    yield from diagonals()
    yield from lagrangian_networks()
    yield from without_jit()


if __name__ == "__main__":
    run(str(__doc__), measure)
