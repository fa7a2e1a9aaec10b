"""Functions of 24 numbers, one for each kind of program that a Hessian is made of."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


N = 24
_rng = np.random.default_rng(0)
TRIPLES = jnp.asarray(_rng.integers(0, N, (10, 3)))
A = jnp.asarray(_rng.normal(size=(4, 4)))
LOWER = jnp.asarray(np.tril(_rng.normal(size=(3, 3))) + 3 * np.eye(3))
KERNEL = jnp.asarray(_rng.normal(size=(3, 2, 3)))
PAIRS = jnp.asarray(_rng.integers(0, 4, (6, 2)))
PLACES = jnp.asarray(_rng.permutation(40)[:N])


def point(seed):
    """Return a point without special values."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=N))


def rows(x):
    """Return six rows of four."""
    return x.reshape(6, 4)


def _two_carries(x):
    def step(carry, u):
        a, b = carry
        new = jnp.sin(b) * u
        return (new, u * 2), new * a

    (a, _), ys = lax.scan(step, (x[0], x[1]), x[2:])
    return jnp.sum(ys**2) + a**2


def _shift_register(x):
    step = lambda c, u: (jnp.concatenate([c[1:], u[None]]), jnp.prod(c) * u)
    return jnp.sum(lax.scan(step, x[:3], x[3:])[1])


@jax.checkpoint
def _at_computed_places(x):
    """The places are computed again in the program of the derivative."""
    i = jnp.arange(6)
    at = lax.select(i < 3, (2 * i + 1) % N, abs(3 * i - 20) << 1)
    turned = jnp.ravel(i.reshape(2, 3) * 2, order="F")
    return jnp.sum(x[at] ** 2 * x[turned] * x[N - 1 - i // 2])


def _masked_after_scatter(x):
    y = jnp.zeros(40).at[PLACES].add(x)
    return jnp.sum(jnp.where(y > 0, y**2, jnp.sin(y)) * jnp.roll(y, 1))


def _long_register(x):
    """A carry of numbers that all depend on the same ones, from two steps on."""

    def step(c, u):
        c = 1.5 * jnp.concatenate([c[1:], jnp.zeros(1)])
        for i in range(12):
            c = c.at[i % 4].add(0.1 * i * u * x[0])
        return c, c

    c, cs = lax.scan(step, x[0] * jnp.ones(4), jnp.arange(1.0, 7.0))
    return jnp.sum(c**2) + jnp.sum(cs**3)


def _rollout(x):
    return lax.scan(lambda c, u: (jnp.sin(c) + u, c * u), jnp.zeros(()), x)[0] ** 2


def _counted(x):
    """A loop over steps that reads its counter."""
    step = lambda i, y: y.at[i].add(y[i + 1] ** 2 * y[i])
    return jnp.sum(lax.fori_loop(0, 5, step, x) ** 2)


def _reversed_scan(x):
    step = lambda c, u: (u, jnp.sin(c * u))
    return jnp.sum(lax.scan(step, jnp.ones(()), x, reverse=True)[1])


def _running_sum(x):
    """A sum in the carry, which no step reads."""
    step = lambda c, u: ((c[0] + u[0] ** 2 * c[1], u[1]), None)
    return lax.scan(step, (jnp.zeros(()), x[0]), rows(x)[:, :2])[0][0]


def _growing(x):
    """A carry multiplied by a known number that is one in the first step alone."""
    step = lambda c, r: (c * r[0] + jnp.sin(r[1]) ** 2, None)
    rows = (jnp.arange(1.0, 6.0), x[1:6])
    return lax.scan(step, x[0] ** 2, rows)[0] ** 2


def _switched(x):
    """A step that depends on its known number: the first one alone adds."""

    def step(c, r):
        add, square = lambda c: c + r[1] ** 2, lambda c: c * r[1]
        return lax.cond(r[0] == 0, add, square, c), None

    return lax.scan(step, x[0], (jnp.arange(5), x[1:6]))[0] ** 2


def _convolved(x, **options):
    image = x.reshape(1, 1, 6, 4)
    kernel = jnp.arange(1.0, 5.0).reshape(1, 1, 2, 2)
    return lax.conv_general_dilated(image, kernel, (1, 1), "SAME", **options)


def _solved(x):
    """Small systems, one for each of two examples."""
    matrices = x[:18].reshape(2, 3, 3) + 5 * jnp.eye(3)[None]
    return jnp.sum(jnp.linalg.solve(matrices, x[18:].reshape(2, 3, 1)) ** 2)


@jax.custom_jvp
def _clipped(x):
    return jnp.tanh(x)


@_clipped.defjvp
def _(primals, tangents):
    return jnp.tanh(primals[0]), tangents[0] * (1 - jnp.tanh(primals[0]) ** 2)


@jax.custom_vjp
def _cubed(x):
    return x**3


_cubed.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))


def _gram(x):
    return x[:4].reshape(2, 2) @ x[:4].reshape(2, 2).T + jnp.eye(2)


PROGRAMS = {
    "softplus of differences": lambda x: jnp.sum(jax.nn.softplus(jnp.diff(x))),
    "relu": lambda x: jnp.sum(jax.nn.relu(x[1:] * x[:-1]) ** 3),
    "roll": lambda x: jnp.sum(jnp.sin(x * jnp.roll(x, 2))),
    "flip": lambda x: jnp.sum(x**2 * x[::-1]),
    "strides": lambda x: jnp.sum(x[::2] ** 2 * x[1::2] ** 2),
    "einsum": lambda x: jnp.sum(jnp.einsum("bi,ij,bj->b", rows(x), A, rows(x)) ** 2),
    "product with a matrix": lambda x: jnp.sum(jnp.tanh(rows(x) @ A) ** 2),
    "batched product": lambda x: jnp.sum(
        jnp.einsum("bij,bjk->bik", x[:8].reshape(2, 2, 2), x[8:16].reshape(2, 2, 2))
        ** 2
    ),
    "outer product": lambda x: jnp.sum(jnp.outer(x[:4], x[4:8]) ** 2),
    "triangular solve": lambda x: jnp.sum(
        jax.scipy.linalg.solve_triangular(LOWER, x[:3], lower=True) ** 4
    ),
    "solve": lambda x: jnp.sum(
        jnp.linalg.solve(x[:9].reshape(3, 3) + 5 * jnp.eye(3), x[9:12]) ** 2
    ),
    "batched solve": _solved,
    "determinant": lambda x: jnp.linalg.det(x[:9].reshape(3, 3)),
    "cholesky": lambda x: jnp.sum(jnp.log(jnp.diag(jnp.linalg.cholesky(_gram(x))))),
    "sort": lambda x: jnp.sum(jnp.sort(x)[:5] ** 3),
    "max": lambda x: jnp.max(x**2) + jnp.sum(x**3),
    "maximum pool": lambda x: jnp.sum(
        lax.reduce_window(x**2, -jnp.inf, lax.max, (3,), (1,), "VALID")
    ),
    "average pool": lambda x: jnp.sum(
        lax.reduce_window(x**2, 0.0, lax.add, (3,), (1,), "VALID") ** 2
    ),
    "cond": lambda x: lax.cond(
        x[0] > 0, lambda y: jnp.sum(y[1:] ** 2 * y[:-1]), lambda y: jnp.sum(y**4), x
    ),
    "switch": lambda x: lax.switch(
        jnp.asarray(x[3] > 0, int),
        [lambda y: y[0] ** 2 * y[1], lambda y: y[2] ** 3],
        x,
    ),
    "gather under vmap": lambda x: jnp.sum(jax.vmap(lambda i: jnp.prod(x[i]))(TRIPLES)),
    "set a window": lambda x: jnp.sum(x.at[3:6].set(0.0)[1:] ** 2 * x[:-1]),
    "multiply at": lambda x: jnp.sum(
        x.at[jnp.array([1, 5, 7])].multiply(
            x[jnp.array([0, 2, 4])], unique_indices=True
        )
        ** 2
    ),
    "set at": lambda x: jnp.sum(jnp.zeros(30).at[jnp.array([1, 5, 7])].set(x[:3]) ** 3),
    "at the largest": lambda x: x[jnp.argmax(x)] ** 3 + jnp.sum(x**2),
    "at computed places": lambda x: jnp.sum(
        x[jnp.floor(jnp.abs(x[:4]) * 3).astype(int) % N] ** 3
    ),
    "cumulative sum": lambda x: jnp.sum(jnp.cumsum(x[:9]) ** 3),
    "cumulative product": lambda x: jnp.sum(jnp.cumprod(x[:5])),
    "fft": lambda x: jnp.sum(jnp.abs(jnp.fft.rfft(x[:8])) ** 4),
    "convolution": lambda x: jnp.sum(_convolved(x) ** 3),
    "dilated convolution": lambda x: jnp.sum(_convolved(x, rhs_dilation=(2, 1)) ** 3),
    "convolution of channels": lambda x: jnp.sum(
        lax.conv_general_dilated(x.reshape(1, 2, 12), KERNEL, (2,), [(1, 1)]) ** 3
    ),
    "grouped convolution": lambda x: jnp.sum(
        lax.conv_general_dilated(
            x.reshape(1, 2, 12),
            jnp.ones((2, 1, 3)),
            (1,),
            [(1, 1)],
            feature_group_count=2,
        )
        ** 3
    ),
    "kron": lambda x: jnp.sum(jnp.kron(x[:3], x[3:6]) ** 2),
    "tile": lambda x: jnp.sum(jnp.tile(x[:4], 3) ** 2 * x[:12]),
    "repeat": lambda x: jnp.sum(jnp.repeat(x[:8], 3) * x**2),
    "scan with two carries": _two_carries,
    "scan with a shift register": _shift_register,
    "scan with a long register": _long_register,
    "scan that remembers": _rollout,
    "scan backwards": _reversed_scan,
    "scan that adds up": _running_sum,
    "loop with a counter": _counted,
    "scan with known factors": _growing,
    "scan with known branches": _switched,
    "map": lambda x: jnp.sum(lax.map(lambda y: jnp.sin(y[0] * y[1]), x.reshape(12, 2))),
    "loop over a whole array": lambda x: jnp.sum(
        lax.fori_loop(0, 5, lambda i, y: y + 0.1 * jnp.roll(y, 1) ** 2, x)
    ),
    "associative scan": lambda x: jnp.sum(lax.associative_scan(jnp.multiply, x[:8])),
    "checkpoint": lambda x: jnp.sum(
        jax.checkpoint(lambda y: jnp.sin(y) * jnp.roll(y, 1))(x)
    ),
    "checkpoint of computed places": _at_computed_places,
    "custom_jvp": lambda x: jnp.sum(_clipped(x[1:] * x[:-1])),
    "custom_vjp": lambda x: jnp.sum(_cubed(x[1:] * x[:-1])),
    "norm": jnp.linalg.norm,
    "logsumexp": jax.nn.logsumexp,
    "linear": jnp.sum,
    "constant": lambda x: 3.0 + 0 * jnp.sum(x),
    "masked where it is scattered": _masked_after_scatter,
    "read outside": lambda x: jnp.sum(x.at[jnp.array([2, 30])].get(mode="clip") ** 3),
    "single entries": lambda x: x[3] ** 3 * x[4],
    "complex": lambda x: jnp.sum(jnp.abs(lax.complex(x[:-1], x[1:])) ** 4),
    "where": lambda x: jnp.sum(jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1)), 0)),
    "clip": lambda x: jnp.sum(jnp.clip(x, -0.5, 0.5) ** 2 * jnp.roll(x, 1)),
    "other dtype": lambda x: jnp.sum(
        (x.astype(jnp.float32) ** 2 * jnp.roll(x, 1).astype(jnp.float32)).astype(float)
    ),
    "lower triangle": lambda x: jnp.sum(jnp.tril(jnp.outer(x[:4], x[:4])) ** 2),
    "diagonal matrix": lambda x: jnp.sum(jnp.diag(x[:4]) @ A @ x[4:8]) ** 2,
    "trace": lambda x: jnp.trace(x[:16].reshape(4, 4) @ x[:16].reshape(4, 4) @ A),
    "sorted by argsort": lambda x: jnp.sum(
        x[jnp.argsort(x)] * jnp.arange(1.0, 25.0) * x
    ),
    "interpolation": lambda x: jnp.sum(
        jnp.interp(x, jnp.linspace(-3, 3, 7), jnp.arange(7.0) ** 2) ** 2
    ),
    "polynomial": lambda x: jnp.sum(jnp.polyval(jnp.array([1.0, 2.0, 3.0]), x)),
    "segment sums": lambda x: jnp.sum(
        jax.ops.segment_sum(x, jnp.asarray(np.arange(N) // 5), 6) ** 3
    ),
    "take along an axis": lambda x: jnp.sum(
        jnp.take_along_axis(rows(x), PAIRS, 1) ** 3
    ),
    "dynamic slice": lambda x: jnp.sum(lax.dynamic_slice(x, (5,), (6,)) ** 3),
    "update a slice": lambda x: jnp.sum(
        lax.dynamic_update_slice(x, x[:4] ** 2, (6,)) ** 2
    ),
}


# The pattern has entries that no point has: those of an unknown index, of a branch that
# is not taken, and of what cancels.
CONSERVATIVE = {
    "relu",
    "sort",
    "maximum pool",
    "max",
    "switch",
    "at the largest",
    "at computed places",
    "sorted by argsort",
    "determinant",
    "grouped convolution",
    "where",
    "masked where it is scattered",
    "clip",
    "cond",
    "interpolation",
}
