"""JAX's functions imported by name: transformations, control flow, `jax.nn`."""

from functools import partial

import jax.numpy as jnp
from jax import (
    checkpoint,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jit,
    jvp,
    lax,
    linearize,
    value_and_grad,
    vjp,
    vmap,
)
from jax.flatten_util import ravel_pytree
from jax.lax import (
    associative_scan,
    cond,
    fori_loop,
    map as lax_map,
    scan,
    stop_gradient,
    switch,
    while_loop,
)
from jax.nn import gelu, relu, sigmoid, silu, softmax
from jax.scipy.linalg import cholesky, solve_triangular
from jax.tree_util import Partial, tree_leaves, tree_map

from tests.everyday.corpus import everyday
from tests.everyday.draws import labels, normals, numpy_normals


def net(params, x):
    W1, b1, w2 = params
    return jnp.tanh(W1 @ x + b1) @ w2


batched_net = vmap(net, (None, 0))
fast_net = jit(batched_net)
checkpointed_net = checkpoint(net)


def small_net(seed):
    W1, b1, w2, X, y = normals(seed, (5, 3), (5,), (5,), (8, 3), (8,))
    return (W1, b1, w2), X, y


@everyday("vmap by name around a module's function")
def vmap_by_name(seed):
    params, X, y = small_net(seed)
    return lambda p: jnp.mean((vmap(net, (None, 0))(p, X) - y) ** 2), params, ()


@everyday("vmap made before, in a global")
def vmap_in_a_global(seed):
    params, X, y = small_net(seed)
    return lambda p: jnp.mean((batched_net(p, X) - y) ** 2), params, ()


@everyday("vmap made before, in a cell")
def vmap_in_a_cell(seed):
    params, X, y = small_net(seed)
    model = vmap(net, in_axes=(None, 0))

    def loss(p):
        return jnp.mean((model(p, X) - y) ** 2)

    return loss, params, ()


@everyday("vmap of a local function over NumPy data")
def vmap_numpy(seed):
    X, y, w = numpy_normals(seed, (9, 4), (9,), (4,))

    def one(w, x, y):
        return (jnp.sin(x @ w) - y) ** 2

    def loss(w):
        return vmap(one, in_axes=(None, 0, 0))(w, X, y).mean()

    return loss, jnp.asarray(w), ()


@everyday("jit of a vmap in a global")
def jit_in_a_global(seed):
    params, X, y = small_net(seed)
    return lambda p: jnp.mean((fast_net(p, X) - y) ** 2), params, ()


@everyday("the decorator jit on the closure itself")
def jit_inside_the_maker(seed):
    params, X, y = small_net(seed)

    @jit
    def loss(p):
        return jnp.mean((batched_net(p, X) - y) ** 2)

    return loss, params, ()


@everyday("a jitted helper made with the closure")
def jitted_helper(seed):
    A, x = normals(seed, (4, 4), (4,))

    @jit
    def energy(x):
        return x @ A @ x + jnp.sum(x**4)

    return lambda x: jnp.log1p(energy(x) ** 2), x, ()


@partial(jit, static_argnames=("depth", "activation"))
def deep(x, A, depth, activation):
    for _ in range(depth):
        x = activation(A @ x)
    return jnp.sum(x**2)


@everyday("nested jits with static arguments by name")
def static_arguments(seed):
    A, x = normals(seed, (4, 4), (4,))

    @partial(jit, static_argnums=1)
    def loss(x, depth=3):
        return deep(x, A, depth, activation=jnp.tanh)

    return lambda x: loss(x, 2) + loss(x), x, ()


@everyday("grad by name inside: the norm of a gradient")
def grad_inside(seed):
    A, x = normals(seed, (4, 4), (4,))
    potential = lambda x: jnp.sum(jnp.cos(A @ x))
    return lambda x: jnp.sum(grad(potential)(x) ** 2), x, ()


@everyday("value_and_grad, jacfwd, jacrev and hessian inside")
def all_derivatives(seed):
    A, x = normals(seed, (3, 3), (3,))

    def inner(x):
        return jnp.sum(jnp.sin(A @ x) ** 3)

    field = lambda x: jnp.sin(A @ x)

    def loss(x):
        value, slope = value_and_grad(inner)(x)
        J, Jt = jacfwd(field)(x), jacrev(field)(x)
        return value + slope @ x + jnp.trace(J @ Jt.T) + hessian(inner)(x).sum()

    return loss, x, ()


@everyday("linearize, jvp and vjp inside")
def linear_maps(seed):
    A, x, t = normals(seed, (3, 3), (3,), (3,))

    def loss(x):
        y, push = linearize(lambda x: jnp.tanh(A @ x), x)
        _, dy = jvp(jnp.sin, (x,), (t,))
        _, pull = vjp(jnp.cos, x)
        return jnp.sum(y * push(t)) + jnp.sum(dy * pull(t)[0])

    return loss, x, ()


@everyday("checkpoint by name, as a decorator and in a global")
def checkpointed(seed):
    params, X, y = small_net(seed)

    @checkpoint
    def block(h):
        return h + jnp.tanh(h)

    def loss(p):
        out = vmap(checkpointed_net, (None, 0))(p, X)
        return jnp.mean((block(block(out)) - y) ** 2)

    return loss, params, ()


@everyday("checkpoint with a policy")
def checkpoint_policy(seed):
    from jax.ad_checkpoint import checkpoint_name, checkpoint_policies

    W, x = normals(seed, (4, 4), (4,))
    policy = checkpoint_policies.save_only_these_names("hidden")

    @partial(checkpoint, policy=policy)
    def layer(x):
        return jnp.sin(checkpoint_name(W @ x, "hidden"))

    return lambda x: jnp.sum(layer(layer(x)) ** 2), x, ()


@everyday("scan by name: a recurrent cell")
def scan_by_name(seed):
    W, U, xs, h0 = normals(seed, (4, 4), (4, 3), (6, 3), (4,))

    def cell(h, x):
        h = jnp.tanh(W @ h + U @ x)
        return h, h.sum()

    def loss(h0):
        last, outs = scan(cell, h0, xs)
        return jnp.sum(last**2) + jnp.mean(outs)

    return loss, h0, ()


def step(carry, x):
    carry = 0.9 * jnp.sin(carry) + x
    return carry, carry**2


run_steps = partial(lax.scan, step)


@everyday("partial(lax.scan, body) in a global")
def partial_scan(seed):
    xs, start = normals(seed, (7,), ())
    return lambda c: run_steps(c, xs)[1].sum(), start, ()


@everyday("partial(lax.scan, body) in a cell, the body a closure")
def partial_scan_in_a_cell(seed):
    xs, A, start = normals(seed, (5, 3), (3, 3), (3,))
    roll = partial(lax.scan, lambda c, x: (jnp.tanh(A @ c + x), c), unroll=2)
    return lambda c: jnp.sum(roll(c, xs)[0] ** 2), start, ()


@everyday("cond and switch by name")
def branches(seed):
    A, x = normals(seed, (3, 3), (3,))
    powers = [lambda y: y**2, lambda y: y**3, jnp.sin]

    def loss(x):
        y = cond(jnp.sum(x) > 0, lambda y: A @ y, lambda y: y - A @ y, x)
        index = jnp.argmax(stop_gradient(y))
        return switch(index, powers, y).sum() + jnp.sum(y**2)

    return loss, x, ()


@everyday("fori_loop by name: iterations of a smoother")
def fori(seed):
    A, x = normals(seed, (4, 4), (4,))

    def smooth(i, y):
        return y - 0.1 * jnp.sin(A.T @ (A @ y)) / (i + 1)

    return lambda x: jnp.sum(fori_loop(0, 5, smooth, x) ** 2), x, ()


@everyday("while_loop by name, its trip count without derivative")
def trip_count(seed):
    A, x = normals(seed, (3, 3), (3,))

    def loss(x):
        norm = stop_gradient(jnp.sum(x**2))
        halvings = while_loop(
            lambda s: s[0] > 1, lambda s: (s[0] / 2, s[1] + 1), (norm, 0)
        )
        return jnp.sum(jnp.sin(A @ x) ** 2) * (1.0 + halvings[1])

    return loss, x, ()


@everyday("map of jax.lax by name")
def lax_map_by_name(seed):
    params, X, y = small_net(seed)

    def loss(p):
        return jnp.mean((lax_map(lambda x: net(p, x), X) - y) ** 2)

    return loss, params, ()


@everyday("associative_scan by name: a linear recurrence")
def linear_recurrence(seed):
    a, b = normals(seed, (8,), (8,))

    def combine(left, right):
        (a1, b1), (a2, b2) = left, right
        return a1 * a2, a2 * b1 + b2

    def loss(a):
        _, states = associative_scan(combine, (sigmoid(a), b))
        return jnp.sum(states**2)

    return loss, a, ()


ACTIVATIONS = {"relu": relu, "gelu": gelu, "silu": silu, "tanh": jnp.tanh}


@everyday("activations of jax.nn by name from a dict")
def activations(seed):
    W, x = normals(seed, (5, 4), (4,))
    names = ("gelu", "silu", "tanh")

    def loss(W):
        total = relu(W @ x).sum() ** 2
        for name in names:
            total += jnp.sum(softmax(ACTIVATIONS[name](W @ x)) ** 2)
        return total

    return loss, W, ()


@everyday("ravel_pytree: a loss of the flat vector")
def raveled(seed):
    params, X, y = small_net(seed)
    flat, unravel = ravel_pytree(params)

    def loss(flat):
        return jnp.mean((vmap(net, (None, 0))(unravel(flat), X) - y) ** 2)

    return loss, flat, ()


@everyday("tree_map, tree_leaves and Partial by name")
def trees(seed):
    params, X, y = small_net(seed)
    model = Partial(vmap(net, (None, 0)))

    def loss(p):
        p = tree_map(lambda leaf: 0.5 * leaf, p)
        penalty = sum(jnp.sum(leaf**2) for leaf in tree_leaves(p))
        return jnp.mean((model(p, X) - y) ** 2) + 1e-2 * penalty

    return loss, params, ()


@everyday("Partial over arrays as the function itself")
def partial_tree(seed):
    params, X, y = small_net(seed)

    def loss(X, y, p):
        return jnp.mean((batched_net(p, X) - y) ** 2)

    return Partial(loss, X, y), params, ()


@everyday("cholesky and solve_triangular by name")
def dense_linear_algebra(seed):
    A, b = normals(seed, (3, 3), (3,))

    def loss(A):
        L = cholesky(A @ A.T + 2 * jnp.eye(3), lower=True)
        return jnp.sum(solve_triangular(L, b, lower=True) ** 2)

    return loss, A, ()


@everyday("per-example losses: vmap of a grad of a jit")
def per_example(seed):
    params, X, y = small_net(seed)

    @jit
    def one(p, x, y):
        return (net(p, x) - y) ** 2

    def loss(p):
        norms = vmap(lambda x, y: sum(jnp.sum(g**2) for g in grad(one)(p, x, y)))(X, y)
        return jnp.mean(jnp.sqrt(norms + 1.0))

    return loss, params, ()


@everyday("jitted function taken from a module's list")
def from_a_list(seed):
    A, x = normals(seed, (3, 3), (3,))
    y = jnp.asarray(labels(seed, 3, 3))
    return lambda x: HEADS[0](A @ x) + HEADS[1](x, y), x, ()


HEADS = [
    jit(lambda x: jnp.sum(jnp.sin(x))),
    jit(lambda x, y: -jnp.log(softmax(x))[y].sum()),
]
