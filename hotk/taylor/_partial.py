"""`partial` and `differential_operator`: mixed derivatives, and sums of them."""

from collections.abc import Callable, ItemsView, Mapping, Sequence
from typing import Any, NamedTuple, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact

from hotk._core import DtypeError, StructureError, describe, message, number_name
from hotk.first import refuse_complex
from hotk.mode import AUTO, Auto, Taylor
from hotk.prepared import Prepared, arranged, operator

from ._contract import contracted, sparse_direction
from ._directions import order_of, table_of
from ._terms import Terms, frozen, multi_index, thawed


def _candidates(facts: Any, sizes: Any) -> Any:
    del facts, sizes
    return [(Taylor(), "all terms of one order in one pass")]


@operator(
    wants="inexact",
    candidates=_candidates,
    modes=(Taylor,),
    choice=Terms,
    curved=Terms.are_curved,
    name="partial",
)
def _partial(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    order: Terms,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    """Compute one partial derivative."""
    refuse_complex("partial(f, x, index)", x, "hvp")
    return _summed(f, x, jnp.ones(1), order, block_size)


@arranged
def partial(
    f: Callable[..., Any],
    x: Any,
    index: Any,
    *args: Any,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    r"""Compute one mixed partial derivative of `f` at `x`.

    Computes $\partial^{|\alpha|} f / \partial x_1^{\alpha_1} \cdots \partial
    x_n^{\alpha_n}$ of any order. It is a sum of derivatives along a few directions
    [1], about half of $\prod_i (\alpha_i + 1)$ of them, whose top coefficients are
    summed as they go through the program.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays, as
            often differentiable at `x`.
        x: Point: any pytree. Floating leaves are differentiated; complex leaves are
            refused. For a batch of points use `jax.vmap`.
        index: The multi-index $\alpha$: `(2, 0, 1)` for an array of three numbers, 3
            for a number, and a tree of such for a tree. For a dict the keys that count
            are enough, `{"x": 2, "t": 1}`, or their names, `"xxt"` or
            `("x", "x", "t")`. It is static: another one is another program.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        block_size: How many directions at once. Chosen from the program if left out.

    Returns:
        The derivative, like what `f` returns; `(derivative, aux)` with `has_aux=True`.

    Raises:
        StructureError: If the index does not belong to `x`.
        DtypeError: If it names what cannot be differentiated by, or `x` is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If an operation in `f` has no derivative.

    Example:
        >>> f = lambda x: x[0] ** 2 * x[1] ** 3
        >>> hotk.partial(f, jnp.array([1.0, 1.0]), (2, 3)).item()
        12.0
        >>> u = lambda p: jnp.sin(p["x"]) * jnp.exp(p["t"])
        >>> print(f"{hotk.partial(u, {'x': 1.0, 't': 0.0}, 'xxt'):.4f}")
        -0.8415

    References:
        [1] Kan (2008). From moments of sum to moments of product. J. Multivariate Anal.
            99(3), 542-554. Equation 3.
    """
    del f
    terms = Terms((multi_index("partial(f, x, index)", x, index),))
    keywords = {"mode": mode, "has_aux": has_aux, "block_size": block_size}
    return _partial, args, {"order": terms, **keywords}


@operator(
    takes="c",
    wants="inexact",
    candidates=_candidates,
    modes=(Taylor,),
    choice=Terms,
    curved=Terms.are_curved,
    name="differential_operator",
)
def _applied(
    f: Callable[..., Any],
    x: Any,
    c: Any,
    *args: Any,
    order: Terms,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    """Apply a differential operator with coefficients `c`."""
    refuse_complex("differential_operator(...)(f, x)", x, "hvp")
    apply = lambda parts: _summed(f, x, jnp.stack(_alike(parts)), order, block_size)
    if not any(map(jnp.iscomplexobj, c)):
        return apply(c)
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


def _alike(coefficients: Any) -> list[Any]:
    return [jnp.asarray(c, jnp.result_type(float)) for c in coefficients]


def _summed(
    f: Callable[..., Any], x: Any, c: Any, terms: Terms, block: int | None
) -> tuple[Any, Any]:
    """Return the weighted sum of partial derivatives, all of one order in one pass.

    Those of first order travel in the top coefficient of any pass.
    """
    orders: dict[int, list[int]] = {}
    for a, index in enumerate(terms.indices):
        orders.setdefault(order_of(index), []).append(a)
    parts: list[Any] = []
    aux: Any = None
    seed = None
    if 1 in orders:
        chosen = orders.pop(1)
        places = np.array([terms.indices[a][0][0] for a in chosen], np.int32)
        seed = sparse_direction(x, (places, c[np.array(chosen)]))
        if not orders.keys() - {0}:
            _, slope, aux = jax.jvp(f, (x,), (seed,), has_aux=True)
            parts.append(slope)
    if 0 in orders:
        factor = jnp.sum(c[np.array(orders.pop(0))])
        y, aux = f(x)
        parts.append(jax.tree.map(lambda a: a * factor.astype(a.dtype), y))
    for order, chosen in orders.items():
        table = table_of(tuple(terms.indices[a] for a in chosen))
        weights = jnp.asarray(table.matrix, c.dtype) @ c[np.array(chosen)]
        rows = (jnp.asarray(table.places), jnp.asarray(table.values))
        direction = lambda row: sparse_direction(x, row)
        _, part, aux = contracted(
            f, x, direction, rows, weights, order, block=block, seed=seed
        )
        seed = None
        parts.append(part)
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts), aux


@final
class DifferentialOperator(eqx.Module):
    r"""A linear differential operator $\sum_\alpha c_\alpha \partial^\alpha$.

    Attributes:
        indices: The multi-indices $\alpha$, as they were written.
        coefficients: The $c_\alpha$: leaves, which may change without compiling.
    """

    indices: tuple[Any, ...] = eqx.field(static=True)
    coefficients: tuple[Inexact[Array, ""], ...]

    def __repr__(self) -> str:
        """Write the sum: `DifferentialOperator(1 t + -0.5 xx)`."""
        pairs = zip(self.coefficients, self.indices, strict=True)
        terms = [f"{number_name(c)} {thawed(index)}" for c, index in pairs]
        return f"DifferentialOperator({' + '.join(terms)})"

    def __call__(
        self,
        f: Callable[..., Any],
        x: Any,
        *args: Any,
        has_aux: bool = False,
        block_size: int | None = None,
    ) -> Any:
        """Apply it to `f` at `x`.

        Args:
            f: Function `f(x, *args)` that returns a tree of floating or complex arrays.
            x: Point, as for `hotk.partial`.
            *args: Further arguments of `f`, held fixed.
            has_aux: Whether `f` returns `(y, aux)`.
            block_size: How many directions at once. Chosen from the program if left
                out.

        Returns:
            A tree like what `f` returns; `(tree, aux)` with `has_aux=True`.
        """
        terms, keywords = self._terms(x), {"has_aux": has_aux, "block_size": block_size}
        return _applied(f, x, self.coefficients, *args, order=terms, **keywords)

    def prepare(
        self,
        f: Callable[..., Any],
        x: Any,
        *args: Any,
        has_aux: bool = False,
        block_size: int | None = None,
    ) -> Prepared:
        """Trace and compile it once, for this function and signature.

        Returns:
            A `Prepared`, called as `prepared(x, coefficients, *args)`.
        """
        terms, keywords = self._terms(x), {"has_aux": has_aux, "block_size": block_size}
        return _applied.prepare(f, x, self.coefficients, *args, order=terms, **keywords)

    def _terms(self, x: Any) -> Terms:
        call = "differential_operator(...)(f, x)"
        indices = map(thawed, self.indices)
        return Terms(tuple(multi_index(call, x, index) for index in indices))


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
    direction: Callable[[Any, Any], Any]


def directions_of(operator: DifferentialOperator, x: Any) -> Directions:
    """Return the directions of each term of an operator."""
    indices = operator._terms(x).indices
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
    coefficients: Mapping[Any, Any] | Sequence[tuple[Any, Any]],
) -> DifferentialOperator:
    r"""Make a linear differential operator.

    It is $L f = \sum_\alpha c_\alpha\,\partial^\alpha f$, of any order. All terms of
    one order go in one pass, their directions each once, and terms of first order cost
    nothing beside others: top coefficients are summed as they go through the program.

    Args:
        coefficients: For each multi-index, written as for `hotk.partial`, its
            coefficient: a number or an array of shape `()`, held while `f` is
            differentiated. They are leaves: another value is the same program, and they
            can be differentiated by. Coefficients that depend on the point are made at
            the point: `jax.vmap(lambda x: differential_operator({"xx": a(x)})(f, x))`.
            An index that is no key of a dict goes in a list of pairs,
            `[({"t": 1}, 1.0), ({"x": (2, 0)}, -1.0)]`.

    Returns:
        A module, called as `L(f, x, *args)`. `L.prepare(f, x, *args)` compiles it once,
        for coefficients that may change: what it returns is called as
        `prepared(x, L.coefficients, *args)`.

    Raises:
        TypeError: If it is no dict and no list of pairs.
        ValueError: If there is no term.
        StructureError: If a coefficient is not one number.

    Example:
        >>> heat = hotk.differential_operator({"t": 1.0, "xx": -0.5})
        >>> u = lambda p: jnp.exp(-0.5 * p["t"]) * jnp.sin(p["x"])
        >>> abs(heat(u, {"x": 0.3, "t": 0.1})) < 1e-6
        Array(True, dtype=bool)
    """
    call = "differential_operator(coefficients)"
    mapping = isinstance(coefficients, Mapping)
    pairs = coefficients.items() if mapping else coefficients
    if not isinstance(pairs, Sequence | ItemsView) or not all(map(_is_pair, pairs)):
        raise TypeError(
            f"`{call}`: give a dict from multi-indices to numbers, as "
            f"{{(2, 0): 1.0, (0, 1): -1.0}}, or a list of such pairs, not "
            f"{coefficients!r}."
        )
    if not coefficients:
        raise ValueError(f"`{call}`: there is no term.")
    made = []
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
        made.append(array)
    return DifferentialOperator(tuple(frozen(i) for i, _ in pairs), tuple(made))


def _is_pair(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2


def _number(call: str, index: Any, c: Any) -> Any:
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
