"""`AtPoint`: a function at a point, as the step of an optimizer sees it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias, final

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from hotk._core import (
    ClosedJaxpr,
    Enumeration,
    Gradient,
    Point,
    Scalar,
    Tangent,
    jaxpr_as_fun,
    typed_as,
)
from hotk._mode import Forward, Nested, Reverse
from hotk.linop import AbstractOperator, AbstractSymmetricOperator, space


Numbers: TypeAlias = Mapping[str, Array]
"""What may vary from step to step without a compile, by name."""


class AbstractStepOperator(AbstractSymmetricOperator):
    """A symmetric operator of a step of an optimizer, on the space of the parameters.

    Attributes:
        point: The point, a vector of the space.
    """

    point: eqx.AbstractVar[Point]

    @property
    def like(self) -> Point:
        """A vector of the space."""
        return self.point


@final
class LinearizedHessian(AbstractStepOperator):
    """A Hessian whose products share one linearization.

    `hotk.HessianOperator` holds a function and finds its program at each use, by a walk
    that cannot be done while JAX traces; an optimizer's step is within a trace, where
    the linear program is at hand and lives as long as the trace does.

    Attributes:
        product: The linear program.
        point: The point, a vector of the space.
    """

    product: Callable[[Tangent], Tangent]
    point: Point

    def mv(self, v: Tangent) -> Tangent:
        """Return the product with one vector."""
        # a unit vector is whole: along explicit axes the linear program takes a vector
        # that is divided as the point is
        return self.product(jax.tree.map(typed_as, v, self.point))

    def as_argument(self) -> "LinearizedHessian":
        """Return the same as a tree of arrays: what jitted functions take."""
        closed = jax.make_jaxpr(self.product)(self.point)
        tree = jax.tree.structure(self.point)

        def run(constants: list[Array], v: Tangent) -> Tangent:
            program = ClosedJaxpr(closed.jaxpr, constants)
            return tree.unflatten(jaxpr_as_fun(program)(*jax.tree.leaves(v)))

        product = jax.tree_util.Partial(run, list(closed.consts))
        return LinearizedHessian(product, self.point)


class Linearization(NamedTuple):
    """A function near a point.

    Attributes:
        value: The value.
        gradient: The gradient.
        hessian: The Hessian, an operator.
    """

    value: Scalar
    gradient: Gradient
    hessian: AbstractOperator


class AtPoint:
    """A function at a point.

    Attributes:
        f: The function; it returns `(y, aux)`.
        x: The point: a tree of arrays.
        mode: How second derivatives are taken.
        known: Its value and gradient there, if the loop around the steps has them.
    """

    def __init__(
        self,
        f: Callable[..., Any],
        x: Point,
        mode: Nested,
        known: tuple[Scalar, Gradient] | None = None,
    ) -> None:
        self.f, self.x, self.mode, self.known = f, x, mode, known

    def at(self, x: Point) -> Scalar:
        """Return the value at another point."""
        return self.f(x)[0]

    def value(self) -> Scalar:
        """Return the value."""
        return self.at(self.x) if self.known is None else self.known[0]

    def linearized(self) -> Linearization:
        """Return value, gradient and Hessian, with one linearization for all products.

        What it returns belongs to the trace that it is called in.
        """
        if isinstance(self.mode.outer, Forward) and isinstance(
            self.mode.inner, Reverse
        ):
            # The derivative of the gradient itself: that of a product along zero is the
            # same program with one more transformation to trace and to compile.
            def slope(x: Point) -> tuple[Any, Any]:
                y, gradient, _ = self.mode.inner.gradient(self.f, x)
                return gradient, y

            gradient, product, y = jax.linearize(slope, self.x, has_aux=True)
            return Linearization(y, gradient, LinearizedHessian(product, self.x))

        def along(v: Tangent) -> tuple[Any, Any]:
            y, gradient, product, _ = self.mode.product(self.f, self.x, v)
            return product, (y, gradient)

        zero = space.zeros(self.x)
        _, product, (y, gradient) = jax.linearize(along, zero, has_aux=True)
        return Linearization(y, gradient, LinearizedHessian(product, self.x))

    def gradient(self) -> Gradient:
        """Return the gradient."""
        return self.mode.inner.gradient(self.f, self.x)[1]

    def value_and_slope(self, v: Tangent) -> tuple[Any, Any]:
        """Return the value, and the derivative along a direction.

        In forward mode where the function has it: two thirds of the time of a gradient,
        and less than half of its code for the compiler. Not of half precision, where
        the product with the gradient is summed in single precision.
        """
        if self.known is not None:
            return self.known[0], space.inner(self.known[1], v)
        pairs = zip(jax.tree.leaves(self.x), jax.tree.leaves(v), strict=True)
        if all(a.dtype == b.dtype == space.wide(a.dtype) for a, b in pairs):
            try:
                return Forward().along(self.f, self.x, v)[:2]
            except Exception:
                # No forward rule, as of a `custom_vjp`: or an error of the function,
                # which comes again below.
                pass
        if isinstance(self.mode.inner, Forward):
            v = jax.tree.map(lambda a, b: b.astype(a.dtype), self.x, v)
            return self.mode.inner.along(self.f, self.x, v)[:2]
        y, gradient, _ = self.mode.inner.gradient(self.f, self.x)
        return y, space.inner(gradient, v)


def relative_residual(
    numbers: Numbers, size: Scalar, largest: Scalar
) -> tuple[Scalar, Scalar]:
    r"""Return $\min(\eta, \sqrt{\|g\| / G})$, the root no less than that of rounding.

    Further on curvatures of small directions vanish for functions of small numbers. G
    is the largest norm so far, where (7.3) of Nocedal and Wright (2006) has 1, which
    depends on the unit of f.

    Args:
        numbers: With $\eta$, `max_tol`.
        size: The norm of the gradient.
        largest: The largest norm of one before, 0 if there was none.

    Returns:
        It, and the largest norm by now.
    """
    largest = jnp.fmax(largest, jnp.where(jnp.isfinite(size), size, 0))
    share = size / jnp.where(largest > 0, largest, 1)
    root = jnp.sqrt(jnp.maximum(share, jnp.finfo(size.dtype).eps))
    return jnp.minimum(numbers["max_tol"].astype(size.dtype), root), largest


def is_newton_step(residual: Scalar) -> Bool[Array, ""]:
    r"""Whether a step s is one of Newton's method, by $\|H s + g\| / \|g\|$.

    A damping, or a truncated solve, makes it shorter.
    """
    return residual <= 0.1


def farthest(x: Point) -> Scalar:
    """Return how far from a point a step goes whose length nothing else tells.

    A nearly singular Hessian tells none, and the objective may not be defined there.
    """
    size = space.norm(x)
    return 100 * jnp.maximum(size, jnp.ones_like(size))


class Outcome(Enumeration):
    """What became of a step."""

    accepted = "the step was taken"
    steepest = "not a descent direction; the gradient was used"
    rejected = "the objective would not have decreased: no step was taken"
    not_finite = "a value was not finite: no step was taken"
    stationary = "the gradient is zero: there is no step to take"
