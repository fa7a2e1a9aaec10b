"""How much work a linear program is, counted in numbers that are computed."""

from hotk._core import Jaxpr, equations, work
from hotk._prepared import memory_budget


# What multiplying one entry of a piece costs, in multiplications of a matrix product:
# these run through the cache, and many at once.
_ENTRY = 4
# With so many entries the algebra takes a tenth of a second: it is not worth deciding.
FEW = 2_000_000
# So many are always tried. More if there is memory: a mesh of 1e5 unknowns makes some
# 1e8, a few hundred for each tetrahedron. Each takes an index of a row and of a column
# and a value, now and then twice.
_SOME, _BYTES = 60_000_000, 48


# So many operations on pieces take a second to compile: more are rarely worth it.
_MOST_STEPS = 1000
# With so few the algebra is compiled and done at once: it is not worth deciding.
_FEW_STEPS = 200
# How many multiplications are done while one operation on small arrays is started, and
# how many products a coloring is thought to have before there is one.
_OPERATION, _COLORS = 1000, 16
# Multiplications, as many as are done in fifty calls while one equation is compiled.
_WHILE_COMPILED = 100_000


def most_steps(jaxpr: Jaxpr) -> int:
    """Return how many operations on pieces there may be before products are asked for.

    Of small arrays, as those of a network of a hundred buses, each of them takes its
    microsecond, however little it computes: products take fewer.

    Args:
        jaxpr: The linear program.
    """
    return min(_MOST_STEPS, max(_FEW_STEPS, _COLORS * work(jaxpr) // _OPERATION))


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


def most_entries() -> int:
    """Return how many entries the algebra may make before a matrix counts as dense."""
    return max(_SOME, memory_budget() // _BYTES)


def entries_worth(jaxpr: Jaxpr, directions: int) -> int:
    """Return how many entries the algebra may make before products are cheaper.

    Args:
        jaxpr: The linear program.
        directions: Along how many directions it would be run.
    """
    return min(max(directions * work(jaxpr) // _ENTRY, FEW), most_entries())
