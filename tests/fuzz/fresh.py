"""Calls of a function that nobody has called: its caches are empty."""

import jax
import jax.numpy as jnp
import numpy as np

from .call import Bound, Call, dense, expect_product
from .program import Program, flat


def on_fresh(program: Program, hotk, bound: Bound) -> list[Call]:
    """List calls of a function that nobody has called: its caches are empty."""
    f, x, v, args, _ = bound
    touches = (("now", bound),)
    vjp = "custom_vjp" in program.kinds

    def asked(ask):
        ask()
        return np.asarray(f(x, *args))

    made = [
        (
            "hotk.gradient(f, x, *args)",
            lambda: flat(hotk.gradient(f, x, *args)),
            lambda r: r.gradient,
            (),
        ),
        (
            "hotk.value_and_vjp(f, x, jnp.array(1.0), *args)[1]",
            lambda: flat(hotk.value_and_vjp(f, x, jnp.array(1.0), *args)[1]),
            lambda r: r.gradient,
            (),
        ),
        (
            "hotk.quadratic_form(f, x, v, *args)  # first of all",
            lambda: np.asarray(hotk.quadratic_form(f, x, v, *args)),
            lambda r: r.v @ r.product,
            (),
        ),
        (
            "hotk.hessian(f, x, *args)  # first of all",
            lambda: dense(hotk.hessian(f, x, *args)),
            lambda r: r.hessian,
            (),
        ),
        (
            "hotk.hvp.prepare(f, x, v, *args)(x, v, *args)  # first of all",
            lambda: flat(hotk.hvp.prepare(f, x, v, *args)(x, v, *args)),
            expect_product,
            (),
        ),
        (
            "hotk.derivatives(f, x, v, *args, order=1)[1]",
            lambda: np.asarray(hotk.derivatives(f, x, v, *args, order=1)[1]),
            lambda r: r.gradient @ r.v,
            (hotk.ModeError,) if vjp else (),
        ),
        (
            "hotk.explain(f, at=x, args=args), f(x, *args)",
            lambda: asked(lambda: hotk.explain(f, at=x, args=args)),
            lambda r: r.value,
            (),
        ),
        (
            "hotk.can_differentiate(f, x, *args), f(x, *args)",
            lambda: asked(lambda: hotk.can_differentiate(f, x, *args)),
            lambda r: r.value,
            (jax.errors.JAXTypeError,) if "python" in program.kinds else (),
        ),
    ]
    return [Call(s, run, e, refusals=no, touches=touches) for s, run, e, no in made]
