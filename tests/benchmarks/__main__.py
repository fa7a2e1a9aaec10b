"""All benchmarks in one table, in ten minutes: `python -m tests.benchmarks`."""

from tests.benchmarks import (
    accuracy,
    calls,
    first_call,
    hessians,
    operators,
    products,
    rules,
    taylor,
)
from tests.benchmarks.table import run


if __name__ == "__main__":
    run(
        str(__doc__),
        calls.measure,
        products.measure,
        hessians.measure,
        operators.measure,
        accuracy.measure,
        rules.measure,
        taylor.measure,
        first_call.measure,
    )
