"""What problems for solvers share: a frozen function, and results at the last point."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
import numpy.typing as npt
from jaxtyping import Float, PyTree
from scipy.optimize import Bounds

from hotk._capture import Closure, Staged
from hotk._core import Function, Leaf, Point, function_name, in_trace, message
from hotk._prepared import Prepared

from ._coordinates import Coordinates


T = TypeVar("T")


class PointValues:
    """One point and what was computed there.

    Attributes:
        content: The bytes of the flat vector.
        parts: The vector as the real arrays of the tree.
        results: What was computed, by name.
    """

    __slots__ = ("content", "parts", "results")

    def __init__(self, content: bytes, parts: list[Leaf]) -> None:
        self.content = content
        self.parts = parts
        self.results: dict[str, Any] = {}

    def get(self, name: str, compute: Callable[[list[Leaf]], T]) -> T:
        """Return the result of a name, and compute it at the first call."""
        if name not in self.results:
            self.results[name] = compute(self.parts)
        return self.results[name]


class LastEvaluation:
    """The last point with its results: solvers ask for value and gradient by turns."""

    __slots__ = ("_coordinates", "_last")

    def __init__(self, coordinates: Coordinates) -> None:
        self._coordinates = coordinates
        self._last: PointValues | None = None

    def at(self, z: npt.ArrayLike) -> PointValues:
        """Return the evaluation at a vector: the last one, or a new one."""
        vector = self._coordinates.vector("z", z)
        # By content, as solvers write to the array that they passed. By bytes, as NaN
        # is not equal to itself, and `0.0 == -0.0` although `1 / x` differs.
        content, last = vector.tobytes(), self._last
        if last is not None and last.content == content:
            return last
        self._last = PointValues(content, self._coordinates.parts(vector))
        return self._last


class AbstractProblem:
    """A function of a tree at flat vectors, for a solver.

    Attributes:
        n: The number of variables.
    """

    def __init__(self, call: str, f: Function, x0: Point) -> None:
        if in_trace():
            raise TypeError(
                message(
                    call,
                    "the solver runs on the host, with numbers.",
                    expected="a call outside of `jax.jit` and other transformations",
                    got="a call inside of one",
                    fix="Leave out the `jit`: the callbacks are compiled. Inside of "
                    "one `hotk.optim.minimize` runs.",
                )
            )
        self._name = function_name(f)
        self._coordinates = Coordinates(call, x0)
        self._last = LastEvaluation(self._coordinates)
        self._like = self._coordinates.parts(self._coordinates.start)
        self.n = self._coordinates.layout.size

    @property
    def x0(self) -> Float[np.ndarray, "n"]:
        """The starting point, as a new flat vector."""
        return self._coordinates.start.copy()

    def _given(
        self, bounds: Any, options: Mapping[str, object] | None, more: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return bounds as SciPy takes them, and all options of a method."""
        for name in ("fun", "x0", "args", "jac", "hess", "hessp"):
            if name in more:
                raise TypeError(
                    message(
                        f"{self!r}: {name}=",
                        "this is what the problem itself gives to SciPy.",
                        expected="options of the method",
                        got=f"{name}=",
                        fix="Start and arguments belong to the call that makes the "
                        "problem. For other derivatives call SciPy with its methods, "
                        "as in `scipy.optimize.minimize(p.fun, p.x0, jac=p.jac)`.",
                    )
                )
        pair = isinstance(bounds, (tuple, list)) and len(bounds) == 2
        if pair and self.n == 2:  # two sequences are then SciPy's pairs, but a tuple
            # of two arrays is lower and upper, as it is for any other n
            arrays = np.ndarray, jax.Array
            both = isinstance(bounds, tuple) and all(
                isinstance(side, arrays) for side in bounds
            )
            pair = both or not isinstance(bounds[0], (tuple, list, *arrays))
        like = self._coordinates.tree(self._coordinates.start)
        same = lambda b: jax.tree.structure(b) == jax.tree.structure(like)
        if pair and all(map(same, bounds)):
            flat = [self._coordinates.flat_like(like, b) for b in bounds]
            bounds = Bounds(*flat)  # type: ignore[arg-type]
        return bounds, {**(options or {}), **more}

    def unravel(self, z: npt.ArrayLike) -> Point:
        """Return a flat vector as a tree like `x0`.

        Args:
            z: The vector, of shape `(n,)`.

        Returns:
            JAX arrays in the dtypes of `x0`, and what is not differentiated.
        """
        return self._coordinates.tree(self._coordinates.vector("z", z))


def freeze(f: Function, prepared: Sequence[Prepared], *arguments: PyTree) -> Closure:
    """Return a function with the values that it captures now.

    Hessians are prepared when a solver asks for one, which may be after the user
    changed what `f` captures: they have to be those of the same function as the value.

    Args:
        f: A function made of the functions that were prepared.
        prepared: Operators on these functions, prepared at this moment.
        *arguments: Examples of what it is called with: numbers and arrays.

    Returns:
        The function. Later changes of what `f` captures do not change it.
    """
    # Captured arrays stay inputs of the program where Python code does not need their
    # values. Preparation has found out which do, and is not repeated: other data then
    # need no compilation (`test_other_data_need_no_compile`).
    if all(operator.skeleton.opaque is None for operator in prepared):
        static = max(operator.skeleton.static_arrays for operator in prepared)
        closure = Closure.of(f, static_arrays=static)
        if closure.skeleton.opaque is None:
            return closure
    # An object whose state hotk cannot track is traced now: its values become constants
    # (`test_an_object_with_state_is_frozen`).
    return Closure.of(Staged.of(f, *arguments))
