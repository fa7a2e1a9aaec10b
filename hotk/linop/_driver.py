"""What the iterative solvers share: their input, their loop, their result."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from hotk._core import ModeError, Tracer, message
from hotk.prepared import jitted

from . import space
from ._solution import Reason, Solution


class Check(NamedTuple):
    """When to stop.

    Attributes:
        tol: The residual's norm over that of `b`.
        max_steps: The largest number of products.
        starts: Whether the iteration begins at a point other than zero.
        verifies: Whether the residual is computed anew at the end.
    """

    tol: Any
    max_steps: Any
    starts: bool
    verifies: bool = True


def prepared_system(
    call: str, operator: Any, b: Any, x0: Any, tol: Any, max_steps: Any
) -> tuple[Any, Any, Check]:
    """Check operator, right-hand side and start, and widen them to work with."""
    if not operator.symmetric:
        raise TypeError(
            f"`{call}`: the operator is not known to be symmetric. For a product of "
            "operators solve with one factor after the other."
        )
    if isinstance(max_steps, int) and max_steps < 1:
        raise ValueError(f"`{call}`: `max_steps` is {max_steps}, not positive.")
    b = operator.vector(b, call)
    start = space.zeros(b) if x0 is None else operator.vector(x0, call)
    steps = 10 * max(space.dimension(b), 1) if max_steps is None else max_steps
    steps = min(steps, 2**31 - 1) if isinstance(steps, int) else steps
    dtype = space.scalar_dtype(b)
    check = Check(jnp.asarray(tol, dtype), jnp.asarray(steps), x0 is not None)
    return space.widened(b), space.widened(start), check


_DERIVATIVE = "from A x = b follows A dx = db - dA x, another system with A"


def _refuse(call: str, derivative: str, primals: Any, tangents: Any) -> Any:
    raise ModeError(
        message(
            call,
            "an iteration that stops when it is done has no derivative here.",
            expected="an operator and vectors that nothing is differentiated by",
            got="a derivative by one of them",
            fix="Take `jax.lax.stop_gradient` of them, or differentiate the equation: "
            f"{derivative}.",
        )
    )


def constant(call: str, inputs: Any, derivative: str = _DERIVATIVE) -> Any:
    """Refuse derivatives: those of the steps are wrong where the steps are too few.

    Args:
        call: What was called, for the message.
        inputs: Trees; what is no tracer of floating numbers is left as it is.
        derivative: What the derivative is, for the message.
    """

    @jax.custom_jvp
    def same(leaf: Any) -> Any:
        return leaf

    same.defjvp(functools.partial(_refuse, call, derivative))
    marked = lambda a: isinstance(a, Tracer) and jnp.issubdtype(a.dtype, jnp.inexact)
    return jax.tree.map(lambda a: same(a) if marked(a) else a, inputs)


def loop(operator: Any, run: Callable[..., Any], *inputs: Any) -> Any:
    """Run an iteration: compiled as a whole, or step by step if it has to be.

    An operator whose products run on the host, such as one over batches of data, cannot
    be part of a compiled loop.

    Args:
        operator: The operator that the iteration multiplies with.
        run: From a while loop, `jax.lax.while_loop` or one in Python, and the inputs to
            the result.
        *inputs: Trees; what is no array in them is static.

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


def compiled(run: Callable[..., Any], inputs: Any) -> Any:
    """Run an iteration compiled as a whole."""
    arrays, statics = eqx.partition(inputs, eqx.is_array)
    leaves, treedef = jax.tree.flatten(statics)
    return _jitted(run, arrays, tuple(leaves), treedef)


@jitted(static_argnums=(0, 2, 3))
def _jitted(run: Callable[..., Any], arrays: Any, leaves: Any, treedef: Any) -> Any:
    inputs = eqx.combine(arrays, treedef.unflatten(leaves))
    with space.mesh_of(arrays):
        return run(jax.lax.while_loop, *inputs)


def _python_loop(condition: Any, body: Any, state: Any) -> Any:
    while bool(condition(state)):
        state = body(state)
    return state


def finished(
    mv: Callable[[Any], Any],
    b: Any,
    end: Any,
    target: Any,
    method: Any,
    like: Any,
    unit: Any,
    *,
    verify: bool = True,
) -> Solution:
    """Compute the residual anew and write down what was found, in another unit."""
    x = end["x"]
    r = space.minus(b, mv(x)) if verify else end["r"]
    residual, length = space.norm(r), space.norm(b)
    converged = end["reason"] == Reason.converged
    reason = Reason.where(
        converged & (residual > 1.5 * target), Reason.stagnated, end["reason"]
    )
    reason = Reason.where(
        converged & ~jnp.isfinite(residual), Reason.not_finite, reason
    )
    safe = jnp.where(length > 0, length, 1)
    return Solution(
        x=space.narrowed(space.times(unit, x), like),
        iterations=end["steps"],
        residual=residual * unit,
        relative=residual / safe,
        curvature=end["curvature"],
        direction=space.narrowed(end["direction"], like),
        model=-space.inner(x, space.plus(b, r)) / 2 * unit**2,
        reason=reason,
        method=method,
    )
