"""The operations of JAX that have derivatives, one by one, through every operator.

First derivatives are compared with finite differences, second ones with JAX's own
nesting. The functions of a group go into one program, so that a group compiles a few
times only; a row that differs is named.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import hotk
from tests.helpers import close


pytestmark = pytest.mark.usefixtures("compiled_fast")

X = np.array([0.31, 0.47, 0.62, 0.78])
V = np.array([0.7, -0.4, 1.1, 0.3])
SQUARE = jnp.asarray([[2.0, 0.3, 0.1], [0.3, 1.5, 0.2], [0.1, 0.2, 1.2]])
ROWS = jnp.asarray([[0.2, 0.5, -0.3, 0.4], [0.1, -0.6, 0.8, 0.3]])
PICK = jnp.asarray([[0], [2], [2]])


def square(x):
    """Return a symmetric positive definite matrix."""
    return SQUARE + jnp.outer(x[:3], x[:3])


def image(x):
    return jnp.sin(jnp.outer(x, x) * 3.0).reshape(1, 1, 4, 4)


def scattered(operation, operand, indices, updates):
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))
    return operation(operand, indices, updates, numbers)


def gathered(x):
    numbers = lax.GatherDimensionNumbers((), (0,), (0,))
    return lax.gather(x, PICK, numbers, (1,))


def convolved(x, **options):
    kernel = jnp.cos(jnp.arange(9.0)).reshape(1, 1, 3, 3) * x[0]
    return lax.conv_general_dilated(image(x), kernel, (1, 1), "SAME", **options)


def window(x, reducer, start, width=2):
    return lax.reduce_window(x, start, reducer, (width,), (1,), "VALID")


elementwise = {
    "neg": lax.neg,
    "sign": lax.sign,
    "floor": lax.floor,
    "exp": lax.exp,
    "exp2": lax.exp2,
    "log": lax.log,
    "expm1": lax.expm1,
    "log1p": lax.log1p,
    "tanh": lax.tanh,
    "logistic": lax.logistic,
    "sin": lax.sin,
    "cos": lax.cos,
    "tan": lax.tan,
    "asin": lax.asin,
    "acos": lax.acos,
    "atan": lax.atan,
    "sinh": lax.sinh,
    "cosh": lax.cosh,
    "asinh": lax.asinh,
    "acosh": lambda x: lax.acosh(x + 1.5),
    "atanh": lax.atanh,
    "sqrt": lax.sqrt,
    "rsqrt": lax.rsqrt,
    "cbrt": lax.cbrt,
    "square": lax.square,
    "reciprocal": lax.reciprocal,
    "abs": lambda x: lax.abs(x - 0.5),
    "integer_pow": lambda x: lax.integer_pow(x, -3),
    "real, imag, conj": lambda x: lax.real(
        lax.exp(lax.complex(x, x)) * lax.conj(lax.complex(x, lax.sin(x)))
    ),
    "complex abs": lambda x: lax.abs(lax.complex(x, lax.sin(x))),
}
binary = {
    "add": lambda x: lax.add(x, x[::-1] * x),
    "sub": lambda x: lax.sub(x, x[::-1] * x),
    "mul": lambda x: lax.mul(x, lax.sin(x[::-1])),
    "div": lambda x: lax.div(x, lax.exp(x[::-1])),
    "rem": lambda x: lax.rem(x + 2.0, x[::-1]),
    "pow": lambda x: lax.pow(x, x[::-1]),
    "atan2": lambda x: lax.atan2(x, x[::-1]),
    "max": lambda x: lax.max(x, x[::-1] ** 2),
    "min": lambda x: lax.min(x, x[::-1] ** 2),
    "nextafter": lambda x: x * lax.nextafter(lax.stop_gradient(x), jnp.ones(4)),
    "hypot": lambda x: jnp.hypot(x, x[::-1]),
    "logaddexp": lambda x: jnp.logaddexp(x, x[::-1]),
    "clamp": lambda x: lax.clamp(0.4, x, 0.7) * x,
    "select_n": lambda x: lax.select_n(x > 0.5, x**2, x**3),
    "where": lambda x: jnp.where(x > 0.5, x**3, jnp.sin(x)),
    "fmod": lambda x: jnp.fmod(3.0 * x, x[::-1]),
}
special = {
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erf_inv": lax.erf_inv,
    "lgamma": lax.lgamma,
    "digamma": lax.digamma,
    "bessel_i0e": lax.bessel_i0e,
    "bessel_i1e": lax.bessel_i1e,
    "betainc": lambda x: lax.betainc(jnp.full(4, 2.0), jnp.full(4, 3.0), x),
    "igamma": lambda x: lax.igamma(jnp.full(4, 2.0), x),
    "igammac": lambda x: lax.igammac(jnp.full(4, 2.0), x),
    "polygamma": lambda x: jax.scipy.special.polygamma(1, x + 1.0),
    "xlogy": lambda x: jax.scipy.special.xlogy(x, x[::-1]),
    "entr": jax.scipy.special.entr,
    "logit": jax.scipy.special.logit,
    "ndtri": jax.scipy.special.ndtri,
    "log_ndtr": jax.scipy.special.log_ndtr,
    "i0": jax.scipy.special.i0,
    "sinc": jnp.sinc,
}
activations = {
    "relu": lambda x: jax.nn.relu(x - 0.5) ** 3,
    "softplus": jax.nn.softplus,
    "gelu": jax.nn.gelu,
    "silu": jax.nn.silu,
    "elu": lambda x: jax.nn.elu(x - 0.5),
    "log_softmax": jax.nn.log_softmax,
    "softmax": jax.nn.softmax,
    "logsumexp": jax.nn.logsumexp,
    "norm": jnp.linalg.norm,
    "standardize": jax.nn.standardize,
}
reductions = {
    "sum": lambda x: jnp.sum(jnp.outer(x, x) ** 2, axis=0),
    "prod": jnp.prod,
    "max": lambda x: jnp.max(x) ** 2,
    "min": lambda x: jnp.min(x) ** 2,
    "mean": lambda x: jnp.mean(x**2),
    "var": jnp.var,
    "std": jnp.std,
    "cumsum": lambda x: lax.cumsum(x) ** 2,
    "cumprod": lax.cumprod,
    "cummax": lambda x: lax.cummax(x[::-1]) ** 2,
    "cummin": lambda x: lax.cummin(x) ** 2,
    "cumlogsumexp": lax.cumlogsumexp,
    "window sum": lambda x: window(x, lax.add, 0.0) ** 2,
    "window max": lambda x: window(x, lax.max, -jnp.inf) ** 2,
    "median": lambda x: jnp.median(x) ** 2,
    "percentile": lambda x: jnp.percentile(x, 30.0) ** 2,
    "associative_scan": lambda x: lax.associative_scan(jnp.multiply, x),
    "trapezoid": lambda x: jnp.trapezoid(x**2, x),
}
shapes = {
    "reshape": lambda x: lax.reshape(x, (2, 2)) @ ROWS[:, :2],
    "transpose": lambda x: jnp.transpose(x.reshape(2, 2)) @ x.reshape(2, 2),
    "broadcast": lambda x: lax.broadcast_in_dim(x, (3, 4), (1,)) ** 2,
    "squeeze": lambda x: lax.squeeze(x[None], (0,)) ** 2,
    "concatenate": lambda x: lax.concatenate([x, x**2], 0),
    "pad": lambda x: lax.pad(x, x[0], [(1, 2, 1)]) ** 2,
    "negative pad": lambda x: lax.pad(x, x[0], [(-1, 1, 0)]) ** 2,
    "rev": lambda x: lax.rev(x, (0,)) * x,
    "slice": lambda x: lax.slice(x, (0,), (4,), (2,)) ** 2,
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (jnp.int32(1),), (2,)) ** 2,
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(
        x, x[:2] ** 2, (jnp.int32(1),)
    ),
    "index": lambda x: x[jnp.asarray([0, 2, 2])] ** 2,
    "gather": lambda x: gathered(x) ** 2,
    "take_along_axis": lambda x: jnp.take_along_axis(x, jnp.argsort(-x), 0) * x,
    "scatter": lambda x: x.at[jnp.asarray([1, 3])].set(x[:2] ** 2),
    "scatter_add": lambda x: scattered(lax.scatter_add, x, PICK, x[:3] ** 2),
    "scatter_mul": lambda x: x.at[jnp.asarray([1, 3])].multiply(
        x[:2], unique_indices=True
    ),
    "scatter_max": lambda x: x.at[jnp.asarray([1, 3])].max(x[:2] * 3.0) ** 2,
    "at apply": lambda x: x.at[1:3].add(jnp.sin(x[:2])),
    "sort": lambda x: lax.sort(jnp.sin(5.0 * x)) * x,
    "sort with keys": lambda x: lax.sort((jnp.cos(5.0 * x), x**2), num_keys=1)[1] * x,
    "top_k": lambda x: lax.top_k(x, 2)[0] ** 2,
    "triu": lambda x: jnp.triu(jnp.outer(x, x)) @ x,
    "segment_sum": lambda x: jax.ops.segment_sum(x, jnp.asarray([0, 1, 0, 1]), 2) ** 2,
    "convert": lambda x: x * x.astype(jnp.float32).astype(x.dtype),
    "interp": lambda x: jnp.interp(x, jnp.asarray([0.0, 0.5, 1.0]), x[:3]),
}
products = {
    "dot_general": lambda x: lax.dot_general(x, ROWS, (((0,), (1,)), ((), ()))) ** 2,
    "batched dot": lambda x: jnp.einsum(
        "bi,bj->bij", x.reshape(2, 2), jnp.sin(x).reshape(2, 2)
    ),
    "einsum": lambda x: jnp.einsum("i,j,ij->j", x, x, jnp.outer(x, x)),
    "conv": convolved,
    "dilated conv": lambda x: convolved(x, rhs_dilation=(2, 2)),
    "np.convolve": lambda x: jnp.convolve(x, x),
    "fft": lambda x: jnp.abs(jnp.fft.fft(x)) ** 2,
    "rfft": lambda x: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(x**2)),
    "kron": lambda x: jnp.kron(x, x),
    "cross": lambda x: jnp.cross(x[:3], x[1:] ** 2),
}
matrices = {
    "cholesky": lambda x: jnp.linalg.cholesky(square(x)),
    "triangular_solve": lambda x: lax.linalg.triangular_solve(
        jnp.tril(square(x)), x[:3, None], left_side=True, lower=True
    ),
    "solve": lambda x: jnp.linalg.solve(square(x), x[:3]),
    "inv": lambda x: jnp.linalg.inv(square(x)),
    "det": lambda x: jnp.linalg.det(square(x)),
    "slogdet": lambda x: jnp.linalg.slogdet(square(x))[1],
    "eigvalsh": lambda x: jnp.linalg.eigvalsh(square(x)),
    "svd": lambda x: jnp.linalg.svd(square(x), compute_uv=False),
    "qr": lambda x: jnp.abs(jnp.linalg.qr(square(x))[1]),
    "matrix_power": lambda x: jnp.linalg.matrix_power(square(x), 3),
    "tridiagonal_solve": lambda x: lax.linalg.tridiagonal_solve(
        x[:3] * jnp.asarray([0.0, 1.0, 1.0]),
        2.0 + x[:3],
        x[1:] * jnp.asarray([1.0, 1.0, 0.0]),
        x[:3, None],
    ),
}
control = {
    "cond": lambda x: lax.cond(x[0] > 0.2, jnp.sin, jnp.cos, x),
    "switch": lambda x: lax.switch(2, [jnp.sin, jnp.cos, jnp.exp], x),
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda i, c: c * x + i, x),
    "scan": lambda x: lax.scan(lambda c, a: (c * a, jnp.sin(c)), x[0], x)[1],
    "reverse scan": lambda x: lax.scan(
        lambda c, a: (jnp.sin(c) * a, None), x[0], x, reverse=True
    )[0],
    "map": lambda x: lax.map(lambda a: jnp.sin(a) * a, x),
    "vmap": lambda x: jax.vmap(lambda a: a * x)(x),
    "jit": lambda x: jax.jit(lambda a, b: a * b, static_argnums=1)(x**2, 3),
    "checkpoint": lambda x: jax.checkpoint(lambda a: jnp.sin(jnp.sin(a)))(x),
    "stop_gradient": lambda x: x * lax.stop_gradient(jnp.sin(x)),
    "grad inside": lambda x: jax.grad(lambda a: jnp.sum(jnp.sin(a) * x))(x),
    "jvp inside": lambda x: jax.jvp(jnp.sin, (x,), (x**2,))[1],
    "vjp inside": lambda x: jax.vjp(jnp.sin, x)[1](x**2)[0],
    "linearize inside": lambda x: jax.linearize(jnp.sin, x)[1](x**2),
    "hessian inside": lambda x: jax.hessian(lambda a: jnp.sum(a**4))(x) @ x,
    "linear_transpose": lambda x: jax.linear_transpose(lambda a: ROWS @ a, x)(x[:2])[0],
    "value_and_grad": lambda x: jax.value_and_grad(jnp.prod)(x)[1],
    "custom_root": lambda x: lax.custom_root(
        lambda y: y**3 - x,
        jnp.ones(4),
        lambda f, y: lax.fori_loop(0, 30, lambda i, z: z - f(z) / (3 * z**2), y),
        lambda g, y: y / g(jnp.ones(4)),
    ),
    "custom_linear_solve": lambda x: lax.custom_linear_solve(
        lambda y: square(x) @ y,
        x[:3],
        lambda _, b: jnp.linalg.solve(square(lax.stop_gradient(x)), b),
        symmetric=True,
    ),
}
GROUPS = {
    "elementwise": elementwise,
    "binary": binary,
    "special": special,
    "activations": activations,
    "reductions": reductions,
    "shapes": shapes,
    "products": products,
    "matrices": matrices,
    "control": control,
}
# Finite differences see through what stops a gradient.
STOPPED = {"nextafter", "stop_gradient", "convert"}


def stacked(group):
    """Return one function with a row for each operation of a group."""

    def rows(x):
        found = [jnp.ravel(operation(x)) for operation in group.values()]
        return jnp.stack(
            [jnp.dot(y, jnp.cos(jnp.arange(1.0, 1 + len(y)))) for y in found]
        )

    return rows


def weighted(rows):
    return lambda x: jnp.dot(rows(x), jnp.linspace(1.0, 2.0, rows(x).size))


def agree(group, got, expected, tolerance):
    """Compare row by row, and name those that differ."""
    got, expected = np.asarray(got), np.asarray(expected)
    near = np.isclose(got, expected, rtol=tolerance, atol=tolerance)
    rows = near.reshape(len(group), -1).all(axis=1)
    wrong = [name for name, same in zip(group, rows, strict=True) if not same]
    assert not wrong, (wrong, got[~rows], expected[~rows])


def differences(f, x, step=1e-6):
    """Return a Jacobian by central differences."""
    f = jax.jit(f)
    columns = [(f(x + e) - f(x - e)) / (2 * step) for e in step * np.eye(len(x))]
    return np.stack(columns, axis=-1)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_first_derivatives_are_those_of_finite_differences(group):
    smooth = {name: f for name, f in group.items() if name not in STOPPED}
    rows = stacked(smooth)
    slopes = differences(rows, X)
    agree(smooth, hotk.jacobian(rows, X), slopes, 1e-6)
    agree(smooth, hotk.jvp(rows, X, V), slopes @ V, 1e-6)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_higher_derivatives_along_a_line_are_those_of_nested_jvps(group):
    rows = stacked(group)
    once = lambda x: jax.jvp(rows, (x,), (jnp.asarray(V),))
    twice = jax.jit(lambda x: jax.jvp(once, (x,), (jnp.asarray(V),)))
    (y, first), (_, second) = twice(jnp.asarray(X))
    got = hotk.derivatives(rows, X, V, order=2)
    for mine, theirs in zip(got, (y, first, second), strict=True):
        agree(group, mine, theirs, 1e-8)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_products_with_the_hessian_are_those_of_jax(group):
    f = weighted(stacked(group))
    gradient = jax.grad(f)
    plain = jax.jit(lambda x, v: jax.jvp(gradient, (x,), (v,)))
    first, second = plain(jnp.asarray(X), jnp.asarray(V))
    _, got, product = hotk.value_gradient_and_hvp(f, X, V)
    close(got, first, rtol=1e-9)
    close(product, second, rtol=1e-9)
