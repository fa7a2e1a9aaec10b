"""K-FAC steps against dense linear algebra in NumPy, and against least squares."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import hotk
from hotk.curvature import SoftmaxCrossEntropy, SquaredError
from hotk.optim import kfac
from tests.helpers import close


RNG = np.random.default_rng(0)
X = jnp.array(RNG.normal(size=(40, 3)))
LABELS = jnp.array(RNG.integers(0, 4, 40))
P = {
    "w1": jnp.array(RNG.normal(size=(3, 5))),
    "b1": jnp.array(RNG.normal(size=5)),
    "w2": jnp.array(RNG.normal(size=(5, 4))),
    "b2": jnp.zeros(4),
}


def model(p, x):
    return jnp.tanh(x @ p["w1"] + p["b1"][None]) @ p["w2"] + p["b2"][None]


def classified(labels=LABELS):
    return SoftmaxCrossEntropy(labels)


def made(**options):
    return kfac(hotk.KFACOperator(model, classified(), P, X), **options)


def gradient(p, x=X, labels=LABELS):
    return jax.grad(lambda p: classified(labels)(model(p, x)))(p)


def updated(transform, state, p, x=X, labels=LABELS):
    given = {"model_fn": model, "loss_fn": classified(labels), "inputs": (x,)}
    return transform.update(gradient(p, x, labels), state, p, **given)


def dense_ggn(p, x=X):
    """The Gauss-Newton matrix: the mean of J^T (diag(s) - s s^T) J."""
    flat, unravel = ravel_pytree(p)
    outputs = lambda flat: model(unravel(flat), x)
    J = np.asarray(jax.jacobian(outputs)(flat))
    s = np.asarray(jax.nn.softmax(outputs(flat)))
    H = np.einsum("na,ab->nab", s, np.eye(4)) - np.einsum("na,nb->nab", s, s)
    return np.einsum("nai,nab,nbj->ij", J, H, J) / len(x)


@pytest.mark.exhaustive
def test_least_squares_of_a_linear_model_take_one_step():
    targets = jnp.array(RNG.normal(size=(40, 2)))
    loss = SquaredError(targets)
    p = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
    linear = lambda p, x: x @ p["w"] + p["b"][None]
    transform = kfac(hotk.KFACOperator(linear, loss, p, X), damping=1e-16)
    g = jax.grad(lambda p: loss(linear(p, X)))(p)
    given = {"model_fn": linear, "loss_fn": loss, "inputs": (X,)}
    step, state = transform.update(g, transform.init(p), p, **given)
    ones = np.concatenate([np.asarray(X), np.ones((40, 1))], axis=1)
    exact = np.linalg.lstsq(ones, np.asarray(targets), rcond=None)[0]
    close(p["w"] + step["w"], exact[:3], rtol=1e-5)
    close(p["b"] + step["b"], exact[3], rtol=1e-5)
    close(state.coefficients, np.array([1.0, 0.0]), rtol=1e-5)


@pytest.mark.exhaustive
def test_a_step_minimizes_the_quadratic_model_over_direction_and_last_step():
    transform = made(damping=0.3, inverses_every=1, factors_every=100, l2=0.1)
    first, state = updated(transform, transform.init(P), P)
    x = optax.apply_updates(P, first)
    blocks = state.factors
    damping = state.damping
    step, state = updated(transform, state, x)
    # the direction, by the definition of the damped inverse of each block
    g = gradient(x)
    shift = float(damping) + 0.1
    direction = {}
    for block, (w, b) in zip(blocks, [("w1", "b1"), ("w2", "b2")], strict=True):
        A, G = np.asarray(block.A.values), np.asarray(block.G.values)
        ratio = (np.trace(A) / len(A)) / (np.trace(G) / len(G))
        left = A + np.sqrt(ratio * shift) * np.eye(len(A))
        right = G + np.sqrt(shift / ratio) * np.eye(len(G))
        joined = np.concatenate([np.asarray(g[w]), np.asarray(g[b])[None]])
        d = -np.linalg.solve(left, joined) @ np.linalg.inv(right)
        direction[w], direction[b] = d[:-1], d[-1]
    # the plane
    M = dense_ggn(x) + shift * np.eye(len(ravel_pytree(P)[0]))
    V = np.stack([np.asarray(ravel_pytree(t)[0]) for t in (direction, first)], axis=1)
    slope = np.asarray(ravel_pytree(g)[0])
    c = np.linalg.solve(V.T @ M @ V, -V.T @ slope)
    close(state.coefficients, c, rtol=1e-8)
    close(ravel_pytree(step)[0], V @ c, rtol=1e-8)


@pytest.mark.exhaustive
def test_without_momentum_a_step_is_along_the_direction_alone():
    transform = made(momentum=False)
    step, state = updated(transform, transform.init(P), P)
    _, state = updated(transform, state, optax.apply_updates(P, step))
    assert state.coefficients[1] == 0


def test_factors_are_averaged():
    transform = made(decay=0.6)
    x, labels = X[:10], LABELS[:10]
    of = lambda x, labels: hotk.KFACOperator(model, classified(labels), P, x).blocks
    old, new = of(X, LABELS), of(x, labels)
    _, state = updated(transform, transform.init(P), P, x, labels)
    mean = jax.tree.map(lambda a, b: (np.asarray(a) + b) / 2, old, new)
    jax.tree.map(lambda a, b: close(a, b, rtol=1e-12), state.factors, mean)
    _, state = updated(transform, state, P, x, labels)  # 1 - 1/3 is more than 0.6
    later = jax.tree.map(lambda a, b: 0.6 * np.asarray(a) + 0.4 * b, mean, new)
    jax.tree.map(lambda a, b: close(a, b, rtol=1e-12), state.factors, later)


def test_inverses_are_those_of_the_new_averages():
    """By hand; the averages of the start are of another batch."""
    transform = made(damping=0.3)
    _, state = updated(transform, transform.init(P), P, X[:10], LABELS[:10])
    for block, inverse in zip(state.factors, state.inverses, strict=True):
        A, G = np.asarray(block.A.values), np.asarray(block.G.values)
        pi = np.sqrt(np.trace(A) / len(A) / (np.trace(G) / len(G)))
        left = np.linalg.inv(A + pi * np.sqrt(0.3) * np.eye(len(A)))
        right = np.linalg.inv(G + np.sqrt(0.3) / pi * np.eye(len(G)))
        close(inverse.A.values, left, rtol=1e-9)
        close(inverse.G.values, right, rtol=1e-9)


def few(reduction, **options):
    """Take two steps on 40 examples, in a batch where every fourth one is repeated."""
    loss = SoftmaxCrossEntropy(jnp.repeat(LABELS[:10], 4), reduction=reduction)
    x = jnp.repeat(X[:10], 4, axis=0)
    start = hotk.KFACOperator(model, loss, P, x)
    transform = kfac(start, damping=0.3, decay=0.0, adaptive=False, **options)
    g = jax.grad(lambda p: loss(model(p, x)))(P)
    given = {"model_fn": model, "loss_fn": loss, "inputs": (x,)}
    _, state = transform.update(g, transform.init(P), P, **given)
    return transform.update(g, state, optax.apply_updates(P, state.step), **given)


@pytest.mark.exhaustive
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_fraction_of_a_batch_of_copies_is_the_whole_batch(reduction):
    every = few(reduction)
    some = few(reduction, model_fraction=0.25, factors_fraction=0.25)
    jax.tree.map(lambda a, b: close(a, b, rtol=1e-9), some[0], every[0])
    jax.tree.map(lambda a, b: close(a, b, rtol=1e-9), some[1].factors, every[1].factors)


@pytest.mark.exhaustive
def test_a_fraction_is_of_its_examples_alone():
    """The factors, and the model, are those of every fourth example."""
    options = {"model_fraction": 0.25, "factors_fraction": 0.25, "momentum": False}
    transform = made(damping=0.3, decay=0.0, **options)
    step, state = updated(transform, transform.init(P), P)
    new = hotk.KFACOperator(model, classified(LABELS[::4]), P, X[::4]).blocks
    jax.tree.map(lambda a, b: close(a, b, rtol=1e-12), state.factors, new)
    d = np.asarray(ravel_pytree(step)[0]) / float(state.coefficients[0])
    M = dense_ggn(P, X[::4]) + 0.3 * np.eye(len(d))
    slope = np.asarray(ravel_pytree(gradient(P))[0])
    close(state.coefficients[0], np.array(-(slope @ d) / (d @ M @ d)), rtol=1e-8)


class Weighted(hotk.curvature.AbstractLoss):
    """Half the squared error, with a weight for each example."""

    targets: jax.Array
    weights: jax.Array
    reduction: str = "mean"
    convex = True

    def each(self, z):
        return self.weights[:, None] * (z - self.targets) ** 2 / 2

    def slope(self, z, targets):
        return self.weights[:, None] * (z - targets)

    def hessian_product(self, z, u):
        return self.factor(z) * self.weights[:, None] * u


def test_rows_of_a_loss_beside_its_targets_are_not_taken_apart():
    loss = Weighted(jnp.zeros((len(X), 4)), jnp.ones(len(X)))
    K = hotk.KFACOperator(model, loss, P, X)
    given = {"model_fn": model, "loss_fn": loss, "inputs": (X,)}
    for option in ("model_fraction", "factors_fraction"):
        transform = kfac(K, **{option: 0.5})
        with pytest.raises(hotk.StructureError, match=r"`loss_fn.weights` has as many"):
            transform.update(P, transform.init(P), P, **given)
    transform = kfac(K)
    transform.update(P, transform.init(P), P, **given)


@pytest.mark.exhaustive
def test_the_ratio_is_of_the_whole_batch():
    transform = made(damping=0.5, model_fraction=0.5)
    state, p = transform.init(P), P
    for _ in range(5):
        before = p
        step, state = updated(transform, state, p)
        p = optax.apply_updates(p, step)
    loss = lambda p: float(classified()(model(p, X)))
    s = np.asarray(ravel_pytree(step)[0])
    M = dense_ggn(before, X[::2]) + 0.5 * np.eye(len(s))
    expected = np.asarray(ravel_pytree(gradient(before))[0]) @ s + s @ M @ s / 2
    close(state.ratio, np.array((loss(p) - loss(before)) / expected), rtol=1e-8)


def test_averages_of_factors_now_and_then_forget_by_updates():
    """At first they are means; then old ones count 0.8 to the power of the updates."""
    transform = made(decay=0.8, factors_every=2)
    state, expected = transform.init(P), None
    for k, weight in zip(range(5), (1 / 2, None, 0.64, None, 0.64), strict=True):
        x, labels = X[5 * k : 5 * k + 10], LABELS[5 * k : 5 * k + 10]
        old = state.factors
        _, state = updated(transform, state, P, x, labels)
        new = hotk.KFACOperator(model, classified(labels), P, x).blocks
        mixed = lambda a, b, w=weight: w * np.asarray(a) + (1 - w) * np.asarray(b)
        expected = old if weight is None else jax.tree.map(mixed, old, new)
        jax.tree.map(lambda a, b: close(a, b, rtol=1e-12), state.factors, expected)


def test_factors_and_inverses_are_computed_when_it_is_time():
    transform = made(factors_every=3, inverses_every=4)
    state, p = transform.init(P), P
    factors, inverses = [], []
    for _ in range(9):
        before = state
        step, state = updated(transform, state, p)
        p = optax.apply_updates(p, step)
        factors.append(_differ(before.factors, state.factors))
        inverses.append(_differ(before.inverses, state.inverses))
    # the first update has the point and the batch of the start, so the same factors
    assert [k for k in range(1, 9) if factors[k]] == [3, 6]
    assert [k for k in range(3, 9) if inverses[k]] == [4, 8]


def _differ(a, b):
    """Whether the factor of the gradients of the last layer differs."""
    return bool(jnp.any(jax.tree.leaves(a)[-1] != jax.tree.leaves(b)[-1]))


def test_the_damping_follows_the_ratio():
    transform = made(damping=0.5)
    state, p = transform.init(P), P
    for _ in range(5):
        assert state.damping == 0.5
        before = p
        step, state = updated(transform, state, p)
        p = optax.apply_updates(p, step)
    loss = lambda p: float(classified()(model(p, X)))
    change = loss(p) - loss(before)
    s = np.asarray(ravel_pytree(step)[0])
    M = dense_ggn(before) + 0.5 * np.eye(len(s))
    expected = np.asarray(ravel_pytree(gradient(before))[0]) @ s + s @ M @ s / 2
    close(state.ratio, np.array(change / expected), rtol=1e-8)
    assert change / expected > 0.75
    close(state.damping, np.array(0.5 * 0.95**5), rtol=1e-12)


@pytest.mark.exhaustive
def test_the_damping_grows_where_the_model_promises_too_much():
    """The residuals bend fast, and are large: a Gauss-Newton step is far too long."""
    bent = lambda p, x: jnp.sin(20 * x @ p)
    loss = SquaredError(jnp.full((40, 1), 3.0))
    p = jnp.full((3, 1), 0.3)
    transform = kfac(hotk.KFACOperator(bent, loss, p, X), damping=1e-6)
    state = transform.init(p)
    for _ in range(5):
        g = jax.grad(lambda p: loss(bent(p, X)))(p)
        given = {"model_fn": bent, "loss_fn": loss, "inputs": (X,)}
        step, state = transform.update(g, state, p, **given)
        p = p + step
    assert state.ratio < 0.25
    close(state.damping, np.array(1e-6 / 0.95**5), rtol=1e-12)


def test_new_batches_and_fresh_functions_compile_nothing():
    transform = made()
    _, state = updated(transform, transform.init(P), P)
    before = hotk.cache_info().compiles
    for k in range(3):
        rows = jnp.roll(X, k, axis=0)
        labels = jnp.roll(LABELS, k)
        fresh = lambda p, x: model(p, x)
        given = {"model_fn": fresh, "loss_fn": classified(labels), "inputs": rows}
        g = gradient(P, rows, labels)
        _, state = transform.update(g, state, P, **given)
    of_fresh = 1  # other code than `model`
    assert hotk.cache_info().compiles <= before + of_fresh


def test_under_jit_and_scan_it_is_the_same():
    transform = made(damping=0.1)
    p, state = P, transform.init(P)
    for _ in range(3):
        step, state = updated(transform, state, p)
        p = optax.apply_updates(p, step)

    def one(carry, _):
        p, state = carry
        step, state = updated(transform, state, p)
        return (optax.apply_updates(p, step), state), None

    first = (P, transform.init(P))
    (q, other), _ = jax.jit(lambda first: jax.lax.scan(one, first, None, 3))(first)
    jax.tree.map(lambda a, b: close(a, b, rtol=1e-7), p, q)
    close(other.damping, np.asarray(state.damping), rtol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "wrapped",
    [
        lambda t: optax.chain(t, optax.scale(1.0)),
        lambda t: optax.apply_if_finite(t, 3),
        lambda t: optax.MultiSteps(t, 1).gradient_transformation(),
        optax.with_extra_args_support,
    ],
    ids=["chain", "apply_if_finite", "MultiSteps", "extra_args"],
)
def test_under_wrappers_it_is_the_same(wrapped):
    transform = made(damping=0.1)
    step, _ = updated(transform, transform.init(P), P)
    outer = wrapped(transform)
    # `MultiSteps` accumulates in single precision
    with jax.numpy_dtype_promotion("standard"):
        other, _ = updated(outer, outer.init(P), P)
    same = lambda a, b: close(np.asarray(b, float), np.asarray(a), rtol=1e-5)
    jax.tree.map(same, step, other)


@pytest.mark.exhaustive
def test_a_module_of_equinox_keeps_what_is_no_parameter():
    net = eqx.nn.MLP(3, 4, 5, 1, activation=jnp.tanh, key=jax.random.key(0))
    run = lambda net, x: jax.vmap(net)(x)
    transform = kfac(hotk.KFACOperator(run, classified(), net, X))
    g = eqx.filter_grad(lambda net: classified()(run(net, X)))(net)
    given = {"model_fn": run, "loss_fn": classified(), "inputs": (X,)}
    step, _ = transform.update(g, transform.init(net), net, **given)
    moved = eqx.apply_updates(net, step)
    before = classified()(run(net, X))
    assert classified()(run(moved, X)) < before


def test_a_filter_of_the_curvature_chooses_what_moves():
    where = {"w1": False, "b1": False, "w2": True, "b2": True}
    K = hotk.KFACOperator(model, classified(), P, X, where=where)
    transform = kfac(K)
    step, state = updated(transform, transform.init(P), P)
    assert not jnp.any(step["w1"])
    assert not jnp.any(step["b1"])
    assert jnp.any(step["w2"])
    assert state.step["w1"] is None


def test_what_is_not_finite_changes_nothing():
    transform = made(damping=0.5)
    state = transform.init(P)
    bad = X.at[0, 0].set(jnp.nan)
    step, after = updated(transform, state, P, bad)
    assert all(bool(jnp.all(a == 0)) for a in jax.tree.leaves(step))
    assert after.outcome == hotk.optim.Outcome.not_finite
    assert after.damping == 0.5
    jax.tree.map(lambda a, b: close(a, b, rtol=0), after.factors, state.factors)
    jax.tree.map(lambda a, b: close(a, b, rtol=0), after.inverses, state.inverses)


def test_a_gradient_that_is_not_finite_leaves_the_averages():
    transform = made(damping=0.5)
    state, other = transform.init(P), 10 * X  # factors of these would be finite
    bad = jax.tree.map(lambda a: a.at[0].set(jnp.nan), gradient(P, other))
    given = {"model_fn": model, "loss_fn": classified(), "inputs": (other,)}
    step, after = transform.update(bad, state, P, **given)
    assert all(bool(jnp.all(a == 0)) for a in jax.tree.leaves(step))
    jax.tree.map(lambda a, b: close(a, b, rtol=0), after.factors, state.factors)
    jax.tree.map(lambda a, b: close(a, b, rtol=0), after.inverses, state.inverses)


@pytest.mark.exhaustive
def test_an_opaque_model_is_read_in_each_update():
    """Its scale comes from what it counts, which no key can tell."""
    calls = iter(range(1, 100))
    scale = lambda: float(next(calls) > 1_000_000) + 1
    opaque = lambda p, x: scale() * model(p, x)
    assert hotk.explain(opaque).opaque is not None
    transform = made()
    step, _ = updated(transform, transform.init(P), P)
    given = {"model_fn": opaque, "loss_fn": classified(), "inputs": X}
    for _ in range(2):
        other, _ = transform.update(gradient(P), transform.init(P), P, **given)
        jax.tree.map(lambda a, b: close(a, b, rtol=1e-9), step, other)


@pytest.mark.exhaustive
def test_targets_are_drawn_anew_in_each_update():
    sampled = hotk.KFACOperator(
        model, classified(), P, X, estimate="sampled", key=jax.random.key(1)
    )
    transform = kfac(sampled, decay=0.0)
    _, state = updated(transform, transform.init(P), P)
    _, later = updated(transform, state, P)
    first, second = (jax.tree.leaves(s.factors)[-1] for s in (state, later))
    assert bool(jnp.any(first != second))


# ----- Errors


def test_all_that_is_missing_is_named(as_user):
    transform = made()
    with pytest.raises(TypeError, match="`loss_fn` and `inputs` missing"):
        transform.update(gradient(P), transform.init(P), P, model_fn=model)
    with pytest.raises(TypeError, match=r"hotk\.KFACOperator\(model"):
        kfac(0.1)
    with pytest.raises(ValueError, match=r"is 4.0, not a number in \(0, 1\]"):
        made(model_fraction=4.0)


def test_other_parameters_are_refused(as_user):
    transform = made()
    other = {**P, "b2": jnp.zeros(3)}
    with pytest.raises(hotk.StructureError, match=r"got: +shape \(3,\) at `params\[b2"):
        transform.init(other)
    boxed = jax.tree.map(lambda a: jax.tree_util.Partial(jnp.sin, a), P)
    with pytest.raises(hotk.StructureError, match=r"got: [^\n]*params\[b1\]\[0\]"):
        transform.init(boxed)


def test_another_use_of_the_parameters_is_refused(as_user):
    transform = made()
    reshaped = lambda p, x: (
        jnp.tanh(x @ p["w1"] + p["b1"][None]) @ p["w2"] + p["b2"][None] ** 3
    )
    given = {"model_fn": reshaped, "loss_fn": classified(), "inputs": (X,)}
    with pytest.raises(hotk.StructureError, match="does not use its parameters as"):
        transform.update(gradient(P), transform.init(P), P, **given)


def test_minimize_says_that_it_needs_a_loop(as_user):
    with pytest.raises(TypeError, match="Write the loop"):
        hotk.optim.minimize(lambda p: classified()(model(p, X)), P, made())


def test_inside_of_shard_map_it_is_refused(as_user):
    mesh = jax.make_mesh((1,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, rows = (jax.sharding.PartitionSpec(*names) for names in ((), ("rows",)))
    run = lambda p, x: hotk.KFACOperator(model, classified(), p, x).blocks[0].A.values
    inside = jax.shard_map(run, mesh=mesh, in_specs=(whole, rows), out_specs=whole)
    with pytest.raises(hotk.ModeError, match="only its own examples"):
        jax.jit(inside)(P, X)
