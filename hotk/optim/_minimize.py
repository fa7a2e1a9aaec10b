"""`minimize`: the loop around a transformation, and `step_info`: what it takes."""

import dataclasses
from collections.abc import Callable
from typing import (
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeAlias,
    cast,
    overload,
)

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, ArrayLike

from hotk._core import (
    Name,
    Numeric,
    Point,
    Tree,
    Where,
    X,
    bar,
    from_host,
    names_ours,
    nan_on_purpose,
)
from hotk._prepared import Info
from hotk.curvature import LeastSquares

from ._bounds import Limits
from ._chunk import Iterate
from ._explained import called
from ._loop import MinimizeLoop
from ._minimum import Minimum, Stop
from ._objective import explained_for_residuals


P = ParamSpec("P")
_F: TypeAlias = Callable[..., Any]


class _Minimize(Protocol[P]):
    """`minimize` as type checkers see it: the point is like the start.

    Numbers become arrays, alone and in a dictionary or a list. The overload for trees
    of trees leaves `dict[str, Any]` what it is.
    """

    @overload
    def __call__(
        self, f: _F, x0: ArrayLike, *args: P.args, **keywords: P.kwargs
    ) -> Minimum[Array]: ...
    @overload
    def __call__(
        self, f: _F, x0: dict[Name, Tree], *args: P.args, **keywords: P.kwargs
    ) -> Minimum[dict[Name, Tree]]: ...
    @overload
    def __call__(
        self, f: _F, x0: dict[Name, Numeric], *args: P.args, **keywords: P.kwargs
    ) -> Minimum[dict[Name, Array]]: ...
    @overload
    def __call__(
        self, f: _F, x0: list[Numeric], *args: P.args, **keywords: P.kwargs
    ) -> Minimum[list[Array]]: ...
    @overload
    def __call__(
        self, f: _F, x0: X, *args: P.args, **keywords: P.kwargs
    ) -> Minimum[X]: ...


def _like_start(
    function: Callable[Concatenate[_F, Point, P], Minimum],
) -> _Minimize[P]:
    return cast("_Minimize[P]", function)


@_like_start
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
    bounds: Limits | None = None,
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

    The fields `x` and `value` can be differentiated to any order, by `args` and by what
    `f` captures: $\nabla_x^2 f\,dx = -\partial_\theta \nabla_x f\,d\theta$ at the
    minimum, one linear system for each tangent [1], with factors of the Hessian up to
    2048 parameters, and for more if it is sparse. No step is differentiated, and
    nothing is computed for derivatives that are not taken. An error of `x` is one of
    the same order in them. Those of a run that has not converged are NaN, as are those
    of `x` where the Hessian is singular.

    Args:
        f: Function `f(x, *args)` that returns one real number.
        x0: The start: any pytree. Floating leaves are changed; all else passes through.
        transform: Any `optax.GradientTransformation`, one of `hotk.optim` or not. What
            it captured, such as a list in a schedule, is read in each call. Without one
            it is `hotk.optim.trust_region()`, Newton's method in a trust region: with
            the whole Hessian up to 64 parameters, by products with it beyond.
        tol: Stop where the Euclidean norm of the gradient is at most this; the square
            root of the dtype's precision if left out (1.5e-8 in float64). Rounding may
            keep the gradient of a sum over many examples above that: give a larger one,
            or take the mean. If left out, the method's own tests count, which have no
            unit: `levenberg_marquardt` of few parameters stops by the step without
            damping; `trust_region`, `newton`, `newton_cg` and `cubic_newton` where the
            gradient is small and the last two steps, whole ones of Newton's method,
            promised little beside the value, or where one promised less than f is
            rounded by and ten changed nothing more.
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
        bounds: A pair of lower and upper bounds, within which all points stay: each a
            number, `None`, or a tree like `x0`, or the head of one, with numbers,
            `None` and arrays; or SciPy's `Bounds`. Equal bounds fix a parameter. The
            transformation has to be `trust_region`, as it is if left out, or
            `levenberg_marquardt`.
        where: Which leaves of `x0` to change; see `hotk.Where`.
        state: A state of the transformation to go on from, as `Minimum.state` of a run
            before: with its `x` as `x0` the steps are those that it would have made.
            Steps and history are counted anew, and bounds are those of this call. If
            left out, `transform.init(x0)`.
        callback: Called on the host with the `Minimum` so far, whose `reason` is
            `Stop.most_steps`. If it returns true, or raises `StopIteration`, the run
            ends there.
        callback_every: After how many steps it is called, at most 64. Each time f and
            its gradient are evaluated once more.

    Returns:
        A `Minimum`: the point, its value, and why it stopped. With bounds, the gradient
        in the tests above is without the entries that are held at a bound, the step
        that of the other parameters, and `multipliers` and `active` have the rest.
        Where a value or a gradient is not finite, it stops at the point before. Where
        ten updates in a row change nothing, it stops as well.

    Raises:
        OutputError: If `f` returns anything but one real number.
        DtypeError: If a parameter is complex, or none of them is floating.
        StructureError: If `state` is not one of the transformation at `x0`, or bounds
            have another structure or shape.
        TypeError: If `transform` is not a transformation, or takes no bounds and there
            are some, `args` is not a tuple, both `tol` and `gtol` are given, or there
            is a callback inside of a transformation.
        ValueError: If `max_steps` is negative, or `callback_every` not from 1 to 64; if
            a bound is NaN, a lower one above its upper one, or `x0` outside. If they
            are traced, the start is clipped.
        ModeError: If a derivative is taken outside of `jit` and `vmap`, and the run has
            not converged; or one of another field, in reverse mode.

    Example:
        >>> f = lambda x, a: jnp.sum((x - a) ** 4)
        >>> find = lambda x0, a: hotk.optim.minimize(
        ...     f, x0, hotk.optim.newton_cg(), args=(a,), tol=1e-3
        ... )
        >>> found = find(jnp.zeros(2), 1.0)
        >>> bool(found.converged), bool(jnp.all(abs(found.x - 1) < 0.1))
        (True, True)

        Five steps, and then the others:

        >>> first = hotk.optim.minimize(f, jnp.zeros(2), max_steps=5, args=(1.0,))
        >>> rest = hotk.optim.minimize(f, first.x, args=(1.0,), state=first.state)
        >>> int(first.steps), bool(rest.converged)
        (5, True)

        A derivative of the minimum [1]:

        >>> mean = lambda a: hotk.optim.minimize(
        ...     lambda x: jnp.mean((x - a) ** 2), jnp.zeros(())
        ... ).x
        >>> jax.grad(mean)(jnp.array([1.0, 2.0])).tolist()
        [0.5, 0.5]

    References:
        [1] Griewank and Walther (2008). Evaluating Derivatives, 2nd ed., chapter 15.
            SIAM.
    """
    call = "minimize(f, x0, transform)"
    if tol is not None and gtol is not None:
        raise TypeError(f"`{call}`: `gtol` is another name of `tol`: give one of them.")
    tol = gtol if tol is None else tol
    limits = tol, xtol, rtol
    loop = MinimizeLoop.of(
        call, f, x0, transform, limits, max_steps, args, where, bounds, state
    )
    moving, state, limits, traced = loop.moving, loop.state, loop.limits, loop.traced
    if traced and callback is not None:
        raise TypeError(
            f"`{call}`: `callback` is called on the host, which cannot be inside of a "
            "transformation. Call `minimize` outside, or leave the callback out."
        )
    values: list[float] = []
    with bar("minimize", max_steps, show=progress) as advance:
        while True:
            if callback is not None:
                next_call = min(max_steps, int(limits.steps) + callback_every)
                limits = limits._replace(most=from_host(next_call))
            given, order = loop.arguments(moving, state, limits)
            with called(call), explained_for_residuals():
                end: Iterate = loop.run(*given, **order)
            if loop.differentiable is not None:
                end = loop.differentiable.attach(end)
            if traced:
                with nan_on_purpose():
                    known = jnp.arange(len(end.values)) < end.taken
                    values_and_nan = jnp.where(known, end.values, jnp.nan)[:max_steps]
                    return loop.found(end, jnp.append(end.start, values_and_nan))
            moving, state = end.x, end.state
            limits = limits._replace(
                steps=end.steps,
                still=end.still,
                near=end.near,
                curvature=end.curvature,
                highest=end.highest,
            )
            count = int(end.taken)
            values += [] if values else [float(end.start)]
            values += np.asarray(end.values)[:count].tolist()
            advance(count, f"f = {float(end.y):.6g}")
            ended = bool(end.done) or int(end.steps) >= max_steps
            if ended or callback is not None:
                history = jax.device_put(np.array(values, loop.dtype))
                found = loop.found(end, history)
                asks = callback is not None and _asks_to_stop(callback, found)
                if asks and not ended:
                    return dataclasses.replace(found, reason=Stop.asked)
                if ended and isinstance(f, LeastSquares):
                    least = _OF_TINY * float(jnp.finfo(loop.dtype).tiny)
                    if 0 < values[0] < least:
                        return dataclasses.replace(found, reason=Stop.underflow)
                if ended:
                    return found


# Below this a sum of squares has lost terms, and what is left of it says nothing.
_OF_TINY = 1e5


def _asks_to_stop(callback: Callable[[Minimum], Any], found: Minimum) -> bool:
    try:
        return bool(callback(found))
    except StopIteration:  # as those of SciPy do
        return True


def step_info(
    f: Callable[..., Any],
    x0: Point,
    transform: optax.GradientTransformation | None = None,
    *,
    args: tuple[Any, ...] = (),
    bounds: Limits | None = None,
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
        bounds: Bounds, as for `minimize`.
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
    none = None, 0.0, 0.0
    loop = MinimizeLoop.of(call, f, x0, transform, none, 1000, args, where, bounds)
    if loop.traced:
        raise TypeError(
            f"`{call}`: a program is compiled for it, which cannot be inside of a "
            "transformation. Call it outside, with arrays of the same shapes."
        )
    given, order = loop.arguments(loop.moving, loop.state, loop.limits)
    with called(call):
        return loop.run.prepare(*given, **order).info
