"""What the iterative solvers share: their input, their loop, their result."""

from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree

from hotk._core import RealNumber, Scalar, Vector, from_host, while_loop
from hotk._prepared import jitted

from . import space
from ._linear_map import AbstractLinearMap
from ._solution import Method, Reason, Solution
from ._vectors import check_symmetric


S = TypeVar("S")
R = TypeVar("R")

# What the next product with the operator is for. The operator stands in the program
# once: its product with the start, and the one that checks the solution, are steps of
# the same loop (tests/linop/test_start.py).
START, STEP, CHECK, DONE = range(4)


class Limits(NamedTuple):
    """When an iteration stops.

    Attributes:
        tol: The residual's norm over that of `b`.
        max_steps: The largest number of products.
        verify: Whether the residual is computed anew at the end.
    """

    tol: Scalar
    max_steps: Int[Array, ""]
    verify: bool = True


def check_system(
    call: str,
    operator: AbstractLinearMap,
    b: PyTree,
    x0: PyTree,
    tol: RealNumber,
    max_steps: int | Int[Array, ""] | None,
) -> tuple[Vector, Vector | None, Limits]:
    """Check operator, right-hand side and start; return vectors in working precision.

    Args:
        call: The call, for messages.
        operator: The operator.
        b: The right-hand side.
        x0: The start, or `None`.
        tol: The relative tolerance.
        max_steps: The largest number of products, `None` for ten times the dimension.

    Returns:
        The right-hand side, the start if there is one, and when to stop.

    Raises:
        TypeError: If the operator is not symmetric.
        StructureError: If `b` or `x0` is not a vector of the space.
    """
    check_symmetric(call, operator)
    b = operator.vector(b, call)
    start = None if x0 is None else space.widened(operator.vector(x0, call))
    steps = 10 * max(space.dimension(b), 1) if max_steps is None else max_steps
    # a larger Python number is no integer of JAX without 64 bits
    whole = isinstance(steps, (int, np.integer))
    steps = min(int(steps), 2**31 - 1) if whole else steps
    dtype = space.scalar_dtype(b)
    limits = Limits(from_host(tol, dtype), from_host(steps))
    return space.widened(b), start, limits


def in_working_precision(
    operator: AbstractLinearMap,
    like: Vector,
    product: Callable[[Vector], Vector] | None = None,
) -> Callable[[Vector], Vector]:
    """Return the product as a function of vectors in at least single precision.

    Sums over many numbers of half precision lose all digits, so an iteration keeps its
    vectors in single; the operator gets them in the dtypes of its point.

    Args:
        operator: The operator.
        like: A vector of the space.
        product: How the operator multiplies; by `mv` if left out.
    """
    mv = operator.mv if product is None else product
    return lambda v: space.widened(mv(space.narrowed(v, like)))


class Preconditioned(NamedTuple):
    """A preconditioner in a unit of its own.

    Attributes:
        product: Its product with a residual over that unit; `None` without one.
        first: The first of them.
        unit: A power of two near the root of its size before it was divided.
    """

    product: Callable[[Vector], Vector | None]
    first: Vector | None
    unit: Scalar | float

    @staticmethod
    def of(M: AbstractLinearMap | None, like: Vector, r: Vector) -> "Preconditioned":
        """Measure a preconditioner by its product with the first residual.

        Conjugate gradients make the same steps with any multiple of it, but squares of
        its products overflow where A is of size 1e-20 in single precision. Over the
        root neither they nor the curvatures along them are out of range.
        """
        if M is None:
            return Preconditioned(lambda v: None, None, 1.0)
        apply = in_working_precision(M, like)
        first = apply(r)
        unit = _size(first)
        return Preconditioned(lambda v: _over(apply(v), unit), _over(first, unit), unit)


@jitted
def _size(v: Vector) -> Scalar:
    return space.power_of_size(jnp.sqrt(space.power_of_size(v)))


@jitted
def _over(v: Vector, unit: Scalar) -> Vector:
    return space.times(1 / unit, v)


def loop(operator: AbstractLinearMap, run: Callable[..., R], *inputs: PyTree) -> R:
    """Run an iteration: compiled as a whole, or step by step on the host.

    An operator whose products run on the host, such as one over batches of data, cannot
    be part of a compiled loop; its iteration runs in Python.

    Args:
        operator: The operator that the iteration multiplies with.
        run: Function `run(while_loop, *inputs)` that returns the result. `while_loop`
            is `jax.lax.while_loop`, or a loop in Python with the same arguments.
        *inputs: Trees. What is not an array of JAX in them is static, and must be
            hashable.

    Returns:
        What `run` returns.

    Example:
        >>> H = hotk.HessianOperator(lambda x: x @ x, jnp.ones(2))
        >>> def cubed(while_loop, H, v):
        ...     step = lambda s: (s[0] + 1, H @ s[1])
        ...     return while_loop(lambda s: s[0] < 3, step, (0, v))[1]
        >>> hotk.linop.loop(H, cubed, H, jnp.ones(2)).tolist()
        [8.0, 8.0]
    """
    if operator.on_host:
        return run(_python_loop, *inputs)
    return compiled(run, inputs)


def compiled(run: Callable[..., R], inputs: tuple[PyTree, ...]) -> R:
    """Run an iteration compiled as a whole."""
    arrays, statics = eqx.partition(inputs, eqx.is_array)
    leaves, treedef = jax.tree.flatten(statics)
    return _jitted(run, arrays, tuple(leaves), treedef)


@jitted(quickly="if small", static_argnums=(0, 2, 3))
def _jitted(
    run: Callable[..., R],
    arrays: PyTree,
    leaves: tuple[Hashable, ...],
    treedef: Hashable,
) -> R:
    inputs = eqx.combine(arrays, jax.tree.unflatten(treedef, leaves))
    # the zeros that a loop begins with have the mesh of the inputs, or JAX refuses to
    # carry them: tests/linop/test_sharding.py
    with space.mesh_of(arrays):
        return run(while_loop, *inputs)


def _python_loop(
    condition: Callable[[S], bool | Bool[Array, ""]], body: Callable[[S], S], state: S
) -> S:
    while bool(condition(state)):
        state = body(state)
    return state


class End(NamedTuple):
    """The last state of an iteration, in the unit that it worked in.

    Attributes:
        x: The solution.
        r: The residual.
        steps: The number of products.
        curvature: The smallest Rayleigh quotient met.
        direction: Its direction if it is not positive, else zero.
        reason: Why the iteration stopped.
    """

    x: Vector
    r: Vector
    steps: Int[Array, ""]
    curvature: Float[Array, ""]
    direction: Vector
    reason: Reason


@jitted
def finished(
    b: Vector, end: End, tol: Scalar, method: Method, like: Vector, unit: Scalar
) -> Solution:
    """Make a `Solution` of the end of an iteration.

    Args:
        b: The right-hand side, over `unit`.
        end: The last state. Its residual is computed anew where that was asked for:
            that of the recurrence drifts from it by rounding, and is too small.
        tol: The largest residual over the norm of `b`.
        method: The solver.
        like: A vector in the dtypes of the result.
        unit: The power of two that the system was divided by.
    """
    x, r = end.x, end.r
    residual, length = space.scaled_norm(r), space.plain_norm(b)
    converged = end.reason == Reason.converged
    # 1.5: the two residuals differ by rounding where the recurrence stopped in time
    reason = Reason.where(
        converged & (residual > 1.5 * tol * length), Reason.stagnated, end.reason
    )
    reason = Reason.where(
        converged & ~jnp.isfinite(residual), Reason.not_finite, reason
    )
    # for b = 0 the solution is zero and so is the residual: 0 / 1, not 0 / 0
    safe = jnp.where(length > 0, length, 1)
    return Solution(
        x=space.narrowed(space.times(unit, x), like),
        iterations=end.steps,
        residual=residual * unit,
        relative=residual / safe,
        curvature=end.curvature,
        direction=space.narrowed(end.direction, like),
        # x'Ax/2 - b'x with A x = b - r
        # one factor after the other: their square may overflow where this does not
        model=-space.inner(x, space.plus(b, r)) / 2 * unit * unit,
        reason=reason,
        method=method,
    )
