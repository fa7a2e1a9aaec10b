r"""Gauss-Newton systems in the space of the samples: $(A A^T + \lambda I)\,c = w$.

With the rows A of a curvature $A^T A$ and a gradient $g = A^T w$ the damped step is $p
= (A^T A + \lambda I)^{-1} g = A^T (A A^T + \lambda I)^{-1} w$: a system of as many
equations as there are rows, in place of parameters. This form has nothing that cancels.
Only what no row can tell of a gradient, as of one with weight decay, is solved for as
$(g - A^T c) / \lambda$, where two terms of size $|g| / \lambda$ do cancel.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, final

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, PyTree

from hotk._core import (
    ClosedJaxpr,
    Gradient,
    Point,
    Scalar,
    StructureError,
    Tangent,
    cond,
    message,
    while_loop,
    work,
)
from hotk.curvature import RowsProgram, SampleRows, rows_program
from hotk.linop import space

from ._globalized import Trial
from ._local import AbstractStepOperator, AtPoint, Linearization


System: TypeAlias = Literal["auto", "parameters", "samples"]

# Products that conjugate gradients are taken to need where the count decides. The
# ill-conditioned systems that Gauss-Newton is used for need hundreds.
PRODUCTS = 100
# The step of the difference for the second derivative of the residuals, in lengths of
# the step: that of Transtrum and Sethna, section 2.3.
DIFFERENCE = 0.1
# A product linearizes three passes: of the model, forward and back.
PASSES = 3


@final
class SampleGram(AbstractStepOperator):
    r"""The curvature $A^T A$ by its rows.

    Attributes:
        rows: A: a tree like the point, each leaf with one leading axis.
        point: A vector of the space.
    """

    rows: PyTree[Float[Array, "m ..."]]
    point: Point

    @property
    def positive_semidefinite(self) -> bool:
        """Whether it is known to be positive semidefinite: it is."""
        return True

    def mv(self, v: Tangent) -> Tangent:
        """Return the product with one vector."""
        return space.narrowed(self.back(self.along(v)), self.point)

    def along(self, v: Tangent) -> Float[Array, " m"]:
        """Return the product of A with a vector."""
        products = jax.tree.map(_times, self.rows, space.widened(v))
        return jax.tree.reduce(jnp.add, products)

    def back(self, c: Float[Array, " m"]) -> Tangent:
        """Return the product of its transpose with a vector."""
        return jax.tree.map(lambda a: jnp.tensordot(c, a, 1), self.rows)

    def gram(self) -> Float[Array, "m m"]:
        """Return $A A^T$."""
        flat = [a.reshape(len(a), -1) for a in jax.tree.leaves(self.rows)]
        return jax.tree.reduce(jnp.add, [a @ a.T for a in flat])


def _times(a: Float[Array, "m ..."], v: Float[Array, "..."]) -> Float[Array, " m"]:
    return jnp.tensordot(a, v, v.ndim)


class DampedSystem(NamedTuple):
    r"""The system of one damping.

    Attributes:
        system: The systems of the point.
        damping: $\lambda$.
        factor: The Cholesky factor of $A A^T + \lambda I$; NaN if there is none.
    """

    system: "SampleSystem"
    damping: Scalar
    factor: Float[Array, "m m"]

    def inverse(self, b: Float[Array, " m"]) -> Float[Array, " m"]:
        """Solve in the space of the samples, and refine once."""
        solved = lambda b: jax.scipy.linalg.cho_solve((self.factor, True), b)
        c = solved(b)
        return c + solved(b - (self.system.gram @ c + self.damping * c))

    def solve(self, gradient: Gradient) -> Tangent:
        r"""Return $(A^T A + \lambda I)^{-1} g$.

        Args:
            gradient: That of the objective, a multiple of it, or another vector.
        """
        A, weights = self.system.curvature, self.system.rows.weights
        g = space.widened(gradient)
        if weights is None:
            return self._of_any(g)
        own = A.back(weights)
        square, along = space.inner(own, own), space.inner(own, g)
        scale = along / jnp.where(square > 0, square, 1)
        p = space.times(scale, A.back(self.inverse(weights)))
        rest = space.plus(g, own, -scale)
        # What is rounding would come back divided by the damping.
        least = 100 * jnp.sqrt(jnp.finfo(square.dtype).eps)
        other = space.norm(rest) > least * space.norm(g)
        return space.plus(p, cond(other, self._of_any, space.zeros, rest))

    def _of_any(self, d: Tangent) -> Tangent:
        A = self.system.curvature
        once = lambda d: space.times(
            1 / self.damping, space.minus(d, A.back(self.inverse(A.along(d))))
        )
        p = once(d)
        image = space.plus(A.back(A.along(p)), p, self.damping)
        return space.plus(p, once(space.minus(d, image)))

    def accelerated(self, s: Tangent, most: ArrayLike) -> Tangent:
        r"""Add the geodesic acceleration to a step, unless it is too long [1] (2.3).

        Along the step s the residuals bend by $r'' = \partial^2 r(x + t s) / \partial
        t^2$, and $a = -\frac12 A^T (A A^T + \lambda I)^{-1} r''$ is what makes up for
        it to second order. With the factor at hand it costs one more evaluation of the
        residuals, of which $r''$ is a difference.

        Args:
            s: The step.
            most: The largest $2 |a| / |s|$.

        References:
            [1] Transtrum and Sethna (2012). Improvements to the Levenberg-Marquardt
                algorithm for nonlinear least-squares minimization. arXiv:1201.5885.
        """
        rows, A = self.system.rows, self.system.curvature
        if rows.residuals is None or rows.weights is None:
            return s
        h = DIFFERENCE
        beyond = space.plus(A.point, space.narrowed(s, A.point), h)
        after = rows.residuals(space.narrowed(beyond, A.point))
        bend = 2 / h * ((after - rows.weights) / h - A.along(s))
        a = space.times(-0.5, A.back(self.inverse(bend)))
        short = 2 * space.norm(a) <= most * space.norm(s)
        return space.plus(s, space.choose(short, a, space.zeros(a)))


class SampleSystem:
    """The damped systems of one point, in the space of the samples.

    Attributes:
        rows: The rows A, the w with $g = A^T w$ if they are known, and the residuals.
        curvature: The curvature $A^T A$.
        gram: The matrix $A A^T$, formed once for all dampings.
        gradient: The gradient g of the objective.
    """

    def __init__(self, rows: SampleRows, local: AtPoint) -> None:
        """Form the Gram matrix."""
        self.rows = rows._replace(rows=space.widened(rows.rows))
        self.curvature = SampleGram(self.rows.rows, local.x)
        self.gram = self.curvature.gram()
        if local.known is not None:
            self.gradient = local.known[1]
        elif rows.weights is None:
            self.gradient = local.gradient()
        else:
            own = self.curvature.back(rows.weights)
            self.gradient = space.narrowed(own, local.x)

    def damped(self, damping: Scalar) -> DampedSystem:
        """Factorize the system of one damping."""
        damping = jnp.asarray(damping, self.gram.dtype)
        unit = jnp.eye(len(self.gram), dtype=self.gram.dtype)
        shifted = self.gram + damping * unit
        factor = jax.lax.linalg.cholesky(shifted, symmetrize_input=False)
        return DampedSystem(self, damping, factor)

    def damped_as_needed(self, damping: Scalar) -> DampedSystem:
        """Factorize that of the first damping, each ten times the last, that can be."""
        finite = jnp.all(jnp.isfinite(self.gram))
        size = jnp.finfo(self.gram.dtype).eps * jnp.trace(self.gram)

        def grown(s: tuple[Scalar, Array]) -> tuple[Scalar, Array]:
            found = self.damped(jnp.maximum(10 * s[0], size))
            return found.damping, found.factor

        first = self.damped(damping)
        no_factor = lambda s: finite & (size > 0) & ~jnp.isfinite(s[1][-1, -1])
        start = first.damping, first.factor
        return DampedSystem(self, *while_loop(no_factor, grown, start))

    def linearized(self, value: Scalar) -> Linearization:
        """Return value, gradient and curvature, as `AtPoint.linearized` does."""
        return Linearization(value, self.gradient, self.curvature)

    def proposal(self, gradient: Gradient, most: ArrayLike) -> Callable[[Any], Trial]:
        """Return a function from a damping to the step with it.

        Args:
            gradient: The gradient of the step.
            most: The longest acceleration; see `DampedSystem.accelerated`.
        """

        def propose(damping: Scalar) -> Trial:
            system = self.damped(damping)
            s = space.times(-1, system.solve(gradient))
            image = self.curvature.along(s)
            form, square = image @ image, space.inner(s, s)
            return Trial(
                system.accelerated(s, most),
                space.inner(space.widened(gradient), s) + form / 2,
                jnp.zeros((), bool),
                jnp.ones((), int),
                form / jnp.where(square > 0, square, 1),
                system.damping,
            )

        return propose


def check_system_choice(name: str, system: str) -> None:
    """Refuse a system that there is not.

    Raises:
        ValueError: If it is none of the choices.
    """
    if system not in ("auto", "parameters", "samples"):
        raise ValueError(
            f"`{name}`: system {system!r} is none of 'auto', 'parameters', 'samples'."
        )


def sample_system(call: str, local: AtPoint, system: System) -> SampleSystem | None:
    """Return the systems of a point in the space of the samples.

    Args:
        call: The optimizer, for messages.
        local: The objective at the point.
        system: What the optimizer was told.

    Returns:
        The systems; `None` if those in the parameters are to be solved: `"auto"` counts
        which takes less work.

    Raises:
        StructureError: If it is `"samples"` and the objective has no rows.
    """
    if system == "parameters":
        return None
    if space.has_shards(local.x):
        if system == "samples":
            space.refuse_shards(local.x)
        return None
    found = rows_program(local.at, local.x)
    if found is None and system == "samples":
        raise StructureError(
            message(
                f"{call}(system='samples')",
                "the objective does not tell which residuals belong to which example.",
                expected="an objective of single examples, as it is: nothing added, no "
                "factor, a model with a reverse mode, and no explicit axes of a mesh",
                got="a function of all of them, or a sum with one",
                fix="Give `residual_fn(params, example)` and `examples=` to the "
                "update, or `model_fn(params, example)`, `loss_fn=` and `examples=`. "
                "`minimize` takes `hotk.curvature.LeastSquares(residual_fn, "
                "examples)`.",
            )
        )
    if found is None or (system == "auto" and not is_cheaper(local, found)):
        return None
    return SampleSystem(found.compute(), local)


def is_cheaper(local: AtPoint, found: RowsProgram) -> bool:
    """Whether a step in the space of samples takes less work than one by products.

    Counted in multiplications: the rows, their Gram matrix and its factor, against a
    hundred products with the curvature.
    """
    m, n = found.number, space.dimension(local.x)
    if m >= n:
        return False
    own = m**2 * n + m**3 // 3 + sum(work(p.jaxpr) for p in found.programs)
    program: ClosedJaxpr = jax.make_jaxpr(local.at)(local.x)
    return own < PRODUCTS * PASSES * work(program.jaxpr)
