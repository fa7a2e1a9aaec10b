"""Structural operations of a program, applied to views."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import jax.numpy as jnp

from hotk._core import JaxprEqn

from ._view import View


Numbers: TypeAlias = Sequence[float | None]
"""For each operand but the first its value, if it is a number in the program."""


def _same(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View] | None:
    del equation, numbers
    return [view]


def _convert(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View] | None:
    del numbers
    real = jnp.issubdtype(equation.params["new_dtype"], jnp.floating)
    return [view] if real else None  # rounded to integers they have no derivative


def _reshape(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View] | None:
    del numbers
    transposes = equation.primitive.name == "reshape" and equation.params["dimensions"]
    if transposes:
        return None
    return _listed(view.reshaped(_shape(equation)))


def _transpose(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View]:
    del numbers
    return [view.transposed(_integers(equation.params["permutation"]))]


def _broadcast(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View]:
    del numbers
    axes = _integers(equation.params["broadcast_dimensions"])
    return [view.spread(_shape(equation), axes)]


def _slice(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View]:
    del numbers
    p = equation.params
    steps = p["strides"] or (1,) * len(view.shape)
    bounds = (p["start_indices"], p["limit_indices"], steps)
    return [view.sliced(*map(_integers, bounds))]


def _dynamic_slice(
    view: View, equation: JaxprEqn, numbers: Numbers
) -> list[View] | None:
    starts, sizes = [], _integers(equation.params["slice_sizes"])
    for number, size, length in zip(numbers, sizes, view.shape, strict=True):
        if number is None and size != length:
            return None
        starts.append(max(0, min(int(number or 0), length - size)))
    stops = [a + n for a, n in zip(starts, sizes, strict=True)]
    return [view.sliced(starts, stops, [1] * len(starts))]


def _rev(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View]:
    del numbers
    return [view.reversed(_integers(equation.params["dimensions"]))]


def _split(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View]:
    del numbers
    axis, ones = equation.params["axis"], [1] * len(view.shape)
    parts, start = [], 0
    for size in _integers(equation.params["sizes"]):
        begin, end = [0] * len(ones), list(view.shape)
        begin[axis], end[axis] = start, start + size
        parts.append(view.sliced(begin, end, ones))
        start += size
    return parts


def _neg(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View]:
    del equation, numbers
    return [view.scaled(-1)]


def _times(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View] | None:
    del equation
    (number,) = numbers
    return None if number is None else [view.scaled(number)]


def _over(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View] | None:
    del equation
    (number,) = numbers
    return [view.scaled(1 / number)] if number else None


STRUCTURAL: Final[Mapping[str, Callable[..., list[View] | None]]] = {
    **dict.fromkeys(("copy", "optimization_barrier", "sharding_constraint"), _same),
    **dict.fromkeys(("reduce_precision", "name"), _same),
    "convert_element_type": _convert,
    **dict.fromkeys(("reshape", "squeeze"), _reshape),
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "rev": _rev,
    "split": _split,
    "neg": _neg,
    "mul": _times,
    "div": _over,
}


def structural(view: View, equation: JaxprEqn, numbers: Numbers) -> list[View] | None:
    """Return the views that an operation makes of its first operand, or `None`.

    Args:
        view: The first operand.
        equation: The operation.
        numbers: The values of the others; see `Numbers`.
    """
    rule = STRUCTURAL.get(equation.primitive.name)
    return None if rule is None else rule(view, equation, numbers)


def _shape(equation: JaxprEqn) -> tuple[int, ...]:
    out: Any = equation.outvars[0].aval
    return _integers(out.shape)


def _integers(numbers: Iterable[Any]) -> tuple[int, ...]:
    # those of NumPy print and compare otherwise
    return tuple(map(int, numbers))


def _listed(view: View | None) -> list[View] | None:
    return None if view is None else [view]
