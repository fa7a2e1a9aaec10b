"""The errors and warnings of hotk, the form of their messages, and short tracebacks."""

import functools
import html
import os
import types
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree

from ._compat import ShardingTypeError
from ._table import html_table


class HotkError(Exception):
    """Base class of the errors that hotk raises.

    Each subclass is also a `ValueError`, `TypeError`, `NotImplementedError` or
    `MemoryError`, so ordinary `except` clauses work. A message has four parts: the call
    and the problem, what was expected, what was given, and how to fix it.

    Example:
        >>> try:
        ...     hotk.gradient(lambda x: x, jnp.ones(2))
        ... except hotk.HotkError as error:
        ...     print(type(error).__name__)
        OutputError
    """

    def _repr_html_(self) -> str:
        """Show the message, and what it compares in a table."""
        parts, rows = [f"<p><b>{type(self).__name__}</b></p>"], []
        for line in [*str(self).splitlines(), ""]:
            if line.startswith("  "):
                rows.append([part.strip() for part in line.partition(":")[::2]])
                continue
            if rows:
                parts.append(html_table(("", ""), rows))
                rows = []
            parts.append(f"<p>{html.escape(line)}</p>" if line else "")
        return "".join(parts)


class StructureError(HotkError, ValueError):
    """An argument has the wrong tree structure or the wrong shape.

    For example a direction `v` that does not match `x` leaf by leaf. hotk never
    broadcasts. The message names the leaf and shows both shapes. Also a `ValueError`.
    """


class DtypeError(HotkError, TypeError):
    """An argument has a dtype that does not match or cannot be differentiated.

    For example a point of integers only. hotk never promotes dtypes. Also a
    `TypeError`.
    """


class OutputError(HotkError, TypeError):
    """The function returns something that the operator cannot differentiate.

    For example a vector where a gradient needs one real number. Also a `TypeError`.
    """


class ModeError(HotkError, NotImplementedError):
    """The derivative does not exist in the mode asked for, or in any mode.

    The message names the function that is in the way and its line, such as a
    `while_loop` for reverse mode. Also a `NotImplementedError`.
    """


class PreparationError(HotkError, TypeError):
    """A prepared operator was called with other arguments than it was prepared for.

    The message is a table of all fields of the signature, with both values of those
    that differ. `on_mismatch="retrace"` or `"cast"` allow what is safe. Also a
    `TypeError`.
    """


class TooLargeError(HotkError, MemoryError):
    """A dense result would exceed the memory budget; nothing has been allocated.

    The message gives the number of bytes and what to use instead. The limit is
    `hotk.memory_budget`. Also a `MemoryError`.
    """


class NotPositiveDefiniteError(HotkError, ValueError):
    """A matrix that must be positive definite is not. Also a `ValueError`.

    Attributes:
        smallest: The smallest eigenvalue that was found.
        direction: Its unit eigenvector, a tree like the point, where it is known.
    """

    def __init__(self, text: str, smallest: float, direction: PyTree = None) -> None:
        super().__init__(text)
        self.smallest = smallest
        self.direction = direction


class VerificationError(HotkError, ArithmeticError):
    """Two roads to one number disagree by more than rounding explains.

    Raised by `hotk.testing.verified` alone. The message has both numbers, the operator
    and its mode, the function and the line of the call. Also an `ArithmeticError`.
    """


class NotStationaryWarning(UserWarning):
    """The point is not a minimum, or it was not reached, so its errors mean little.

    The message says how many standard errors the minimum of the quadratic is away.
    """


class CurvatureMismatchWarning(UserWarning):
    """The curvature that was given is not that of the potential, by a factor of ten.

    Most often one is a mean over N examples and the other a sum.
    """


class SingularHessianWarning(UserWarning):
    """The Hessian at a minimum is singular, and a derivative of the minimum is taken.

    It is NaN. Inside of `jax.jit` it is NaN as well, and nothing can warn.
    """


class ZeroHessianWarning(UserWarning):
    """The Hessian is zero at every point, as the function is piecewise linear.

    For example a sum of `relu`s of linear functions of `x`.
    """


class DensePatternWarning(UserWarning):
    """A sparse matrix has more than a million entries, and they are a tenth of all.

    The message has the first line of the function that makes rows of it dense.
    """


class NestedDerivativesWarning(UserWarning):
    """Derivatives are nested so deeply that another operator is far cheaper.

    The cost of nested derivatives is exponential in the order. The message names the
    operator that computes the same in Taylor mode.
    """


class OpaqueWarning(UserWarning):
    """A function is traced at every call, as it may read state that hotk cannot track.

    The result is right, and an equal program is not compiled again, but each call pays
    for a trace. The message says what cannot be tracked, and how to change it.
    """


class ChangingValueWarning(UserWarning):
    """A captured number or string changes from call to call, and each is a new trace.

    The message names the value. Pass it as an argument or capture it as an array.
    """


# `Auto` does not try another mode after one of these. A warning is raised here only if
# the user's filters make it an error. Explicit axes that do not fit are no missing
# mode: another that happens to work may take a hundred times as long.
PASSED_ON = (
    HotkError,
    ShardingTypeError,
    NotStationaryWarning,
    CurvatureMismatchWarning,
    SingularHessianWarning,
    ZeroHessianWarning,
    DensePatternWarning,
    NestedDerivativesWarning,
    OpaqueWarning,
    ChangingValueWarning,
)


def message(call: str, problem: str, *, expected: str, got: str, fix: str) -> str:
    """Write an error message in four parts.

    Args:
        call: The call, as the user knows it: `hvp(f, x, v)`.
        problem: What is wrong with it, in one sentence.
        expected: What it needs.
        got: What it was given, in the same form.
        fix: What to do about it.
    """
    shown = "  got:" + (got if got.startswith("\n") else f"      {got}")
    return f"`{call}`: {problem}\n  expected: {expected}\n{shown}\n{fix}"


def not_finite(call: str) -> str:
    """Return what to say of a matrix with NaN or infinity, which has no factors."""
    return message(
        call,
        "the matrix is not finite.",
        expected="finite numbers",
        got="NaN or infinity",
        fix="Look at the point, and at `H.value` and `H.gradient` there: "
        "`hotk.locate_nan(hotk.hessian, f, x)` says where a NaN comes from.",
    )


for _error in (
    HotkError,
    StructureError,
    DtypeError,
    OutputError,
    ModeError,
    PreparationError,
    TooLargeError,
    NotPositiveDefiniteError,
    VerificationError,
    NotStationaryWarning,
    CurvatureMismatchWarning,
    SingularHessianWarning,
    ZeroHessianWarning,
    DensePatternWarning,
    NestedDerivativesWarning,
    OpaqueWarning,
    ChangingValueWarning,
):
    _error.__module__ = "hotk"  # where users find it, and what a traceback shows


def note_list(error: Exception, x: PyTree) -> None:
    """Say in an error of the user's function that its point is a list, not an array.

    SciPy makes an array of a list of numbers. To JAX and hotk it is a tree.
    """
    if type(x) not in (list, tuple):
        return
    numbers = [a for a in x if isinstance(a, (float, jax.Array)) and np.ndim(a) == 0]
    if "positional argument" in str(error):  # of a function with other arguments
        return
    if 0 < len(numbers) == len(x) and isinstance(error, (TypeError, AttributeError)):
        error.add_note(
            f"The point is a {type(x).__name__} of {len(x)} numbers, which is a tree "
            "and not an array, as in JAX. Write `jnp.array(x)` if the function takes "
            "an array."
        )


_P = ParamSpec("_P")
_T = TypeVar("_T")
_OF_JAX = "JAX has removed its internal frames"
_HOTK = os.path.dirname(os.path.dirname(__file__)) + os.sep


def hides_frames(function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Leave hotk's own frames out of the traceback of what is raised within.

    As in JAX, `JAX_TRACEBACK_FILTERING=off` leaves them in.
    """

    @functools.wraps(function)
    def run(*args: _P.args, **named: _P.kwargs) -> _T:
        try:
            return function(*args, **named)
        except Exception as error:
            if getattr(jax.config, "jax_traceback_filtering", "") == "off":
                raise
            raise _shortened(error)  # noqa: B904 (it is the same exception)

    return run


def _shortened(error: Exception) -> Exception:
    frames, trace = [], error.__traceback__
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_HOTK):
            frames.append(trace)
        trace = trace.tb_next
    short = None
    for frame in reversed(frames):
        short = types.TracebackType(
            short, frame.tb_frame, frame.tb_lasti, frame.tb_lineno
        )
    notes = getattr(error, "__notes__", [])
    if notes and isinstance(error, HotkError):  # the fix is the end of its message
        error.__notes__ = [note for note in notes if _OF_JAX not in note]
    return error.with_traceback(short)
