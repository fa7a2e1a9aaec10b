"""Compile fast: most of the time of these tests is compiling."""

import jax
import pytest


@pytest.fixture(autouse=True)
def compiled_fast():
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
