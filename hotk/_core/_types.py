"""Types of arguments and results, by the names of the field.

`PyTree` is what JAX calls one: arrays, numbers and `None` in containers. Where a value
may be any Python object, as a captured one may, its type is `object`, which a type
checker holds to; `Any` remains for what no annotation can say.
"""

from collections.abc import Callable
from typing import TypeAlias

import jax
from jaxtyping import Array, Float, PyTree

from ._compat import AbstractValue


Point: TypeAlias = PyTree
"""Where a derivative is taken. Floating and complex leaves are differentiated."""

Tangent: TypeAlias = PyTree
"""A direction: a tree like the point, whose other leaves are ignored."""

Cotangent: TypeAlias = PyTree
"""A tree like the output of a function."""

Gradient: TypeAlias = PyTree
"""A tree like the point, `None` at leaves that are not differentiated."""

Scalar: TypeAlias = Float[Array, ""]
"""One real floating-point number, as an array of JAX."""

RealNumber: TypeAlias = float | Float[Array, ""]
"""A number that may be traced: a setting of a method, a coefficient."""

Function: TypeAlias = Callable[..., PyTree]
"""A function of the user: `f(x, *args)`."""

Leaf: TypeAlias = jax.typing.ArrayLike
"""One leaf of a tree: an array of JAX or NumPy, or a number."""

Arrays: TypeAlias = list[Leaf]
"""What an operation of a program takes or returns."""

Types: TypeAlias = list[AbstractValue]
"""The types of such arrays, as JAX has them."""

FunctionWithAux: TypeAlias = Callable[[Point], tuple[PyTree, PyTree]]
"""A function of one argument that returns its value and an auxiliary output."""
