"""`differential_operator`: sums of partial derivatives with coefficients."""

from collections.abc import Callable, Hashable, ItemsView, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeGuard, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, PyTree

from hotk._core import (
    DtypeError,
    Function,
    Leaf,
    Point,
    StructureError,
    Tangent,
    Where,
    describe,
    message,
    number_name,
)
from hotk._first import refuse_complex
from hotk._mode import AUTO, Auto, Taylor
from hotk._prepared import Arrangement, Prepared, operator

from ._contract import sparse_direction
from ._directions import order_of, table_of
from ._partial import by_terms, sum_of_partials
from ._terms import Terms, frozen, multi_index, thawed


@operator(
    takes="c",
    wants="inexact",
    candidates=by_terms,
    modes=(Taylor,),
    choice=Terms,
    curved=Terms.are_curved,
    name="differential_operator",
)
def _applied(
    f: Function,
    x: Point,
    c: tuple[Array, ...],
    *args: PyTree,
    order: Terms,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> PyTree:
    """Apply a differential operator with coefficients `c`."""
    refuse_complex("differential_operator(...)(f, x)", x, "hvp")
    apply = lambda parts: sum_of_partials(f, x, _stacked(parts), order, block_size)
    if not any(map(jnp.iscomplexobj, c)):
        return apply(c)
    # Weights of the series are real, so real and imaginary parts take a pass each.
    real, aux = apply(map(jnp.real, c))
    for leaf in jax.tree.leaves(real):
        if not jnp.iscomplexobj(leaf):
            raise DtypeError(
                message(
                    "differential_operator(...)(f, x)",
                    "a coefficient is complex, and `f` returns real numbers.",
                    expected="real coefficients, or complex values",
                    got=describe(leaf),
                    fix="Return `f(x) + 0j`.",
                )
            )
    imaginary, _ = apply(map(jnp.imag, c))
    turned = jax.tree.map(lambda a: a * jnp.asarray(1j, a.dtype), imaginary)
    return jax.tree.map(jnp.add, real, turned), aux


def _stacked(coefficients: Iterable[Array]) -> Array:
    # Of one dtype, as strict promotion refuses to stack two.
    return jnp.stack([jnp.asarray(c, jnp.result_type(float)) for c in coefficients])


@final
class DifferentialOperator(eqx.Module):
    r"""A linear differential operator $\sum_\alpha c_\alpha \partial^\alpha$.

    `hotk.differential_operator` makes one.

    Attributes:
        indices: The multi-indices $\alpha$, as they were written. They are static.
        coefficients: The $c_\alpha$: leaves, which may change without compiling.

    Example:
        >>> heat = hotk.differential_operator({"t": 1.0, "xx": -0.5})
        >>> heat
        DifferentialOperator(1 t + -0.5 xx)
    """

    indices: tuple[Hashable, ...] = eqx.field(static=True)
    coefficients: tuple[Inexact[Array, ""], ...]

    def __repr__(self) -> str:
        """Write the sum: `DifferentialOperator(1 t + -0.5 xx)`."""
        pairs = zip(self.coefficients, self.indices, strict=True)
        terms = [f"{number_name(c)} {thawed(index)}" for c, index in pairs]
        return f"DifferentialOperator({' + '.join(terms)})"

    def __call__(
        self,
        f: Function,
        x: Point,
        *args: PyTree,
        has_aux: bool = False,
        where: Where = None,
        block_size: int | None = None,
    ) -> PyTree:
        """Apply it to `f` at `x`.

        Args:
            f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
            x: Point, as for `hotk.partial`.
            *args: Further arguments of `f`, held fixed.
            has_aux: Whether `f` returns `(y, aux)`.
            where: Which leaves of `x` the indices may count; see `hotk.Where`.
            block_size: How many directions at once. Chosen from the program if left
                out.

        Returns:
            The sum, with the structure, shapes and dtypes of the value of `f`;
            `(sum, aux)` with `has_aux=True`.

        Raises:
            StructureError: If an index does not belong to `x`.
            DtypeError: If an index counts a leaf that cannot be differentiated or that
                `where` does not select, a leaf of `x` is complex, or a coefficient is
                complex and the value is real.
            OutputError: If `f` returns anything but floating or complex arrays.
            ModeError: If an operation in `f` has no derivative.
        """
        named = {"has_aux": has_aux, "where": where, "block_size": block_size}
        operator, f, arguments, keywords = self.arrangement(f, x, *args, **named)
        return operator(f, x, *arguments, **keywords)

    def prepare(
        self,
        f: Function,
        x: Point,
        *args: PyTree,
        has_aux: bool = False,
        where: Where = None,
        block_size: int | None = None,
    ) -> Prepared:
        """Trace and compile it once, for this function and signature.

        Args:
            f: As in a call.
            x: As in a call; only structure, shapes and dtypes matter.
            *args: As in a call.
            has_aux: Whether `f` returns `(y, aux)`.
            where: Which leaves of `x` the indices may count; see `hotk.Where`.
            block_size: How many directions at once. Chosen from the program if left
                out.

        Returns:
            A `Prepared`, called as `prepared(x, coefficients, *args)`.
        """
        named = {"has_aux": has_aux, "where": where, "block_size": block_size}
        operator, f, arguments, keywords = self.arrangement(f, x, *args, **named)
        return operator.prepare(f, x, *arguments, **keywords)

    def arrangement(
        self,
        f: Function,
        x: Point,
        *args: PyTree,
        where: Where = None,
        **named: PyTree,
    ) -> Arrangement:
        """Return the operator behind it, and what that takes.

        Args:
            f: As in a call.
            x: As in a call.
            *args: As in a call.
            where: As in a call.
            **named: The other keywords of a call.

        Returns:
            An operator, its function, its arguments after `x`, and its keywords.
        """
        return (
            _applied,
            f,
            (self.coefficients, *args),
            {"order": self.terms(x, where), "where": where, **named},
        )

    def terms(self, x: Point, where: Where = None) -> Terms:
        """Return the multi-indices by the flat places of a point.

        Args:
            x: The point.
            where: Which of its leaves are differentiated: places count these alone.
        """
        call = "differential_operator(...)(f, x)"
        indices = map(thawed, self.indices)
        return Terms(tuple(multi_index(call, x, i, where) for i in indices))


class Directions(NamedTuple):
    """The directions of each term of an operator by itself, filled up with zeros.

    Attributes:
        places: Of shape `(terms, directions, entries)`: flat places in the point.
        values: Of the same shape: the entries of the direction there.
        weights: Of shape `(terms, directions, K + 1)`: how much of each derivative
            along the direction the term has, by order.
        direction: From a point and one row of both to a direction.
    """

    places: np.ndarray
    values: np.ndarray
    weights: np.ndarray
    direction: Callable[[Point, tuple[Array, Array]], Tangent]


def directions_of(
    operator: DifferentialOperator, x: Point, where: Where = None
) -> Directions:
    """Return the directions of each term of an operator, by selected leaves."""
    indices = operator.terms(x, where).indices
    tables = [table_of((index,)) for index in indices]
    orders = [order_of(index) for index in indices]
    shape = [max(t.places.shape[i] for t in tables) for i in (0, 1)]
    places = np.zeros((len(tables), *shape), np.int32)
    values = np.zeros((len(tables), *shape), np.int32)
    weights = np.zeros((len(tables), shape[0], max(orders) + 1))
    for a, (table, order) in enumerate(zip(tables, orders, strict=True)):
        rows, entries = table.places.shape
        places[a, :rows, :entries] = table.places
        values[a, :rows, :entries] = table.values
        weights[a, :rows, order] = table.matrix[:, 0]
    return Directions(places, values, weights, sparse_direction)


def differential_operator(
    coefficients: Mapping[Hashable, Leaf] | Sequence[tuple[object, Leaf]],
) -> DifferentialOperator:
    r"""Make a linear differential operator $\sum_\alpha c_\alpha \partial^\alpha$.

    Applied to `f` it computes $L f = \sum_\alpha c_\alpha\,\partial^\alpha f$, of any
    order. All terms of one order go in one pass of Taylor mode, each of their
    directions once, and terms of first order cost nothing beside others: top
    coefficients are summed within the pass [1].

    Args:
        coefficients: For each multi-index, written as for `hotk.partial`, its
            coefficient: a number or an array of shape `()`, held while `f` is
            differentiated. They are leaves: another value is the same program, and they
            can be differentiated by. Coefficients that depend on the point are made at
            the point: `jax.vmap(lambda x: differential_operator({"xx": a(x)})(f, x))`.
            An index that cannot be a key of a dict goes in a list of pairs,
            `[({"t": 1}, 1.0), ({"x": (2, 0)}, -1.0)]`.

    Returns:
        A module, called as `L(f, x, *args)`. `L.prepare(f, x, *args)` compiles it once,
        for coefficients that may change: what it returns is called as
        `prepared(x, L.coefficients, *args)`.

    Raises:
        TypeError: If it is neither a dict nor a list of pairs, or a coefficient is not
            a number.
        ValueError: If there is no term.
        StructureError: If a coefficient is not one number.

    Example:
        >>> heat = hotk.differential_operator({"t": 1.0, "xx": -0.5})
        >>> u = lambda p: jnp.exp(-0.5 * p["t"]) * jnp.sin(p["x"])
        >>> abs(heat(u, {"x": 0.3, "t": 0.1})) < 1e-6
        Array(True, dtype=bool)

    References:
        [1] Dangel, Siebert, Zeinhofer and Walther (2025). Collapsing Taylor mode
            automatic differentiation. https://arxiv.org/abs/2505.13644
    """
    call = "differential_operator(coefficients)"
    mapping = isinstance(coefficients, Mapping)
    pairs = coefficients.items() if mapping else coefficients
    if not _are_pairs(pairs):
        raise TypeError(
            f"`{call}`: give a dict from multi-indices to numbers, as "
            f"{{(2, 0): 1.0, (0, 1): -1.0}}, or a list of such pairs, not "
            f"{coefficients!r}."
        )
    if not coefficients:
        raise ValueError(f"`{call}`: there is no term.")
    numbers = []
    for index, c in pairs:
        array = _number(call, index, c)
        if array.shape != ():
            raise StructureError(
                message(
                    call,
                    f"the coefficient of {index!r} is not one number.",
                    expected="a number, or an array of shape ()",
                    got=describe(array),
                    fix="Make the operator inside of `jax.vmap` over the points, where "
                    "it is one number, or take a sum of `hotk.partial`.",
                )
            )
        numbers.append(array)
    return DifferentialOperator(tuple(frozen(i) for i, _ in pairs), tuple(numbers))


def _are_pairs(pairs: object) -> TypeGuard[Iterable[tuple[object, Leaf]]]:
    """Whether it is a sequence of pairs, which can be gone through twice."""
    if not isinstance(pairs, Sequence | ItemsView):
        return False
    return all(isinstance(item, tuple) and len(item) == 2 for item in pairs)


def _number(call: str, index: object, c: Leaf) -> Array:
    try:
        array = jnp.asarray(c)
        inexact = jnp.issubdtype(array.dtype, jnp.inexact)
        # 1 and 1.0 are the same program
        return array.astype(array.dtype if inexact else float)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`{call}`: the coefficient of {index!r} is {describe(c)}, not a number. "
            "One that depends on the point is evaluated there first."
        ) from error
