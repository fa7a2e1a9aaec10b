"""All benchmarks in one table, in twenty minutes: `python -m tests.benchmarks`.

But for the corpus, second-order methods in double precision, K-FAC beside Adam, and
least squares, which have tables of their own: `everyday`, `second_order`, `networks`,
`regressions`.
With `--gpu` the table of a GPU, and nothing where there is none.
"""

import sys

import jax

from tests.benchmarks import (
    accuracy,
    calls,
    divided,
    first_call,
    gpu,
    hessians,
    imports,
    kfac,
    minimizers,
    operators,
    products,
    rules,
    statistics,
    taylor,
    training,
    usages,
)
from tests.benchmarks.table import run


EVERYWHERE = (
    calls.measure,
    products.measure,
    hessians.measure,
    divided.measure,
    operators.measure,
    kfac.measure,
    accuracy.measure,
    rules.measure,
    taylor.measure,
    minimizers.measure,
    training.measure,
    usages.measure,
    statistics.measure,
    first_call.measure,
    imports.measure,
)


if __name__ == "__main__":
    if "--gpu" not in sys.argv:
        run(str(__doc__), *EVERYWHERE)
    elif jax.default_backend() == "gpu":
        sys.argv.remove("--gpu")
        run(str(gpu.__doc__), gpu.measure)
    else:
        print(f"no GPU: JAX runs on {jax.default_backend()}")
