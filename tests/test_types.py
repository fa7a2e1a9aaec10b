"""What an editor shows: the types of results, as pyright infers them.

And that it marks nothing in the examples of the pages, except what the annotations of
other libraries make it mark.
"""

import doctest
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.offenders import none
from tests.test_docs import PAGES


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
    "hotk.sparse_hessian(f, x)": "SparseMatrix",
    "hotk.sparse_jacobian(with_aux, x, has_aux=True)": "tuple[SparseMatrix, Unknown]",
    "fit": "Fit[dict[str, Array]]",
    'fit.standard_errors["a"]': "Array",
    "fit.distribution.mode": "dict[str, Array]",
    "hotk.laplace_approximation(f, x)": "NormalApproximation[Array]",
    'hotk.laplace_approximation(loss, tree).standard_errors["a"]': "Array",
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


# The blocks of a page are one session: they define functions anew, show values, and
# read what a loop over a range has set. Of a missing library nothing is known.
OF_A_PAGE = {
    "reportMissingImports": False,
    "reportPossiblyUnboundVariable": False,
    "reportRedeclaration": False,
    "reportUnusedExpression": False,
}
# Parts of messages that only the annotations of other libraries cause.
OF_OTHERS = {
    # diffrax: the values of a solution may be `None`
    "docs/howto/diffrax.md": ['Operator "-" not supported for "None"'],
    # flax: `apply` may return a tuple, `Dropout` may have no keys
    # and `nnx.split` a tuple with an unpacked one inside, which mypy refuses
    "docs/howto/flax.md": [
        "softmax_cross_entropy_with_integer_labels",
        '"count" is not a known attribute of "None"',
        "Variadic tuple unpacking requires a star target",
    ],
    # haiku: functions that are not annotated
    "docs/howto/haiku.md": ["hk.TransformedWithState? has no attribute"],
    # laplax: strings for members of its enumerations, an argument with a default
    "docs/migrate/laplace.md": [
        'parameter "loss_fn" of type "LossFn"',
        'parameter "curv_type" of type "CurvApprox"',
        "Expected 1 more positional argument",
    ],
    # optimistix: a solver is generic, and its parameters are not inferred
    "docs/migrate/optimistix.md": ['Need type annotation for "solver"'],
    # SciPy: `jac` is a string as its default is; `eigsh`, `brentq` may return tuples
    "docs/migrate/scipy.md": ['parameter "jac" of type "str"'],
    "docs/rules.md": ["RootResults"],
    "docs/recipes.md": [
        'attribute "round" for class "tuple[',
        # optax: `apply_updates` returns a tree of any kind
        'Argument of type "Params"',
    ],
    # JAX: an array has a `Sharding`, of which only one kind has a `spec`
    "docs/sharding.md": ['attribute "spec" for class "Sharding"'],
}


def said_by_pyright(folder, settings):
    """Return what pyright says of the files in a folder, or skip the test."""
    pyright = Path(sys.executable).with_name("pyright")
    if not pyright.exists() and shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    # beside the tests, so that `hotk` is this one
    (folder / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT)], **settings})
    )
    command = [pyright if pyright.exists() else "pyright", "--outputjson"]
    command += ["--pythonpath", sys.executable, "-p", folder]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if not run.stdout.startswith("{"):
        pytest.skip(f"pyright does not run here: {run.stderr[-200:]}")
    return json.loads(run.stdout)["generalDiagnostics"]


@pytest.mark.exhaustive
def test_an_editor_shows_what_a_call_returns(tmp_path):
    lines = [f"reveal_type({call})" for call in SHOWN] + list(REFUSED)
    (tmp_path / "user.py").write_text(SETUP + "\n".join(lines))
    found = {}
    first = SETUP.count("\n")
    for said in said_by_pyright(tmp_path, {"reportUnusedExpression": False}):
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


def session(page):
    """Return the examples of a page, each at its line; without those that raise."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * text.count("\n")
    lines[0] = "import hotk, jax; import jax.numpy as jnp; import numpy as np"
    as_lines = lambda found: "\n" * found[0].count("\n")
    text = re.sub(r"(?ms)^```\w+ title=.*?^```$", as_lines, text)  # files
    text = re.sub(r"(?m)^ *```.*$", "", text)
    for example in doctest.DocTestParser().get_examples(text):
        if example.exc_msg is None:
            source = example.source.splitlines()
            lines[example.lineno : example.lineno + len(source)] = source
    return "\n".join(lines)


def said_by_mypy(folder):
    """Return what mypy says of the files in a folder, or skip the test."""
    pytest.importorskip("mypy", exc_type=ImportError)
    command = [sys.executable, "-m", "mypy", "--output=json", "--no-incremental"]
    command += ["--ignore-missing-imports", "--allow-redefinition"]
    command += ["--disable-error-code=no-redef", *sorted(folder.glob("*.py"))]
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not run.stderr, run.stderr
    said = [json.loads(line) for line in run.stdout.splitlines()]
    return [{**a, "line": int(a["line"])} for a in said if a["severity"] == "error"]


def marked_on_pages(folder, checker):
    """Return what a type checker says of the pages, but for what others cause."""
    names = {f"page_{i}": str(page.relative_to(ROOT)) for i, page in enumerate(PAGES)}
    for name, page in zip(names, PAGES, strict=True):
        (folder / f"{name}.py").write_text(session(page), encoding="utf-8")
    if checker == "pyright":
        said = [
            {**a, "line": a["range"]["start"]["line"] + 1}
            for a in said_by_pyright(folder, OF_A_PAGE)
        ]
    else:
        said = said_by_mypy(folder)
    marked = []
    for a in said:
        page, message = names.get(Path(a["file"]).stem, a["file"]), a["message"]
        if not any(part in message for part in OF_OTHERS.get(page, [])):
            marked.append(f"{page}:{a['line']}: {message.splitlines()[0]}")
    return marked


@pytest.mark.exhaustive
@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_a_type_checker_marks_nothing_on_the_pages(tmp_path, checker):
    none(
        marked_on_pages(tmp_path, checker),
        "A type checker marks nothing in the examples of a page. Mend the annotation "
        "of hotk, or the example. What another library causes stands in `OF_OTHERS`.",
    )
