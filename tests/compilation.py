"""Compile the tests quickly, and keep what is compiled, outside of the checkout.

Compiling is two thirds of the time of the tests. JAX knows a compiled program by its
text, the flags and the version, so what it finds is what it would compile. Traces,
lowerings and compiles are counted before it looks (`tests/counting.py`). What is set in
the environment stays: with `XLA_FLAGS= JAX_DISABLE_MOST_OPTIMIZATIONS=0` programs are
compiled as they are for users. The MLIR contexts of lowerings are used again.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax._src.interpreters import mlir


FOLDER = "JAX_COMPILATION_CACHE_DIR"
FLAGS = "XLA_FLAGS"
FAST = "JAX_DISABLE_MOST_OPTIMIZATIONS"
# Small programs too: each is compiled in milliseconds, but there are thousands.
EVERYTHING = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
OLD = 30 * 24 * 3600.0  # seconds
# Later versions have one way to emit code, without a flag, and use contexts again.
OF_OLD = jaxlib.__version__.startswith("0.10.")


def use() -> None:
    """Compile so from now on, in processes started from here as well."""
    optimize_little()
    keep_programs()
    if OF_OLD:
        mlir.make_ir_context = used_again(mlir.make_ir_context)


def optimize_little() -> None:
    """Let XLA compile in 40 % of the time; programs of tests run for microseconds."""
    if FAST not in os.environ:
        os.environ[FAST] = "1"
        jax.config.update(FAST.lower(), True)
    if FLAGS not in os.environ:
        # One module of LLVM for a program, not several for several threads: each core
        # has tests of its own.
        flags = ["--xla_cpu_parallel_codegen_split_count=1"]
        if OF_OLD:
            flags.append("--xla_cpu_use_fusion_emitters=false")
        os.environ[FLAGS] = " ".join(flags)


def used_again(make: Callable[[], Any], times: int = 10) -> Callable[[], Any]:
    """Return a maker of MLIR contexts that makes one for ten programs of a thread.

    JAX 0.10 makes one for each program, and loads all dialects into it: a fifth of the
    time of the tests. JAX 0.12 uses each ten times in its thread, as is done here; a
    context keeps the types and constants of its programs for as long as it is there.
    """
    of_thread = threading.local()

    def context() -> Any:
        # A program lowered within a rule of another would be written into that one.
        if mlir.ir.Context.current is not None:
            return make()
        left, found = getattr(of_thread, "context", (0, None))
        if not left:
            left, found = times, make()
        of_thread.context = left - 1, found
        return found

    return context


def keep_programs() -> None:
    """Keep compiled programs, but where the environment names a folder, or none: ""."""
    if FOLDER in os.environ:
        return
    try:
        path = folder()
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or one that is read only
        return
    if not os.access(path, os.W_OK):
        return
    remove_old(path, time.time() - OLD)
    os.environ[FOLDER] = str(path)
    jax.config.update("jax_compilation_cache_dir", str(path))
    for name, value in EVERYTHING.items():
        if name.upper() not in os.environ:
            os.environ[name.upper()] = str(value)
            jax.config.update(name, value)


def folder() -> Path:
    """Return where compiled programs are kept if the environment names no folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hotk" / "jax"


def remove_old(path: Path, before: float) -> None:
    """Remove the programs that were compiled before a time."""
    for entry in os.scandir(path):
        with contextlib.suppress(FileNotFoundError):  # another run was faster
            if entry.is_file() and entry.stat().st_mtime < before:
                os.unlink(entry)
