"""Settings of JAX that decide whether a traced program stands for one traced now."""

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import jax

from ._compat import ClosedJaxpr, equations, setting_names
from ._primitives import MAKES_KEYS


# Settings that leave the numbers of a program that is traced already as they are: of
# checks, of how a trace is written down, of where and whether things are compiled.
# What is not among them, and what a later JAX brings, is taken to change them.
_IDLE = frozenset(
    (
        "WITHOUT_RULES",
        "check_vma",
        "eager_constant_folding",
        "jax_auto_pcast",
        "jax_check_static_indices",
        "jax_custom_jvp3",
        "jax_custom_vjp3",
        "jax_debug_key_reuse",
        "jax_default_device",
        "jax_disable_jit",
        "jax_embedded_constants_max_bytes",
        "jax_enable_pgle",
        "jax_hlo_source_file_canonicalization_regex",
        "jax_mutable_array_checks",
        "jax_no_collectives",
        "jax_no_execution",
        "jax_numpy_rank_promotion",
        "jax_pgle_profiling_runs",
        "jax_raise_on_ppermute_sort_diff",
        "jax_remat3",
        "jax_remat_barrier_no_cotangents",
        "jax_remove_size_one_mesh_axis_from_type",
        "jax_scan3",
        "jax_threefry_gpu_kernel_lowering",
        "jax_use_direct_linearize",
        "jax_use_shardy_partitioner",
        "jax_use_simplified_jaxpr_constants",
        "jax_xla_profile_version",
        "xla_metadata_context_manager",
    )
)
Entered: TypeAlias = Callable[[], contextlib.AbstractContextManager[Any]]
"""What makes a context to enter."""

_KEYS = "jax_default_prng_impl"
_MESHES = ("mesh_context_manager", "abstract_mesh_context_manager")


def decisive_settings(
    then: Sequence[Any], now: Sequence[Any], seeded: bool
) -> dict[str, tuple[str, str]]:
    """Return which settings keep a program from standing for one traced now.

    Args:
        then: The result of `trace_context` that the program was traced under.
        now: The one of now.
        seeded: Whether the program makes random keys.

    Returns:
        Both values by name, as text.
    """
    differing = {}
    for name, a, b in zip(setting_names(), then, now, strict=True):
        if a == b or name in _IDLE or (name == _KEYS and not seeded):
            continue
        one, other, what = a, b, name.removeprefix("jax_")
        if name == "axis_env_state":
            one, other, what = dict(a.axis_sizes), dict(b.axis_sizes), "named axes"
            if one.items() <= other.items():
                continue  # a new name is none of the program's
        elif name in _MESHES:
            what = "mesh"
            if not a or getattr(a, "empty", False):
                continue  # the program has none of its own
        differing[what.removesuffix("_context_manager")] = (str(one), str(other))
    return differing


def makes_keys(closed: ClosedJaxpr) -> bool:
    """Whether a program makes random keys; JAX's caches know not in which way."""
    names = [equation.primitive.name for equation in equations(closed.jaxpr)]
    return not MAKES_KEYS.isdisjoint(names)


def settings_for(leaves: Iterable[object]) -> tuple[Entered, Entered]:
    """Return the settings to derive under, and those to run a function under, to enter.

    An array of 64 bits stays one inside `jax.enable_x64(False)`, but every constant of
    its dtype becomes one of 32 bits there, unit directions for one.
    """
    dtypes = [getattr(leaf, "dtype", None) for leaf in leaves]
    wide = any(getattr(d, "name", "") in ("float64", "complex128") for d in dtypes)
    if wide and not jax.config.read("jax_enable_x64"):
        return jax.enable_x64, lambda: jax.enable_x64(False)
    return contextlib.nullcontext, contextlib.nullcontext


def nan_on_purpose() -> contextlib.AbstractContextManager[None]:
    """Return a context in which NaN is no error under `jax.debug_nans(True)`."""
    if not jax.config.jax_debug_nans:  # pyright: ignore[reportAttributeAccessIssue]
        return contextlib.nullcontext()
    return jax.debug_nans(False)
