"""`KFACOperator` as an operator: products, inverses, determinants, transformations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import hotk
from hotk.curvature import HuberLoss, SoftmaxCrossEntropy, SquaredError
from tests.devices import run_on_eight_devices
from tests.helpers import close


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


P = {
    "b": normal(0, 4),
    "s": normal(1, 4),
    "t": normal(2, 6, 4),
    "unused": normal(5, 2),
    "v": normal(3, 2, 2, 3),
    "w": normal(4, 4, 4),
}
X, Y = jax.random.randint(jax.random.key(6), (5, 3), 0, 6), jnp.arange(5) % 3
LOSS = SoftmaxCrossEntropy(Y)


def model(p, x):
    """Have blocks of each kind: a table, groups, a bias that joins, a scale."""
    h = jnp.tanh(p["t"][x] @ p["w"] + p["b"]) * p["s"]
    heads = h.reshape(*h.shape[:2], 2, 2)
    return jnp.einsum("ntgd,gdo->ngo", heads, p["v"]).sum(1)


@pytest.fixture(scope="module")
def K():
    with jax.numpy_rank_promotion("allow"):
        return hotk.KFACOperator(model, LOSS, P, X)


@pytest.fixture(scope="module")
def matrix(K):
    return np.asarray(K.matrix())


@pytest.mark.exhaustive
def test_the_matrix_is_symmetric_and_positive_semidefinite(K, matrix):
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-14)
    assert np.linalg.eigvalsh(matrix).min() > -1e-12
    assert K.symmetric
    assert K.positive_semidefinite
    v = jax.tree.map(jnp.ones_like, P)
    close(K.flat(K @ v), jnp.asarray(matrix @ np.ones(K.size)))
    many = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), v)
    close(
        jax.tree.map(lambda a: a[1], K.many(many)), K @ jax.tree.map(lambda a: 2 * a, v)
    )


@pytest.mark.exhaustive
def test_inverse_and_determinant_by_eigenvalues(K, matrix):
    damped = matrix + 0.1 * np.eye(len(matrix))
    expected = np.linalg.inv(damped)
    np.testing.assert_allclose(K.inverse(0.1, "eigh").matrix(), expected, atol=1e-11)
    E = K.eigendecomposition()
    np.testing.assert_allclose(E.matrix(), matrix, atol=1e-12)
    np.testing.assert_allclose(E.inverse(0.1).matrix(), expected, atol=1e-11)
    np.testing.assert_allclose(K.logdet(0.1), np.linalg.slogdet(damped)[1], rtol=1e-12)
    np.testing.assert_allclose(K.eigenvalues(), np.linalg.eigvalsh(matrix), atol=1e-12)
    root = E.inverse(0.1).sqrt().matrix()
    np.testing.assert_allclose(root @ root, expected, atol=1e-11)


def test_the_inverse_with_pi():
    """By hand: equation in section 6.3 of Martens and Grosse."""
    w, x = normal(0, 3, 2), normal(1, 5, 3)
    loss = SquaredError(jnp.zeros((5, 2)))
    K = hotk.KFACOperator(lambda w, x: x @ w, loss, w, x)
    A, G = np.asarray(x.T @ x / 5), np.eye(2)
    pi = np.sqrt((np.trace(A) / 3) / (np.trace(G) / 2))
    left = np.linalg.inv(A + pi * np.sqrt(0.2) * np.eye(3))
    right = np.linalg.inv(G + np.sqrt(0.2) / pi * np.eye(2))
    close(K.inverse(0.2) @ w, jnp.asarray(left @ np.asarray(w) @ right))
    [block] = K.blocks
    np.testing.assert_allclose(block.A.values, A, atol=1e-14)
    np.testing.assert_allclose(block.G.values, G, atol=1e-14)


@pytest.mark.exhaustive
def test_inverses_of_large_factors():
    """Halves of matrices, whose Cholesky factors are of their blocks."""
    from hotk.linop.kfac._factor import inverse

    a = np.random.default_rng(0).normal(size=(2, 400, 700))
    M = a @ a.swapaxes(-1, -2) / 700 + 0.1 * np.eye(400)
    np.testing.assert_allclose(inverse(jnp.asarray(M)), np.linalg.inv(M), atol=1e-11)


@pytest.mark.exhaustive
def test_other_methods_of_inverse(K, matrix, as_user):
    damped = matrix + 0.5 * np.eye(len(matrix))
    got = K.inverse(0.5, "cholesky").matrix()
    np.testing.assert_allclose(got, np.linalg.inv(damped), atol=1e-9)
    with pytest.raises(ValueError, match="not 'pi', 'eigh', 'cholesky' or 'solve'"):
        K.inverse(0.5, "lu")
    with pytest.raises(ValueError, match="negative"):
        K.inverse(-1.0)


def test_a_singular_factor_is_an_error_outside_of_transformations(K):
    with pytest.raises(hotk.NotPositiveDefiniteError, match="larger `damping`"):
        K.inverse(0.0)
    inside = jax.jit(lambda K, d: K.inverse(d) @ P)(K, 0.0)
    assert not np.isfinite(inside["unused"]).any()


@pytest.mark.exhaustive
def test_as_a_preconditioner():
    """An ill-conditioned regression, whose Kronecker factors are exact."""
    w, scale = normal(0, 20, 3), jnp.logspace(0, 3, 20)
    x, loss = normal(1, 50, 20) * scale, SquaredError(jnp.zeros((50, 3)))
    regression = lambda w, x: x @ w
    G = hotk.GGNOperator(regression, loss, w, x) + 0.01 * hotk.Identity()
    M = hotk.KFACOperator(regression, loss, w, x).inverse(0.01)
    plain = hotk.linop.cg(G, w, tol=1e-8, max_steps=500)
    found = hotk.linop.cg(G, w, tol=1e-8, max_steps=500, preconditioner=M)
    assert bool(found.converged)
    assert int(found.iterations) < int(plain.iterations) / 3


def test_multiples_and_sums_are_those_of_matrices(K, matrix):
    assert isinstance(2 * K, hotk.KFACOperator)
    np.testing.assert_allclose((2 * K).matrix(), 2 * matrix, atol=1e-12)
    np.testing.assert_allclose((K / 4).matrix(), matrix / 4, atol=1e-12)
    np.testing.assert_allclose((-K).matrix(), -matrix, atol=1e-12)
    np.testing.assert_allclose((K + 2 * K).matrix(), 3 * matrix, atol=1e-12)
    assert not (-K).positive_semidefinite


def test_a_multiple_is_one_of_its_blocks_inside_of_jit_too(K, matrix):
    @jax.jit
    def multiples(K, traced):
        for scaled in (3 * K, K / 0.25, 1e-3 * K):
            assert isinstance(scaled, hotk.KFACOperator)
        assert not isinstance(traced * K, hotk.KFACOperator)  # it may be negative
        assert not isinstance(-2 * K, hotk.KFACOperator)
        return (K / 0.25).inverse(0.1, "eigh").matrix(), (traced * K).matrix()

    inverse, scaled = multiples(K, -2.0)
    expected = np.linalg.inv(4 * matrix + 0.1 * np.eye(len(matrix)))
    np.testing.assert_allclose(inverse, expected, atol=1e-11)
    np.testing.assert_allclose(scaled, -2 * matrix, atol=1e-12)


def test_moving_averages_are_arithmetic_on_arrays(K):
    other = hotk.KFACOperator(model, LOSS, P, X[::-1])
    mean = optax.incremental_update(other, K, 0.25)
    for a, b, c in zip(mean.blocks, K.blocks, other.blocks, strict=True):
        expected = jax.tree.map(lambda b, c: 0.75 * b + 0.25 * c, b, c)
        close(jax.tree.leaves(a), jax.tree.leaves(expected))
    assert isinstance(mean, hotk.KFACOperator)
    assert bool(jnp.isfinite((mean.inverse(0.1) @ P)["w"]).all())


@pytest.mark.exhaustive
def test_under_jit_and_in_a_scan(K):
    @jax.jit
    def product(p, x, y):
        K = hotk.KFACOperator(model, SoftmaxCrossEntropy(y), p, x)
        return K.inverse(0.1) @ p

    close(product(P, X, Y), K.inverse(0.1) @ P)

    def step(carry, x):
        new = hotk.KFACOperator(model, LOSS, P, x)
        return jax.tree.map(lambda a, b: a / 2 + b / 2, carry, new), None

    last, _ = jax.lax.scan(step, K, jnp.stack([X, X]))
    close(last @ P, K @ P)


def test_a_fresh_lambda_over_new_data_compiles_nothing():
    def of(x):
        fresh = lambda p, x: jnp.tanh(x @ p) * 2.0
        loss = SquaredError(jnp.zeros((4, 2)))
        return hotk.KFACOperator(fresh, loss, jnp.ones((3, 2)), x)

    of(normal(0, 4, 3))
    before = hotk.cache_info().compiles
    of(normal(1, 4, 3))
    assert hotk.cache_info().compiles == before


def test_captured_arrays_are_those_of_now():
    scale = {"a": jnp.array(1.0)}
    net = lambda w, x: scale["a"] * (x @ w)
    loss, w, x = SquaredError(jnp.zeros((4, 2))), normal(0, 3, 2), normal(1, 4, 3)
    before = hotk.KFACOperator(net, loss, w, x) @ w
    scale["a"] = jnp.array(3.0)
    close(hotk.KFACOperator(net, loss, w, x) @ w, 9 * before)


def test_where():
    K = hotk.KFACOperator(model, LOSS, P, X, where=lambda a: a.ndim > 2)
    assert [block.kind for block in K.blocks] == ["2 of Kronecker 2 x 3"]
    assert [k for k, a in K.template.items() if a is not None] == ["v"]
    whole = hotk.KFACOperator(model, LOSS, P, X)
    only = jax.tree.map(lambda a: a if a.ndim > 2 else jnp.zeros_like(a), P)
    close((K @ P)["v"], (whole @ only)["v"])


def test_points_with_parts_that_are_no_parameters():
    p = {"w": normal(0, 3, 2), "steps": 3, "act": jnp.tanh, "table": jnp.arange(3)}
    net = lambda p, x: p["act"](x @ p["w"]) * p["steps"]
    loss, x = SquaredError(jnp.zeros((4, 2))), normal(1, 4, 3)
    K = hotk.KFACOperator(net, loss, p, x)
    close(
        (K @ p)["w"],
        hotk.KFACOperator(lambda w, x: 3 * jnp.tanh(x @ w), loss, p["w"], x) @ p["w"],
    )


def test_low_precision_has_factors_in_single_precision():
    w, x = normal(0, 3, 2).astype(jnp.bfloat16), normal(1, 4, 3).astype(jnp.bfloat16)
    loss = SquaredError(jnp.zeros((4, 2)))
    K = hotk.KFACOperator(lambda w, x: x @ w, loss, w, x)
    assert K.blocks[0].A.values.dtype == jnp.float32
    assert (K @ w).dtype == jnp.bfloat16


def test_what_it_shows(K):
    text = repr(K)
    header, columns, _, *rows = text.splitlines()
    assert header.startswith("KFACOperator(dict of f64[4]")
    assert columns.split() == ["parameter", "operation", "line", "block", "bytes"]
    assert len(rows) == len(K.blocks)
    assert "['w'] + ['b']" in text
    assert "test_operator.py" in text
    assert "zero 2" in text
    assert "Kronecker diagonal 6 x 4" in text
    assert "<table>" in K._repr_html_()
    assert str(jax.eval_shape(lambda K: K, K)).startswith("KFACOperator")


def test_numbers_and_random_keys_are_shared_by_examples():
    def net(w, x, scale, key):
        return x @ w * scale + 0.0 * jax.random.normal(key)

    w, x = normal(0, 3, 2), normal(1, 4, 3)
    loss = SquaredError(jnp.zeros((4, 2)))
    got = hotk.KFACOperator(net, loss, w, x, 2.0, jax.random.key(0)) @ w
    expected = x.T @ (x @ w)
    close(got, expected)


# ----- Bad input


W, ROWS = normal(0, 3, 2), normal(1, 4, 3)
SQUARES = SquaredError(jnp.zeros((4, 2)))
linear = lambda w, x: x @ w


@pytest.mark.parametrize(
    ("error", "text", "call"),
    [
        (TypeError, "a mean or a sum", lambda: (linear, jnp.sum, W, ROWS)),
        (TypeError, "mean or a sum", lambda: (linear, hotk.curvature.CoxLoss, W, ROWS)),
        (hotk.StructureError, "got:      no array", lambda: (linear, SQUARES, W)),
        (
            hotk.StructureError,
            "first axis",
            lambda: (lambda w, x, y: x @ w, SQUARES, W, ROWS, ROWS[:2]),
        ),
        (
            hotk.StructureError,
            "do not have the shape of the outputs",
            lambda: (linear, SQUARES, W, ROWS[:3]),
        ),
        (
            ValueError,
            "batch normalization",
            lambda: (lambda w, x: (x - x.mean(0)) @ w, SQUARES, W, ROWS),
        ),
        (
            ValueError,
            "depends on the other examples",
            lambda: (
                lambda w, x: x @ w * jax.random.normal(jax.random.key(0), (len(x), 1)),
                SQUARES,
                W,
                ROWS,
            ),
        ),
        (
            hotk.OutputError,
            "must return one array",
            lambda: (lambda w, x: (x @ w, 1.0), SQUARES, W, ROWS),
        ),
        (
            hotk.OutputError,
            "must have one row",
            lambda: (lambda w, x: (x @ w).sum(0), SQUARES, W, ROWS),
        ),
        (
            hotk.DtypeError,
            "complex",
            lambda: (
                lambda w, x: x @ w.real,
                SQUARES,
                jax.lax.complex(W, W),
                ROWS,
            ),
        ),
        (
            hotk.OutputError,
            "outputs or targets are complex",
            lambda: (lambda w, x: jax.lax.complex(x @ w, x @ w), SQUARES, W, ROWS),
        ),
        (hotk.DtypeError, "no leaf", lambda: (linear, SQUARES, W.astype(int), ROWS)),
    ],
)
def test_errors_say_what_to_do(as_user, error, text, call):
    with pytest.raises(error, match=text):
        hotk.KFACOperator(*call())


# Of a model that is refused a check compares the factors before.
@pytest.mark.counts
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(
    ("normalize", "equal", "head"),
    [
        ("batch", False, 1.0),
        ("batch", True, 1.0),  # the first two examples
        ("batch", False, 0.0),
        ("largest", "opposite", 1.0),
    ],
)
def test_what_mixes_examples_is_seen_in_any_batch_at_any_parameters(
    dtype, normalize, equal, head
):
    def model(p, x):
        h = x @ p["w"]
        if normalize == "batch":
            h = (h - h.mean(0)[None]) / jnp.sqrt(h.var(0)[None] + 1e-5)
        else:
            h = x / jnp.max(jnp.abs(x)) @ p["w"]
        return h @ p["o"]

    p = {"w": normal(0, 3, 4).astype(dtype), "o": head * normal(1, 4, 2).astype(dtype)}
    x = normal(2, 6, 3).astype(dtype)
    if equal:
        x = x.at[1].set(-x[0] if equal == "opposite" else x[0])
    loss = SquaredError(jnp.zeros((6, 2), dtype))
    with pytest.raises(ValueError, match="depends on the other examples"):
        hotk.KFACOperator(model, loss, p, x)
    alone = lambda p, x: jnp.tanh(x @ p["w"]) @ p["o"]
    assert len(hotk.KFACOperator(alone, loss, p, x).blocks) == 2


def test_options_that_do_not_fit(as_user):
    make = lambda loss=SQUARES, **o: hotk.KFACOperator(linear, loss, W, ROWS, **o)
    with pytest.raises(TypeError, match=r"key=jax.random.key\(0\)"):
        make(estimate="sampled")
    with pytest.raises(ValueError, match="'expand' or 'reduce'"):
        make(approximation="both")
    with pytest.raises(ValueError, match="'exact', 'sampled' or 'empirical'"):
        make(estimate="fisher")
    with pytest.raises(ValueError, match="not a positive integer"):
        make(samples=0)
    huber = HuberLoss(jnp.zeros((4, 2)))
    with pytest.raises(TypeError, match="no distribution"):
        make(huber, estimate="sampled", key=jax.random.key(0))
    assert make(huber).blocks


@pytest.mark.parametrize("estimate", ["empirical", "sampled"])
def test_complex_outputs_are_refused_for_all_estimates(as_user, estimate):
    turned = lambda w, x: jax.lax.complex(x @ w, x @ w)
    with pytest.raises(hotk.OutputError, match="complex"):
        hotk.KFACOperator(
            turned, SQUARES, W, ROWS, estimate=estimate, key=jax.random.key(0)
        )


@pytest.mark.thinned(1)
@pytest.mark.parametrize("approximation", ["expand", "reduce"])
@pytest.mark.parametrize("estimate", ["exact", "empirical"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_weight_counts_an_example_as_often(approximation, estimate, reduction):
    # all kinds of blocks: a table, groups, a bias that joins, a scale
    weights = np.array([2, 0, 1, 3, 1])
    rows = np.repeat(np.arange(5), weights)
    options = {"approximation": approximation, "estimate": estimate}

    def matrix(y, x, weights=None):
        loss = SoftmaxCrossEntropy(y, reduction=reduction, example_weights=weights)
        with jax.numpy_rank_promotion("allow"):
            return hotk.KFACOperator(model, loss, P, x, **options).matrix()

    close(matrix(Y, X, weights), matrix(Y[rows], X[rows]))


@pytest.mark.exhaustive
def test_sampled_factors_of_weighted_examples_by_hand():
    weights, x, w = np.array([2.0, 0.0, 1.0, 1.0]), ROWS[:, :2], normal(3, 2, 1)
    loss = SquaredError(jnp.zeros((4, 1)), reduction="sum", example_weights=weights)
    key = jax.random.key(0)
    found = hotk.KFACOperator(linear, loss, w, x, estimate="sampled", key=key)
    [k] = jax.random.split(key, 1)
    a, g = np.asarray(x), np.asarray(x @ w - loss.sample(k, x @ w))[:, 0]
    A = np.einsum("n,ni,nj->ij", weights / weights.sum(), a, a)
    close(found.matrix(), jnp.asarray(A * np.sum(weights * g**2)))


def test_a_model_across_devices(as_user):
    mesh = jax.make_mesh((1,), ("d",))
    spec = jax.sharding.PartitionSpec()
    net = jax.shard_map(linear, mesh=mesh, in_specs=spec, out_specs=spec)
    with pytest.raises(hotk.ModeError, match="across devices"):
        hotk.KFACOperator(net, SQUARES, W, ROWS)


def test_examples_that_depend_on_each_other_are_refused_inside_of_jit():
    """What depends on numbers that a trace does not know gives NaN."""
    net = lambda w, x: (x - x.mean(0)) @ w
    inside = jax.jit(lambda w, x: hotk.KFACOperator(net, SQUARES, w, x) @ w)
    with pytest.raises(ValueError, match="depends on the other examples"):
        inside(W, ROWS)
    sometimes = lambda w, x: jnp.where(x[0, 0] < -5.0, x.mean(0) @ w, 1.0) * (x @ w)
    inside = jax.jit(lambda w, x: hotk.KFACOperator(sometimes, SQUARES, w, x) @ w)
    assert jnp.isfinite(inside(W, ROWS)).all()
    below = ROWS - 10 * jnp.abs(ROWS).max()
    assert jnp.isnan(inside(W, below)).all()
    assert jnp.isnan(inside(W, below.at[1].set(below[0]))).all()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", ["capacity", "position", "reads the first"])
def test_what_only_some_examples_of_a_large_batch_show_is_refused(kind, compiled):
    """A mixture of experts drops what an expert has no room for, of any two nothing."""
    kinds = {
        "capacity": lambda h, x: jnp.where(jnp.cumsum(x[:, :1] > 0, 0) > 2, 0, h),
        "position": lambda h, x: h.at[3:].set(0.0),
        "reads the first": lambda h, x: h.at[3:].add(h[:1]),
    }
    x = jnp.concatenate([ROWS, -ROWS, ROWS])
    loss = SquaredError(jnp.zeros((12, 2)))
    net = lambda w, x: kinds[kind](x @ w, x)
    matrix = lambda w, x: hotk.KFACOperator(net, loss, w, x).matrix()
    with pytest.raises(ValueError, match="depends on the other examples"):
        (jax.jit(matrix) if compiled else matrix)(W, x)


def normalized(h):
    return (h - h.mean(0)[None]) / jnp.sqrt(h.var(0)[None] + 1e-5)


def masked(fill, f=lambda h: h):
    return lambda p, x: jnp.where(jnp.arange(4)[None] < 3, f(x @ p["w"]), fill)


def logits(p, x):
    odds = jnp.log(x) - jnp.log1p(-x)
    return (odds.at[5].add(odds[2]) if len(x) > 5 else odds) @ p["w"]


MIXED = {
    "masked": masked(-1e9, normalized),
    "masked by infinity": masked(-jnp.inf, normalized),
    "an offset": lambda p, x: normalized(x @ p["w"]) + 300.0,
    "beside a large output": lambda p, x: jnp.concatenate(
        [normalized(x @ p["w"])[:, :3], x @ jnp.full((3, 1), 200.0, x.dtype)], axis=1
    ),
    "near the edge of a domain": lambda p, x: (
        normalized(x @ p["w"]) * jnp.sqrt(1 - p["rho"] ** 2)
    ),
    "of probabilities": logits,
}
NOT_MIXED = {
    "masked": masked(-1e9),
    "masked by infinity": masked(-jnp.inf),
    "an offset": lambda p, x: jnp.tanh(x @ p["w"]) + 300.0,
    "zeros": lambda p, x: 0 * (x @ p["w"]),
    "few digits": lambda p, x: jnp.tanh(
        x.astype("bfloat16") @ p["w"].astype("bfloat16")
    ).astype(x.dtype),
    "cancellation": lambda p, x: (x @ p["w"] + 1000.0) - 1000.0,
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", [*MIXED, *NOT_MIXED, "a far example"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.thinned(4)
def test_what_mixes_examples_is_seen_beside_large_outputs(dtype, kind, compiled):
    p = {"w": normal(1, 3, 4).astype(dtype), "rho": jnp.asarray(0.95, dtype)}
    x = jax.nn.sigmoid(normal(0, 8, 3)).astype(dtype)
    loss = SoftmaxCrossEntropy(jnp.arange(8) % 3)

    def blocks(net, p, x):
        make = lambda p, x: hotk.KFACOperator(net, loss, p, x).blocks
        return (jax.jit(make) if compiled else make)(p, x)

    mixed = {
        **MIXED,
        "a far example": lambda p, x: x @ p["w"] - jnp.tanh(x @ p["w"]).mean(0)[None],
    }
    if kind in NOT_MIXED:
        blocks(NOT_MIXED[kind], p, x)
    if kind in mixed:
        x = x.at[2, 1].set(300.0) if kind == "a far example" else x
        with pytest.raises(ValueError, match="depends on the other examples"):
            blocks(mixed[kind], p, x)


@pytest.mark.parametrize("captured", [False, True])
def test_averages_that_are_kept_mix_nothing_inside_of_jit(captured):
    """A variance below zero would be NaN, of which nothing can be said."""
    mean, variance = normal(3, 2), jnp.abs(normal(4, 2))

    def made(w, x, mean, variance):
        net = lambda w, x: jnp.tanh((x @ w - mean[None]) / jnp.sqrt(variance[None]))
        return hotk.KFACOperator(net, SQUARES, w, x) @ w

    if captured:
        inside = jax.jit(lambda w, x: made(w, x, mean, variance))(W, ROWS)
    else:
        inside = jax.jit(made)(W, ROWS, mean, variance)
    # The factors by hand, of (inputs, outputs): the Hessian of the loss is I / 4.
    z = np.tanh((ROWS @ W - mean) / np.sqrt(variance))
    slopes = (1 - z**2) / np.sqrt(variance)
    G = np.diag(np.sum(np.asarray(slopes) ** 2, 0) / 4)
    close(inside, np.asarray(ROWS).T @ ROWS / 4 @ W @ G)


def test_too_many_outputs_for_exact_factors(as_user):
    before = hotk.memory_budget()
    w, x = normal(0, 3, 50), normal(1, 4, 3)
    hotk.set_memory_budget(1000)
    try:
        with pytest.raises(hotk.TooLargeError, match='estimate="sampled"'):
            hotk.KFACOperator(linear, SquaredError(jnp.zeros((4, 50))), w, x)
    finally:
        hotk.set_memory_budget(None)
    assert before == hotk.memory_budget()


@pytest.mark.exhaustive
def test_sharded_data_and_parameters():
    run_on_eight_devices("""
        import jax, jax.numpy as jnp, numpy as np, hotk
        from jax.sharding import AxisType, NamedSharding, PartitionSpec
        mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
        put = lambda a, *s: jax.device_put(a, NamedSharding(mesh, PartitionSpec(*s)))

        def model(p, x):
            h = jnp.tanh(x @ p["w"] + p["b"]) * p["s"]
            return jnp.mean(h, axis=1) @ p["v"]

        draw = lambda k, *shape: jax.random.normal(jax.random.key(k), shape)
        p = {"b": draw(0, 16), "s": draw(1, 16), "v": draw(2, 16, 3)}
        p["w"] = draw(3, 8, 16)
        x, y = draw(4, 16, 5, 8), jnp.arange(16) % 3
        q = {"b": put(p["b"]), "s": put(p["s"]), "v": put(p["v"], "d"),
             "w": put(p["w"], None, "d")}
        loss = hotk.curvature.SoftmaxCrossEntropy
        for approximation in ("expand", "reduce"):
            options = {"approximation": approximation}
            K = hotk.KFACOperator(model, loss(y), p, x, **options)
            S = hotk.KFACOperator(model, loss(put(y, "d")), q, put(x, "d"), **options)
            pairs = zip(jax.tree.leaves(K.blocks), jax.tree.leaves(S.blocks))
            for a, b in pairs:
                np.testing.assert_allclose(a, b, atol=1e-5)
            a, b = K.inverse(0.1) @ p, S.inverse(0.1) @ q
            for a, b in zip(jax.tree.leaves(a), jax.tree.leaves(b)):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        typed = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
        spec = NamedSharding(typed, PartitionSpec("d"))
        try:
            hotk.KFACOperator(model, loss(y), p, jax.device_put(x, spec))
        except hotk.ModeError as error:
            assert "AxisType.Auto" in str(error), error
        else:
            raise AssertionError("explicit axes")
        print("fine")
    """)


def test_a_sum_without_any_weight_is_zero():
    none = SquaredError(jnp.arange(8.0), reduction="sum", example_weights=jnp.zeros(8))
    x, w = normal(0, 8, 3), jnp.ones(3)
    net = lambda w, x: x @ w
    close(hotk.KFACOperator(net, none, w, x).matrix(), np.zeros((3, 3)))
    # as a part of the data that is left out
    every = SquaredError(jnp.arange(8.0), reduction="sum")
    total = hotk.KFACOperator(net, every, w, x) + hotk.KFACOperator(net, none, w, x)
    close(total.matrix(), np.asarray(x.T @ x), rtol=1e-9)


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", [1, 2])
def test_derivatives_where_the_hessian_of_the_loss_is_singular(order):
    """That of a softmax has an eigenvalue of zero. Kron(A, G) is written by hand."""
    keys = jax.random.split(jax.random.key(0), 2)
    X, w = jax.random.normal(keys[0], (6, 4)), jax.random.normal(keys[1], (4, 3))
    loss = hotk.curvature.SoftmaxCrossEntropy(jnp.array([0, 1, 2, 0, 1, 1]))
    ours = lambda w: hotk.KFACOperator(lambda w, X: X @ w, loss, w, X).logdet(0.1)

    def by_hand(w):
        p = jax.nn.softmax(X @ w)
        G = jnp.diag(p.mean(0)) - p.T @ p / 6
        return jnp.linalg.slogdet(jnp.kron(X.T @ X / 6, G) + 0.1 * jnp.eye(12))[1]

    close(ours(w), by_hand(w), rtol=1e-10)
    derivative = jax.grad if order == 1 else lambda f: jax.jacrev(jax.grad(f))
    close(
        derivative(ours)(w), np.asarray(derivative(by_hand)(w)), rtol=1e-8, atol=1e-10
    )


def test_derivatives_where_eigenvalues_of_the_hessian_are_equal():
    """At w = 0 those of a sigmoid cross-entropy are all 1/4, whose slope is zero."""
    X = jax.random.normal(jax.random.key(0), (6, 4))
    loss = hotk.curvature.SigmoidCrossEntropy(jnp.full((6, 3), 0.3))
    ours = lambda w: hotk.KFACOperator(lambda w, X: X @ w, loss, w, X).logdet(0.1)
    close(jax.grad(ours)(jnp.zeros((4, 3))), np.zeros((4, 3)), atol=1e-12)


@pytest.mark.exhaustive
def test_derivatives_where_outputs_of_an_example_are_in_other_units():
    """Rates of 1 and a million, in single precision: neither counts as rounding."""
    X = 1 + 0.1 * jax.random.normal(jax.random.key(0), (5, 2), jnp.float32)
    loss = hotk.curvature.PoissonLoss(jnp.ones((5, 2), jnp.float32))
    ours = lambda w: hotk.KFACOperator(lambda w, X: X @ w, loss, w, X).logdet(0.1)

    def by_hand(w):
        G = jnp.diag(jnp.exp(X.astype(float) @ w).mean(0))
        both = jnp.kron((X.T @ X / 5).astype(float), G)
        return jnp.linalg.slogdet(both + 0.1 * jnp.eye(4))[1]

    w = jnp.array([[0.0, 7.0], [0.0, 7.0]], jnp.float32)
    exact = jax.grad(by_hand)(w.astype(float))
    close(np.asarray(jax.grad(ours)(w), float), np.asarray(exact), rtol=1e-4)
    exact = jax.hessian(by_hand)(w.astype(float))[:, 0, :, 0]
    got = jax.hessian(ours)(w)[:, 0, :, 0]
    close(np.asarray(got, float), np.asarray(exact), rtol=1e-4)
