"""`minimize`: the loop around a transformation, and `step_info`: what it takes."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike
from jaxtyping import ArrayLike, PyTree

from hotk._core import (
    Point,
    Selection,
    Where,
    bar,
    describe,
    from_host,
    in_trace,
    message,
    names_ours,
    nothing_inexact,
    remark,
    selection,
    split_point,
)
from hotk.linop import space
from hotk.prepared import Info
from hotk.primitive import nondifferentiable

from ._chunk import Iterate, Limits, chunk
from ._flat import is_better_flat
from ._kfac_step import KFACState
from ._linear_solver import asks_for_sparse
from ._minimum import Minimum
from ._parameters import refuse_complex_parameters
from ._residuals import explained_for_residuals
from ._step import BoundFormula, called, run, run_with_indices
from ._trust_region import trust_region
from ._whole import Transform


_DERIVATIVE = "`hotk.rule.minimum(f, solver)` does, with this call as the solver"


@names_ours
def minimize(
    f: Callable[..., Any],
    x0: Point,
    transform: optax.GradientTransformation | None = None,
    *,
    tol: ArrayLike | None = None,
    gtol: ArrayLike | None = None,
    xtol: ArrayLike = 0.0,
    rtol: ArrayLike = 0.0,
    max_steps: int = 1000,
    args: tuple[Any, ...] = (),
    progress: bool = False,
    where: Where = None,
    state: optax.OptState | None = None,
    callback: Callable[[Minimum], Any] | None = None,
    callback_every: int = 1,
) -> Minimum:
    r"""Minimize a function by the updates of a transformation of optax.

    It is the loop that one writes: value and gradient, `transform.update` with
    `value=`, `grad=` and `value_fn=`, `optax.apply_updates`, until the gradient is
    small. The steps run compiled, 64 at a time; a new closure of the same code over
    other arrays is not compiled again, and neither is a transformation that is made
    anew, as in the example.

    Args:
        f: Function `f(x, *args)` that returns one real number.
        x0: The start: any pytree. Floating leaves are changed; all else passes through.
        transform: Any `optax.GradientTransformation`, one of `hotk.optim` or not. What
            it captured, such as a list in a schedule, is read in each call. Without one
            it is `hotk.optim.trust_region()`, Newton's method in a trust region by
            products with the Hessian.
        tol: Stop where the Euclidean norm of the gradient is at most this; the square
            root of the dtype's precision if left out (1.5e-8 in float64). Rounding may
            keep the gradient of a sum over many examples above that: give a larger one,
            or take the mean. If left out, `levenberg_marquardt` of few parameters stops
            by what its state says of the step without damping, which has no unit.
        gtol: The same as `tol`, by the name that SciPy has for it.
        xtol: Stop as well after a step s with $\|s\| \le t (t + \|x\|)$, where t is
            this number, as `scipy.optimize.least_squares` does. Up to 300 parameters
            the whole step of Newton's method has to be as short, in each entry, or to
            change f by no more than its rounding. Not if left out.
        rtol: Stop as well after a step s with $\|s\| \le t \|x\|$ whose change of f is
            at most $t |f|$, as optimistix does; Newton's step as for `xtol`. It does
            not depend on the scale of f: a sum and a mean stop at the same point. Not
            if left out.
        max_steps: The most updates.
        args: Further arguments of `f`; they may change value freely.
        progress: Whether to show a bar.
        where: Which leaves of `x0` to change; see `hotk.Where`.
        state: A state of the transformation to go on from, as `Minimum.state` of a run
            before: with its `x` as `x0` the steps are those that it would have made.
            Steps and history are counted anew. If left out, `transform.init(x0)`.
        callback: Called on the host with the `Minimum` so far, whose `reason` is
            `Stop.most_steps`. If it returns true, or raises `StopIteration`, the run
            ends there.
        callback_every: After how many steps it is called, at most 64. Each time f and
            its gradient are evaluated once more.

    Returns:
        A `Minimum`: the point, its value, and why it stopped. Where a value or a
        gradient is not finite, it stops at the point before. Where ten updates in a row
        change nothing, it stops as well.

    Raises:
        OutputError: If `f` returns anything but one real number.
        DtypeError: If a parameter is complex, or none of them is floating.
        StructureError: If `state` is not one of the transformation at `x0`.
        TypeError: If `transform` is not a transformation, `args` is not a tuple,
            both `tol` and `gtol` are given, or there is a callback inside of a
            transformation.
        ValueError: If `max_steps` is negative, or `callback_every` not from 1 to 64.

    Example:
        >>> f = lambda x, a: jnp.sum((x - a) ** 4)
        >>> find = lambda x0, a: hotk.optim.minimize(
        ...     f, x0, hotk.optim.newton_cg(), args=(a,), tol=1e-3
        ... )
        >>> found = find(jnp.zeros(2), 1.0)
        >>> bool(found.converged), bool(jnp.all(abs(found.x - 1) < 0.1))
        (True, True)

        Ten steps, and then the others:

        >>> first = hotk.optim.minimize(f, jnp.zeros(2), max_steps=10, args=(1.0,))
        >>> rest = hotk.optim.minimize(f, first.x, args=(1.0,), state=first.state)
        >>> int(first.steps), bool(rest.converged)
        (10, True)
    """
    call = "minimize(f, x0, transform)"
    if tol is not None and gtol is not None:
        raise TypeError(f"`{call}`: `gtol` is another name of `tol`: give one of them.")
    tol = gtol if tol is None else tol
    limits = tol, xtol, rtol
    loop = _Loop.of(call, f, x0, transform, limits, max_steps, args, where)
    moving, state, limits, traced = loop.moving, loop.state, loop.limits, loop.traced
    values: list[float] = []
    with bar("minimize", max_steps, show=progress) as advance:
        while True:
            given, order = loop.arguments(moving, state, limits)
            with called(call), explained_for_residuals():
                end: Iterate = loop.run(*given, **order)
            if traced:
                end = nondifferentiable(call, end, _DERIVATIVE)
            moving = end.x
            state = end.state
            if traced:
                history = jnp.append(end.start, end.values[:max_steps])
                break
            limits = limits._replace(
                steps=end.steps, still=end.still, curvature=end.curvature
            )
            count = int(end.taken)
            values += [] if values else [float(end.start)]
            values += np.asarray(end.values)[:count].tolist()
            history = jax.device_put(np.array(values, loop.dtype))
            advance(count, f"f = {float(end.y):.6g}")
            if bool(end.done) or int(end.steps) >= max_steps:
                break
    return Minimum(
        eqx.combine(moving, loop.rest),
        end.y,
        end.size,
        end.steps,
        end.reason,
        history,
        end.curvature,
        state,
    )


def step_info(
    f: Callable[..., Any],
    x0: Point,
    transform: optax.GradientTransformation | None = None,
    *,
    args: tuple[Any, ...] = (),
    where: Where = None,
) -> Info:
    """Tell what a step of `minimize` takes, before one is made.

    It compiles the program of `minimize` with the same arguments, and runs nothing; a
    `minimize` after it compiles nothing.

    Args:
        f: Function `f(x, *args)` that returns one real number.
        x0: The start: any pytree.
        transform: Any `optax.GradientTransformation`; `trust_region()` if left out.
        args: Further arguments of `f`.
        where: Which leaves of `x0` change; see `hotk.Where`.

    Returns:
        An `Info`. `temporary_bytes` are the bytes of a step besides the point, the
        state and the results: the vectors of the method, and what the derivatives need.
        `flops` and `bytes` count each loop within, such as conjugate gradients, once.

    Raises:
        OutputError: If `f` returns anything but one real number.
        DtypeError: If a parameter is complex, or none of them is floating.
        TypeError: As for `minimize`; or inside of a transformation.

    Example:
        >>> f = lambda x: jnp.sum(jnp.cosh(x))
        >>> x = jnp.ones(1000)
        >>> info = hotk.optim.step_info(f, x, hotk.optim.newton_cg())
        >>> info.mode, info.temporary_bytes < 20 * x.nbytes
        ('forward over reverse', True)
    """
    call = "step_info(f, x0, transform)"
    loop = _Loop.of(call, f, x0, transform, (None, 0.0, 0.0), 1000, args, where)
    if loop.traced:
        raise TypeError(
            f"`{call}`: a program is compiled for it, which cannot be inside of a "
            "transformation. Call it outside, with arrays of the same shapes."
        )
    given, order = loop.arguments(loop.moving, loop.state, loop.limits)
    with called(call):
        return loop.run.prepare(*given, **order).info


class _Loop(NamedTuple):
    """The arguments of `minimize`, checked, and the program that they ask for.

    Attributes:
        f: The objective.
        moving: The start: what changes of it.
        rest: What does not.
        args: Further arguments of the objective.
        where: Which leaves change, `None` for all.
        state: The first state of the transformation.
        captured: What the transformation captured.
        limits: When to stop.
        order: The program of a chunk of steps.
        run: What runs it.
        dtype: That of the value.
        traced: Whether there is a trace around it.
    """

    f: Callable[..., Any]
    moving: Point
    rest: PyTree
    args: tuple[Any, ...]
    where: Selection | None
    state: optax.OptState
    captured: tuple[Any, ...]
    limits: Limits
    order: BoundFormula
    run: Any
    dtype: DTypeLike
    traced: bool

    @staticmethod
    def of(
        call: str,
        f: Callable[..., Any],
        x0: Point,
        transform: optax.GradientTransformation | None,
        tolerances: tuple[ArrayLike | None, ArrayLike, ArrayLike],
        max_steps: int,
        args: tuple[Any, ...],
        where: Where,
    ) -> "_Loop":
        """Check the arguments of `call`; the tolerances are `tol`, `xtol`, `rtol`."""
        transform = trust_region() if transform is None else transform
        if not hasattr(transform, "update"):
            raise TypeError(
                f"`{call}`: expected an optax transformation, got "
                f"{describe(transform)}. Call the factory, as in "
                "`hotk.optim.trust_region()`, or leave it out."
                + (f" {remark('method')}" if isinstance(transform, str) else "")
            )
        if not isinstance(args, tuple):
            raise TypeError(f"`{call}`: `args` is {describe(args)}, not a tuple.")
        selected = selection(call, x0, where)
        moving, rest = split_point(x0, selected)
        if selected is not None and not jax.tree.leaves(moving):
            raise nothing_inexact(call, x0, name="x0", selected=selected)
        moving = jax.tree.map(jnp.asarray, moving)
        dtype = space.scalar_dtype(moving)
        refuse_complex_parameters(call, moving)
        traced = in_trace()
        split, captured = Transform.of(transform)
        tol, xtol, rtol = tolerances
        choices = {
            "transform": split,
            "length": max(max_steps, 1) if traced else 64,
            "flat": is_better_flat(moving),
            # of Python, so that a tolerance that is traced is used
            "by_steps": not all(
                isinstance(t, (int, float)) and t == 0 for t in (xtol, rtol)
            ),
            "by_gradient": tol is not None,
        }
        default = float(jnp.finfo(dtype).eps) ** 0.5
        limits = Limits(
            tol=from_host(default if tol is None else tol, dtype),
            xtol=from_host(xtol, dtype),
            rtol=from_host(rtol, dtype),
            # a larger Python number is no integer of JAX without 64 bits
            most=from_host(min(max_steps, 2**31 - 1)),
            steps=from_host(0, int),
            still=from_host(0, int),
            curvature=from_host(np.inf, dtype),
        )
        state = transform.init(moving)
        _refuse_kfac(call, state)
        return _Loop(
            f,
            moving,
            rest,
            args,
            None if selected is None else Selection(selected),
            state,
            captured,
            limits,
            BoundFormula(chunk, tuple(choices.items())),
            run_with_indices if asks_for_sparse(state) else run,
            dtype,
            traced,
        )

    def arguments(
        self, moving: Point, state: optax.OptState, limits: Limits
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what `run` is called with at a point."""
        point = eqx.combine(moving, self.rest)
        given = self.f, point, (state, limits, self.captured), *self.args
        return given, {"order": self.order, "where": self.where}


def _refuse_kfac(call: str, state: optax.OptState) -> None:
    is_kfac = lambda node: isinstance(node, KFACState)
    if any(map(is_kfac, jax.tree.leaves(state, is_leaf=is_kfac))):
        raise TypeError(
            message(
                call,
                "`kfac` needs the model, the loss and the inputs in each update.",
                expected="a transformation that needs the objective alone",
                got="`hotk.optim.kfac`",
                fix="Write the loop: `transform.update(g, state, p, model_fn=model, "
                "loss_fn=loss, inputs=(X,))`.",
            )
        )
