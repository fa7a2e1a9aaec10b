"""Types of arguments and results, by the names of the field.

`PyTree` is what JAX calls one: arrays, numbers and `None` in containers. Where a value
may be any Python object, as a captured one may, its type is `object`, which a type
checker holds to; `Any` remains for what no annotation can say.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Key, PyTree, UInt32

from ._compat import AbstractValue


S = TypeVar("S")
# Of overloads: trees of trees, and dictionaries and lists of numbers.
X = TypeVar("X")
Name = TypeVar("Name")
Tree = TypeVar("Tree", bound=Mapping)
Numeric = TypeVar("Numeric", bound=ArrayLike)


Point: TypeAlias = PyTree
"""Where a derivative is taken. Floating and complex leaves are differentiated."""

Tangent: TypeAlias = PyTree
"""A direction: a tree like the point, whose other leaves are ignored."""

Cotangent: TypeAlias = PyTree
"""A tree like the output of a function."""

Gradient: TypeAlias = PyTree
"""A tree like the point, `None` at leaves that are not differentiated."""

Vector: TypeAlias = PyTree
"""A vector of a space of trees: arrays, `None` at leaves that are not differentiated.

Several vectors are one tree whose arrays have one more axis, the first."""

V = TypeVar("V")
"""The type of the vectors of one space: `Array`, or the type of a tree, such as that of
a model, whose other leaves are `None` in a vector."""

RandomKey: TypeAlias = Key[Array, ""] | UInt32[Array | np.ndarray, " words"]
"""A random key of JAX: a typed one, `jax.random.key(0)`, or a raw one."""

Scalar: TypeAlias = Float[Array, ""]
"""One real floating-point number, as an array of JAX."""

RealNumber: TypeAlias = float | np.floating | Float[Array, ""]
"""A number that may be traced: a setting of a method, a coefficient."""

Function: TypeAlias = Callable[..., PyTree]
"""A function of the user: `f(x, *args)`."""

Argnums: TypeAlias = int | Sequence[int] | None
"""Positions of the arguments of a function that are differentiated, as JAX has them."""

Keywords: TypeAlias = Mapping[str, PyTree] | None
"""Keyword arguments of a function."""

Leaf: TypeAlias = jax.typing.ArrayLike
"""One leaf of a tree: an array of JAX or NumPy, or a number."""

Arrays: TypeAlias = list[Leaf]
"""What an operation of a program takes or returns."""

Types: TypeAlias = list[AbstractValue]
"""The types of such arrays, as JAX has them."""

FunctionWithAux: TypeAlias = Callable[[Point], tuple[PyTree, PyTree]]
"""A function of one argument that returns its value and an auxiliary output."""


@runtime_checkable
class WhileLoop(Protocol):
    """`jax.lax.while_loop`, or a loop in Python with the same arguments."""

    def __call__(
        self,
        condition: Callable[[S], bool | Bool[Array, ""]],
        body: Callable[[S], S],
        state: S,
        /,
    ) -> S:
        """Apply `body` to the state for as long as `condition` holds."""
        ...


class PyTreeDef(Protocol):
    """The structure of a tree: `jax.tree_util.PyTreeDef`, of which JAX has no types."""

    @property
    def num_leaves(self) -> int: ...
    @property
    def num_nodes(self) -> int: ...
    def children(self) -> "list[PyTreeDef]": ...
    def node_data(self) -> tuple[type, Any] | None: ...
    def unflatten(self, leaves: Iterable[Any], /) -> Any: ...


_ARRAYS = (jax.Array, np.ndarray, np.generic, AbstractValue)


def is_inexact(leaf: object) -> bool:
    """Whether a number, an array or the type of one is floating or complex.

    Anything else is not, whatever attributes it has: asking a user's object for its
    `dtype` may run code. A `jax.ShapeDtypeStruct` in a tree is such an object too.
    """
    if isinstance(leaf, (float, complex)):
        return True
    return isinstance(leaf, _ARRAYS) and _has_inexact_dtype(leaf)


def is_inexact_or_shape(leaf: object) -> bool:
    """The same where a `jax.ShapeDtypeStruct` stands for an array of its dtype."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _has_inexact_dtype(leaf)
    return is_inexact(leaf)


def _has_inexact_dtype(array: object) -> bool:
    dtype = getattr(array, "dtype", None)  # a token or a reference has none
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))
