"""Pictures of Hessians, spectra, loss surfaces and costs, with matplotlib.

Every function draws on the axes that `ax=` names, on new ones if it is left out, and
returns them. Nothing else is changed: no style, no current figure, no title.
"""

from ._matrices import blocks as blocks, matrix as matrix, sparsity as sparsity
from ._runs import cost as cost, traces as traces
from ._spectra import (
    eigenvalues as eigenvalues,
    spectral_density as spectral_density,
)
from ._surface import surface as surface
