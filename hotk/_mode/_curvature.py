"""`AbstractCurvature`: modes that give second derivatives along directions."""

import abc
import dataclasses

import jax
from jaxtyping import PyTree

from hotk._core import FunctionWithAux, Point, Scalar, Tangent
from hotk._dense import choose_block, over_basis, size_of, split_rows, unit

from ._first import AbstractMode


@dataclasses.dataclass(frozen=True)
class AbstractCurvature(AbstractMode, abc.ABC):
    """A mode of second order along directions; the diagonal follows from it."""

    @abc.abstractmethod
    def quadratic_form(
        self, f: FunctionWithAux, x: Point, v: Tangent
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, the second derivative of `f` along `v`, and `aux`."""

    @abc.abstractmethod
    def second_derivative(
        self, f: FunctionWithAux, x: Point
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, its second derivative by a scalar `x`, and `aux`."""

    def diagonal(
        self, f: FunctionWithAux, x: Point, block: int | None = None
    ) -> tuple[Scalar, PyTree, PyTree]:
        """Return `y`, the exact diagonal of the Hessian of a scalar `f`, and `aux`."""
        y, aux = f(x)
        n = size_of(x)
        leaves, treedef = jax.tree.flatten(x)
        if not leaves:
            return y, x, aux

        def form(v: Tangent) -> Scalar:
            return self.quadratic_form(f, x, v)[1]

        block = choose_block(form, x) if block is None else block
        entries = over_basis(lambda i: form(unit(x, i)), n, block)
        pieces = split_rows(entries, x)
        diagonal = [
            p.astype(leaf.dtype) for p, leaf in zip(pieces, leaves, strict=True)
        ]
        return y, treedef.unflatten(diagonal), aux
