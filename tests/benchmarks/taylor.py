"""Derivatives of any order, against jet, folx and nested derivatives."""

import functools
import itertools
import math
import time
from collections.abc import Iterator

import folx
import jax
import jax.numpy as jnp
from jax.experimental.jet import jet

import hotk
from tests.benchmarks import subjects
from tests.benchmarks.interleaved import compare
from tests.benchmarks.subjects import normal
from tests.benchmarks.table import Row, of_ratio, run


ORDER = 6
SUBJECTS = {
    "Rosenbrock n=1e5": functools.partial(subjects.rosenbrock, 100_000),
    "logistic regression": subjects.logistic,
    "MLP": functools.partial(subjects.perceptron, (784, 256, 256, 10)),
    "convolutional net": subjects.convolutional,
    "recurrent net": subjects.recurrent,
    "transformer block": subjects.transformer,
}


def network(depth: int = 4, width: int = 128, batch: int = 128):
    """Make a tanh network from 16 numbers to one, as a function of its inputs."""
    sizes = (16, *(width,) * depth, 1)
    pairs = list(itertools.pairwise(sizes))
    weights = [normal(i, a, b) / math.sqrt(a) for i, (a, b) in enumerate(pairs)]

    def f(x):
        for w in weights[:-1]:
            x = jnp.tanh(x @ w)
        return x @ weights[-1]

    return f, normal(10, batch, 16), normal(11, batch, 16)


def nested(f, order):
    """Return the derivative of an order along a direction, by as many `jvp`s."""

    def last(x, v):
        along = lambda g: lambda x: jax.jvp(g, (x,), (v,))[1]
        return functools.reduce(lambda g, _: along(g), range(order), f)(x)

    return last


def built(function, *at) -> float:
    """Return the seconds of tracing, lowering and compiling."""
    start = time.process_time()
    jax.jit(function).lower(*at).compile()
    return time.process_time() - start


def along_a_direction() -> Iterator[Row]:
    """Compare the sixth derivative of a network along a direction."""
    f, x, v = network()

    def by_jet(x, v):
        zeros = [jnp.zeros_like(v)] * (ORDER - 1)
        return jet(f, (x,), ([v, *zeros],))[1][-1]

    ours = hotk.derivatives.prepare(f, x, v, order=ORDER)
    theirs, deep = jax.jit(by_jet), jax.jit(nested(f, ORDER))
    note = f"{ours.info.equations} equations"
    ratio = compare(lambda: ours(x, v), lambda: theirs(x, v), rounds=9)
    yield of_ratio("6 derivatives of an MLP / jet", ratio, 0.6, note)
    ratio = compare(lambda: ours(x, v), lambda: deep(x, v), rounds=9)
    yield of_ratio("6 derivatives of an MLP / the sixth by nested jvp", ratio)
    yield Row("6 derivatives of an MLP: equations", ours.info.equations, 600)
    name = "6 derivatives of an MLP, build time / nested jvp"
    pairs = []
    for _ in range(5):
        hotk.clear_cache()
        ours = built(lambda x, v: hotk.derivatives(f, x, v, order=ORDER), x, v)
        pairs.append((ours, built(nested(f, ORDER), x, v)))
    ratios = sorted(a / b for a, b in pairs)
    note = f"{pairs[0][0]:.2g} s / {pairs[0][1]:.2g} s of CPU"
    yield Row(name, ratios[2], 0.4, (ratios[1], ratios[3]), note)


def curvature() -> Iterator[Row]:
    """Compare second derivatives along directions with two forward passes."""
    nested = hotk.FORWARD_OVER_FORWARD
    for name, make in SUBJECTS.items():
        f, x, *args = make()
        v = jax.tree.map(lambda a: jnp.full_like(a, 0.1), x)
        series, forms = (
            hotk.quadratic_form.prepare(f, x, v, *args, mode=mode)
            for mode in (hotk.Taylor(), nested)
        )
        calls = (functools.partial(form, x, v, *args) for form in (series, forms))
        ratio = compare(*calls, rounds=9)
        yield of_ratio(f"quadratic_form, {name} / forward over forward", ratio, 1.0)
    f, x = scalar_network(100), normal(12, 100)
    series, forms = (
        hotk.hessian_diagonal.prepare(f, x, mode=mode)
        for mode in (hotk.Taylor(), nested)
    )
    name = "hessian_diagonal, MLP D=100 / forward over forward"
    yield of_ratio(name, at(x, series, forms), 1.0)


def with_the_order() -> Iterator[Row]:
    """Compare orders 4, 8 and 16: in order^2, 4 is the most that a doubling costs."""
    f, x, v = network()
    made = [hotk.derivatives.prepare(f, x, v, order=k) for k in (4, 8, 16)]
    for few, many, name in ((0, 1, "8 / 4"), (1, 2, "16 / 8")):
        calls = (functools.partial(made[i], x, v) for i in (many, few))
        ratio = compare(*calls, rounds=5)
        note = f"{made[many].info.equations} / {made[few].info.equations} equations"
        yield of_ratio(f"order {name} of an MLP", ratio, 4.0, note)


def at(x, ours, theirs):
    """Compare two functions of a point."""
    partial = functools.partial
    return compare(partial(ours, x), partial(theirs, x), rounds=9)


def dense(f):
    """Return the Laplacian by the trace of a dense Hessian."""
    return lambda x: jnp.trace(jax.hessian(f)(x))


def by_products(f):
    """Return the Laplacian by mapped Hessian-vector products."""

    def laplacian(x):
        product = lambda v: jnp.sum(v * jax.jvp(jax.grad(f), (x,), (v,))[1])
        directions = jnp.eye(x.size, dtype=x.dtype).reshape(-1, *x.shape)
        return jnp.sum(jax.vmap(product)(directions))

    return laplacian


def temporary(function, *at) -> int:
    """Return the bytes of intermediates of a compiled function."""
    return function.lower(*at).compile().memory_analysis().temp_size_in_bytes


def layers(n: int):
    """Make the weights of a network n-128-128-128-1."""
    pairs = list(itertools.pairwise((n, 128, 128, 128, 1)))
    return [normal(i, a, b) / math.sqrt(a) for i, (a, b) in enumerate(pairs)]


def collapsed_by_hand(n: int):
    """Return the Laplacian of that network, as its formula is written."""
    weights = layers(n)

    def laplacian(x):
        value, slopes, sum_ = x @ weights[0], weights[0], jnp.zeros(128)
        for w in weights[1:]:
            y = jnp.tanh(value)
            first, second = 1 - y**2, -2 * y * (1 - y**2)
            sum_ = first * sum_ + second * jnp.sum(slopes**2, axis=0)
            value, slopes, sum_ = y @ w, (first * slopes) @ w, sum_ @ w
        return sum_[0]

    return laplacian


def scalar_network(n: int):
    """Make a tanh network n-128-128-128-1 of one point."""
    weights = layers(n)

    def f(x):
        for w in weights[:-1]:
            x = jnp.tanh(x @ w)
        return (x @ weights[-1])[0]

    return f


def laplacians() -> Iterator[Row]:
    """Compare the Laplacian of networks with the trace of a Hessian and with folx."""
    batch = 64
    for n, goal in ((10, None), (100, 0.40)):
        f, x = scalar_network(n), normal(12, batch, n)
        name = f"Laplacian, MLP D={n}, batch {batch}"
        ours = jax.jit(jax.vmap(lambda x, f=f: hotk.laplacian(f, x)))
        hessian = jax.jit(jax.vmap(dense(f)))
        forward = folx.forward_laplacian(f)
        theirs = jax.jit(jax.vmap(lambda x, g=forward: g(x).laplacian))
        ratio = at(x, ours, hessian)
        yield of_ratio(f"{name} / trace(jax.hessian)", ratio, goal)
        ratio = at(x, ours, theirs)
        yield of_ratio(f"{name} / folx", ratio, 1.05)
        if goal is not None:
            bytes_ = temporary(ours, x), temporary(hessian, x)
            note = f"{bytes_[0]} B / {bytes_[1]} B"
            name = f"{name}, memory / trace(jax.hessian)"
            yield Row(name, bytes_[0] / bytes_[1], 1 / 200, None, note)
            hand = jax.jit(jax.vmap(collapsed_by_hand(n)))
            name = f"Laplacian, MLP D={n}, batch {batch} / collapsed by hand"
            yield of_ratio(name, at(x, ours, hand), 1.05)


def hard_programs():
    """Return functions of matrices for which other packages fall back or fail."""
    weights = normal(1, 16, 16) / 4

    def recurrent(x):
        step = lambda c, row: (jnp.tanh(c @ weights + row), None)
        return jnp.sum(jax.lax.scan(step, jnp.zeros(16), x)[0])

    def attention(x):
        q, k, v = (x @ normal(i, 16, 16) / 4 for i in range(3))
        return jnp.sum(jax.nn.softmax(q @ k.T / 4) @ v)

    def slater(x):
        return jnp.linalg.slogdet(jnp.tanh(x @ weights) + jnp.eye(16))[1]

    return {
        "scan": (recurrent, 8),
        "attention": (attention, 8),
        "slogdet": (slater, 16),
    }


def through_hard_programs() -> Iterator[Row]:
    """Compare Laplacians through loops, attention and determinants."""
    for name, (f, rows) in hard_programs().items():
        x = normal(5, rows, 16)
        ours, theirs = (
            jax.jit(functools.partial(hotk.laplacian, f)),
            jax.jit(by_products(f)),
        )
        ratio = at(x, ours, theirs)
        difference = abs(float(ours(x) / theirs(x)) - 1)
        note = f"relative difference {difference:.0e}"
        yield of_ratio(f"Laplacian, {name} / mapped hvp", ratio, 0.6, note)


def slater_jastrow(electrons: int = 20, width: int = 32):
    """Make the logarithm of a wavefunction: two determinants, and all pairs."""
    sizes = ((4, width), (width, width), (width, width), (width, electrons))
    w, *layers, last = (
        normal(i, a, b) / math.sqrt(a) for i, (a, b) in enumerate(sizes)
    )
    half = electrons // 2

    def f(x):
        r = jnp.linalg.norm(x, axis=1, keepdims=True)
        h = jnp.tanh(jnp.concatenate([x, r], 1) @ w)
        for layer in layers:
            h = h + jnp.tanh(h @ layer)
        phi = (h @ last) * jnp.exp(-r)
        blocks = (phi[:half, :half], phi[half:, half:])
        slater = sum(jnp.linalg.slogdet(block)[1] for block in blocks)
        apart = jnp.sum((x[:, None] - x[None]) ** 2, -1)
        pairs = jnp.sqrt(apart + jnp.eye(electrons))
        return slater + jnp.sum(jnp.triu(pairs / (1 + pairs) - jnp.exp(-pairs), 1))

    return f


def of_electrons() -> Iterator[Row]:
    """Compare Laplacians of a function whose parts depend on few electrons each."""
    f, x = slater_jastrow(), normal(3, 16, 20, 3)
    ours = jax.jit(jax.vmap(lambda x: hotk.laplacian(f, x)))
    # Not beside mapped products, which hang in the two threads of two cores.
    name = "Laplacian, Slater-Jastrow of 20 electrons"
    for title, options in (("folx", {}), ("folx, sparse", {"sparsity_threshold": 6})):
        forward = folx.forward_laplacian(f, **options)
        theirs = jax.jit(jax.vmap(lambda x, g=forward: g(x).laplacian))
        difference = float(jnp.max(jnp.abs(ours(x) / theirs(x) - 1)))
        note = f"relative difference {difference:.0e}"
        yield of_ratio(f"{name} / {title}", at(x, ours, theirs), 1.0, note)


def biharmonics() -> Iterator[Row]:
    """Compare biharmonics in five dimensions with nested traces."""
    f, x = scalar_network(5), normal(13, 64, 5)
    nested = jax.jit(jax.vmap(dense(dense(f))))
    exact = jax.jit(jax.vmap(lambda x: hotk.biharmonic(f, x)))
    ratio = at(x, exact, nested)
    yield of_ratio("biharmonic, MLP D=5, batch 64 / nested", ratio, 0.35)
    keys = jax.random.split(jax.random.key(0), 64)
    estimate = lambda x, key: hotk.estimate.biharmonic(f, x, key, samples=4).value
    random = jax.jit(jax.vmap(estimate))
    ratio = compare(lambda: random(x, keys), lambda: nested(x), rounds=9)
    yield of_ratio("the same, 4 random directions / nested", ratio, 0.15)


def in_many_dimensions() -> Iterator[Row]:
    """Estimate a Laplacian in 100 000 dimensions."""
    n = 100_000
    x = jnp.linspace(-1, 1, n)
    f = lambda x: jnp.sum(jnp.sin(x)) + jnp.sum(x[1:] * x[:-1]) * x[0]
    exact = -jnp.sum(jnp.sin(x)) + 2 * x[1]
    found = hotk.estimate.laplacian(f, x, jax.random.key(0), samples=16, block_size=4)
    off = float(jnp.abs(found.value - exact) / found.error)
    directions = jnp.ones((4, n), x.dtype)
    prepared = hotk.derivatives.prepare(f, x, directions, order=2, batched=True)
    yield Row("Laplacian in 1e5 dimensions: errors off", off, 3.0)
    peak = prepared.info.peak_bytes / x.nbytes
    yield Row("the same: peak memory / the point, 4 directions at once", peak)


def measure() -> Iterator[Row]:
    """Measure all of it."""
    yield from along_a_direction()
    yield from curvature()
    yield from with_the_order()
    yield from laplacians()
    yield from through_hard_programs()
    yield from of_electrons()
    yield from biharmonics()
    yield from in_many_dimensions()


if __name__ == "__main__":
    run(str(__doc__), measure)
