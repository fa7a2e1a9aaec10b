"""Which products of operators are symmetric: congruences, as `D @ A @ D`."""

from typing import Any, TypeVar

from ._linear_map import AbstractLinearMap


M = TypeVar("M", bound=AbstractLinearMap)


def product_fields(product: type[Any], a: M, b: M) -> tuple[tuple[M, ...], bool]:
    """Return the factors of a product, side by side, and whether it is a congruence.

    It reads the same from both ends, each factor being the transpose of its mirror
    image: the one in the middle, if there is one, has to be symmetric.

    Args:
        product: The class of products.
        a: An operator, or a product of them.
        b: Another one.
    """
    each: Any = [c.factors if isinstance(c, product) else (c,) for c in (a, b)]
    factors = (*each[0], *each[1])
    others = _without_identities(factors)
    half = others[: (len(others) + 1) // 2]
    pairs = zip(half, reversed(others), strict=False)
    return factors, all(left.is_transpose_of(right) for left, right in pairs)


def middle_of(factors: tuple[M, ...]) -> M | None:
    """Return the factor in the middle of a product, `None` if their number is even."""
    others = _without_identities(factors)
    return others[len(others) // 2] if len(others) % 2 else None


def _without_identities(factors: tuple[M, ...]) -> tuple[M, ...]:
    return tuple(f for f in factors if f.like is not None)
