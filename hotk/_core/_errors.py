"""The family of errors that hotk raises, and how their messages are written."""

import html

from ._table import html_table


class HotkError(Exception):
    """Base of all errors that hotk raises on purpose."""

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
    """An argument has another tree structure or shape than it must have."""


class DtypeError(HotkError, TypeError):
    """An argument has a dtype that cannot be differentiated or does not match."""


class OutputError(HotkError, TypeError):
    """The function returns something that the operator cannot differentiate."""


class ModeError(HotkError, NotImplementedError):
    """No derivative exists in the mode asked for, or in any mode."""


class PreparationError(HotkError, TypeError):
    """A `Prepared` was called with something else than it was prepared for."""


class TooLargeError(HotkError, MemoryError):
    """A dense result would exceed the memory budget."""


class NotPositiveDefiniteError(HotkError, ValueError):
    """A matrix that is to be positive definite is not.

    Attributes:
        smallest: The smallest eigenvalue that was found.
    """

    def __init__(self, text: str, smallest: float) -> None:
        super().__init__(text)
        self.smallest = smallest


class ZeroHessianWarning(UserWarning):
    """A Hessian is zero at every point, as the function is linear in pieces."""


class NestedDerivativesWarning(UserWarning):
    """Derivatives are nested so deeply that another operator is far cheaper."""


class OpaqueWarning(UserWarning):
    """A function is traced at each call, as hotk cannot see all that it depends on."""


class ChangingValueWarning(UserWarning):
    """A captured number or string changes from call to call: each is a new trace."""


# What no attempt at another mode answers: a warning only if the user made it an error.
PASSED_ON = (
    HotkError,
    ZeroHessianWarning,
    NestedDerivativesWarning,
    OpaqueWarning,
    ChangingValueWarning,
)


def message(call: str, problem: str, *, expected: str, got: str, fix: str) -> str:
    """Write an error message: where, what, the two values side by side, the way out."""
    found = "  got:" + (got if got.startswith("\n") else f"      {got}")
    return f"`{call}`: {problem}\n  expected: {expected}\n{found}\n{fix}"


for _error in (
    HotkError,
    StructureError,
    DtypeError,
    OutputError,
    ModeError,
    PreparationError,
    TooLargeError,
    NotPositiveDefiniteError,
    ZeroHessianWarning,
    NestedDerivativesWarning,
    OpaqueWarning,
    ChangingValueWarning,
):
    _error.__module__ = "hotk"  # where users find it, and what a traceback shows
