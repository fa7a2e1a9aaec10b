"""Code run by several processes that JAX connects, on devices of the host."""

import os
import socket
import subprocess
import sys
import textwrap
import time


START = """
import jax
jax.config.update("jax_enable_x64", True)
jax.distributed.initialize("localhost:{port}", {count}, {index})
INDEX, COUNT = {index}, {count}
"""


def run_in_processes(
    code: str, count: int, *, devices: int = 1, seconds: float = 300.0
) -> list[tuple[int, str, str]]:
    """Run code in each of several processes; `INDEX` and `COUNT` are known to it.

    Args:
        code: What each process runs, with `jax` imported and connected.
        count: How many processes.
        devices: How many devices each has.
        seconds: When they are killed, all of them.

    Returns:
        For each process its return code, what it printed, and its errors.
    """
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    flags = os.getenv("XLA_FLAGS", "")
    environment = dict(
        os.environ,
        XLA_FLAGS=f"{flags} --xla_force_host_platform_device_count={devices}",
        JAX_PLATFORMS="cpu",
        JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo",
        PJRT_NPROC="32",  # see `tests.devices`
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",
    )
    running = []
    try:
        for index in range(count):
            start = START.format(port=port, count=count, index=index)
            running.append(
                subprocess.Popen(
                    [sys.executable, "-c", start + textwrap.dedent(code)],
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        end = time.monotonic() + seconds
        written = [p.communicate(timeout=end - time.monotonic()) for p in running]
        return [(p.returncode, *w) for p, w in zip(running, written, strict=True)]
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
                process.communicate()


# Ends a process at once, where it would wait for the others before it shows its error.
AT_ONCE = """
import os, sys, traceback
def end(*error):
    traceback.print_exception(*error)
    sys.stderr.flush()
    os._exit(1)
sys.excepthook = end
"""


def all_fine(code: str, count: int, **options: float) -> None:
    """Run code that prints `fine` at its end in each of several processes."""
    for index, (status, out, errors) in enumerate(
        run_in_processes(AT_ONCE + textwrap.dedent(code), count, **options)
    ):
        last = out.strip().splitlines()[-1:]
        assert (status, last) == (0, ["fine"]), (
            f"process {index}: {out}{errors[-3000:]}"
        )
