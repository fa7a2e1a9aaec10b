"""Promise 9 where a GPU is: numbers, memory and compiles are those of a CPU.

Each test runs on the CPU as well, so that it is known to run on the day there is a GPU:
`pytest -m gpu`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.counting import compiles
from tests.promises.programs import PROGRAMS, W


PLATFORMS = ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]
# What factorizes a matrix, in the text of a compiled program.
FACTORIZES = {"cpu": "lapack", "gpu": "cusolver"}
# Bases and random signs of eigenvectors are not those of the CPU.
UP_TO_SIGN = {"linop.eigh", "linop.eigh, by Lanczos"}


def on(platform):
    return jax.default_device(jax.local_devices(backend=platform)[0])


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - UP_TO_SIGN))
@pytest.mark.parametrize("platform", PLATFORMS)
def test_numbers_are_those_of_the_cpu(platform, name):
    with on("cpu"):
        expected = jax.tree.leaves(jax.jit(PROGRAMS[name])(W))
    with on(platform):
        got = jax.tree.leaves(jax.jit(PROGRAMS[name])(jax.device_put(W)))
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_eigenvalues_by_the_library_of_the_platform(platform):
    with on(platform):
        program = jax.jit(lambda w: hotk.HessianOperator(quartic, w).eigh(3))
        compiled = program.lower(jax.device_put(W)).compile()
        values = compiled(jax.device_put(W)).values
    assert FACTORIZES[platform] in compiled.as_text()
    np.testing.assert_allclose(values, np.sort(12 * W**2 + 2), rtol=1e-10)


def quartic(w):
    return jnp.sum(w**4) + w @ w


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_fresh_lambda_compiles_nothing(platform):
    X = jnp.ones((4, 3))
    with on(platform):
        make = lambda c: lambda w: jnp.sum(jnp.cosh((c * X) @ w))
        factors = [jax.device_put(jnp.asarray(c, float)) for c in (1.0, 2.0, 3.0)]
        w = jax.device_put(W)
        hotk.hvp(make(factors[0]), w, w)
        with compiles() as count:
            for factor in factors:
                hotk.hvp(make(factor), w, w)
    assert count() == 0


@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_dense_hessian_is_made_in_blocks(platform):
    """Temporary arrays stay below a tenth of the matrix, on any platform."""
    n = 1024
    rows = jnp.ones((8, n), "float32")
    f = lambda w: jnp.sum(jnp.cosh(rows @ w))
    with on(platform):
        w = jax.device_put(jnp.ones(n, "float32"))
        program = jax.jit(lambda w: hotk.hessian(f, w, block_size=16))
        memory = program.lower(w).compile().memory_analysis()
    assert memory.temp_size_in_bytes < n * n * 4 / 10
