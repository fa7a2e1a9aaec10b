"""`derivative_tensor`: all partial derivatives of one order."""

import itertools
import math
from typing import NoReturn, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, PyTree

from hotk._core import Function, Point, Where
from hotk._dense import size_of
from hotk._first import refuse_complex
from hotk._mode import (
    AUTO,
    Auto,
    Taylor,
    taylor_only,
)
from hotk._prepared import arranged, check_bytes, operator

from ._contract import along_all, sparse_direction
from ._directions import entries_from_directions, numbers_of, sorted_places


@final
class SymmetricTensor(eqx.Module):
    r"""A symmetric tensor, such as a K-th derivative, whose entries are stored once.

    `hotk.derivative_tensor` with `symmetric=True` returns one for each array of the
    value.

    Attributes:
        entries: Of shape `y.shape + (m,)`: the entries $i_1 \le \dots \le i_K$ in
            lexicographic order, $m = \binom{n + K - 1}{K}$.
        size: n, the count of numbers in `x`; they are counted leaf by leaf.
        order: K.

    Example:
        >>> f = lambda x: x[0] ** 2 * x[1]
        >>> T = hotk.derivative_tensor(f, jnp.ones(2), order=3, symmetric=True)
        >>> T.entries.round(5).tolist(), T[0, 1, 0].round(5).item()
        ([0.0, 2.0, 0.0, 0.0], 2.0)
    """

    entries: Inexact[Array, "*y m"]
    size: int = eqx.field(static=True)
    order: int = eqx.field(static=True)

    def __getitem__(self, places: int | tuple[int, ...]) -> Inexact[Array, "*y"]:
        """Return one entry, in any order of its K places."""
        places = places if isinstance(places, tuple) else (places,)
        if not all(isinstance(p, (int, np.integer)) for p in places):
            raise TypeError(
                f"an entry is named by {self.order} integers, not by {places}: for "
                "more at once use `.full()`."
            )
        if len(places) != self.order:
            raise IndexError(f"an entry has {self.order} places, not {len(places)}")
        n = self.size
        if not all(-n <= p < n for p in places):
            raise IndexError(f"{places} is out of range for n = {n}")
        ordered = np.sort(np.array([p % n for p in places], np.int32))
        return self.entries[..., int(numbers_of(ordered, n))]

    def __iter__(self) -> NoReturn:
        """Refuse: it is no sequence of its entries."""
        raise TypeError("a SymmetricTensor is not iterated over: use `.full()`.")

    def __array__(self, *args: object, **named: object) -> NoReturn:
        """Refuse to become an array unasked: of all n^K entries, or of each once?"""
        raise TypeError(
            "write `.full()` for the array, `.entries` for each entry once."
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array with all entries."""
        return (*self.entries.shape[:-1], *((self.size,) * self.order))

    def full(self) -> Inexact[Array, "..."]:
        """Return all $n^K$ entries, as an array of shape `y.shape + (n,) * K`."""
        return self.entries[..., jnp.asarray(_numbers_of_all(self.size, self.order))]


def _numbers_of_all(n: int, order: int) -> np.ndarray:
    if order == 0:
        return np.zeros((), np.int32)
    grid = np.indices((n,) * order, dtype=np.int32).reshape(order, -1).T
    numbers = numbers_of(np.sort(grid, axis=1), n)
    return numbers.astype(np.int32).reshape((n,) * order)


def _entries(
    f: Function, x: Point, order: int, block: int | None
) -> tuple[PyTree, PyTree]:
    """Return a tree like the value with the entries along a last axis, and `aux`."""
    n = size_of(x)
    if not n:
        y, aux = f(x)
        return jax.tree.map(lambda a: a[..., None][..., :0], y), aux
    rows = jnp.asarray(sorted_places(n, order))
    ones = jnp.ones(order)
    direction = lambda places: sparse_direction(x, (places, ones))
    along, aux = along_all(f, x, direction, rows, order, block)
    parts = list(entries_from_directions(n, order))
    numbers = np.argsort(np.concatenate([numbers for numbers, _, _ in parts]))

    def combined(along: Array) -> Array:
        pieces = [
            jnp.einsum(
                "ed...,d->...e",
                along[directions],
                jnp.asarray(factors, along.dtype),
                precision="highest",  # large factors of both signs cancel
            )
            for _, directions, factors in parts
        ]
        return jnp.concatenate(pieces, axis=-1)[..., numbers]

    return jax.tree.map(combined, along), aux


def _check(f: Function, x: Point, order: int, *, symmetric: bool) -> None:
    refuse_complex("derivative_tensor(f, x)", x, "tvp")
    n = size_of(x)
    stored = math.comb(n + order - 1, order) if n + order else 1
    count = stored if symmetric else n**order
    y, _ = jax.eval_shape(f, x)
    each = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(y))
    instead = "`hotk.tvp(f, x, v1, ..., vk)` for contractions with directions"
    if not symmetric:
        instead += ", `symmetric=True` to store each entry once"
    check_bytes("derivative_tensor(f, x)", n, count * each, instead)


@operator(
    wants="inexact",
    candidates=taylor_only("one direction for each entry"),
    modes=(Taylor,),
    curved=lambda order: order > 1,
    name="derivative_tensor",
)
def _full(
    f: Function,
    x: Point,
    *args: PyTree,
    order: int,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> PyTree:
    """Compute all entries of a derivative, in the structure of nested Jacobians."""
    if order == 0:
        return f(x)
    _check(f, x, order, symmetric=False)
    entries, aux = _entries(f, x, order, block_size)
    n = size_of(x)
    numbers = _numbers_of_all(n, order)
    leaves, structure = jax.tree.flatten(x)
    ends = np.cumsum([0, *(leaf.size for leaf in leaves)])
    spans = [slice(a, b) for a, b in itertools.pairwise(ends)]

    # the result has structure [tree(of y), tree(of x), ..., tree(of x)], K times
    def nested(entries: Array, chosen: tuple[int, ...]) -> PyTree:
        if len(chosen) < order:
            inner = [nested(entries, (*chosen, i)) for i in range(len(leaves))]
            return structure.unflatten(inner)
        part = entries[..., numbers[tuple(spans[i] for i in chosen)]]
        shapes = [d for i in chosen for d in leaves[i].shape]
        return part.reshape(*entries.shape[:-1], *shapes)

    return jax.tree.map(lambda entries: nested(entries, ()), entries), aux


@operator(
    wants="inexact",
    candidates=taylor_only("one direction for each entry"),
    modes=(Taylor,),
    curved=lambda order: order > 1,
    name="derivative_tensor",
)
def _symmetric(
    f: Function,
    x: Point,
    *args: PyTree,
    order: int,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> PyTree:
    """Compute the entries of a derivative, each once."""
    _check(f, x, order, symmetric=True)
    if order == 0:
        y, aux = f(x)
        entries = jax.tree.map(lambda a: a[..., None], y)
    else:
        entries, aux = _entries(f, x, order, block_size)
    n = size_of(x)
    return jax.tree.map(lambda a: SymmetricTensor(a, n, order), entries), aux


@arranged()
def derivative_tensor(
    f: Function,
    x: Point,
    *args: PyTree,
    order: int,
    symmetric: bool = False,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    where: Where = None,
    block_size: int | None = None,
) -> PyTree:
    r"""Compute the tensor of all K-th partial derivatives of `f` at `x`.

    Computes $T_{i_1 \dots i_K} = \partial^K f / \partial x_{i_1} \cdots \partial
    x_{i_K}$ from derivatives of order K along $\binom{n + K - 1}{K}$ directions, as
    many as there are different entries [1], `block_size` of them at once in Taylor
    mode. Nothing is nested: the program grows quadratically with K. For K = 2 use
    `hotk.hessian`, for a few contractions with directions `hotk.tvp`.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays, K
            times differentiable at `x`.
        x: Point: any pytree of n floating numbers in all; complex leaves are refused.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        order: K: an integer, at least 0, or a `ValueError` is raised. It is static:
            another one is another program.
        symmetric: Whether to store each entry once: then the leaves of the result are
            `hotk.SymmetricTensor`s.
        mode: `hotk.Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        block_size: How many directions at once. Chosen from the program if left out.

    Returns:
        The tensor as K nested `jax.jacfwd`s return it: the structure of `y`, then K
        times that of `x`, with leaves of shape `y.shape + x_i.shape + ... +
        x_k.shape`; no factor 1/K!. `(tensor, aux)` with `has_aux=True`.

    Raises:
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything but floating or complex arrays.
        ModeError: If an operation in `f` has no derivative.
        TooLargeError: If the tensor would exceed the memory budget
            (`hotk.memory_budget`), or K! is out of range for its dtype; nothing is
            allocated then.

    Example:
        >>> f = lambda x: x[0] ** 2 * x[1]
        >>> hotk.derivative_tensor(f, jnp.ones(2), order=3).round(5).tolist()
        [[[0.0, 2.0], [2.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]]]

    References:
        [1] Griewank, Utke and Walther (2000). Evaluating higher derivative tensors by
            forward propagation of univariate Taylor series. Math. Comp. 69, 1117-1130.
    """
    del x
    keywords = {
        "mode": mode,
        "has_aux": has_aux,
        "block_size": block_size,
        "where": where,
    }
    operator = _symmetric if symmetric else _full
    return operator, f, args, {"order": order, **keywords}
