"""First-order operators."""

from ._derivative import (
    derivative as derivative,
    value_and_derivative as value_and_derivative,
)
from ._divergence import (
    divergence as divergence,
    like_point as like_point,
    value_and_divergence as value_and_divergence,
)
from ._gradient import gradient as gradient, value_and_gradient as value_and_gradient
from ._jacobian import jacobian as jacobian, value_and_jacobian as value_and_jacobian
from ._jvp import jvp as jvp, value_and_jvp as value_and_jvp
from ._points import (
    check_scalar_point as check_scalar_point,
    refuse_complex as refuse_complex,
)
from ._vjp import value_and_vjp as value_and_vjp, vjp as vjp
