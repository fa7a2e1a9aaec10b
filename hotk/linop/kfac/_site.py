"""A site: one operation of a program that is linear in entries of the parameters."""

import dataclasses
import enum
from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ._view import Shape, View


Path: TypeAlias = tuple[int, ...]
"""The number of an equation, after those of the equations that it is inside of."""


class OperationKind(enum.Enum):
    """What an operation does with the parameters.

    Attributes:
        PRODUCT: It is bilinear in them and in its other operand: a matrix product or a
            convolution.
        TABLE: It looks up rows of them.
        BIAS: It adds them.
        SCALE: It multiplies its other operand with them, entry by entry.
    """

    PRODUCT = enum.auto()
    TABLE = enum.auto()
    BIAS = enum.auto()
    SCALE = enum.auto()


@dataclasses.dataclass
class Site:
    r"""One use of entries of the parameters.

    The gradient by a matrix of entries is a sum over positions of an outer product,
    $\sum_t a_t g_t^T$, of what the operation reads, `a`, and of the gradient `g` by
    its output. Grouped operations have such a matrix for each group.

    Attributes:
        kind: What the operation does.
        path: Where the equation is.
        name: The name of its primitive.
        line: The line of the model that made it.
        view: The entries. Those of a product or a table have the axes group, in, out,
            each of which may be several; those of a bias or a scale have the axes of
            the output.
        sizes: The numbers of groups, inputs and outputs.
        roles: How many axes of the view belong to groups, inputs and outputs.
        side: Which operand of the equation the parameters are.
        lengths: The lengths of the enclosing scans.
        shape: The shape of the output.
        dtype: The dtype of the output.
        strides: By how much the number of (group, out) grows along each axis of the
            output of a product.
        bias: A bias that is added to the output, and to nothing else.
        reads: From the other operand to `a`, an array of (group, position, in); for a
            table to the numbers of rows, an array of (group, position).
        signals: From the gradient by the output to an array of (group, position, out).
    """

    kind: OperationKind
    path: Path
    name: str
    line: str
    view: View
    side: int
    lengths: Shape
    shape: Shape
    dtype: np.dtype
    sizes: tuple[int, int, int] = (1, 1, 1)
    roles: tuple[int, int, int] = (0, 0, 0)
    strides: Shape = ()
    bias: View | None = None
    reads: Callable[[Array], Array] = jnp.asarray
    signals: Callable[[Array], Array] = jnp.asarray


@dataclasses.dataclass(frozen=True)
class Output:
    """The output of a product, perhaps transposed or sliced.

    Attributes:
        site: The product.
        view: Which (group, out) each entry belongs to, as a view of an array of these.
    """

    site: Site
    view: View


class Other(enum.Enum):
    """A value that is neither; whether it differs from example to example."""

    FIXED = enum.auto()
    VARIES = enum.auto()


Value: TypeAlias = View | Output | Other
"""What is known of an array of a program."""
