"""The lengths in which variables are measured: given, or by the curvature so far."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from hotk._core import (
    Gradient,
    Point,
    Scalar,
    StructureError,
    Tangent,
    from_host,
    is_known,
    message,
)
from hotk.linop import AbstractOperator, Diagonal, space

from ._leaves import leaves_like


Scaling: TypeAlias = str | PyTree[ArrayLike | None] | None
"""A word for the curvature, typical sizes as a tree like the parameters, or none."""


SIZES = "`scaling=` with sizes"


def is_given(scaling: Scaling) -> bool:
    """Whether sizes are given: a number or a tree."""
    return not (scaling is None or isinstance(scaling, str))


def check_scaling(
    name: str, scaling: Scaling, word: str | None, refused: str | None = None
) -> dict[str, float]:
    """Check a scaling, and return what the program is told of it.

    Args:
        name: The optimizer.
        scaling: What it was given.
        word: What it calls the scaling by the curvature, `None` if it has none.
        refused: An option that does not go with given sizes, if there is one.

    Returns:
        Under `adapts` 1 where the lengths follow the curvature, otherwise 0.

    Raises:
        ValueError: If it is another word, or the option is there.
    """
    if isinstance(scaling, str) and scaling != word:
        known = "None" if word is None else f"{word!r}, None"
        raise ValueError(
            f"`{name}`: scaling {scaling!r} is none of {known}, or typical sizes: a "
            "number or a tree like the parameters."
        )
    if is_given(scaling) and refused is not None:
        raise ValueError(
            message(
                name,
                f"{refused} does not go with sizes of variables.",
                expected=f"`{name}` with its default solver",
                got=refused,
                fix=f"Leave out {refused} or `scaling`, or let the function take "
                "variables that are divided by their sizes.",
            )
        )
    return {"adapts": float(isinstance(scaling, str))}


def first_scale(name: str, scaling: Scaling, params: Point) -> Float[Array, " n"]:
    """Return the inverse of the sizes before any step, zeros where they are not given.

    Args:
        name: The optimizer.
        scaling: What it was given.
        params: The parameters, `None` in place of what does not move.
    """
    dtype = space.scalar_dtype(jax.tree.leaves(params))
    if not is_given(scaling):
        start = np.ones if scaling is None else np.zeros
        return from_host(start(space.dimension(params)), dtype)
    sizes = _sizes(name, scaling, params)
    flat: list[Any] = [jnp.ravel(1 / jnp.asarray(size, dtype)) for size in sizes]
    return jnp.concatenate(flat) if flat else from_host(np.ones(0), dtype)


def _sizes(name: str, scaling: Scaling, params: Point) -> list[Any]:
    """Return the size of each variable, leaf by leaf.

    Raises:
        ValueError: If a size is not positive and finite.
        TypeError: If one is not a real number.
        StructureError: If a tree or a shape does not fit.
    """
    call = f"{name}(scaling=...).init(params)"
    sizes = [
        size
        for size in leaves_like(call, "size", scaling, params, "params", 1.0)
        if size is not None
    ]
    for size in sizes:
        if is_known(size) and not np.all(np.isfinite(size) & (np.asarray(size) > 0)):
            raise ValueError(
                message(
                    call,
                    "a size is not positive and finite.",
                    expected="typical sizes of the variables",
                    got=f"{np.min(size):g}, the least of them",
                    fix="Give 1 or `None` for a variable whose size is not known.",
                )
            )
    return sizes


def measured(
    roots: Float[Array, " n"],
    before: Float[Array, " n"],
    adapts: Scalar | float,
    slopes: Float[Array, " n"] | None = None,
    x: Float[Array, " n"] | None = None,
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    r"""Return the largest roots of the curvature so far, and what they measure with.

    Args:
        roots: The root of the curvature along each variable.
        before: The largest ones before.
        adapts: Whether they follow the curvature.
        slopes: The gradient, where a step may go along what has no curvature.
        x: The point.

    Returns:
        The largest roots; and the same, but where a variable never had any curvature.
        There it is the root of $|g_i| / \max(|x_i|, 1)$, which has the same unit: with
        1 steps in a small unit of f were so short that they passed for those at a
        minimum. Where there is no slope either it is the largest of the others.
    """
    # What is not finite tells nothing, and would stay.
    follows = jnp.isfinite(roots) & (adapts > 0)
    scale = jnp.maximum(before.astype(roots.dtype), jnp.where(follows, roots, 0))
    unit = scale
    if slopes is not None and x is not None:
        unit = jnp.where(scale == 0, steepness(slopes, x, scale), scale)
        unit = jnp.where(unit > 0, unit, jnp.max(unit, initial=0))
    return scale, jnp.where(unit > 0, unit, 1)


def steepness(
    slopes: Float[Array, " n"], x: Float[Array, " n"], like: Float[Array, " n"]
) -> Float[Array, " n"]:
    r"""Return the roots of $|g_i| / \max(|x_i|, 1)$, those of `like` if not finite."""
    reach = jnp.maximum(jnp.abs(x), 1).astype(like.dtype)
    steep = jnp.sqrt(jnp.abs(slopes.astype(like.dtype)) / reach)
    return jnp.where(jnp.isfinite(steep), steep, like)


class Rescaled(NamedTuple):
    r"""A model in variables that are divided by their sizes.

    Conjugate gradients on it have a region, a damping and a residual without units.

    Attributes:
        hessian: $D^{-1} H D^{-1}$.
        gradient: $D^{-1} g$.
        sizes: $D^{-1}$, `None` for the identity.
    """

    hessian: AbstractOperator
    gradient: Gradient
    sizes: Diagonal | None = None

    @staticmethod
    def of(
        hessian: AbstractOperator, gradient: Gradient, scale: Float[Array, " n"] | None
    ) -> "Rescaled":
        """Return the model with the entries of D, or as it is without them."""
        if scale is None:
            return Rescaled(hessian, gradient)
        whole = space.unflattened(1 / scale, space.widened(gradient))
        sizes = Diagonal(space.narrowed(whole, gradient))
        return Rescaled(sizes @ hessian @ sizes, sizes.mv(gradient), sizes)

    def step(self, scaled: Tangent) -> Tangent:
        """Return a step of the variables as they are."""
        return scaled if self.sizes is None else self.sizes.mv(scaled)

    def scaled(self, v: Any) -> Any:
        """Return a point or a step in the scaled variables."""
        if self.sizes is None:
            return v
        return jax.tree.map(jnp.divide, v, self.sizes.entries)


def narrowed_to(
    call: str,
    state: Any,
    points: Sequence[Any],
    could: Sequence[bool],
    moves: Sequence[bool],
) -> Any:
    """Return a state whose scale has the variables of those leaves alone that move.

    Args:
        call: The call, for messages.
        state: A state, with or without a scale.
        points: The parameters.
        could: Which of them had a scale.
        moves: Which of these have a gradient now.

    Raises:
        StructureError: If the scale is that of other parameters.
    """
    entries = _entries(state, points, could, moves)
    if entries is not None:
        return state._replace(scale=state.scale[entries])
    scale = getattr(state, "scale", None)
    own = sum(jnp.size(a) for a, yes in zip(points, moves, strict=True) if yes)
    if scale is None or scale.size == own:
        return state
    raise StructureError(
        message(
            call,
            "the state is that of other parameters.",
            expected=f"a state of the {own} parameters that have a gradient",
            got=f"one of {scale.size}",
            fix="Call `init` with these parameters.",
        )
    )


def widened_to(
    before: Any,
    after: Any,
    points: Sequence[Any],
    could: Sequence[bool],
    moves: Sequence[bool],
) -> Any:
    """Return a state whose scale has those of the variables that did not move, too."""
    entries = _entries(before, points, could, moves)
    if entries is None:
        return after
    return after._replace(scale=before.scale.at[entries].set(after.scale))


def _entries(
    state: Any, points: Sequence[Any], could: Sequence[bool], moves: Sequence[bool]
) -> np.ndarray | None:
    """Return where a scale of all variables has those that move, `None` if it is so."""
    scale = getattr(state, "scale", None)
    if scale is None or list(could) == list(moves):
        return None
    had = [i for i, yes in enumerate(could) if yes]
    within = [np.full(jnp.size(points[i]), moves[i]) for i in had]
    whole = np.concatenate(within)
    return np.flatnonzero(whole) if scale.size == whole.size else None
