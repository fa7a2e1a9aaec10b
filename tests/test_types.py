"""What an editor shows: the types of results, as pyright infers them."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[1]
SETUP = """
from typing import Any
import jax, jax.numpy as jnp, numpy as np
import hotk

def f(x: jax.Array) -> jax.Array: return jnp.sum(x**4)
def g(x: jax.Array) -> jax.Array: return x**3
def several(x: jax.Array) -> dict[str, jax.Array]: return {"cubes": x**3}
def loss(tree: dict[str, jax.Array]) -> jax.Array: return jnp.sum(tree["a"] ** 4)
def line(p: Any, x: jax.Array) -> jax.Array: return p["a"] * x
def with_aux(x: jax.Array) -> tuple[jax.Array, str]: return jnp.sum(x), "aux"

x, v, tree = jnp.ones(3), jnp.ones(3), {"a": jnp.ones(3)}
def any_tree() -> dict[str, Any]: return tree
fit = hotk.statistics.fit(line, x, v, {"a": 1.0})
product = hotk.hvp.prepare(f, x, v)
H = hotk.HessianOperator(f, x)
T = hotk.HessianOperator(loss, tree)
G = hotk.GGNOperator(g, f, x)
K = hotk.KFACOperator(g, hotk.curvature.SquaredError(x), x)
k = hotk.optim.kfac(K).init(tree)
"""
# jaxtyping's arrays are those of JAX to a type checker, and its trees anything.
SHOWN = {
    "hotk.gradient(f, x)": "Array",
    "hotk.gradient(f, np.ones(3))": "Array",
    "hotk.gradient(loss, tree)": "dict[str, Array]",
    'hotk.gradient(loss, {"a": 1.0})': "dict[str, Array]",
    "hotk.gradient(f, [1.0, 2.0])": "list[Array]",
    "hotk.gradient(loss, any_tree())": "dict[str, Any]",
    "hotk.gradient(with_aux, x, has_aux=True)": "tuple[Unknown, Unknown]",
    "hotk.value_and_gradient(f, 2.0)": "tuple[Array, Array]",
    "hotk.value_and_gradient(loss, tree)": "tuple[Array, dict[str, Array]]",
    "hotk.value_and_gradient(with_aux, x, has_aux=True)": (
        "tuple[tuple[Array, Unknown], Unknown]"
    ),
    "hotk.jvp(g, x, v)": "Array",
    "hotk.jvp(loss, tree, tree)": "Array",
    "hotk.derivatives(g, x, v, order=3)": "list[Array]",
    "hotk.derivatives(several, x, v, order=3)": "Unknown",
    "hotk.partial(loss, tree, 'aa')": "Array",
    "hotk.jacobian(g, x)": "Array",
    "hotk.jacobian(several, x)": "Unknown",
    "hotk.hvp(f, x, v)": "Array",
    "hotk.hvp(loss, tree, tree)": "dict[str, Array]",
    "hotk.hvp(several, x, v)": "Unknown",
    "hotk.hvp(f, x, x, 2.0, argnums=(0, 1))": "Unknown",
    "hotk.hessian(f, x)": "Array",
    "hotk.hessian(loss, tree)": "Unknown",
    "hotk.value_gradient_and_hessian(f, x)": "tuple[Array, Array, Array]",
    "hotk.quadratic_form(f, x, v)": "Array",
    "hotk.laplacian(f, x)": "Array",
    "product(x, v)": "Array",
    "hotk.value_and_gradient.prepare(f, x)(x)": "tuple[Array, Array]",
    "hotk.hvp.prepare(loss, tree, tree)": "Prepared[Unknown]",
    "hotk.hessian.prepare(f, jax.ShapeDtypeStruct((3,), float))(x)": "Array",
    "fit": "Fit[dict[str, Array]]",
    'fit.standard_errors["a"]': "Array",
    "fit.distribution.mode": "dict[str, Array]",
    "H @ v": "Array",
    "H @ H": "AbstractOperator[Array]",
    "T @ tree": "dict[str, Array]",
    "H.at(x)": "HessianOperator[Array]",
    "H.solve(v).x": "Array",
    "T.solve(tree).x": "dict[str, Array]",
    "T.gradient": "dict[str, Array]",
    "(2 * T + T).diagonal()": "dict[str, Array]",
    "G.solve(v).x": "Array",
    "hotk.optim.minimize(f, x).x": "Array",
    "hotk.optim.minimize(f, 3.0).x": "Array",
    "hotk.linop.eigh(T, 1).vectors": "dict[str, Array]",
    'hotk.optim.minimize(loss, {"a": 1.0}).x': "dict[str, Array]",
    "hotk.optim.minimize(loss, tree)": "Minimum[dict[str, Array]]",
    "hotk.optim.scale_by_newton_cg().init(tree)": "NewtonCGState",
    "hotk.optim.newton_cg(0.1).init(tree)[0]": "NewtonCGState",
    "hotk.optim.kfac(K).init(tree).damping": "Array",
    "hotk.optim.kfac(K).update(tree, k, tree)[0]": "dict[str, Array]",
}
REFUSED = {
    "hotk.hvp(f, x, v, block=2)": "No overloads",
    "hotk.optim.minimize(f, x, steps=3)": "No overloads",
    "H.solve(v, atol=0.1)": 'No parameter named "atol"',
}


@pytest.mark.exhaustive
def test_an_editor_shows_what_a_call_returns(tmp_path):
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists() and shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    lines = [f"reveal_type({call})" for call in SHOWN] + list(REFUSED)
    path = tmp_path / "user.py"
    path.write_text(SETUP + "\n".join(lines))
    # beside the tests, so that `hotk` is this one
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT)], "reportUnusedExpression": False})
    )
    command = [pyright if pyright.exists() else "pyright", "--outputjson"]
    command += ["--pythonpath", sys.executable, "-p", tmp_path]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if not run.stdout.startswith("{"):
        pytest.skip(f"pyright does not run here: {run.stderr[-200:]}")
    found = {}
    first = SETUP.count("\n")
    for said in json.loads(run.stdout)["generalDiagnostics"]:
        found.setdefault(said["range"]["start"]["line"] - first, said["message"])
    shown = [found.pop(i, "") for i in range(len(lines))]
    assert not found, f"the code of the test is not right: {found}"
    types = [text.partition('" is ')[2].strip('"') for text in shown]
    got = dict(zip(SHOWN, types[: len(SHOWN)], strict=True))
    assert got == SHOWN
    for text, (call, expected) in zip(
        shown[len(SHOWN) :], REFUSED.items(), strict=True
    ):
        assert expected in text, call
