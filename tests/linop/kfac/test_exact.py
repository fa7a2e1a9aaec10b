"""Where theory says that K-FAC is exact, it equals blocks of the dense matrix."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.curvature import SoftmaxCrossEntropy, SquaredError


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def ranges(K):
    """Return the places of each block's entries in a flat vector."""
    leaves, places = jax.tree.leaves(K.template), []
    ends = np.cumsum([0, *(a.size for a in leaves)])
    numbers = [
        np.arange(a, b).reshape(leaf.shape)
        for a, b, leaf in zip(ends, ends[1:], leaves, strict=False)
    ]
    for block in K.blocks:
        index = np.asarray(block.layout.take([jnp.asarray(a) for a in numbers]))
        kind = type(block).__name__
        several = index.ndim - (2 if kind == "KroneckerBlock" else 1)
        places += list(index.reshape(-1, np.prod(index.shape[several:], dtype=int)))
    return places


def check(model, loss, x, *args, **options):
    """Compare each block with that of the Gauss-Newton matrix, and the rest with 0."""
    K = hotk.KFACOperator(model, loss, x, *args, **options)
    expected = np.asarray(hotk.GGNOperator(model, loss, x, *args).matrix())
    got, inside = np.asarray(K.matrix()), np.zeros(expected.shape, bool)
    places = ranges(K)
    assert np.sort(np.concatenate(places)).tolist() == list(range(len(expected)))
    for index in places:
        inside[np.ix_(index, index)] = True
    np.testing.assert_allclose(got[inside], expected[inside], rtol=0, atol=1e-12)
    assert not got[~inside].any()
    assert np.abs(expected).max() > 1e-3
    return K


def kinds(K):
    return [block.kind for block in K.blocks]


SQUARES = lambda *shape, **k: SquaredError(jnp.zeros(shape), **k)


def test_a_linear_model():
    p = {"b": jnp.zeros(2), "w": jnp.zeros((3, 2))}
    K = check(lambda p, x: x @ p["w"] + p["b"], SQUARES(5, 2), p, normal(0, 5, 3))
    assert kinds(K) == ["Kronecker 4 x 2"]


def layers(seed, sizes):
    return [
        (normal(seed + i, a, b), normal(9 + seed + i, b))
        for i, (a, b) in enumerate(itertools.pairwise(sizes))
    ]


def perceptron(p, x):
    for w, b in p[:-1]:
        x = jnp.tanh(x @ w + b)
    return x @ p[-1][0] + p[-1][1]


def test_one_example():
    p = layers(0, (3, 4, 2))
    K = check(perceptron, SoftmaxCrossEntropy(jnp.array([1])), p, normal(5, 1, 3))
    assert kinds(K) == ["Kronecker 4 x 4", "Kronecker 5 x 2"]


@pytest.mark.parametrize(
    "reduction", ["mean", pytest.param("sum", marks=pytest.mark.exhaustive)]
)
def test_deep_linear_networks_by_expand(reduction):
    """The loss is a sum over positions, and each has the same Hessian."""
    model = lambda p, x: (x @ p[0] + p[1]) @ p[2]
    p = [normal(0, 3, 4), normal(1, 4), normal(2, 4, 2)]
    loss = SQUARES(5, 6, 2, reduction=reduction)
    K = check(model, loss, p, normal(3, 5, 6, 3))
    assert kinds(K) == ["Kronecker 4 x 4", "Kronecker 4 x 2"]


@pytest.mark.exhaustive
def test_a_mean_over_positions_by_reduce():
    model = lambda p, x: jnp.mean((x @ p[0] + p[1]) @ p[2], axis=1)
    p = [normal(0, 3, 4), normal(1, 4), normal(2, 4, 2)]
    check(model, SQUARES(5, 2), p, normal(3, 5, 6, 3), approximation="reduce")


def convolved(x, w, **options):
    return jax.lax.conv_general_dilated(x, w, padding="VALID", **options)


@pytest.mark.exhaustive
def test_grouped_convolutions():
    """One position: a kernel as large as the image."""
    numbers = ("NHWC", "HWIO", "NHWC")
    options = {"window_strides": (1, 1), "dimension_numbers": numbers}

    def model(p, x):
        h = convolved(x, p["w"], feature_group_count=2, **options)
        return jnp.tanh(h + p["b"])[:, 0, 0] @ p["v"]

    p = {"b": normal(2, 6), "v": normal(3, 6, 2), "w": normal(1, 3, 2, 2, 6)}
    K = check(model, SQUARES(1, 2), p, normal(0, 1, 3, 2, 4))
    # groups have factors of their own, so that the block of a group is exact
    assert kinds(K) == ["2 of Kronecker 13 x 3", "Kronecker 6 x 2"]


@pytest.mark.exhaustive
def test_strided_convolutions_by_reduce():
    options = {"window_strides": (2, 1), "rhs_dilation": (1, 2)}

    def model(p, x):
        h = convolved(x, p["w"], **options) + p["b"][:, None, None]
        return jnp.mean(h, axis=(2, 3))

    p = {"b": normal(2, 3), "w": normal(1, 3, 2, 3, 2)}
    x = normal(0, 4, 2, 8, 7)
    K = check(model, SQUARES(4, 3), p, x, approximation="reduce")
    assert kinds(K) == ["Kronecker 13 x 3"]


@pytest.mark.parametrize(
    "reverse", [pytest.param(False, marks=pytest.mark.exhaustive), True]
)
def test_a_scan_over_layers_with_checkpoints(reverse):
    def model(p, x):
        layer = jax.checkpoint(lambda h, wb: (jnp.tanh(h @ wb[0] + wb[1]), None))
        h, _ = jax.lax.scan(layer, x, (p["w"], p["b"]), reverse=reverse)
        return h @ p["v"]

    p = {"b": normal(1, 4, 3), "v": normal(2, 3, 2), "w": normal(0, 4, 3, 3)}
    K = check(model, SQUARES(1, 2), p, normal(3, 1, 3))
    assert kinds(K) == ["4 of Kronecker 4 x 3", "Kronecker 3 x 2"]


@pytest.mark.exhaustive
def test_ensembles():
    def member(p, x):
        return jnp.tanh(x @ p[0] + p[1]) @ p[2]

    model = lambda p, x: jax.vmap(member, (0, None), 1)(p, x)
    p = [normal(0, 5, 3, 4), normal(1, 5, 4), normal(2, 5, 4, 2)]
    K = check(model, SQUARES(1, 5, 2), p, normal(3, 1, 3))
    # all members read the same inputs, so JAX makes one product of the first layers
    assert kinds(K) == ["Kronecker 4 x 20", "5 of Kronecker 4 x 2"]


@pytest.mark.exhaustive
def test_slices_of_one_array():
    """Heads, splits, multiples, reversed and transposed weights, and a part unused."""

    def model(p, x):
        q, k, v = jnp.split(p["w"], 3, axis=1)
        h = jnp.einsum("ni,hid->nhd", x, q.reshape(3, 2, 2).transpose(1, 0, 2))
        h = h.reshape(1, 4) * (x @ (2 * k)) + jnp.tanh(x @ -v[::-1])
        return h[:, :2] @ p["u"][:2].T / 3

    p = {"u": normal(1, 3, 2), "w": normal(0, 3, 12)}
    K = check(model, SQUARES(1, 2), p, normal(2, 1, 3))
    thirds = ["Kronecker 3 x 4"] * 3
    assert kinds(K) == ["Kronecker 2 x 2", "zero 2", *thirds]


@pytest.mark.exhaustive
def test_biases_and_scales():
    """They have dense blocks, exact for any number of examples."""

    def model(p, x):
        h = x * p["scale"] + p["shift"]
        return jnp.tanh(h) - p["last"]

    p = {"last": normal(0, 3), "scale": normal(1, 3), "shift": normal(2, 3)}
    K = check(model, SoftmaxCrossEntropy(jnp.zeros(4, int)), p, normal(3, 4, 3))
    assert kinds(K) == ["dense 3"] * 3


def test_numbers_as_parameters():
    model = lambda p, x: jnp.tanh(p["slope"] * x + p["shift"])
    p = {"shift": normal(0), "slope": normal(1)}
    K = check(model, SQUARES(4, 3), p, normal(2, 4, 3))
    assert kinds(K) == ["dense 1", "dense 1"]


@pytest.mark.exhaustive
def test_one_entry_that_is_used_twice_is_no_part_of_a_product():
    """A bias of one number, read by another operation as well."""
    model = lambda p, x: jnp.tanh(x @ p["w"] + p["b"]) * jnp.exp(p["b"])
    p = {"b": normal(0, 1), "w": normal(1, 3, 1)}
    K = check(model, SQUARES(1, 1), p, normal(2, 1, 3))
    assert kinds(K) == ["dense 1", "dense 3"]


def test_rows_of_two_products_belong_to_neither():
    """Both products lose their block, the second one's other rows as well."""

    def model(w, x):
        h = jnp.tanh(x @ w[:3])
        return h + x[:, 1:] @ w[2:4] + x @ w[4:]

    K = check(model, SQUARES(4, 2), normal(0, 7, 2), normal(1, 4, 3))
    assert kinds(K) == ["Kronecker 3 x 2", "dense 8"]


def test_a_bias_of_two_products_joins_neither():
    model = lambda p, x: jnp.tanh(x @ p["v"] + p["b"]) * (x @ p["w"] + p["b"])
    p = {"b": normal(0, 2), "v": normal(1, 3, 2), "w": normal(2, 3, 2)}
    K = check(model, SQUARES(1, 2), p, normal(3, 1, 3))
    assert kinds(K) == ["dense 2", "Kronecker 3 x 2", "Kronecker 3 x 2"]


def test_a_bias_that_is_added_elsewhere_does_not_join():
    """It has a block of its own, of both uses, and the product keeps its factors."""
    model = lambda p, x: jnp.tanh(jnp.tanh(x @ p["w"] + p["b"]) * 2 + p["b"])
    p = {"b": normal(0, 2), "w": normal(1, 3, 2)}
    K = check(model, SQUARES(1, 2), p, normal(3, 1, 3))
    assert kinds(K) == ["dense 2", "Kronecker 3 x 2"]


def test_multiples_of_a_table():
    model = lambda p, i: jnp.tanh((p / 3)[i])
    K = check(model, SQUARES(1, 3), normal(0, 5, 3), jnp.array([3]))
    assert kinds(K) == ["Kronecker diagonal 5 x 3"]


@pytest.mark.exhaustive
def test_a_kernel_of_convolutions_with_other_numbers_of_groups():
    """Its entries are matrices of each group here, and one matrix there."""
    numbers = ("NHWC", "HWIO", "NHWC")
    options = {"window_strides": (1, 1), "dimension_numbers": numbers}

    def model(w, x):
        grouped = convolved(x, w, feature_group_count=2, **options)
        return (jnp.tanh(grouped) + convolved(x[..., 1:3], w, **options))[:, 0, 0]

    K = check(model, SQUARES(3, 4), normal(0, 2, 2, 2, 4), normal(1, 3, 2, 2, 4))
    assert kinds(K) == ["dense 32"]


def test_a_number_times_an_array():
    model = lambda p, x: p * jnp.sum(x**2)
    K = check(model, SQUARES(1, 3), normal(0, 1, 3), normal(2, 1, 3))
    assert kinds(K) == ["dense 3"]


@pytest.mark.exhaustive
def test_what_is_no_site_is_exact_where_it_is_dense():
    def model(p, x):
        w = p["g"] * p["v"] / jnp.linalg.norm(p["v"], axis=0)
        return jnp.sin(p["t"]) * (x @ w) + jnp.concatenate([p["c"], p["c"]])

    p = {"c": normal(0, 1), "g": normal(1, 2), "t": normal(3), "v": normal(2, 3, 2)}
    K = check(model, SoftmaxCrossEntropy(jnp.zeros(4, int)), p, normal(4, 4, 3))
    assert kinds(K) == ["dense 1", "dense 2", "dense 1", "dense 6"]


@pytest.mark.parametrize("sign", [pytest.param(1, marks=pytest.mark.exhaustive), -1])
def test_a_bias_that_is_subtracted_joins(sign):
    def model(p, x):
        h = x @ p["w"]
        return jnp.tanh(h - p["b"] if sign > 0 else p["b"] - h)

    p = {"b": normal(0, 2), "w": normal(1, 3, 2)}
    K = check(model, SQUARES(1, 2), p, normal(2, 1, 3))
    assert kinds(K) == ["Kronecker 4 x 2"]


def test_a_bias_joins_only_where_nothing_else_reads_the_product():
    def model(p, x):
        h = x @ p["w"]
        return jnp.tanh(h + p["b"]) + h

    p = {"b": normal(0, 2), "w": normal(1, 3, 2)}
    K = check(model, SQUARES(1, 2), p, normal(2, 1, 3))
    assert kinds(K) == ["dense 2", "Kronecker 3 x 2"]


@pytest.mark.exhaustive
def test_a_bias_of_some_positions_does_not_join():
    model = lambda p, x: (x @ p["w"])[:, -1] + p["b"]
    p = {"b": normal(0, 2), "w": normal(1, 3, 2)}
    K = check(model, SQUARES(1, 2), p, normal(2, 1, 1, 3))
    x = normal(2, 4, 5, 3)
    K = hotk.KFACOperator(model, SQUARES(4, 2), p, x)
    assert kinds(K) == ["dense 2", "Kronecker 3 x 2"]


@pytest.mark.exhaustive
def test_an_embedding():
    """Rows of a table, one position; a row that is not read has no curvature."""
    model = lambda p, i: jnp.tanh(p["table"][i]) @ p["v"]
    p = {"table": normal(0, 5, 3), "v": normal(1, 3, 2)}
    K = check(model, SQUARES(1, 2), p, jnp.array([3]))
    assert kinds(K) == ["Kronecker diagonal 5 x 3", "Kronecker 3 x 2"]


@pytest.mark.exhaustive
def test_weights_of_several_steps_by_reduce():
    """A linear recurrence whose steps are read as a mean is no exact case but one."""

    def model(p, x):
        body = lambda h, now: (h + now @ p["w"] + p["b"], None)
        h, _ = jax.lax.scan(body, jnp.zeros((len(x), 2)), jnp.swapaxes(x, 0, 1))
        return h

    p = {"b": normal(0, 2), "w": normal(1, 3, 2)}
    K = check(model, SQUARES(4, 2), p, normal(2, 4, 5, 3), approximation="reduce")
    assert kinds(K) == ["dense 2", "Kronecker 3 x 2"]


@pytest.mark.parametrize(
    "model",
    [
        lambda p, x: jnp.imag(jnp.fft.fft(x) @ p),
        lambda p, x: jnp.abs(jnp.fft.fft(x) @ p) ** 2,
        lambda p, x: jnp.fft.irfft(jnp.einsum("ni,io->no", jnp.fft.rfft(x), p[:3])),
        lambda p, x: jnp.real(jnp.fft.fft(x) * p[:, 0]),
    ],
    ids=["imag", "power", "spectral convolution", "scale"],
)
def test_complex_numbers_on_the_way_have_a_block_of_another_kind(model):
    """Of one example it is the Gauss-Newton matrix, by the Jacobian."""
    p, x = normal(0, 4, 3), normal(1, 1, 4)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        out = jax.eval_shape(model, p, x).shape[1]
        K = hotk.KFACOperator(model, SQUARES(1, out), p, x)
        J = jax.jacrev(lambda v: model(v.reshape(4, 3), x).ravel())(p.ravel())
    np.testing.assert_allclose(K.matrix(), J.T @ J, rtol=1e-9, atol=1e-9)
    assert all("Kronecker" not in kind for kind in kinds(K))
