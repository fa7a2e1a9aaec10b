"""`hotk.testing.verified` passes what is right, and notices what is wrong."""

import importlib
import inspect
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
import hotk.testing
from hotk._mode import Nested
from hotk._mode._nested import AbstractCurvature
from hotk._prepared._program import Program
from hotk.curvature import GammaLoss, SquaredError
from hotk.linop import Identity, KFACOperator
from hotk.linop._operator import Sum
from hotk.verify import _solvers as verify_solvers


@pytest.fixture
def planted(monkeypatch):
    """Let no program of before be found, and nothing that is planted stay in one."""
    hotk.clear_cache()
    jax.clear_caches()
    yield monkeypatch
    monkeypatch.undo()
    hotk.clear_cache()
    jax.clear_caches()


def f(x):
    """Couple two arrays of one shape."""
    return jnp.sum(jnp.sin(x["a"]) ** 2 * x["b"]) + jnp.sum(x["b"] ** 3)


def point():
    return {"a": jnp.array([0.3, -0.5, 0.8]), "b": jnp.array([0.7, 0.2, -0.4])}


def banded(x):
    return jnp.sum((x[1:] - x[:-1] ** 2) ** 2) + jnp.sum(x**4)


def model(p, x):
    return jnp.tanh(x @ p["w"] + p["b"][None]) @ p["v"]


def weights():
    v = jnp.array([[0.3], [-0.2], [0.5]])
    return {"b": jnp.array([0.1, 0.2, 0.3]), "v": v, "w": jnp.ones((2, 3)) / 3}


INPUTS = jnp.arange(8.0).reshape(4, 2) / 8
LOSS = SquaredError(jnp.ones((4, 1)))
field = lambda x: {"a": x["b"] * x["a"], "b": jnp.cos(x["a"])}
X = {"x": 1.0, "t": 0.3}
wave = lambda p: jnp.sin(p["x"]) * jnp.exp(p["t"])
two = lambda x, n=2: jax.tree.map(lambda a: jnp.stack([a] * n), x)

OPERATORS = {
    "biharmonic": lambda: hotk.biharmonic(lambda x: jnp.sum(x**4) * x[0], jnp.ones(3)),
    "cross_hessian": lambda: hotk.cross_hessian(
        lambda x, y: jnp.sum(x**2 * y), jnp.ones(2), jnp.ones(2)
    ),
    "cross_hvp": lambda: hotk.cross_hvp(
        lambda x, y: jnp.sum(x**2 * y), jnp.ones(2), jnp.ones(2), jnp.ones(2)
    ),
    "derivative": lambda: hotk.derivative(jnp.sin, 2.0),
    "derivative_tensor": lambda: hotk.derivative_tensor(f, point(), order=3),
    "derivatives": lambda: hotk.derivatives(f, point(), point(), order=6),
    "differential_operator": lambda: hotk.differential_operator({"t": 1.0, "xx": -0.5})(
        wave, X
    ),
    "divergence": lambda: hotk.divergence(field, point()),
    "empirical_fvp": lambda: hotk.empirical_fvp(
        model, LOSS, weights(), weights(), INPUTS
    ),
    "fvp": lambda: hotk.fvp(
        model, GammaLoss(jnp.ones((4, 1)), shape=2.0), weights(), weights(), INPUTS
    ),
    "ggnvp": lambda: hotk.ggnvp(model, LOSS, weights(), weights(), INPUTS),
    "gradient": lambda: hotk.gradient(f, point()),
    "hessian": lambda: hotk.hessian(f, point()),
    "hessian of a tree": lambda: hotk.hessian(field, point()),
    "hessian_diagonal": lambda: hotk.hessian_diagonal(f, point()),
    "hvp": lambda: hotk.hvp(f, point(), point()),
    "hvp, batched": lambda: hotk.hvp(f, point(), two(point()), batched=True),
    "jacobian": lambda: hotk.jacobian(field, point()),
    "jvp": lambda: hotk.jvp(field, point(), point()),
    "laplacian": lambda: hotk.laplacian(f, point()),
    "partial": lambda: hotk.partial(wave, X, "xxt"),
    "quadratic_form": lambda: hotk.quadratic_form(f, point(), point()),
    "sampled_fvp": lambda: hotk.sampled_fvp(
        model, LOSS, weights(), weights(), INPUTS, key=jax.random.key(1), samples=2
    ),
    "second_derivative": lambda: hotk.second_derivative(jnp.sin, 2.0),
    "sparse_ggn": lambda: hotk.sparse_ggn(
        jnp.sin, SquaredError(jnp.zeros(5)), jnp.ones(5)
    ),
    "sparse_hessian": lambda: hotk.sparse_hessian(banded, jnp.ones(6)),
    "sparse_jacobian": lambda: hotk.sparse_jacobian(
        lambda x: x[1:] * x[:-1], jnp.arange(6.0)
    ),
    "sparse_lagrangian": lambda: hotk.sparse_lagrangian(
        lambda x: (banded(x), x[1:] * x[:-1]), jnp.ones(6), (2.0, jnp.arange(5.0))
    ),
    "taylor": lambda: hotk.taylor(f, point(), point(), order=3),
    "tvp": lambda: hotk.tvp(f, point(), point(), point(), point()),
    "value_and_derivative": lambda: hotk.value_and_derivative(jnp.sin, 2.0),
    "value_and_divergence": lambda: hotk.value_and_divergence(field, point()),
    "value_and_gradient": lambda: hotk.value_and_gradient(f, point()),
    "value_and_jacobian": lambda: hotk.value_and_jacobian(field, point()),
    "value_and_jvp": lambda: hotk.value_and_jvp(field, point(), point()),
    "value_and_laplacian": lambda: hotk.value_and_laplacian(f, point()),
    "value_and_sparse_jacobian": lambda: hotk.value_and_sparse_jacobian(
        lambda x: x[1:] * x[:-1], jnp.arange(6.0)
    ),
    "value_and_vjp": lambda: hotk.value_and_vjp(field, point(), point()),
    "value_gradient_and_hessian": lambda: hotk.value_gradient_and_hessian(f, point()),
    "value_gradient_and_hvp": lambda: hotk.value_gradient_and_hvp(f, point(), point()),
    "value_gradient_and_sparse_hessian": lambda: hotk.value_gradient_and_sparse_hessian(
        banded, jnp.ones(6)
    ),
    "vjp": lambda: hotk.vjp(field, point(), point()),
}


def test_every_public_operator_is_here():
    """`sparsity` has a pattern and no numbers."""
    public = {name for name in dir(hotk) if hasattr(getattr(hotk, name), "prepare")}
    public -= {"DifferentialOperator"}  # what `differential_operator` makes
    assert public - {name.split(",")[0] for name in OPERATORS} == set()


@pytest.mark.thinned(11)
@pytest.mark.parametrize("name", OPERATORS)
def test_a_right_operator_is_checked_by_both_roads(name):
    with hotk.testing.verified() as report:
        OPERATORS[name]()
    assert report.programs >= 1
    assert not report.reasons, str(report)
    for row in report.counts.values():
        assert row["by derivatives"] == row["by operations"] >= 1


def damped():
    return hotk.HessianOperator(f, point()) + 5 * Identity()


SOLVERS = {
    "cg": lambda: hotk.linop.cg(damped(), point()),
    "minres": lambda: hotk.linop.minres(damped(), point()),
    "steihaug": lambda: hotk.linop.steihaug(damped(), point(), 0.1),
    "solve": lambda: damped().solve(point()),
    "eigh": lambda: damped().eigh(2),
    "eigh, by Lanczos": lambda: hotk.HessianOperator(banded, jnp.ones(300)).eigh(2),
    "cholesky": lambda: damped().cholesky(damping=0.5),
    "inverse": lambda: damped().inverse(0.5),
    "matrix": lambda: damped().matrix(),
    "diagonal": lambda: damped().diagonal(),
    "block": lambda: hotk.HessianOperator(f, point()).block("['a']", "['b']"),
    "K-FAC": lambda: KFACOperator(model, LOSS, weights(), INPUTS),
    "Gauss-Newton": lambda: hotk.GGNOperator(model, LOSS, weights(), INPUTS).matrix(),
}


def test_what_is_checked_by_its_residual_is_there():
    """A function that was moved, and is found no more, would be checked no more."""
    for name in verify_solvers.SOLVERS:
        module, _, function = name.rpartition(".")
        assert hasattr(importlib.import_module(f"hotk.{module}"), function), name


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", SOLVERS)
def test_a_right_solver_is_checked_by_its_residual(name):
    with hotk.testing.verified() as report:
        SOLVERS[name]()
    assert sum(row["by derivatives"] for row in report.counts.values()) >= 1, str(
        report
    )
    assert not [why for why in report.reasons if "no other route" not in why]


@pytest.mark.exhaustive
def test_an_optimizer_is_checked_by_operations():
    with hotk.testing.verified() as report:
        hotk.optim.minimize(banded, jnp.ones(6))
    assert report.counts["optim"]["by operations"] == 1


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16])
def test_rounding_is_no_mismatch(dtype):
    """Terms of 1e8 cancel but for one of size one."""
    x = jnp.linspace(1, 2, 100).astype(dtype)
    large = jnp.asarray(1e4, dtype)
    cancelling = lambda x: jnp.sum((large * x + 1) ** 2 - (large * x) ** 2)
    with hotk.testing.verified() as report:
        hotk.gradient(cancelling, x)
        hotk.hvp(cancelling, x, x)
    assert report.programs == 2


def test_a_jitted_function_that_is_stale_in_jax_is_no_mismatch():
    rate = [1.0]
    f = jax.jit(lambda x: rate[0] * jnp.sum(x**3))
    with hotk.testing.verified():
        for rate[0] in (1.0, 5.0):
            found = hotk.gradient(lambda x: f(x), jnp.ones(2))
            np.testing.assert_allclose(found, 3 * rate[0])


def test_many_samples_are_checked_at_once():
    given = model, LOSS, weights(), weights(), INPUTS
    with hotk.testing.verified() as report:
        hotk.sampled_fvp(*given, key=jax.random.key(1), samples=20_000)
    assert report.counts["hvp"]["by derivatives"] == 1


def test_a_loop_has_forward_derivatives_alone():
    def loop(x):
        step = lambda s: (s[0] + 1, jnp.sin(s[1]) * x)
        return jnp.sum(jax.lax.while_loop(lambda s: s[0] < 3, step, (0, x))[1])

    with hotk.testing.verified() as report:
        hotk.hvp(loop, jnp.ones(3), jnp.ones(3))
        hotk.gradient(loop, jnp.ones(3))
        hotk.hessian(loop, jnp.ones(3))
    assert not report.reasons
    assert report.programs == 3


def test_a_mapped_loop_is_run_as_one():
    """Its condition is an array: each of the loops has an end of its own."""
    grow = lambda s: (s[0] * 1.1, s[1] + s[0])
    one = lambda x: jax.lax.while_loop(lambda s: s[1] < 3, grow, (x, x))[1]
    with hotk.testing.verified() as report:
        hotk.jvp(jax.vmap(one), jnp.arange(1.0, 4.0) / 5, jnp.ones(3))
    assert report.counts["jvp"] == {"by derivatives": 1, "by operations": 1}


def test_a_prepared_operator_is_checked_once():
    product = []
    with hotk.testing.verified() as report:
        prepared = hotk.hvp.prepare(f, point(), point())
        product = [prepared(point(), point()) for _ in range(2)]
    assert report.counts["hvp"] == {"by derivatives": 1, "by operations": 1}
    assert (product[0]["a"] == product[1]["a"]).all()


def test_a_result_that_is_refused_is_not_checked():
    drawn = lambda x: jnp.sum(jax.random.uniform(jax.random.key(0), (3,)) * x**3)
    x = jnp.array([0.3, -0.5, 0.8])
    with hotk.testing.verified() as report:
        prepared = hotk.hvp.prepare(drawn, x, x)
        with (
            jax.default_prng_impl("rbg"),
            pytest.raises(hotk.PreparationError, match="default_prng_impl"),
        ):
            prepared(x, x)
        assert not report.mismatches
        assert not report.counts
        prepared(x, x)
    assert report.counts["hvp"] == {"by derivatives": 1, "by operations": 1}


def test_what_was_compiled_before_is_checked_anew():
    hotk.gradient(f, point())
    with hotk.testing.verified() as report:
        hotk.gradient(f, point())
        hotk.gradient(f, point())
    assert report.programs == 1


def test_nothing_is_checked_afterwards():
    with hotk.testing.verified() as report:
        pass
    hotk.gradient(lambda x: x**2, 1.0)
    assert report.programs == 0


def test_what_calls_the_host_is_skipped_and_told():
    def impure(x):
        jax.debug.callback(lambda a: None, x)
        return x**2

    with hotk.testing.verified() as report:
        hotk.gradient(impure, 1.0)
    assert any("calls the host" in why for why in report.reasons)
    assert "calls the host" in str(report)


def test_an_opaque_function_is_run_once():
    runs = []

    def writes(x):
        runs.append(x.shape)
        return jnp.sum(x**3)

    with hotk.testing.verified() as report:
        hotk.hvp(writes, jnp.ones(2), jnp.ones(2))
    checked = len(runs)
    assert report.programs == 1
    runs.clear()
    hotk.clear_cache()
    hotk.hvp(writes, jnp.ones(2), jnp.ones(2))
    assert checked == len(runs)


def test_checks_are_counted_nowhere():
    hotk.clear_cache()
    with hotk.testing.verified():
        hotk.hvp(f, point(), point())
    info = hotk.cache_info()
    assert (info.misses, info.traces, info.compiles, info.entries) == (1, 1, 1, 1)


def test_arguments_that_are_donated_stay():
    """Lanczos steps take their basis over."""
    H = hotk.HessianOperator(banded, jnp.ones(300))
    expected = np.linalg.eigvalsh(np.asarray(H.matrix()))[-2:]
    with hotk.testing.verified():
        pairs = H.eigh(2)
    np.testing.assert_allclose(pairs.values, expected)


# ---- planted flaws, one of each kind


def factor_two(planted):
    right = Nested._product_of_one

    def wrong(self, *args):
        y, gradient, product, aux = right(self, *args)
        return y, gradient, jax.tree.map(lambda a: 2 * a, product), aux

    planted.setattr(Nested, "_product_of_one", wrong)
    hotk.hvp(f, point(), point())


def dropped_part_of_a_sum(planted):
    planted.setattr(Sum, "mv", lambda self, v: self.terms[0].mv(v))
    hotk.linop.minres(damped(), point())


def stopped_factor(planted):
    from hotk._mode.series import _rules

    right = _rules.product
    stopped = lambda b: type(b)(b.primal, [None] * b.order)
    planted.setattr(_rules, "product", lambda g, a, b: right(g, a, stopped(b)))
    hotk.derivatives(lambda x: jnp.sin(x) * jnp.exp(x), 0.5, 1.0, order=3)


def sum_for_a_mean(planted):
    planted.setattr(SquaredError, "hessian_product", lambda self, z, u: u)
    OPERATORS["ggnvp"]()


def sign_in_a_recurrence(planted):
    from hotk._mode.series import _elementary

    right = _elementary.scaled
    planted.setattr(_elementary, "scaled", lambda k, a: right(abs(k), a))
    hotk.taylor(jnp.sin, 0.5, 1.0, order=3)


def transposed_block(planted):
    from hotk.linop import _dense

    right = _dense._assembled
    planted.setattr(_dense, "_assembled", lambda *args: right(*args).T)
    mixed = lambda x: jnp.sum(x["a"] * jnp.cumsum(x["b"]) ** 2)
    hotk.HessianOperator(mixed, point()).block("['a']", "['b']")


def missing_cross_term(planted):
    from hotk.sparse import _elementwise

    planted.setattr(_elementwise, "added", lambda total, term, dtype: term)
    hotk.sparse_hessian(banded, jnp.ones(6) / 2)


def diagonal_of_the_wrong_leaf(planted):
    right = AbstractCurvature.diagonal

    def wrong(self, *args):
        y, diagonal, aux = right(self, *args)
        leaves, tree = jax.tree.flatten(diagonal)
        return y, tree.unflatten(leaves[::-1]), aux

    planted.setattr(AbstractCurvature, "diagonal", wrong)
    hotk.hessian_diagonal(f, point())


def wrong_damping(planted):
    from hotk.linop import _cholesky, _direct

    right = _cholesky._factor
    planted.setattr(_direct, "is_on_host", lambda a: False)
    planted.setattr(_cholesky, "_factor", lambda a, damping: right(a, damping / 2))
    damped().cholesky(damping=0.5)


def factor_of_kfac(planted):
    from hotk.linop.kfac import _build

    right = _build.output_factor
    planted.setattr(
        _build, "output_factor", lambda *args: right(*args).times(jnp.array(0.5))
    )
    SOLVERS["K-FAC"]()


def missing_coordinate(planted):
    from hotk._first import _divergence

    right = _divergence.size_of
    planted.setattr(_divergence, "size_of", lambda x: right(x) - 1)
    hotk.divergence(lambda x: jax.tree.map(jnp.sin, x), point())


def what_the_compiler_makes(planted):
    right = Program.compile

    def compile_wrongly(self, f):
        compiled, jit = right(self, f), self.jit
        self.jit = lambda *flat: jax.tree.map(lambda a: a * 1.001, jit(*flat))
        return compiled

    planted.setattr(Program, "compile", compile_wrongly)
    hotk.gradient(f, point())


FLAWS = [
    *(factor_two, dropped_part_of_a_sum, stopped_factor, sum_for_a_mean),
    *(sign_in_a_recurrence, transposed_block, missing_cross_term),
    *(diagonal_of_the_wrong_leaf, wrong_damping, factor_of_kfac),
    *(missing_coordinate, what_the_compiler_makes),
]


@pytest.mark.thinned(7)
@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.__name__)
def test_a_planted_flaw_is_noticed(flaw, planted):
    with (
        pytest.raises(hotk.VerificationError, match="rounding explains") as caught,
        hotk.testing.verified(),
    ):
        flaw(planted)
    assert "test_verified.py" in str(caught.value)


def test_mismatches_are_collected_if_they_are_not_raised(planted):
    with hotk.testing.verified(raises=False) as report:
        factor_two(planted)
    (error,) = report.mismatches
    assert "order 2" in str(error)
    assert "by plain JAX" in str(error)


# What jaxlib 0.10.2 to 0.12.0.1 fuse wrongly on CPUs: it must be all ones.
FUSED = """
import jax, jax.numpy as jnp
import hotk
from hotk.verify import difference

def f(h, I):
    return ((h @ jnp.zeros((32, 10)))[None] + I[:, None, :]).sum(-1)

given = [jnp.ones((100, 32)), jnp.eye(10)]
found = jax.jit(f)(*given)
different = difference("result", jax.make_jaxpr(f)(*given), given, [found])
assert (different is None) == bool((found == 1).all()), different
print("wrong" if different else "right")
"""


@pytest.mark.exhaustive
def test_a_wrong_fusion_is_seen():
    """Whether it is there depends on the version; the memory makes it certain."""
    env = {**os.environ, "MALLOC_PERTURB_": "165", "XLA_FLAGS": ""}
    subprocess.run([sys.executable, "-c", FUSED], env=env, check=True)


@pytest.mark.exhaustive
def test_a_process_can_be_checked_as_a_whole():
    code = inspect.cleandoc(
        """
        import jax.numpy as jnp
        import hotk
        hotk.hvp(lambda x: jnp.sum(x**3), jnp.ones(2), jnp.ones(2))
        """
    )
    env = {**os.environ, "HOTK_VERIFY": "print"}
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True
    )
    assert b"by derivatives" in run.stderr


def test_where_plain_jax_is_nan_nothing_is_said():
    """A power that the program does not know has a NaN in its fourth derivative."""
    with hotk.testing.verified() as report:
        found = hotk.derivatives(lambda x, c: x**c, 0.0, 1.0, 3.0, order=4)
    assert [float(d) for d in found] == [0, 0, 0, 6, 0]
    assert any("plain JAX is NaN" in why for why in report.reasons)
