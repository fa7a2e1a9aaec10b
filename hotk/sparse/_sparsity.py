"""`sparsity`: the pattern of a Hessian or a Jacobian, without its values."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar, final, overload

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._capture import StaticArrays
from hotk._core import Argnums, Function, FunctionWithAux, Keywords, Point, Where
from hotk._first import refuse_complex
from hotk._mode import (
    AUTO,
    AbstractMode,
    Auto,
    Forward,
    Nested,
    Reverse,
    forward_first,
    second_order_candidates,
)
from hotk._prepared import operator

from ._causes import SparsityExplanation
from ._pattern import Pattern
from ._sparse_hessian import explained_hessian, hessian_pattern
from ._sparse_jacobian import explained_jacobian, jacobian_pattern


Found = TypeVar("Found")


@final
class _Result(eqx.Module):
    """A pattern as what a compiled program returns: it has no leaf."""

    found: Any = eqx.field(static=True)


def _traced(
    find: Callable[[FunctionWithAux, Point, AbstractMode], Found],
    f: FunctionWithAux,
    x: Point,
    mode: AbstractMode,
) -> _Result:
    """Find a pattern in a trace of its own: nothing of it is compiled."""
    found: list[Found] = []

    def run(x: Point) -> tuple[()]:
        found.append(find(f, x, mode))
        return ()

    jax.make_jaxpr(run)(x)
    return _Result(found[0])


_second = operator(
    candidates=second_order_candidates,
    modes=(Nested,),
    static_arrays=StaticArrays.ALL_INTEGERS,
    name="sparsity",
)
_first = operator(
    wants="inexact",
    candidates=forward_first,
    modes=(Forward, Reverse),
    static_arrays=StaticArrays.ALL_INTEGERS,
    name="sparsity",
)


@_second
def _of_hessian(f: Function, x: Point, *args: PyTree, mode: Nested | Auto = AUTO):
    refuse_complex("sparsity(f, x)", x, "hvp")
    return _traced(hessian_pattern, f, x, mode), ()


@_second
def _explained_hessian(
    f: Function, x: Point, *args: PyTree, mode: Nested | Auto = AUTO
):
    refuse_complex("sparsity(f, x)", x, "hvp")
    return _traced(explained_hessian, f, x, mode), ()


@_first
def _of_jacobian(
    f: Function, x: Point, *args: PyTree, mode: Forward | Reverse | Auto = AUTO
):
    refuse_complex("sparsity(f, x)", x, "jvp")
    return _traced(jacobian_pattern, f, x, mode), ()


@_first
def _explained_jacobian(
    f: Function, x: Point, *args: PyTree, mode: Forward | Reverse | Auto = AUTO
):
    refuse_complex("sparsity(f, x)", x, "jvp")
    return _traced(explained_jacobian, f, x, mode), ()


# By what is asked for, and whether it is to be explained.
_OPERATORS: dict[tuple[str, bool], Any] = {
    ("hessian", False): _of_hessian,
    ("hessian", True): _explained_hessian,
    ("jacobian", False): _of_jacobian,
    ("jacobian", True): _explained_jacobian,
}


@overload
def sparsity(
    f: Function,
    x: Point,
    *args: PyTree,
    of: Literal["hessian", "jacobian"] = ...,
    explain: Literal[True],
    has_aux: bool = ...,
    where: Where = ...,
    argnums: Argnums = ...,
    kwargs: Keywords = ...,
) -> SparsityExplanation: ...


@overload
def sparsity(
    f: Function,
    x: Point,
    *args: PyTree,
    of: Literal["hessian", "jacobian"] = ...,
    explain: Literal[False] = ...,
    has_aux: bool = ...,
    where: Where = ...,
    argnums: Argnums = ...,
    kwargs: Keywords = ...,
) -> Pattern: ...


def sparsity(
    f: Function,
    x: Point,
    *args: PyTree,
    of: Literal["hessian", "jacobian"] = "hessian",
    explain: bool = False,
    has_aux: bool = False,
    where: Where = None,
    argnums: Argnums = None,
    kwargs: Keywords = None,
) -> Pattern | SparsityExplanation:
    r"""Find the sparsity pattern of a Hessian or a Jacobian.

    It is the pattern of the program: an entry outside of it is zero at every `x`, and
    an entry in it may be zero. Nothing is evaluated. It takes about a second for a
    million variables, once for functions with the same code and captured structure. In
    a part of the program with unknown structure, such as `x[jnp.argsort(x)]`, each
    result counts as dependent on all inputs.

    Args:
        f: Function `f(x, *args)`: of one real number for a Hessian, of a tree of arrays
            for a Jacobian.
        x: Point: any pytree; only structure, shapes and dtypes matter, and the values
            of integers. Leaves may be `jax.ShapeDtypeStruct`s.
        *args: Further arguments of `f`.
        of: `"hessian"` or `"jacobian"`.
        explain: Whether to find the operations that make rows of it dense, and their
            lines in the code of `f`.
        has_aux: Whether `f` returns `(y, aux)`.
        where: Which leaves of `x` to differentiate; see `hotk.Where`.
        argnums: Which argument of `f` to differentiate, by position, or several as a
            tuple, as for `jax.grad`. The first by default.
        kwargs: Keyword arguments of `f`, held fixed.

    Returns:
        A `hotk.sparse.Pattern`, with `rows`, `cols` and `shape`; with `explain=True` a
        `hotk.sparse.SparsityExplanation`, which holds it.

    Raises:
        ValueError: If `of` is neither of the two.
        DtypeError: If nothing in `x` can be differentiated, or a leaf is complex.
        OutputError: If `f` returns anything else.
        ModeError: If `f` has no such derivative.

    Example:
        >>> pattern = hotk.sparsity(lambda x: jnp.sum(x[1:] * x[:-1]), jnp.ones(4))
        >>> pattern.rows.tolist(), pattern.cols.tolist()
        ([0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2])
    """
    if of not in ("hessian", "jacobian"):
        raise ValueError(
            f'`sparsity(f, x)`: `of` must be "hessian" or "jacobian", not {of!r}.'
        )
    x = jax.tree.map(_as_array, x)
    find = _OPERATORS[of, bool(explain)]
    named = {} if argnums is None else {"argnums": argnums}
    named |= {} if kwargs is None else {"kwargs": kwargs}
    result = find(f, x, *args, has_aux=has_aux, where=where, **named)
    return (result[0] if has_aux else result).found


def _as_array(leaf: object) -> object:
    is_shape = isinstance(leaf, jax.ShapeDtypeStruct)
    if not is_shape:
        return leaf
    return jnp.zeros(leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype))
