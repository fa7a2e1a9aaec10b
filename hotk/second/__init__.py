"""Second-order operators."""

from ._hessian import (
    hessian as hessian,
    hessian_diagonal as hessian_diagonal,
    value_gradient_and_hessian as value_gradient_and_hessian,
)
from ._hvp import hvp as hvp, value_gradient_and_hvp as value_gradient_and_hvp
from ._quadratic_form import (
    quadratic_form as quadratic_form,
    second_derivative as second_derivative,
)
