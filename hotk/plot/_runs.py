"""What runs did: the way of an optimizer, the cost of a prepared operator."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from hotk._core import bytes_name
from hotk.prepared import Prepared

from ._axes import axes, named


def traces(runs: Any, *, best: float | None = None, ax: Any = None) -> Any:
    """Draw how far a function is above its best value, step by step.

    Args:
        runs: What `hotk.optim.minimize` returns; or an array of values, one for each
            step; or a dictionary of such by name. Of runs under `jax.vmap`, and of an
            array of two axes, each row is a line.
        best: The value to measure from, on a scale of logarithms; the least that any
            run met if left out.
        ax: Where to draw.

    Returns:
        The axes. What is not above the best value is left out.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If it is something else.

    Example:
        >>> f = lambda x: jnp.sum((x - 1) ** 2)
        >>> found = hotk.optim.minimize(f, jnp.zeros(3), hotk.optim.newton())
        >>> ax = hotk.plot.traces({"newton": found})
        >>> ax.get_yscale(), ax.get_legend().get_texts()[0].get_text()
        ('log', 'newton')
    """
    given = dict(runs) if isinstance(runs, Mapping) else {"": runs}
    given = {name: getattr(run, "history", run) for name, run in given.items()}
    kinds = (jax.Array, np.ndarray, list)
    several = named("traces(runs)", given, kinds, "a `Minimum` or an array")
    histories = {}
    for name, run in several.items():
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
        above = history - best
        shown = np.where(above > 0, above, np.nan)
        marks = ".-" if len(shown) <= 100 else "-"
        ax.plot(np.arange(len(shown)), shown, marks, label=str(name) or None)
    ax.set_yscale("log")
    ax.set(xlabel="step", ylabel=f"value above {best:.6g}" if best else "value")
    if any(map(str, histories)):
        ax.legend()
    return ax


def cost(prepared: Any, *, ax: Any = None) -> Any:
    """Draw the seconds that preparing took, and write what a call costs.

    Each bar has three parts: tracing, lowering and compiling. Before it stand the mode,
    the floating-point operations and the bytes of one call, as XLA counts them.

    Args:
        prepared: A `Prepared`, or a dictionary of several by name.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If it is no `Prepared`.

    Example:
        >>> x = jnp.ones(3)
        >>> product = hotk.hvp.prepare(lambda x: jnp.sum(x**3), x, x)
        >>> ax = hotk.plot.cost({"hvp": product})
        >>> [text.get_text() for text in ax.get_legend().get_texts()]
        ['trace', 'lower', 'compile']
    """
    several = named("cost(prepared)", prepared, Prepared, "a `Prepared`")
    infos = {name: one.info for name, one in several.items()}
    where = np.arange(len(infos))
    start = np.zeros(len(infos))
    ax = axes(ax)
    for part in ("trace", "lower", "compile"):
        seconds = [getattr(info, f"{part}_seconds") for info in infos.values()]
        ax.barh(where, seconds, left=start, label=part)
        start = start + np.array(seconds)
    names = [
        f"{name or info.operator}: {info.mode}\n"
        f"{info.flops:.3g} flops, {bytes_name(info.bytes)}"
        for name, info in infos.items()
    ]
    ax.set_yticks(where, names)
    ax.set(xlabel="seconds to prepare")
    ax.invert_yaxis()
    ax.legend()
    return ax
