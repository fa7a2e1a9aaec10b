"""Complex functions of real points: every mode keeps the imaginary part."""

import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from tests.helpers import close


A, B = 0.3, 2.0
X = np.array([A, B])
E = np.exp(1j * A)
VALUE = np.array([E * B**2, (1 + 2j) * A * B])
JACOBIAN = np.array([[1j * E * B**2, 2 * E * B], [(1 + 2j) * B, (1 + 2j) * A]])
HESSIAN = np.array(
    [[[-E * B**2, 2j * E * B], [2j * E * B, 2 * E]], [[0, 1 + 2j], [1 + 2j, 0]]]
)

FIRST = [hotk.Auto(), hotk.Forward(), hotk.Reverse()]
SECOND = [
    hotk.Auto(),
    hotk.FORWARD_OVER_REVERSE,
    hotk.REVERSE_OVER_REVERSE,
    hotk.REVERSE_OVER_FORWARD,
    hotk.FORWARD_OVER_FORWARD,
]


def f(x):
    """Return two complex numbers of two real ones."""
    a, b = x.astype(complex)
    return jnp.stack([jnp.exp(1j * a) * b**2, (1 + 2j) * a * b])


def spiral(t):
    """Return `t^3 exp(i t)`: its derivatives are known by hand."""
    t = jnp.asarray(t).astype(complex)
    return jnp.exp(1j * t) * t**3


@pytest.mark.parametrize("mode", FIRST, ids=str)
def test_first_order(mode):
    value, jacobian = hotk.value_and_jacobian(f, X, mode=mode)
    close(value, VALUE)
    close(jacobian, JACOBIAN)
    slope = np.exp(1j * A) * (1j * A**3 + 3 * A**2)
    close(hotk.derivative(spiral, A, mode=mode), slope)


@pytest.mark.parametrize("mode", SECOND, ids=str)
def test_second_order(mode):
    value, jacobian, hessian = hotk.value_gradient_and_hessian(f, X, mode=mode)
    close(value, VALUE)
    close(jacobian, JACOBIAN)
    close(hessian, HESSIAN)
    close(hotk.hessian(lambda x: f(x)[0], X, mode=mode), HESSIAN[0])
    bend = np.exp(1j * A) * (-(A**3) + 6j * A**2 + 6 * A)
    close(hotk.second_derivative(spiral, A, mode=mode), bend)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("mode", SECOND, ids=str)
@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_mixed_outputs_in_blocks(mode, block_size):
    both = lambda x: {"complex": f(x), "real": jnp.sum(x**3)}
    got = hotk.hessian(both, X, mode=mode, block_size=block_size)
    close(got["complex"], HESSIAN)
    close(got["real"], np.diag(6 * X))
    assert got["real"].dtype == jnp.float64
