"""Estimates from random products, with error bars.

`help(hotk.estimate.Estimate)` documents one of these:

    Estimate Spectrum biharmonic diagonal differential divergence laplacian logdet
    spectrum trace
"""

from ._diagonal import diagonal as diagonal
from ._differential import (
    biharmonic as biharmonic,
    differential as differential,
    divergence as divergence,
    laplacian as laplacian,
)
from ._estimate import Estimate as Estimate
from ._logdet import logdet as logdet
from ._spectrum import Spectrum as Spectrum, spectrum as spectrum
from ._trace import trace as trace
