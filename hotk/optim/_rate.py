"""`scale_by_rate`: a learning rate that is no part of the program."""

import jax.numpy as jnp
import optax


def scale_by_rate(
    learning_rate: optax.ScalarOrSchedule,
) -> optax.GradientTransformation:
    """As `optax.scale_by_learning_rate`, with a number that another one may replace.

    A number of Python would be part of the program of `minimize`, which is compiled
    anew for each of them; an array is one of its arguments.
    """
    if callable(learning_rate):
        return optax.scale_by_learning_rate(learning_rate)
    return optax.scale(jnp.asarray(-learning_rate))
