"""Energies of particles by JAX MD."""

import jax
import jax.numpy as jnp
import numpy as np
from jax_md import energy, quantity, simulate, smap, space

from tests.everyday.corpus import everyday


def lattice(seed):
    grid = np.stack(np.meshgrid(np.arange(3.0), np.arange(3.0)), -1).reshape(-1, 2)
    moved = 1.2 * grid + 0.1 * np.random.default_rng(seed).normal(size=grid.shape)
    return jnp.asarray(moved, jnp.float32)


@everyday("Lennard-Jones crystal in a periodic box", library="jax_md")
def lennard_jones(seed):
    displacement, _ = space.periodic(3.6)
    return energy.lennard_jones_pair(displacement), lattice(seed), ()


@everyday("soft spheres of two species", library="jax_md")
def soft_spheres(seed):
    displacement, _ = space.periodic(3.6)
    species = jnp.asarray(np.random.default_rng(seed).permutation(9) % 2)
    sigma = jnp.array([[1.0, 1.1], [1.1, 1.3]])
    energy_fn = energy.soft_sphere_pair(displacement, species=species, sigma=sigma)

    def total(R, strain):
        return energy_fn(R * (1 + strain))

    return total, lattice(seed), (jnp.array(0.01),)


@everyday("springs between listed bonds, a force of the user", library="jax_md")
def springs(seed):
    displacement, _ = space.free()
    bonds = jnp.array([[0, 1], [1, 2], [3, 4], [4, 5], [0, 3]])
    lengths = jnp.asarray(np.random.default_rng(seed).uniform(1.0, 1.2, 5))

    def spring(dr, length=1.0, **unused):
        return 0.5 * (dr - length) ** 2

    energy_fn = smap.bond(spring, space.metric(displacement), bonds, length=lengths)
    force = quantity.force(energy_fn)
    return lambda R: energy_fn(R) + 0.1 * jnp.sum(force(R) ** 2), lattice(seed), ()


@everyday("energy after steps of dynamics", library="jax_md")
def dynamics(seed):
    displacement, shift = space.free()
    energy_fn = energy.morse_pair(displacement, alpha=2.0)
    init, apply = simulate.nve(energy_fn, shift, 1e-2)
    apply = jax.jit(apply)
    key = jax.random.PRNGKey(seed)

    def loss(R):
        state = init(key, R, kT=0.1)
        for _ in range(2):
            state = apply(state)
        return energy_fn(state.position)

    return loss, lattice(seed), ()
