"""Derivatives of any order, and sums of them."""

from ._derivatives import derivatives as derivatives, taylor as taylor
from ._differential_operator import (
    DifferentialOperator as DifferentialOperator,
    differential_operator as differential_operator,
    directions_of as directions_of,
)
from ._laplacian import (
    biharmonic as biharmonic,
    laplacian as laplacian,
    value_and_laplacian as value_and_laplacian,
)
from ._partial import partial as partial
from ._tensor import (
    SymmetricTensor as SymmetricTensor,
    derivative_tensor as derivative_tensor,
)
from ._tvp import tvp as tvp
