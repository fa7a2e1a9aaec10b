"""Losses that use parts of JAX beside arrays: sparse, solvers, images, keys, meshes."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import scipy.sparse
from jax import random, tree_util
from jax.experimental import sparse
from jax.experimental.ode import odeint
from jax.experimental.sparse import BCOO, sparsify
from jax.flatten_util import ravel_pytree
from jax.scipy.optimize import minimize
from jax.scipy.signal import convolve
from jax.scipy.sparse.linalg import cg
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

from tests.everyday.corpus import everyday


def pattern(seed, rows=8, columns=5):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(rows, columns))
    kept = np.add.outer(np.arange(rows), np.arange(columns)) % 3 == 0
    return np.where(kept, dense, 0.0).astype(np.float32)


@everyday("sparse data matrix BCOO in the closure")
def bcoo(seed):
    A = BCOO.fromdense(pattern(seed))
    b = jnp.asarray(np.random.default_rng(seed).normal(size=8))

    def loss(w):
        return jnp.mean((A @ w - b) ** 2)

    return loss, jnp.linspace(-1.0, 1.0, 5), ()


@everyday("sparsified function of a sparse argument")
def sparsified(seed):
    A = sparse.BCOO.fromdense(pattern(seed))

    @sparsify
    def energy(w, A):
        return jnp.sum(jnp.tanh(A @ w) ** 2)

    return energy, jnp.linspace(-1.0, 1.0, 5), (A,)


@everyday(
    "SciPy's sparse matrix turned inside the loss",
    slow="SciPy's matrix is read by NumPy: call `BCOO.from_scipy_sparse` before",
)
def scipy_sparse(seed):
    matrix = scipy.sparse.csr_matrix(pattern(seed))

    def loss(w):
        A = BCOO.from_scipy_sparse(matrix)
        return jnp.sum(jnp.log1p((A @ w) ** 2))

    return loss, jnp.linspace(-1.0, 1.0, 5), ()


@everyday("triples of a SciPy matrix as arrays")
def triples(seed):
    matrix = scipy.sparse.coo_matrix(pattern(seed))

    def loss(w):
        terms = matrix.data * w[matrix.col]
        sums = jax.ops.segment_sum(terms, jnp.asarray(matrix.row), num_segments=8)
        return jnp.sum(jax.nn.softplus(sums))

    return loss, jnp.linspace(-1.0, 1.0, 5), ()


@everyday("pendulum by odeint")
def pendulum(seed):
    observed = jnp.asarray(np.random.default_rng(seed).normal(size=4))
    t = jnp.linspace(0.0, 1.0, 4)

    def swing(state, t, damping, gravity):
        theta, omega = state
        return jnp.stack([omega, -damping * omega - gravity * jnp.sin(theta)])

    def loss(params):
        path = jax.checkpoint(
            lambda p: rk4(swing, jnp.array([0.5, 0.0]), t, p[0], p[1])
        )(params)
        return jnp.mean((path[:, 0] - observed) ** 2)

    return loss, jnp.array([0.2, 3.0]), ()


def rk4(field, y0, ts, *args):
    """Integrate with one Runge-Kutta step between times."""

    def step(y, pair):
        t0, t1 = pair
        h = t1 - t0
        k1 = field(y, t0, *args)
        k2 = field(y + h * k1 / 2, t0 + h / 2, *args)
        k3 = field(y + h * k2 / 2, t0 + h / 2, *args)
        k4 = field(y + h * k3, t1, *args)
        y = y + h * (k1 + 2 * k2 + 2 * k3 + k4) / 6
        return y, y

    _, path = jax.lax.scan(step, y0, (ts[:-1], ts[1:]))
    return jnp.concatenate([y0[None], path])


@everyday("neural field by odeint")
def by_odeint(seed):
    y0 = jnp.asarray(np.random.default_rng(seed).normal(size=2))

    def dynamics(y, t, params):
        return jnp.tanh(params @ y)

    def loss(params):
        path = odeint(dynamics, y0, jnp.array([0.0, 0.3]), params, rtol=1e-3, atol=1e-3)
        return jnp.sum(path[-1] ** 2)

    return loss, jnp.array([[0.1, 0.4], [-0.3, 0.2]]), ()


@everyday("conjugate gradients with a captured preconditioner")
def by_cg(seed):
    A = np.random.default_rng(seed).normal(size=(5, 5))
    A = jnp.asarray(A @ A.T + 5 * np.eye(5))
    M = functools.partial(jnp.multiply, 1 / jnp.diag(A))

    def loss(log_shift):
        matvec = lambda x: A @ x + jnp.exp(log_shift) * x
        solution, _ = cg(matvec, jnp.ones(5), M=M, tol=1e-6, maxiter=20)
        return jnp.sum(solution**2)

    return loss, jnp.linspace(-0.5, 0.5, 5), ()


@everyday("one step after an inner BFGS")
def after_bfgs(seed):
    centre = jnp.asarray(np.random.default_rng(seed).normal(size=2))
    bowl = lambda x: jnp.sum((x - centre) ** 2) + jnp.sum(x**4)

    def outer(scale):
        fixed = jax.lax.stop_gradient(minimize(bowl, jnp.zeros(2), method="BFGS").x)
        return jnp.sum(jnp.sin(scale * fixed)) + bowl(scale)

    return outer, jnp.array([0.4, 0.7]), ()


@everyday("image resized and convolved")
def image(seed):
    target = jnp.asarray(np.random.default_rng(seed).uniform(size=(8, 8)))

    def loss(small):
        large = jax.image.resize(small, (8, 8), method="bicubic")
        blurred = convolve(large, jnp.full((3, 3), 1 / 9), mode="same")
        return jnp.mean((blurred - target) ** 2 * (1 + large**2))

    return loss, 0.1 * jnp.arange(16.0).reshape(4, 4), ()


@everyday("Monte Carlo with a key of the closure")
def monte_carlo(seed):
    key = random.PRNGKey(seed)

    def price(params):
        rate, volatility = params
        paths = random.normal(key, (20, 4))
        growth = (rate - volatility**2 / 2) / 4 + volatility * paths / 2.0
        return jnp.mean(jnp.exp(growth.sum(1))) ** 2

    return price, jnp.array([0.1, 0.3]), ()


@everyday("dropout with a folded typed key")
def dropout(seed):
    key, X = jr.key(seed), jnp.asarray(np.random.default_rng(seed).normal(size=(6, 4)))

    @functools.partial(jax.jit, static_argnames=("rate",))
    def forward(w, key, rate=0.2):
        keep = jr.bernoulli(jr.fold_in(key, 7), 1 - rate, X.shape)
        return jnp.tanh(jnp.where(keep, X / (1 - rate), 0.0) @ w)

    return lambda w: jnp.mean(forward(w, key) ** 2), jnp.linspace(-1, 1, 4), ()


@everyday("jax.tree_util.Partial over parameters")
def tree_partial(seed):
    X, y = np.random.default_rng(seed).normal(size=(2, 6))

    def residual(weights, x, y, w):
        return jnp.sum(weights * (jnp.tanh(x * w[0]) + w[1] - y) ** 2)

    f = tree_util.Partial(residual, jnp.ones(6), jnp.asarray(X), jnp.asarray(y))
    return f, jnp.array([0.4, 0.1]), ()


@everyday("mesh and sharding in the closure")
def mesh(seed):
    devices = Mesh(np.array(jax.devices()[:1]), ("data",))
    X = jax.device_put(
        np.random.default_rng(seed).normal(size=(8, 3)),
        NamedSharding(devices, P("data", None)),
    )

    def loss(w):
        constrained = jax.lax.with_sharding_constraint(
            X @ w, NamedSharding(devices, P("data"))
        )
        return jnp.mean(jnp.cosh(constrained))

    return loss, jnp.array([0.1, -0.2, 0.3]), ()


@everyday(
    "mean over shards by shard_map",
    slow="shard_map completes its axes at the first call: wrap a function of "
    "the module, called once before",
)
def sharded(seed):
    devices = Mesh(np.array(jax.devices()[:1]), ("i",))
    X = jnp.asarray(np.random.default_rng(seed).normal(size=(8, 3)))

    @functools.partial(
        jax.shard_map, mesh=devices, in_specs=(P(), P("i")), out_specs=P()
    )
    def loss(w, rows):
        return jax.lax.pmean(jnp.mean(jnp.cosh(rows @ w)), "i")

    return lambda w: loss(w, X), jnp.array([0.1, -0.2, 0.3]), ()


@everyday("shapes of a template, filled from one vector")
def template(seed):
    shapes = {
        "w": jax.ShapeDtypeStruct((3, 2), jnp.float32),
        "b": jax.ShapeDtypeStruct((2,), jnp.float32),
    }
    X = jnp.asarray(np.random.default_rng(seed).normal(size=(5, 3)))

    def loss(flat):
        leaves, treedef = jax.tree.flatten(shapes)
        parts, at = [], 0
        for leaf in leaves:
            size = int(np.prod(leaf.shape))
            parts.append(flat[at : at + size].reshape(leaf.shape).astype(leaf.dtype))
            at += size
        params = jax.tree.unflatten(treedef, parts)
        return jnp.mean(jnp.tanh(X @ params["w"] + params["b"]) ** 2)

    return loss, jnp.linspace(-1.0, 1.0, 8), ()


@everyday("unravel of ravel_pytree in the closure")
def raveled(seed):
    rng = np.random.default_rng(seed)
    params = {"w": jnp.asarray(rng.normal(size=(3, 2))), "b": jnp.zeros(2)}
    flat, unravel = ravel_pytree(params)
    X = jnp.asarray(0.3 * rng.normal(size=(5, 3)))

    def loss(flat):
        p = unravel(flat)
        return jnp.mean(jax.nn.gelu(X @ p["w"] + p["b"]) ** 2)

    return loss, flat, ()


@tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Problem:
    """Data as leaves, choices as static fields."""

    X: jax.Array
    y: jax.Array
    activation: Callable[[Any], Any] = dataclasses.field(metadata={"static": True})
    power: int = dataclasses.field(default=2, metadata={"static": True})

    @functools.partial(jax.jit, static_argnums=())
    def __call__(self, w):
        return jnp.mean((self.activation(self.X @ w) - self.y) ** self.power)


@everyday("registered dataclass with a jitted __call__")
def registered(seed):
    rng = np.random.default_rng(seed)
    X, y = jnp.asarray(rng.normal(size=(6, 3))), jnp.asarray(rng.normal(size=6))
    problem = Problem(X, y, jax.nn.silu)
    return problem, jnp.array([0.1, -0.2, 0.3]), ()


@everyday("spectrum of a signal by FFT")
def spectrum(seed):
    signal = np.random.default_rng(seed).normal(size=16)
    power = np.abs(np.fft.rfft(signal)) ** 2

    def whittle(log_params):
        scale, decay = jnp.exp(log_params)
        frequencies = jnp.fft.rfftfreq(16)
        density = scale / (decay + frequencies**2)
        filtered = jnp.fft.irfft(jnp.sqrt(density) * jnp.fft.rfft(signal))
        return jnp.sum(jnp.log(density) + power / density) + jnp.sum(filtered**2)

    return whittle, jnp.array([0.3, -1.0]), ()


@everyday("residuals with linearize and a solve, names imported")
def newton_decrement(seed):
    A = np.random.default_rng(seed).normal(size=(6, 3))

    def inner(w, theta):
        return jnp.sum(jnp.logaddexp(0.0, A @ w)) + 0.5 * jnp.sum(jnp.exp(theta) * w**2)

    def decrement(theta):
        w = jnp.full(3, 0.1)
        g = jax.grad(inner)(w, theta)
        H = jax.hessian(inner)(w, theta)
        return g @ jax.scipy.linalg.solve(H, g, assume_a="pos")

    return decrement, jnp.array([0.1, -0.2, 0.3]), ()


@everyday("switch over branches made in a list")
def branches(seed):
    choice = jnp.asarray(seed % 3)
    parts = [jnp.sin, jnp.tanh, lambda x: x**3]

    def loss(x):
        y = jax.lax.switch(choice, parts, x)
        return jnp.sum(jax.lax.cond(y.sum() > 0, jnp.square, jnp.cosh, y))

    return loss, jnp.array([0.2, 0.5, 0.3]), ()


@everyday("attention with a mask of NumPy and named einsum")
def attention(seed):
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(2, 5, 4)).astype(np.float32)
    mask = np.tril(np.ones((5, 5), dtype=bool))

    def loss(params):
        with jax.named_scope("attention"):
            q, k, v = (jnp.einsum("btd,de->bte", tokens, params[n]) for n in "qkv")
            scores = jnp.einsum("bte,bse->bts", q, k) / np.sqrt(4)
            scores = jnp.where(mask, scores, -1e9)
            out = jax.nn.softmax(scores) @ v
        return jnp.mean(out**2)

    make = lambda k: 0.3 * jnp.cos(jnp.arange(16.0) + k).reshape(4, 4)
    return loss, {name: make(k) for k, name in enumerate("qkv")}, ()
