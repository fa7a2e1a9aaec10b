"""A value with its standard error, and how it prints."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hotk.estimate import Estimate
from tests.helpers import close


ONE = Estimate(jnp.array(12.3456), jnp.array(0.0321), jnp.array(40), "xtrace")
TREE = Estimate(
    {"w": jnp.array([1.0, -2.5]), "z": jnp.array([3.0 + 4.0j])},
    {"w": jnp.array([0.1, 0.2]), "z": jnp.array([0.0 + 0.0j])},
    jnp.array(32),
    "xdiag",
)


def test_a_number_prints_with_its_error():
    assert repr(ONE) == "Estimate(12.3456 +- 0.032, xtrace, 40 products)"
    assert str(ONE).splitlines()[2:] == [
        "value           12.3456",
        "standard error  0.032",
        "products        40",
        "method          xtrace",
    ]


def test_a_vector_prints_its_shape_and_size():
    assert "f64[2], c128[1], at most 5" in repr(TREE)
    assert "at most 0.2" in str(TREE)


@pytest.mark.parametrize("estimate", [ONE, TREE], ids=["number", "tree"])
def test_in_a_notebook_it_is_a_table(estimate):
    html = estimate._repr_html_()
    assert html.startswith("<table>")
    assert "standard error" in html
    assert estimate.method in html


def test_inside_of_a_transformation_it_prints_as_well():
    shown = []

    @jax.jit
    def run(estimate):
        shown.extend([repr(estimate), str(estimate)])
        return estimate

    run(ONE)
    assert all("Estimate(" in text for text in shown)


def test_it_is_a_pytree():
    double = jax.tree.map(lambda a: 2 * a, TREE)
    close(double.value["w"], np.array([2.0, -5.0]))
    assert double.method == "xdiag"
