"""Models of libraries: every parameter is found, whatever wrote the program."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.curvature import SoftmaxCrossEntropy, SquaredError


nn = pytest.importorskip("flax.linen")
nnx = pytest.importorskip("flax.nnx")
WORDS, WIDTH, LENGTH, BATCH = 40, 32, 6, 3
KEY = jax.random.key(0)
TEXT = jax.random.randint(KEY, (BATCH, LENGTH), 0, WORDS)
LABELS = jnp.zeros((BATCH, LENGTH), int)


def check(model, loss, x, *args):
    """Return the operator and the kinds of its blocks: nothing is compiled."""

    def make(x, *args):
        options = {"estimate": "sampled", "key": KEY}
        return hotk.KFACOperator(model, loss, x, *args, **options)

    K = eqx.filter_eval_shape(make, x, *args)
    kinds = sorted(block.kind for block in K.blocks)
    products = [kind for kind in kinds if "Kronecker" in kind]
    return K, products, [kind for kind in kinds if "Kronecker" not in kind]


class EquinoxBlock(eqx.Module):
    norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    again: eqx.nn.LayerNorm
    wide: eqx.nn.MLP

    def __init__(self, key):
        a, b = jax.random.split(key)
        self.norm, self.again = eqx.nn.LayerNorm(WIDTH), eqx.nn.LayerNorm(WIDTH)
        self.attention = eqx.nn.MultiheadAttention(2, WIDTH, use_key_bias=True, key=a)
        self.wide = eqx.nn.MLP(WIDTH, WIDTH, 2 * WIDTH, 1, jax.nn.gelu, key=b)

    def __call__(self, h):
        now = jax.vmap(self.norm)(h)
        h = h + self.attention(now, now, now, mask=np.tri(len(h), dtype=bool))
        return h + jax.vmap(self.wide)(jax.vmap(self.again)(h))


class EquinoxTransformer(eqx.Module):
    words: eqx.nn.Embedding
    places: jax.Array
    blocks: list
    last: eqx.nn.Linear

    def __init__(self, key):
        a, b, c, d = jax.random.split(key, 4)
        self.words = eqx.nn.Embedding(WORDS, WIDTH, key=a)
        self.places = jax.random.normal(d, (LENGTH + 2, WIDTH))
        self.blocks = [EquinoxBlock(k) for k in jax.random.split(b, 2)]
        self.last = eqx.nn.Linear(WIDTH, WORDS, key=c)

    def __call__(self, text):
        h = jax.vmap(self.words)(text) + self.places[: len(text)]
        for block in self.blocks:
            h = block(h)
        return jax.vmap(self.last)(h)


@pytest.mark.exhaustive
def test_an_equinox_transformer():
    model = lambda net, text: jax.vmap(net)(text)
    net, loss = EquinoxTransformer(KEY), SoftmaxCrossEntropy(LABELS)
    _, products, others = check(model, loss, net, TEXT)
    # words, last, and for each block q, k, v, out and two layers of the MLP
    assert len(products) == 2 + 2 * 6
    # the places that are used, those that are not, scales and shifts of the norms
    assert others == ["dense 192", *["dense 32"] * 8, "zero 64"]


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, h):
        now = nn.LayerNorm()(h)
        h = h + nn.MultiHeadDotProductAttention(num_heads=2)(now, now)
        now = nn.Dense(2 * WIDTH)(nn.LayerNorm()(h))
        return h + nn.Dense(WIDTH)(nn.gelu(now))


class LinenTransformer(nn.Module):
    @nn.compact
    def __call__(self, text):
        h = nn.Embed(WORDS, WIDTH)(text)
        for _ in range(2):
            h = LinenBlock()(h)
        return nn.Dense(WORDS)(h)


@pytest.mark.exhaustive
def test_a_linen_transformer():
    net, loss = LinenTransformer(), SoftmaxCrossEntropy(LABELS)
    _, products, others = check(net.apply, loss, net.init(KEY, TEXT), TEXT)
    # biases of heads are matrices of their own, joined to a matrix
    assert len(products) == 2 + 2 * 6
    assert others == ["dense 32"] * 8


class Layer(nn.Module):
    @nn.compact
    def __call__(self, h, _):
        return nn.Dense(WIDTH)(nn.gelu(h)), None


class Layers(nn.Module):
    @nn.compact
    def __call__(self, h):
        options = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
        h, _ = nn.scan(nn.remat(Layer), length=3, **options)()(h, None)
        return h


@pytest.mark.exhaustive
def test_layers_of_linen_in_a_scan():
    x = jax.random.normal(KEY, (BATCH, WIDTH), jnp.float32)
    p = Layers().init(KEY, x)
    loss = SquaredError(jnp.zeros((BATCH, WIDTH)))
    _, products, others = check(Layers().apply, loss, p, x)
    assert products == ["3 of Kronecker 33 x 32"]
    assert not others


class NnxTransformer(nnx.Module):
    def __init__(self, rngs):
        self.words = nnx.Embed(WORDS, WIDTH, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(
            2, WIDTH, WIDTH, decode=False, rngs=rngs
        )
        self.wide = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, text):
        h = self.words(text)
        h = h + self.attention(self.norms[0](h))
        h = h + self.narrow(nnx.gelu(self.wide(self.norms[1](h))))
        return self.words.attend(h)  # tied


@pytest.mark.exhaustive
def test_an_nnx_transformer_with_tied_weights():
    graph, p, rest = nnx.split(NnxTransformer(nnx.Rngs(0)), nnx.Param, ...)
    model = lambda p, text: nnx.merge(graph, p, rest)(text)
    K, products, others = check(model, SoftmaxCrossEntropy(LABELS), p, TEXT)
    assert len(products) == 1 + 4 + 2
    assert others == ["dense 32"] * 4
    [tied] = [block for block in K.blocks if len(block.origin.operations) == 2]
    assert tied.kind == f"Kronecker {WORDS} x {WIDTH}"


class ConvolutionalNet(eqx.Module):
    layers: list

    def __init__(self, key):
        a, b, c = jax.random.split(key, 3)
        self.layers = [
            eqx.nn.Conv2d(3, 8, 3, stride=2, key=a),
            jax.nn.relu,
            eqx.nn.Conv2d(8, 8, 3, groups=4, padding=1, key=b),
            jax.nn.relu,
            eqx.nn.AvgPool2d(2),
            jnp.ravel,
            eqx.nn.Linear(32, 5, key=c),
        ]

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.exhaustive
def test_a_convolutional_net_of_equinox():
    x = jax.random.normal(KEY, (BATCH, 3, 8, 8))
    model = lambda net, x: jax.vmap(net)(x)
    loss = SoftmaxCrossEntropy(jnp.zeros(BATCH, int))
    K, _, others = check(model, loss, ConvolutionalNet(KEY), x)
    assert not others
    kinds = ["Kronecker 28 x 8", "4 of Kronecker 19 x 2", "Kronecker 33 x 5"]
    assert [block.kind for block in K.blocks] == kinds


class RecurrentNet(eqx.Module):
    cell: eqx.nn.GRUCell
    last: eqx.nn.Linear

    def __call__(self, x):
        step = lambda h, now: (self.cell(now, h), None)
        h, _ = jax.lax.scan(step, jnp.zeros(16), x)
        return self.last(h)


@pytest.mark.exhaustive
def test_a_gru_of_equinox():
    a, b = jax.random.split(KEY)
    net = RecurrentNet(eqx.nn.GRUCell(4, 16, key=a), eqx.nn.Linear(16, 2, key=b))
    x = jax.random.normal(KEY, (BATCH, 7, 4))
    model = lambda net, x: jax.vmap(net)(x)
    loss = SquaredError(jnp.zeros((BATCH, 2)))
    _, products, others = check(model, loss, net, x)
    assert products == ["Kronecker 16 x 48", "Kronecker 17 x 2", "Kronecker 5 x 48"]
    assert others == ["dense 16"]  # a bias of one of the three parts of a product


def test_the_table_names_a_layer_of_nnx_once():
    class Two(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(3, 4, rngs=rngs)
            self.last = nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(nnx.tanh(self.first(x)))

    x = jnp.ones((5, 3), jnp.float32)
    loss = SoftmaxCrossEntropy(jnp.arange(5) % 2)
    model = lambda net, x: net(x)
    K = hotk.KFACOperator(model, loss, Two(nnx.Rngs(0)), x, where=nnx.Param)
    _, _, _, *rows = str(K).splitlines()
    found = [row.partition("  ")[0] for row in rows]
    assert found == [".first: kernel + bias", ".last: kernel + bias"]
    assert max(map(len, rows)) <= 100
    dense = lambda p, x: x @ p["first"]["w"] + p["first"]["b"]
    p = {"first": {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}}
    K = hotk.KFACOperator(dense, loss, p, jnp.ones((5, 3)))
    assert "\n['first']: ['w'] + ['b']  " in str(K)
