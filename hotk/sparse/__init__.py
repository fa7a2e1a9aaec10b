"""Sparse matrices: values on a fixed pattern, their products, sums and solutions."""

from ._coloring import Coloring as Coloring, color as color
from ._matrix import SparseMatrix as SparseMatrix
from ._pattern import Pattern as Pattern
from ._simple import diagonal as diagonal, identity as identity
