"""All benchmarks in one table, in twenty minutes: `python -m tests.benchmarks`.

But for the corpus and for second-order methods in double precision, which have tables of
their own: `python -m tests.benchmarks.everyday`, `python -m tests.benchmarks.second_order`.
"""

from tests.benchmarks import (
    accuracy,
    calls,
    first_call,
    hessians,
    imports,
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
        minimizers.measure,
        training.measure,
        usages.measure,
        statistics.measure,
        first_call.measure,
        imports.measure,
    )
