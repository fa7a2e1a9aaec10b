"""Operations by NumPy: another compiler than XLA, and none to wait for."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hotk._core import (
    ARITHMETIC,
    COMPARISONS,
    LOGIC,
    MOVES,
    ORDERED,
    SELECTED,
    JaxprEqn,
)


_Axes = Sequence[int]


def _dot(
    a: np.ndarray,
    b: np.ndarray,
    dimension_numbers: tuple[tuple[_Axes, _Axes], tuple[_Axes, _Axes]],
    **_: Any,
) -> np.ndarray:
    (by_a, by_b), (over_a, over_b) = dimension_numbers
    free_a = [i for i in range(a.ndim) if i not in (*by_a, *over_a)]
    free_b = [i for i in range(b.ndim) if i not in (*by_b, *over_b)]
    batch = [a.shape[i] for i in over_a]
    rows, columns = [a.shape[i] for i in free_a], [b.shape[i] for i in free_b]
    summed = math.prod(a.shape[i] for i in by_a)
    left = a.transpose(*over_a, *free_a, *by_a)
    right = b.transpose(*over_b, *by_b, *free_b)
    product = left.reshape(*batch, math.prod(rows), summed) @ right.reshape(
        *batch, summed, math.prod(columns)
    )
    return product.reshape([*batch, *rows, *columns])


def _cumulated(a: np.ndarray, axis: int, reverse: bool, **_: Any) -> np.ndarray:
    turned = np.flip(a, axis) if reverse else a
    summed = np.cumsum(turned, axis)
    return np.flip(summed, axis) if reverse else summed


# Beside the functions of NumPy that have the same name. What is not here is left to
# JAX, one operation at a time.
_BY_NUMPY: dict[str, Callable[..., Any]] = {
    **MOVES,
    **COMPARISONS,
    **LOGIC,
    **ORDERED,
    **ARITHMETIC,
    **SELECTED,
    "add_any": np.add,
    "imag": lambda a, **_: np.imag(a),
    "real": lambda a, **_: np.real(a),
    "complex": lambda a, b, **_: a + 1j * b,
    "is_finite": np.isfinite,
    "logistic": lambda a, **_: np.exp(-np.logaddexp(0, -a)),
    "rsqrt": lambda a, **_: 1 / np.sqrt(a),
    "clamp": lambda low, a, high, **_: np.clip(a, low, high),
    "convert_element_type": lambda a, **_: a,  # the result is cast below
    "cumsum": _cumulated,
    "dot_general": _dot,
    "integer_pow": lambda a, y, **_: a**y if y >= 0 else 1 / a**-y,
    "reduce_prod": lambda a, axes, **_: np.prod(a, tuple(axes)),
    "reduce_sum": lambda a, axes, **_: np.sum(a, tuple(axes)),
    "stop_gradient": lambda a, **_: a,
}


def by_numpy(equation: JaxprEqn, inputs: Sequence[Any]) -> list[np.ndarray] | None:
    """Evaluate an operation by NumPy; return `None` for one to be left to JAX."""
    name = equation.primitive.name
    run: Any = _BY_NUMPY.get(name, getattr(np, name, None))
    if name not in _BY_NUMPY and not isinstance(run, np.ufunc):
        return None
    types = [v.aval for v in (*equation.invars, *equation.outvars)]
    dtypes: list[Any] = [getattr(t, "dtype", None) for t in types]
    if any(getattr(d, "kind", "V") not in "biufc" for d in dtypes):
        return None
    floats = all(np.issubdtype(d, np.inexact) for d in dtypes)
    if name in ("div", "integer_pow", "pow") and not floats:
        return None
    if name == "convert_element_type" and "c" in (dtypes[0].kind, dtypes[1].kind):
        return None
    count = len(equation.invars)
    given = [np.asarray(a, d) for a, d in zip(inputs, dtypes[:count], strict=True)]
    parameters = {} if isinstance(run, np.ufunc) else equation.params
    with np.errstate(all="ignore"):
        found = run(*given, **parameters)
        results = found if isinstance(found, list) else [found]
        pairs = zip(results, dtypes[count:], strict=True)
        return [np.asarray(a).astype(d, copy=False) for a, d in pairs]
