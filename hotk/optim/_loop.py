"""`MinimizeLoop`: the arguments of `minimize`, and the program that they ask for."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, ArrayLike, PyTree

from hotk._core import (
    Point,
    Selection,
    StructureError,
    Where,
    describe,
    describe_tree,
    from_host,
    in_trace,
    message,
    nothing_inexact,
    remark,
    selection,
    split_point,
)
from hotk._prepared import check_callable
from hotk._primitive import constants
from hotk.linop import space

from ._bounds import (
    Bounds,
    Limits,
    bounds_like,
    bounds_of_loop,
    giving,
)
from ._chunk import ChunkStart, Iterate, chunk
from ._extra_args import unrestricted
from ._flat import is_better_flat
from ._implicit import Differentiable
from ._kfac_step import KFACState
from ._linear_solver import asks_for_sparse
from ._minimum import Minimum
from ._objective import explained_for_residuals
from ._parameters import refuse_complex_parameters
from ._step import BoundFormula, run, run_with_indices
from ._trust_region import trust_region
from ._whole import Transform


class MinimizeLoop(NamedTuple):
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
        others: What does not change, as it was given.
        differentiable: Inside of a trace, what derivatives need; the other fields are
            without tangents then.
        traced: Whether there is a trace around it.
    """

    f: Callable[..., Any]
    moving: Point
    rest: PyTree
    args: tuple[Any, ...]
    where: Selection | None
    state: optax.OptState
    captured: tuple[Any, ...]
    limits: ChunkStart
    order: BoundFormula
    run: Any
    dtype: DTypeLike
    others: PyTree
    differentiable: Differentiable | None
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
        bounds: Limits | None,
        before: optax.OptState | None = None,
    ) -> "MinimizeLoop":
        """Check the arguments of `call`; the tolerances are `tol`, `xtol`, `rtol`.

        With the state of a run `before` it goes on from that.
        """
        check_callable(call, f)
        transform = trust_region() if transform is None else transform
        if not hasattr(transform, "update"):
            raise TypeError(
                f"`{call}`: expected an optax transformation, got "
                f"{describe(transform)}. Call the factory, as in "
                "`hotk.optim.trust_region()`, or leave it out. Further arguments of "
                "the function are `args=(a, b)`."
                + (f" {remark('method')}" if isinstance(transform, str) else "")
            )
        if not isinstance(args, tuple):
            raise TypeError(
                f"`{call}`: `args` is {describe(args)}, not a tuple. Write one "
                "argument as `args=(a,)`."
            )
        if where is None:
            transform, where = unrestricted(transform)
        selected = selection(call, x0, where)
        moving, rest = split_point(x0, selected)
        if selected is not None and not jax.tree.leaves(moving):
            raise nothing_inexact(call, x0, name="x0", selected=selected)
        moving = jax.tree.map(from_host, moving)
        dtype = space.scalar_dtype(moving)
        refuse_complex_parameters(call, moving)
        others, differentiable, traced, sides = rest, None, in_trace(), bounds
        split, captured = Transform.of(transform)
        if traced:
            # The steps see no tangents: derivatives are those of the minimum.
            with explained_for_residuals():
                differentiable = Differentiable.of(call, f, x0, args, where)
            held = differentiable.held
            f, args, selected = held.f, held.args, held.selected
            moving, rest = split_point(held.x, selected)
            captured, tolerances, bounds = constants((captured, tolerances, bounds))
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
        limits = ChunkStart(
            tol=from_host(default if tol is None else tol, dtype),
            xtol=from_host(xtol, dtype),
            rtol=from_host(rtol, dtype),
            # a larger Python number is no integer of JAX without 64 bits
            most=from_host(min(max_steps, 2**31 - 1)),
            steps=from_host(0, int),
            still=from_host(0, int),
            near=from_host(False),
            curvature=from_host(np.inf, dtype),
            highest=from_host(0, dtype),
        )
        given = None if bounds is None else bounds_like(call, bounds, moving)
        with giving(given):
            state: Any = constants(transform.init(moving))
        kept = bounds_of_loop(call, state, moving, given is not None)
        if differentiable is not None and kept is not None:
            if bounds is not None:
                given = bounds_like(call, sides, moving)
            with giving(given):
                first = transform.init(moving)
            kept = bounds_of_loop(call, first, moving, given is not None)
            differentiable = differentiable._replace(bounds=kept)
        _refuse_kfac(call, state)
        if before is not None:
            state = constants(_resumed(call, before, state))
        return MinimizeLoop(
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
            others,
            differentiable,
            traced,
        )

    def arguments(
        self, moving: Point, state: optax.OptState, limits: ChunkStart
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what `run` is called with at a point."""
        point = eqx.combine(moving, self.rest)
        given = self.f, point, (state, limits, self.captured), *self.args
        return given, {"order": self.order, "where": self.where}

    def found(self, end: Iterate, history: Array) -> Minimum:
        """Return the result of a run that ends here."""
        return Minimum(
            eqx.combine(end.x, self.others),
            end.y,
            end.size,
            end.steps,
            end.reason,
            history,
            end.curvature,
            end.state,
            end.multipliers,
            end.active,
        )


def _resumed(call: str, before: optax.OptState, first: optax.OptState) -> Any:
    """Return the state of a run before, if it is one of this transformation."""
    types = lambda state: [
        (jnp.shape(a), jnp.result_type(a)) for a in jax.tree.leaves(state)
    ]
    if jax.tree.structure(before) != jax.tree.structure(first) or (
        types(before) != types(first)
    ):
        raise StructureError(
            message(
                call,
                "`state` is not one of this transformation at `x0`.",
                expected=describe_tree(first),
                got=describe_tree(before),
                fix="Give `Minimum.state` of a run with the same transformation and a "
                "point of the same shapes, or leave it out.",
            )
        )
    # its bounds are those of this call
    is_bounds = lambda node: isinstance(node, Bounds)
    keep = lambda old, new: new if is_bounds(new) else old
    return jax.tree.map(keep, before, first, is_leaf=is_bounds)


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
