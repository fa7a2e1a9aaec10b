"""`derivative_tensor` and `tvp`: derivatives of any order along many directions."""

import itertools
import math
from collections.abc import Callable
from typing import Any, final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact

from hotk._core import StructureError, message
from hotk.dense import size_of
from hotk.first import refuse_complex
from hotk.mode import AUTO, Auto, Taylor
from hotk.prepared import arranged, check_bytes, operator

from ._contract import along_all, contracted, sparse_direction
from ._directions import entries_from_directions, numbers_of, sorted_places


def _candidates(facts: Any, sizes: Any) -> Any:
    del facts, sizes
    return [(Taylor(), "one direction for each entry, or for each pair of signs")]


@final
class SymmetricTensor(eqx.Module):
    r"""A K-th derivative whose entries are each stored once.

    Attributes:
        entries: Of shape `y.shape + (m,)`: the entries $i_1 \le \dots \le i_K$ in
            lexicographic order, $m = \binom{n + K - 1}{K}$.
        size: n, the count of numbers in `x`; they are counted leaf by leaf.
        order: K.
    """

    entries: Inexact[Array, "*y m"]
    size: int = eqx.field(static=True)
    order: int = eqx.field(static=True)

    def __getitem__(self, places: Any) -> Inexact[Array, "*y"]:
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

    def __iter__(self) -> Any:
        """Refuse: it is no sequence of its entries."""
        raise TypeError("a SymmetricTensor is not iterated over: use `.full()`.")

    def __array__(self, *args: Any, **named: Any) -> Any:
        """Refuse to become an array unasked."""
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
    f: Callable[..., Any], x: Any, order: int, block: int | None
) -> tuple[list[Any], Any, Any]:
    """Return for each output its entries, the structure of the value, and `aux`."""
    n = size_of(x)
    if not n:
        return _no_entries(f, x)
    rows = jnp.asarray(sorted_places(n, order))
    ones = jnp.ones(order)
    direction = lambda places: sparse_direction(x, (places, ones))
    along, aux = along_all(f, x, direction, rows, order, block)
    leaves, tree = jax.tree.flatten(along)
    parts = list(entries_from_directions(n, order))
    numbers = np.argsort(np.concatenate([numbers for numbers, _, _ in parts]))
    made = []
    for leaf in leaves:
        pieces = [
            jnp.einsum(
                "ed...,d->...e",
                leaf[directions],
                jnp.asarray(factors, leaf.dtype),
                precision="highest",
            )
            for _, directions, factors in parts
        ]
        made.append(jnp.concatenate(pieces, axis=-1)[..., numbers])
    return made, tree, aux


def _no_entries(f: Callable[..., Any], x: Any) -> tuple[list[Any], Any, Any]:
    y, aux = f(x)
    leaves, tree = jax.tree.flatten(y)
    return [leaf[..., None][..., :0] for leaf in leaves], tree, aux


def _check(f: Any, x: Any, order: int, *, symmetric: bool) -> None:
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
    candidates=_candidates,
    modes=(Taylor,),
    curved=lambda order: order > 1,
    name="derivative_tensor",
)
def _full(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    order: int,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    """Compute all entries of a derivative, in the structure of nested Jacobians."""
    if order == 0:
        return f(x)
    _check(f, x, order, symmetric=False)
    entries, tree, aux = _entries(f, x, order, block_size)
    n = size_of(x)
    numbers = _numbers_of_all(n, order)
    leaves, structure = jax.tree.flatten(x)
    ends = np.cumsum([0, *(leaf.size for leaf in leaves)])
    spans = [slice(a, b) for a, b in itertools.pairwise(ends)]

    def nested(entry: Any, chosen: tuple[int, ...]) -> Any:
        if len(chosen) < order:
            inner = [nested(entry, (*chosen, i)) for i in range(len(leaves))]
            return structure.unflatten(inner)
        part = entry[..., numbers[tuple(spans[i] for i in chosen)]]
        shapes = [d for i in chosen for d in leaves[i].shape]
        made = part.reshape(*entry.shape[:-1], *shapes)
        return made

    return tree.unflatten([nested(entry, ()) for entry in entries]), aux


@operator(
    wants="inexact",
    candidates=_candidates,
    modes=(Taylor,),
    curved=lambda order: order > 1,
    name="derivative_tensor",
)
def _symmetric(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    order: int,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    """Compute the entries of a derivative, each once."""
    _check(f, x, order, symmetric=True)
    if order == 0:
        y, aux = f(x)
        entries, tree = jax.tree.flatten(jax.tree.map(lambda a: a[..., None], y))
    else:
        entries, tree, aux = _entries(f, x, order, block_size)
    n = size_of(x)
    return tree.unflatten([SymmetricTensor(e, n, order) for e in entries]), aux


@arranged
def derivative_tensor(
    f: Callable[..., Any],
    x: Any,
    *args: Any,
    order: int,
    symmetric: bool = False,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    block_size: int | None = None,
) -> Any:
    r"""Compute all partial derivatives of order K of `f` at `x`.

    Computes $T_{i_1 \dots i_K} = \partial^K f / \partial x_{i_1} \cdots \partial
    x_{i_K}$ from derivatives of order K along $\binom{n + K - 1}{K}$ directions, as
    many as there are different entries [1]. Nothing is nested: the program grows
    quadratically with K.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays, K
            times differentiable at `x`.
        x: Point: any pytree of n floating numbers in all; complex leaves are refused.
        *args: Further arguments of `f`, held fixed; they may change value freely.
        order: K: an integer, at least 0. It is static.
        symmetric: Whether to store each entry once: then the leaves of the result are
            `hotk.SymmetricTensor`s.
        mode: `Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
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
            (`hotk.memory_budget`); nothing is allocated then.

    Example:
        >>> f = lambda x: x[0] ** 2 * x[1]
        >>> hotk.derivative_tensor(f, jnp.ones(2), order=3).round(5).tolist()
        [[[0.0, 2.0], [2.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]]]

    References:
        [1] Griewank, Utke and Walther (2000). Evaluating higher derivative tensors by
            forward propagation of univariate Taylor series. Math. Comp. 69, 1117-1130.
    """
    del f, x
    keywords = {"mode": mode, "has_aux": has_aux, "block_size": block_size}
    made = _symmetric if symmetric else _full
    return made, args, {"order": order, **keywords}


@operator(
    takes="vs",
    wants="inexact",
    candidates=_candidates,
    modes=(Taylor,),
    name="tvp",
)
def _contraction(
    f: Callable[..., Any],
    x: Any,
    vs: Any,
    *args: Any,
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    batched: bool = False,
) -> Any:
    """Contract a derivative with directions."""
    assert isinstance(mode, Taylor)
    order = len(vs)
    if order == 1:
        _, slope, aux = jax.jvp(f, (x,), vs, has_aux=True)
        return slope, aux
    # it is linear in each: of one size they do not drown each other
    sizes = jnp.stack([_size(v) for v in vs])
    mean = jnp.exp(jnp.mean(jnp.log(sizes)))
    factors = mean / sizes
    scaled = [
        jax.tree.map(lambda a, s=s: a * s.astype(a.dtype), v)
        for v, s in zip(vs, factors, strict=True)
    ]
    signs = np.array([(1, *s) for s in itertools.product((1, -1), repeat=order - 1)])
    weights = signs.prod(axis=1) / (2.0 ** (order - 1) * math.factorial(order))

    def direction(row: Any) -> Any:
        return jax.tree.map(
            lambda *parts: sum(
                (row[k].astype(p.dtype) * p for k, p in enumerate(parts[1:], 1)),
                parts[0],
            ),
            *scaled,
        )

    rows = jnp.asarray(signs, jnp.int8)
    _, found, aux = contracted(f, x, direction, rows, jnp.asarray(weights), order)
    whole = 1 / jnp.prod(factors)  # nearly one
    return jax.tree.map(lambda a: a * whole.astype(a.dtype), found), aux


def _size(v: Any) -> Any:
    """Return a number that a direction may be divided by, held in derivatives."""
    leaves = [jnp.max(jnp.abs(a), initial=0) for a in jax.tree.leaves(v)]
    dtype = jnp.result_type(float)
    largest = jnp.max(jnp.stack([a.astype(dtype) for a in leaves]), initial=0)
    usual = (largest > 0) & jnp.isfinite(largest)
    return jax.lax.stop_gradient(jnp.where(usual, largest, 1))


@arranged
def tvp(
    f: Callable[..., Any],
    x: Any,
    *directions: Any,
    args: tuple[Any, ...] = (),
    mode: Taylor | Auto = AUTO,
    has_aux: bool = False,
    batched: bool = False,
) -> Any:
    r"""Contract the K-th derivative of `f` at `x` with K directions.

    Computes $D^K f(x)[v_1, \dots, v_K] = \sum T_{i_1 \dots i_K} v_{1, i_1} \cdots
    v_{K, i_K}$ for as many directions as are given, by polarization [1]: $2^{K-1}$
    derivatives along $v_1 \pm v_2 \dots \pm v_K$, in one pass that carries their sum.
    For equal directions see `hotk.derivatives`.

    Args:
        f: Function `f(x, *args)` that returns a tree of floating or complex arrays, K
            times differentiable at `x`.
        x: Point: any pytree. Floating and complex leaves are differentiated.
        *directions: The directions $v_1, ..., v_K$, each as for `hotk.hvp`.
        args: Further arguments of `f`, held fixed; they may change value freely.
        mode: `Taylor()`, or `hotk.Auto()`, which is the same.
        has_aux: Whether `f` returns `(y, aux)`.
        batched: Whether the leaves of all directions have a leading axis, one tuple of
            directions each.

    Returns:
        A tree like what `f` returns, with no factor; `(tree, aux)` with `has_aux=True`.
        What `.prepare` returns is called as `prepared(x, (v1, ..., vk), *args)`.

    Raises:
        StructureError: If there is no direction, or one has another structure or shape
            than `x`.
        DtypeError: If nothing in `x` can be differentiated, or a direction is a JAX
            array of another dtype.
        OutputError: If `f` returns no floating-point array.
        ModeError: If an operation in `f` has no derivative.

    Example:
        >>> f = lambda x: x[0] * x[1] * x[2]
        >>> e = jnp.eye(3)
        >>> hotk.tvp(f, jnp.ones(3), e[0], e[1], e[2]).round(5).item()
        1.0

    References:
        [1] Griewank, Utke and Walther (2000). Evaluating higher derivative tensors by
            forward propagation of univariate Taylor series. Math. Comp. 69, 1117-1130.
    """
    del f, x
    if not directions:
        raise StructureError(
            message(
                "tvp(f, x, v1, ..., vk)",
                "there is no direction.",
                expected="at least one",
                got="none",
                fix="Further arguments of `f` go in `args=(...)`.",
            )
        )
    keywords = {"mode": mode, "has_aux": has_aux, "batched": batched}
    return _contraction, (directions, *args), keywords
