"""Eigenvalues, one by one and as a density, with their errors."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from hotk.estimate import Spectrum
from hotk.linop import Eigenpairs

from ._axes import axes, named


def spectral_density(
    spectrum: Any,
    *,
    width: float | None = None,
    points: int = 500,
    log: bool = True,
    ax: Any = None,
) -> Any:
    r"""Draw the density of the eigenvalues, with a band of two standard errors.

    The density is that of `Spectrum.density`, of integral one: blurred by a normal
    distribution of some width. An isolated eigenvalue is a peak of height
    $1 / (n \sigma \sqrt{2 \pi})$, so the logarithm shows bulk and outliers together.

    Args:
        spectrum: What `hotk.estimate.spectrum` returns, or a dictionary of several by
            name, drawn over one another on a common grid.
        width: The standard deviation $\sigma$ of the blur, in units of eigenvalues; a
            hundredth of the range if left out.
        points: How many numbers the grid has; more if the blur asks for it.
        log: Whether the density is on a scale of logarithms, over five decades.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If it is no `Spectrum`.
        ValueError: If `width` is not positive, or the spectrum is not finite.

    Example:
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.arange(1.0, 6.0))
        >>> found = hotk.estimate.spectrum(H, jax.random.key(0), samples=5)
        >>> hotk.plot.spectral_density(found).get_yscale()
        'log'
    """
    call = "spectral_density(spectrum)"
    spectra = named(call, spectrum, Spectrum, "a `Spectrum`")
    if width is not None and not width > 0:
        raise ValueError(f"`{call}`: `width` is {width}; it must be positive.")
    low = min(float(s.smallest) for s in spectra.values())
    high = max(float(s.largest) for s in spectra.values())
    if not np.isfinite(high - low):
        raise ValueError(f"`{call}`: the spectrum holds numbers that are not finite.")
    span = (high - low) or abs(high) or 1.0
    width = span / 100 if width is None else float(width)
    ends = low - max(4 * width, span / 50), high + max(4 * width, span / 50)
    needed = int(4 * (ends[1] - ends[0]) / width) + 1  # four to a standard deviation
    grid = np.linspace(*ends, min(max(points, needed), 20_000))
    ax = axes(ax)
    top = 0.0
    for name, found in spectra.items():
        density = found.density(jnp.asarray(grid, found.nodes.dtype), width)
        mean, error = np.asarray(density.value), np.asarray(density.error)
        error = np.where(np.isfinite(error), error, 0)  # of a single start: unknown
        [line] = ax.plot(grid, mean, label=str(name) or None)
        band = np.maximum(mean - 2 * error, 0), mean + 2 * error
        ax.fill_between(grid, *band, color=line.get_color(), alpha=0.3, linewidth=0)
        top = max(top, float(mean.max()))
    if log:
        ax.set_yscale("log")
        ax.set_ylim(top / 1e5, top * 3)
    if any(map(str, spectra)):
        ax.legend()
    ax.set(xlabel="eigenvalue", ylabel="density")
    return ax


def eigenvalues(pairs: Any, *, ax: Any = None) -> Any:
    """Draw eigenvalues in ascending order, with their residuals as error bars.

    Each bar `lambda +- residual` holds an eigenvalue. Those that did not converge are
    drawn hollow.

    Args:
        pairs: What `H.eigh(k)` returns, or a dictionary of several by name.
        ax: Where to draw.

    Returns:
        The axes.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If it is no `Eigenpairs`.

    Example:
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.arange(1.0, 6.0))
        >>> ax = hotk.plot.eigenvalues(H.eigh(2))
        >>> ax.get_ylabel()
        'eigenvalue'
    """
    several = named("eigenvalues(pairs)", pairs, Eigenpairs, "`Eigenpairs`")
    ax = axes(ax)
    for name, found in several.items():
        values, residuals = np.asarray(found.values), np.asarray(found.residuals)
        where = np.arange(len(values)) + 1
        drawn = ax.errorbar(
            where, values, yerr=residuals, fmt="o", capsize=3, label=str(name) or None
        )
        open_ = ~np.asarray(found.converged)
        if open_.any():
            color = drawn.lines[0].get_color()
            ax.plot(where[open_], values[open_], "o", color=color, mfc="white")
    ax.axhline(0, color="grey", linewidth=0.5)
    if any(map(str, several)):
        ax.legend()
    ax.set(xlabel="number, in ascending order", ylabel="eigenvalue")
    ax.xaxis.get_major_locator().set_params(integer=True)
    return ax
