"""Sums over the processes of a run, each of which has data of its own."""

import functools
import math
import zlib
from collections.abc import Callable
from typing import TypeAlias, TypeVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, PyTree

from hotk._core import message
from hotk._prepared import jitted


T = TypeVar("T")

_AXIS = "process"
# A count in three digits: sums of those are exact in float32, of all but the largest
# counts not.
_DIGIT = 1 << 12
_DIGITS = 3
_TEXT = 2000  # bytes of a message
# Squared deviations of numbers below one, which rounding in float32 does not reach.
_SPREAD = 1e-6


Local: TypeAlias = tuple[PyTree, int]
"""What one process brings into a sum: a tree of arrays, and a number of examples."""


@final
class Processes:
    """The processes of a run, by one device of each.

    What all of them call together takes one all-reduce, of one flat array. A process
    that fails takes part in it, with a flag: then all raise, and none waits.

    Attributes:
        mesh: One device of each process.
        index: The number of this process.
    """

    __slots__ = ("index", "mesh")

    def __init__(self) -> None:
        """Find the processes that `jax.distributed.initialize` has connected.

        Raises:
            ValueError: If it was not called.
        """
        if not jax.distributed.is_initialized():
            raise ValueError(
                message(
                    "over(..., processes=True)",
                    "this process is not connected to others.",
                    expected="a run that `jax.distributed.initialize` has begun",
                    got="one process",
                    fix="Call `jax.distributed.initialize(...)` at the start of each "
                    "process, or leave out `processes=True`.",
                )
            )
        first = {}
        for device in jax.devices():
            first.setdefault(device.process_index, device)
        devices = [first[number] for number in sorted(first)]
        self.mesh = Mesh(np.array(devices), (_AXIS,))
        self.index = sorted(first).index(jax.process_index())

    def together(self, attempt: Callable[[], T], alike: PyTree) -> T:
        """Return what this process makes, if each of them makes its own.

        Args:
            attempt: Makes it.
            alike: What all processes must have alike.

        Raises:
            RuntimeError: If another process has failed.
            ValueError: If the processes differ in what they must have alike.
        """
        made: list[T] = []

        def local() -> Local:
            made.append(attempt())
            return (), 0

        self.sum(local, lambda: (), alike)
        return made[0]

    def sum(
        self, local: Callable[[], Local], zeros: Callable[[], PyTree], alike: PyTree
    ) -> tuple[PyTree, int]:
        """Sum over the processes: one all-reduce.

        Args:
            local: Computes the term of this process.
            zeros: Makes a total of this structure, for a process that fails.
            alike: What all processes must have alike.

        Returns:
            The sum and the count of all, on each process.

        Raises:
            RuntimeError: If another process has failed; with its message.
            ValueError: If the processes differ in what they must have alike.
            Exception: What this process has failed with.
        """
        failure: Exception | None = None
        try:
            total, count = local()
        except Exception as error:
            failure, total, count = error, zeros(), 0
        same = _characteristics(alike)
        head = [failure is not None, *_digits(count), *same, *same**2]
        flat = _reduce(self.mesh)(self._placed(_flat(total, np.array(head, float))))
        head, *parts = _unflat(flat.addressable_data(0), total)
        failed, *digits = np.asarray(head[: 1 + _DIGITS], np.float64)
        if failed:
            self._raise(failure)
        means, squares = np.split(np.asarray(head[1 + _DIGITS :]) / self.mesh.size, 2)
        if np.any(squares - means**2 > _SPREAD):
            raise _not_alike()
        sums = jax.tree.unflatten(jax.tree.structure(total), parts)
        back = lambda a, b: jax.device_put(a, b.sharding)
        sums = jax.tree.map(back, sums, jax.tree.map(jnp.asarray, total))
        return sums, sum(int(d) * _DIGIT**i for i, d in enumerate(digits))

    def _placed(self, row: Array) -> Array:
        """Return the rows of all processes as one array, of which this one has its."""
        device = self.mesh.devices[self.index]
        return jax.make_array_from_single_device_arrays(
            (self.mesh.size, *row.shape),
            NamedSharding(self.mesh, PartitionSpec(_AXIS)),
            [jax.device_put(row[None], device)],
        )

    def _raise(self, failure: Exception | None) -> None:
        """Tell what has failed, and raise: the own error, or that of the others."""
        text = b""
        if failure is not None:
            text = f"{type(failure).__name__}: {failure}".encode()[:_TEXT]
        own = np.zeros(_TEXT, np.int32)
        own[: len(text)] = np.frombuffer(text, np.uint8)
        rows = _gather(self.mesh)(self._placed(jnp.asarray(own)))
        texts = [
            bytes(row.astype(np.uint8)).rstrip(b"\0").decode(errors="replace")
            for row in np.asarray(rows.addressable_data(0))
        ]
        if failure is not None:
            raise failure
        which = [f"process {i}: {text}" for i, text in enumerate(texts) if text]
        raise RuntimeError(
            message(
                "over(..., processes=True)",
                "another process has failed, so this one ends its pass over the data.",
                expected=f"results of all {self.mesh.size} processes",
                got="; ".join(which),
                fix="Fix the error of that process.",
            )
        )


def _digits(count: int) -> list[int]:
    return [count // _DIGIT**i % _DIGIT for i in range(_DIGITS - 1)] + [
        count // _DIGIT ** (_DIGITS - 1)
    ]


def _characteristics(alike: PyTree) -> Float[np.ndarray, "3"]:
    """Return three numbers below one that tell trees of arrays from each other.

    A change of a thousandth is seen, a change by rounding on other hardware is not.
    """
    leaves, tree = jax.tree.flatten(alike)
    arrays = [a for a in leaves if isinstance(a, (jax.Array, np.ndarray, float))]
    shapes = [(jnp.shape(a), str(jnp.result_type(a))) for a in arrays]
    structure = zlib.crc32(f"{tree} {shapes}".encode()) / (1 << 32)
    sizes, projected = (float(a) for a in _projected(arrays))
    finite = math.isfinite(sizes) and math.isfinite(projected) and sizes > 0
    if not finite:
        return np.array([0.0, 0.0, structure])
    return np.array([projected / sizes, math.log(sizes) / 100, structure])


@jitted
def _projected(arrays: list[Array]) -> tuple[Array, Array]:
    """Return the sum of all absolute values, and one of all values with other signs."""
    sizes = projected = jnp.zeros((), jnp.result_type(float))
    for a in arrays:
        a = jnp.asarray(a)
        flat = (jnp.real(a) + jnp.imag(a)).ravel().astype(sizes.dtype)
        sizes += jnp.sum(jnp.abs(flat))
        projected += jnp.sum(flat * jnp.cos(jnp.arange(flat.size, dtype=flat.dtype)))
    return sizes, projected


@jitted
def _flat(total: PyTree, head: Float[Array, " head"]) -> Float[Array, " numbers"]:
    """Return a tree as one row of real numbers, after some others."""
    dtype = jnp.result_type(float)
    parts = [jnp.asarray(head, dtype)]
    for leaf in jax.tree.leaves(total):
        a = jnp.asarray(leaf).ravel()
        pair = [a.real, a.imag] if jnp.iscomplexobj(a) else [a]
        parts += [part.astype(dtype) for part in pair]
    return jnp.concatenate(parts)


@jitted
def _unflat(flat: Float[Array, "1 numbers"], total: PyTree) -> list[Array]:
    """Return the numbers ahead, and the leaves of a tree."""
    flat = flat.ravel()
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(total)]
    sizes = [a.size * (1 + jnp.iscomplexobj(a)) for a in leaves]
    start = flat.size - sum(sizes)
    made = [flat[:start]]
    for a, size in zip(leaves, sizes, strict=True):
        part = flat[start : start + size]
        start += size
        if jnp.iscomplexobj(a):
            part = jax.lax.complex(part[: a.size], part[a.size :])
        made.append(part.reshape(a.shape).astype(a.dtype))
    return made


@functools.lru_cache(maxsize=8)
def _reduce(mesh: Mesh) -> Callable[[Array], Array]:
    """Return what sums the rows of all processes: one all-reduce."""
    return jax.jit(
        jax.shard_map(
            lambda row: jax.lax.psum(row, _AXIS),
            mesh=mesh,
            in_specs=PartitionSpec(_AXIS),
            out_specs=PartitionSpec(),
        )
    )


@functools.lru_cache(maxsize=8)
def _gather(mesh: Mesh) -> Callable[[Array], Array]:
    """Return what gives the rows of all processes to each."""
    return jax.jit(lambda a: a, out_shardings=NamedSharding(mesh, PartitionSpec()))


def _not_alike() -> ValueError:
    return ValueError(
        message(
            "over(..., processes=True)",
            "the processes do not have the same point, or vector.",
            expected="the same numbers on each process; only the batches differ",
            got="others on at least one of them",
            fix="Make them from the same seed or file on each process, or send those "
            "of one by `jax.experimental.multihost_utils.broadcast_one_to_all`.",
        )
    )
