"""What `import hotk` takes, beside importing what it stands on."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

from tests.benchmarks.interleaved import Ratio
from tests.benchmarks.table import Row, of_ratio, run


# As after an installation, bytecode is there for all of them.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


def seconds(statement: str) -> float:
    """Return the CPU time of a fresh process that runs one statement."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, env=ENVIRONMENT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int = 11) -> Iterator[Row]:
    """Compare whole processes, in turns."""
    theirs, ours = "import jax, equinox, optax", "import hotk"
    seconds(theirs), seconds(ours)  # compiles what has no bytecode yet
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(rounds)]
    ratio = Ratio.of(*map(list, zip(*pairs, strict=True)))
    yield of_ratio("import hotk / import jax, equinox, optax", ratio, 1.15, "CPU time")


if __name__ == "__main__":
    run(str(__doc__), measure)
