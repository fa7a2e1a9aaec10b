"""The logger `hotk`: what is slow at first says that it compiles."""

import logging
import re

import jax.numpy as jnp

import hotk


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "hotk"]


def test_a_compilation_is_logged_before_and_after_and_only_once(caplog):
    def quartic(x):
        return jnp.sum(x**4)

    x = jnp.ones(3)
    hotk.clear_cache()  # another test may have compiled the same program
    with caplog.at_level(logging.INFO, logger="hotk"):
        hotk.hvp(quartic, x, x)
        before, after = messages(caplog)
        hotk.hvp(quartic, x, x)
        assert len(messages(caplog)) == 2
    assert before.startswith("`hvp(f, x, v)` of `")
    assert "quartic`: traced in " in before
    assert before.endswith(" equations; compiling")
    assert "quartic`: lowered in " in after
    # hundredths of seconds, which may be none where JAX finds the program on disk
    assert re.search(r"compiled in \d+\.\d\d s$", after)


def test_a_program_of_a_solver_is_logged(caplog):
    H = hotk.HessianOperator(lambda x: jnp.sum(x**4) + jnp.sum(x) ** 2, jnp.ones(7))
    hotk.clear_cache()
    with caplog.at_level(logging.INFO, logger="hotk"):
        H.matrix()
    lines = messages(caplog)
    assert "`_matrix` of hotk.linop: tracing and compiling" in lines
    [end] = [line for line in lines if "`_matrix` of hotk.linop: traced, " in line]
    assert lines.index(end) > lines.index(lines[0])


def test_nothing_is_logged_by_default(caplog):
    hotk.gradient(lambda x: jnp.sum(x**6), jnp.ones(2))
    assert not messages(caplog)
