"""`Layout`: one flat NumPy vector in float64 for a list of real arrays."""

import math
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float

from hotk._core import DtypeError, StructureError, describe, message


class PrecisionWarning(UserWarning):
    """A solver that works in float64 gets derivatives of lower precision."""


class Part(NamedTuple):
    """One real array of a list.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        number: Whether it is a Python number, which takes the dtype of what it meets.
        sharding: Where it lies, `None` for JAX's default device.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    number: bool
    sharding: Any


class Layout:
    """Where each real array of a list stands in a flat vector, one after the other.

    A complex array counts as two: its real part, then its imaginary part.
    """

    __slots__ = ("narrow", "parts", "places", "size")

    def __init__(self, leaves: list[Any]) -> None:
        self.parts = [part for leaf in leaves for part in _parts(leaf)]
        self.places, self.size = [], 0
        for part in self.parts:
            stop = self.size + math.prod(part.shape)
            self.places.append(slice(self.size, stop))
            self.size = stop
        self.narrow = any(part.dtype != np.float64 for part in self.parts)

    def split(self, z: np.ndarray, *, numbers: bool = False) -> list[Any]:
        """Split a flat vector, or rows of them, into new arrays that JAX may keep.

        Args:
            z: Of shape `(n,)` or `(count, n)`.
            numbers: Whether a Python number shall be one again.
        """
        if not self.narrow:
            return self._split(z, numbers)
        with np.errstate(over="ignore", invalid="ignore"):  # as JAX casts
            return self._split(z, numbers)

    def _split(self, z: np.ndarray, numbers: bool) -> list[Any]:
        made: list[Any] = []
        leading = z.shape[:-1]
        for part, place in zip(self.parts, self.places, strict=True):
            piece = z[..., place].reshape(leading + part.shape)
            piece = piece.astype(part.dtype, order="C")
            if part.number and numbers:
                made.append(piece.item())
            elif part.sharding is not None:
                made.append(jax.device_put(piece, _spread(part, piece)))
            else:
                made.append(piece)
        return made

    def join(self, arrays: Any) -> Float[np.ndarray, "..."]:
        """Join arrays to a new vector in float64, or to rows of them."""
        made = None
        for part, place, array in zip(self.parts, self.places, arrays, strict=True):
            value = np.asarray(array)
            leading = value.shape[: value.ndim - len(part.shape)]
            if made is None:
                made = np.empty((*leading, self.size))
            made[..., place] = value.reshape(*leading, place.stop - place.start)
        return np.empty(0) if made is None else made

    def dense(self, blocks: Any) -> Float[np.ndarray, "n n"]:
        """Join the blocks of a Hessian to a matrix, symmetric to the last bit."""
        made = np.empty((self.size, self.size))
        for row, line in zip(self.places, blocks, strict=True):
            for column, block in zip(self.places, line, strict=True):
                part = made[row, column]
                part[:] = np.asarray(block, dtype=np.float64).reshape(part.shape)
        return (made + made.T) / 2


def _parts(leaf: Any) -> list[Part]:
    number = isinstance(leaf, (float, complex)) and not isinstance(leaf, np.generic)
    dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(leaf))
    count = 2 if jnp.issubdtype(dtype, jnp.complexfloating) else 1
    sharding = None
    if isinstance(leaf, jax.Array) and leaf.committed:
        sharding = leaf.sharding
    part = Part(np.shape(leaf), jnp.finfo(dtype).dtype, number, sharding)
    return [part] * count


def _spread(part: Part, piece: np.ndarray) -> Any:
    """Return the sharding of a part, or that of several of them along a new axis."""
    if piece.ndim == len(part.shape):
        return part.sharding
    if isinstance(part.sharding, NamedSharding):
        spec = PartitionSpec(None, *part.sharding.spec)
        return NamedSharding(part.sharding.mesh, spec)
    return part.sharding if len(part.sharding.device_set) == 1 else None


def as_flat(call: str, name: str, z: Any, size: int) -> Float[np.ndarray, "n"]:
    """Copy what a solver gives for a vector, which it may write to at any time.

    Raises:
        StructureError: If it has another size.
        DtypeError: If it is complex.
    """
    given = np.asarray(z)
    _check_given(call, name, given, given.shape in ((size,), (size, 1)), f"[{size}]")
    return np.array(given, dtype=np.float64).reshape(size)


def as_flat_rows(call: str, name: str, z: Any, size: int) -> Float[np.ndarray, "k n"]:
    """Copy the columns that a solver gives as rows.

    Raises:
        StructureError: If they have another size.
        DtypeError: If they are complex.
    """
    given = np.asarray(z)
    fits = given.ndim == 2 and len(given) == size
    _check_given(call, name, given, fits, f"[{size},k]")
    return np.array(given.T, dtype=np.float64, order="C")


def _check_given(
    call: str, name: str, given: np.ndarray, fits: bool, shape: str
) -> None:
    if not fits:
        raise StructureError(
            message(
                call,
                f"`{name}` is not of this size.",
                expected=f"real numbers {shape}",
                got=describe(given),
                fix="Vectors are flat, and have the order and the size of the point.",
            )
        )
    if np.iscomplexobj(given):
        raise DtypeError(
            message(
                call,
                f"`{name}` is complex.",
                expected=f"real numbers {shape}",
                got=describe(given),
                fix="A complex leaf has its two parts one after the other; complex "
                "steps (`jac='cs'`) are not needed, as all derivatives are exact.",
            )
        )


def warn_of_low_precision(call: str, layout: Layout, level: int) -> None:
    """Warn if derivatives have fewer digits than solvers in float64 expect."""
    double = np.dtype(np.float64)
    low = {part.dtype for part in layout.parts if part.dtype != double}
    if not low:
        return
    names = ", ".join(sorted(dtype.name for dtype in low))
    worst = max(float(jnp.finfo(dtype).eps) for dtype in low)
    enable = "" if jax.config.jax_enable_x64 else "enable x64 at the start, "  # pyright: ignore[reportAttributeAccessIssue]
    enable += "`jax.config.update('jax_enable_x64', True)`, " if enable else ""
    warnings.warn(
        f"`{call}`: parameters in {names}, so values and derivatives are no better "
        f"than about {worst:.0e}, which the solver's usual tolerances (1e-5 to 1e-8, "
        "made for float64) cannot reach: it may stop early or report a failure. "
        f"For float64, {enable}give `x0` in float64; otherwise loosen `tol`.",
        PrecisionWarning,
        stacklevel=level,
    )
