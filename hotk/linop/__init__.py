"""Derivatives at a point as linear operators, and Krylov methods on them.

`help(hotk.linop.AbstractOperator)` documents one of these:

    AbstractOperator AbstractSymmetricOperator BlockDiagonal DataOperator Diagonal
    Eigenpairs EmpiricalFisherOperator FisherOperator GGNOperator HessianOperator
    Identity Index Inertia KFACOperator LeafBlocks Linearized LowRank Method Reason
    SampledFisherOperator Solution SparseOperator Symmetric by_iteration cg
    check_symmetric cholesky eigh inertia loop minres nystrom small_matrix solve
    space_of spectrum_of steihaug
"""

from . import space as space
from ._batches import DataOperator as DataOperator
from ._block_diagonal import BlockDiagonal as BlockDiagonal
from ._cg import cg as cg, steihaug as steihaug
from ._cholesky import Inertia as Inertia, cholesky as cholesky, inertia as inertia
from ._curvature import (
    EmpiricalFisherOperator as EmpiricalFisherOperator,
    FisherOperator as FisherOperator,
    GGNOperator as GGNOperator,
    SampledFisherOperator as SampledFisherOperator,
)
from ._direct import small_matrix as small_matrix, spectrum_of as spectrum_of
from ._driver import loop as loop
from ._eigenpairs import Eigenpairs as Eigenpairs
from ._eigh import eigh as eigh
from ._hessian import HessianOperator as HessianOperator
from ._index import Index as Index
from ._kfac_operator import KFACOperator as KFACOperator
from ._leaf_blocks import LeafBlocks as LeafBlocks
from ._linearized import Linearized as Linearized
from ._low_rank import LowRank as LowRank, nystrom as nystrom
from ._minres import minres as minres
from ._operator import AbstractOperator as AbstractOperator
from ._simple import Diagonal as Diagonal, Identity as Identity, Symmetric as Symmetric
from ._solution import Method as Method, Reason as Reason, Solution as Solution
from ._solve import by_iteration as by_iteration, solve as solve
from ._sparse_operator import SparseOperator as SparseOperator
from ._symmetric import AbstractSymmetricOperator as AbstractSymmetricOperator
from ._vectors import check_symmetric as check_symmetric, space_of as space_of
