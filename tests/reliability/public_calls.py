"""Every public operator as `call(f, x, v)`, for tests that ask the same of all."""

import hotk


SECOND_ORDER = {
    "hvp": lambda f, x, v: hotk.hvp(f, x, v),
    "value_gradient_and_hvp": lambda f, x, v: hotk.value_gradient_and_hvp(f, x, v),
    "quadratic_form": lambda f, x, v: hotk.quadratic_form(f, x, v),
    "hessian": lambda f, x, v: hotk.hessian(f, x),
    "value_gradient_and_hessian": lambda f, x, v: hotk.value_gradient_and_hessian(f, x),
    "hessian_diagonal": lambda f, x, v: hotk.hessian_diagonal(f, x),
}

FIRST_ORDER = {
    "jvp": lambda f, x, v: hotk.jvp(f, x, v),
    "value_and_jvp": lambda f, x, v: hotk.value_and_jvp(f, x, v),
    "vjp": lambda f, x, v: hotk.vjp(f, x, f(x)),
    "value_and_vjp": lambda f, x, v: hotk.value_and_vjp(f, x, f(x)),
    "gradient": lambda f, x, v: hotk.gradient(f, x),
    "value_and_gradient": lambda f, x, v: hotk.value_and_gradient(f, x),
    "jacobian": lambda f, x, v: hotk.jacobian(f, x),
    "value_and_jacobian": lambda f, x, v: hotk.value_and_jacobian(f, x),
}

OF_ONE_NUMBER = {
    "derivative": lambda f, x, v: hotk.derivative(lambda t: f(x + t * v), 0.0),
    "value_and_derivative": lambda f, x, v: hotk.value_and_derivative(
        lambda t: f(x + t * v), 0.0
    ),
    "second_derivative": lambda f, x, v: hotk.second_derivative(
        lambda t: f(x + t * v), 0.0
    ),
}

PREPARED = {
    "gradient.prepare": lambda f, x, v: hotk.gradient.prepare(f, x)(x),
    "hvp.prepare": lambda f, x, v: hotk.hvp.prepare(f, x, v)(x, v),
    "hessian.prepare": lambda f, x, v: hotk.hessian.prepare(f, x)(x),
}

CALLS = FIRST_ORDER | OF_ONE_NUMBER | SECOND_ORDER | PREPARED
