"""Every public name that computes numbers: the right number, or a clear error.

In each nesting, for each way to write a function, in several units and dtypes. What is
right is known from plain JAX of another formula, never from hotk (`probes.py`).
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.devices import run_on_eight_devices
from tests.grid.probes import PROBES, direction
from tests.grid.subjects import MAPS, POINT, subject
from tests.test_api import PUBLIC


# Names that compute no numbers from a function and a point, or numbers of chance alone,
# or whose numbers are those of a name in the grid; where they are tested instead.
NOT_HERE = {
    "sampled_fvp SampledFisherOperator estimate.biharmonic estimate.differential "
    "estimate.laplacian estimate.divergence estimate.logdet estimate.spectrum": (
        "numbers of chance: tests/estimate, tests/curvature"
    ),
    "optim.adahessian optim.sophia optim.kfac optim.natural_gradient "
    "optim.levenberg_marquardt optim.minimize optim.step_info optim.with_params "
    "optim.apply_gradients optim.nnx_step optim.strip_extra_args optim.trust_region "
    "optim.cubic_newton": "whole runs, steps that are refused: tests/optim",
    "statistics.fit statistics.influence statistics.leave_one_out "
    "statistics.profile_intervals statistics.sandwich": "fits: tests/statistics",
    "rule.root rule.minimum rule.fixed_point rule.external rule.substitute rule.which "
    "rule.lint rule.disabled": "rules by themselves: tests/rule",
    "KFACOperator": "exact for some models alone: tests/linop/kfac",
    "interop.ipopt_problem interop.scipy_residuals": "tests/interop",
    "as_shards from_shards over_axis export load": "tests/rule, tests/exported",
    "can_differentiate locate_nan sparsity explain": "what is told, not computed",
    "cache_info clear_cache memory_budget set_memory_budget static": "of the cache",
    "linop.space_of linop.spectrum_of linop.loop linop.inertia": "parts of operators",
    "linop.small_matrix": "parts of operators",
    "sparse.color sparse.diagonal sparse.identity sparse.factorization_work "
    "sparse.is_worth_factors sparse.hessian_if_sparse "
    "sparse.traced_hessian_if_sparse "
    "sparse.traced_matrix_if_sparse": "parts of sparse derivatives: tests/sparse",
    "curvature.composition": "what is split: tests/sparse/test_congruence.py",
    "curvature.residuals_of": "which residuals are found: tests/optim/test_factored.py",
    "curvature.rows_program": "how rows are found: tests/optim/test_samples.py",
    "linop.check_symmetric rule.check_backend": "checks",
}
CONTEXTS = ["plain", "grad", "jvp", "vmap", "scan"]
UNITS = [1.0, 1e6, 1e-6]


def test_every_function_is_in_the_grid_or_said_to_be_elsewhere():
    elsewhere = {name for names in NOT_HERE for name in names.split()}
    functions = {
        name
        for name, value in PUBLIC.items()
        if callable(value) and not isinstance(value, type)
    }
    functions = {
        name
        for name in functions
        if not name.startswith(("plot.", "safe.", "optim.scale_by_"))
        and not isinstance(PUBLIC[name], hotk.Nested)
    }
    missing = sorted(functions - set(PROBES) - elsewhere)
    assert not missing, f"tests/grid/probes.py: enter a probe for each of {missing}"
    assert not elsewhere & set(PROBES)


# What JAX says by itself of a derivative of a result, where it has none.
OF_JAX = (
    "Reverse-mode differentiation does not work for lax.while_loop",
    "can't apply forward-mode autodiff (jvp) to a custom_vjp function",
)


def is_clear(error):
    """Whether an error is one of hotk, which names the call and says what came."""
    return isinstance(error, hotk.HotkError) or (
        isinstance(error, (TypeError, ValueError))
        and str(error).startswith(("`", *OF_JAX))
    )


def weighted(tree):
    """Return a sum of all entries with different weights."""
    parts = [
        jnp.sum(a * jnp.cos(jnp.arange(a.size, dtype=a.dtype)).reshape(a.shape))
        for a in jax.tree.leaves(tree)
        if jnp.issubdtype(a.dtype, jnp.inexact)
    ]
    return sum(parts[1:], parts[0])


def within(context, call, x):
    """Evaluate `call` at a point inside of a transformation of JAX."""
    points = jnp.stack([x, x * 1.125])
    match context:
        case "plain":
            return call(x)
        case "grad":
            return jax.grad(lambda x: weighted(call(x)))(x)
        case "jvp":
            return jax.jvp(call, (x,), (direction(x),))[1]
        case "vmap":
            return jax.vmap(call)(points)
        case "scan":
            return jax.lax.scan(lambda c, x: (c, call(x)), None, points)[1]


def errors_of(got, expected):
    """Return for each array how far it is off, over its largest entry.

    Where NaN is expected, a number is as wrong as can be.
    """
    got, expected = jax.tree.leaves(got), jax.tree.leaves(expected)
    assert len(got) == len(expected)
    errors = []
    for a, b in zip(map(np.asarray, got), map(np.asarray, expected), strict=True):
        assert a.shape == b.shape
        if a.dtype.kind == "V":  # derivatives of integers
            continue
        if not (np.isnan(a) == np.isnan(b)).all():
            errors.append(np.inf)
            continue
        size = np.max(np.abs(np.nan_to_num(b)), initial=0)
        off = np.max(np.abs(np.nan_to_num(a) - np.nan_to_num(b)), initial=0)
        errors.append(off / size if size else off)
    return errors


def check(name, context, kind="elementary", units=1.0, dtype=jnp.float64):
    """Compare a cell of the grid with plain JAX."""
    mapping, probe = MAPS[kind], PROBES[name]
    x = units * jnp.asarray(POINT, dtype)
    written = subject(mapping.written, mapping.reverse, units)
    elementary = subject(mapping.elementary, True, units)
    expected = within(context, lambda x: probe.expected(elementary, x), x)
    got = within(context, lambda x: probe.call(written, x), x)
    allowed = probe.tol * float(jnp.finfo(dtype).eps) ** 0.5
    assert max(errors_of(got, expected), default=0) <= allowed, (got, expected)


def contexts_of(name):
    return CONTEXTS if PROBES[name].contexts == "all" else ["plain"]


def exists(name, context, kind):
    """Whether JAX differentiates such a program so: loops have no reverse mode."""
    return context in contexts_of(name) and (context != "grad" or MAPS[kind].reverse)


CELLS = [
    (name, context, kind)
    for name in PROBES
    for context in CONTEXTS
    for kind in MAPS
    if exists(name, context, kind)
]


@pytest.fixture(autouse=True)
def as_users_write(as_user):
    """NumPy's promotions, and no warnings: nested derivatives are what is tested."""
    with (
        warnings.catch_warnings(),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        warnings.simplefilter("ignore")
        yield


@pytest.mark.thinned(12)
@pytest.mark.parametrize(
    ("name", "context", "kind"), CELLS, ids=lambda v: v.replace("::", "")
)
def test_the_right_number_or_a_clear_error(name, context, kind):
    try:
        check(name, context, kind)
    except Exception as error:
        if context == "plain" or not is_clear(error):
            raise


@pytest.mark.thinned(6)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("units", UNITS)
@pytest.mark.parametrize("name", PROBES)
def test_units_do_not_matter(name, units, dtype):
    if units != 1 or dtype != "float64":
        check(name, "plain", units=units, dtype=jnp.dtype(dtype))


# What stands still at a NaN and says so in its state; what is lineax's or SciPy's.
STANDS_STILL = ("optim.", "interop.as_lineax")


@pytest.mark.thinned(6)
@pytest.mark.parametrize(
    "name", [name for name in PROBES if not name.startswith(STANDS_STILL)]
)
def test_nan_is_no_number_or_a_clear_error(name):
    """A number there is right if it does not depend on what is NaN."""
    probe, x = PROBES[name], jnp.asarray(POINT)
    identity = MAPS["elementary"].elementary
    one = subject(identity, True, 1.0)
    try:
        got = probe.call(one, x.at[0].set(jnp.nan))
    except Exception as error:
        if not is_clear(error):
            raise
        return
    here, there = (probe.expected(one, x.at[0].set(a)) for a in (0.5, -0.75))
    for a, b, c in zip(*map(jax.tree.leaves, (got, here, there)), strict=True):
        assert (np.isnan(a) | (np.isclose(a, b) & np.isclose(b, c))).all(), (a, b)


# JAX's own gradient is asked for there, which such functions have not.
OF_A_GRADIENT = ("optim.", "interop.", "laplace_approximation")


@pytest.mark.thinned(8)
@pytest.mark.parametrize(
    "name", [name for name in PROBES if not name.startswith(OF_A_GRADIENT)]
)
def test_complex_points_have_the_right_derivative_or_a_clear_error(name):
    probe, x = PROBES[name], jnp.asarray(POINT) + 0.5j
    identity = MAPS["elementary"].elementary
    one = subject(identity, True, 1.0)
    try:
        got = probe.call(one, x)
    except Exception as error:
        if not is_clear(error):
            raise
        return
    expected = probe.expected(one, x)
    assert max(errors_of(got, expected)) < 1e-7


OVER_DEVICES = """
    import warnings
    import jax, jax.numpy as jnp, numpy as np, hotk
    from jax.sharding import AxisType, PartitionSpec as P
    from tests.grid.probes import PROBES
    from tests.grid.subjects import MAPS, POINT, Subject, subject
    from tests.grid.test_grid import errors_of, is_clear

    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    mesh = jax.make_mesh(
        (2,), ("r",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2]
    )
    x, data, failed = jnp.asarray(POINT), jnp.array([0.5, 1.0, 1.5, 2.0]), []

    def scaled(s, factor):
        return Subject(
            lambda x: factor * s.f(x), lambda x: factor * s.model(x), s.reverse
        )

    def over(function, d):
        on_each = hotk.over_axis(lambda x, d: jnp.mean(d) * function(x), "r")
        return lambda x: on_each(x, d)

    for name in {names}:
        probe, mapping = PROBES[name], MAPS[{kind!r}]
        elementary = subject(mapping.elementary, True, 1.0)
        expected = probe.expected(scaled(elementary, jnp.mean(data)), x)
        written = subject(mapping.written, mapping.reverse, 1.0)

        def on_device(x, d):
            s = Subject(over(written.f, d), over(written.model, d), written.reverse)
            return jax.tree.map(lambda a: a[None], probe.call(s, x))

        try:
            got = jax.jit(
                jax.shard_map(
                    on_device,
                    mesh=mesh,
                    in_specs=(P(), P("r")),
                    out_specs=P("r"),
                    check_vma={vma},
                )
            )(x, data)
        except Exception as error:
            if not is_clear(error):
                failed.append((name, type(error), str(error)[:300]))
            continue
        for device in range(2):
            here = jax.tree.map(lambda a: a[device], got)
            if max(errors_of(here, expected)) > probe.tol * 1e-7:
                failed.append((name, device, here, expected))
    print(failed or "fine")
"""
# lineax compares types, in which arrays that vary over devices are others.
INSIDE = [
    name
    for name, probe in PROBES.items()
    if probe.contexts == "all" and not name.startswith("interop.")
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["elementary", "while_loop", "linear solve"])
@pytest.mark.parametrize("vma", [True, False])
@pytest.mark.parametrize("part", range(6))
def test_on_each_device_of_a_mesh_is_the_number_of_all(part, vma, kind):
    names = INSIDE[part::6]
    run_on_eight_devices(OVER_DEVICES.format(names=names, vma=vma, kind=kind))
