"""Every setting that a trace of JAX depends on, set to another value around a call.

Each result is that of plain JAX under the setting, or the error names the setting.
"""

import contextlib
import enum

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import config  # noqa: TID251 (no list of all settings is public)
from jax.experimental.compute_on import compute_on
from jax.experimental.xla_metadata import set_xla_metadata

import hotk
from tests.counting import settings
from tests.helpers import close


X = np.array([0.3, -0.7, 1.1])
V = np.array([1.0, 0.5, -2.0])
KEY = 7

# They make JAX itself refuse to run, or change nothing on this machine but the time.
ASIDE = {
    "jax_enable_x64": "it has tests of its own",
    "jax_no_execution": "nothing runs under it",
    "jax_scan3": "JAX has no derivative of its scan under it",
    "jax_enable_pgle": "it profiles each program for a minute",
    "jax_pgle_profiling_runs": "it goes with the one above",
}
# Contexts that are no settings by name, with another value of each.
CONTEXTS = {
    "mesh_context_manager": None,  # deprecated: a warning is an error here
    "abstract_mesh_context_manager": lambda: jax.set_mesh(mesh()),
    "compute_on_context_manager": lambda: compute_on("device_host"),
    "xla_metadata_context_manager": lambda: set_xla_metadata(note="here"),
    "layout_tracing_mode": None,  # nothing public sets it
    "user_context": None,  # it is whatever a user makes it
    "axis_env_state": None,  # in `test_configuration.py`, with several sizes
}
VALUES = {
    "jax_default_device": lambda: jax.devices()[0],
    "jax_default_matmul_precision": lambda: "highest",
    "jax_hlo_source_file_canonicalization_regex": lambda: "x",
    "jax_use_hlo_logistic_lowering": lambda: True,
    "jax_no_collectives": lambda: frozenset({"i"}),
}


def mesh():
    return jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def another(name):
    """Return a context in which a setting has another value, if there is one."""
    if name in CONTEXTS:
        return CONTEXTS[name]
    if name.startswith("pallas_"):
        return None  # inside of a kernel alone
    state = config.config_states[name]
    value = state.value
    if name in VALUES:
        new = VALUES[name]()
    elif isinstance(value, bool):
        new = not value
    elif isinstance(value, enum.Enum):
        new = next(member for member in type(value) if member is not value)
    elif isinstance(value, int):
        new = value + 1
    else:
        cells = [cell.cell_contents for cell in state._parser.__closure__]
        choices = next(content for content in cells if isinstance(content, list))
        new = next(choice for choice in choices if choice != value)
    return lambda: state(new)


NAMES = [n for n in dict.fromkeys(config.trace_context_names()) if n not in ASIDE]
NAMES = [n for n in NAMES if another(n) is not None] + ["jax_default_prng_impl"]
VALUES["jax_default_prng_impl"] = lambda: "rbg"


def f(x):
    drawn = jax.random.uniform(jax.random.key(KEY), (3,), x.dtype)
    low = x.astype(jnp.float16).sum().astype(x.dtype)
    return jnp.sum(jnp.sin(jnp.outer(x, x) @ x) + drawn * x**3) + low * x[0]


def plain():
    return jax.jvp(jax.grad(f), (jnp.asarray(X),), (jnp.asarray(V),))[1]


CALLS = {
    "direct": lambda: hotk.hvp(f, X, V),
    "prepared": lambda: hotk.hvp.prepare(f, X, V)(X, V),
    "jit": lambda: jax.jit(lambda x: hotk.hvp(f, x, V))(X),
    "vmap": lambda: jax.vmap(lambda x: hotk.hvp(f, x, V))(X[None])[0],
}
# These let JAX add checks to a program that `vmap` cannot batch.
_CHECKED = ("jax_error_checking_behavior_nan", "jax_error_checking_behavior_divide")


def unless_refused(prepared, name):
    """Return what a call gives, or plain JAX if the call names the setting."""
    try:
        return prepared(X, V)
    except hotk.PreparationError as error:
        if f"✗ {shown(name)}: prepared" not in str(error):
            raise
        return plain()


def shown(name):
    return name.removeprefix("jax_").removesuffix("_context_manager")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_call_obeys_the_setting(name):
    before = hotk.hvp.prepare(f, X, V)
    outside = plain()
    close(before(X, V), outside)
    close(hotk.hvp(f, X, V), outside)
    found = settings()
    with another(name)() or contextlib.nullcontext():
        try:
            expected = plain()
        except Exception as error:  # then hotk has to refuse as well
            for call in CALLS.values():
                with pytest.raises((type(error), hotk.HotkError)):
                    call()
        else:
            for kind, call in CALLS.items():
                if not (kind == "vmap" and name in _CHECKED):
                    close(call(), expected)
            close(unless_refused(before, name), expected)
    assert settings() == found
    for call in CALLS.values():
        close(call(), outside)
    close(before(X, V), outside)


LOUD = [
    "jax_default_matmul_precision",
    "jax_numpy_dtype_promotion",
    "jax_random_seed_offset",
    "jax_threefry_partitionable",
    "jax_default_prng_impl",
]
QUIET = [
    "jax_default_device",
    "jax_disable_jit",
    "jax_check_static_indices",
    "jax_use_direct_linearize",
    "jax_mutable_array_checks",
    "jax_numpy_rank_promotion",
    "abstract_mesh_context_manager",
    "xla_metadata_context_manager",
]


@pytest.fixture(scope="module", name="prepared")
def a_prepared():
    return hotk.hvp.prepare(f, X, V)


@pytest.mark.parametrize("name", LOUD)
def test_a_setting_that_changes_what_is_computed_is_loud(name, prepared):
    with (
        another(name)(),
        pytest.raises(hotk.PreparationError, match=f"✗ {shown(name)}: "),
    ):
        prepared(X, V)
    close(prepared(X, V), plain())


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", QUIET)
def test_a_setting_that_changes_no_number_is_none_of_its_business(name, prepared):
    with another(name)():
        close(prepared(X, V), plain())
        close(jax.jit(prepared)(X, V), plain())
    close(prepared(X, V), plain())
