"""What factors refuse of a matrix: singular, not definite, not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import PyTree

from hotk._core import NotPositiveDefiniteError, message
from hotk._dense import name_of

from ._factors import AnyFactors
from ._pattern import Pattern
from ._superlu import Factors


# Entries are sums, known to a few units of their last digit.
ROUNDINGS = 64


def check_regular(
    pattern: Pattern, found: AnyFactors, dtype: npt.DTypeLike, call: str
) -> None:
    """Refuse a matrix that is singular up to rounding.

    A pivot that is as small as the rounding of what it is the difference of has no
    digit that is right, and neither has the solution. That of the factors grows with
    the square root of the size; that of the entries is counted where an error of a
    twentieth is left of it, and not by more as in `inertia`: entries may be exact.
    """
    sizes = np.abs(found.pivots)
    double, own = np.finfo(np.float64).eps, float(jnp.finfo(dtype).eps)
    limit = (ROUNDINGS + 4 * sizes.size**0.5) * double + 16 * own
    # Most need no terms, which take a fraction of the time of the factors.
    if isinstance(found, Factors) and sizes.min(initial=np.inf) > (
        1e3 * limit * found.largest
    ):
        return
    zero = np.flatnonzero(sizes <= limit * found.terms)
    if not zero.size:
        return
    fix = "Add a multiple of `hotk.sparse.identity(A)`, or hold fixed what the matrix "
    fix += "does not determine."
    if own > double:
        fix += " If its entries are exact, give it in 64 bits: `A.astype(jnp.float64)`."
    got = f"{zero.size} of {sizes.size} pivots zero up to rounding"
    if found.on_diagonal:
        got += f", one in {named(pattern.output, int(found.order[zero[-1]]), 'row')}"
    raise RuntimeError(
        message(
            call,
            "the matrix is singular.",
            expected="pivots that are larger than the rounding of their terms",
            got=got,
            fix=fix,
        )
    )


def not_finite(pattern: Pattern, data: np.ndarray) -> str:
    bad = np.flatnonzero(~np.isfinite(data))
    row, column = int(pattern.rows[bad[0]]), int(pattern.cols[bad[0]])
    row_name = named(pattern.output, row, "row")
    column_name = named(pattern.input, column, "column")
    return message(
        "A.factorize()",
        "an entry is NaN or infinite.",
        expected="finite entries",
        got=f"{data[bad[0]]} in {row_name}, {column_name}; {bad.size} of {data.size}",
        fix="`hotk.locate_nan` finds the operation that a NaN comes from.",
    )


def named(tree: PyTree, place: int, kind: str) -> str:
    """Return the number of a row or a column, and its name if it has one of its own."""
    is_flat = jax.tree.structure(tree).num_nodes == 1
    return f"{kind} {place}" + ("" if is_flat else f" (`{name_of(tree, place)}`)")


def not_definite(got: str, smallest: float) -> NotPositiveDefiniteError:
    """Return what `cholesky` raises."""
    return NotPositiveDefiniteError(
        message(
            "A.cholesky()",
            "the matrix is not positive definite.",
            expected="positive pivots on the diagonal, beyond rounding",
            got=got,
            fix="Add a multiple of `hotk.sparse.identity(A)`.",
        ),
        smallest,
    )
