"""`Auto`: the choice of a mode, from the program and the sizes."""

import dataclasses
from typing import NamedTuple

from hotk._core import Jaxpr, nested_order, placed_equations

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
    """The mode is chosen for each program, and the choice is told in `info`.

    Second order: forward over reverse; reverse over reverse where a `custom_vjp` has
    no forward rule; forward over forward where a `while_loop` forbids reverse mode.
    Taylor for second derivatives along directions, and from third order on.
    First order: forward for `jvp` and `derivative`, reverse for `vjp` and `gradient`,
    the cheaper of both by the sizes for `jacobian`; the other one where that does not
    exist.

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
        return Facts(tuple(loops), tuple(rules), tuple(callbacks), order)

    def __str__(self) -> str:
        """Name the functions that limit the modes, with their lines."""
        parts = [f"`while_loop` at {place}" for place in self.loops[:3]]
        parts += [f"`custom_vjp` at {place}" for place in self.custom_vjps[:3]]
        parts += [f"`{place}`" for place in self.callbacks[:3]]
        return ", ".join(parts)


def second_order_candidates(facts: Facts | None) -> list[tuple[AbstractMode, str]]:
    """Return the nestings to try, best first, each with the reason for it."""
    usual = (FORWARD_OVER_REVERSE, "the cheapest nesting for a scalar function")
    double = (
        REVERSE_OVER_REVERSE,
        "a custom_vjp has no forward rule" + _first_place(facts and facts.custom_vjps),
    )
    loop = (
        FORWARD_OVER_FORWARD,
        "a while_loop has no reverse mode" + _first_place(facts and facts.loops),
    )
    last = (REVERSE_OVER_FORWARD, "the other nestings do not exist for this program")
    if facts is not None and facts.loops and not facts.custom_vjps:
        return [usual, loop, double, last]
    return [usual, double, loop, last]


def along_candidates(facts: Facts | None) -> list[tuple[AbstractMode, str]]:
    """Return the modes to try for second derivatives along directions."""
    direct = (FORWARD_OVER_FORWARD, "two forward passes, no reverse pass")
    rest = [c for c in second_order_candidates(facts) if c[0] != direct[0]]
    return [(Taylor(), "one forward pass, no reverse pass"), direct, *rest]


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
