"""JAX's persistent compilation cache: a second process compiles nothing of hotk."""

import os
import subprocess
import sys
import textwrap

import pytest


CODE = """
    import jax, jax.numpy as jnp, hotk

    found = {"cache_hits": 0, "cache_misses": 0}

    def listen(event, **_):
        name = event.rsplit("/", 1)[-1]
        if name in found:
            found[name] += 1

    jax.monitoring.register_event_listener(listen)
    data = jnp.arange(6.0).reshape(3, 2)
    x = jnp.ones(2)
    loss = lambda x: jnp.sum(jnp.tanh(data @ x) ** 2)
    hotk.hvp(loss, x, x)
    hotk.hessian.prepare(loss, x)(x)
    hotk.HessianOperator(loss, x).eigh(1)
    hotk.optim.minimize(loss, x, hotk.optim.newton_cg(), max_steps=3)
    print(found["cache_hits"], found["cache_misses"])
"""


@pytest.mark.exhaustive
def test_a_second_process_takes_its_programs_from_the_disk(tmp_path):
    environment = dict(
        os.environ,
        JAX_COMPILATION_CACHE_DIR=str(tmp_path),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
        JAX_PLATFORMS="cpu",
    )
    counts = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(CODE)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        )
        counts.append([int(n) for n in done.stdout.split()])
    (_, first_missed), (second_hits, second_missed) = counts
    assert first_missed > 5
    assert second_missed == 0
    assert second_hits >= first_missed
