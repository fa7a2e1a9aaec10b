"""`Layout`: one flat NumPy vector in float64 for a list of real arrays."""

import math
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array, Float

from hotk._core import (
    DtypeError,
    Leaf,
    OutputError,
    StructureError,
    describe,
    describe_tree,
    message,
)
from hotk._prepared import user_level


class PrecisionWarning(UserWarning):
    """A solver that works in float64 gets derivatives of lower precision.

    The tolerances of SciPy and IPOPT are made for float64. With a point in float32,
    values and derivatives have about seven digits, so a solver may stop early or report
    a failure. Give `x0` in float64, or set a larger `tol`.
    """


class Part(NamedTuple):
    """One real array of a list.

    Attributes:
        shape: Its shape.
        dtype: Its dtype.
        is_number: Whether it is a Python number, which takes the dtype of the arrays
            that it is combined with.
        sharding: The sharding of a committed JAX array, `None` for all else.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    is_number: bool
    sharding: Sharding | None


class Layout:
    """Where each real array of a list stands in a flat vector, one after the other.

    A complex array counts as two: its real part, then its imaginary part.

    Attributes:
        parts: The real arrays.
        slices: The entries of the vector that each of them has.
        size: The number of entries.
    """

    __slots__ = ("_low_precision", "parts", "size", "slices")

    def __init__(self, leaves: Iterable[Leaf | jax.ShapeDtypeStruct]) -> None:
        self.parts = [part for leaf in leaves for part in _parts(leaf)]
        self.slices: list[slice] = []
        self.size = 0
        for part in self.parts:
            stop = self.size + math.prod(part.shape)
            self.slices.append(slice(self.size, stop))
            self.size = stop
        self._low_precision = any(part.dtype != np.float64 for part in self.parts)

    def split(self, z: Float[np.ndarray, "*k n"]) -> list[Array | np.ndarray]:
        """Split a flat vector, or rows of them, into new arrays that JAX may keep.

        Args:
            z: Of shape `(n,)` or `(count, n)`.
        """
        if not self._low_precision:
            return self._split(z)
        # A line search may try numbers beyond the range of a lower precision. They are
        # infinite then, as JAX casts them; NumPy would warn
        # (`test_single_precision_is_said_once_and_computed`).
        with np.errstate(over="ignore", invalid="ignore"):
            return self._split(z)

    def _split(self, z: Float[np.ndarray, "*k n"]) -> list[Array | np.ndarray]:
        arrays: list[Array | np.ndarray] = []
        leading = z.shape[:-1]
        for part, entries in zip(self.parts, self.slices, strict=True):
            array = z[..., entries].reshape(leading + part.shape)
            array = array.astype(part.dtype, order="C")
            if part.sharding is not None:
                array = jax.device_put(array, _sharding_of(part, array.ndim))
            arrays.append(array)
        return arrays

    def point(self, z: Float[np.ndarray, "n"]) -> list[Leaf]:
        """Split a flat vector, with Python numbers where there were some."""
        # As arrays they would have a dtype of their own, which promotes or, in strict
        # mode, raises (`test_a_python_number_takes_the_dtype_of_an_array`).
        pairs = zip(self.parts, self.split(z), strict=True)
        return [array.item() if part.is_number else array for part, array in pairs]

    def join(self, arrays: Iterable[Leaf]) -> Float[np.ndarray, "..."]:
        """Join arrays to a new vector in float64, or to rows of them."""
        vector = None
        for part, entries, array in zip(self.parts, self.slices, arrays, strict=True):
            value = np.asarray(array)
            leading = value.shape[: value.ndim - len(part.shape)]
            if vector is None:
                vector = np.empty((*leading, self.size))
            vector[..., entries] = value.reshape(*leading, entries.stop - entries.start)
        return np.empty(0) if vector is None else vector

    def dense(self, blocks: Iterable[Iterable[Leaf]]) -> Float[np.ndarray, "n n"]:
        """Join the blocks of a Hessian to a matrix, symmetric to the last bit."""
        matrix = np.empty((self.size, self.size))
        for rows, line in zip(self.slices, blocks, strict=True):
            for columns, block in zip(self.slices, line, strict=True):
                part = matrix[rows, columns]
                part[:] = np.asarray(block, dtype=np.float64).reshape(part.shape)
        # Rounding makes `H_ij` and `H_ji` differ. Their mean is one number, as the sum
        # of two does not depend on their order.
        return (matrix + matrix.T) / 2


def _parts(leaf: Leaf | jax.ShapeDtypeStruct) -> list[Part]:
    # `np.float64` is a subclass of `float`, but has a dtype of its own.
    is_number = isinstance(leaf, (float, complex)) and not isinstance(leaf, np.generic)
    dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(leaf))
    count = 2 if jnp.issubdtype(dtype, jnp.complexfloating) else 1
    # JAX refuses to compute with arrays that are committed to different devices, and
    # moves all others as needed.
    sharding = None
    if isinstance(leaf, jax.Array) and leaf.committed:
        sharding = leaf.sharding
    part = Part(np.shape(leaf), jnp.finfo(dtype).dtype, is_number, sharding)
    return [part] * count


def _sharding_of(part: Part, ndim: int) -> Sharding | None:
    """Return the sharding of a part, or that of several of them along a new axis."""
    if part.sharding is None or ndim == len(part.shape):
        return part.sharding
    if isinstance(part.sharding, NamedSharding):
        spec = PartitionSpec(None, *part.sharding.spec)
        return NamedSharding(part.sharding.mesh, spec)
    # Other kinds of shardings have no way to add an axis; one device needs none.
    return part.sharding if len(part.sharding.device_set) == 1 else None


def as_flat(
    call: str, name: str, z: npt.ArrayLike, size: int
) -> Float[np.ndarray, "n"]:
    """Copy a vector of a solver, which may write to it at any time.

    Raises:
        StructureError: If it has another size.
        DtypeError: If it is complex.
    """
    given = np.asarray(z)
    # Some of SciPy's solvers pass vectors as columns.
    _check_given(call, name, given, given.shape in ((size,), (size, 1)), f"[{size}]")
    return np.array(given, dtype=np.float64).reshape(size)


def as_flat_rows(
    call: str, name: str, z: npt.ArrayLike, size: int
) -> Float[np.ndarray, "k n"]:
    """Copy the columns of a solver's matrix as rows.

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
                f"`{name}` has the wrong shape.",
                expected=f"real numbers {shape}",
                got=describe(given),
                fix="Vectors are flat: they have one entry for each real number of the "
                "point, or of the constraints, in its order.",
            )
        )
    if np.iscomplexobj(given):
        raise DtypeError(
            message(
                call,
                f"`{name}` is complex.",
                expected=f"real numbers {shape}",
                got=describe(given),
                fix="Pass the real parts of a complex leaf, then its imaginary parts. "
                "Complex steps (`jac='cs'`) are not needed: derivatives are exact.",
            )
        )


def check_real(
    call: str, name: str, outputs: list[jax.ShapeDtypeStruct], parts: str
) -> None:
    """Refuse a function whose values are not all real floating-point numbers.

    Args:
        call: The call, for the message.
        name: The name of the function.
        outputs: Shapes and dtypes of its values.
        parts: What to return the parts of a complex number as.

    Raises:
        OutputError: If they are not.
    """
    if all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in outputs):
        return
    raise OutputError(
        message(
            call,
            f"`{name}` must return real floating-point numbers.",
            expected="real floating-point arrays",
            got=describe_tree(outputs),
            fix=f"Return the parts of a complex number {parts}.",
        )
    )


def warn_of_low_precision(call: str, layout: Layout) -> None:
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
        stacklevel=user_level(),
    )
