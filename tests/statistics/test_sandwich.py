"""`sandwich` against the formulas of the textbooks, in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.devices import run_on_eight_devices
from tests.helpers import close


RNG = np.random.default_rng(0)
N = 40
X = np.column_stack([np.ones(N), RNG.normal(size=(N, 2))])
Y = X @ [1.0, 2.0, -1.0] + RNG.normal(size=N) * (1 + abs(X[:, 1]))
CLUSTERS = np.repeat(list("abcdefgh"), 5)
B = np.linalg.lstsq(X, Y)[0]
BREAD = np.linalg.inv(X.T @ X)
RESIDUALS = Y - X @ B
LEVERAGE = np.einsum("ni,ij,nj->n", X, BREAD, X)


def losses(b, X, y):
    return (X @ b - y) ** 2 / 2


def by_hand(kind):
    squares = {
        "HC0": RESIDUALS**2,
        "HC1": RESIDUALS**2 * N / (N - 3),
        "HC2": RESIDUALS**2 / (1 - LEVERAGE),
        "HC3": RESIDUALS**2 / (1 - LEVERAGE) ** 2,
    }
    return BREAD @ (X.T * squares[kind]) @ X @ BREAD


@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC2", "HC3"])
def test_linear_regression(kind):
    found = hotk.statistics.sandwich(losses, jnp.asarray(B), X, Y, kind=kind)
    close(found.covariance, by_hand(kind))
    close(found.standard_errors, np.sqrt(np.diag(by_hand(kind))))
    assert f"sandwich {kind}" in str(found)
    assert "evidence" not in str(found)


@pytest.mark.parametrize("kind", ["HC1", "HC3"])
def test_data_that_the_function_captures(kind):
    captured = lambda b: losses(b, jnp.asarray(X), jnp.asarray(Y))
    found = hotk.statistics.sandwich(captured, jnp.asarray(B), kind=kind)
    close(found.covariance, by_hand(kind))


def test_clusters():
    scores, labels = X * RESIDUALS[:, None], np.unique(CLUSTERS)
    sums = np.stack([scores[c == CLUSTERS].sum(axis=0) for c in labels])
    plain = BREAD @ sums.T @ sums @ BREAD
    of = lambda kind: hotk.statistics.sandwich(
        losses, jnp.asarray(B), X, Y, kind=kind, clusters=CLUSTERS
    )
    close(of("HC0").covariance, plain)
    close(of("HC1").covariance, plain * 8 / 7 * (N - 1) / (N - 3))
    # The jackknife around the estimate: fits without one cluster each.
    kept = [c != CLUSTERS for c in np.unique(CLUSTERS)]
    apart = np.stack([np.linalg.lstsq(X[k], Y[k])[0] - B for k in kept])
    close(of("HC3").covariance, apart.T @ apart)


def test_a_tree_of_parameters_and_a_part_of_them():
    model = lambda p, X, y: losses(jnp.append(p["b"], p["a"]), X, y)
    p = {"a": jnp.asarray(B[2]), "b": jnp.asarray(B[:2])}
    found = hotk.statistics.sandwich(model, p, X, Y)
    order = [2, 0, 1]
    close(found.covariance, by_hand("HC0")[np.ix_(order, order)])
    part = hotk.statistics.sandwich(model, p, X, Y, where={"a": True, "b": False})
    x = X[:, 2]
    expected = np.sum(RESIDUALS**2 * x**2) / np.sum(x**2) ** 2
    close(part.covariance, np.array([[expected]]))


def test_another_curvature():
    F = hotk.linop.Diagonal(jnp.full(3, 2.0))
    found = hotk.statistics.sandwich(losses, jnp.asarray(B), X, Y, curvature=F)
    scores = X * RESIDUALS[:, None]
    close(found.covariance, scores.T @ scores / 4)


def test_under_jit():
    run = lambda kind: lambda b: hotk.statistics.sandwich(losses, b, X, Y, kind=kind)
    for kind in ("HC1", "HC2"):
        close(jax.jit(run(kind))(jnp.asarray(B)).covariance, by_hand(kind))


def test_the_delta_method_uses_it():
    found = hotk.statistics.sandwich(losses, jnp.asarray(B), X, Y)
    ratio = found.interval(lambda b: b[1] / b[0])
    gradient = np.array([-B[1] / B[0] ** 2, 1 / B[0], 0.0])
    close(ratio.standard_errors, np.sqrt(gradient @ by_hand("HC0") @ gradient))


def test_a_point_that_is_no_minimum_is_told():
    with pytest.warns(hotk.NotStationaryWarning, match="not a minimum"):
        hotk.statistics.sandwich(losses, jnp.zeros(3), X, Y)


def test_what_is_refused(as_user):
    sandwich, b = hotk.statistics.sandwich, jnp.asarray(B)
    with pytest.raises(ValueError, match="'HC4'"):
        sandwich(losses, b, X, Y, kind="HC4")
    with pytest.raises(hotk.OutputError, match="one number for each example"):
        sandwich(lambda b, X, y: jnp.sum(losses(b, X, y)), b, X, Y)
    with pytest.raises(hotk.StructureError, match="first axis"):
        sandwich(lambda b, X, y, w: losses(b, X, y), b, X, Y, np.ones(3))
    coupled = lambda b, X, y: losses(b, X, y - jnp.mean(y))
    with pytest.raises(ValueError, match="depends on other examples"):
        sandwich(coupled, b, X, Y)
    with pytest.raises(ValueError, match="one label for each"):
        sandwich(losses, b, X, Y, clusters=[1, 2])
    with pytest.raises(ValueError, match="more than one cluster"):
        sandwich(losses, b, X, Y, kind="HC1", clusters=np.zeros(N))
    with pytest.raises(hotk.NotPositiveDefiniteError, match="singular"):
        sandwich(losses, b, X[:, [0, 0, 1]], Y)
    alone = np.column_stack([np.ones(N), np.arange(N) == 3, X[:, 1]])
    exact = jnp.asarray(np.linalg.lstsq(alone, Y)[0])
    with pytest.raises(ValueError, match="without example or cluster 3"):
        sandwich(losses, exact, alone, Y, kind="HC3")


def test_no_examples():
    for call in (hotk.statistics.sandwich, hotk.statistics.leave_one_out):
        with pytest.raises(hotk.StructureError, match="there are no examples"):
            call(losses, jnp.asarray(B), X[:0], Y[:0])


def test_clusters_that_tell_nothing():
    with pytest.raises(ValueError, match="all examples are in one cluster"):
        hotk.statistics.sandwich(losses, jnp.asarray(B), X, Y, clusters=np.zeros(N))
    labels = np.where(np.arange(N) < 2, np.nan, np.arange(N) % 4)
    with pytest.raises(ValueError, match="is NaN"):
        hotk.statistics.sandwich(losses, jnp.asarray(B), X, Y, clusters=labels)
    of_labels = lambda c: (
        hotk.statistics.sandwich(losses, jnp.asarray(B), X, Y, clusters=c).covariance
    )
    with pytest.raises(TypeError, match="capture them"):
        jax.jit(of_labels)(jnp.arange(N) % 4)


@pytest.mark.parametrize("kind", ["HC0", "HC1", "HC2", "HC3"])
@pytest.mark.parametrize("few", [2, 3])
def test_as_few_clusters_as_parameters_are_told(kind, few):
    labels = np.arange(N) % few
    with pytest.warns(UserWarning, match=rf"vary in {few - 1} of 3 directions") as told:
        found = hotk.statistics.sandwich(
            losses, jnp.asarray(B), X, Y, clusters=labels, kind=kind
        )
    assert len(told) == 1  # and not that this is not a minimum, in errors of zero
    # by hand: the scores of the clusters add up to zero
    scores = np.stack([X[labels == k].T @ (X @ B - Y)[labels == k] for k in range(few)])
    assert np.linalg.matrix_rank(scores, tol=1e-10) == few - 1
    if kind == "HC0":
        H = np.linalg.inv(X.T @ X)
        close(found.covariance, jnp.asarray(H @ scores.T @ scores @ H))


def test_equal_clusters_are_told_and_no_other_reason():
    x, y = np.tile(X, (9, 1)), np.tile(Y, 9)
    with pytest.warns(UserWarning, match="vary in 0 of 3 directions") as told:
        hotk.statistics.sandwich(
            losses, jnp.asarray(B), x, y, clusters=np.repeat(np.arange(9), N)
        )
    assert len(told) == 1
    assert not issubclass(told[0].category, hotk.NotStationaryWarning)


@pytest.mark.exhaustive
def test_examples_of_devices_are_refused_where_derivatives_are_added():
    """By parameters that all devices hold alike a score would be that of a sum."""
    run_on_eight_devices("""
        import jax, jax.numpy as jnp, numpy as np, hotk
        from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
        jax.config.update("jax_enable_x64", True)

        mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
        rng = np.random.default_rng(0)
        X = rng.normal(size=(40, 2))
        y = X @ [1.0, -1.0] + rng.normal(size=40)
        w = np.linalg.lstsq(X, y)[0]
        losses = lambda w, X, y: (X @ w - y) ** 2 / 2
        bread = np.linalg.inv(X.T @ X)
        exact = bread @ (X.T * (X @ w - y) ** 2) @ X @ bread

        ask = lambda w, X, y: hotk.statistics.sandwich(losses, w, X, y).covariance
        split = [jax.device_put(a, NamedSharding(mesh, P("d"))) for a in (X, y)]
        np.testing.assert_allclose(ask(jnp.asarray(w), *split), exact, rtol=1e-9)
        of_rows = hotk.statistics.leave_one_out
        for inside in (
            ask,
            lambda w, X, y: hotk.statistics.sandwich(
                lambda w: losses(w, X, y), w, kind="HC3"
            ).covariance,
            lambda w, X, y: of_rows(losses, w, X, y).parameters,
        ):
            specs = dict(in_specs=(P(), P("d"), P("d")), out_specs=P("d"))
            try:
                jax.jit(jax.shard_map(inside, mesh=mesh, **specs))(w, X, y)
            except hotk.StructureError as error:
                assert "examples of its own along ['d']" in str(error), error
            else:
                raise AssertionError("neither of one device nor of all")

        # A row of a Jacobian is that of one example.
        rows = lambda w, X: hotk.curvature.PerExample(
            lambda w, e: jnp.sin(e @ w), X
        ).rows(w)
        run = jax.shard_map(rows, mesh=mesh, in_specs=(P(), P("d")), out_specs=P("d"))
        np.testing.assert_allclose(
            jax.jit(run)(w, X), np.cos(X @ w)[:, None] * X, rtol=1e-12
        )
        print("fine")
    """)


@pytest.mark.parametrize("unit", [1.0, 1e-3, 1e-9, 1e6])
@pytest.mark.parametrize(("dtype", "n"), [(np.float64, 50), (np.float32, 20_000)])
def test_a_loss_that_depends_on_other_rows_is_refused_in_any_unit(dtype, n, unit):
    """With small losses, or many rows, errors were too small by a factor of ten."""
    rng = np.random.default_rng(1)
    t = rng.normal(size=n) + 1
    y = 2 * t + 5 + rng.normal(size=n)

    def centered(p, t, y):
        r = y - p * t
        return (r - 0.9 * jnp.mean(r)) ** 2 / 2

    data = [jnp.asarray(a, dtype) for a in (t, y * unit)]
    with pytest.raises(ValueError, match="depends on other examples"):
        hotk.statistics.sandwich(centered, jnp.asarray(2.0 * unit, dtype), *data)


@pytest.mark.filterwarnings("ignore:.*not a minimum", "ignore:.*vary in")
def test_losses_that_are_rounding_alone_are_not_refused():
    t = jnp.linspace(0.0, 1.0, 50)
    found = hotk.statistics.sandwich(
        lambda p, t, y: (y - p * t) ** 2 / 2, jnp.array(2.3), t, 2.3 * t
    )
    assert float(found.standard_errors) < 1e-12
