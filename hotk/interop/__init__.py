"""Derivatives for other libraries: SciPy, lineax, IPOPT.

`help(hotk.interop.IpoptProblem)` documents one of these:

    IpoptProblem PrecisionWarning ScipyProblem ScipyResiduals as_lineax as_scipy
    ipopt_problem scipy_problem scipy_residuals
"""

from ._ipopt_problem import (
    IpoptProblem as IpoptProblem,
    ipopt_problem as ipopt_problem,
)
from ._layout import PrecisionWarning as PrecisionWarning
from ._lineax_operator import as_lineax as as_lineax
from ._scipy_operator import as_scipy as as_scipy
from ._scipy_problem import (
    ScipyProblem as ScipyProblem,
    scipy_problem as scipy_problem,
)
from ._scipy_residuals import (
    ScipyResiduals as ScipyResiduals,
    scipy_residuals as scipy_residuals,
)
