"""Arrays that the first derivatives take for constants, and later ones do not.

A Gauss-Newton matrix is the second derivative of a function in which the linearization
of the model is held fixed. The matrix does depend on the point, and so do the products
with it: with `jax.lax.stop_gradient` in that place every derivative of a product would
be zero.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from hotk._core import (
    AbstractValue,
    Arrays,
    Function,
    Handlers,
    JaxprEqn,
    Leaf,
    Tracer,
    ad,
    is_inexact,
    new_primitive,
    run_replaced,
)


def held(tree: PyTree, derivatives: int = 2) -> PyTree:
    """Return a tree whose next derivatives are zero, and the later ones as usual.

    Args:
        tree: A tree of arrays.
        derivatives: How many derivatives take it for a constant.
    """
    if derivatives <= 0:
        return tree
    bind = lambda a: _PRIMITIVE.bind(jnp.asarray(a), derivatives=derivatives)[0]
    return jax.tree.map(lambda a: bind(a) if is_inexact(a) else a, tree)


def released(f: Function) -> Function:
    """Return a function that holds nothing, so its derivatives are those of its values.

    The equation of a minimum of a Gauss-Newton function is solved by its values: its
    derivative has the Hessian, and not the Gauss-Newton matrix.

    Args:
        f: A function of trees of arrays.
    """

    def call(*arguments: PyTree) -> PyTree:
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*arguments)
        handlers: Handlers = {_PRIMITIVE.name: lambda _, inputs: inputs}
        outputs = run_replaced(closed, jax.tree.leaves(arguments), handlers)
        return jax.tree.structure(shapes).unflatten(outputs)

    return call


def held_in(equation: JaxprEqn) -> int:
    """Return for how many derivatives an equation holds its operand, mostly none."""
    return equation.params["derivatives"] if equation.primitive is _PRIMITIVE else 0


def _run(a: Leaf, *, derivatives: int) -> Arrays:
    del derivatives
    return [a]


def _types(a: AbstractValue, *, derivatives: int) -> list[AbstractValue]:
    del derivatives
    return [a]


def _jvp(
    primals: Sequence[Leaf], tangents: Sequence[Leaf | ad.Zero], *, derivatives: int
) -> tuple[Arrays, list[Any]]:
    (a,), (tangent,) = primals, tangents
    zero = ad.Zero(jax.typeof(tangent)) if not isinstance(tangent, ad.Zero) else tangent
    return [held(a, derivatives - 1)], [zero]


def _transpose(cotangents: Sequence[Any], a: Any, *, derivatives: int) -> list[Any]:
    raise AssertionError("its tangent is zero, so it is in no linear program")


def _batch(
    arguments: Sequence[Leaf], axes: Sequence[int | None], *, derivatives: int
) -> tuple[Arrays, list[int | None]]:
    return [held(arguments[0], derivatives)], list(axes)


_PRIMITIVE = new_primitive(
    "hotk_held",
    run=_run,
    types=_types,
    jvp=_jvp,
    transpose=_transpose,
    batch=_batch,
)


S = TypeVar("S")


def constants(tree: S) -> S:
    """Return a tree whose arrays have the same values, and no tangents."""
    # `asarray`: a number of Python that is differentiated has one of JAX's own types.
    constant = lambda a: jnp.asarray(jax.lax.stop_gradient(a))
    return jax.tree.map(lambda a: constant(a) if _may_vary(a) else a, tree)


def may_have_tangents(tree: PyTree) -> bool:
    """Whether a derivative may be taken by an array of a tree, now or later."""
    return any(map(_may_vary, jax.tree.leaves(tree)))


def have_tangents(tree: PyTree, alike: PyTree) -> bool:
    """Whether a derivative is taken now, at numbers that are known.

    Args:
        tree: A tree.
        alike: The same tree by `constants`. What is a number there, and was none, is
            differentiated outside of a `jit`, where Python may still read it.
    """
    moving = list(filter(_may_vary, jax.tree.leaves(tree)))
    return bool(moving) and not any(map(_is_tracer, jax.tree.leaves(alike)))


def _is_tracer(leaf: object) -> bool:
    return isinstance(leaf, Tracer)


def _may_vary(leaf: object) -> bool:
    return isinstance(leaf, Tracer) and jnp.issubdtype(leaf.dtype, jnp.inexact)
