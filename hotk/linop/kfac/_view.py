"""Views: which entries of a parameter stand where in an array of a program."""

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Array


Shape: TypeAlias = tuple[int, ...]

A = TypeVar("A", np.ndarray, Array)


@dataclasses.dataclass(frozen=True)
class View:
    """An array whose entries are entries of one leaf, times a number.

    The flat position in the leaf is `offset` plus the inner product of an index with
    `strides`, so views of any size take a few integers. Axes along which an entry is
    repeated have the stride 0. Structural operations of a program (reshape, transpose,
    slice, broadcast) give other views.

    Attributes:
        leaf: The number of the leaf.
        size: The number of entries of the leaf.
        offset: The flat position of the first entry.
        shape: The shape of the array.
        strides: By how much the position grows along each axis.
        scans: For each enclosing scan, the outermost first, its length and by how much
            the position grows from step to step: 0 if all steps see the same entries.
        factor: The number that the entries are multiplied with.
    """

    leaf: int
    size: int
    offset: int
    shape: Shape
    strides: Shape
    scans: tuple[tuple[int, int], ...] = ()
    factor: float = 1.0

    @staticmethod
    def whole(leaf: int, shape: Sequence[int]) -> "View":
        """Return the view of a leaf that is the leaf itself."""
        strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
        return View(leaf, math.prod(shape), 0, tuple(shape), tuple(strides))

    # ----- Structural operations

    def transposed(self, order: Sequence[int]) -> "View":
        """Return the view with its axes in another order."""
        return self._with([self.shape[d] for d in order], self._steps(order))

    def _steps(self, axes: Sequence[int]) -> list[int]:
        return [self.strides[d] for d in axes]

    def _with(self, shape: Sequence[int], strides: Sequence[int]) -> "View":
        return dataclasses.replace(self, shape=tuple(shape), strides=tuple(strides))

    def reshaped(self, shape: Sequence[int]) -> "View | None":
        """Return the view in another shape, `None` if no strides give that."""
        if 0 in shape or 0 in self.shape:
            return None
        steps = _reshaped(self.shape, self.strides, shape)
        return None if steps is None else self._with(shape, steps)

    def spread(self, shape: Sequence[int], axes: Sequence[int]) -> "View":
        """Return the view repeated along new axes, and along those of length 1.

        Args:
            shape: The new shape.
            axes: Where the axes of this view are among the new ones.
        """
        steps = [0] * len(shape)
        for d, axis in enumerate(axes):
            if self.shape[d] == shape[axis]:
                steps[axis] = self.strides[d]
        return self._with(shape, steps)

    def sliced(
        self, start: Sequence[int], stop: Sequence[int], steps: Sequence[int]
    ) -> "View":
        """Return a slice of the view."""
        moved = sum(a * s for a, s in zip(start, self.strides, strict=True))
        triples = zip(start, stop, steps, strict=True)
        shape = [max(0, -(-(b - a) // k)) for a, b, k in triples]
        strides = [s * k for s, k in zip(self.strides, steps, strict=True)]
        return dataclasses.replace(
            self, offset=self.offset + moved, shape=tuple(shape), strides=tuple(strides)
        )

    def reversed(self, axes: Sequence[int]) -> "View":
        """Return the view with some axes in reverse."""
        last = sum((self.shape[d] - 1) * self.strides[d] for d in axes)
        signs = [-1 if d in axes else 1 for d in range(len(self.shape))]
        strides = [s * k for s, k in zip(self.strides, signs, strict=True)]
        return dataclasses.replace(
            self, offset=self.offset + last, strides=tuple(strides)
        )

    def scaled(self, factor: float) -> "View":
        """Return the view times a number."""
        return dataclasses.replace(self, factor=self.factor * factor)

    def in_scan(self, length: int, *, sliced: bool) -> "View":
        """Return what the body of a scan sees: a slice, or all of it each time."""
        step = self.strides[0] if sliced else 0
        inside = self._with(self.shape[1:], self.strides[1:]) if sliced else self
        return dataclasses.replace(inside, scans=(*self.scans, (length, step)))

    # ----- Entries

    @property
    def heads(self) -> Shape:
        """The lengths of the scans whose steps see other entries each."""
        return tuple(length for length, step in self.scans if step)

    @property
    def axes(self) -> list[tuple[int, int]]:
        """Length and stride of each axis, those of scans first."""
        own = zip(self.shape, self.strides, strict=True)
        return [scan for scan in self.scans if scan[1]] + list(own)

    def sorted(self) -> "View":
        """Return the view without repeated entries, the axes in the leaf's order."""
        own = zip(self.shape, self.strides, strict=True)
        kept = [(n, s) for n, s in own if s and n != 1]
        kept.sort(key=lambda axis: -abs(axis[1]))
        return self._with([n for n, _ in kept], [s for _, s in kept])

    @property
    def layout(self) -> "_Sliced | None":
        """How a leaf is sliced to the view; `None` if it cannot be.

        It can where each entry stands once, and the strides divide each other.
        """
        axes = [(d, n, s) for d, (n, s) in enumerate(self.axes) if n != 1]
        base = self.offset + sum((n - 1) * s for _, n, s in axes if s < 0)
        dims, slices, previous = [], [], self.size
        for _, n, s in sorted(axes, key=lambda axis: -abs(axis[2])):
            step = abs(s)
            if not step or previous % step:
                return None
            count, (start, base) = previous // step, divmod(base, step)
            if start + n > count:
                return None
            dims.append(count)
            slices.append(slice(start, start + n))
            previous = step
        order = sorted(range(len(axes)), key=lambda k: -abs(axes[k][2]))
        inverse = [order.index(k) for k in range(len(axes))]
        flips = tuple(slice(None, None, -1 if s < 0 else 1) for _, _, s in axes)
        whole = tuple(n for n, _ in self.axes)
        # a slice, as NumPy copies what is indexed by integers alone
        index = (*slices, slice(base, base + 1))
        return (*dims, previous), index, (*inverse, len(axes)), flips, whole

    def take(self, leaf: A) -> A:
        """Return the entries of a leaf, without the factor: axes of scans come first.

        Of a NumPy array it is a view of NumPy, which can be written to.
        """
        layout = self.layout
        assert layout is not None  # sites of other views are not matched
        dims, index, order, flips, shape = layout
        return leaf.reshape(dims)[index].transpose(order)[flips].reshape(shape)

    def positions(self) -> np.ndarray:
        """Return the flat position of each entry, one integer each."""
        total = np.full((1,) * len(self.axes), self.offset)
        for d, (n, s) in enumerate(self.axes):
            axis = [1] * len(self.axes)
            axis[d] = n
            total = total + (np.arange(n) * s).reshape(axis)
        return total


_Sliced: TypeAlias = tuple[Shape, tuple[Any, ...], Shape, tuple[slice, ...], Shape]


def _reshaped(
    shape: Sequence[int], strides: Sequence[int], new: Sequence[int]
) -> list[int] | None:
    """Return the strides of an array in another shape, as NumPy finds them."""
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    wanted = [d for d, n in enumerate(new) if n != 1]
    steps, i, j = [0] * len(new), 0, 0
    while j < len(wanted):
        first, begin = i, j
        have, want = old[i][0], new[wanted[j]]
        while have != want:  # axes of both shapes that have as many entries
            if have < want:
                i += 1
                have *= old[i][0]
            else:
                j += 1
                want *= new[wanted[j]]
        for (_, s), (n, t) in zip(old[first:i], old[first + 1 : i + 1], strict=True):
            if s != n * t:
                return None
        step = old[i][1]
        for k in range(j, begin - 1, -1):
            steps[wanted[k]] = step
            step *= new[wanted[k]]
        i, j = i + 1, j + 1
    return steps


@dataclasses.dataclass(frozen=True)
class LeafEntries:
    """Any entries of a leaf, by their flat positions.

    Attributes:
        leaf: The number of the leaf.
        flat: The positions; two are the same if these are.
        digest: What they are compared by.
    """

    leaf: int
    flat: np.ndarray = dataclasses.field(compare=False)
    digest: bytes

    @staticmethod
    def of(leaf: int, flat: np.ndarray) -> "LeafEntries":
        """Return the entries at some positions."""
        return LeafEntries(leaf, flat, hashlib.blake2b(flat.tobytes()).digest())

    @property
    def heads(self) -> Shape:
        """No lengths of scans."""
        return ()

    @property
    def shape(self) -> Shape:
        """The number of the entries."""
        return self.flat.shape

    def take(self, leaf: A) -> A:
        """Return the entries of a leaf."""
        return leaf.reshape(-1)[self.flat]


Part: TypeAlias = View | LeafEntries
"""Some entries of one leaf."""
