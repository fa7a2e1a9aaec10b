"""Equivariant functions by e3nn."""

import e3nn_jax as e3nn
import jax
import jax.numpy as jnp
import numpy as np

from tests.everyday.corpus import everyday


def positions(seed, atoms=4):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(atoms, 3)))


@everyday("invariants of spherical harmonics", library="e3nn_jax")
def harmonics(seed):
    points = positions(seed)
    weights = jnp.asarray(np.random.default_rng(seed).normal(size=(4, 9)))

    def energy(shift):
        sh = e3nn.spherical_harmonics("0e + 1o + 2e", points + shift, True)
        return jnp.sum(weights * sh.array) + jnp.sum(jnp.cosh(shift))

    return energy, jnp.array([0.1, -0.2, 0.3]), ()


@everyday("tensor product of captured features", library="e3nn_jax")
def product(seed):
    irreps = e3nn.Irreps("2x0e + 1x1o")
    numbers = np.random.default_rng(seed).normal(size=(4, irreps.dim))
    features = e3nn.IrrepsArray(irreps, jnp.asarray(numbers))

    def loss(x):
        direction = e3nn.IrrepsArray("1o", x)
        mixed = e3nn.tensor_product(features, direction, filter_ir_out=["0e", "1o"])
        return jnp.mean(e3nn.norm(mixed, squared=True).array ** 2)

    return loss, positions(seed), ()


@everyday("energy of a molecule by radial functions", library="e3nn_jax")
def molecule(seed):
    senders, receivers = np.nonzero(~np.eye(4, dtype=bool))
    charges = jnp.asarray(np.random.default_rng(seed).uniform(1, 2, 4))

    @jax.jit
    def energy(x):
        edges = e3nn.IrrepsArray("1o", x[senders] - x[receivers])
        lengths = e3nn.norm(edges).array[:, 0]
        radial = (
            e3nn.bessel(lengths, 3, 6.0)
            * e3nn.poly_envelope(5, 2)(lengths / 6.0)[:, None]
        )
        sh = e3nn.spherical_harmonics("1o", edges, normalize=True)
        messages = e3nn.tensor_product(e3nn.IrrepsArray("3x0e", radial), sh)
        nodes = e3nn.scatter_sum(messages, dst=receivers, output_size=4)
        return jnp.sum(charges * e3nn.norm(nodes, squared=True).array.sum(-1))

    return energy, positions(seed), ()
