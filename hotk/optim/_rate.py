"""`scale_by_rate`: a learning rate that is no part of the program."""

import optax

from hotk._core import from_host


def scale_by_rate(
    learning_rate: optax.ScalarOrSchedule,
) -> optax.GradientTransformation:
    """As `optax.scale_by_learning_rate`, with a number that another one may replace.

    A number of Python would be part of the program of `minimize`, which is compiled
    anew for each of them; an array is one of its arguments.
    """
    if callable(learning_rate):
        return optax.scale_by_learning_rate(learning_rate)
    return optax.scale(from_host(-learning_rate))
