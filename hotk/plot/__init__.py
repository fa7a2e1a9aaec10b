"""Plots of Hessians, spectra, loss surfaces and costs, with matplotlib.

Each function draws on the axes `ax`, on new ones if it is left out, and returns them.
It sets no style and no title: `ax.set_title("...")` sets one. A new figure is as large
as its labels need, and `ax.figure.savefig("plot.pdf")` keeps all of them.

`help(hotk.plot.blocks)` documents one of these:

    blocks cost eigenvalues matrix sparsity spectral_density surface traces
"""

from ._matrices import blocks as blocks, matrix as matrix, sparsity as sparsity
from ._runs import cost as cost, traces as traces
from ._spectra import (
    eigenvalues as eigenvalues,
    spectral_density as spectral_density,
)
from ._surface import surface as surface
