"""How much work a linear program is, counted in numbers that are computed."""

from hotk._core import Jaxpr, work


# What multiplying one entry of a piece costs, in multiplications of a matrix product:
# these run through the cache, and many at once.
_ENTRY = 4
# With so many entries the algebra takes a tenth of a second: it is not worth deciding.
_FEW = 2_000_000
# With more its index arrays fill gigabytes.
MOST = 60_000_000


def entries_worth(jaxpr: Jaxpr, directions: int) -> int:
    """Return how many entries the algebra may make before products are cheaper.

    Args:
        jaxpr: The linear program.
        directions: Along how many directions it would be run.
    """
    return min(max(directions * work(jaxpr) // _ENTRY, _FEW), MOST)
