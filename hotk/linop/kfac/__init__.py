"""Kronecker-factored curvature of any model, found in its program."""

from ._block import (
    DenseBlock as DenseBlock,
    DiagonalBlock as DiagonalBlock,
    EigenBlock as EigenBlock,
    KroneckerBlock as KroneckerBlock,
)
from ._build import CALL as CALL, KFACOptions as KFACOptions, blocks_of as blocks_of
from ._layout import (
    AbstractBlock as AbstractBlock,
    BlockLayout as BlockLayout,
    Origin as Origin,
)
from ._mixing import (
    mixes_examples as mixes_examples,
    mixes_in_batch as mixes_in_batch,
    nearby as nearby,
)
from ._moments import Approximation as Approximation
from ._vectors import Estimate as Estimate
