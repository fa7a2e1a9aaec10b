"""Raw JAX on one program in one state at one point."""

import functools
from collections.abc import Callable

import jax
import numpy as np

from .program import Program


REVERSE_FIRST = {"FORWARD_OVER_REVERSE", "REVERSE_OVER_REVERSE"}
NESTINGS = (
    "FORWARD_OVER_REVERSE",
    "REVERSE_OVER_REVERSE",
    "REVERSE_OVER_FORWARD",
    "FORWARD_OVER_FORWARD",
)


def allowed(program: Program) -> tuple[str, ...]:
    """Name the nestings in which raw JAX differentiates the program."""
    if "while" in program.kinds:
        return NESTINGS[3:]
    if "custom_vjp" in program.kinds:
        return NESTINGS[:2]
    return NESTINGS


_HESSIANS = {
    "FORWARD_OVER_REVERSE": lambda f: jax.jacfwd(jax.grad(f)),
    "REVERSE_OVER_REVERSE": lambda f: jax.jacrev(jax.grad(f)),
    "REVERSE_OVER_FORWARD": lambda f: jax.jacrev(jax.jacfwd(f)),
    "FORWARD_OVER_FORWARD": lambda f: jax.jacfwd(jax.jacfwd(f)),
}


def _product(gradient: Callable, z, v):
    """Push a direction through a gradient; the gradient comes out too."""
    return jax.jvp(gradient, (z,), (v,))


class Reference:
    """Raw JAX on one program in one state at one point, joined to one vector.

    What a call does not ask for is not computed: to compile is what takes the time.
    """

    def __init__(self, f: Callable, z, v, nesting: str, jit: bool) -> None:
        self.f, self.z, self.v, self.nesting = f, z, v, nesting
        self.jit = jax.jit if jit else lambda f: f
        f(z)  # a cache is filled now, or JAX itself would put a tracer into it

    @functools.cached_property
    def value(self) -> np.ndarray:
        return np.asarray(self.f(self.z))

    @functools.cached_property
    def _first_and_second(self) -> tuple[np.ndarray, np.ndarray]:
        f, last = self.f, "FORWARD_OVER_FORWARD"
        inner = jax.grad if self.nesting in REVERSE_FIRST else jax.jacfwd
        if self.nesting in ("FORWARD_OVER_REVERSE", last):
            both = self.jit(lambda z, v: _product(inner(f), z, v))
        else:
            both = self.jit(
                lambda z, v: (inner(f)(z), jax.grad(lambda z: inner(f)(z) @ v)(z))
            )
        first, second = both(self.z, self.v)
        return np.asarray(first), np.asarray(second)

    @property
    def gradient(self) -> np.ndarray:
        return self._first_and_second[0]

    @property
    def product(self) -> np.ndarray:
        return self._first_and_second[1]

    @functools.cached_property
    def hessian(self) -> np.ndarray:
        return np.asarray(self.jit(_HESSIANS[self.nesting](self.f))(self.z))


def tolerance(program: Program) -> float:
    return 2e-4 if "single" in program.kinds else 1e-8


def agree(got, expected, rtol: float) -> bool:
    """Compare two vectors by their largest entry; NaN and infinity must coincide."""
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape:
        return False
    finite = np.isfinite(expected)
    if not np.array_equal(got[~finite], expected[~finite], equal_nan=True):
        return False
    scale = np.max(np.abs(expected[finite]), initial=1.0)
    return bool(np.all(np.abs(got[finite] - expected[finite]) <= rtol * scale))
