"""Programs that failed once, by hotk or by the fuzzer, shrunk."""

from .program import Operation, Program


REGRESSIONS = [
    # Without its optimizations XLA gives NaN for what plain JAX computes at once, here
    # in `jax.jit` as well: `logsumexp(h * max(h))` of `h - mean(h) + var(h)`.
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
