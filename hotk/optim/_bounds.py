"""Bounds of parameters: how they are given, what they leave of a gradient and a step.

They are arrays in the state of a transformation: `init` puts them there, so that other
values compile nothing, and the loop of `minimize` finds them there.
"""

import contextlib
import functools
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, PyTree

from hotk._core import (
    Gradient,
    Point,
    Tangent,
    describe_tree,
    from_host,
    is_known,
    leaf_name,
    message,
)
from hotk.linop import space

from ._leaves import is_none, leaves_like
from ._transformation import show_state


Limits: TypeAlias = tuple[PyTree[ArrayLike | None], PyTree[ArrayLike | None]]
"""Lower and upper bounds: each a number, `None`, or a tree like the point."""


class Bounds(NamedTuple):
    """The bounds of each parameter.

    Attributes:
        lower: The lower ones, as the point is; minus infinity where there is none.
        upper: The upper ones.
    """

    lower: Point
    upper: Point

    __repr__ = show_state

    def like(self, x: Point) -> "Bounds":
        """Return the bounds of what moves, as one vector where that is one."""
        if jax.tree.structure(x) == jax.tree.structure(self.lower):
            return self
        return Bounds(*map(space.flattened, self))

    def clipped(self, x: Point) -> Point:
        """Return the nearest point within."""
        return jax.tree.map(jnp.clip, x, *self)

    def projected(self, x: Point, gradient: Gradient) -> Gradient:
        """Return a gradient without what pushes out of the bounds.

        What is zero at a minimum: of a parameter in its bounds the entry of the
        gradient, at a bound only what points inside. The distance to the projection of
        x - g, which others measure, is small in any narrow pair of bounds.
        """

        def one(a: Array, g: Array, lower: Array, upper: Array) -> Array:
            out = ((a <= lower) & (g > 0)) | ((a >= upper) & (g < 0))
            return jnp.where(out, 0, g)

        return jax.tree.map(one, x, gradient, *self)

    def landed(self, y: Point, x: Point) -> Point:
        """Return the point y within, on a bound where y is as near as rounding tells.

        Args:
            y: The point after a step from x.
            x: The point before. A sum x + s that should be a bound misses it by its
                rounding.
        """

        def one(y: Array, x: Array, lower: Array, upper: Array) -> Array:
            near = 5 * jnp.finfo(y.dtype).eps * jnp.maximum(jnp.abs(x), jnp.abs(y))
            y = jnp.where(y - lower <= near, lower, y)
            return jnp.where(upper - y <= near, upper, y)

        return jax.tree.map(one, y, x, *self)

    def shortened(self, step: Tangent, x: Point) -> Tangent:
        """Return a step whose rounded sum with x is within, as that step nearly is."""

        def one(s: Array, x: Array, lower: Array, upper: Array) -> Array:
            y = x + s.astype(x.dtype)
            less = jnp.nextafter(jnp.nextafter(s, 0 * s), 0 * s)
            return jnp.where((y < lower) | (y > upper), less, s)

        return jax.tree.map(one, step, x, *self)

    def multipliers(self, x: Point, gradient: Gradient) -> tuple[Point, PyTree]:
        """Return the gradient at active bounds, and which these are.

        Where a parameter is fixed, the bound that its gradient pushes to is active.
        """

        def one(a: Array, g: Array, lower: Array, upper: Array) -> Array:
            low, high = a <= lower, a >= upper
            high = high & ~(low & (g > 0))
            return jnp.where(high, 1, jnp.where(low, -1, 0))

        active = jax.tree.map(one, x, gradient, *self)
        pushed = jax.tree.map(lambda i, g: jnp.where(i != 0, g, 0), active, gradient)
        return pushed, active


# What `minimize` was given, for the transformation that takes it.
_GIVEN: ContextVar[Bounds | None] = ContextVar("given", default=None)


@contextlib.contextmanager
def giving(bounds: Bounds | None) -> Iterator[None]:
    """Let the transformation whose state is made within have these bounds."""
    token = _GIVEN.set(bounds)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def first_bounds(
    name: str, own: Limits | None, params: Point, refused: str | None = None
) -> Bounds | None:
    """Return the bounds for the first state of a transformation.

    Args:
        name: Its name.
        own: The bounds that it was made with.
        params: The parameters, `None` in place of what does not move.
        refused: An option that does not go with bounds, if there is one.
    """
    given = _GIVEN.get()
    if own is None and given is None:
        return None
    if own is not None and given is not None:
        raise TypeError(
            f"`minimize`: `{name}` has bounds of its own: leave out `bounds=` there, "
            "or here."
        )
    if refused is not None:
        raise ValueError(
            message(
                name,
                f"{refused} does not go with bounds.",
                expected=f"`{name}` with its default solver",
                got=refused,
                fix=f"Leave out {refused}, or the bounds.",
            )
        )
    if given is None:
        assert own is not None
        return bounds_like(f"{name}(bounds=...).init(params)", own, params, "params")
    keep = lambda p, b: None if p is None else b
    try:
        return Bounds(*(jax.tree.map(keep, params, b, is_leaf=is_none) for b in given))
    except ValueError:
        raise _not_taken("minimize(f, x0, transform)") from None


def bounds_in(state: PyTree) -> list[Bounds]:
    """Return the bounds in a state of transformations."""
    is_bounds = lambda node: isinstance(node, Bounds)
    leaves = jax.tree.leaves(state, is_leaf=is_bounds)
    return [node for node in leaves if is_bounds(node)]


def bounds_of_loop(call: str, state: PyTree, x: Point, given: bool) -> Bounds | None:
    """Return the bounds of a point that a transformation keeps.

    Args:
        call: The call, for messages.
        state: Its state.
        x: The point.
        given: Whether some transformation is to keep them.

    Raises:
        TypeError: If it does not, or has those of other parameters.
    """
    found = bounds_in(state)
    if not found and not given:
        return None
    if len(found) != 1:
        raise _not_taken(call)
    try:
        return Bounds(
            *(
                jax.tree.map(functools.partial(_filled, none), x, side, is_leaf=is_none)
                for none, side in zip((-jnp.inf, jnp.inf), found[0], strict=True)
            )
        )
    except ValueError:
        raise _not_taken(call) from None


def _filled(none: float, a: Any, bound: Any) -> Any:
    # a transformation of some of the leaves does not move the others
    if a is None or bound is not None:
        return bound
    return jnp.full_like(a, none)


def bounds_like(call: str, given: Any, x: Point, root: str = "x0") -> Bounds:
    """Return bounds as the leaves of a point are.

    Args:
        call: The call, for messages.
        given: A pair: each a number, `None`, or a tree like the point or the head of
            one, with numbers, `None` and arrays that have the shape of a leaf or fill
            it.
        x: The point, `None` in place of what does not move.
        root: Its name.

    Raises:
        TypeError: If it is not a pair, or something in it is not a real number.
        StructureError: If a tree or a shape does not fit.
        ValueError: If a bound is NaN, a lower one above its upper one, or the point
            outside. What is traced is not known, and not refused.
    """
    if hasattr(given, "lb") and hasattr(given, "ub"):  # `scipy.optimize.Bounds`
        given = given.lb, given.ub
    if isinstance(given, Bounds) or not (
        isinstance(given, (tuple, list)) and len(given) == 2
    ):
        raise TypeError(
            message(
                call,
                "`bounds` is not a pair.",
                expected="`bounds=(lower, upper)`: each a number, `None`, or a tree "
                f"like `{root}`",
                got=describe_tree(given),
                fix="For SciPy's list of pairs write `lower, upper = "
                "jnp.array(pairs).T`, with infinity where there is no bound.",
            )
        )
    named, tree = jax.tree_util.tree_flatten_with_path(x, is_leaf=is_none)
    lower = leaves_like(call, "lower bound", given[0], x, root, -np.inf)
    upper = leaves_like(call, "upper bound", given[1], x, root, np.inf)
    for (path, leaf), low, high in zip(named, lower, upper, strict=True):
        if leaf is not None:
            _check(call, leaf_name(root, path), leaf, low, high)
    made = Bounds(*(tree.unflatten(map(_array, side)) for side in (lower, upper)))
    return Bounds(*(space.placed(side, x) for side in made))


def _check(call: str, name: str, leaf: Any, lower: Any, upper: Any) -> None:
    """Refuse bounds without a point in them, and a point that is not in them."""
    all_three = {"value": leaf, "lower": lower, "upper": upper}
    known = {word: np.asarray(a) for word, a in all_three.items() if is_known(a)}
    faults = [
        (np.isnan(known[side]), f"the {side} bound is NaN", "a number", _NO_BOUND)
        for side in ("lower", "upper")
        if side in known
    ]
    if "lower" in known and "upper" in known:
        crossed = known["lower"] > known["upper"]
        what = "the lower bound is above the upper one"
        faults.append((crossed, what, "lower <= upper", _NO_BOUND))
    for side, outside in (("lower", np.less), ("upper", np.greater)):
        if "value" in known and side in known:
            beyond = outside(known["value"], known[side])
            what = "the start is outside of the bounds"
            faults.append((beyond, what, "a point within", _CLIP))
    for fault, what, expected, fix in faults:
        if np.any(fault):
            at = tuple(map(int, np.argwhere(fault)[0]))
            entry = name + (f"[{', '.join(map(str, at))}]" if at else "")
            got = ", ".join(f"{word} {float(a[at]):g}" for word, a in known.items())
            problem = f"{what} at `{entry}`."
            raise ValueError(
                message(call, problem, expected=expected, got=got, fix=fix)
            )


_NO_BOUND = "Equal bounds fix a parameter; `None` and infinity are none."
_CLIP = "Clip it: `jax.tree.map(jnp.clip, x0, lower, upper)`."


def _array(limit: Any) -> Any:
    if limit is None or isinstance(limit, jax.Array):
        return limit
    return from_host(np.array(limit))


def _not_taken(call: str) -> TypeError:
    return TypeError(
        message(
            call,
            "the transformation takes no bounds.",
            expected="`hotk.optim.trust_region()` or "
            "`hotk.optim.levenberg_marquardt()`, of all parameters",
            got="another one, several of them, or one in a wrapper that hides leaves",
            fix="Leave `transform` out for `trust_region()`. SciPy's methods: "
            "`hotk.interop.scipy_problem(f, x0).minimize(method, bounds=...)`.",
        )
    )
