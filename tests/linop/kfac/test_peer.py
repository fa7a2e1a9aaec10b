"""Factors equal those of curvlinops, which registers the layers of a torch module.

Neither it nor torch is in an extra of hotk: `pip install curvlinops-for-pytorch`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hotk
from hotk.curvature import SoftmaxCrossEntropy, SquaredError


torch = pytest.importorskip("torch")
curvlinops = pytest.importorskip("curvlinops")
pytestmark = [pytest.mark.library, pytest.mark.exhaustive]
N, CLASSES = 7, 3


@pytest.fixture(autouse=True)
def in_double_precision():
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def convolved(x, layer):
    w, b = layer
    numbers = ("NCHW", "OIHW", "NCHW")
    options = {"rhs_dilation": (1, 2), "dimension_numbers": numbers}
    z = jax.lax.conv_general_dilated(x, w, (2, 1), [(1, 1), (1, 1)], **options)
    return z + b[:, None, None]


def linear(x, layer):
    w, b = layer
    return x @ w.T + b


class Mean(torch.nn.Module):
    """The mean over positions of each example."""

    def forward(self, x):
        return x.mean(1) if x.ndim == 3 else x.mean((2, 3))


def perceptron(p, x):
    return linear(jnp.tanh(linear(x, p[0])), p[1])


def with_shared_weights(p, x):
    h = jnp.tanh(linear(jnp.tanh(linear(x, p[0])), p[1]))
    return linear(jnp.mean(h, axis=1), p[2])


def convolutional(p, x):
    h = jnp.tanh(convolved(jnp.tanh(convolved(x, p[0])), p[1]))
    return linear(jnp.mean(h, axis=(2, 3)), p[2])


def layers(*several):
    """Return a module with a hyperbolic tangent after each layer but the last."""
    *others, last = several
    pairs = [(a, torch.nn.Tanh()) for a in others if not isinstance(a, Mean)]
    flat = [part for pair in pairs for part in pair]
    means = [a for a in others if isinstance(a, Mean)]
    return torch.nn.Sequential(*flat, *means, last)


def make(name):
    """Return the two models, which are the same function, and the inputs."""
    nn = torch.nn
    conv = {"stride": (2, 1), "padding": 1, "dilation": (1, 2)}
    if name == "perceptron":
        module = layers(nn.Linear(5, 4), nn.Linear(4, CLASSES))
        return perceptron, module, (N, 5)
    if name == "positions":
        shared = nn.Linear(5, 4), nn.Linear(4, 6), Mean(), nn.Linear(6, CLASSES)
        return with_shared_weights, layers(*shared), (N, 8, 5)
    convolutions = nn.Conv2d(2, 4, 3, **conv), nn.Conv2d(4, 5, 3, **conv)
    module = layers(*convolutions, Mean(), nn.Linear(5, CLASSES))
    return convolutional, module, (N, 2, 9, 8)


def parameters(module):
    """Return weights and biases as arrays, and the names of the layers."""
    found = [(n, a) for n, a in module.named_modules() if hasattr(a, "weight")]
    array = lambda a: jnp.asarray(a.detach().numpy())
    return [(array(a.weight), array(a.bias)) for _, a in found], [n for n, _ in found]


@pytest.mark.parametrize("loss", ["mean", "sum", "squares"])
@pytest.mark.parametrize("estimate", ["exact", "empirical"])
@pytest.mark.parametrize("approximation", ["expand", "reduce"])
@pytest.mark.parametrize("name", ["perceptron", "positions", "convolutions"])
def test_factors(name, approximation, estimate, loss):
    model, module, shape = make(name)
    p, names = parameters(module)
    x, labels = torch.randn(shape), torch.randint(CLASSES, (N,))
    if loss == "squares":
        # Theirs is twice half the squares: of the Hessian, and of both gradients.
        targets, factor = torch.randn((N, CLASSES)), 2 if estimate == "exact" else 4
        theirs = torch.nn.MSELoss(reduction="sum")
        ours = SquaredError(jnp.asarray(targets.numpy()), reduction="sum")
    else:
        targets, factor = labels, 1
        theirs = torch.nn.CrossEntropyLoss(reduction=loss)
        ours = SoftmaxCrossEntropy(jnp.asarray(targets.numpy()), reduction=loss)
    np.testing.assert_allclose(
        model(p, jnp.asarray(x.numpy())), module(x).detach().numpy(), atol=1e-12
    )
    peer = curvlinops.KFACLinearOperator(
        module,
        theirs,
        list(module.parameters()),
        [(x, targets)],
        fisher_type={"exact": "type-2", "empirical": "empirical"}[estimate],
        kfac_approx=approximation,
        separate_weight_and_bias=False,
        check_deterministic=False,  # it would add the factors once more
    )
    peer.compute_kronecker_factors()
    inputs = jnp.asarray(x.numpy())
    options = {"approximation": approximation, "estimate": estimate}
    K = hotk.KFACOperator(model, ours, p, inputs, **options)
    assert len(K.blocks) == len(names)
    for block, name in zip(K.blocks, names, strict=True):
        a, g = (
            each[name].detach().numpy()
            for each in (peer._input_covariances, peer._gradient_covariances)
        )
        np.testing.assert_allclose(block.A.values, a, rtol=0, atol=1e-12)
        np.testing.assert_allclose(factor * block.G.values, g, rtol=0, atol=1e-12)
