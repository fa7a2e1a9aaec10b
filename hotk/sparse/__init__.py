"""Sparse matrices: values on a fixed pattern, their products, sums and solutions.

`help(hotk.sparse.Cause)` documents one of these:

    Cause Coloring Factorization Pattern Shifted SparseMatrix SparsityExplanation color
    diagonal factorization_work hessian_if_sparse identity is_worth_factors sparse_ggn
    sparse_hessian sparse_jacobian sparse_lagrangian sparsity traced_hessian_if_sparse
    traced_matrix_if_sparse value_and_sparse_jacobian value_gradient_and_sparse_hessian
"""

from ._causes import Cause as Cause, SparsityExplanation as SparsityExplanation
from ._coloring import Coloring as Coloring, color as color
from ._factorization import Factorization as Factorization, Shifted as Shifted
from ._factors import (
    factorization_work as factorization_work,
    is_worth_factors as is_worth_factors,
)
from ._if_sparse import (
    hessian_if_sparse as hessian_if_sparse,
    traced_hessian_if_sparse as traced_hessian_if_sparse,
    traced_matrix_if_sparse as traced_matrix_if_sparse,
)
from ._matrix import SparseMatrix as SparseMatrix
from ._pattern import Pattern as Pattern
from ._simple import diagonal as diagonal, identity as identity
from ._sparse_ggn import sparse_ggn as sparse_ggn
from ._sparse_hessian import (
    sparse_hessian as sparse_hessian,
    value_gradient_and_sparse_hessian as value_gradient_and_sparse_hessian,
)
from ._sparse_jacobian import (
    sparse_jacobian as sparse_jacobian,
    value_and_sparse_jacobian as value_and_sparse_jacobian,
)
from ._sparse_lagrangian import sparse_lagrangian as sparse_lagrangian
from ._sparsity import sparsity as sparsity
