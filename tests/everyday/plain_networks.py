"""Networks and deep learning losses, written with plain JAX."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import nn, random, vmap
from jax.lax import conv_general_dilated, reduce_window, scan
from jax.nn.initializers import glorot_normal
from jax.scipy.special import logsumexp

from tests.everyday.corpus import everyday
from tests.everyday.draws import labels, normals


@everyday("attention: heads by einsum, a causal mask, layer norm")
def attention(seed):
    x, Wqkv, Wo = normals(seed, (5, 4), (3, 4, 2, 2), (2, 2, 4))
    mask = jnp.tril(jnp.ones((5, 5), bool))

    def layer_norm(x, eps=1e-5):
        centered = x - x.mean(-1, keepdims=True)
        return centered / jnp.sqrt(jnp.mean(centered**2, -1, keepdims=True) + eps)

    def block(params, x):
        q, k, v = jnp.einsum("td,cdhk->chtk", layer_norm(x), params["qkv"])
        scores = jnp.einsum("htk,hsk->hts", q, k) / jnp.sqrt(q.shape[-1])
        weights = nn.softmax(jnp.where(mask, scores, -1e9), axis=-1)
        return x + jnp.einsum("hts,hsk,hkd->td", weights, v, params["out"])

    return lambda p: jnp.mean(block(p, x) ** 2), {"qkv": Wqkv, "out": Wo}, ()


@everyday("a stack of layers by scan over stacked parameters")
def stacked_layers(seed):
    W, b, X, y = normals(seed, (3, 4, 4), (3, 4), (6, 4), (6, 4))

    def apply(params, x):
        layer = lambda h, p: (h + jnp.tanh(h @ p["W"] + p["b"]), None)
        return scan(jax.checkpoint(layer), x, params)[0]

    return lambda p: jnp.mean((apply(p, X) - y) ** 2), {"W": W, "b": b}, ()


@everyday("a language model: embeddings, recurrent cell, next token")
def language_model(seed):
    E, W, U = normals(seed, (6, 3), (3, 3), (3, 3))
    tokens = jnp.asarray(labels(seed, 8, 6))

    def nll(params):
        def step(h, token):
            h = jnp.tanh(params["W"] @ h + params["U"] @ params["E"][token])
            return h, h

        _, hidden = scan(step, jnp.zeros(3), tokens[:-1])
        log_p = nn.log_softmax(hidden @ params["E"].T)
        return -jnp.mean(jnp.take_along_axis(log_p, tokens[1:, None], axis=1))

    return nll, {"E": E, "W": W, "U": U}, ()


@everyday("a convolution with average pooling")
def convolution(seed):
    images, kernel, head = normals(seed, (3, 6, 6, 1), (3, 3, 1, 2), (8, 2))
    dims = ("NHWC", "HWIO", "NHWC")

    def forward(params, images):
        conv = partial(
            conv_general_dilated,
            window_strides=(1, 1),
            padding="VALID",
            dimension_numbers=dims,
        )
        h = nn.silu(conv(images, params["kernel"]))
        window = (1, 2, 2, 1)
        h = reduce_window(h, 0.0, jax.lax.add, window, window, "VALID") / 4
        return h.reshape(h.shape[0], -1) @ params["head"]

    def loss(params):
        return jnp.mean(forward(params, images) ** 2)

    return loss, {"kernel": kernel, "head": head}, ()


def init_mlp(key, sizes, init=glorot_normal()):  # noqa: B008  JAX's own way
    keys = random.split(key, len(sizes) - 1)
    shapes = pairwise(sizes)
    return [
        {"w": init(k, s), "b": jnp.zeros(s[1])}
        for k, s in zip(keys, shapes, strict=True)
    ]


def mlp(params, x, activation=nn.softplus):
    *hidden, last = params
    for layer in hidden:
        x = activation(x @ layer["w"] + layer["b"])
    return x @ last["w"] + last["b"]


@everyday("variational autoencoder: ELBO with a key in the closure")
def autoencoder(seed):
    (X,) = normals(seed, (6, 4))
    key, noise_key = random.split(random.PRNGKey(seed))
    k1, k2 = random.split(key)
    params = {"encoder": init_mlp(k1, (4, 5, 4)), "decoder": init_mlp(k2, (2, 5, 4))}

    def negative_elbo(params):
        mean, log_var = jnp.split(mlp(params["encoder"], X), 2, axis=-1)
        z = mean + jnp.exp(0.5 * log_var) * random.normal(noise_key, mean.shape)
        reconstruction = jnp.sum((mlp(params["decoder"], z) - X) ** 2, -1)
        kl = -0.5 * jnp.sum(1 + log_var - mean**2 - jnp.exp(log_var), -1)
        return jnp.mean(reconstruction + kl)

    return negative_elbo, params, ()


@everyday("a normalizing flow of coupling layers")
def flow(seed):
    (X,) = normals(seed, (7, 2))
    keys = random.split(random.key(seed), 2)
    params = [init_mlp(k, (1, 3, 2)) for k in keys]

    def coupling(params, x, flip):
        a, b = x[::-1] if flip else x
        log_scale, shift = mlp(params, a[None], jnp.tanh)
        out = jnp.stack([a, b * jnp.exp(log_scale) + shift])
        return (out[::-1] if flip else out), log_scale

    def log_prob(params, x):
        total = 0.0
        for i, layer in enumerate(params):
            x, log_det = coupling(layer, x, flip=bool(i % 2))
            total += log_det
        return total + jax.scipy.stats.norm.logpdf(x).sum()

    return lambda p: -vmap(partial(log_prob, p))(X).mean(), params, ()


@everyday("variational inference, reparametrized, mapped over keys")
def variational(seed):
    X, y, mean = normals(seed, (9, 3), (9,), (3,))
    keys = random.split(random.key(seed), 4)

    def log_joint(w):
        return -0.5 * jnp.sum((jnp.tanh(X @ w) - y) ** 2) - 0.5 * jnp.sum(w**2)

    def negative_elbo(q):
        def sample(key):
            return q["mean"] + jnp.exp(q["log_std"]) * random.normal(key, (3,))

        return (
            -jnp.mean(vmap(lambda k: log_joint(sample(k)))(keys)) - q["log_std"].sum()
        )

    return negative_elbo, {"mean": mean, "log_std": jnp.zeros(3) - 1}, ()


@everyday("a contrastive loss of normalized embeddings")
def contrastive(seed):
    a, b, W = normals(seed, (5, 3), (5, 3), (3, 2))
    temperature = 0.5

    def embed(W, x):
        z = x @ W
        return z / jnp.sqrt(jnp.sum(z**2, -1, keepdims=True) + 1e-6)

    def info_nce(W):
        logits = embed(W, a) @ embed(W, b).T / temperature
        return -jnp.mean(jnp.diagonal(nn.log_softmax(logits, axis=1)))

    return info_nce, W, ()


@everyday("soft dynamic time warping by scan, as CTC is computed")
def alignment(seed):
    a, b = normals(seed, (5, 2), (6, 2))
    gamma = 0.5

    def soft_min(*values):
        return -gamma * logsumexp(jnp.stack(values) / -gamma, axis=0)

    def cost(a):
        D = jnp.sum((a[:, None] - b[None, :]) ** 2, -1)

        def row(above, d):
            def cell(left, inputs):
                diagonal, up, dij = inputs
                value = dij + soft_min(left, up, diagonal)
                return value, value

            diagonals = jnp.concatenate([above[:1] + 5.0, above[:-1]])
            _, values = scan(cell, above[0] + d[0] + 5.0, (diagonals, above, d))
            return values, None

        last, _ = scan(row, jnp.cumsum(D[0]), D[1:])
        return last[-1]

    return cost, a, ()


@everyday("teacher and student: distillation with stop_gradient")
def distillation(seed):
    X, teacher, W = normals(seed, (8, 3), (3, 4), (3, 4))

    def kl(student, T=2.0):
        p = jax.lax.stop_gradient(nn.softmax(X @ teacher / T))
        return -jnp.mean(jnp.sum(p * nn.log_softmax(X @ student / T), -1))

    return kl, W, ()


@everyday("a policy gradient loss with advantages and an entropy")
def policy_gradient(seed):
    states, advantages, W = normals(seed, (10, 4), (10,), (4, 3))
    actions = labels(seed, 10, 3)

    def ppo(W, clip=0.2, old=W + 0.05):
        log_pi = nn.log_softmax(states @ W)
        rows = jnp.arange(10)
        ratio = jnp.exp((log_pi - nn.log_softmax(states @ old))[rows, actions])
        clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
        surrogate = jnp.minimum(ratio * advantages, clipped * advantages)
        entropy = -jnp.sum(jnp.exp(log_pi) * log_pi, -1)
        return -jnp.mean(surrogate + 0.01 * entropy)

    return ppo, W, ()


@everyday("a graph network: messages by segment_sum")
def graph(seed):
    nodes, W, U = normals(seed, (6, 3), (3, 3), (6, 1))
    senders, receivers = jnp.asarray(labels(3, 9, 6)), jnp.asarray(labels(4, 9, 6))

    def readout(params):
        messages = jnp.tanh(nodes[senders] @ params["W"])
        gathered = jax.ops.segment_sum(messages, receivers, num_segments=6)
        h = jnp.concatenate([nodes, gathered], axis=1) @ params["U"]
        return jnp.sum(nn.softplus(h) ** 2)

    return readout, {"W": W, "U": U}, ()


@everyday("implicit neural field: sines of coordinates, mapped twice")
def siren(seed):
    (target,) = normals(seed, (4, 4))
    params = init_mlp(random.PRNGKey(seed), (2, 5, 1))
    axis = jnp.linspace(-1, 1, 4)

    def pixel(params, s, t):
        return mlp(params, jnp.stack([s, t]), lambda h: jnp.sin(3.0 * h))[0]

    image = vmap(vmap(pixel, (None, None, 0)), (None, 0, None))
    return lambda p: jnp.mean((image(p, axis, axis) - target) ** 2), params, ()
