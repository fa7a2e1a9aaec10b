"""The work of a program, against counts by hand."""

import jax
import jax.numpy as jnp
import pytest

from hotk._core import work


def _convolved(layout):
    shapes = {"OIHW": (7, 3, 2, 5), "HWIO": (2, 5, 3, 7)}
    image, kernel = jnp.ones((1, 3, 8, 9)), jnp.ones(shapes[layout])
    return jax.lax.conv_general_dilated(
        image, kernel, (1, 1), "VALID", dimension_numbers=("NCHW", layout, "NCHW")
    )


@pytest.mark.parametrize("layout", ["OIHW", "HWIO"])
def test_a_convolution_is_a_product_of_each_result_with_a_window(layout):
    program = jax.make_jaxpr(lambda: _convolved(layout))().jaxpr
    [convolution] = [
        e for e in program.eqns if e.primitive.name == "conv_general_dilated"
    ]
    results, window = 7 * (8 - 2 + 1) * (9 - 5 + 1), 2 * 5 * 3
    assert work(program.replace(eqns=[convolution])) == results * window


def test_each_step_of_a_loop_counts():
    def f(x, w):
        return jax.lax.scan(lambda c, _: (w @ c, None), x, length=6)[0]

    program = jax.make_jaxpr(f)(jnp.ones(3), jnp.ones((3, 3)))
    assert work(program.jaxpr) == 6 * 3 * 3
