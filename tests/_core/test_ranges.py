"""Numeric keywords: a value out of its range is refused by name, wherever it is known.

The table below says what each numeric keyword of each public function may be. It is
written by hand, and compared with the signatures: none is left out.
"""

import functools
import inspect
import types
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
import hotk.interop


pytestmark = pytest.mark.usefixtures("as_user")

X, KEY = jnp.array([1.0, 2.0, 3.0]), jax.random.key(0)
F = lambda x: jnp.sum(x**2) / 2
H = hotk.HessianOperator(F, X)
FIT = hotk.laplace_approximation(F, jnp.zeros(3))
TARGETS = hotk.curvature.SoftmaxCrossEntropy(jnp.array(1))
ROWS = np.arange(6.0).reshape(2, 3)
L = hotk.differential_operator({"xx": 1.0})

NOT_COUNTS = (-1, 0, 2.5, jnp.nan, "a", True, np.float32(2.5), np.int64(0))
BAD = {
    "count": NOT_COUNTS,
    "from zero": (-1, 2.5, jnp.nan, "a"),
    "to 64": (0, 65, 2.5, jnp.nan, "a"),
    "positive": (-1.0, 0, jnp.nan, "a", 1j, np.float32(-1), jnp.asarray(-1.0)),
    "not negative": (-1.0, -1, jnp.nan, "a", 1j, np.float32(-1), jnp.asarray(-1.0)),
    "share": (-0.1, 1.0, 2.0, jnp.nan, "a"),
    "inside": (-0.1, 0.0, 1.0, jnp.nan),
    "fraction": (-0.1, 0.0, 1.5, jnp.nan, "a"),
    "finite": (jnp.nan, jnp.inf, "a"),
    "factor": (0.5, -1.0, jnp.nan, "a"),
    "key": (0, None, 1.5, "a", np.zeros(2)),
}
COUNTS = """
    samples steps block_size max_steps k rank window every max_basis update_every
    factors_every inverses_every max_evaluations max_refits times
"""
SIZES = """
    tol gtol xtol rtol max_tol damping eps power l2 weight_decay least gamma
    decrease max_acceleration prior_precision noise_variance
"""
KINDS = {
    **dict.fromkeys(COUNTS.split(), "count"),
    **dict.fromkeys(SIZES.split(), "not negative"),
    **dict.fromkeys(("max_restarts", "max_rejections"), "from zero"),
    **dict.fromkeys(("radius", "max_radius", "weight", "clip", "scale"), "positive"),
    "f_scale": "positive",
    **dict.fromkeys(("b1", "b2", "decay"), "share"),
    **dict.fromkeys(("shrink", "level"), "inside"),
    **dict.fromkeys(("factors_fraction", "model_fraction"), "fraction"),
    "grow": "factor",
    "learning_rate": "finite",
    "accept": "finite",
    "key": "key",
    ("minimize", "max_steps"): "from zero",
    ("minimize", "callback_every"): "to 64",
    ("can_differentiate", "order"): "count",
    ("cholesky", "damping"): "finite",
    ("inverse", "damping"): "finite",
}
# Numbers of another kind, with checks and tests of their own: positions of arguments,
# orders of derivatives, bytes, data, states, and seeds, of which any integer is one.
OTHERS = {
    "state",
    "argnums",
    "shared",
    "order",
    "count",
    "seed",
    "degrees",
    "coefficients",
    "shape",
    "mask",
    "sigma",
    "y",
}

optimizer = lambda name, *args: functools.partial(getattr(hotk.optim, name), *args)
CALLS = {
    "solve": functools.partial(hotk.linop.solve, H, X),
    "cg": functools.partial(hotk.linop.cg, H, X),
    "minres": functools.partial(hotk.linop.minres, H, X),
    "steihaug": lambda radius=1.0, **k: hotk.linop.steihaug(H, X, radius, **k),
    "eigh": functools.partial(hotk.linop.eigh, H),
    "nystrom": lambda rank=2, key=KEY: hotk.linop.nystrom(H, rank, key),
    "cholesky": functools.partial(hotk.linop.cholesky, H),
    "inverse": functools.partial(H.inverse),
    "matrix": H.matrix,
    "diagonal of an operator": H.diagonal,
    "block": functools.partial(H.block, "", ""),
    "many": functools.partial((H + hotk.Identity()).many, jnp.ones((2, 3))),
    **{
        name: functools.partial(
            lambda run, key=KEY, **k: run(H, key, **k), getattr(hotk.estimate, name)
        )
        for name in ("trace", "diagonal", "spectrum", "logdet")
    },
    "estimate.laplacian": lambda key=KEY, **k: hotk.estimate.laplacian(F, X, key, **k),
    "estimate.biharmonic": lambda key=KEY, **k: hotk.estimate.biharmonic(
        F, X, key, **k
    ),
    "estimate.divergence": lambda key=KEY, **k: hotk.estimate.divergence(
        jnp.sin, X, key, **k
    ),
    "estimate.differential": lambda key=KEY, **k: hotk.estimate.differential(
        L, lambda p: p["x"] ** 2, {"x": 1.0}, key, **k
    ),
    "sampled_fvp": functools.partial(
        hotk.sampled_fvp, lambda x: x, TARGETS, X, X, key=KEY
    ),
    "SampledFisherOperator": functools.partial(
        hotk.SampledFisherOperator, lambda x: x, TARGETS, X, key=KEY
    ),
    "can_differentiate": functools.partial(hotk.can_differentiate, F, X),
    "minimize": functools.partial(hotk.optim.minimize, F, X),
    "laplace_approximation": functools.partial(
        hotk.laplace_approximation, F, jnp.zeros(3)
    ),
    "influence": functools.partial(
        hotk.statistics.influence, lambda x, r: (r @ x) ** 2, X, ROWS
    ),
    "fit": functools.partial(
        hotk.statistics.fit, lambda p, x: p * x, X, np.arange(3.0), 1.0
    ),
    "profile_intervals": functools.partial(
        hotk.statistics.profile_intervals, F, jnp.zeros(3)
    ),
    "check_backend": hotk.rule.check_backend,
    "interval": FIT.interval,
    "predict": functools.partial(FIT.predict, lambda x: x[:2]),
    "sample": lambda key=KEY: FIT.sample(key),
    "hessian": functools.partial(hotk.hessian, F, X),
    "hessian_diagonal": functools.partial(hotk.hessian_diagonal, F, X),
    "jacobian": functools.partial(hotk.jacobian, jnp.sin, X),
    "value_and_jacobian": functools.partial(hotk.value_and_jacobian, jnp.sin, X),
    "value_gradient_and_hessian": functools.partial(
        hotk.value_gradient_and_hessian, F, X
    ),
    "divergence": functools.partial(hotk.divergence, jnp.sin, X),
    "value_and_divergence": functools.partial(hotk.value_and_divergence, jnp.sin, X),
    "laplacian": functools.partial(hotk.laplacian, F, X),
    "value_and_laplacian": functools.partial(hotk.value_and_laplacian, F, X),
    "biharmonic": functools.partial(hotk.biharmonic, F, X),
    "partial": functools.partial(
        hotk.partial, lambda p: p["x"] ** 2, {"x": jnp.array(1.0)}, "xx"
    ),
    "derivative_tensor": functools.partial(hotk.derivative_tensor, F, X, order=2),
    **{
        name: optimizer(name)
        for name in dir(hotk.optim)
        if (name.startswith("scale_by_") and name != "scale_by_kfac")
        or name in ("newton", "newton_cg", "trust_region", "cubic_newton")
        or name in ("levenberg_marquardt",)
    },
    **{
        name: functools.partial(
            lambda of, learning_rate=0.1, **k: of(learning_rate, **k),
            getattr(hotk.optim, name),
        )
        for name in ("adahessian", "sophia", "natural_gradient")
    },
}


def numeric(function):
    """Return the keywords of a function that take numbers, and keys."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return set()
    words = ("int", "float", "RealNumber", "Scalar", "ArrayLike")
    found = set()
    for p in parameters:
        kinds = (p.annotation, *typing.get_args(p.annotation))
        names = {getattr(kind, "__name__", str(kind)) for kind in kinds}
        if p.name == "key" or names & set(words):
            found.add(p.name)
    return found - OTHERS


def public_functions():
    places = (hotk, hotk.linop, hotk.estimate, hotk.optim, hotk.statistics, hotk.rule)
    for place in places:
        for name, value in sorted(vars(place).items()):
            is_function = isinstance(value, types.FunctionType) or (
                not inspect.isclass(value) and hasattr(value, "__signature__")
            )
            if not name.startswith("_") and is_function:
                yield place.__name__.removeprefix("hotk").lstrip("."), name, value


def test_each_numeric_keyword_is_in_the_table():
    """What each is, and what is called with bad values: no function is left out."""
    for place, name, function in public_functions():
        keywords = numeric(function) if name != "apply_gradients" else set()
        unknown = {k for k in keywords if k not in KINDS and (name, k) not in KINDS}
        assert not unknown, (name, unknown)
        if keywords and name != "kfac":
            assert name in CALLS or f"{place}.{name}" in CALLS, (place, name, keywords)


def cases():
    """Yield the calls with each of their numeric keywords."""
    for name, call in CALLS.items():
        own = name.split(".")[-1].split(" ")[0]
        function = call.func if isinstance(call, functools.partial) else call
        if own in vars(hotk.optim):
            function = getattr(hotk.optim, own)
        elif name.startswith("estimate.") or own in ("trace", "spectrum", "logdet"):
            function = getattr(hotk.estimate, own)
        elif name == "diagonal":
            function = hotk.estimate.diagonal
        elif own in ("steihaug", "nystrom"):
            function = getattr(hotk.linop, own)
        elif own == "sample":
            function = FIT.sample
        given = set(getattr(call, "keywords", {}))
        for keyword in sorted(numeric(function) - given):
            yield name, keyword, KINDS.get((own, keyword), KINDS.get(keyword))


# equinox says that a number of NumPy should not be static, before hotk refuses it
@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize(("name", "keyword", "kind"), list(cases()))
def test_a_value_out_of_its_range_is_refused_by_name(name, keyword, kind):
    for value in BAD[kind]:
        if value is None and name in ("eigh", "laplace_approximation"):
            continue  # a fixed key
        with pytest.raises((ValueError, TypeError), match=keyword):
            CALLS[name](**{keyword: value})


def test_there_are_cases():
    assert len(list(cases())) > 150


def test_good_values_of_other_types_pass():
    close = lambda a: np.testing.assert_allclose(a, X, rtol=1e-4)
    for tol in (np.float32(1e-6), jnp.asarray(1e-6), 1e-6, 0):
        close(H.solve(X, tol=tol).x)
    for steps in (np.int64(20), jnp.asarray(20, jnp.int32), 20):
        close(H.solve(X, max_steps=steps).x)
    close(jax.jit(lambda t, n: H.solve(X, tol=t, max_steps=n).x)(1e-6, 20))
    hotk.optim.newton(lambda count: 1.0 / (1 + count))  # a schedule
    old = jax.random.PRNGKey(0)
    assert float(hotk.estimate.trace(H, old).value) == 3.0
    assert float(hotk.estimate.trace(H, np.asarray(old)).value) == 3.0
    assert jax.vmap(lambda k: hotk.estimate.trace(H, k).value)(
        jax.random.split(KEY, 2)
    ).shape == (2,)
    close(H.inverse(damping=-0.5) @ (X / 2))


def test_arguments_that_are_no_numbers():
    with pytest.raises(TypeError, match="dtype"):
        hotk.HessianOperator.over(
            lambda x, d: jnp.sum(d @ x), X, [jnp.ones((2, 3))], dtype=int
        )
    with pytest.raises(TypeError, match="batches"):
        hotk.HessianOperator.over(lambda x, d: jnp.sum(d @ x), X, None)
    with pytest.raises(TypeError, match="no function"):
        hotk.over_axis(3, "r")
    for shape in (-1, (2, -1), 2.5, "a", None):
        with pytest.raises(ValueError, match="shape"):
            FIT.sample(KEY, shape)
    assert FIT.sample(KEY, (2, 0)).shape == (2, 0, 3)
    assert FIT.sample(KEY).shape == (3,)
