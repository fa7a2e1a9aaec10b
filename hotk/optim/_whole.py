"""The update of a whole transformation as one program."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PyTree

from hotk._capture import Closure, Skeleton
from hotk._core import Point, in_trace
from hotk._mode import FORWARD_OVER_REVERSE, Nested

from ._explained import called
from ._parameters import is_masked, within_flatten
from ._step import BoundFormula, run
from ._transformation import Transformation, transformation_of


class Transform(NamedTuple):
    """What a program knows of a transformation.

    Attributes:
        skeleton: Its update without the arrays that it captured: a transformation that
            is made anew has an equal one. The transformation itself if it is opaque.
        takes_more: Whether an update takes keywords.
    """

    skeleton: Skeleton | optax.GradientTransformation
    takes_more: bool

    @staticmethod
    def of(
        transform: optax.GradientTransformation,
    ) -> tuple["Transform", tuple[Any, ...]]:
        """Split a transformation into what is static and what it captured."""
        takes_more = isinstance(transform, optax.GradientTransformationExtraArgs)
        closure = Closure.of(transform.update)
        if closure.skeleton.opaque is not None:
            return Transform(transform, takes_more), ()
        return Transform(closure.skeleton, takes_more), closure.leaves

    def update(self, captured: tuple[Any, ...]) -> Callable[..., Any]:
        """Return the update, with what it captured."""
        if isinstance(self.skeleton, Skeleton):
            return self.skeleton.function(captured)
        return self.skeleton.update


def compiled(
    transform: Transformation[Any],
) -> Transformation[Any]:
    """Return a transformation whose update is one program, where that can be.

    Some wrappers of optax branch by functions that they make anew in each update: JAX
    compiles these again each time. Here the function is known by its code.

    It can be outside of a trace, if parameters, gradient, state and keywords are arrays
    on one device, or functions such as the objective. Other updates run as they are.
    """

    def update(
        updates: optax.Updates,
        state: optax.OptState,
        params: optax.Params | None = None,
        **extra: Any,
    ) -> tuple[optax.Updates, optax.OptState]:
        names = [name for name in ("value_fn", "obj_fn") if extra.get(name) is not None]
        rest = {name: a for name, a in extra.items() if name not in names}
        split_functions, held = _functions_in(rest)
        arrays = {name: a for name, a in rest.items() if name not in held}
        same = jax.tree.structure(params) == jax.tree.structure(updates)
        arguments = updates, state, params, arrays
        there = params is not None
        whole = there and not is_masked(params) and not within_flatten(params)
        if len(names) <= 1 and same and whole and _is_one(arguments):
            split, captured = Transform.of(transform)
            f = extra[names[0]] if names else _no_objective
            choices = (
                ("transform", split),
                ("name", names[0] if names else None),
                ("functions", split_functions),
            )
            c = updates, state, captured, held, arrays
            try:
                order = BoundFormula(_update, choices)
                with called("with_params(...).update(updates, state, params)"):
                    # One mode: the optimizers inside find their own.
                    return run(f, params, c, order=order, mode=FORWARD_OVER_REVERSE)
            except Exception:
                # Python needs a number; or it is an error, which comes again by itself,
                # without a trace around it.
                pass
        return transform.update(updates, state, params, **extra)

    return transformation_of(transform.init, update)


def _functions_in(
    keywords: Mapping[str, Any],
) -> tuple[tuple[tuple[str, Skeleton], ...], dict[str, tuple[Any, ...]]]:
    """Split models, losses and residuals into what is static and what they captured.

    One that cannot be split stays among the keywords, and is not an array there.
    """
    split, held = [], {}
    for name, given in keywords.items():
        if callable(given) and not isinstance(given, jax.Array):
            closure = Closure.of(given)
            if closure.skeleton.opaque is None:
                split.append((name, closure.skeleton))
                held[name] = closure.leaves
    return tuple(split), held


def _no_objective(x: Point) -> jax.Array:
    del x
    return jnp.zeros(())


def _is_one(trees: PyTree) -> bool:
    leaves = jax.tree.leaves(trees)
    arrays = all(isinstance(a, (jax.Array, np.ndarray)) for a in leaves)
    if in_trace() or not arrays:
        return False
    return all(len(a.devices()) == 1 for a in leaves if isinstance(a, jax.Array))


def _update(
    f: Callable[..., Any],
    x: Point,
    c: tuple[
        optax.Updates,
        optax.OptState,
        tuple[Any, ...],
        Mapping[str, tuple[Any, ...]],
        Mapping[str, Any],
    ],
    mode: Nested,
    *,
    transform: Transform,
    name: str | None,
    functions: tuple[tuple[str, Skeleton], ...],
) -> tuple[optax.Updates, optax.OptState]:
    del mode
    updates, state, captured, held, arrays = c
    given = {name: skeleton.function(held[name]) for name, skeleton in functions}
    if name is not None:
        given[name] = lambda x: f(x)[0]
    return transform.update(captured)(updates, state, x, **arrays, **given)
