r"""Gauss-Newton steps of few parameters: by a factor of the Jacobian of the residuals.

The step with damping $\lambda$ is the least-squares solution of $J s = -r$,
$\sqrt\lambda D s = 0$, where D has the norms of the columns of J that were largest so
far [1]. So nothing depends on the units of the parameters. One triangular factor of
$J D^{-1}$ and its singular values serve all dampings; $J^T J$ and its squared condition
number are never formed. The same numbers tell how far it still is: what the residuals
have in the range of J, and the step without any damping.

References:
    [1] More (1978). The Levenberg-Marquardt algorithm: implementation and theory.
        Numerical Analysis, Lecture Notes in Mathematics 630, 105-116. Section 6.
    [2] Kanzow, Yamashita and Fukushima (2004). Levenberg-Marquardt methods with strong
        local convergence properties for solving nonlinear equations with convex
        constraints. J. Comput. Appl. Math. 172(2), 375-397.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from hotk._core import Gradient, Point, Scalar, Tangent, cond, while_loop, work
from hotk._dense import columns, gathered
from hotk._primitive import with_forward_rule
from hotk.curvature import residuals_of
from hotk.linop import Identity, space

from ._bounds import Bounds
from ._globalized import GlobalizedState, Trial, globalized_step
from ._linear_solver import LinearSolver
from ._local import AtPoint, Linearization, Numbers
from ._samples import DIFFERENCE, PASSES, PRODUCTS
from ._scaling import measured


# The numbers of the largest Jacobian: 128 MiB in float64.
_MOST_NUMBERS = 1 << 24
# So few parameters are always worth a factor: rounding ruins their systems first.
_FEW = 32


class FactoredSystem:
    """The damped systems of one point.

    Attributes:
        scale: D, for each parameter the largest norm that its column had so far, or
            the inverse of the size that was given.
        cosine: Of the angle between the residuals and the range of J: the root of the
            relative decrease that the linear model promises. It has no units.
        relative_step: The largest entry of the step without damping, relative to that
            of the point.
        held: Which parameters do not move, as they are at a bound that their gradient
            pushes to: all of the above but the scale is without them.
        slope: The gradient $D^{-1} J^T r$.
        largest: The largest eigenvalue of $D^{-1} J^T J D^{-1}$.
    """

    def __init__(
        self,
        residuals: Callable[[Point], Float[Array, " m"]],
        x: Point,
        scale: Float[Array, " n"],
        bounds: Bounds | None = None,
        adapts: Scalar | float = 1.0,
    ) -> None:
        """Form the Jacobian and its factor."""
        self.x = x
        flat = space.flattened(x)
        self.of_flat = lambda v: residuals(space.unflattened(v, x))
        program = jax.make_jaxpr(self.of_flat)(flat)
        run = with_forward_rule(program, [flat])
        # Whole on each device: `qr` refuses rows that are divided by their type.
        self.r, push = jax.linearize(lambda v: gathered(jnp.asarray(run(v)[0])), flat)
        [[jacobian]] = columns(push, flat, None)
        norms = _norms(jacobian)
        self.scale, self.unit = measured(norms, scale, adapts)
        self.limits, self.held = None, jnp.zeros(len(flat), bool)
        if bounds is not None:
            within = Bounds(*map(space.flattened, bounds))
            gradient = jacobian.T @ self.r
            self.held = within.projected(flat, gradient) != gradient
            self.limits = Bounds(*(self.unit * (b - flat) for b in within))
            jacobian = jnp.where(self.held[None], 0, jacobian)
        self.jacobian = jacobian / self.unit[None]
        m, n = jacobian.shape
        # Of a matrix with one column more the factor has Q^T r in its last one.
        beside = jnp.concatenate([self.jacobian, -self.r[:, None]], axis=1)
        factor = jnp.linalg.qr(beside, mode="r")[: min(m, n)]
        self.factor, self.target = factor[:, :n], factor[:, n]
        u, self.values, self.vectors = jnp.linalg.svd(self.factor, full_matrices=False)
        self.along = u.T @ self.target
        self.slope = -self.vectors.T @ (self.values * self.along)
        eps = jnp.finfo(flat.dtype).eps
        self.largest = self.values[0] ** 2
        real = self.values > max(m, n) * eps * self.values[0]
        size = jnp.linalg.norm(self.r)
        inside = jnp.linalg.norm(jnp.where(real, self.along, 0))
        # A Jacobian that is not finite tells nothing, and not that there is nothing.
        told = jnp.all(jnp.isfinite(self.values)) & jnp.isfinite(size)
        cosine = jnp.where(size > 0, inside / jnp.where(size > 0, size, 1), 0)
        self.cosine = jnp.where(told, cosine, jnp.nan)
        full = jnp.where(real, self.along / jnp.where(real, self.values, 1), 0)
        s = jnp.abs(self.vectors.T @ full) * norms / self.unit
        at = jnp.abs(norms * flat)
        reach = at + eps**0.5 * jnp.linalg.norm(at)
        step = jnp.max(jnp.where(s > 0, s / reach, 0))
        self.relative_step = jnp.where(told, step, jnp.nan)

    def first_damping(self, damping: Scalar) -> Scalar:
        r"""Return the first damping, at least so large that $\|D s\| \le \|D x\|$.

        Args:
            damping: What is asked for, relative to the largest eigenvalue. Zero stays.
        """
        reach = jnp.linalg.norm(self.unit * space.flattened(self.x))
        reach = jnp.where((reach > 0) & (damping > 0), reach, jnp.inf)
        push = self.values * self.along

        def too_long(damping: Scalar) -> Any:
            return jnp.linalg.norm(push / (self.values**2 + damping)) > reach

        usual = jnp.isfinite(self.largest) & (self.largest > 0)
        first = (damping * jnp.where(usual, self.largest, 1)).astype(self.r.dtype)
        first = jnp.maximum(first, jnp.finfo(first.dtype).tiny)
        return while_loop(too_long, lambda damping: 2 * damping, first)

    def proposal(self, gradient: Gradient, most: ArrayLike) -> Callable[[Any], Trial]:
        r"""Return a function from a damping to the step with it.

        Args:
            gradient: The gradient of the step; what it has beside $J^T r$, as where it
                was clipped, is solved for as well.
            most: The longest geodesic acceleration; see `SampleSystem.accelerated`.
        """
        dtype = self.r.dtype
        g = space.flattened(space.widened(gradient)).astype(dtype) / self.unit
        g = jnp.where(self.held, 0, g)
        eps = jnp.finfo(dtype).eps
        rest = g - self.slope
        # What is rounding would come back divided by the least singular value.
        other = jnp.linalg.norm(rest) > eps**0.5 * jnp.linalg.norm(g)
        rest = jnp.where(other, rest, 0)
        inside = self.vectors @ rest
        outside = rest - self.vectors.T @ inside  # of fewer rows than parameters
        other = jnp.linalg.norm(outside) > eps**0.5 * jnp.linalg.norm(rest)
        outside = jnp.where(other, outside, 0)

        def solved(b: Array, damping: Scalar) -> Array:
            return self.vectors.T @ ((self.vectors @ b) / (self.values**2 + damping))

        def propose(damping: Scalar) -> Trial:
            damping = jnp.asarray(damping, dtype)
            weights = (self.values * self.along - inside) / (self.values**2 + damping)
            s = self.vectors.T @ weights - outside / damping
            image = self.values * weights
            whole = s + self._acceleration(s, solved, damping, most)
            rounds = jnp.ones((), int)
            limits = self.limits
            if limits is not None:
                # In directions of small singular values rounding would leave a bound.
                whole, s = (jnp.where(self.held, 0, a) for a in (whole, s))
                fits = jnp.all((limits.lower <= whole) & (whole <= limits.upper))
                whole, s, image, rounds = cond(
                    fits,
                    lambda: (whole, s, image, rounds),
                    lambda: self._within(limits, g, rest, damping),
                )
            square = jnp.sum(image**2)
            length = jnp.sum(s**2)
            return Trial(
                self._tree(whole, gradient),
                jnp.sum(g * s) + square / 2,
                jnp.zeros((), bool),
                rounds,
                square / jnp.where(length > 0, length, 1),
                damping,
            )

        return propose

    def _within(
        self, limits: Bounds, g: Array, rest: Array, damping: Scalar
    ) -> tuple[Array, Array, Array, Array]:
        """Return a step within the bounds, twice, its image and the factorizations.

        It begins with a step along the projected gradient, as short as the largest
        curvature asks for. From there it goes to the minimum over what is inside, up to
        the first bound, which is kept, and so on: the damped model only decreases, so
        it does no less than the projected gradient does [2].
        """
        lower, upper = limits
        n, root = len(g), jnp.sqrt(damping)
        inside = lambda z: (lower < z) & (z < upper) & ~self.held

        def on_face(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            z, count, _ = state
            free = inside(z)
            above = self.target - self.factor @ z
            below = jnp.where(free, -root * z - rest / root, 0)
            left = jnp.concatenate(
                [
                    jnp.where(free[None], self.factor, 0),
                    jnp.diag(jnp.where(free, root, 1)),
                ]
            )
            right = jnp.concatenate([above, below])[:, None]
            r = jnp.linalg.qr(jnp.concatenate([left, right], axis=1), mode="r")[:n]
            d = jax.scipy.linalg.solve_triangular(r[:, :n], r[:, n])
            d = jnp.where(free, d, 0)
            room = jnp.where(d < 0, lower - z, upper - z)
            ways = jnp.where(d != 0, room / jnp.where(d != 0, d, 1), jnp.inf)
            way = jnp.minimum(jnp.min(ways), 1)
            moved = jnp.clip(z + way * d, lower, upper)
            # the bound itself: not what rounding makes of it
            moved = jnp.where(ways <= way, jnp.where(d < 0, lower, upper), moved)
            return moved, count + 1, way >= 1

        more = lambda s: ~s[2] & (s[1] <= n) & jnp.any(inside(s[0]))
        begin = jnp.clip(-g / (self.largest + damping), lower, upper)
        none = jnp.zeros((), int)
        begin = jnp.where(self.held, 0, begin), none, jnp.zeros((), bool)
        z, count, _ = while_loop(more, on_face, begin)
        return z, z, self.factor @ z, jnp.maximum(count, 1)

    def _acceleration(
        self,
        s: Array,
        solved: Callable[[Array, Scalar], Array],
        damping: Scalar,
        most: ArrayLike,
    ) -> Array:
        """Return the geodesic acceleration, zero if it is too long."""
        h = DIFFERENCE
        beyond = space.flattened(self.x) + h * (s / self.unit)
        bend = 2 / h * ((self.of_flat(beyond) - self.r) / h - self.jacobian @ s)
        a = -0.5 * solved(self.jacobian.T @ bend, damping)
        short = 2 * jnp.linalg.norm(a) <= most * jnp.linalg.norm(s)
        return jnp.where(short, a, 0)

    def gradient(self) -> Gradient:
        """Return the gradient of half the sum of squares."""
        return space.unflattened(self.unit * self.slope, space.widened(self.x))

    def _tree(self, s: Array, like: Gradient) -> Tangent:
        return space.unflattened(s / self.unit, space.widened(like))


def factored_system(
    local: AtPoint, state: GlobalizedState, adapts: Scalar, bounds: Bounds | None = None
) -> FactoredSystem | None:
    """Return the systems of a point, or `None` if a factor is not worth its work.

    Counted in multiplications: the Jacobian and its factor, against a hundred products.

    Args:
        local: The objective at the point.
        state: The last state; without `cosine` there were too many parameters.
        adapts: Whether D follows the Jacobian.
        bounds: The bounds, as the point is, if there are any.
    """
    n, scale = space.dimension(local.x), state.scale
    if (
        scale is None
        or state.cosine is None
        or scale.shape != (n,)
        or space.has_shards(local.x)
    ):
        return None
    residuals = residuals_of(local.at, local.x)
    if residuals is None:
        return None
    program = jax.make_jaxpr(residuals)(local.x)
    [r], own = program.out_avals, work(program.jaxpr)
    m = r.shape[0]
    real = jnp.issubdtype(r.dtype, jnp.floating)
    narrow = jnp.finfo(r.dtype).bits < 32  # LAPACK has no factors of these
    if narrow or not (real and 0 < m * n <= _MOST_NUMBERS):
        return None
    # Of fewer residuals than parameters the systems are those of the samples.
    costly = m < n or 2 * m * n**2 + n * own > PRODUCTS * PASSES * own
    if n > _FEW and costly:
        return None
    return FactoredSystem(residuals, local.x, scale, bounds, adapts)


def adapted_damping(
    accept: Array, damping: Scalar, ratio: Scalar, trial: Trial
) -> Scalar:
    """Return the damping after a trial: Algorithm 3.16 of Madsen et al. (2004)."""
    del trial
    taken = ratio > accept
    cubic = 1 - (2 * jnp.where(taken, ratio, 1) - 1) ** 3
    lighter = damping * jnp.maximum(cubic, 1 / 3)
    tiny = jnp.asarray(jnp.finfo(damping.dtype).tiny, damping.dtype)
    return jnp.maximum(jnp.where(taken, lighter, 4 * damping), tiny)


def factored_step(
    local: AtPoint,
    gradient: Gradient,
    state: GlobalizedState,
    numbers: Numbers,
    factored: FactoredSystem,
    bounds: Bounds | None = None,
) -> tuple[Any, GlobalizedState]:
    """Make a step by a factor of the Jacobian."""
    dtype = state.control.dtype
    begun = state.control > 0
    control = cond(
        begun,
        lambda: state.control,
        lambda: factored.first_damping(numbers["damping"]).astype(dtype),
    )
    step, after = globalized_step(
        local,
        Linearization(local.value(), factored.gradient(), Identity()),
        gradient if bounds is None else bounds.projected(local.x, gradient),
        control,
        factored.proposal(gradient, numbers["max_acceleration"]),
        functools.partial(adapted_damping, numbers["accept"]),
        accept=numbers["accept"],
        max_rejections=numbers["max_rejections"],
        solver=LinearSolver.factored,
        bounds=bounds,
    )
    return step, after._replace(
        preconditioner=state.preconditioner,
        bounds=state.bounds,
        scale=factored.scale.astype(dtype),
        cosine=factored.cosine.astype(dtype),
        relative_step=factored.relative_step.astype(dtype),
    )


def _norms(jacobian: Float[Array, "m n"]) -> Float[Array, " n"]:
    """Return the norms of the columns; squares may be beyond the largest number."""
    largest = jnp.max(jnp.abs(jacobian), axis=0)
    usual = jnp.where(largest > 0, largest, 1)
    return largest * jnp.linalg.norm(jacobian / usual[None], axis=0)
