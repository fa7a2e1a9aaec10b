"""What XLA may fuse with sums on CPUs: `python -m tests.benchmarks.fusions`.

The same programs with the default, with nothing given to YNNPACK, and with products and
convolutions alone, `--xla_cpu_experimental_ynn_fusion_type=-reduce`, as hotk has it.
"""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np

import hotk
from hotk._core import FUSIONS_FLAG
from tests.benchmarks import subjects
from tests.benchmarks.interleaved import calls_in, seconds


ALONE = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"
WAYS = {"default": {}, "none": {FUSIONS_FLAG: ""}, "-reduce": {FUSIONS_FLAG: ALONE}}
ROUNDS = 9


def network_of(sizes: list[int]) -> Callable[[jax.Array], jax.Array]:
    """Make a network as a function of its inputs."""
    shapes = list(itertools.pairwise(sizes))
    layers = [subjects.normal(i, *s) / np.sqrt(s[0]) for i, s in enumerate(shapes)]

    def u(x):
        for w in layers[:-1]:
            x = jnp.tanh(x @ w)
        return (x @ layers[-1])[0]

    return u


def programs() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """Yield functions with arguments, each a program."""
    u, points = network_of([100, 256, 256, 1]), subjects.normal(9, 32, 100)
    yield (
        "Laplacian of a network, 100 inputs",
        lambda x: hotk.laplacian(u, x),
        (points[0],),
    )
    yield (
        "... at 32 points",
        lambda x: jax.vmap(lambda x: hotk.laplacian(u, x))(x),
        (points,),
    )
    three = network_of([3, 64, 64, 1])
    yield (
        "Laplacian, 3 inputs, 1000 points",
        jax.vmap(lambda x: hotk.laplacian(three, x)),
        (subjects.normal(8, 1000, 3),),
    )
    net = subjects.perceptron([64, 128, 128, 10])
    yield "gradient of an MLP", lambda x: hotk.gradient(net.f, x), (net.x,)
    yield "hvp of an MLP", lambda x, v: hotk.hvp(net.f, x, v), (net.x, net.v)
    small = subjects.perceptron([16, 24, 10])
    yield "Hessian of an MLP, n = 658", lambda x: hotk.hessian(small.f, x), (small.x,)
    image = subjects.convolutional(16)
    yield (
        "hvp of a convolutional net",
        lambda x, v: hotk.hvp(image.f, x, v),
        (image.x, image.v),
    )
    again = subjects.recurrent(50)
    yield "hvp of a scan", lambda x, v: hotk.hvp(again.f, x, v), (again.x, again.v)
    text = subjects.transformer()
    yield "hvp of a transformer", lambda x, v: hotk.hvp(text.f, x, v), (text.x, text.v)
    chain = subjects.rosenbrock(100_000)
    yield (
        "hvp of Rosenbrock, 1e5",
        lambda x, v: hotk.hvp(chain.f, x, v),
        (chain.x, chain.v),
    )
    rows = subjects.logistic()
    yield (
        "hvp of a logistic regression",
        lambda x, v: hotk.hvp(rows.f, x, v),
        (
            rows.x,
            rows.v,
        ),
    )
    system = subjects.logistic(2000, 200)
    yield (
        "solve, logistic regression of 2000 x 200",
        lambda x: hotk.HessianOperator(system.f, x).solve(x).x,
        (jnp.full(200, 0.01),),
    )
    inputs, labels = subjects.normal(1, 128, 64), jnp.arange(128) % 10
    layers = {"w": subjects.normal(2, 64, 64) / 8, "v": subjects.normal(3, 64, 10) / 8}
    model = lambda p, x: jnp.tanh(x @ p["w"]) @ p["v"]
    loss = hotk.curvature.SoftmaxCrossEntropy(labels)
    yield (
        "GGN product",
        lambda p: hotk.ggnvp(lambda p: model(p, inputs), loss, p, p),
        (layers,),
    )
    yield (
        "K-FAC, factors and a step",
        lambda p: hotk.KFACOperator(model, loss, p, inputs).inverse(damping=0.1) @ p,
        (layers,),
    )


def main() -> None:
    """Print a row for each program: milliseconds, and ratios to the default."""
    print(f"jax {jax.__version__}, jaxlib {jaxlib.__version__}", flush=True)
    for name, f, arguments in programs():
        calls = {
            way: jax.jit(f, compiler_options=options).lower(*arguments).compile()
            for way, options in WAYS.items()
        }
        runs = {way: partial(call, *arguments) for way, call in calls.items()}
        counts = {way: calls_in(run, 0.005) for way, run in runs.items()}
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(ROUNDS):
            for way, run in runs.items():
                best = min(seconds(run, counts[way]) for _ in range(4))
                times[way].append(best)
        of_default = np.array(times["default"])
        row = " | ".join(
            f"{1e3 * np.median(t):.3g} ({np.median(np.array(t) / of_default):.2f})"
            for t in times.values()
        )
        print(f"| {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
