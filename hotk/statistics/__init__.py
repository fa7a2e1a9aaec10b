"""Regressions; uncertainty of estimates: Laplace, sandwich, profiles, influence.

`help(hotk.statistics.Fit)` documents one of these:

    Fit Interval LeaveOneOut NormalApproximation fit influence laplace_approximation
    leave_one_out profile_intervals sandwich
"""

from ._fit import fit as fit
from ._fitted import Fit as Fit
from ._influence import (
    LeaveOneOut as LeaveOneOut,
    influence as influence,
    leave_one_out as leave_one_out,
)
from ._interval import Interval as Interval
from ._laplace import laplace_approximation as laplace_approximation
from ._normal import NormalApproximation as NormalApproximation
from ._profile import profile_intervals as profile_intervals
from ._sandwich import sandwich as sandwich
