"""Operators at a point: calls, eigenvalues, steps of Lanczos, batches, memory."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from matfree.decomp import tridiag_sym
from matfree.eig import eigh_partial as matfree_eigh

import hotk
from tests.benchmarks.interleaved import compare
from tests.benchmarks.subjects import hvp_by_hand, logistic, perceptron
from tests.benchmarks.table import Row, of_ratio, run


def lanczos_steps(steps: int = 20) -> Iterator[Row]:
    """Compare some steps with as many products."""
    subject = perceptron((784, 256, 256, 10), batch=256)
    f, x, v = subject.f, subject.x, subject.v
    operator = hotk.HessianOperator(f, x)
    by_hand = hvp_by_hand(f)

    def ours():
        return operator.eigh(5, window=steps, max_restarts=0)

    found = ours()
    products = int(found.products)
    ratio = compare(ours, lambda: by_hand(x, v), rounds=7)
    rows = [a.reshape(len(a), -1) for a in jax.tree.leaves(found.vectors)]
    gram = sum(a @ a.T for a in rows)
    far = float(jnp.max(jnp.abs(gram - jnp.eye(len(gram)))))
    note = f"{products} products in all; orthogonal to {far:.1e}"
    rest = products - steps  # those that give the residuals
    share = ratio._replace(
        median=ratio.median - rest, low=ratio.low - rest, high=ratio.high - rest
    )
    yield of_ratio(f"{steps} steps of Lanczos / one hvp, MLP", share, 25, note)


def eigenpairs() -> Iterator[Row]:
    """Compare the five largest eigenvalues with matfree's, each as cheap as it gets."""
    subject = perceptron((784, 256, 256, 10), batch=256)
    f, x, v = subject.f, subject.x, subject.v
    operator = hotk.HessianOperator(f, x)

    def theirs(count):
        decompose = matfree_eigh(tridiag_sym(count, reortho="full"))
        compiled = jax.jit(lambda h, start: decompose(h.mv, start))
        return lambda: compiled(operator, v)

    exact = theirs(150)()[0][-5:]

    def error(values):
        return float(jnp.max(jnp.abs(values - exact) / jnp.abs(exact)))

    def ours(tol, window):
        return lambda: operator.eigh(5, tol=tol, window=window)

    enough = 1e-4
    counts = [n for n in range(24, 100, 12) if error(theirs(n)()[0][-5:]) < enough]
    pairs = [(t, w) for t in (1e-2, 3e-3) for w in (18, 30, 40, 60)]
    fits = [(ours(*p)(), p) for p in pairs]
    fits = [(found.products, p) for found, p in fits if error(found.values) < enough]
    products, best = min(fits)
    ratio = compare(ours(*best), theirs(counts[0]), rounds=7)
    note = f"{products} / {counts[0]} products, errors below {enough:.0e}"
    yield of_ratio("top 5 eigenpairs / matfree, MLP, n=2.7e5", ratio, 0.5, note)


def many_directions() -> Iterator[Row]:
    """Compare 16 directions at once with 16 calls."""
    f, x = logistic()
    operator, by_hand = hotk.HessianOperator(f, x), hvp_by_hand(f)
    vectors = jax.random.normal(jax.random.key(0), (16, x.size))
    each = list(vectors)
    ratio = compare(
        lambda: operator.many(vectors), lambda: [by_hand(x, v) for v in each], rounds=9
    )
    what = "16 directions at once / 16 calls by hand, logistic 1e4 x 1e3"
    yield of_ratio(what, ratio, 0.35)


def linearized() -> Iterator[Row]:
    """Compare products of a kept linearization with those that compute it anew."""
    for name, subject in (
        ("MLP", perceptron((784, 256, 256, 10), batch=256)),
        ("logistic 1e4 x 1e3", logistic()),
    ):
        operator = hotk.HessianOperator(subject.f, subject.x)
        kept, v = operator.linearize(), jax.tree.map(jnp.ones_like, operator.like)
        ratio = compare(
            lambda v=v, kept=kept: kept @ v,
            lambda v=v, operator=operator: operator @ v,
            rounds=9,
        )
        note = f"{kept.bytes / 2**20:.3g} MiB kept"
        yield of_ratio(f"product, linearization kept / anew, {name}", ratio, None, note)


def gauss_newton() -> Iterator[Row]:
    """Compare the Gauss-Newton product with the gradient, and with one by hand."""
    subject = perceptron((784, 256, 256, 10), batch=256)
    x, v = subject.x, subject.v
    inputs = jax.random.normal(jax.random.key(1), (256, 784))
    labels = jax.random.randint(jax.random.key(2), (256,), 0, 10)

    def model(x):
        z = inputs
        for w, b in x:
            z = jnp.tanh(z @ w + b)
        return z

    loss = hotk.curvature.SoftmaxCrossEntropy(labels)

    def by_hand(x, v):
        z, tangent = jax.jvp(model, (x,), (v,))
        return jax.vjp(model, x)[1](loss.hessian_product(z, tangent))[0]

    hand = jax.jit(by_hand)
    prepared = hotk.hvp.prepare(hotk.curvature.GaussNewton(model, loss), x, v)
    ratio = compare(lambda: prepared(x, v), lambda: hand(x, v), rounds=9)
    yield of_ratio("Gauss-Newton product / by hand, MLP", ratio, None)


def diagonal_memory() -> Iterator[Row]:
    """Compare the memory of an exact diagonal with that of the matrix."""
    f, x = perceptron((8, 40, 40, 40, 8))
    operator = hotk.HessianOperator(f, x)
    n = operator.size
    lowered = jax.jit(lambda h: h.diagonal()).lower(operator)
    temporary = lowered.compile().memory_analysis().temp_size_in_bytes
    note = f"{temporary / 2**20:.3g} MiB"
    yield Row(
        f"memory of diagonal() / n x n, n={n}", temporary / (4 * n * n), 0.1, note=note
    )


def at_small_sizes() -> Iterator[Row]:
    """Compare operators of four numbers with the operators of hotk themselves."""
    a, u = jnp.linspace(0.1, 1.0, 4), jnp.ones(4)
    p, w = {"a": a, "b": jnp.array(2.0)}, {"a": u, "b": jnp.array(1.0)}
    of_array = lambda x: jnp.sum(jnp.cosh(x))
    of_dict = lambda p: jnp.sum(jnp.cosh(p["a"])) * p["b"] ** 2
    for name, f, x, v in (("one array", of_array, a, u), ("a dict", of_dict, p, w)):
        H = hotk.HessianOperator(f, x)
        product = lambda f=f, x=x, v=v: hotk.hvp(f, x, v)
        hessian = lambda f=f, x=x: hotk.hessian(f, x)
        made = compare(lambda f=f, x=x: hotk.HessianOperator(f, x), product, rounds=15)
        what = f"HessianOperator(f, x), {name} of n=4, microseconds"
        yield Row(what, made.ours * 1e6, 15)
        ratio = compare(lambda H=H: H.matrix(), hessian, rounds=15)
        yield of_ratio(f"H.matrix() / hessian, {name} of n=4", ratio, 3)
        ratio = compare(lambda H=H, v=v: H @ v, product, rounds=15)
        yield of_ratio(f"H @ v / hvp, {name} of n=4", ratio, 2)
        ratio = compare(lambda H=H, x=x: H.at(x), product, rounds=15)
        yield of_ratio(f"H.at(x) / hvp, {name} of n=4", ratio)


def in_batches() -> Iterator[Row]:
    """Compare passes over a list of batches with a loop written by hand."""
    loss = lambda w, rows: jnp.mean(jnp.logaddexp(0.0, rows @ w))
    by_hand = hvp_by_hand(loss)
    w = jnp.ones(20) / 20
    for count, rows in ((5, 64), (50, 64), (50, 2048)):
        data = np.random.default_rng(0).normal(size=(count, rows, 20))
        for name, convert in (("NumPy", np.float32), ("JAX", jnp.asarray)):
            batches = [convert(batch) for batch in data]
            H = hotk.HessianOperator.over(loss, w, batches)

            def hand(batches=batches):
                return sum(by_hand(w, w, batch) for batch in batches) / len(batches)

            ratio = compare(lambda H=H: H @ w, hand, rounds=15)
            what = f"product over {count} batches of {rows} rows, {name} / by hand"
            yield of_ratio(what, ratio, 1.5)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from at_small_sizes()
    yield from in_batches()
    yield from lanczos_steps()
    yield from eigenpairs()
    yield from many_directions()
    yield from linearized()
    yield from gauss_newton()
    yield from diagonal_memory()


if __name__ == "__main__":
    run(str(__doc__), measure)
