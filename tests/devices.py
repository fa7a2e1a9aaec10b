"""Code run in a process of its own, on several devices that the host stands in for."""

import os
import subprocess
import sys
import textwrap


def run_on_eight_devices(code: str) -> None:
    """Run code that prints `fine` at its end, compiled without optimizations."""
    flags = os.getenv("XLA_FLAGS", "")
    environment = dict(
        os.environ,
        XLA_FLAGS=f"{flags} --xla_force_host_platform_device_count=8",
        JAX_PLATFORMS="cpu",
        # Each device waits for the others in a thread of its own; with fewer threads
        # than that, those that two cores get, the first to wait block the rest.
        PJRT_NPROC="32",
        JAX_DISABLE_MOST_OPTIMIZATIONS="1",  # nearly all of its time is compiling
    )
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout.strip() == "fine", done.stdout + done.stderr[-3000:]
