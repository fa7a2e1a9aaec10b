"""What the numeric keywords of hotk may be: one table for all functions.

A setting out of its range would give a wrong number without a word. What is traced has
no value yet, and passes.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ._compat import Tracer
from ._describe import describe


class Range(NamedTuple):
    """The numbers that a keyword takes.

    Attributes:
        text: What they are, for a message.
        holds: Whether a number is one of them.
        whole: Whether they are integers.
    """

    text: str
    holds: Callable[[Any], bool]
    whole: bool = False

    def check(self, call: str, keyword: str, value: Any) -> None:
        """Refuse a number out of its range, and what is not a number.

        A tree or a function, as a schedule is, is left to the function that takes it.

        Raises:
            TypeError: If it is text or complex, or no integer where one is meant.
            ValueError: If it is out of its range.
        """
        if isinstance(value, (jax.Array, np.ndarray)) and np.shape(value) == ():
            value = value if isinstance(value, Tracer) else np.asarray(value)[()]
        wrong = isinstance(value, (str, bytes, complex, np.complexfloating))
        if isinstance(value, (int, float, np.bool_, np.integer, np.floating)):
            # a flag is an integer in Python, and a mistake
            flag = isinstance(value, (bool, np.bool_))
            integer = isinstance(value, (int, np.integer))
            wrong = flag or (self.whole and not integer)
        elif not wrong:
            return
        if wrong or not self.holds(value):
            raise (TypeError if wrong else ValueError)(
                f"`{call}`: `{keyword}` is {value!r}, not {self.text}."
            )


_COUNT = Range("a positive integer", lambda n: n >= 1, whole=True)
_FROM_ZERO = Range("zero or a positive integer", lambda n: n >= 0, whole=True)
_FINITE = Range("a finite number", math.isfinite)
_POSITIVE = Range("a positive number", lambda a: a > 0)
_NOT_NEGATIVE = Range("zero or a positive number", lambda a: a >= 0)
_SHARE = Range("a number in [0, 1)", lambda a: 0 <= a < 1)
_INSIDE = Range("a number between 0 and 1", lambda a: 0 < a < 1)
_FRACTION = Range("a number in (0, 1]", lambda a: 0 < a <= 1)
_FACTOR = Range("a number of at least 1", lambda a: a >= 1)

_COUNTS: Final = (
    "samples steps max_steps block_size rank window max_basis every update_every "
    "factors_every inverses_every max_evaluations max_refits times"
)
_SIZES: Final = (
    "tol gtol xtol rtol max_tol damping eps power l2 weight_decay least gamma "
    "decrease max_acceleration prior_precision noise_variance"
)
_RANGES: Final = {
    **dict.fromkeys(_COUNTS.split(), _COUNT),
    **dict.fromkeys(_SIZES.split(), _NOT_NEGATIVE),
    **dict.fromkeys(("max_restarts", "max_rejections"), _FROM_ZERO),
    **dict.fromkeys(("radius", "max_radius", "weight", "clip", "scale"), _POSITIVE),
    "f_scale": _POSITIVE,
    **dict.fromkeys(("b1", "b2", "decay"), _SHARE),
    **dict.fromkeys(("shrink", "level"), _INSIDE),
    **dict.fromkeys(("factors_fraction", "model_fraction"), _FRACTION),
    "grow": _FACTOR,
    **dict.fromkeys(("learning_rate", "accept"), _FINITE),
    ("minimize", "max_steps"): _FROM_ZERO,
    # a chunk of its steps is one program, of so many
    ("minimize", "callback_every"): Range(
        "an integer from 1 to 64", lambda n: 1 <= n <= 64, whole=True
    ),
    ("can_differentiate", "order"): _COUNT,
    # a shift of the spectrum, in either direction
    ("cholesky", "damping"): _FINITE,
    ("inverse", "damping"): _FINITE,
}


class Key:
    """A random key of JAX, of either kind."""

    def check(self, call: str, keyword: str, value: object) -> None:
        """Refuse what is not a key, as a seed is none.

        Raises:
            TypeError: If it is none.
        """
        dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
        typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
        old = dtype == np.uint32 and shape is not None and len(shape) == 1
        if not old and not (typed and shape == ()):
            raise TypeError(
                f"`{call}`: `{keyword}` is {describe(value)}, not a random key. Write "
                "`jax.random.key(0)`."
            )


def check_settings(call: str, **settings: object) -> None:
    """Refuse keywords out of their range, not of a function; see `Range.check`."""
    for keyword, value in settings.items():
        found = range_of(call, keyword)
        if found is not None:
            found.check(call, keyword, value)


def range_of(function: str, keyword: str) -> Range | Key | None:
    """Return what a keyword of a function may be, `None` if that is not known here."""
    if keyword == "key":
        return Key()
    return _RANGES.get((function, keyword), _RANGES.get(keyword))
