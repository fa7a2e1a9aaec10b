"""`Auto`: the choice of a mode, from the program and the sizes."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import PyTree

from hotk._core import (
    Jaxpr,
    Leaf,
    Point,
    has_extremes,
    nested_order,
    placed_equations,
    with_weak_type,
)

from ._first import AbstractMode, Forward, Reverse
from ._nested import (
    FORWARD_OVER_FORWARD,
    FORWARD_OVER_REVERSE,
    REVERSE_OVER_FORWARD,
    REVERSE_OVER_REVERSE,
)
from ._taylor import Taylor


@dataclasses.dataclass(frozen=True)
class Auto(AbstractMode):
    """The default mode: the best one that exists for the function, found by tracing.

    `info.mode` of a prepared operator names the mode that was chosen and `info.why`
    gives the reason.

    - `jvp` and `derivative`: forward, else reverse.
    - `vjp` and `gradient`: reverse, else forward.
    - `jacobian`: the cheaper one by the sizes of `x` and the value, else the other.
    - `hvp` and `hessian`: forward over reverse; else reverse over reverse, which a
      `custom_vjp` without a forward rule needs, or forward over forward, which a
      `while_loop` needs.
    - Second derivatives along directions, and orders from three on: Taylor, else a
      nesting.

    Cost: one trace of the derivative for each mode that is tried; nothing at run time.

    Example:
        >>> x = jnp.ones(2)
        >>> hotk.hvp.prepare(lambda x: x @ x, x, x, mode=hotk.Auto()).info.mode
        'forward over reverse'
    """

    def __str__(self) -> str:
        """Return the name."""
        return "auto"


AUTO = Auto()


class Facts(NamedTuple):
    """What a program tells about which derivatives it has, and has taken already."""

    loops: tuple[str, ...]
    custom_vjps: tuple[str, ...]
    callbacks: tuple[str, ...]
    order: int = 0
    extremes: bool = False

    @staticmethod
    def of(jaxpr: Jaxpr) -> "Facts":
        """Read the facts from the jaxpr of `f`."""
        loops, rules, callbacks = [], [], []
        for equation, place in placed_equations(jaxpr):
            name = equation.primitive.name
            if name == "while":
                loops.append(place)
            elif name.startswith("custom_vjp"):
                rules.append(place)
            elif "callback" in name or name == "pallas_call":
                callbacks.append(f"{name} at {place}")
        order = nested_order(jaxpr)
        limits = tuple(loops), tuple(rules), tuple(callbacks)
        return Facts(*limits, order, has_extremes(jaxpr))

    def __str__(self) -> str:
        """Name the functions that limit the modes, with their lines."""
        # without a place if `f` itself is a function of JAX
        at = lambda name, places: [
            f"`{name}`" + (f" at {place}" if place else "") for place in places
        ]
        parts = at("while_loop", self.loops) + at("custom_vjp", self.custom_vjps)
        parts += [f"`{place}`" for place in self.callbacks]
        return ", ".join(list(dict.fromkeys(parts))[:6])


def second_order_candidates(
    facts: Facts | None, sizes: object = None
) -> list[tuple[AbstractMode, str]]:
    """Return the nestings to try, best first, each with the reason for it.

    Sizes change nothing here; all operators call such functions with both.
    """
    del sizes
    cheapest = (FORWARD_OVER_REVERSE, "the cheapest nesting for a scalar function")
    for_custom_vjp = (
        REVERSE_OVER_REVERSE,
        "a custom_vjp has no forward rule" + _first_place(facts and facts.custom_vjps),
    )
    for_loops = (
        FORWARD_OVER_FORWARD,
        "a while_loop has no reverse mode" + _first_place(facts and facts.loops),
    )
    last = (REVERSE_OVER_FORWARD, "the other nestings do not exist for this program")
    if facts is not None and facts.loops and not facts.custom_vjps:
        return [cheapest, for_loops, for_custom_vjp, last]
    return [cheapest, for_custom_vjp, for_loops, last]


def along_candidates(
    facts: Facts | None, sizes: object = None
) -> list[tuple[AbstractMode, str]]:
    """Return the modes to try for second derivatives along directions."""
    del sizes
    direct = (FORWARD_OVER_FORWARD, "two forward passes, no reverse pass")
    rest = [c for c in second_order_candidates(facts) if c[0] != direct[0]]
    return [(Taylor(), "one forward pass, no reverse pass"), direct, *rest]


def forward_first(
    facts: Facts | None, sizes: object = None
) -> list[tuple[AbstractMode, str]]:
    """Return the modes to try where there are more outputs than inputs."""
    del sizes
    return first_order_candidates(facts, forward=True)


def reverse_first(
    facts: Facts | None, sizes: object = None
) -> list[tuple[AbstractMode, str]]:
    """Return the modes to try where there are more inputs than outputs."""
    del sizes
    return first_order_candidates(facts, forward=False)


def taylor_only(why: str) -> Callable[..., list[tuple[AbstractMode, str]]]:
    """Return a function from facts and sizes to Taylor mode, with the reason given."""
    return lambda facts, sizes: [(Taylor(), why)]


def first_order_candidates(
    facts: Facts | None, *, forward: bool
) -> list[tuple[AbstractMode, str]]:
    """Return the modes to try, best first, each with the reason for it."""
    if forward:
        return [
            (Forward(), "one forward pass for each direction"),
            (Reverse(), "no forward mode" + _first_place(facts and facts.custom_vjps)),
        ]
    return [
        (Reverse(), "one reverse pass for each output"),
        (Forward(), "no reverse mode" + _first_place(facts and facts.loops)),
    ]


def _first_place(places: tuple[str, ...] | None) -> str:
    return f" ({places[0]})" if places else ""


# Weak types of results: those of `jax.jacobian` and `jax.hessian`, in every mode. With
# these a derivative by a weakly typed number, such as a Python float, is weakly typed
# itself. Unit directions are not, so that forward mode loses it.


def weak_like(result: PyTree, x: Point) -> PyTree:
    """Make leaves of a tree weakly typed where those of a tree like it are."""
    return jax.tree.map(lambda a, b: with_weak_type(a, _is_weak(b)), result, x)


def weak_if(result: PyTree, *points: Point) -> PyTree:
    """Make all leaves of a tree weakly typed if all leaves of some others are."""
    leaves = jax.tree.leaves(points)
    weak = bool(leaves) and all(map(_is_weak, leaves))
    return jax.tree.map(lambda a: with_weak_type(a, weak), result) if weak else result


def _is_weak(leaf: Leaf) -> bool:
    return jax.typeof(leaf).weak_type
