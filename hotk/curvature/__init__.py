"""Gauss-Newton and Fisher matrices, and the Hessians of common losses.

`help(hotk.curvature.AbstractLikelihood)` documents one of these:

    AbstractLikelihood AbstractLoss Composition CoxLoss EmpiricalFisher Fisher GammaLoss
    GaussNewton HuberLoss LeastSquares NegativeBinomialLoss OrdinalCrossEntropy
    PerExample PoissonLoss RowsProgram SampleRows SampledFisher SigmoidCrossEntropy
    SoftmaxCrossEntropy SquaredError StudentTLoss composition empirical_fvp fvp ggnvp
    residuals_of rows_program sampled_fvp
"""

from ._cox import CoxLoss as CoxLoss
from ._fisher import (
    EmpiricalFisher as EmpiricalFisher,
    Fisher as Fisher,
    SampledFisher as SampledFisher,
)
from ._gauss_newton import GaussNewton as GaussNewton
from ._huber import HuberLoss as HuberLoss
from ._least_squares import LeastSquares as LeastSquares
from ._likelihoods import (
    GammaLoss as GammaLoss,
    NegativeBinomialLoss as NegativeBinomialLoss,
    OrdinalCrossEntropy as OrdinalCrossEntropy,
    StudentTLoss as StudentTLoss,
)
from ._losses import (
    AbstractLikelihood as AbstractLikelihood,
    AbstractLoss as AbstractLoss,
    PoissonLoss as PoissonLoss,
    SigmoidCrossEntropy as SigmoidCrossEntropy,
    SoftmaxCrossEntropy as SoftmaxCrossEntropy,
    SquaredError as SquaredError,
)
from ._outputs import Composition as Composition, composition as composition
from ._per_example import PerExample as PerExample
from ._products import (
    empirical_fvp as empirical_fvp,
    fvp as fvp,
    ggnvp as ggnvp,
    sampled_fvp as sampled_fvp,
)
from ._sample_rows import (
    RowsProgram as RowsProgram,
    SampleRows as SampleRows,
    residuals_of as residuals_of,
    rows_program as rows_program,
)
