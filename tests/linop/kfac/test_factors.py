"""Factors computed by hand with NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.curvature import SoftmaxCrossEntropy, SquaredError


RNG = np.random.default_rng(0)


def draw(*shape):
    return RNG.normal(size=shape)


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def hessians(z):
    p = softmax(z)
    return p[:, :, None] * np.eye(p.shape[1]) - p[:, :, None] * p[:, None, :]


def perceptron(p, x):
    return jnp.tanh(x @ p["w"] + p["b"]) @ p["v"] + p["c"]


P = {"b": draw(4), "c": draw(3), "v": draw(4, 3), "w": draw(5, 4)}
X, Y = draw(7, 5), RNG.integers(0, 3, 7)


def by_hand(outer):
    """Return A and G of both layers, given the matrices of the outputs."""
    one = np.ones((7, 1))
    h = np.tanh(X @ P["w"] + P["b"])
    jacobian = P["v"][None].transpose(0, 2, 1) * (1 - h**2)[:, None, :]
    a = [np.hstack([X, one]), np.hstack([h, one])]
    A = [each.T @ each / 7 for each in a]
    G = [np.einsum("noi,nop,npj->ij", jacobian, outer, jacobian), outer.sum(0)]
    return A, G


def factors(K):
    return [block.A.values for block in K.blocks], [b.G.values for b in K.blocks]


def check(K, outer):
    for got, expected in zip(factors(K), by_hand(outer), strict=True):
        for a, b in zip(got, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("reduction", "factor"), [("mean", 1 / 7), ("sum", 1)])
def test_the_exact_factors_of_a_perceptron(reduction, factor):
    loss = SoftmaxCrossEntropy(jnp.array(Y), reduction=reduction)
    K = hotk.KFACOperator(perceptron, loss, P, X)
    check(K, factor * hessians(np.asarray(perceptron(P, X))))


def test_the_empirical_factors():
    z = np.asarray(perceptron(P, X))
    slope = softmax(z) - np.eye(3)[Y]
    loss = SoftmaxCrossEntropy(jnp.array(Y))
    K = hotk.KFACOperator(perceptron, loss, P, X, estimate="empirical")
    check(K, slope[:, :, None] * slope[:, None, :] / 7)


def test_sampled_factors_are_those_of_targets_drawn_with_the_key():
    z, key = perceptron(P, X), jax.random.key(3)
    loss = SoftmaxCrossEntropy(jnp.array(Y))
    options = {"estimate": "sampled", "key": key, "samples": 4}
    K = hotk.KFACOperator(perceptron, loss, P, X, **options)
    drawn = np.stack([loss.sample(k, z) for k in jax.random.split(key, 4)])
    slope = softmax(np.asarray(z)) - np.eye(3)[drawn]
    check(K, np.einsum("sni,snj->nij", slope, slope) / 28)


def test_sampled_factors_approach_the_exact_ones():
    loss = SoftmaxCrossEntropy(jnp.array(Y))
    exact = hotk.KFACOperator(perceptron, loss, P, X)
    options = {"estimate": "sampled", "key": jax.random.key(0), "samples": 20_000}
    K = hotk.KFACOperator(perceptron, loss, P, X, **options)
    for a, b in zip(factors(K)[1], factors(exact)[1], strict=True):
        assert np.linalg.norm(a - b) < 0.03 * np.linalg.norm(b)


def patches(x, size):
    """Return the window at each place, an array of (examples, places, numbers)."""
    n, rows, columns, _ = x.shape
    windows = [
        x[:, i : i + size, j : j + size].reshape(n, -1)
        for i in range(rows - size + 1)
        for j in range(columns - size + 1)
    ]
    return np.stack(windows, axis=1)


@pytest.mark.parametrize("approximation", ["expand", "reduce"])
def test_the_factors_of_a_convolutional_net(approximation):
    """Two convolutions and a mean, with squared errors."""
    p = {"u": draw(2, 2, 2, 3), "v": draw(2, 2, 3, 2), "w": draw(2, 2)}
    x = draw(4, 5, 5, 2)

    def model(p, x):
        for w in (p["u"], p["v"]):
            x = jax.lax.conv_general_dilated(
                x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jnp.tanh(x)
        return jnp.mean(x, axis=(1, 2)) @ p["w"]

    loss = SquaredError(jnp.zeros((4, 2)))
    K = hotk.KFACOperator(model, loss, p, x, approximation=approximation)

    # hotk orders the rows of a kernel as the leaf does after channels first
    order = lambda a, c: a.reshape(*a.shape[:-1], 4, c).swapaxes(-1, -2)
    a0 = patches(x, 2)
    z0 = a0 @ p["u"].reshape(8, 3)
    h0 = np.tanh(z0)
    a1 = patches(h0.reshape(4, 4, 4, 3), 2)
    z1 = a1 @ p["v"].reshape(12, 2)
    h1 = np.tanh(z1)
    g1 = np.stack([(1 - h1**2) * p["w"][:, s] / 9 for s in range(2)])
    back = g1 @ p["v"].reshape(12, 2).T  # by the windows of the second layer
    image = np.zeros((2, 4, 4, 4, 3))
    for place in range(9):
        i, j = divmod(place, 3)
        window = back[:, :, place].reshape(2, 4, 2, 2, 3)
        image[:, :, i : i + 2, j : j + 2] += window
    g0 = image.reshape(2, 4, 16, 3) * (1 - h0**2)

    for block, a, g, c in zip(K.blocks, (a0, a1), (g0, g1), (2, 3), strict=False):
        a = order(a, c).reshape(*a.shape[:-1], -1)
        if approximation == "reduce":
            a, g = a.mean(1, keepdims=True), g.sum(2, keepdims=True)
        A = np.einsum("nti,ntj->ij", a, a) / (len(a) * a.shape[1])
        G = np.einsum("snti,sntj->ij", g, g) / 4
        np.testing.assert_allclose(block.A.values, A, rtol=0, atol=1e-12)
        np.testing.assert_allclose(block.G.values, G, rtol=0, atol=1e-12)


def test_the_patches_of_a_convolution_with_steps_and_gaps():
    """By loops: strides, zeros around and between the pixels, gaps in the kernel."""
    w, v, x = draw(3, 2, 2, 3), draw(2, 2), draw(3, 2, 4, 5)
    window_strides, padding = (2, 1), ((1, 2), (0, 1))
    options = {"lhs_dilation": (2, 1), "rhs_dilation": (1, 2)}

    def model(w, x):
        w = w.transpose(2, 1, 0, 3)  # from (rows, in, out, columns)
        z = jax.lax.conv_general_dilated(x, w, window_strides, padding, **options)
        return jnp.tanh(z).sum((2, 3)) @ v

    [block] = hotk.KFACOperator(model, SquaredError(jnp.zeros((3, 2))), w, x).blocks

    spread = np.zeros((3, 2, 10, 6))  # 7 + 1 + 2 rows, 5 + 1 columns
    spread[:, :, 1:8:2, :5] = x
    places = [(i, j) for i in range(0, 8, 2) for j in range(2)]  # 4 rows, 2 columns
    a = np.stack([spread[:, :, i : i + 3, j : j + 5 : 2] for i, j in places], axis=1)
    z = np.einsum("ntcrk,rcok->nto", a, w)
    g = np.stack([(1 - np.tanh(z) ** 2) * v[:, s] for s in range(2)])
    a = a.reshape(-1, 18)
    np.testing.assert_allclose(block.A.values, a.T @ a / len(a), rtol=0, atol=1e-12)
    G = np.einsum("snti,sntj->ij", g, g) / 3
    np.testing.assert_allclose(block.G.values, G, rtol=0, atol=1e-12)


def test_a_matrix_used_twice_has_the_factors_of_all_its_positions():
    """A recurrence written as a loop of Python, by positions of all its steps."""
    w, x, v = draw(3, 3), draw(4, 3), draw(3, 2)
    model = lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w) @ v
    [block] = hotk.KFACOperator(model, SquaredError(jnp.zeros((4, 2))), w, x).blocks
    h = np.tanh(x @ w)
    z = np.tanh(h @ w)
    last = v.T[:, None] * (1 - z**2)
    first = last @ w.T * (1 - h**2)
    a, g = np.vstack([x, h]), np.concatenate([last, first]).reshape(-1, 3)
    np.testing.assert_allclose(block.A.values, a.T @ a / 8, atol=1e-12)
    np.testing.assert_allclose(block.G.values, g.T @ g / 4, atol=1e-12)


def test_a_scan_over_time_has_the_factors_of_the_loop():
    w, x, v = draw(3, 3), draw(4, 3), draw(3, 2)
    loop = lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w) @ v

    def scanned(w, x):
        h, _ = jax.lax.scan(lambda h, _: (jnp.tanh(h @ w), None), x, length=2)
        return h @ v

    loss = SquaredError(jnp.zeros((4, 2)))
    for approximation in ("expand", "reduce"):
        options = {"approximation": approximation}
        [a] = hotk.KFACOperator(loop, loss, w, x, **options).blocks
        [b] = hotk.KFACOperator(scanned, loss, w, x, **options).blocks
        np.testing.assert_allclose(a.A.values, b.A.values, atol=1e-12)
        np.testing.assert_allclose(a.G.values, b.G.values, atol=1e-12)


def test_a_transposed_use_gives_the_nearest_kronecker_product():
    """Against the singular value decomposition of the rearranged sum."""
    w, i = draw(5, 3), np.array([1, 4, 4, 0])
    model = lambda w, i: jnp.tanh(w[i]) @ w.T
    loss = SquaredError(jnp.zeros((4, 5)))
    [block] = hotk.KFACOperator(model, loss, w, i).blocks
    h = np.tanh(w[i])
    last = np.eye(5), h.T @ h / 4  # of (rows, columns): 4 examples with I / 4
    g = (w[:, None] * (1 - h**2)).reshape(-1, 3)
    table = np.diag(np.bincount(i, minlength=5) / 4), g.T @ g / 4
    total = sum(np.outer(r.ravel(), c.ravel()) for r, c in (last, table))
    u, s, v = np.linalg.svd(total)
    expected = s[0] * np.kron(u[:, 0].reshape(5, 5), v[0].reshape(3, 3))
    got = np.kron(block.A.values, block.G.values)
    np.testing.assert_allclose(got, expected, atol=1e-12)


def test_the_moments_of_a_table():
    """Rows out of range read nothing, by the way that `jnp.take` fills them."""
    w, i = draw(5, 3), np.array([[1, 4, 7], [4, 4, 2]])
    model = lambda w, i: jnp.sum(jnp.take(w, i, axis=0, fill_value=0), axis=1)
    loss = SquaredError(jnp.zeros((2, 3)))
    counts = np.stack([np.bincount(row[row < 5], minlength=5) for row in i])
    [block] = hotk.KFACOperator(model, loss, w, i).blocks
    np.testing.assert_allclose(block.A.values, counts.sum(0) / 6, atol=1e-12)
    K = hotk.KFACOperator(model, loss, w, i, approximation="reduce")
    expected = ((counts / 3) ** 2).mean(0)
    np.testing.assert_allclose(K.blocks[0].A.values, expected, atol=1e-12)


def test_negative_rows_read_nothing_where_they_do_not_wrap():
    w, i = draw(5, 3), np.array([[1, -2], [4, 4]])
    options = {"mode": "fill", "fill_value": 0, "wrap_negative_indices": False}
    model = lambda w, i: jnp.sum(w.at[i].get(**options), axis=1)
    [block] = hotk.KFACOperator(model, SquaredError(jnp.zeros((2, 3))), w, i).blocks
    np.testing.assert_allclose(block.A.values, np.array([0, 1, 0, 0, 2]) / 4)


def test_large_entries_without_a_site_have_the_squares_of_gradients():
    """A product with a sine of the weights: no product of the weights themselves."""
    w, x = draw(30, 20), draw(4, 30)
    model = lambda w, x: x @ jnp.sin(w)
    [block] = hotk.KFACOperator(model, SquaredError(jnp.zeros((4, 20))), w, x).blocks
    assert block.kind == "diagonal 600"
    expected = (x**2).mean(0)[:, None] * np.cos(w) ** 2
    np.testing.assert_allclose(block.diagonal, expected.ravel(), atol=1e-12)
