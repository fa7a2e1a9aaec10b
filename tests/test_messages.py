"""What hotk says where JAX has no derivative, word for word.

The texts are in `tests/golden`. After a change of one on purpose, write them anew with
`python -m tests.test_messages` and read the difference.
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.scipy.special import gammainc

import hotk


GOLDEN = Path(__file__).parent / "golden"
X = np.array([1.0, 2.0])


@jax.custom_vjp
def sine(x):
    return jnp.sin(x)


sine.defvjp(lambda x: (sine(x), jnp.cos(x)), lambda cos, u: (cos * u,))


@jax.custom_vjp
def clipped(x):
    return 1.0 * x


clipped.defvjp(lambda x: (clipped(x), None), lambda _, u: (jnp.clip(u, -1, 1),))


def layers(x):
    return jnp.sum(sine(2.0 * x))


def clipping(x):
    return jnp.sum(clipped(x) ** 2)


def weighted(q):
    return q["w"] ** 2 * jnp.sum(q["a"]) * q["n"]


def cubes(x):
    return jnp.sum(x**3)


def loop(x):
    step = lambda s: (s[0] + 1, jnp.sin(s[1]) * jnp.sum(x))
    return jnp.sum(jax.lax.while_loop(lambda s: s[0] < 5, step, (0, x))[1])


def incomplete_gamma(a):
    return gammainc(a, 2.0)


def drawn(a):
    return jax.random.gamma(jax.random.key(0), a)


def on_the_host(x):
    return jnp.sum(jax.pure_callback(np.sin, x, x))


def kernel(x):
    def write(source, target):
        target[...] = jnp.sin(source[...])

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jnp.sum(pl.pallas_call(write, out_shape=shape, interpret=True)(x))


def chosen(operator, f, *at, **options):
    info = operator.prepare(f, *at, **options).info
    return f"mode: {info.mode}\nwhy: {info.why}\nrules: {'; '.join(info.rules) or '-'}"


Q = {"w": 1.0, "n": 3, "a": np.ones(2)}
ROR = hotk.REVERSE_OVER_REVERSE
CASES = {
    "custom_vjp": lambda: chosen(hotk.hvp, layers, X, X),
    "custom_vjp_forced": lambda: chosen(hotk.hvp, layers, X, X, mode=ROR),
    "clipping_forward": lambda: hotk.jvp(clipping, X, X, mode=hotk.Forward()),
    "clipping": lambda: chosen(hotk.hvp, clipping, X, X),
    "integer_leaf_in_v": lambda: hotk.hvp(weighted, Q, {**Q, "n": 1.0}),
    "missing_leaf_in_v": lambda: hotk.hvp(weighted, Q, {"w": 1.0, "a": np.ones(2)}),
    "integer_v": lambda: hotk.hvp(cubes, jnp.ones(3), jnp.ones(3, int)),
    "integer_x": lambda: hotk.hvp(cubes, np.ones(3, int), np.ones(3)),
    "loop": lambda: chosen(hotk.hvp, loop, X, X),
    "loop_forced": lambda: hotk.hvp(loop, X, X, mode=ROR),
    "gammainc": lambda: hotk.second_derivative(incomplete_gamma, 1.3),
    "random_gamma": lambda: chosen(hotk.second_derivative, drawn, 1.3),
    "random_gamma_forced": lambda: hotk.second_derivative(drawn, 1.3, mode=ROR),
    "callback": lambda: hotk.hessian(on_the_host, X),
    "pallas": lambda: hotk.hessian(kernel, X),
}


def said(call):
    """Return what a call says, without folders and without the words of JAX."""
    try:
        text = str(call())
    except hotk.HotkError as error:
        text = f"{type(error).__name__}\n{error}"
    text = re.sub(r"[^\s:`(]*/(?=[\w.]+\.py)", "", text)
    text = re.sub(r"(\.py:\d+):\d+(:\d+)?", r"\1", text)
    theirs = r"^(    [\w ,]+: \w+): .*?(?=( in \S+\.py:\d+)?$)"
    return re.sub(theirs, r"\1: ...", text, flags=re.M) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_the_message_is_the_one_written_down(name):
    assert said(CASES[name]) == (GOLDEN / f"{name}.txt").read_text()


def test_every_text_belongs_to_a_case():
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_names_the_function_or_the_leaf_and_a_way_out(name):
    text = (GOLDEN / f"{name}.txt").read_text()
    if not text.split()[0].endswith("Error"):
        return
    assert re.search(r"`\w+` \(\w+\.py:\d+\)|`[vx]`", text)
    assert text.splitlines()[-1].endswith(".")


def scanned(rule):
    """Return a function whose loop makes a rule in its body, from a number of it."""

    def f(x):
        return jax.lax.scan(lambda c, m: (rule(m)(c) * c, None), x, X)[0]

    return f


def by_jvp(m):
    g = jax.custom_jvp(lambda a: a * m)
    g.defjvp(lambda p, t: (g(*p), m * t[0]))
    return g


def by_vjp(m):
    g = jax.custom_vjp(lambda a: a * m)
    g.defvjp(lambda a: (g(a), None), lambda _, u: (m * u,))
    return g


def by_hotk(m):
    g = hotk.rule.custom(lambda a: a * m)
    g.def_jvp(lambda p, t: m * t[0])
    return g


@pytest.mark.thinned(1)
@pytest.mark.parametrize("operator", [hotk.gradient, hotk.second_derivative])
@pytest.mark.parametrize("rule", [by_jvp, by_vjp])
def test_a_rule_that_keeps_an_array_of_a_loop_is_told_with_its_line(rule, operator):
    f = scanned(rule)
    with pytest.raises(hotk.ModeError, match=r"`hotk\.rule\.custom`") as caught:
        operator(f, 1.5)
    assert "loop" in str(caught.value)
    if rule is by_jvp or operator is hotk.gradient:
        assert re.search(r"rule at \S*test_messages\.py:\d+", str(caught.value))
    assert not hotk.can_differentiate(f, 1.5)
    # 1.5 -> 1 * 1.5^2 -> 2 * 1.5^4, whose second derivative is 24 * 1.5^2
    known = 8 * 1.5**3 if operator is hotk.gradient else 24 * 1.5**2
    np.testing.assert_allclose(operator(scanned(by_hotk), 1.5), known)


REMEDIES = {
    "a complex number": (
        lambda: hotk.gradient(lambda x: jax.lax.complex(x[0], x[1]), X),
        hotk.OutputError,
        r"use `hotk\.jacobian`",
    ),
    "letters for a tuple": (
        lambda: hotk.partial(lambda p: p[0] ** 2 * p[1], (1.0, 0.5), "xxt"),
        hotk.StructureError,
        r"as \(2, 1\)",
    ),
    "a log-likelihood": (
        lambda: hotk.laplace_approximation(
            lambda m: -jnp.sum((m - np.arange(3.0)) ** 2), jnp.asarray(1.0)
        ),
        hotk.NotPositiveDefiniteError,
        "Is it a log-likelihood",
    ),
    "a log-likelihood, its diagonal": (
        lambda: hotk.laplace_approximation(
            lambda m: -jnp.sum((m - X) ** 2), X, form="diagonal"
        ),
        hotk.NotPositiveDefiniteError,
        "Is it a log-likelihood",
    ),
    "a log-likelihood, its eigenvalues": (
        lambda: hotk.laplace_approximation(
            lambda m: -jnp.sum((m - X) ** 2), X, form="lanczos", prior_precision=1.0
        ),
        hotk.NotPositiveDefiniteError,
        "Is it a log-likelihood",
    ),
    "another library's loss": (
        lambda: hotk.KFACOperator(lambda p, a: a @ p, jnp.sum, np.eye(2), np.eye(2)),
        TypeError,
        r"SoftmaxCrossEntropy\(labels\)",
    ),
    "an operator as an array": (
        lambda: np.asarray(hotk.HessianOperator(cubes, X)),
        TypeError,
        r"H\.matrix\(\).*as_scipy\(H\)",
    ),
    "an operator that is not symmetric, transposed": (
        lambda: (hotk.HessianOperator(cubes, X) @ hotk.Diagonal(jnp.asarray(X))).T,
        TypeError,
        r"A\.matrix\(\)\.T",
    ),
}


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize("name", REMEDIES)
def test_a_refusal_names_what_is_meant(name):
    call, kind, text = REMEDIES[name]
    with pytest.raises(kind, match=text):
        call()


def test_a_symmetric_operator_is_its_own_transposed_one():
    H = hotk.HessianOperator(cubes, X)
    assert H.T is H
    np.testing.assert_allclose((H + H).T @ X, 2 * (H @ X))


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for name, call in CASES.items():
        (GOLDEN / f"{name}.txt").write_text(said(call))


@pytest.mark.usefixtures("as_user")
@pytest.mark.parametrize(
    "call",
    [
        lambda f, x: hotk.jvp(f, x, x),
        lambda f, x: hotk.vjp(f, x, None),
        lambda f, x: hotk.jacobian(f, x),
        lambda f, x: hotk.derivatives(f, x, x, order=2),
        lambda f, x: hotk.laplacian(f, x),
    ],
    ids=["jvp", "vjp", "jacobian", "derivatives", "laplacian"],
)
def test_a_function_without_return_is_told_so(call):
    with pytest.raises(hotk.OutputError, match="without a `return`"):
        call(lambda x: None, jnp.ones(2))
