"""Programs that failed once, by hotk or by the fuzzer, shrunk."""

from .program import Operation, Program


REGRESSIONS = [
    # XLA rounds `h - mean(h) + var(h)` otherwise where it is compared with `max(h)`, so
    # `jax.jit` of the gradient of `logsumexp(h * max(h))` is NaN.
    Program(
        "vector",
        (
            Operation("python", 771588466),
            Operation("reduce", 312750943),
            Operation("sort", 665741750),
        ),
        226284912,
        2,
    ),
]
