"""Rigid bodies and training losses by Brax."""

import jax
import jax.numpy as jnp
import numpy as np
from brax import base, kinematics, math
from brax.io import mjcf
from brax.training.agents.ppo.losses import compute_gae
from brax.training.distribution import NormalTanhDistribution

from tests.everyday.corpus import everyday


PENDULUM = """
<mujoco>
  <worldbody>
    <body pos="0 0 1">
      <joint name="a" type="hinge" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.05" mass="1"/>
      <body pos="0 0 -0.5">
        <joint name="b" type="hinge" axis="0 1 0"/>
        <geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.05" mass="1"/>
      </body>
    </body>
  </worldbody>
</mujoco>
"""
SYSTEM = mjcf.loads(PENDULUM)


@everyday("reach of a double pendulum", library="brax")
def reach(seed):
    target = jnp.asarray(np.random.default_rng(seed).normal(size=3))

    def loss(q):
        x, _ = kinematics.forward(SYSTEM, q, jnp.zeros(2))
        tip = x.vmap().do(base.Transform.create(pos=jnp.array([[0.0, 0.0, -0.5]] * 2)))
        return jnp.sum((tip.pos[-1] - target) ** 2)

    return loss, jnp.array([0.3, -0.4]), ()


@everyday("rotation fitted to points", library="brax")
def rotation(seed):
    points = jnp.asarray(np.random.default_rng(seed).normal(size=(5, 3)))
    rotate = jax.vmap(math.rotate, in_axes=(0, None))

    def loss(v):
        quat = v / jnp.linalg.norm(v)
        return jnp.mean((rotate(points, quat) - points[::-1]) ** 2)

    return loss, jnp.array([1.0, 0.1, -0.2, 0.3]), ()


@everyday("clipped policy loss with advantages", library="brax")
def clipped(seed):
    rng = np.random.default_rng(seed)
    distribution = NormalTanhDistribution(event_size=2)
    observations = jnp.asarray(rng.normal(size=(6, 1, 3)))
    actions = jnp.asarray(rng.normal(size=(6, 1, 2)))
    rewards = jnp.asarray(rng.normal(size=(6, 1)))
    before = jnp.asarray(rng.normal(size=(6, 1)))

    def loss(w):
        logits = observations @ w
        _, advantages = compute_gae(
            truncation=jnp.zeros((6, 1)),
            termination=jnp.zeros((6, 1)),
            rewards=rewards,
            values=jnp.zeros((6, 1)),
            bootstrap_value=jnp.zeros(1),
        )
        ratio = jnp.exp(0.1 * (distribution.log_prob(logits, actions) - before))
        clipped = jnp.clip(ratio, 0.7, 1.3)
        return -jnp.mean(jnp.minimum(ratio * advantages, clipped * advantages))

    return loss, jnp.linspace(-0.5, 0.5, 12).reshape(3, 4), ()
