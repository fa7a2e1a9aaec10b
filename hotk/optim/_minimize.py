"""`minimize`: the loop around a transformation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike, Bool, DTypeLike, Float, Int

from hotk._core import (
    Gradient,
    Point,
    Scalar,
    Selection,
    Where,
    bar,
    describe,
    from_host,
    in_trace,
    message,
    names_ours,
    nothing_inexact,
    selection,
    split_point,
)
from hotk.linop import space
from hotk.mode import Nested

from ._flat import Known, is_better_flat, on_flat, stepping
from ._kfac_step import KFACState
from ._linear_solver import asks_for_sparse
from ._local import is_finite
from ._minimum import Minimum, Stop
from ._parameters import refuse_complex_parameters
from ._residuals import explained_for_residuals
from ._step import BoundFormula, called, run, run_with_indices
from ._trust_region import trust_region
from ._whole import Transform


class _Limits(NamedTuple):
    """What a chunk of steps goes on from.

    Attributes:
        tol: The largest norm of a gradient that is small.
        xtol: The largest relative length of a step that is small.
        rtol: The largest relative change of point and value that is small.
        most: The most steps of all chunks.
        steps: How many there were.
        still: How many of the last ones changed nothing.
        curvature: The smallest one so far.
    """

    tol: Scalar
    xtol: Scalar
    rtol: Scalar
    most: Int[Array, ""]
    steps: Int[Array, ""]
    still: Int[Array, ""]
    curvature: Scalar


class _Iterate(NamedTuple):
    """The state of the loop: the point, what is known there, and why to stop.

    Attributes:
        x: The point.
        y: The value there.
        gradient: The gradient there.
        size: The norm of the gradient.
        state: The state of the transformation.
        steps: Steps so far, of all chunks.
        done: Whether there is a reason to stop.
        reason: The reason.
        still: How many of the last steps changed nothing.
        curvature: The smallest one so far.
        start: The value before the first step of this chunk.
        values: The value after each step of this chunk.
        taken: Steps of this chunk.
    """

    x: Point
    y: Scalar
    gradient: Gradient
    size: Scalar
    state: optax.OptState
    steps: Int[Array, ""]
    done: Bool[Array, ""]
    reason: Stop
    still: Int[Array, ""]
    curvature: Scalar
    start: Scalar
    values: Float[Array, " length"]
    taken: Int[Array, ""]


def _chunk(
    f: Callable[..., Any],
    x: Point,
    c: tuple[optax.OptState, _Limits, tuple[Any, ...]],
    mode: Nested,
    *,
    transform: Transform,
    length: int,
    flat: bool,
    by_steps: bool,
) -> _Iterate:
    """Make at most `length` steps, or less until one of the reasons to stop."""
    state, limits, captured = c
    update = transform.update(captured)
    dtype = space.scalar_dtype(x)
    value_fn = lambda x: f(x)[0]
    as_tree = (lambda v: space.unflattened(v, x)) if flat else lambda v: v
    as_vector = space.flattened if flat else lambda v: v
    of_vector = on_flat(f, x) if flat else f
    nothing = jnp.zeros((), dtype)

    def stepped(s: _Iterate) -> tuple[Point, optax.OptState]:
        params, gradient = as_tree(s.x), as_tree(s.gradient)
        more: dict[str, Any] = {}
        if transform.takes_more:
            more = {"value": s.y, "grad": gradient, "value_fn": value_fn}
        with stepping(Known(value_fn, params, s.y, gradient, flat)):
            updates, after = update(gradient, s.state, params, **more)
        return as_vector(optax.apply_updates(params, updates)), after

    def step(s: _Iterate) -> _Iterate:
        # The start is evaluated by the same loop: the function stands in it once.
        begins = s.taken < 0
        moved, after = jax.lax.cond(begins, lambda s: (s.x, s.state), stepped, s)
        y, gradient, _ = mode.inner.gradient(of_vector, moved)
        y = jnp.asarray(y)
        size = space.norm(gradient)
        finite = is_finite(moved, y, size)
        # a sum, as in `is_finite`
        others = jax.tree.map(lambda a, b: jnp.sum(a != b, dtype=dtype), moved, s.x)
        same = jax.tree.reduce(jnp.add, others, nothing) == 0
        still = jnp.where(same, s.still + 1, 0)
        still = jnp.where(begins, s.still, still)
        small = size <= limits.tol
        stuck = still >= 10
        reason = Stop.where(stuck & ~begins, Stop.stuck, Stop.most_steps)
        ends = small
        if by_steps:  # else they would be compiled for nothing
            reason, ends = _by_steps(s, moved, y, same, small, limits, reason)
        reason = Stop.where(small, Stop.converged, reason)
        reason = Stop.where(finite, reason, Stop.not_finite)
        kept = finite | begins
        choose = lambda new, old: space.choose(kept, new, old)
        y = y.astype(dtype)
        bent = _smallest_curvature(after, dtype)
        place = jnp.where(begins, length, s.taken)
        return _Iterate(
            x=choose(moved, s.x),
            y=choose(y, s.y),
            gradient=choose(gradient, s.gradient),
            size=choose(size, s.size),
            state=after,
            steps=s.steps + jnp.where(begins, 0, 1),
            done=~finite | ends | stuck,
            reason=reason,
            still=still,
            curvature=jnp.where(begins, s.curvature, jnp.minimum(s.curvature, bent)),
            start=jnp.where(begins, y, s.start),
            values=s.values.at[place].set(y, mode="drop"),
            taken=s.taken + 1,
        )

    go_on = lambda s: ~s.done & (s.taken < length) & (s.steps < limits.most)
    begin = _Iterate(
        x=as_vector(x),
        y=nothing,
        gradient=space.zeros(as_vector(x)),
        size=nothing,
        state=state,
        steps=limits.steps,
        done=jnp.zeros((), bool),
        reason=Stop.most_steps,
        still=limits.still,
        curvature=limits.curvature,
        start=nothing,
        values=jnp.full(length, jnp.nan, dtype),
        taken=-jnp.ones((), int),
    )
    end = jax.lax.while_loop(lambda s: (s.taken < 0) | go_on(s), step, begin)
    # The gradient is not handed out: it would be one more tree of results a chunk.
    return end._replace(x=as_tree(end.x), gradient=None)


def _by_steps(
    s: _Iterate,
    moved: Point,
    y: Scalar,
    same: Bool[Array, ""],
    small: Bool[Array, ""],
    limits: _Limits,
    reason: Stop,
) -> tuple[Stop, Bool[Array, ""]]:
    """Return the reason to stop, given the length of a step that was taken."""
    step, reach = space.norm(space.minus(moved, s.x)), space.norm(moved)
    is_short = ~same & (step <= limits.xtol * (limits.xtol + reach))
    y = y.astype(s.y.dtype)
    is_flat = jnp.abs(y - s.y) <= limits.rtol * jnp.abs(y)
    is_close = ~same & (step <= limits.rtol * reach) & is_flat
    reason = Stop.where(is_close, Stop.small_change, reason)
    reason = Stop.where(is_short, Stop.small_step, reason)
    return reason, small | is_short | is_close


def _smallest_curvature(state: optax.OptState, dtype: DTypeLike) -> Scalar:
    """Return the least of the fields `curvature` in a state, infinity if there is none.

    This is where `Minimum.smallest_curvature` comes from: a state that has a field of
    this name takes part, also within a chain.
    """
    found = optax.tree_utils.tree_get_all_with_path(state, "curvature")
    least = jnp.asarray(jnp.inf, dtype)
    for _, curvature in found:
        known = jnp.asarray(curvature, dtype)
        least = jnp.minimum(least, jnp.where(jnp.isnan(known), jnp.inf, known))
    return least


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
            or take the mean.
        gtol: The same as `tol`, by the name that SciPy has for it.
        xtol: Stop as well after a step s with $\|s\| \le t (t + \|x\|)$, where t is
            this number, as `scipy.optimize.least_squares` does. Not if left out.
        rtol: Stop as well after a step s with $\|s\| \le t \|x\|$ whose change of f is
            at most $t |f|$, as optimistix does. It does not depend on the scale of f: a
            sum and a mean stop at the same point. Not if left out.
        max_steps: The most updates.
        args: Further arguments of `f`; they may change value freely.
        progress: Whether to show a bar.
        where: Which leaves of `x0` to change; see `hotk.Where`.

    Returns:
        A `Minimum`: the point, its value, and why it stopped. Where a value or a
        gradient is not finite, it stops at the point before. Where ten updates in a row
        change nothing, it stops as well.

    Raises:
        OutputError: If `f` returns anything but one real number.
        DtypeError: If a parameter is complex, or none of them is floating.
        TypeError: If `transform` is not a transformation, `args` is not a tuple, or
            both `tol` and `gtol` are given.
        ValueError: If `max_steps` is negative.

    Example:
        >>> f = lambda x, a: jnp.sum((x - a) ** 4)
        >>> find = lambda x0, a: hotk.optim.minimize(
        ...     f, x0, hotk.optim.newton_cg(), args=(a,), tol=1e-3
        ... )
        >>> found = find(jnp.zeros(2), 1.0)
        >>> bool(found.converged), bool(jnp.all(abs(found.x - 1) < 0.1))
        (True, True)
    """
    call = "minimize(f, x0, transform)"
    if max_steps < 0:
        raise ValueError(f"`{call}`: max_steps is {max_steps}.")
    transform = trust_region() if transform is None else transform
    if not hasattr(transform, "update"):
        raise TypeError(
            f"`{call}`: expected an optax transformation, got {describe(transform)}. "
            "Call the factory, as in `hotk.optim.trust_region()`, or leave it out."
        )
    if tol is not None and gtol is not None:
        raise TypeError(f"`{call}`: `gtol` is another name of `tol`: give one of them.")
    tol = gtol if tol is None else tol
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
    length = max(max_steps, 1) if traced else 64
    split, captured = Transform.of(transform)
    choices = {
        "transform": split,
        "length": length,
        "flat": is_better_flat(moving),
        # of Python, so that a tolerance that is traced is used
        "by_steps": not all(
            isinstance(t, (int, float)) and t == 0 for t in (xtol, rtol)
        ),
    }
    bound = BoundFormula(_chunk, tuple(choices.items()))
    default = float(jnp.finfo(dtype).eps) ** 0.5
    limits = _Limits(
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
    make = run_with_indices if asks_for_sparse(state) else run
    values: list[float] = []
    with bar("minimize", max_steps, show=progress) as advance:
        while True:
            point = eqx.combine(moving, rest)
            with called(call), explained_for_residuals():
                end: _Iterate = make(
                    f,
                    point,
                    (state, limits, captured),
                    *args,
                    order=bound,
                    where=None if selected is None else Selection(selected),
                )
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
            history = jax.device_put(np.array(values, dtype))
            advance(count, f"f = {float(end.y):.6g}")
            if bool(end.done) or int(end.steps) >= max_steps:
                break
    return Minimum(
        eqx.combine(moving, rest),
        end.y,
        end.size,
        end.steps,
        end.reason,
        history,
        end.curvature,
        state,
    )


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
