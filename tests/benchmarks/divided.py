"""A dense Hessian divided among eight devices of the host: exact counts of one device.

XLA counts the floating-point operations of a program for one device, and the body of a
loop once, so windows of as many columns are compared.
"""

import os
import subprocess
import sys
from collections.abc import Iterator

from tests.benchmarks.table import Row, run


N, ROWS, COLUMNS = 2048, 512, 128
CODE = f"""
import re, jax, jax.numpy as jnp, hotk
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
A = jax.random.normal(jax.random.key(0), ({ROWS}, {N})) / 64
x = jnp.linspace(-1.0, 1.0, {N})
f = lambda x, A: jnp.sum(jnp.tanh(A @ x) ** 2) + jnp.sum(x**4)
whole = hotk.hessian.prepare(f, x, A, block_size={COLUMNS})
for rows in (None, "d"):
    made = hotk.hessian.prepare(
        f, put(x), put(A, rows), split="columns", mesh_axis="d", block_size={COLUMNS}
    )
    memory = made.program.compiled.memory_analysis()
    print(
        made.info.flops / whole.info.flops,
        memory.output_size_in_bytes / (4 * {N} ** 2),
        memory.temp_size_in_bytes / (4 * {N} ** 2),
    )
"""


def measure() -> Iterator[Row]:
    """Count, over an axis along which all is whole and over that of the data."""
    environment = dict(
        os.environ,
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
        JAX_PLATFORMS="cpu",
        PJRT_NPROC="32",
    )
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    counts = [list(map(float, line.split())) for line in done.stdout.splitlines()]
    for what, (flops, result, temporary) in zip(
        ("a free axis", "the axis of the data"), counts, strict=True
    ):
        case = f"hessian(split=) over {what}, 8 devices / whole, n={N}"
        yield Row(f"{case}: operations of a device", flops, 1.1 / 8)
        yield Row("the same: result", result, 1 / 8)
        yield Row("the same: temporary memory", temporary, 1 / 4)


if __name__ == "__main__":
    run(str(__doc__), measure)
