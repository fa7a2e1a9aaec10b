"""Regressions; uncertainty of estimates: Laplace, sandwich, profiles, influence."""

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
