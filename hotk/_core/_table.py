"""How objects show: tables for the terminal and Jupyter, members, missing names."""

import abc
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final

import equinox as eqx
import numpy as np

from ._by_numpy import from_host, is_known
from ._compat import EnumerationItem, in_trace


if TYPE_CHECKING:
    Enumeration = eqx.Enumeration
else:

    class _Member(EnumerationItem):
        def __str__(self):
            return self._enumeration[self]

        def __repr__(self):
            return f"{self._enumeration.__name__}<{self}>"

        def __eq__(self, other):
            # of arrays it is a program, which takes longer to compile than many a call
            items = self, other
            same = (
                isinstance(other, _Member) and self._enumeration is other._enumeration
            )
            if in_trace() or not (same and all(is_known(i._value) for i in items)):
                return super().__eq__(other)
            return from_host(np.equal(self._value, other._value))

    class _Enumeration(type(eqx.Enumeration)):
        def __new__(mcs, name, bases, namespace):
            cls = super().__new__(mcs, name, bases, namespace)
            for key, item in cls._name_to_item.items():
                cls._name_to_item[key] = _Member(item._value, cls)
            return cls

    class Enumeration(eqx.Enumeration, metaclass=_Enumeration):
        """An enumeration as that of Equinox, where `str(member)` is the text."""

    def _where(cls, pred, a, b):
        found = super(Enumeration, cls).where(pred, a, b)
        return _Member(found._value, cls)

    # In the body of the class Equinox would take it for a member, and refuse its name.
    Enumeration.where = classmethod(_where)


# Of results: from SciPy, jaxopt, optimistix, lmfit, statsmodels and sklearn. The first
# that a class has is named.
_OURS: Final = {
    "fun": ("value",),
    "success": ("converged",),
    **dict.fromkeys(("nit", "n_iter", "num_steps", "iterations"), ("steps",)),
    **dict.fromkeys(("message", "status"), ("reason",)),
    **dict.fromkeys(("popt", "params", "best_values", "beta", "coef_"), ("x",)),
    **dict.fromkeys(("pcov", "covar", "cov", "cov_params"), ("covariance",)),
    **dict.fromkeys(
        ("stderr", "bse", "perr", "std"), ("standard_errors", "standard_error")
    ),
    **dict.fromkeys(("predict", "eval", "get_prediction"), ("band",)),
    **dict.fromkeys(("conf_int", "conf_interval"), ("interval",)),
    "rsquared": ("r_squared",),
    "resid": ("residuals",),
    **dict.fromkeys(("eigenvalues", "eigvals"), ("values",)),
    **dict.fromkeys(("eigenvectors", "eigvecs"), ("vectors",)),
}
# Of the package.
_ELSEWHERE: Final = {
    "grad": "hotk.gradient",
    "value_and_grad": "hotk.value_and_gradient",
    **dict.fromkeys(("jacfwd", "jacrev"), "hotk.jacobian"),
    "vhp": "hotk.hvp",
    "jet": "hotk.taylor",
    "minimize": "hotk.optim.minimize",
    **dict.fromkeys(("fit", "curve_fit"), "hotk.statistics.fit"),
    "least_squares": (
        "hotk.optim.minimize(hotk.curvature.LeastSquares(residuals), x0, "
        "hotk.optim.levenberg_marquardt())"
    ),
    "prepare": "hotk.hvp.prepare(f, x, v)",
    "laplace": "hotk.laplace_approximation",
    "check_grads": "hotk.testing.check",
}


def no_attribute(thing: object, name: str) -> AttributeError:
    """Return the error for an attribute that an object does not have."""
    cls = type(thing)
    text = f"'{cls.__name__}' object has no attribute {name!r}"
    has = {*dir(cls), *getattr(cls, "__dataclass_fields__", ())}
    ours = next((other for other in _OURS.get(name, ()) if other in has), None)
    if ours is not None:
        text += f". Write `.{ours}`."
    return AttributeError(text, name=name, obj=thing)


def no_name(package: object, name: str) -> AttributeError:
    """Return the error for a name that the package does not have."""
    text = f"module 'hotk' has no attribute {name!r}"
    if name in _ELSEWHERE:
        text += f". Write `{_ELSEWHERE[name]}`."
    return AttributeError(text, name=name, obj=package)


def text_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> str:
    """Lay out rows in aligned columns under a header.

    Above `width` the widest columns are cut in front: a path ends in what matters.
    """
    table = [list(header), *[list(row) for row in rows]]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    while width and sum(widths) + 2 * len(widths) - 2 > width and max(widths) > 12:
        i = widths.index(max(widths))
        widths[i] -= 1
    for row in table:
        for i, cell in enumerate(row):
            if len(cell) > widths[i]:
                row[i] = "..." + cell[len(cell) - widths[i] + 3 :]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in table
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write rows as one small HTML table."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class AbstractReport(eqx.Module):
    """A result that shows as a small table, in a terminal and in a notebook."""

    _header: ClassVar[tuple[str, ...]] = ("field", "value")

    def _head(self) -> tuple[str, ...]:
        """Return the header."""
        return self._header

    @abc.abstractmethod
    def _rows(self) -> list[tuple[str, ...]]:
        """Return the rows below the header."""

    def _first_lines(self) -> list[str]:
        """Return what must be said first, above the table."""
        return []

    def _lines(self) -> list[str]:
        """Return what else there is to say, below the table."""
        return []

    if not TYPE_CHECKING:  # to which each name would exist

        def __getattr__(self, name):
            raise no_attribute(self, name)

    def __repr__(self) -> str:
        """Write the rows in one line, or those of a wider table below each other."""
        if len(self._head()) != 2:
            return str(self)
        try:
            what = ", ".join(f"{field}: {value}" for field, value in self._rows())
        except Exception:  # inside of a transformation there are no numbers yet
            return eqx.tree_pformat(self)
        return f"{type(self).__name__}({what})"

    def __str__(self) -> str:
        """Write one line a row."""
        try:
            table = text_table(self._head(), self._rows())
            return "\n".join([*self._first_lines(), table, *self._lines()])
        except Exception:  # inside of a transformation there are no numbers yet
            return eqx.tree_pformat(self)

    def _repr_html_(self) -> str:
        try:
            above, below = (
                [f"<p>{html.escape(line)}</p>" for line in lines]
                for lines in (self._first_lines(), self._lines())
            )
            table = html_table(self._head(), self._rows())
            return "".join([*above, table, *below])
        except Exception:  # inside of a transformation there are no numbers yet
            return f"<pre>{html.escape(eqx.tree_pformat(self))}</pre>"
