"""Operators over data sets in batches, against the dense matrix of all the data."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk import GGNOperator, HessianOperator
from tests.counting import compiles
from tests.helpers import close


RNG = np.random.default_rng(0)
DATA = RNG.normal(size=(100, 5))
LABELS = RNG.integers(0, 2, 100)
W = jnp.asarray(RNG.normal(size=5))
V = jnp.asarray(RNG.normal(size=5))


def mean_loss(w, rows):
    return jnp.mean(jnp.tanh(rows @ w) ** 2)


def sum_loss(w, rows):
    return jnp.sum(jnp.tanh(rows @ w) ** 2)


def cut(size):
    return [DATA[i : i + size] for i in range(0, 100, size)]


def dense(w=W):
    """Return the Hessian of the mean over all rows, by hand."""
    t = np.tanh(DATA @ np.asarray(w))
    second = 2 * (1 - t**2) * (1 - 3 * t**2)
    return (DATA * second[:, None]).T @ DATA / 100


each_size = pytest.mark.parametrize("size", [7, 30, 64, 99, 100, 200])


@pytest.mark.thinned(1)
@each_size
def test_a_mean_over_ragged_batches_is_the_mean_over_all_rows(size):
    H = hotk.HessianOperator.over(mean_loss, W, cut(size))
    close(H @ V, jnp.asarray(dense() @ np.asarray(V)))
    close(H.matrix(), jnp.asarray(dense()))
    close(H.diagonal(), jnp.asarray(np.diag(dense())))
    assert H.examples == 100
    t = np.tanh(DATA @ np.asarray(W))
    close(H.value, jnp.asarray(np.mean(t**2)))
    close(H.gradient, jnp.asarray(DATA.T @ (2 * t * (1 - t**2)) / 100))


@pytest.mark.thinned(3)
@each_size
def test_a_sum_over_ragged_batches_is_the_sum_over_all_rows(size):
    H = hotk.HessianOperator.over(sum_loss, W, cut(size), reduction="sum")
    close(H @ V, jnp.asarray(100 * dense() @ np.asarray(V)))
    close(H.value, jnp.asarray(np.sum(np.tanh(DATA @ np.asarray(W)) ** 2)))


def test_a_short_batch_compiles_nothing(default_settings):
    w = jnp.ones(5)
    H = hotk.HessianOperator.over(mean_loss, w, cut(50))
    H @ w
    ragged = [DATA[:50], DATA[50:80], DATA[80:83]]
    with compiles() as count:
        G = hotk.HessianOperator.over(mean_loss, w, ragged)
        product = G @ w
    assert count() == 0
    rows = DATA[:83]
    t = np.tanh(rows @ np.ones(5))
    second = 2 * (1 - t**2) * (1 - 3 * t**2)
    exact = (rows * second[:, None]).T @ rows / 83 @ np.ones(5)
    np.testing.assert_allclose(product, exact, rtol=1e-5, atol=1e-6)


def test_batches_are_trees_and_directions_come_many_at_once():
    def loss(w, batch):
        scores = batch["rows"] @ w
        signs = 2.0 * batch["labels"].astype(w.dtype) - 1.0
        return jnp.mean(jnp.logaddexp(0.0, -signs * scores))

    batches = [
        {"rows": DATA[i : i + 40], "labels": LABELS[i : i + 40]} for i in (0, 40, 80)
    ]
    H = hotk.HessianOperator.over(loss, W, batches)
    p = 1 / (1 + np.exp(-DATA @ np.asarray(W)))
    exact = (DATA * (p * (1 - p))[:, None]).T @ DATA / 100
    vs = jnp.asarray(RNG.normal(size=(3, 5)))
    close(H.many(vs), jnp.asarray(np.asarray(vs) @ exact))
    close(H.block("", ""), jnp.asarray(exact))


@pytest.mark.exhaustive
def test_krylov_methods_and_arithmetic_work_on_the_host():
    H = hotk.HessianOperator.over(mean_loss, W, cut(30))
    values = np.linalg.eigvalsh(dense())
    close(H.eigh(2).values, jnp.asarray(values[-2:]), rtol=1e-6)
    shift = 0.1 - values[0]
    damped = H + shift * hotk.Identity()
    exact = np.linalg.solve(dense() + shift * np.eye(5), np.asarray(V))
    solution = damped.solve(V, tol=1e-10)
    assert bool(solution.converged)
    close(solution.x, jnp.asarray(exact), rtol=1e-7)
    close((2.0 * H - H) @ V, jnp.asarray(dense() @ np.asarray(V)))
    exact = dense() + shift * np.eye(5)
    close(damped.matrix(), jnp.asarray(exact))
    close(damped.diagonal(), jnp.asarray(np.diag(exact)))
    close(damped.block("", ""), jnp.asarray(exact))
    close(damped.cholesky(1.0), jnp.asarray(np.linalg.cholesky(exact + np.eye(5))))


def test_another_point_reads_the_data_again():
    H = hotk.HessianOperator.over(mean_loss, W, cut(30)).at(0.0 * W)
    close(H.matrix(), jnp.asarray(2 * DATA.T @ DATA / 100))


def test_a_function_that_returns_an_iterator_is_read_batch_by_batch():
    alive = itertools.count().__next__

    def batches():
        for batch in cut(30):
            alive()
            yield batch

    H = hotk.HessianOperator.over(mean_loss, W, batches)
    before = alive()
    H @ V
    assert alive() == before + 5


def test_gauss_newton_and_its_fisher_cousin_come_in_batches():
    model = lambda w, rows: jnp.sin(rows @ w)
    G = hotk.GGNOperator.over(model, lambda z, rows: jnp.mean(z**2) / 2, W, cut(30))
    slope = np.cos(DATA @ np.asarray(W))[:, None] * DATA
    close(G.matrix(), jnp.asarray(slope.T @ slope / 100))
    close(G @ V, jnp.asarray(slope.T @ slope @ np.asarray(V) / 100))


def test_low_precision_is_summed_in_single(default_settings):
    rows = np.ones((512, 1), np.float32)
    loss = lambda w, rows: jnp.mean((rows.astype(w.dtype) @ w) ** 2) / 2
    w = jnp.ones(1, jnp.bfloat16)
    batches = [rows[i : i + 1] for i in range(512)]
    H = hotk.HessianOperator.over(loss, w, batches)
    product = H @ w
    assert product.dtype == jnp.float32
    # 512 ones do not add up in bfloat16, whose integers end at 256
    np.testing.assert_allclose(product, 1.0, rtol=1e-6)


@pytest.mark.exhaustive
def test_a_bar_is_shown_if_asked(capsys, default_settings, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    H = hotk.HessianOperator.over(mean_loss, jnp.ones(5), cut(30), progress=True)
    H @ jnp.ones(5)
    assert "batches" in capsys.readouterr().err


# ----- What is refused


def test_what_can_be_read_once_only_is_refused(as_user):
    with pytest.raises(TypeError, match="iterated over only once"):
        hotk.HessianOperator.over(mean_loss, W, iter(cut(30)))


def test_nothing_to_read_is_refused(as_user):
    with pytest.raises(ValueError, match="no batch"):
        hotk.HessianOperator.over(mean_loss, W, [])


def test_arrays_without_a_common_axis_are_refused(as_user):
    loss = lambda w, batch: jnp.mean(batch[0] @ w) + jnp.sum(batch[1])
    with pytest.raises(hotk.StructureError, match=r"\[2, 3\] rows"):
        hotk.HessianOperator.over(loss, W, [(np.ones((2, 5)), np.ones(3))])


def test_another_reduction_is_refused(as_user):
    with pytest.raises(ValueError, match="'median'"):
        hotk.HessianOperator.over(mean_loss, W, cut(30), reduction="median")


def test_data_that_change_from_pass_to_pass_are_refused(as_user):
    noise = np.random.default_rng(1)

    def batches():
        for batch in cut(50):
            yield batch + 0.1 * noise.normal(size=batch.shape)

    H = hotk.HessianOperator.over(mean_loss, W, batches)
    with pytest.raises(ValueError, match="not the same when it is evaluated twice"):
        H @ V


def test_a_loss_with_a_state_is_refused(as_user):
    count = itertools.count().__next__

    def noisy(w, rows):
        draw = jax.pure_callback(
            lambda: np.float64(count()), jax.ShapeDtypeStruct((), np.float64)
        )
        return mean_loss(w, rows) + jax.lax.stop_gradient(draw)

    with pytest.raises(ValueError, match="not the same when it is evaluated twice"):
        hotk.HessianOperator.over(noisy, W, cut(50))


def test_a_shuffled_order_is_the_same_data():
    order = np.random.default_rng(2)

    def batches():
        whole = cut(30)
        yield from [whole[i] for i in order.permutation(len(whole))]

    H = hotk.HessianOperator.over(mean_loss, W, batches)
    close(H @ V, jnp.asarray(dense() @ np.asarray(V)))


def test_all_dense_things_refuse_data_that_changed():
    data = DATA.copy()
    H = hotk.HessianOperator.over(mean_loss, W, [data[:60], data[60:]])
    H.matrix()
    data *= 2
    for ask in (
        lambda: H.matrix(),
        lambda: H.diagonal(),
        lambda: H.block("", ""),
        lambda: H @ V,
    ):
        with pytest.raises(ValueError, match="not the same when it is evaluated twice"):
            ask()


def test_gauss_newton_in_batches_holds_its_functions():
    scale = 2.0
    model = lambda w, rows: scale * (rows @ w)
    G = hotk.GGNOperator.over(model, lambda z, rows: jnp.mean(z**2) / 2, W, cut(30))
    scale = 5.0
    exact = 4.0 * DATA.T @ DATA / 100
    close(G.matrix(), jnp.asarray(exact))
    close(G @ V, jnp.asarray(exact @ np.asarray(V)))


@pytest.mark.exhaustive
def test_several_systems_are_solved_on_the_host():
    exact = DATA.T @ DATA / 100
    loss = lambda w, rows: jnp.mean((rows @ w) ** 2) / 2
    H = hotk.HessianOperator.over(loss, W, cut(50))
    found = H.solve(jnp.eye(5)[:2], batched=True, tol=1e-12)
    close(found.x, jnp.asarray(np.linalg.inv(exact)[:2]), rtol=1e-8)
    assert found.converged.all()


def test_an_empty_batch_adds_nothing(as_user):
    parts = [DATA[:0], DATA[:60], DATA[:0], DATA[60:]]
    H = hotk.HessianOperator.over(mean_loss, W, parts)
    assert H.examples == 100
    close(H.matrix(), jnp.asarray(dense()))
    with pytest.raises(ValueError, match="no batch"):
        hotk.HessianOperator.over(mean_loss, W, [DATA[:0]])
    spent = iter(cut(30))
    with pytest.raises(ValueError, match="new iterator each time"):
        hotk.HessianOperator.over(mean_loss, W, lambda: spent) @ V


@pytest.mark.exhaustive
@pytest.mark.usefixtures("default_settings")
@pytest.mark.parametrize(
    "question",
    [
        lambda H: H.solve(H.gradient),
        lambda H: hotk.linop.minres(H, H.gradient),
        lambda H: hotk.linop.steihaug(H, H.gradient, 1.0),
        lambda H: H.eigh(2),
        lambda H: hotk.estimate.trace(H, jax.random.key(0), samples=4),
    ],
    ids=["solve", "minres", "steihaug", "eigh", "trace"],
)
def test_iterations_on_the_host_compile_nothing_once_they_ran(question):
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    loss = lambda w, rows: jnp.mean(jnp.logaddexp(0.0, rows @ w)) + jnp.sum(w**2)
    H = hotk.HessianOperator.over(loss, jnp.zeros(4), [rows[:8], rows[8:]])
    question(H)
    question(H)
    with compiles() as count:
        question(H)
    assert count() == 0


def test_a_tuple_of_arrays_is_one_batch():
    loss = lambda w, batch: jnp.mean((batch[0] @ w - batch[1]) ** 2)
    batch = np.ones((3, 2)), np.ones(3)
    with pytest.raises(TypeError, match="one batch"):
        hotk.HessianOperator.over(loss, jnp.zeros(2), batch)


# ----- Batches that fit in memory together


@pytest.mark.thinned(1)
@pytest.mark.usefixtures("default_settings")
@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray], ids=["numpy", "jax"])
def test_batches_of_a_list_are_one_program(kind):
    w = jnp.ones(5)
    lists = [[kind(a) for a in cut(size)] for size in (20, 16, 13)]
    assert [len(batches) for batches in lists] == [5, 7, 8]
    exact = dense(np.ones(5)) @ np.ones(5)
    for batches in lists:
        H = hotk.HessianOperator.over(mean_loss, w, batches)
        np.testing.assert_allclose(H @ w, exact, rtol=2e-5, atol=1e-6)
    # of as many rows, another number of them is no other program
    few, more = ([kind(DATA[:20])] * count for count in (5, 7))
    hotk.HessianOperator.over(mean_loss, w, few) @ w
    with compiles() as count:
        H = hotk.HessianOperator.over(mean_loss, w, more)
        product = H @ w
    assert count() <= (kind is jnp.asarray)  # the arrays of JAX are put together
    np.testing.assert_allclose(product, (H.matrix() @ w), rtol=2e-5, atol=1e-6)


def test_a_list_is_read_again_in_each_pass(as_user):
    data = DATA.copy()
    written = [data[i : i + 20] for i in range(0, 100, 20)]
    H = hotk.HessianOperator.over(mean_loss, W, written)
    close(H @ V, jnp.asarray(dense() @ np.asarray(V)))
    data[3] = 7.0
    with pytest.raises(ValueError, match="not the same when it is evaluated twice"):
        H @ V
    replaced = [jnp.asarray(a) for a in cut(20)]
    H = hotk.HessianOperator.over(mean_loss, W, replaced)
    replaced[1] = replaced[1] + 1.0
    with pytest.raises(ValueError, match="not the same when it is evaluated twice"):
        H @ V


def test_what_does_not_fit_together_comes_batch_by_batch(monkeypatch):
    monkeypatch.setattr("hotk.linop._stacked._FITS", 100)
    close(
        hotk.HessianOperator.over(mean_loss, W, cut(20)) @ V,
        jnp.asarray(dense() @ np.asarray(V)),
    )
    mixed = [{"rows": DATA[i : i + 20], "scale": 2.0} for i in range(0, 100, 20)]
    loss = lambda w, batch: batch["scale"] * mean_loss(w, batch["rows"])
    close(
        hotk.HessianOperator.over(loss, W, mixed) @ V,
        jnp.asarray(2 * dense() @ np.asarray(V)),
    )


def mean_of_squares(c):
    return lambda w, b: c * jnp.mean((b @ w) ** 2)


def times(c):
    return lambda w, b: c * (b @ w)[:, None]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("cuts", [(3,), (1,), (4,), (2, 4), (4, 5)])
def test_batches_of_other_lengths_beside_numbers_that_change(cuts):
    """A program that is kept for other numbers is one of the first batch's rows."""
    X = np.random.default_rng(0).normal(size=(7, 3))
    batches, p = np.split(X, cuts), jnp.ones(3)
    loss = lambda z, b: jnp.mean(z**2)
    for c in (0.1, 0.2, 0.3):
        H = HessianOperator.over(mean_of_squares(c), p, batches)
        close(H.matrix(), 2 * c * X.T @ X / 7)
        assert float(H.value) == pytest.approx(c * np.mean((X @ np.ones(3)) ** 2))
        G = GGNOperator.over(times(c), loss, p, batches)
        close(G.matrix(), 2 * c**2 * X.T @ X / 7)
        close(H.at(2 * p).gradient, 4 * c * X.T @ X @ np.ones(3) / 7)


def test_a_number_that_changes_compiles_nothing():
    """Each value compiled the programs of all passes anew."""
    X = np.random.default_rng(0).normal(size=(8, 3))
    batches, p, v = np.split(X, [3, 6]), jnp.ones(3), jnp.arange(3.0)
    for c in (0.1, 0.2, 0.3, 0.4):
        dense = 2 * c * X.T @ X / 8
        with compiles() as counted:
            H = HessianOperator.over(mean_of_squares(c), p, batches)
            results = H @ v, H.matrix(), H.at(2 * p).gradient
            solution = (H + 1.0 * hotk.Identity()).solve(v).x
        close(results[0], dense @ np.arange(3.0))
        close(results[1], dense)
        close(results[2], dense @ (2 * np.ones(3)))
        exact = np.linalg.solve(dense + np.eye(3), np.arange(3.0))
        close(solution, exact, rtol=1e-4)
    assert counted() == 0


def test_another_reduction_beside_batches_of_other_lengths():
    """The cross-entropy of equal logits is log 2 a row."""
    X, p = jnp.arange(21.0).reshape(7, 3), jnp.zeros((3, 2))
    batches = [
        {"x": X[:1], "y": jnp.zeros(1, int)},
        {"x": X[1:], "y": jnp.ones(6, int)},
    ]
    for reduction, exact in (("mean", np.log(2)), ("sum", 7 * np.log(2))):

        def loss(w, b, reduction=reduction):
            entropy = hotk.curvature.SoftmaxCrossEntropy(b["y"], reduction=reduction)
            return entropy(b["x"] @ w)

        H = HessianOperator.over(loss, p, batches, reduction=reduction)
        assert float(H.value) == pytest.approx(exact)


def test_a_program_with_numbers_is_not_called_with_other_shapes():
    X = np.random.default_rng(0).normal(size=(7, 3))
    for c in (0.1, 0.2, 0.3):
        H = HessianOperator(mean_of_squares(c), jnp.ones(3), jnp.asarray(X[:3]))
        other = eqx.tree_at(lambda H: H.args, H, (jnp.asarray(X[3:]),))
        try:
            close(other.matrix(), 2 * c * X[3:].T @ X[3:] / 4)
        except hotk.StructureError as error:
            assert "f64[3,3]" in str(error)  # noqa: PT017


KINDS = {
    "a word": ("small", "big", lambda b: 10.0 if b["k"] == "big" else 1.0),
    "words": (
        np.array(["cat"] * 2),
        np.array(["dog"] * 2),
        lambda b: 10.0 if b["k"][0] == "dog" else 1.0,
    ),
    "a function": (jnp.sin, jnp.cos, lambda b: b["k"](1.0)),
    "dates": (
        np.array(["2020-01-01"] * 2, "M8[D]"),
        np.array(["2021-01-01"] * 2, "M8[D]"),
        lambda b: float((b["k"] - np.datetime64("2019-01-01"))[0].astype(int)),
    ),
}


@pytest.mark.parametrize("name", list(KINDS))
def test_what_is_no_number_is_that_of_all_batches(as_user, name):
    """The function is kept with that of the first batch."""
    first, other, factor = KINDS[name]
    loss = lambda w, b: factor(b) * jnp.mean((b["x"] @ w) ** 2) / 2
    X = np.array([[1.0, 2.0], [0.5, -1.0]])
    batches = [{"x": X, "k": first}, {"x": 3 * X, "k": first}]
    H = HessianOperator.over(loss, jnp.ones(2), batches)
    exact = factor(batches[0]) * 5 * X.T @ X / 2
    np.testing.assert_allclose(H.matrix(), exact, rtol=1e-5)
    batches[1]["k"] = other
    with pytest.raises(hotk.StructureError, match=r"`batch\['k'\]`"):
        HessianOperator.over(loss, jnp.ones(2), batches)
    with pytest.raises(hotk.StructureError, match=r"`batch\['k'\]`"):
        GGNOperator.over(
            lambda w, b: factor(b) * (b["x"] @ w)[:, None],
            lambda z, b: jnp.mean(z**2),
            jnp.ones(2),
            batches,
        )


class Counted:
    """A loss that cannot be tracked."""

    def __init__(self):
        self.calls = iter(range(1_000_000))

    def __call__(self, w, b):
        next(self.calls)
        return jnp.mean((b @ w) ** 2) / 2


POWER, SCALE = jnp.array(2), np.array([4.0])
NEEDS = {
    "a power": lambda w, b: jnp.mean((b @ w) ** int(POWER)) / 2,
    "a root": lambda w, b: jnp.mean((b @ w) ** 2 * np.sqrt(SCALE)[0] / 4),
    "a branch": lambda w, b: jnp.mean((b @ w) ** 2) / 2 if POWER > 1 else 0.0,
    "an opaque loss": Counted(),
}


@pytest.mark.parametrize("name", list(NEEDS))
def test_a_loss_that_is_kept_as_a_program_is_right_or_refused(as_user, name):
    """Numbers in it, as that of a mean, are those of the first batch."""
    X, loss = np.random.default_rng(0).normal(size=(7, 3)), NEEDS[name]
    for batches in ([X[:3], X[3:6]], [X[:4], X[4:]]):
        H = HessianOperator.over(loss, jnp.ones(3), batches)
        rows = np.concatenate(batches)
        np.testing.assert_allclose(H.matrix(), rows.T @ rows / len(rows), rtol=1e-4)
    with pytest.raises(hotk.StructureError, match="other shapes"):
        HessianOperator.over(loss, jnp.ones(3), [X[:3], X[3:]])


def test_a_loss_that_needs_the_values_of_a_batch_says_so(as_user):
    loss = lambda w, b: jnp.mean(jnp.asarray(np.sqrt(b)) @ w) ** 2
    with pytest.raises(hotk.ModeError, match="of a batch"):
        HessianOperator.over(loss, jnp.ones(2), [np.ones((2, 2))] * 2)


def test_an_operator_over_batches_says_that_it_is_not_traced():
    data = np.arange(10.0).reshape(5, 2)
    loss = lambda w, rows: jnp.mean((rows @ w) ** 2) / 2
    make = lambda: hotk.HessianOperator.over(loss, jnp.ones(2), [data[:3], data[3:]])
    H, v = make(), jnp.ones(2)
    for call in (
        lambda: jax.jit(lambda v: H @ v)(v),
        lambda: jax.vmap(lambda v: H @ v)(v[None]),
        lambda: jax.grad(lambda v: jnp.sum(H @ v))(v),
        lambda: jax.jit(lambda: H.matrix())(),
        lambda: jax.jit(lambda: H.diagonal())(),
        lambda: jax.jit(lambda: make().value)(),
    ):
        with pytest.raises(TypeError, match="reads its data in each call"):
            call()
    close(H @ v, data.T @ data @ np.ones(2) / 5)  # nothing was left behind
