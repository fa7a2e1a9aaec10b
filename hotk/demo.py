"""A tour of hotk on real data, in under a minute: `python -m hotk.demo`.

Two models of the data sets that come with scikit-learn are fitted by Newton's method:
each Newton system is solved by conjugate gradients, which need the Hessian only as
`hotk.hvp`. Then come the top of the Hessian's spectrum, and what one product costs when
it is called in different ways. Needs the extra `hotk[demo]`.
"""

import functools
import importlib.util
import itertools
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PyTree

import hotk
from hotk.rule import check_backend


Layers: TypeAlias = list[tuple[Float[Array, "_ _"], Float[Array, " _"]]]
"""Weights and biases."""
Inputs: TypeAlias = Float[Array, "rows features"]
Labels: TypeAlias = Int[Array, " rows"]

DECAY = 1e-3  # weight of the penalty on the weights
MOST_STEPS, MOST_PRODUCTS = 30, 60  # Newton steps of a fit, and products for one step
SMALL_GRADIENT = 1e-4  # where a fit ends: single precision gives little more
LANCZOS_STEPS = 30


class Data(NamedTuple):
    """A data set, cut in two: rows to fit, and rows held out."""

    inputs: Inputs
    labels: Labels
    held_inputs: Inputs
    held_labels: Labels


class Bar(Protocol):
    """The progress bar, of tqdm."""

    def update(self, n: float | None = 1) -> bool | None:
        """Advance by n steps."""
        ...

    def set_postfix_str(self, s: str = "", refresh: bool = True) -> None:
        """Show a text behind the bar."""
        ...

    def write(self, s: str) -> None:
        """Print a line above the bar."""
        ...


def load(name: str) -> Data:
    """Load a data set of scikit-learn by `name`, its inputs scaled to variance 1."""
    from sklearn import datasets, model_selection  # noqa: PLC0415 (an extra)

    inputs, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    fitted, held, fit_labels, held_labels = model_selection.train_test_split(
        inputs, labels, test_size=0.2, random_state=0, stratify=labels
    )
    mean, deviation = np.mean(fitted, axis=0), np.std(fitted, axis=0) + 1e-6
    scale = lambda inputs: jnp.float32((inputs - mean) / deviation)
    fit_labels, held_labels = jnp.int32(fit_labels), jnp.int32(held_labels)
    return Data(scale(fitted), fit_labels, scale(held), held_labels)


def layers_of(*sizes: int) -> Layers:
    """Draw the weights of a network; two `sizes` make a logistic regression."""
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    return [
        (jax.random.normal(key, (a, b)) / np.sqrt(a), jnp.zeros(b))
        for key, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def logits(layers: Layers, inputs: Inputs) -> Float[Array, "rows classes"]:
    """Evaluate the network given by `layers` at `inputs`."""
    *hidden, (weights, bias) = layers
    for w, b in hidden:
        inputs = jnp.tanh(inputs @ w + b)
    return inputs @ weights + bias


def loss(layers: Layers, inputs: Inputs, labels: Labels) -> Float[Array, ""]:
    """Compute the mean cross-entropy of `labels`, and the penalty on the weights."""
    scores = jax.nn.log_softmax(logits(layers, inputs))
    right = jnp.take_along_axis(scores, labels[:, None], axis=1)
    return -jnp.mean(right) + 0.5 * DECAY * sum(jnp.sum(w**2) for w, _ in layers)


def dot(a: PyTree, b: PyTree) -> Array:
    """Compute the inner product of two trees."""
    return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)), start=jnp.zeros(()))


def plus(a: PyTree, t: float | Array, b: PyTree) -> PyTree:
    """Compute `a + t * b` for trees `a` and `b`."""
    return jax.tree.map(lambda a, b: a + t * b, a, b)


class Search(NamedTuple):
    """Where conjugate gradients are.

    Attributes:
        direction: The solution so far.
        residual: What it leaves of the system.
        conjugate: Where to go next.
        products: How many products it took.
        negative: Whether it met negative curvature.
    """

    direction: PyTree
    residual: PyTree
    conjugate: PyTree
    products: Array
    negative: Array


def newton_direction(
    f: Callable[[PyTree], Array], x: PyTree, gradient: PyTree
) -> tuple[PyTree, Array]:
    r"""Solve $\nabla^2 f(x)\,d = -\nabla f(x)$ roughly, by conjugate gradients.

    It stops where the residual is small against the gradient, and where it meets
    negative curvature: it then returns the direction so far, or at the first step the
    negative gradient.

    Args:
        f: Scalar-valued function.
        x: Point.
        gradient: Gradient of `f` at `x`.

    Returns:
        The direction, and the number of products with the Hessian that it took.

    References:
        Nocedal and Wright (2006). Numerical Optimization, 2nd ed., algorithm 7.1.
    """
    norm = jnp.sqrt(dot(gradient, gradient))
    goal = jnp.minimum(0.5, jnp.sqrt(norm)) * norm

    def unfinished(at: Search) -> Array:
        large = jnp.sqrt(dot(at.residual, at.residual)) > goal
        return large & ~at.negative & (at.products < MOST_PRODUCTS)

    def step(at: Search) -> Search:
        p = at.conjugate
        hp = hotk.hvp(f, x, p)
        curvature, square = dot(p, hp), dot(at.residual, at.residual)
        negative = curvature <= 0
        last = jnp.where(at.products == 0, 1.0, 0.0)
        length = jnp.where(negative, last, square / curvature)
        residual = plus(at.residual, length, hp)
        ratio = dot(residual, residual) / square
        conjugate = jax.tree.map(lambda r, p: ratio * p - r, residual, p)
        direction = plus(at.direction, length, p)
        return Search(direction, residual, conjugate, at.products + 1, negative)

    zero, down = jax.tree.map(jnp.zeros_like, x), jax.tree.map(jnp.negative, gradient)
    start = Search(zero, gradient, down, jnp.int32(0), jnp.bool_(False))
    end = jax.lax.while_loop(unfinished, step, start)
    return end.direction, end.products


@jax.jit
def newton_step(
    layers: Layers, inputs: Inputs, labels: Labels
) -> tuple[Layers, Array, Array, Array]:
    """Take one Newton step of `loss`, halved until the loss falls enough.

    Returns:
        The layers after it; loss and gradient norm before it; the number of products.
    """
    f = lambda layers: loss(layers, inputs, labels)
    value, gradient = hotk.value_and_gradient(f, layers)
    direction, products = newton_direction(f, layers, gradient)
    slope = dot(gradient, direction)

    def too_long(t: Array) -> Array:
        enough = value + 1e-4 * t * slope
        return (f(plus(layers, t, direction)) > enough) & (t > 1e-6)

    t = jax.lax.while_loop(too_long, lambda t: t / 2, jnp.float32(1.0))
    norm = jnp.sqrt(dot(gradient, gradient))
    return plus(layers, t, direction), value, norm, products


def fit(title: str, layers: Layers, data: Data, progress: Bar) -> Layers:
    """Fit `layers` to `data` by Newton's method and print the result."""
    start, steps, products = time.perf_counter(), 0, 0
    n = sum(leaf.size for leaf in jax.tree.leaves(layers))
    norm = jnp.inf
    while norm > SMALL_GRADIENT and steps < MOST_STEPS:
        layers, value, norm, count = newton_step(layers, data.inputs, data.labels)
        steps, products = steps + 1, products + int(count)
        progress.set_postfix_str(f"loss {value:.4f}", refresh=False)
        progress.update()
    progress.update(MOST_STEPS - steps)
    seconds = time.perf_counter() - start
    classes = jnp.argmax(logits(layers, data.held_inputs), axis=1)
    progress.write(
        f"{title:<26}{n:>6}{loss(layers, data.inputs, data.labels):>9.4f}{norm:>10.1e}"
        f"{jnp.mean(classes == data.held_labels):>10.1%}"
        f"{steps:>7}{products:>9}{seconds:>8.1f}"
    )
    return layers


def top_of_spectrum(
    product: Callable[[PyTree], PyTree], x: PyTree, progress: Bar
) -> tuple[np.ndarray, np.ndarray]:
    """Find the outer eigenvalues of a symmetric `product` by the method of Lanczos.

    Args:
        product: Function from a tree like `x` to the Hessian times it.
        x: Tree that gives structure and shapes.
        progress: Progress bar to advance by one a product.

    Returns:
        Eigenvalues, largest first, and about how far each is from a true one at most.

    References:
        Parlett (1998). The Symmetric Eigenvalue Problem, chapter 13. SIAM.
    """
    flat, unflatten = ravel_pytree(x)
    random = np.random.default_rng(0).standard_normal(flat.size)
    basis = [random / np.linalg.norm(random)]
    diagonal, beside = [], []
    for _ in range(LANCZOS_STEPS):
        tree = unflatten(jnp.asarray(basis[-1], flat.dtype))
        w = np.asarray(ravel_pytree(product(tree))[0], np.float64)
        diagonal.append(basis[-1] @ w)
        for _ in range(2):  # once is not enough: rounding brings old directions back
            w -= np.stack(basis).T @ (np.stack(basis) @ w)
        beside.append(np.linalg.norm(w))
        basis.append(w / beside[-1])
        progress.update()
    tridiagonal = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    values, vectors = np.linalg.eigh(tridiagonal)
    rounding = np.finfo(flat.dtype).eps * np.abs(values).max()
    return values[::-1], np.abs(beside[-1] * vectors[-1])[::-1] + rounding


def costs(layers: Layers, data: Data, progress: Bar) -> list[tuple[str, float, float]]:
    """Measure the first call and a later one of a product, called in six ways.

    Returns:
        For each way: its name, seconds of the first call, median seconds of the others.
    """
    v = jax.tree.map(jnp.ones_like, layers)
    rows = [slice(64 * i, 64 * i + 64) for i in range(20)]
    batches = itertools.cycle([(data.inputs[r], data.labels[r]) for r in rows])
    batch = next(batches)

    def by_hand(layers: Layers, v: Layers, *batch: Array) -> Layers:
        return jax.jvp(lambda x: jax.grad(loss)(x, *batch), (layers,), (v,))[1]

    def of_a_lambda(hvp: Callable) -> Layers:
        inputs, labels = next(batches)
        return hvp(lambda layers: loss(layers, inputs, labels), layers, v)

    def jit_anew(f: Callable, x: Layers, v: Layers) -> Layers:
        return jax.jit(lambda x, v: jax.jvp(jax.grad(f), (x,), (v,))[1])(x, v)

    jitted = jax.jit(by_hand)
    prepared = functools.cache(lambda: hotk.hvp.prepare(loss, layers, v, *batch))
    ways: list[tuple[str, Callable, int]] = [
        ("jax.jit, by hand", lambda: jitted(layers, v, *next(batches)), 50),
        ("hotk, prepared", lambda: prepared()(layers, v, *next(batches)), 50),
        ("hotk, direct", lambda: hotk.hvp(loss, layers, v, *next(batches)), 50),
        ("hotk, fresh lambda", lambda: of_a_lambda(hotk.hvp), 50),
        ("jax.jit, fresh lambda", lambda: of_a_lambda(jit_anew), 1),
        ("JAX without jit", lambda: by_hand(layers, v, *next(batches)), 1),
    ]
    seconds: dict[str, list[float]] = {name: [] for name, _, _ in ways}
    for turn in range(4):  # in turns, so that a busy moment hits them all
        for name, call, repeats in ways:
            for _ in range(repeats if turn else 1):
                start = time.perf_counter()
                jax.block_until_ready(call())
                seconds[name].append(time.perf_counter() - start)
            progress.update()
    return [(name, s[0], float(np.median(s[1:]))) for name, s in seconds.items()]


def main() -> None:
    """Run the tour and print its tables."""
    for package in ("sklearn", "tqdm"):
        if importlib.util.find_spec(package) is None:
            raise SystemExit(
                f"`python -m hotk.demo` needs the package `{package}`.\n"
                "Install the extra: pip install 'hotk[demo]'"
            )
    from tqdm import tqdm  # noqa: PLC0415 (an extra)

    start, total = time.perf_counter(), 2 * MOST_STEPS + LANCZOS_STEPS + 24
    cancer, digits = load("breast_cancer"), load("digits")
    with tqdm(total=total, leave=False, ncols=79, desc="fit", disable=None) as progress:
        progress.write(
            f"Newton's method on hotk.hvp\n{'model':<26}{'n':>6}{'loss':>9}"
            f"{'|grad|':>10}{'held out':>10}{'steps':>7}{'products':>9}{'seconds':>8}"
        )
        fit("breast cancer, logistic", layers_of(30, 2), cancer, progress)
        layers = layers_of(64, 32, 10)
        layers = fit("digits, 64-32-10 network", layers, digits, progress)

        progress.set_description("spectrum")
        progress.set_postfix_str("")
        rows = digits.inputs, digits.labels
        product = hotk.hvp.prepare(loss, layers, layers, *rows)
        values, errors = top_of_spectrum(
            lambda v: product(layers, v, *rows), layers, progress
        )
        progress.write(f"\nTop of the network's spectrum, {LANCZOS_STEPS} products")
        for value, error in zip(values[:6], errors[:6], strict=True):
            bar = "#" * max(1, round(40 * value / values[0]))
            progress.write(f"{value:>10.4f} +- {error:<8.0e} {bar}")

        progress.set_description("cost")
        table = costs(layers, digits, progress)
    print("\nOne product on a batch of 64: the first call, and a later one")
    for name, first, later in table:
        ratio = later / table[0][2]
        print(f"{name:<26}{first * 1e3:>9.1f} ms{later * 1e3:>11.3f} ms{ratio:>9.1f} x")
    backend = check_backend(1)
    if backend.passed:
        print("\nProducts of matrices are right in programs of JAX here.")
    else:
        print(f"\nJAX is wrong outside of hotk without XLA_FLAGS={backend.flag}")
    print(f"\nAll of it took {time.perf_counter() - start:.0f} seconds.")


if __name__ == "__main__":
    main()
