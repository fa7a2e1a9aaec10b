"""Promise 9: every program is lowered for CPU, CUDA and TPU, whatever runs here."""

import jax
import pytest

from tests.promises.programs import ON_HOST, PROGRAMS, W
from tests.test_api import FUNCTIONS


PLATFORMS = ("cpu", "cuda", "tpu")
# Public functions that make, ask or show something and compute nothing in a program;
# those whose loop runs in Python; wrappers of transformations, each of which has a row.
NO_PROGRAM = {
    *("cache_info", "can_differentiate", "clear_cache", "explain", "export", "load"),
    *("locate_nan", "memory_budget", "set_memory_budget", "sparsity", "static"),
    *("as_shards", "from_shards", "laplace_approximation", "over_axis"),
    "curvature.composition",
    "curvature.residuals_of",
    "curvature.rows_program",
    *("linop.check_symmetric", "linop.loop", "linop.small_matrix"),
    *("linop.space_of", "linop.spectrum_of"),
    *("optim.apply_gradients", "optim.minimize", "optim.nnx_step"),
    *("optim.step_info", "optim.strip_extra_args", "optim.with_params"),
    *("rule.check_backend", "rule.disabled", "rule.lint", "rule.which"),
}
ELSEWHERE = ("interop.", "plot.", "sparse.", "statistics.")


def export(call):
    """Lower and serialize nothing: the text of a program for each platform."""
    return jax.export.export(jax.jit(call), platforms=PLATFORMS)(W)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_lowered_for_every_platform(name):
    exported = export(PROGRAMS[name])
    assert exported.platforms == PLATFORMS


def test_eigenvalues_are_those_of_cusolver_on_a_gpu():
    exported = jax.export.export(jax.jit(PROGRAMS["linop.eigh"]), platforms=("cuda",))
    assert "cusolver" in exported(W).mlir_module()


@pytest.mark.parametrize("name", ON_HOST)
def test_what_runs_on_the_host_is_lowered_for_this_platform_only(name):
    """JAX refuses others; docs/limitations.md says so."""
    with pytest.raises(NotImplementedError, match="python_callback"):
        export(ON_HOST[name])
    assert jax.jit(ON_HOST[name]).lower(W).as_text()


def test_every_public_function_is_lowered():
    rows = {name.partition(",")[0] for name in PROGRAMS | ON_HOST}
    variants = {f"optim.scale_by_{name[6:]}" for name in rows if name[:6] == "optim."}
    asked = {name for name in FUNCTIONS if not name.startswith(ELSEWHERE)}
    missing = sorted(asked - rows - variants - NO_PROGRAM)
    assert not missing, f"tests/promises/programs.py: add a row for each of {missing}"
    assert not NO_PROGRAM - FUNCTIONS.keys()
