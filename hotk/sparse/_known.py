"""What is computed now: indices, and other results that do not depend on the point."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hotk._core import (
    COMPARISONS,
    LOGIC,
    MOVES,
    ORDERED,
    RING,
    SELECTED,
    JaxprEqn,
    ShapedArray,
    bound,
)


# Integer results of more entries are computed at run time.
_MOST_KNOWN = 100_000_000


# Each as JAX does it with integers and Booleans. An operation that is run by JAX would
# be compiled, for milliseconds, at each size.
_BY_NUMPY: dict[str, Callable[..., Any]] = {
    **MOVES,
    **COMPARISONS,
    **LOGIC,
    **RING,
    **ORDERED,
    **SELECTED,
    "pvary": lambda a, **_: a,
    "convert_element_type": lambda a, **_: a,  # the result is cast below
    "clamp": lambda low, a, high, **_: np.clip(a, low, high),
}


def is_integral(equation: JaxprEqn) -> bool:
    """Whether the results of an operation are integers or Booleans, not too many."""
    types = [v.aval for v in equation.outvars]
    return all(
        isinstance(t, ShapedArray) and _kind(t) in "iub" and t.size < _MOST_KNOWN
        for t in types
    )


def _kind(aval: ShapedArray) -> str:
    return getattr(aval.dtype, "kind", "V")  # random keys have none


def evaluated(equation: JaxprEqn, operands: Sequence[Any]) -> list[np.ndarray]:
    """Evaluate an operation whose operands are known and whose results are integers."""
    by_numpy, parameters = _BY_NUMPY.get(equation.primitive.name), equation.params
    if isinstance(by_numpy, np.ufunc):
        # A product has the dtype of its result as a parameter, mostly none.
        by_numpy = None if parameters.get("out_dtype") else by_numpy
        parameters = {}
    kinds = [np.asarray(a).dtype.kind for a in operands]
    if by_numpy is None or not set(kinds) <= set("iub"):
        with jax.ensure_compile_time_eval():
            return [np.asarray(a) for a in bound(equation, operands)]
    arrays = [np.asarray(a) for a in operands]
    with np.errstate(over="ignore"):  # integers wrap around, as those of JAX
        results = by_numpy(*arrays, **parameters)
    several = results if isinstance(results, list) else [results]
    types = [v.aval for v in equation.outvars]
    return [
        np.broadcast_to(np.asarray(a).astype(t.dtype), t.shape)  # type: ignore[attr-defined]
        for a, t in zip(several, types, strict=True)
    ]
