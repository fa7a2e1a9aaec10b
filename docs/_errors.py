"""Write `docs/errors.md`: the messages of the most common mistakes.

    python docs/_errors.py

Every statement below is run as a user runs it, and what it prints is written down; the
tests compare the page with what is printed today.
"""

import ast
import contextlib
import io
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import hotk


HEAD = """\
# Error messages

The most common mistakes, and what hotk prints for each (with JAX {jax}). Every message
says where the error is, what was expected, what was given, and how to fix it.
"""

PARTS = [
    (
        "Called like `jax.hessian`",
        "An operator takes the function and the point in one call.",
        """
def loss(w, rows, targets):
    return jnp.mean((rows @ w - targets) ** 2)
rows, targets = jnp.arange(12.0).reshape(4, 3), jnp.ones(4)
w = jnp.zeros(3)
hotk.hessian(loss)
hotk.hvp(loss, w)
hotk.hessian(loss, w, rows, targets)
""",
    ),
    (
        "Wrong shapes",
        "A direction has the structure and shapes of the point. Nothing is broadcast.",
        """
hotk.hvp(loss, w, jnp.ones(4), rows, targets)
hotk.hvp(loss, w, 1.0, rows, targets)
params = {"w": jnp.zeros(3), "b": jnp.zeros(())}
affine = lambda p: jnp.sum((rows @ p["w"] + p["b"]) ** 2)
hotk.hvp(affine, params, {"w": jnp.ones(3)})
hotk.hvp(affine, params, {"w": jnp.ones((3, 1)), "b": jnp.ones(())})
""",
    ),
    (
        "A missing or extra batch dimension",
        "Several directions need a leading axis in each leaf, and `batched=True`.",
        """
hotk.hvp(loss, w, jnp.eye(3), rows, targets)
hotk.hvp(loss, w, jnp.eye(3), rows, targets, batched=True)[0]
hotk.hvp(loss, w, jnp.ones(3), rows, targets, batched=True)
prepared = hotk.hvp.prepare(loss, w, w, rows, targets)
prepared(w, w, rows[0], targets[0])
""",
    ),
    (
        "Integers",
        "Leaves that are not floating-point or complex pass through.",
        """
hotk.gradient(lambda x: jnp.sum(x**2), jnp.arange(3))
hotk.gradient(lambda x: x**2, 3)
hotk.gradient(lambda p: p["n"] * jnp.sum(p["x"] ** 2), {"x": jnp.ones(2), "n": 3})
""",
    ),
    (
        "A loss that is not a scalar",
        "`gradient` and `quadratic_form` need a function that returns one real number.",
        """
residual = lambda w: rows @ w - targets
hotk.quadratic_form(residual, w, w)
hotk.gradient(lambda w: (jnp.sum(residual(w) ** 2), "aux"), w)
hotk.gradient(lambda w: (jnp.sum(residual(w) ** 2), w), w)
hotk.gradient(lambda w: (jnp.sum(residual(w) ** 2), w), w, has_aux=True)[1]
hotk.gradient(lambda w: print("no return"), w)
""",
    ),
    (
        "NumPy arrays changed in place",
        "What the function reads is read again in each call.",
        """
scales = np.array([1.0, 2.0, 3.0], dtype=np.float32)
scaled = lambda x: jnp.sum(scales * x**2)
hotk.hvp(scaled, jnp.ones(3), jnp.ones(3))
scales *= 10
hotk.hvp(scaled, jnp.ones(3), jnp.ones(3))
hotk.gradient(lambda x: np.sin(x).sum(), jnp.ones(3))
""",
    ),
    (
        "A model with parts that are not arrays",
        "They pass through. A direction may have anything, or `None`, in their place.",
        """
import equinox as eqx
model = eqx.nn.MLP(3, "scalar", 4, 1, key=jax.random.key(0))
fit = lambda model: jnp.mean(jax.vmap(model)(rows) ** 2)
slope = hotk.gradient(fit, model)
slope.activation is None
hotk.HessianOperator(fit, model)
product = hotk.hvp(fit, model, slope)
""",
    ),
    (
        "The dense Hessian of a large network",
        "A result that does not fit in memory raises before it is allocated.",
        """
layers = {"in": jnp.zeros((784, 300)), "out": jnp.zeros((300, 10))}
big = lambda p: jnp.sum(jnp.tanh(jnp.ones(784) @ p["in"]) @ p["out"])
hotk.set_memory_budget(8 * 2**30)
hotk.hessian(big, layers)
hotk.HessianOperator(big, layers).matrix()
""",
    ),
    (
        "A loop without a fixed length",
        "Without a reverse mode another mode is used; `info.why` gives the reason.",
        """
halved = lambda x: jax.lax.while_loop(lambda t: t[0] > 1.0, lambda t: t / 2, x)
form = lambda x: jnp.sum(halved(x) ** 2)
hotk.hessian(form, jnp.array([3.0, 1.0]))
hotk.hessian.prepare(form, jnp.array([3.0, 1.0])).info.why
hotk.hessian(form, jnp.ones(2), mode=hotk.FORWARD_OVER_REVERSE)
""",
    ),
    (
        "NaN at zero",
        "JAX's gradient of a norm is NaN at zero. That of `hotk.safe.norm` is zero.",
        """
norm = lambda x: jnp.sqrt(jnp.sum(x**2))
hotk.gradient(norm, jnp.zeros(2))
print(hotk.locate_nan(hotk.gradient, norm, jnp.zeros(2)))
hotk.gradient(lambda x: hotk.safe.norm(x), jnp.zeros(2))
""",
    ),
    (
        "Another dtype",
        "A direct call compiles for the new dtype. A `Prepared` raises.",
        """
prepared(w.astype(jnp.float16), w, rows, targets)
hotk.hvp(loss, w, w.astype(jnp.float16), rows, targets)
with jax.enable_x64(True):
    prepared(jnp.zeros(3), jnp.zeros(3), rows, targets)
""",
    ),
    (
        "Python control flow on a traced value",
        "`if` needs a concrete value. Use `jnp.where` or `jax.lax.cond`.",
        """
def clipped(x):
    if x[0] > 0:
        return jnp.sum(x**2)
    return jnp.sum(x**4)
hotk.hvp(clipped, jnp.ones(2), jnp.ones(2))
hotk.hvp.prepare(clipped, jnp.ones(2), jnp.ones(2))
""",
    ),
    (
        "An optimizer without its objective",
        "A second-order step needs the objective, not only its gradient.",
        """
newton = hotk.optim.newton_cg()
state = newton.init(w)
newton.update(w, state, w)
newton.update(w, state)
hotk.optim.minimize(loss, w, newton, args=(rows, targets))
hotk.optim.minimize(loss, w, hotk.optim.newton_cg, args=(rows, targets))
""",
    ),
]


def transcript(source, names):
    """Run statements one by one, and write them down with what they print."""
    written = []
    for node in ast.parse(source).body:
        lines = ast.get_source_segment(source, node).splitlines()
        written += [f"{'...' if i else '>>>'} {line}" for i, line in enumerate(lines)]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            try:
                sys.displayhook = show
                exec(compile(ast.Interactive([node]), "<errors>", "single"), names)
            except Exception as error:  # whatever it is: it is shown
                print("Traceback (most recent call last):\n  ...")
                print("".join(traceback.format_exception_only(error)).rstrip())
            finally:
                sys.displayhook = sys.__displayhook__
        written += printed.getvalue().splitlines()
    return "\n".join(written)


def show(value):
    """Print a value as a terminal does."""
    if value is not None:
        print(repr(value))


def page():
    """Return the page as it is today."""
    names = {"hotk": hotk, "jax": jax, "jnp": jnp, "np": np}
    written = [HEAD.format(jax=jax.__version__)]
    budget = hotk.memory_budget()
    for title, prose, source in PARTS:
        text = transcript(source.strip("\n"), names)
        written.append(f"## {title}\n\n{prose}\n\n```python\n{text}\n```\n")
    hotk.set_memory_budget(budget)
    return "\n".join(written)


if __name__ == "__main__":
    Path(__file__).with_name("errors.md").write_text(page(), encoding="utf-8")
