"""What first calls compile: exact counts, each with nothing compiled before it."""

import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk import _core
from hotk._prepared import _program
from tests.counting import compiles


# Programs of a first call at n = 4. A number of Python that becomes an array by
# `jnp.asarray` outside of a trace is one more.
CALLS = {
    "hotk.hvp(f, x, v)": 1,
    "hotk.HessianOperator(f, x).matrix()": 1,
    "hotk.HessianOperator(f, x).eigh(2)": 1,
    "hotk.HessianOperator(f, x).solve(v)": 1,
    "hotk.HessianOperator(lambda x: -f(x), x).solve(v)": 2,  # and the matrix
    "hotk.HessianOperator(f, x).cholesky()": 1,
    "hotk.HessianOperator(f, x).inertia()": 1,
    "hotk.estimate.trace(hotk.HessianOperator(f, x), key)": 1,
    "hotk.estimate.spectrum(hotk.HessianOperator(f, x), key)": 1,
    "hotk.estimate.logdet(hotk.HessianOperator(f, x), key)": 2,  # and the mean
    "minimize(f, x, hotk.optim.newton_cg())": 1,
    "minimize(f, x, hotk.optim.newton_cg(0.5, damping=1e-3))": 1,
    "minimize(f, x, hotk.optim.trust_region())": 1,
    "minimize(f, x, hotk.optim.trust_region(subproblem='exact'))": 1,
    "minimize(f, x, hotk.optim.newton())": 1,
    "minimize(f, x, hotk.optim.cubic_newton())": 1,
    "minimize(LeastSquares(jnp.sinh), x, levenberg_marquardt()).converged": 1,
    "fit(lambda p, x: p['a'] * x + p['b'], x, v, {'a': 0.5, 'b': 0}).converged": 2,
    "minimize(f, x, hotk.optim.sophia(0.1))": 4,  # and a random key, and zeros
}
CODE = """
import json, jax, jax.numpy as jnp, hotk
from hotk.curvature import LeastSquares
from hotk.optim import levenberg_marquardt, minimize
from hotk.statistics import fit
from tests.counting import compiles
key = jax.random.key(0)
f = lambda x: jnp.sum(jnp.cosh(x))
x, v = jnp.linspace(0.1, 1.0, 4), jnp.ones(4)
counts = {}
for call in CALLS:
    jax.clear_caches(), hotk.clear_cache()
    with compiles() as count:
        eval(call)
    counts[call] = count()
print(json.dumps(counts))
"""


@pytest.fixture(scope="module")
def counts():
    code = f"CALLS = {list(CALLS)!r}\n{CODE}"
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(("call", "programs"), CALLS.items())
def test_a_first_call_compiles_so_many_programs(counts, call, programs):
    assert counts[call] == programs


# ----- Options of the compiler


@pytest.fixture
def quick(monkeypatch):
    """Tell of each program that is compiled quickly whether it is a little one."""
    seen = []

    def compiled(lowered, *, quickly, is_little):
        seen.extend([is_little] * quickly)
        return _core.compiled(lowered, quickly=quickly, is_little=is_little)

    monkeypatch.setattr(_program, "compiled", compiled)
    return seen


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("n", "programs"), [(3, [True]), (1 << 14, [False]), (1 << 17, [])]
)
def test_small_loops_of_optimizers_alone_are_compiled_quickly(quick, n, programs):
    hotk.clear_cache()
    f, x = lambda x: jnp.sum(jnp.cosh(x)) + n, jnp.ones(n)
    hotk.hvp(f, x, x)
    assert not quick
    found = hotk.optim.minimize(f, x, hotk.optim.newton_cg(1.0), max_steps=8)
    assert quick == programs
    np.testing.assert_allclose(found.x, np.zeros(n), atol=1e-6)


def test_the_few_evaluations_after_a_fit_are_compiled_quickly(quick):
    hotk.clear_cache()
    x = jnp.linspace(0.0, 1.0, 5)
    found = hotk.statistics.fit(lambda p, x: p * x, x, 3 * x, 1.0)
    assert quick == [True, True]
    np.testing.assert_allclose(found.x, 3.0, rtol=1e-6)


def test_what_is_compiled_with_options_is_what_a_call_runs():
    run = jax.jit(lambda x: jnp.sin(x) + 3)
    x = jnp.linspace(0.0, 1.0, 7)
    with compiles() as count:
        compiled = _core.compiled(run.lower(x), quickly=True, is_little=True)
        result = run(x)
    assert count() == 1
    np.testing.assert_allclose(result, np.sin(np.asarray(x)) + 3, rtol=1e-6)
    np.testing.assert_array_equal(compiled(x), result)


WRONG = """
import jax, jax.numpy as jnp, numpy as np, hotk

# A product with one number, and a mapped product beyond 16384 rows, each with a sum.
rows = lambda x: jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2))(x)
numbers = jnp.arange(32_769.0)
x = jnp.stack([numbers, 0 * numbers, 0 * numbers], axis=1)
number = lambda x: ((x @ jnp.zeros((32, 10)))[None] + jnp.eye(10)[:, None]).sum(-1)
h = jnp.ones((100, 32))
for f, at, right in ((rows, x, np.asarray(numbers) ** 2), (number, h, 1.0)):
    prepared = hotk.value_and_jvp.prepare(f, at, at)
    found = (
        hotk.value_and_jvp(f, at, at)[0],
        prepared(at, at)[0],
        hotk._prepared.jitted(f)(at),
        hotk._prepared.jitted(quickly="always")(f)(at),
    )
    for value in found:
        np.testing.assert_allclose(value, np.broadcast_to(right, value.shape))
    inside = jax.jit(lambda at: (hotk.value_and_jvp(f, at, at), prepared(at, at)))
    jax.block_until_ready((inside(at), jax.jit(hotk._prepared.jitted(f))(at)))
print("right")
"""


def test_what_the_compiler_gets_wrong_is_right_in_programs_of_hotk():
    """In dirty memory, where a wrong number is certain, and without optimizing less."""
    environment = {**os.environ, "MALLOC_PERTURB_": "165", "XLA_FLAGS": ""}
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "JAX_ENABLE_X64": "0"}
    done = subprocess.run(
        [sys.executable, "-c", WRONG], capture_output=True, text=True, env=environment
    )
    assert done.stdout == "right\n", done.stderr[-2000:]
