"""Each public name that computes numbers, with what it should compute, by plain JAX.

A probe is called with a `Subject` and a point, and returns arrays. `expected` has the
elementary functions; it uses JAX and NumPy, and nothing of hotk.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import hotk
import hotk.interop
from tests.grid.subjects import DIRECTION, WEIGHTS


class Probe(NamedTuple):
    """A call of hotk and the truth about it.

    Attributes:
        call: From a subject and a point to arrays.
        expected: The same by plain JAX.
        contexts: Where it can be called: "all", or "values" if it is a matter of the
            host (SciPy), and so not inside of a trace.
        tol: The largest error, over the root of the machine epsilon.
    """

    call: Callable[[Any, Any], Any]
    expected: Callable[[Any, Any], Any]
    contexts: str = "all"
    tol: float = 1.0


PROBES: dict[str, Probe] = {}


def probe(name: str, **options: Any) -> Callable[[Callable[[Any, Any], Any]], Any]:
    """Enter a call under the public name that it is about, with what is expected."""

    def enter(call: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
        def with_expected(expected: Any) -> None:
            assert name not in PROBES
            PROBES[name] = Probe(call, expected, **options)

        return with_expected

    return enter


def like(numbers, x):
    return jnp.asarray(numbers, x.dtype)


def direction(x):
    return like(DIRECTION, x)


def weights(x):
    return like(WEIGHTS, x)


# ----- The truth, by plain JAX


def derivative_of(f):
    """Return the Jacobian, for complex numbers that of a holomorphic function."""
    return lambda x: jax.jacfwd(f, holomorphic=jnp.iscomplexobj(x))(x)


def jac(f, x):
    return derivative_of(f)(x)


def hess(f, x):
    return derivative_of(derivative_of(f))(x)


def third(f, x):
    return derivative_of(derivative_of(derivative_of(f)))(x)


def along(f, x, order):
    """Return the derivatives of orders 0 to `order` along the direction."""
    line = lambda t: f(x + t * direction(x))
    found, each = [], line
    for _ in range(order + 1):
        found.append(each(jnp.zeros((), x.dtype)))
        each = derivative_of(each)
    return found


def laplacian(f, x):
    return jnp.trace(hess(f, x))


def curvature(z):
    """Return a loss of outputs, with a Hessian that is not diagonal."""
    return jnp.sum(z**2) / 2 + jnp.sum(z) ** 2 / 8


def squares(z):
    """Return the loss of `SquaredError` for targets 0: half the mean over examples."""
    return jnp.sum(z**2) / 2 / z.shape[0]


def gauss_newton(loss, model, x):
    J = jax.jacfwd(model)(x)
    return J.T @ jax.hessian(loss)(model(x)) @ J


def flat(x, *parts):
    return jnp.concatenate([jnp.ravel(p) for p in parts])


# ----- First order

probe("jvp")(lambda s, x: hotk.jvp(s.model, x, direction(x)))(
    lambda s, x: jac(s.model, x) @ direction(x)
)
probe("value_and_jvp")(lambda s, x: hotk.value_and_jvp(s.model, x, direction(x)))(
    lambda s, x: (s.model(x), jac(s.model, x) @ direction(x))
)
probe("vjp")(lambda s, x: hotk.vjp(s.model, x, weights(x)))(
    lambda s, x: weights(x) @ jac(s.model, x)
)
probe("value_and_vjp")(lambda s, x: hotk.value_and_vjp(s.model, x, weights(x)))(
    lambda s, x: (s.model(x), weights(x) @ jac(s.model, x))
)
probe("gradient")(lambda s, x: hotk.gradient(s.f, x))(lambda s, x: jax.grad(s.f)(x))
probe("value_and_gradient")(lambda s, x: hotk.value_and_gradient(s.f, x))(
    lambda s, x: jax.value_and_grad(s.f)(x)
)
probe("jacobian")(lambda s, x: hotk.jacobian(s.model, x))(lambda s, x: jac(s.model, x))
probe("value_and_jacobian")(lambda s, x: hotk.value_and_jacobian(s.model, x))(
    lambda s, x: (s.model(x), jac(s.model, x))
)
probe("divergence")(lambda s, x: hotk.divergence(s.model, x))(
    lambda s, x: jnp.trace(jac(s.model, x))
)
probe("value_and_divergence")(lambda s, x: hotk.value_and_divergence(s.model, x))(
    lambda s, x: (s.model(x), jnp.trace(jac(s.model, x)))
)


def on_line(f, x):
    return lambda t: f(x * t)


probe("derivative")(lambda s, x: hotk.derivative(on_line(s.model, x), one(x)))(
    lambda s, x: jac(on_line(s.model, x), one(x))
)
probe("value_and_derivative")(
    lambda s, x: hotk.value_and_derivative(on_line(s.model, x), one(x))
)(lambda s, x: (s.model(x), jac(on_line(s.model, x), one(x))))
probe("second_derivative")(
    lambda s, x: hotk.second_derivative(on_line(s.model, x), one(x))
)(lambda s, x: jax.jacfwd(jax.jacfwd(on_line(s.model, x)))(one(x)))


def one(x):
    return jnp.ones((), x.dtype)


# ----- Second order

probe("hvp")(lambda s, x: hotk.hvp(s.f, x, direction(x)))(
    lambda s, x: hess(s.f, x) @ direction(x)
)
probe("value_gradient_and_hvp")(
    lambda s, x: hotk.value_gradient_and_hvp(s.f, x, direction(x))
)(lambda s, x: (s.f(x), jax.grad(s.f)(x), hess(s.f, x) @ direction(x)))
probe("quadratic_form")(lambda s, x: hotk.quadratic_form(s.f, x, direction(x)))(
    lambda s, x: direction(x) @ hess(s.f, x) @ direction(x)
)
probe("hessian")(lambda s, x: hotk.hessian(s.f, x))(lambda s, x: hess(s.f, x))
probe("value_gradient_and_hessian")(
    lambda s, x: hotk.value_gradient_and_hessian(s.f, x)
)(lambda s, x: (s.f(x), jax.grad(s.f)(x), hess(s.f, x)))
probe("hessian_diagonal")(lambda s, x: hotk.hessian_diagonal(s.f, x))(
    lambda s, x: jnp.diagonal(hess(s.f, x))
)


def of_two(s):
    return lambda x, y: s.f(x * (1 + y / 4))


probe("cross_hessian")(lambda s, x: hotk.cross_hessian(of_two(s), x, weights(x)))(
    lambda s, x: jax.jacfwd(jax.grad(of_two(s)), argnums=1)(x, weights(x))
)
probe("cross_hvp")(lambda s, x: hotk.cross_hvp(of_two(s), x, direction(x), weights(x)))(
    lambda s, x: (
        jax.jacfwd(jax.grad(of_two(s)), argnums=1)(x, weights(x)) @ direction(x)
    )
)

# ----- Any order

probe("laplacian")(lambda s, x: hotk.laplacian(s.f, x))(lambda s, x: laplacian(s.f, x))
probe("value_and_laplacian")(lambda s, x: hotk.value_and_laplacian(s.f, x))(
    lambda s, x: (s.f(x), laplacian(s.f, x))
)
probe("biharmonic")(lambda s, x: hotk.biharmonic(s.f, x))(
    lambda s, x: laplacian(lambda x: laplacian(s.f, x), x)
)
probe("partial")(lambda s, x: hotk.partial(s.f, x, (1, 1, 1)))(
    lambda s, x: third(s.f, x)[0, 1, 2]
)
probe("derivative_tensor")(lambda s, x: hotk.derivative_tensor(s.f, x, order=3))(
    lambda s, x: third(s.f, x)
)
probe("derivatives")(lambda s, x: hotk.derivatives(s.f, x, direction(x), order=4))(
    lambda s, x: along(s.f, x, 4)
)
probe("taylor")(lambda s, x: hotk.taylor(s.f, x, direction(x), order=4))(
    lambda s, x: [
        d / k for d, k in zip(along(s.f, x, 4), (1, 1, 2, 6, 24), strict=True)
    ]
)
probe("tvp")(lambda s, x: hotk.tvp(s.f, x, direction(x), weights(x)))(
    lambda s, x: direction(x) @ hess(s.f, x) @ weights(x)
)
probe("differential_operator")(
    lambda s, x: hotk.differential_operator({(2, 0, 0): 2.0, (0, 1, 1): -1.0})(s.f, x)
)(lambda s, x: 2 * hess(s.f, x)[0, 0] - hess(s.f, x)[1, 2])

# ----- Curvature of models

rows = lambda s: lambda x: s.model(x)[:, None]  # three examples of one output


def squared(x):
    return hotk.curvature.SquaredError(jnp.zeros((3, 1), x.dtype))


def square_curvature(s, x):
    return gauss_newton(squares, rows_of(s), x)


def rows_of(s):
    return lambda x: s.model(x)


def mean_of_outer(s, x):
    slopes = jax.jacfwd(lambda x: s.model(x) ** 2 / 2)(x)
    return slopes.T @ slopes / 3


probe("ggnvp")(lambda s, x: hotk.ggnvp(s.model, curvature, x, direction(x)))(
    lambda s, x: gauss_newton(curvature, s.model, x) @ direction(x)
)
probe("fvp")(lambda s, x: hotk.fvp(rows(s), squared(x), x, direction(x)))(
    lambda s, x: square_curvature(s, x) @ direction(x)
)
probe("empirical_fvp")(
    lambda s, x: hotk.empirical_fvp(rows(s), squared(x), x, direction(x))
)(lambda s, x: mean_of_outer(s, x) @ direction(x))
probe("GGNOperator")(lambda s, x: hotk.GGNOperator(s.model, curvature, x).matrix())(
    lambda s, x: gauss_newton(curvature, s.model, x)
)
probe("FisherOperator")(
    lambda s, x: hotk.FisherOperator(rows(s), squared(x), x).matrix()
)(square_curvature)
probe("EmpiricalFisherOperator")(
    lambda s, x: hotk.EmpiricalFisherOperator(rows(s), squared(x), x).matrix()
)(mean_of_outer)

# ----- Sparse

probe("sparse_hessian")(lambda s, x: hotk.sparse_hessian(s.f, x).todense())(
    lambda s, x: hess(s.f, x)
)
probe("value_gradient_and_sparse_hessian")(
    lambda s, x: dense_last(hotk.value_gradient_and_sparse_hessian(s.f, x))
)(lambda s, x: (s.f(x), jax.grad(s.f)(x), hess(s.f, x)))
probe("sparse_jacobian")(lambda s, x: hotk.sparse_jacobian(s.model, x).todense())(
    lambda s, x: jac(s.model, x)
)
probe("value_and_sparse_jacobian")(
    lambda s, x: dense_last(hotk.value_and_sparse_jacobian(s.model, x))
)(lambda s, x: (s.model(x), jac(s.model, x)))
probe("sparse_lagrangian")(
    lambda s, x: dense_last(
        hotk.sparse_lagrangian(
            lambda x: (s.f(x), s.model(x)), x, (2.0, jnp.ones_like(s.model(x)))
        )
    )
)(
    lambda s, x: (
        (s.f(x), s.model(x)),
        jax.grad(s.f)(x),
        jac(s.model, x),
        2 * hess(s.f, x) + hess(lambda x: jnp.sum(s.model(x)), x),
    )
)
probe("sparse_ggn")(lambda s, x: hotk.sparse_ggn(s.model, curvature, x).todense())(
    lambda s, x: gauss_newton(curvature, s.model, x)
)


def dense_last(results):
    dense = lambda a: a.todense() if isinstance(a, hotk.SparseMatrix) else a
    return tuple(map(dense, results))


# ----- Operators at a point and solvers

H = lambda s, x: hotk.HessianOperator(s.f, x)
inverse = lambda s, x: jnp.linalg.inv(hess(s.f, x))


def tight(x):
    return 10 * float(jnp.finfo(x.dtype).eps)


def vector_of(solution):
    """Return what was found, or NaN where the solution says that it is none."""
    return jnp.where(solution.converged, solution.x, jnp.nan)


def method(name, call, expected, **options):
    PROBES[f"HessianOperator.{name}"] = Probe(call, expected, **options)


method(
    "matmul",
    lambda s, x: H(s, x) @ direction(x),
    lambda s, x: hess(s.f, x) @ direction(x),
)
method("matrix", lambda s, x: H(s, x).matrix(), lambda s, x: hess(s.f, x))
method("diagonal", lambda s, x: H(s, x).diagonal(), lambda s, x: jnp.diag(hess(s.f, x)))
method("gradient", lambda s, x: H(s, x).gradient, lambda s, x: jax.grad(s.f)(x))
method("value", lambda s, x: H(s, x).value, lambda s, x: s.f(x))
method(
    "quadratic_form",
    lambda s, x: H(s, x).quadratic_form(direction(x)),
    lambda s, x: direction(x) @ hess(s.f, x) @ direction(x),
)
method(
    "many",
    lambda s, x: H(s, x).many(jnp.eye(3, dtype=x.dtype)),
    lambda s, x: hess(s.f, x),
)
method(
    "restrict",
    lambda s, x: H(s, x).restrict(np.array([True, False, True])).matrix(),
    lambda s, x: hess(s.f, x)[::2, ::2],
)
method(
    "linearize",
    lambda s, x: H(s, x).linearize("store") @ direction(x),
    lambda s, x: hess(s.f, x) @ direction(x),
)
method("sparse", lambda s, x: H(s, x).sparse().todense(), lambda s, x: hess(s.f, x))
method(
    "cholesky",
    lambda s, x: H(s, x).cholesky(),
    lambda s, x: jnp.linalg.cholesky(hess(s.f, x)),
)
method(
    "solve",
    lambda s, x: vector_of(H(s, x).solve(direction(x), tol=tight(x))),
    lambda s, x: jnp.linalg.solve(hess(s.f, x), direction(x)),
    tol=10,
)
method(
    "inverse",
    lambda s, x: H(s, x).inverse(method="cholesky") @ direction(x),
    lambda s, x: jnp.linalg.solve(hess(s.f, x), direction(x)),
    tol=10,
)
method(
    "eigh",
    lambda s, x: H(s, x).eigh(3).values,
    lambda s, x: jnp.linalg.eigvalsh(hess(s.f, x)),
    tol=10,
)
method(
    "inertia",
    lambda s, x: jnp.stack([jnp.asarray(n, float) for n in H(s, x).inertia()]),
    lambda s, x: jnp.array([3.0, 0.0, 0.0]) + 0 * jnp.sum(x),
)
probe("Diagonal")(
    lambda s, x: (H(s, x) + hotk.Diagonal(weights(x) ** 2)) @ direction(x)
)(lambda s, x: (hess(s.f, x) + jnp.diag(weights(x) ** 2)) @ direction(x))
probe("Identity")(lambda s, x: (H(s, x) + 0.5 * hotk.Identity()) @ direction(x))(
    lambda s, x: hess(s.f, x) @ direction(x) + 0.5 * direction(x)
)
solved = lambda s, x: jnp.linalg.solve(hess(s.f, x), direction(x))
probe("linop.cg", tol=10)(
    lambda s, x: vector_of(hotk.linop.cg(H(s, x), direction(x), tol=tight(x)))
)(solved)
probe("linop.minres", tol=10)(
    lambda s, x: vector_of(hotk.linop.minres(H(s, x), direction(x), tol=tight(x)))
)(solved)
probe("linop.solve", tol=10)(
    lambda s, x: vector_of(hotk.linop.solve(H(s, x), direction(x), tol=tight(x)))
)(solved)
probe("linop.by_iteration", tol=10)(
    lambda s, x: hotk.linop.by_iteration(lambda v: hotk.hvp(s.f, x, v), direction(x))
)(solved)
probe("linop.steihaug", tol=10)(
    lambda s, x: vector_of(
        hotk.linop.steihaug(H(s, x), -direction(x), 1e30, tol=tight(x))
    )
)(solved)
probe("linop.eigh", tol=10)(lambda s, x: hotk.linop.eigh(H(s, x), 3).values)(
    lambda s, x: jnp.linalg.eigvalsh(hess(s.f, x))
)
probe("linop.cholesky")(lambda s, x: hotk.linop.cholesky(H(s, x)))(
    lambda s, x: jnp.linalg.cholesky(hess(s.f, x))
)
probe("linop.SparseOperator")(
    lambda s, x: hotk.linop.SparseOperator(hotk.sparse_hessian(s.f, x)) @ direction(x)
)(lambda s, x: hess(s.f, x) @ direction(x))
probe("linop.nystrom", tol=100)(
    lambda s, x: hotk.linop.nystrom(H(s, x), 3, jax.random.key(0)) @ direction(x)
)(lambda s, x: hess(s.f, x) @ direction(x))

# ----- Estimates, exact with as many samples as dimensions

KEY = jax.random.key(0)
probe("estimate.trace", tol=10)(
    lambda s, x: hotk.estimate.trace(H(s, x), KEY, samples=6).value
)(lambda s, x: jnp.trace(hess(s.f, x)))
probe("estimate.diagonal", tol=10)(
    lambda s, x: hotk.estimate.diagonal(H(s, x), KEY, samples=6).value
)(lambda s, x: jnp.diag(hess(s.f, x)))

# ----- Optimizers: one step

# With a learning rate there is no line search, and no step that is refused.
STEPS = {
    "newton": lambda x: hotk.optim.newton(1.0),
    "newton_cg": lambda x: hotk.optim.newton_cg(1.0, max_tol=tight(x)),
}


def step(make):
    def call(s, x):
        transform = make(x)
        slope = jax.grad(s.f)(x) if s.reverse else jax.jacfwd(s.f)(x)
        return transform.update(slope, transform.init(x), x, value_fn=s.f)[0]

    return call


for name, make in STEPS.items():
    probe(f"optim.{name}", tol=100)(step(make))(
        lambda s, x: -jnp.linalg.solve(hess(s.f, x), jax.grad(s.f)(x))
    )

# ----- Rules

probe("rule.custom")(lambda s, x: hotk.gradient(hotk.rule.custom(s.f), x))(
    lambda s, x: jax.grad(s.f)(x)
)
probe("rule.linear_solve", tol=10)(
    lambda s, x: hotk.rule.linear_solve(
        lambda v: 2 * v + x * jnp.sum(v) / 8, s.model(x)
    )
)(
    lambda s, x: jnp.linalg.solve(
        2 * jnp.eye(3, dtype=x.dtype) + jnp.outer(x, jnp.ones_like(x)) / 8, s.model(x)
    )
)

# ----- Other libraries, outside of traces

probe("interop.as_scipy", contexts="values")(
    lambda s, x: hotk.interop.as_scipy(H(s, x)) @ np.asarray(direction(x))
)(lambda s, x: hess(s.f, x) @ direction(x))
probe("interop.as_lineax")(
    lambda s, x: hotk.interop.as_lineax(H(s, x)).mv(direction(x))
)(lambda s, x: hess(s.f, x) @ direction(x))
probe("interop.scipy_problem", contexts="values")(
    lambda s, x: (lambda p: (p.fun(p.x0), p.jac(p.x0), p.hess(p.x0)))(
        hotk.interop.scipy_problem(s.f, x)
    )
)(lambda s, x: (s.f(x), jax.grad(s.f)(x), hess(s.f, x)))
probe("laplace_approximation", contexts="values", tol=10)(
    lambda s, x: hotk.laplace_approximation(centred(s, x), x).covariance
)(inverse)


def centred(s, x):
    """Return a potential whose minimum is at the point, with the same Hessian."""
    slope = jax.grad(s.f)(x) if s.reverse else jax.jacfwd(s.f)(x)
    return lambda y: s.f(y) - jnp.sum(slope * y)
