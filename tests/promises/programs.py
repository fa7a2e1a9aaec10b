"""A call of every public function that a program can hold, each of one vector.

A new public function is one row here, or a name under `NO_PROGRAM`:
`test_every_public_function_is_lowered` asks for it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hotk
from hotk import curvature, estimate, linop, optim, rule, safe
from tests.optim.optimizers import OPTIMIZERS, START, quadratic


RANDOM = np.random.default_rng(0)
X, Y = jnp.asarray(RANDOM.normal(size=(6, 3))), jnp.asarray(RANDOM.normal(size=6))
W, V = jnp.array([0.5, -1.0, 0.3]), jnp.array([1.0, 2.0, -1.0])
KEY = jax.random.key(0)
SQUARES = curvature.SquaredError(Y)


def f(w):
    return jnp.mean((jnp.tanh(X @ w) - Y) ** 2) + w @ w


def g(w):
    return jnp.tanh(X @ w)


def model(w):
    return X @ w


def chain(w):
    return w[1:] * w[:-1]


def two(a, b):
    return f(a * b)


def along(w):
    return lambda t: f(w + t * V)


def H(w):
    return hotk.HessianOperator(f, w)


def G(w):
    return hotk.GGNOperator(model, SQUARES, w)


FIRST = {
    "jvp": lambda w: hotk.jvp(g, w, V),
    "value_and_jvp": lambda w: hotk.value_and_jvp(g, w, V),
    "vjp": lambda w: hotk.vjp(g, w, Y),
    "value_and_vjp": lambda w: hotk.value_and_vjp(g, w, Y),
    "gradient": lambda w: hotk.gradient(f, w),
    "value_and_gradient": lambda w: hotk.value_and_gradient(f, w),
    "jacobian": lambda w: hotk.jacobian(g, w),
    "value_and_jacobian": lambda w: hotk.value_and_jacobian(g, w),
    "divergence": lambda w: hotk.divergence(jnp.sin, w),
    "value_and_divergence": lambda w: hotk.value_and_divergence(jnp.sin, w),
    "derivative": lambda w: hotk.derivative(along(w), 0.0),
    "value_and_derivative": lambda w: hotk.value_and_derivative(along(w), 0.0),
}

SECOND = {
    "second_derivative": lambda w: hotk.second_derivative(along(w), 0.0),
    "hvp": lambda w: hotk.hvp(f, w, V),
    "hvp, prepared": lambda w: hotk.hvp.prepare(f, w, V)(w, V),
    "value_gradient_and_hvp": lambda w: hotk.value_gradient_and_hvp(f, w, V),
    "quadratic_form": lambda w: hotk.quadratic_form(f, w, V),
    "hessian": lambda w: hotk.hessian(f, w),
    "value_gradient_and_hessian": lambda w: hotk.value_gradient_and_hessian(f, w),
    "hessian_diagonal": lambda w: hotk.hessian_diagonal(f, w),
    "cross_hessian": lambda w: hotk.cross_hessian(two, w, V),
    "cross_hvp": lambda w: hotk.cross_hvp(two, w, V, V),
    "ggnvp": lambda w: hotk.ggnvp(model, SQUARES, w, V),
    "fvp": lambda w: hotk.fvp(model, SQUARES, w, V),
    "sampled_fvp": lambda w: hotk.sampled_fvp(model, SQUARES, w, V, key=KEY),
    "empirical_fvp": lambda w: hotk.empirical_fvp(model, SQUARES, w, V),
}

HIGHER = {
    "derivatives": lambda w: hotk.derivatives(f, w, V, order=3),
    "taylor": lambda w: hotk.taylor(f, w, V, order=3),
    "derivative_tensor": lambda w: hotk.derivative_tensor(f, w, order=3),
    "tvp": lambda w: hotk.tvp(f, w, V, V, V),
    "laplacian": lambda w: hotk.laplacian(f, w),
    "value_and_laplacian": lambda w: hotk.value_and_laplacian(f, w),
    "biharmonic": lambda w: hotk.biharmonic(f, w),
    "partial": lambda w: hotk.partial(f, w, (2, 1, 0)),
    "differential_operator": lambda w: hotk.differential_operator(
        {(2, 0, 0): 1.0, (0, 1, 1): 2.0}
    )(f, w),
}

SPARSE = {
    "sparse_hessian": lambda w: (
        hotk.sparse_hessian(lambda w: jnp.sum(w**4) + jnp.sum(chain(w)), w).values
    ),
    "sparse_jacobian": lambda w: hotk.sparse_jacobian(chain, w).values,
    "value_and_sparse_jacobian": lambda w: (
        hotk.value_and_sparse_jacobian(chain, w)[1].values
    ),
    "sparse_lagrangian": lambda w: (
        hotk.sparse_lagrangian(
            lambda w: (jnp.sum(w**4), chain(w)), w, (1.0, jnp.ones(2))
        )[3].values
    ),
    "value_gradient_and_sparse_hessian": lambda w: (
        hotk.value_gradient_and_sparse_hessian(lambda w: jnp.sum(w**4), w)[2].values
    ),
    "sparse_ggn": lambda w: (
        hotk.sparse_ggn(chain, curvature.SquaredError(jnp.ones(2)), w).values
    ),
}

OPERATORS = {
    "HessianOperator, product": lambda w: H(w) @ V,
    "HessianOperator, many": lambda w: H(w).many(jnp.stack([V, w])),
    "HessianOperator, matrix": lambda w: H(w).matrix(),
    "HessianOperator, diagonal": lambda w: H(w).diagonal(),
    "HessianOperator, linearized": lambda w: H(w).linearize("store") @ V,
    "HessianOperator, inverse": lambda w: H(w).inverse() @ V,
    "GGNOperator": lambda w: G(w) @ V,
    "FisherOperator": lambda w: hotk.FisherOperator(model, SQUARES, w) @ V,
    "SampledFisherOperator": lambda w: (
        hotk.SampledFisherOperator(model, SQUARES, w, key=KEY) @ V
    ),
    "EmpiricalFisherOperator": lambda w: (
        hotk.EmpiricalFisherOperator(model, SQUARES, w) @ V
    ),
}

SOLVERS = {
    "linop.cg": lambda w: linop.cg(G(w), V),
    "linop.minres": lambda w: linop.minres(H(w), V),
    "linop.nystrom": lambda w: linop.nystrom(G(w), 2, KEY),
    "linop.steihaug": lambda w: linop.steihaug(H(w), V, 0.1),
    "linop.solve": lambda w: linop.solve(H(w), V),
    "linop.by_iteration": lambda w: linop.by_iteration(lambda v: 2 * v, w),
    "linop.cholesky": lambda w: linop.cholesky(G(w)),
    "linop.inertia": lambda w: linop.inertia(H(w)),
    "linop.eigh": lambda w: linop.eigh(H(w), 1),
    "linop.eigh, by Lanczos": lambda w: hotk.HessianOperator(
        lambda a: jnp.sum(jnp.cosh(a)) + f(a[:3]), jnp.tile(w, 100)
    ).eigh(2),
}

ESTIMATES = {
    "estimate.trace": lambda w: estimate.trace(H(w), KEY),
    "estimate.diagonal": lambda w: estimate.diagonal(H(w), KEY),
    "estimate.spectrum": lambda w: estimate.spectrum(H(w), KEY),
    "estimate.logdet": lambda w: estimate.logdet(G(w), KEY),
    "estimate.laplacian": lambda w: estimate.laplacian(f, w, KEY),
    "estimate.biharmonic": lambda w: estimate.biharmonic(f, w, KEY),
    "estimate.divergence": lambda w: estimate.divergence(jnp.sin, w, KEY),
    "estimate.differential": lambda w: estimate.differential(
        hotk.differential_operator({(2, 0, 0): 1.0, (0, 1, 1): 2.0}), f, w, KEY
    ),
}


def sine(w):
    return jnp.sin(w)


def matrix(w):
    return jnp.diag(jnp.exp(w)) + jnp.outer(w, w)


# Second derivatives, as these are made for them.
RULES = {
    "rule.custom": rule.custom(f),
    "rule.substitute": rule.substitute({sine: jnp.sin})(lambda w: jnp.sum(sine(w))),
    "rule.root": lambda w: jnp.sum(
        rule.root(lambda x, w: x**3 + x - w, lambda x, w: w)(w, w)
    ),
    "rule.minimum": lambda w: jnp.sum(
        rule.minimum(lambda x, w: jnp.sum((x - w) ** 4 + x**2), lambda x, w: x)(w, w)
    ),
    "rule.fixed_point": lambda w: jnp.sum(
        rule.fixed_point(lambda x, w: jnp.cos(x + w) / 3, lambda x, w: x)(w, w)
    ),
    "rule.linear_solve": lambda w: jnp.sum(
        rule.linear_solve(lambda v: matrix(w) @ v, w)
    ),
    "safe.apply_where": lambda w: jnp.sum(safe.apply_where(w > 0, jnp.log, w, 0.0)),
    "safe.det": lambda w: safe.det(matrix(w)),
    "safe.slogdet": lambda w: safe.slogdet(matrix(w))[1],
    "safe.divide": lambda w: jnp.sum(safe.divide(w, 1 + w)),
    "safe.logsumexp": lambda w: safe.logsumexp(w),
    "safe.matrix_function": lambda w: jnp.sum(safe.matrix_function(matrix(w), jnp.exp)),
    "safe.spectral_sum": lambda w: safe.spectral_sum(matrix(w), jnp.exp),
    "safe.norm": lambda w: safe.norm(w) ** 3,
    "safe.radial": lambda w: safe.radial(w, jnp.cos),
    "safe.power": lambda w: jnp.sum(safe.power(w, 2.5)),
    "safe.sigmoid": lambda w: jnp.sum(safe.sigmoid(w)),
    "safe.softplus": lambda w: jnp.sum(safe.softplus(w)),
    "safe.sqrt": lambda w: jnp.sum(safe.sqrt(w)),
}


def derivatives(f):
    return lambda w: (hotk.hvp(f, w, V), hotk.hessian(f, w))


RULES = {name: derivatives(f) for name, f in RULES.items()}


def steps(name, make):
    """Return a row that makes one step from the start of a vector."""
    transform = make()

    def step(w):
        params = jax.tree.map(lambda a: a * w[0], START)
        gradient = hotk.gradient(quadratic, params)
        state = transform.init(params)
        updates, state = transform.update(gradient, state, params, value_fn=quadratic)
        return optax.apply_updates(params, updates), state

    return f"optim.{name}", step


OPTIMIZING = dict(
    steps(name, row.make)
    for name, row in OPTIMIZERS.items()
    if not name.endswith("sparse")
)
OPTIMIZING |= dict(
    [
        steps(
            "scale_by_line_search",
            lambda: optax.chain(optax.identity(), optim.scale_by_line_search()),
        )
    ]
)

ROWS, LABELS = X[:, :2], Y[:, None]


def layer(weights, rows):
    return rows @ weights


def by_factors(w):
    """Return a step of K-FAC."""
    weights, loss = w[:2, None], curvature.SquaredError(LABELS)
    transform = optim.kfac(hotk.KFACOperator(layer, loss, weights, ROWS))
    gradient = hotk.gradient(lambda a: loss(layer(a, ROWS)), weights)
    given = {"model_fn": layer, "loss_fn": loss, "inputs": (ROWS,)}
    return transform.update(gradient, transform.init(weights), weights, **given)[0]


OPTIMIZING["optim.kfac"] = by_factors

PROGRAMS = FIRST | SECOND | HIGHER | SPARSE | OPERATORS | SOLVERS | ESTIMATES
PROGRAMS |= RULES | OPTIMIZING

# Programs with a part that runs on the host: JAX lowers such a part for the platform of
# the process that lowers it, and for no other.
ON_HOST = {
    "rule.external": lambda w: hotk.gradient(
        lambda w: jnp.sum(
            rule.external(
                np.sin, result_shape=lambda x: x, vjp=lambda p, u: (np.cos(p[0]) * u,)
            )(w)
        ),
        w,
    ),
}
ON_HOST |= dict(
    steps(name, row.make) for name, row in OPTIMIZERS.items() if name.endswith("sparse")
)
