"""optax, optimistix, lineax, scikit-learn and annotations that are checked."""

import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optax
import optimistix as optx
from beartype import beartype
from jax import vmap
from jaxtyping import Array, Float, jaxtyped
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from tests.everyday.corpus import everyday
from tests.everyday.draws import labels, normals, numpy_normals


@everyday("optax's losses by name from a NumPy batch")
def optax_losses(seed):
    X, W = numpy_normals(seed, (10, 3), (3, 4))
    y = labels(seed, 10, 4)

    def loss(W):
        logits = X @ W
        hard = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        soft = optax.huber_loss(logits, delta=0.5).mean()
        return hard + soft + 1e-2 * optax.tree.norm(W, squared=True)

    return loss, jnp.asarray(W), ()


@everyday("a schedule and an optimizer of optax captured, not read")
def optax_captured(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 100)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))

    def loss(w, train=False):
        if train:
            return optimizer.init(w), schedule(0)
        return jnp.mean(optax.l2_loss(jnp.sin(X @ w), y))

    return loss, w, ()


@everyday("a schedule of optax evaluated in the loss at an array step")
def optax_schedule(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    schedule = optax.exponential_decay(0.5, transition_steps=3, decay_rate=0.9)
    step = jnp.asarray(seed)
    return lambda w: schedule(step) * jnp.mean((X @ w - y) ** 4), w, ()


@everyday("a step of optax inside: the loss after an update")
def optax_step(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    optimizer = optax.sgd(0.1, momentum=0.9)

    def inner(w):
        return jnp.mean((jnp.tanh(X @ w) - y) ** 2)

    def after_two_steps(w):
        state = optimizer.init(w)
        for _ in range(2):
            updates, state = optimizer.update(jax.grad(inner)(w), state)
            w = optax.apply_updates(w, updates)
        return inner(w)

    return after_two_steps, w, ()


@everyday("a root of optimistix inside the loss", x64=True)
def root(seed):
    A, x = normals(seed, (3, 3), (3,))
    solver = optx.Newton(rtol=1e-10, atol=1e-10)

    def equation(z, x):
        return z + 0.1 * jnp.tanh(A @ z) - x

    def loss(x):
        z = optx.root_find(equation, solver, jnp.zeros(3), args=x).value
        return jnp.sum(z**4)

    return loss, x, ()


@everyday("least squares of optimistix inside the loss", x64=True)
def least_squares(seed):
    A, b, x = normals(seed, (5, 2), (5,), (5,))
    solver = optx.LevenbergMarquardt(rtol=1e-10, atol=1e-10)

    def residual(z, x):
        return jnp.concatenate([A @ z - b - 0.1 * x, 0.1 * jnp.sin(z)])

    def loss(x):
        fit = optx.least_squares(residual, solver, jnp.zeros(2), args=x, throw=False)
        return jnp.sum(jnp.cos(fit.value))

    return loss, x, ()


@everyday("a fixed point of optimistix, the solver in the module", x64=True)
def fixed_point(seed):
    A, x = normals(seed, (3, 3), (3,))

    def update(z, x):
        return 0.3 * jnp.sin(A @ z) / (1 + jnp.sum(A**2)) ** 0.5 + x

    def loss(x):
        return jnp.sum(optx.fixed_point(update, PICARD, x, args=x).value ** 3)

    return loss, x, ()


PICARD = optx.FixedPointIteration(rtol=1e-12, atol=1e-12)


@everyday("a linear solve of lineax inside the loss")
def linear_solve(seed):
    A, b, theta = normals(seed, (4, 4), (4,), (4,))

    def loss(theta):
        operator = lx.MatrixLinearOperator(A @ A.T + jnp.diag(2 + theta**2))
        return b @ lx.linear_solve(operator, b, solver=lx.LU()).value

    return loss, theta, ()


@everyday("conjugate gradients of lineax, operator and solver with tags")
def conjugate_gradients(seed):
    A, b, theta = normals(seed, (4, 4), (4,), (4,))
    solver = lx.CG(rtol=1e-6, atol=1e-6)

    def loss(theta):
        matrix = A @ A.T / 4 + jnp.diag(2 + theta**2)
        operator = lx.MatrixLinearOperator(matrix, lx.positive_semidefinite_tag)
        return jnp.sum(lx.linear_solve(operator, b, solver).value ** 2)

    return loss, theta, ()


IRIS = load_iris()


@everyday("a scaler of scikit-learn captured, data scaled before")
def scaled(seed):
    rows = np.random.default_rng(seed).permutation(150)[:20]
    scaler = StandardScaler().fit(IRIS.data)
    X = jnp.asarray(scaler.transform(IRIS.data[rows]), jnp.float32)
    y = jnp.asarray(IRIS.target[rows])

    def loss(W):
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(X @ W, y))

    def report(W):
        return scaler.inverse_transform(W)

    return lambda W, full=False: report(W) if full else loss(W), jnp.zeros((4, 3)), ()


@everyday("fitted estimators of scikit-learn read inside the loss")
def estimators(seed):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(20, 3)), rng.integers(0, 2, 20)
    y[:2] = 0, 1
    scaler, model = StandardScaler().fit(X), LogisticRegression().fit(X, y)

    def surrogate(x):
        z = (x - jnp.asarray(scaler.mean_)) / jnp.asarray(scaler.scale_)
        return jax.nn.softplus(z @ jnp.asarray(model.coef_[0]) + model.intercept_[0])

    return surrogate, jnp.asarray(rng.normal(size=3), jnp.float32), ()


@everyday("features made by scikit-learn before, coefficients fitted")
def features(seed):
    X, y = numpy_normals(seed, (15, 2), (15,))
    Phi = PolynomialFeatures(2).fit_transform(X)
    return lambda c: jnp.mean(jnp.log1p((Phi @ c - y) ** 2)), jnp.zeros(6) + 0.1, ()


@jaxtyped(typechecker=beartype)
def typed_predict(w: Float[Array, " d"], X: Float[Array, "n d"]) -> Float[Array, " n"]:
    return jnp.tanh(X @ w)


@everyday("jaxtyping with beartype on a function of the module")
def typed(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))
    return lambda w: jnp.mean((typed_predict(w, X) - y) ** 2), w, ()


# beartype sometimes writes another check of the same types, which is traced.
@everyday("jaxtyping with beartype on the closure", traces=1)
def typed_closure(seed):
    X, y, w = normals(seed, (8, 3), (8,), (3,))

    @jaxtyped(typechecker=beartype)
    def loss(w: Float[Array, " d"]) -> Float[Array, ""]:
        return jnp.mean((vmap(lambda x: jnp.sin(x @ w))(X) - y) ** 2)

    return loss, w, ()


@everyday("beartype alone on a helper with plain annotations")
def bear(seed):
    A, x = normals(seed, (3, 3), (3,))

    @beartype
    def power(y: jax.Array, n: int = 4) -> jax.Array:
        return jnp.sum(y**n)

    return lambda x: power(A @ x) + power(x, n=6), x, ()
