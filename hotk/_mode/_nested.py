"""`Nested`: how two derivatives are nested, and what follows for second order."""

import abc
import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hotk._core import (
    FunctionWithAux,
    Gradient,
    ModeError,
    Point,
    Scalar,
    Tangent,
    message,
)
from hotk._dense import (
    Block,
    choose_block,
    columns,
    is_complex,
    over_basis,
    size_of,
    split_rows,
    unit,
)

from ._first import AbstractMode, Forward, Reverse, real_inner


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


@dataclasses.dataclass(frozen=True)
class Nested(AbstractCurvature):
    r"""A second derivative as the derivative of a derivative: $H v = D(\nabla f)\,v$.

    All four nestings give the same numbers. `Nested(Forward(), Reverse())` is the
    default: the Jacobian-vector product of a gradient [1]. The others are for functions
    that lack one of the modes.

    Cost of a Hessian-vector product: forward over reverse takes about as long as two
    gradients, reverse over reverse up to four times as long as that (measured on a
    convolutional network). Forward over forward makes a pass for each number in `x`.

    Attributes:
        outer: Mode of the derivative that is taken last.
        inner: Mode of the derivative that is taken first.

    Raises:
        ModeError: If either is anything but a `Forward()` or a `Reverse()`.

    Example:
        >>> hotk.Nested(hotk.Forward(), hotk.Reverse()) == hotk.FORWARD_OVER_REVERSE
        True

    References:
        [1] Pearlmutter (1994). Fast exact multiplication by the Hessian. Neural
            Computation 6(1), 147-160. https://doi.org/10.1162/neco.1994.6.1.147
    """

    nests: ClassVar[int] = 2
    outer: Forward | Reverse
    inner: Forward | Reverse

    def __post_init__(self) -> None:
        """Refuse anything but modes, classes of modes as well."""
        for name, mode in (("outer", self.outer), ("inner", self.inner)):
            if not isinstance(mode, (Forward, Reverse)):
                raise ModeError(
                    message(
                        "Nested(outer, inner)",
                        f"`{name}` must be a mode.",
                        expected="hotk.Forward() or hotk.Reverse()",
                        got=repr(mode),
                        fix="Make one: `hotk.Nested(hotk.Forward(), hotk.Reverse())`.",
                    )
                )

    def product(
        self, f: FunctionWithAux, x: Point, v: Tangent, block: int | None = None
    ) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """Return `y`, the gradient, the Hessian times `v`, and `aux`.

        For a function with several outputs these are the Jacobian, and a product for
        each output.
        """
        try:
            return self._product_of_one(_OneNumber(f), x, v, block)
        # Its shape is seen where it is traced anyway: to ask for it before would trace
        # each function once more.
        except _SeveralNumbersError:
            return self._products(f, x, v, block)

    def _product_of_one(
        self, f: FunctionWithAux, x: Point, v: Tangent, block: int | None
    ) -> tuple[Scalar, Gradient, Tangent, PyTree]:
        """Return the results for a real scalar `f`.

        No tangent is pushed through the value: it travels as an auxiliary output.
        """
        if isinstance(self.inner, Forward):
            slope = self._slope(f, v)
            _, product, (y, aux) = self.outer.gradient(slope, x, block)
            return y, self.outer.gradient(f, x, block)[1], product, aux
        gradient, product, (y, aux) = self._through_gradient(f, x, v)
        return y, gradient, product, aux

    def _products(
        self, f: FunctionWithAux, x: Point, v: Tangent, block: int | None
    ) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """Return the results for a function with several outputs."""

        def jacobian(x: Point) -> tuple[PyTree, PyTree]:
            y, j, aux = self.inner.jacobian(f, x)
            return j, (y, aux)

        if isinstance(self.inner, Reverse) and isinstance(self.outer, Forward):
            j, products, (y, aux) = self.outer.along(jacobian, x, v)
            return y, j, products, aux

        def slope(x: Point) -> tuple[PyTree, PyTree]:
            if isinstance(self.inner, Forward):
                return self._slope(f, v)(x)
            j, (y, aux) = jacobian(x)
            return jax.tree.map(lambda a, row: _along(a, row, v), y, j), (y, aux)

        _, products, (y, aux) = self.outer.jacobian(slope, x, block)
        return y, self.outer.jacobian(f, x, block)[1], products, aux

    def _slope(self, f: FunctionWithAux, v: Tangent) -> FunctionWithAux:
        def slope(x: Point) -> tuple[PyTree, PyTree]:
            y, derivative, aux = Forward().along(f, x, v)
            return derivative, (y, aux)

        return slope

    def _through_gradient(
        self, f: FunctionWithAux, x: Point, v: Tangent
    ) -> tuple[Gradient, Tangent, PyTree]:
        def gradient(x: Point) -> tuple[Gradient, PyTree]:
            y, g, aux = self.inner.gradient(f, x)
            return g, (y, aux)

        if isinstance(self.outer, Forward):
            return self.outer.along(gradient, x, v)
        return self.outer.back(gradient, x, v)  # the Hessian is symmetric

    def quadratic_form(
        self, f: FunctionWithAux, x: Point, v: Tangent
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, the second derivative of `f` along `v`, and `aux`."""
        if isinstance(self.inner, Forward) and isinstance(self.outer, Forward):
            _, second, (y, aux) = self.outer.along(self._slope(f, v), x, v)
            return y, second, aux
        y, _, product, aux = self.product(f, x, v)
        return y, real_inner(v, product).astype(y.dtype), aux

    def second_derivative(
        self, f: FunctionWithAux, x: Point
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Return `y`, its second derivative by a scalar `x`, and `aux`."""

        def first(x: Point) -> tuple[PyTree, PyTree]:
            y, derivative, aux = self.inner.derivative(f, x)
            return derivative, (y, aux)

        _, second, (y, aux) = self.outer.derivative(first, x)
        return y, second, aux

    def hessian(
        self, f: FunctionWithAux, x: Point, block: Block = None
    ) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        """Return `y`, its Jacobian, its Hessian as `jax.hessian` does, and `aux`."""
        shape, _ = jax.eval_shape(f, x)
        one = jax.tree.structure(shape) == jax.tree.structure(0) and shape.shape == ()
        if one and not is_complex(shape):
            return self._scalar_hessian(f, x, block)

        def jacobian(x: Point) -> tuple[PyTree, PyTree]:
            y, j, aux = self.inner.jacobian(f, x)
            return j, (y, aux)

        j, hessian, (y, aux) = self.outer.jacobian(jacobian, x, block)
        return y, j, hessian, aux

    def _scalar_hessian(
        self, f: FunctionWithAux, x: Point, block: Block
    ) -> tuple[Scalar, Gradient, PyTree, PyTree]:
        y, gradient, aux = self.inner.gradient(f, x)
        treedef = jax.tree.structure(x)
        if not jax.tree.leaves(x):
            return y, gradient, x, aux
        rows = columns(lambda v: self._column(f, x, v), x, block)
        # hessian has structure [tree(of the gradient), leaf(of the direction)]
        hessian = treedef.unflatten([treedef.unflatten(row) for row in rows])
        return y, gradient, hessian, aux

    def _column(self, f: FunctionWithAux, x: Point, v: Tangent) -> Tangent:
        if isinstance(self.inner, Forward):
            return self.outer.gradient(self._slope(f, v), x)[1]
        return self._through_gradient(f, x, v)[1]

    def __str__(self) -> str:
        """Say the nesting in words."""
        names = {Forward: "forward", Reverse: "reverse"}
        return f"{names[type(self.outer)]} over {names[type(self.inner)]}"


class _SeveralNumbersError(Exception):
    """A function does not return one real number."""


class _OneNumber:
    """A function that must return one real number, with auxiliary output."""

    def __init__(self, f: FunctionWithAux) -> None:
        self.f = f

    def __call__(self, x: Point) -> tuple[Scalar, PyTree]:
        """Evaluate it."""
        y, aux = self.f(x)
        if not isinstance(y, jax.Array) or y.ndim or is_complex(y):
            raise _SeveralNumbersError
        return y, aux


def _along(y: Array, row: PyTree, v: Tangent) -> Array:
    """Return the derivatives of an output along `v`, from its Jacobian."""
    at = lambda j, t: jnp.sum(j * t[(None,) * y.ndim], axis=(*range(y.ndim, j.ndim),))
    return sum(jax.tree.leaves(jax.tree.map(at, row, v)), start=jnp.zeros_like(y))


FORWARD_OVER_REVERSE = Nested(Forward(), Reverse())
REVERSE_OVER_REVERSE = Nested(Reverse(), Reverse())
REVERSE_OVER_FORWARD = Nested(Reverse(), Forward())
FORWARD_OVER_FORWARD = Nested(Forward(), Forward())
NESTINGS = (
    FORWARD_OVER_REVERSE,
    REVERSE_OVER_REVERSE,
    REVERSE_OVER_FORWARD,
    FORWARD_OVER_FORWARD,
)
