"""How much work a linear program is, counted in numbers that are computed."""

from hotk._core import Jaxpr, equations, work


# What multiplying one entry of a piece costs, in multiplications of a matrix product:
# these run through the cache, and many at once.
_ENTRY = 4
# With so many entries the algebra takes a tenth of a second: it is not worth deciding.
FEW = 2_000_000
# With more its index arrays fill gigabytes.
MOST = 60_000_000


# So many operations on pieces take a second to compile: it is not worth deciding.
MOST_STEPS = 1000
# Multiplications, as many as are done in fifty calls while one equation is compiled.
_WHILE_COMPILED = 100_000


def is_worth_products(jaxpr: Jaxpr, products: int) -> bool:
    """Whether products are cheaper than a long program of the algebra, compiled.

    A program of products is compiled like one product. That of the algebra takes a few
    times as long, and its calls are shorter.

    Args:
        jaxpr: The linear program.
        products: How many products there would be.
    """
    count = sum(1 for _ in equations(jaxpr))
    return products * work(jaxpr) <= _WHILE_COMPILED * count


def entries_worth(jaxpr: Jaxpr, directions: int) -> int:
    """Return how many entries the algebra may make before products are cheaper.

    Args:
        jaxpr: The linear program.
        directions: Along how many directions it would be run.
    """
    return min(max(directions * work(jaxpr) // _ENTRY, FEW), MOST)
