"""Ordinary functions that a derivative toolkit meets, at points in general position.

`VECTOR` maps a name to a function of an array of shape `(6,)`, looked at in `POINT`;
`SCALAR` maps a name to a function of one number and that number.
"""

import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from jax import lax
from jax.scipy import special


POINT = np.array([0.3819, 0.7438, 0.1459, 0.5279, 0.8541, 0.2361])
MATRIX = np.array(
    [[np.cos(1 + 2.3 * i * i + 1.7 * j) for j in range(6)] for i in range(6)]
)


@jax.custom_vjp
def backward_sine(x):
    return jnp.sin(x)


def _backward_sine_forward(x):
    return jnp.sin(x), jnp.cos(x)


def _backward_sine_backward(cosine, g):
    return (cosine * g,)


backward_sine.defvjp(_backward_sine_forward, _backward_sine_backward)


@jax.custom_vjp
def nested_sine(x):
    return jnp.sin(x)


def _nested_sine_forward(x):
    return nested_sine(x), x


def _nested_sine_backward(x, g):
    return (g * jnp.cos(x),)


nested_sine.defvjp(_nested_sine_forward, _nested_sine_backward)


@jax.custom_jvp
def forward_sine(x):
    return jnp.sin(x)


@forward_sine.defjvp
def _forward_sine_rule(primals, tangents):
    [x], [t] = primals, tangents
    return forward_sine(x), jnp.cos(x) * t


def _plus_diagonal(x, matrix):
    return jnp.diag(x) + matrix


def _repeat_sine(x):
    def again(carry):
        i, y = carry
        return i + 1, jnp.sin(y)

    return lax.while_loop(lambda carry: carry[0] < 3, again, (0, x))[1]


def _attention(query, key, value):
    with jax.numpy_dtype_promotion("standard"):  # JAX promotes inside
        return jax.nn.dot_product_attention(query, key, value)


def _self_attention(x):
    tokens = x.reshape(1, 3, 1, 2)
    return _attention(tokens, tokens, tokens)


def _windows(x, start, operation):
    return lax.reduce_window(x, start, operation, (2,), (2,), "VALID")


VECTOR = {
    # elementwise
    "sin": jnp.sin,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "sqrt": jnp.sqrt,
    "rsqrt": lax.rsqrt,
    "cbrt": jnp.cbrt,
    "square": jnp.square,
    "cube": lambda x: x**3,
    "power -2": lambda x: x**-2,
    "power 2.5": lambda x: x**2.5,
    "power of itself": lambda x: x**x,
    "reciprocal": lambda x: 1.0 / x,
    "tan": jnp.tan,
    "arcsin": jnp.arcsin,
    "arccos": jnp.arccos,
    "arctan": jnp.arctan,
    "arctan2": lambda x: jnp.arctan2(x, x + 1.0),
    "sinh": jnp.sinh,
    "cosh": jnp.cosh,
    "tanh": jnp.tanh,
    "arcsinh": jnp.arcsinh,
    "arccosh": lambda x: jnp.arccosh(x + 2.0),
    "arctanh": jnp.arctanh,
    "erf": special.erf,
    "erfc": special.erfc,
    "erfinv": special.erfinv,
    "gammaln": special.gammaln,
    "digamma": special.digamma,
    "bessel i0e": special.i0e,
    "gammainc": lambda x: special.gammainc(2.0, x),
    "real of complex exp": lambda x: jnp.exp(lax.complex(jnp.zeros_like(x), x)).real,
    # activations
    "sigmoid": jax.nn.sigmoid,
    "log sigmoid": lambda x: -jax.nn.log_sigmoid(x),
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "selu": jax.nn.selu,
    "gelu tanh": lambda x: jax.nn.gelu(x, approximate=True),
    "gelu erf": lambda x: jax.nn.gelu(x, approximate=False),
    "softmax": jax.nn.softmax,
    "logsumexp": jax.nn.logsumexp,
    "layer norm": lambda x: (x - x.mean()) / jnp.sqrt(x.var() + 1e-5),
    "attention": _self_attention,
    # kinks and steps
    "abs": jnp.abs,
    "sign": jnp.sign,
    "round": jnp.round,
    "remainder": lambda x: x % 0.3,
    "clip": lambda x: jnp.clip(x, 0.2, 0.8) ** 2,
    "max": lambda x: jnp.max(x) ** 2,
    "maximum": lambda x: jnp.maximum(x, 0.5) ** 2,
    "where": lambda x: jnp.where(x > 0.5, x**2, x**3),
    "where log": lambda x: jnp.sum(jnp.where(x > 0.2, jnp.log(x), 0.0)),
    "stop gradient": lambda x: lax.stop_gradient(x) * x**2,
    # moving entries about
    "sort": lambda x: jnp.sort(x) ** 2,
    "argsort": lambda x: x[jnp.argsort(x)] ** 2,
    "top k": lambda x: lax.top_k(x, 2)[0] ** 2,
    "gather": lambda x: x[jnp.array([2, 0, 1])] ** 2,
    "dynamic slice": lambda x: lax.dynamic_slice(x, (1,), (3,)) ** 2,
    "scatter set": lambda x: jnp.zeros_like(x).at[jnp.array([1, 0])].set(x[:2] ** 2),
    "scatter add": lambda x: jnp.zeros_like(x).at[jnp.array([1, 1])].add(x[:2] ** 2),
    "concatenate": lambda x: jnp.concatenate([x, x**2]),
    "stack": lambda x: jnp.stack([x, x**2]),
    "split": lambda x: jnp.split(x, 2)[0] ** 2,
    "transpose": lambda x: x.reshape(2, 3).T ** 2,
    "barrier": lambda x: lax.optimization_barrier(x) ** 2,
    "single precision": lambda x: x.astype(jnp.float32) ** 2,
    # sums and products
    "prod": jnp.prod,
    "cumsum": lambda x: jnp.cumsum(x) ** 2,
    "cumprod": jnp.cumprod,
    "cumlogsumexp": lax.cumlogsumexp,
    "associative scan": lambda x: lax.associative_scan(jnp.multiply, x),
    "convolve": lambda x: jnp.convolve(x, x),
    "max pool": lambda x: _windows(x, -jnp.inf, lax.max) ** 2,
    "mean pool": lambda x: _windows(x**2, 0.0, lax.add),
    "matrix vector": lambda x: (MATRIX @ x) ** 2,
    "quadratic form": lambda x: x @ (MATRIX @ x),
    "norm": jnp.linalg.norm,
    "fft": lambda x: jnp.abs(jnp.fft.fft(x)) ** 2,
    # control flow and transformations
    "jit": jax.jit(jnp.sin),
    "vmap": jax.vmap(jnp.sin),
    "checkpoint": jax.checkpoint(jnp.sin),
    "grad": jax.grad(lambda x: jnp.sum(jnp.sin(x) ** 3)),
    "jvp": lambda x: jax.jvp(jnp.sin, (x,), (x,))[1],
    "scan": lambda x: lax.scan(
        lambda c, a: (c * jnp.sin(a), c), jnp.ones_like(x[0]), x
    )[0],
    "fori loop": lambda x: lax.fori_loop(0, 3, lambda _, y: jnp.sin(y), x),
    "while loop": _repeat_sine,
    "map": lambda x: lax.map(jnp.sin, x),
    "cond": lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
    "switch": lambda x: lax.switch(1, [jnp.sin, jnp.cos], x),
    "switch on data": lambda x: lax.switch(
        jnp.argmax(x), [jnp.sin, jnp.cos, jnp.tan] * 2, x
    ),
    "custom jvp": forward_sine,
    "custom vjp": backward_sine,
    "custom vjp calling itself": nested_sine,
    # linear algebra
    "cholesky": lambda x: jnp.linalg.cholesky(
        _plus_diagonal(x, 6 * np.eye(6)) + jnp.outer(x, x)
    ),
    "solve": lambda x: jnp.linalg.solve(_plus_diagonal(x, 3 * np.eye(6)), x),
    "triangular solve": lambda x: jsp.linalg.solve_triangular(
        _plus_diagonal(x, np.triu(MATRIX) + 2 * np.eye(6)), x
    ),
    "inv": lambda x: jnp.linalg.inv(_plus_diagonal(x, np.eye(6))),
    "det": lambda x: jnp.linalg.det(_plus_diagonal(x, MATRIX)),
    "slogdet": lambda x: jnp.linalg.slogdet(_plus_diagonal(x, MATRIX))[1],
    "eigh": lambda x: jnp.linalg.eigh(_plus_diagonal(x, MATRIX + MATRIX.T))[0],
    "svd": lambda x: jnp.linalg.svd(_plus_diagonal(x, MATRIX), compute_uv=False),
    "qr": lambda x: jnp.linalg.qr(_plus_diagonal(x, MATRIX))[1],
    "expm": lambda x: jsp.linalg.expm(jnp.diag(x)),
}


def _two_by_two(a, b, c, d):
    return jnp.stack([jnp.stack([a, b]), jnp.stack([c, d])])


def _fixed(value):
    """A constant with the dtype that the point has under these settings."""
    return jnp.asarray(value, jnp.result_type(float))


def _symmetric(x):
    return _two_by_two(_fixed(2.0), x, x, _fixed(3.0))


def _unsymmetric(x):
    return _two_by_two(1.0 + x, _fixed(0.2), _fixed(0.1), _fixed(2.0))


def _tall(x):
    return jnp.array([[1.0, 0.0], [2.0, 1.0], [0.0, 1.0]]).at[0, 1].set(x)


def _wide(x):
    return jnp.array([[1.0, 0.0, 2.0], [2.0, 1.0, 3.0]]).at[0, 1].set(x)


def _steps(n):
    return jnp.arange(float(n))


def _scaled_pool(x):
    waves = jnp.sin(x * _steps(8)).reshape(1, 8, 1)
    return lax.reduce_window(
        waves, -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID"
    ).sum()


def _scaled_attention(x):
    ones = jnp.ones((1, 4, 2, 8))
    keys = jnp.arange(64.0).reshape(1, 4, 2, 8) / 64
    return _attention(x * ones, keys, x * ones).sum()


def _square_root_as_root(a):
    return lax.custom_root(
        lambda x: x**2 - a,
        jnp.ones_like(a),
        lambda f, x0: jnp.sqrt(a),
        lambda g, y: y / g(jnp.ones_like(y)),
    )


def _sine_on_the_host(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _tridiagonal(x):
    zero, two, three = _fixed(0.0), _fixed(2.0), _fixed(3.0)
    lower, upper = jnp.stack([zero, x]), jnp.stack([x, zero])
    return lax.linalg.tridiagonal_solve(
        lower, jnp.stack([two, three]), upper, jnp.ones((2, 1))
    ).sum()


def _ragged(x):
    return lax.ragged_dot(
        x * jnp.ones((4, 3)), x * jnp.ones((2, 3, 2)), jnp.array([2, 2])
    ).sum()


SCALAR = {
    # special functions
    "gammainc in a": (lambda a: special.gammainc(a, 2.0), 1.3),
    "gammainc in x": (lambda x: special.gammainc(1.3, x), 2.0),
    "betainc in a": (lambda a: special.betainc(a, 2.0, 0.3), 1.2),
    "betainc in x": (lambda x: special.betainc(1.2, 2.0, x), 0.3),
    "random gamma": (lambda a: jax.random.gamma(jax.random.key(0), a), 1.3),
    "random beta": (lambda a: jax.random.beta(jax.random.key(0), a, 2.0), 1.3),
    "gammaln": (special.gammaln, 1.3),
    "digamma": (special.digamma, 1.3),
    "polygamma": (lambda x: special.polygamma(1, x), 2.0),
    "zeta": (lambda q: special.zeta(2.5, q), 2.0),
    "i0": (special.i0, 1.3),
    "i1": (special.i1, 1.3),
    "ndtri": (special.ndtri, 0.3),
    "erfinv": (special.erfinv, 0.3),
    # linear algebra
    "det": (lambda x: jnp.linalg.det(_unsymmetric(x)), 0.5),
    "cholesky": (lambda x: jnp.linalg.cholesky(_symmetric(x)).sum(), 0.5),
    "expm": (
        lambda x: jsp.linalg.expm(_two_by_two(x, _fixed(1.0), _fixed(0.0), x)).sum(),
        0.5,
    ),
    "sqrtm": (lambda x: jsp.linalg.sqrtm(_unsymmetric(x)).real.sum(), 0.5),
    "eigvals": (lambda x: jnp.linalg.eigvals(_unsymmetric(x)).real.max() ** 2, 0.5),
    "eig": (lambda x: jnp.abs(jnp.linalg.eig(_unsymmetric(x))[1]).sum(), 0.5),
    "schur": (lambda x: jsp.linalg.schur(_unsymmetric(x))[0].sum(), 0.5),
    "hessenberg": (lambda x: lax.linalg.hessenberg(_unsymmetric(x))[0].sum(), 0.5),
    "lstsq": (lambda x: jnp.linalg.lstsq(_tall(x), jnp.ones(3))[0].sum(), 0.5),
    "pinv": (lambda x: jnp.linalg.pinv(_tall(x)).sum(), 0.5),
    "qr of a tall matrix": (lambda x: jnp.linalg.qr(_tall(x))[1].sum(), 0.3),
    "qr of a wide matrix": (lambda x: jnp.linalg.qr(_wide(x))[1].sum(), 0.3),
    "svd with all vectors": (lambda x: jnp.linalg.svd(_tall(x))[0].sum(), 0.5),
    "cg": (lambda x: jsp.sparse.linalg.cg(_symmetric(x), jnp.ones(2))[0].sum(), 0.5),
    "gmres": (
        lambda x: jsp.sparse.linalg.gmres(_symmetric(x), jnp.ones(2))[0].sum(),
        0.5,
    ),
    "tridiagonal solve": (_tridiagonal, 0.5),
    "custom root": (_square_root_as_root, 2.0),
    # arrays
    "max pool": (_scaled_pool, 0.5),
    "top k": (lambda x: lax.top_k(x * _steps(4) ** 2, 2)[0].sum() ** 2, 0.5),
    "sort": (lambda x: (jnp.sort(jnp.sin(x * _steps(4))) ** 2).sum(), 0.5),
    "segment max": (
        lambda x: (
            jax.ops.segment_max(x * _steps(4) ** 2, jnp.array([0, 0, 1, 1]), 2).sum()
            ** 2
        ),
        0.5,
    ),
    "cumlogsumexp": (lambda x: lax.cumlogsumexp(x * _steps(4)).sum(), 0.5),
    "logsumexp": (lambda x: jax.nn.logsumexp(x * _steps(3)), 0.5),
    "associative scan": (
        lambda x: lax.associative_scan(jnp.multiply, x + _steps(4)).sum(),
        0.5,
    ),
    "attention": (_scaled_attention, 0.5),
    "ragged dot": (_ragged, 0.5),
    "rfft": (lambda x: jnp.sum(jnp.abs(jnp.fft.rfft(x * _steps(8))) ** 2), 0.5),
    "interp": (lambda x: jnp.interp(x, _steps(4), _steps(4) ** 3) ** 2, 0.4),
    # steps and loops
    "while on the value": (
        lambda x: lax.while_loop(lambda s: s < 3, lambda s: s**2 + 1, x),
        0.5,
    ),
    "host callback": (_sine_on_the_host, 0.5),
    "round": (lambda x: jnp.round(x) * x**2, 0.7),
    "next after": (lambda x: jnp.nextafter(x, _fixed(1.0)), 0.5),
}
