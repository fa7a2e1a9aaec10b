"""Plots of runs: the values along an optimization, the cost of a prepared operator."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import jax
import numpy as np
from jaxtyping import Array, Float

from hotk._core import bytes_name
from hotk._prepared import Prepared

from ._axes import axes, by_name


if TYPE_CHECKING:
    from matplotlib.axes import Axes


Values: TypeAlias = (
    Float[Array, "*runs steps"] | Float[np.ndarray, "*runs steps"] | Sequence[float]
)


class HasHistory(Protocol):
    """What `hotk.optim.minimize` returns: a result with the value at each step."""

    @property
    def history(self) -> Float[Array, "*runs steps"]:
        """The values."""
        ...


def traces(
    runs: HasHistory | Values | Mapping[str, HasHistory | Values],
    *,
    best: float | None = None,
    ax: "Axes | None" = None,
) -> "Axes":
    r"""Draw convergence curves: how far a function is above its best value.

    Draws $f(x_k) - f_\text{best}$ over the steps $k$ on a logarithmic scale. Values
    that are not above the best one are left out, as they have no logarithm.

    Args:
        runs: The result of `hotk.optim.minimize`, or an array of values, one for each
            step, or a dictionary of several by name. Each row of an array with two
            axes, as of a run under `jax.vmap`, is a line.
        best: The best value $f_\text{best}$; the smallest of all runs if left out.
        ax: The matplotlib axes to draw on; new ones if left out.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If `runs` is something else.

    Example:
        >>> f = lambda x: jnp.sum((x - 1) ** 2)
        >>> minimum = hotk.optim.minimize(f, jnp.zeros(3), hotk.optim.newton())
        >>> ax = hotk.plot.traces({"newton": minimum})
        >>> ax.get_yscale(), ax.get_legend().get_texts()[0].get_text()
        ('log', 'newton')
    """
    given = dict(runs) if isinstance(runs, Mapping) else {"": runs}
    # By attribute: `hotk.plot` does not import `hotk.optim`, nor the other way round.
    values = {name: getattr(run, "history", run) for name, run in given.items()}
    kinds = (jax.Array, np.ndarray, list)
    values = by_name("traces(runs)", values, kinds, "a `Minimum` or an array")
    histories = {}
    for name, run in values.items():
        history = np.asarray(run, float)
        if history.ndim < 2:
            histories[name] = history.ravel()
        for i, row in enumerate(history if history.ndim == 2 else ()):
            histories[f"{name} {i}".strip()] = row
    if best is None:
        finite = [h[np.isfinite(h)] for h in histories.values()]
        best = min((float(h.min()) for h in finite if h.size), default=0.0)
    ax = axes(ax)
    for name, history in histories.items():
        gap = history - best
        # NaN breaks the line there; zero would stretch the scale without end.
        gap = np.where(gap > 0, gap, np.nan)
        style = ".-" if len(gap) <= 100 else "-"
        ax.plot(np.arange(len(gap)), gap, style, label=str(name) or None)
    ax.set_yscale("log")
    ax.set(xlabel="step", ylabel=f"value above {best:.6g}" if best else "value")
    if any(map(str, histories)):
        ax.legend()
    return ax


def cost(
    prepared: Prepared | Mapping[str, Prepared], *, ax: "Axes | None" = None
) -> "Axes":
    """Draw the seconds that preparing an operator took, and write what a call costs.

    Each bar has three parts: tracing, lowering and compiling. Its label has the mode,
    the floating-point operations and the bytes of one call, as XLA counts them:
    `Prepared.info` has the same numbers.

    Args:
        prepared: The result of an operator's `prepare`, or a dictionary of several by
            name.
        ax: The matplotlib axes to draw on; new ones if left out.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If `prepared` is neither a `Prepared` nor a dictionary of them.

    Example:
        >>> x = jnp.ones(3)
        >>> product = hotk.hvp.prepare(lambda x: jnp.sum(x**3), x, x)
        >>> ax = hotk.plot.cost({"hvp": product})
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['trace', 'lower', 'compile']
    """
    operators = by_name("cost(prepared)", prepared, Prepared, "a `Prepared`")
    infos = {name: operator.info for name, operator in operators.items()}
    position = np.arange(len(infos))
    left = np.zeros(len(infos))
    ax = axes(ax)
    for part in ("trace", "lower", "compile"):
        seconds = [getattr(info, f"{part}_seconds") for info in infos.values()]
        ax.barh(position, seconds, left=left, label=part)
        left = left + np.array(seconds)
    labels = [
        f"{name or info.operator}: {info.mode}\n"
        f"{info.flops:.3g} flops, {bytes_name(info.bytes)}"
        for name, info in infos.items()
    ]
    ax.set_yticks(position, labels)
    ax.set(xlabel="seconds to prepare")
    ax.invert_yaxis()  # the first on top, as the dictionary is read
    ax.legend()
    return ax
