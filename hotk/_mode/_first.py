"""`Forward` and `Reverse`: how one derivative is taken.

Both see a function of one argument, a tree of floating or complex arrays, that returns
its value and an auxiliary output: `f(x) -> (y, aux)`.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    Cotangent,
    FunctionWithAux,
    Gradient,
    Point,
    Scalar,
    Tangent,
    manual_axes,
    typed_as,
)
from hotk._dense import (
    Block,
    Division,
    columns,
    is_complex,
    over_basis,
    size_of,
    split_rows,
    unit,
)


@dataclasses.dataclass(frozen=True)
class AbstractMode:
    """How a derivative is taken: a static choice, compared by type and fields.

    Attributes:
        nests: How many derivatives are nested: 1, 2, or 0 for a Taylor series.
    """

    nests: ClassVar[int] = 1

    def __str__(self) -> str:
        """Say the mode in a word."""
        return type(self).__name__.lower()


@dataclasses.dataclass(frozen=True)
class Forward(AbstractMode):
    r"""Forward mode: Jacobian-vector products $J v$, one pass for each direction.

    Use it for functions of few numbers, and where reverse mode does not exist, as for
    a `jax.lax.while_loop`.

    Cost: a Jacobian-vector product costs about two evaluations of the function and
    keeps nothing of them. A gradient or a Jacobian costs one such product for each of
    the n numbers in `x`.

    Example:
        >>> f = lambda x: jax.lax.while_loop(lambda y: y > 1, lambda y: y / 2, x[0])
        >>> hotk.gradient(f, jnp.array([3.0, 1.0]), mode=hotk.Forward()).tolist()
        [0.25, 0.0]

    References:
        [1] Griewank and Walther (2008). Evaluating derivatives. SIAM, chapter 3.
            https://doi.org/10.1137/1.9780898717761
    """

    def along(
        self, f: FunctionWithAux, x: Point, v: Tangent
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, the derivative of `f` along `v`, and `aux`."""
        if manual_axes():  # unit directions are the same on all devices
            v = jax.tree.map(typed_as, v, x)
        return jax.jvp(f, (x,), (v,), has_aux=True)

    def gradient(
        self, f: FunctionWithAux, x: Point, block: int | None = None
    ) -> tuple[Scalar, Gradient, PyTree]:
        """Return `y`, the gradient of a real scalar `f`, and `aux`, in n passes."""
        y, aux = f(x)
        n = size_of(x)

        def slope(scale: complex) -> Callable[[Array], PyTree]:
            return lambda i: self.along(f, x, unit(x, i, scale))[1]

        leaves, treedef = jax.tree.flatten(x)
        rows = over_basis(slope(1.0), n, block)
        parts = split_rows(rows, x)
        if is_complex(x):
            imaginary = split_rows(over_basis(slope(1j), n, block), x)
            parts = [
                jax.lax.complex(re, -im)
                if jnp.issubdtype(leaf.dtype, jnp.complexfloating)
                else re
                for re, im, leaf in zip(parts, imaginary, leaves, strict=True)
            ]
        slopes = [p.astype(leaf.dtype) for p, leaf in zip(parts, leaves, strict=True)]
        return y, treedef.unflatten(slopes), aux

    def jacobian(
        self, f: FunctionWithAux, x: Point, block: Block = None
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, its Jacobian as a tree of trees, and `aux`, in n passes."""
        leaves, treedef = jax.tree.flatten(x)
        y, aux = f(x)
        if not leaves:
            return y, jax.tree.map(lambda _: x, y), aux
        outputs, structure = jax.tree.flatten(y)
        rows = columns(lambda v: self.along(f, x, v)[1], x, block)
        jacobians = [treedef.unflatten(row) for row in rows] if outputs else []
        return y, structure.unflatten(jacobians), aux

    def derivative(self, f: FunctionWithAux, x: Point) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, its derivative by a scalar `x`, and `aux`."""
        return self.along(f, x, jax.tree.map(jnp.ones_like, x))


@dataclasses.dataclass(frozen=True)
class Reverse(AbstractMode):
    r"""Reverse mode: vector-Jacobian products $u^T J$, one pass for each output.

    Use it for gradients of functions of many numbers. It does not exist for a
    `jax.lax.while_loop` whose number of steps depends on `x`.

    Cost: a gradient costs about three evaluations of the function and keeps its
    intermediate results. A Jacobian costs one such pass for each of the m numbers in
    the value.

    Example:
        >>> f = lambda x: x**2
        >>> hotk.derivative(f, 3.0, mode=hotk.Reverse()).item()
        6.0

    References:
        [1] Griewank and Walther (2008). Evaluating derivatives. SIAM, chapter 3.
            https://doi.org/10.1137/1.9780898717761
    """

    def back(
        self, f: FunctionWithAux, x: Point, u: Cotangent
    ) -> tuple[PyTree, Gradient, PyTree]:
        """Return `y`, the cotangent `u` pulled back to `x`, and `aux`."""
        y, pull, aux = jax.vjp(f, x, has_aux=True)
        return y, pull(jax.tree.map(typed_as, u, y))[0], aux

    def gradient(
        self, f: FunctionWithAux, x: Point, block: int | None = None
    ) -> tuple[Scalar, Gradient, PyTree]:
        """Return `y`, the gradient of a real scalar `f`, and `aux`, in one pass."""
        del block
        y, pull, aux = jax.vjp(f, x, has_aux=True)
        return y, pull(jnp.ones_like(y))[0], aux

    def jacobian(
        self, f: FunctionWithAux, x: Point, block: Block = None
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, its Jacobian as a tree of trees, and `aux`, in m passes.

        A complex output takes two: for real `x` its derivative is `a - i b`, where `a`
        and `b` are the cotangents `1` and `i` pulled back.
        """
        y, back, aux = jax.vjp(f, x, has_aux=True)
        outputs, treedef = jax.tree.flatten(y)
        if not outputs:
            return y, jax.tree.map(lambda _: x, y), aux

        def pull(u: Cotangent) -> tuple[Gradient]:
            # along axes of a mesh a cotangent is divided as the value is
            return back(jax.tree.map(typed_as, u, y))

        def rows(scale: complex) -> list[list[Array]]:
            if isinstance(block, Division):
                found = columns(lambda u: pull(u)[0], y, block)
                return [
                    [_first_last(a, u) for a, u in zip(row, outputs, strict=True)]
                    for row in found
                ]
            pulled = over_basis(lambda i: pull(unit(y, i, scale))[0], size_of(y), block)
            return [split_rows(leaf, y) for leaf in jax.tree.leaves(pulled)]

        pieces = rows(1.0)
        if is_complex(y) and not is_complex(x):
            pairs = zip(pieces, rows(1j), strict=True)
            pieces = [_complete(outputs, real, other) for real, other in pairs]
        structure = jax.tree.structure(x)
        jacobians = [[row[k] for row in pieces] for k in range(len(outputs))]
        return y, treedef.unflatten(map(structure.unflatten, jacobians)), aux

    def derivative(self, f: FunctionWithAux, x: Point) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, its derivative by a scalar `x`, and `aux`, in m passes."""
        y, jacobian, aux = self.jacobian(f, x)
        return y, jax.tree.map(lambda _, j: jax.tree.leaves(j)[0], y, jacobian), aux


def _first_last(a: Array, y: Array) -> Array:
    """Put the axes of an output, which are the last ones, first."""
    return jnp.moveaxis(a, range(a.ndim - y.ndim, a.ndim), range(y.ndim))


def _complete(
    outputs: list[Array], real: list[Array], other: list[Array]
) -> list[Array]:
    """Give the rows of complex outputs their imaginary part."""
    return [
        jax.lax.complex(a, -b) if jnp.issubdtype(y.dtype, jnp.complexfloating) else a
        for y, a, b in zip(outputs, real, other, strict=True)
    ]


def real_inner(a: PyTree, b: PyTree) -> Scalar:
    """Sum the real parts of the products of all entries, without conjugate."""
    products = jax.tree.map(lambda p, q: jnp.sum(p * q).real, a, b)
    leaves = jax.tree.leaves(products)
    if not leaves:
        return jnp.zeros(())
    dtype = jnp.result_type(*leaves)
    total = leaves[0].astype(dtype)
    for leaf in leaves[1:]:
        total = total + leaf.astype(dtype)
    return total
