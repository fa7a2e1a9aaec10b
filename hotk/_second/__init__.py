"""Second-order operators."""

from ._cross_hessian import cross_hessian as cross_hessian, cross_hvp as cross_hvp
from ._hessian import (
    hessian as hessian,
    value_gradient_and_hessian as value_gradient_and_hessian,
)
from ._hessian_diagonal import hessian_diagonal as hessian_diagonal
from ._hvp import hvp as hvp, value_gradient_and_hvp as value_gradient_and_hvp
from ._quadratic_form import quadratic_form as quadratic_form
from ._second_derivative import second_derivative as second_derivative
