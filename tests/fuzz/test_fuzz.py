"""Past failures stay mended, and the fuzzer finds what it is made to find."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk

from .check import check
from .operations import OPERATIONS
from .program import Operation, Program, random_program, snippet
from .regressions import REGRESSIONS
from .shrink import shrink


@pytest.mark.exhaustive
@pytest.mark.parametrize("program", REGRESSIONS, ids=str)
def test_a_past_failure_stays_mended(program):
    assert check(program, hotk, extra="all").failure is None


@pytest.mark.thinned(1)
@pytest.mark.parametrize("kind", OPERATIONS)
def test_a_program_of_each_kind_agrees_with_raw_jax(kind):
    program = Program("dict", (Operation("matmul", 0), Operation(kind, 1)), 7)
    assert check(program, hotk).failure is None


def test_a_seed_gives_the_same_programs_again():
    one, two = (np.random.default_rng(3) for _ in range(2))
    programs = [random_program(one) for _ in range(20)]
    assert programs == [random_program(two) for _ in range(20)]
    assert len(set(programs)) == 20


class _Doubled:
    """`hotk.hvp` with a flaw: wrong wherever the function has a scan."""

    def __call__(self, f, x, v, *args, **options):
        out = hotk.hvp(f, x, v, *args, **options)
        scans = "scan" in str(jax.make_jaxpr(f)(x, *args))
        return jax.tree.map(lambda leaf: 2 * leaf, out) if scans else out

    def prepare(self, *at, **options):
        return hotk.hvp.prepare(*at, **options)


@pytest.mark.exhaustive
def test_a_planted_flaw_is_found_and_shrunk():
    plain = {name: getattr(hotk, name) for name in dir(hotk)}
    flawed = types.SimpleNamespace(**{**plain, "hvp": _Doubled()})
    kinds = ["matmul", "scan", "reduce"]
    operations = tuple(Operation(kind, 5) for kind in kinds)
    program = Program("vector", operations, 1)
    assert check(program, hotk).failure is None
    assert check(program, flawed).failure is not None
    small = shrink(program, lambda p: check(p, flawed).failure is not None)
    assert [operation.kind for operation in small.operations] == ["scan"]


def test_a_printed_program_runs():
    program = Program("mixed", (Operation("function", 3), Operation("scan", 1)), 4)
    names: dict = {}
    exec(snippet(program, "out = hotk.hvp(f, x, v, *args)"), names)
    assert jnp.isfinite(names["out"]["w"])
    assert names["out"]["n"] is None
