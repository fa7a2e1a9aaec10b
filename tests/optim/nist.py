"""The nonlinear regressions of NIST, with certified parameters.

NIST/ITL Statistical Reference Datasets, nonlinear regression: 27 sets of data in three
levels of difficulty, with two starts each, certified to 11 digits. As a work of the US
government they are in the public domain.
"""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float


CERTIFIED = 11
# Terms of a sum that may change places: the numbers of their parameters.
TERMS = {
    "ENSO": ((3, 4, 5), (6, 7, 8)),
    **dict.fromkeys(("Gauss1", "Gauss2", "Gauss3"), ((2, 3, 4), (5, 6, 7))),
    **dict.fromkeys(("Lanczos1", "Lanczos2", "Lanczos3"), ((0, 1), (2, 3), (4, 5))),
    "MGH17": ((1, 3), (2, 4)),
}
# Parameters whose sign does not matter: widths, and in Eckerle4 the height with it.
EVEN = {
    "Eckerle4": (0, 1),
    **dict.fromkeys(("Gauss1", "Gauss2", "Gauss3"), (4, 7)),
}


class Regression(NamedTuple):
    """A nonlinear regression.

    Attributes:
        name: As NIST calls it.
        level: Lower, Average or Higher difficulty.
        residuals: From the parameters to the model less the data.
        starts: The far one, and the near one.
        certified: The parameters.
        standard_errors: Those of the parameters.
        sum_of_squares: Of the residuals.
        model: From the parameters and `x` to what `y` is.
        x: The predictors.
        y: The response.
    """

    name: str
    level: str
    residuals: Callable[[Float[Array, " n"]], Float[Array, " m"]]
    starts: tuple[Float[np.ndarray, " n"], ...]
    certified: Float[np.ndarray, " n"]
    standard_errors: Float[np.ndarray, " n"]
    sum_of_squares: float
    model: Callable[..., Float[Array, " m"]]
    x: Float[np.ndarray, "... m"]
    y: Float[np.ndarray, " m"]

    def digits(self, b: ArrayLike) -> float:
        """Return how many digits are right; terms of a sum may change places."""
        b = np.array(b, float)
        even = list(EVEN.get(self.name, ()))
        b[even] = abs(b[even])
        terms = TERMS.get(self.name, ((0,),))
        places = list(itertools.chain(*terms))
        found = []
        for order in itertools.permutations(terms):
            other = b.copy()
            other[places] = b[list(itertools.chain(*order))]
            found.append(digits(other, self.certified))
        return max(found)


def digits(b: ArrayLike, certified: ArrayLike) -> float:
    """Return how many significant digits all parameters share with the certified."""
    b, certified = np.asarray(b, float), np.asarray(certified, float)
    error = np.max(abs(b - certified) / abs(certified))
    if not np.isfinite(error):
        return 0.0
    return float(np.clip(-np.log10(max(error, 10.0**-CERTIFIED)), 0, CERTIFIED))


def _regression(name: str, given: dict) -> Regression:
    model = eval(f"lambda b, x: {given['formula']}", {"jnp": jnp})
    x, y = np.array(given["x"]), np.array(given["y"])
    return Regression(
        name,
        given["level"],
        lambda b: model(b, jnp.asarray(x)) - jnp.asarray(y),
        tuple(map(np.array, given["starts"])),
        np.array(given["certified"]),
        np.array(given["standard_errors"]),
        given["residual_sum_of_squares"],
        model,
        x,
        y,
    )


def _regressions() -> dict[str, Regression]:
    text = Path(__file__).with_name("nist_strd.json").read_text(encoding="utf-8")
    return {name: _regression(name, s) for name, s in json.loads(text)["sets"].items()}


REGRESSIONS = _regressions()
