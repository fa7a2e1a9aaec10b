"""Eigenvalues, one by one and as a density, with their errors."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from hotk.estimate import Spectrum
from hotk.linop import Eigenpairs

from ._axes import axes, by_name


if TYPE_CHECKING:
    from matplotlib.axes import Axes


def spectral_density(
    spectrum: Spectrum | Mapping[str, Spectrum],
    *,
    width: float | None = None,
    points: int = 500,
    log: bool = True,
    ax: "Axes | None" = None,
) -> "Axes":
    r"""Draw the spectral density of an operator, with a band of two standard errors.

    Draws $\frac{1}{n \sigma \sqrt{2 \pi}} \sum_i \exp(-(t - \lambda_i)^2 / 2
    \sigma^2)$, the density of the eigenvalues smoothed by a normal distribution, as
    `Spectrum.density` estimates it. Its integral is one. An isolated eigenvalue is a
    peak of height $1 / (n \sigma \sqrt{2 \pi})$, so a logarithmic scale shows bulk and
    outliers together. No product with the operator is computed.

    Args:
        spectrum: The result of `hotk.estimate.spectrum`, or a dictionary of several by
            name, drawn on a common grid.
        width: The standard deviation $\sigma$ in units of eigenvalues; a hundredth of
            the range if left out.
        points: The number of grid points; more are used if a small width needs them.
        log: Whether the scale of the density is logarithmic, over five decades.
        ax: The matplotlib axes to draw on; new ones if left out.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If `spectrum` is neither a `Spectrum` nor a dictionary of them.
        ValueError: If `width` is not positive, or the spectrum is not finite.

    Example:
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.arange(1.0, 6.0))
        >>> spectrum = hotk.estimate.spectrum(H, jax.random.key(0), samples=5)
        >>> hotk.plot.spectral_density(spectrum).get_yscale()
        'log'
    """
    call = "spectral_density(spectrum)"
    spectra = by_name(call, spectrum, Spectrum, "a `Spectrum`")
    if width is not None and not width > 0:
        raise ValueError(f"`{call}`: `width` is {width}; it must be positive.")
    low = min(float(s.smallest) for s in spectra.values())
    high = max(float(s.largest) for s in spectra.values())
    if not np.isfinite(high - low):
        raise ValueError(f"`{call}`: the spectrum holds numbers that are not finite.")
    # A multiple of the identity has one eigenvalue, and a range of zero.
    span = (high - low) or abs(high) or 1.0
    width = span / 100 if width is None else float(width)
    # Four standard deviations hold the tails, so that the area drawn is one.
    margin = max(4 * width, span / 50)
    # Four points to a standard deviation: with fewer a peak may fall between two.
    needed = int(4 * (high - low + 2 * margin) / width) + 1
    grid = np.linspace(low - margin, high + margin, min(max(points, needed), 20_000))
    ax = axes(ax)
    top = 0.0
    for name, estimated in spectra.items():
        density = estimated.density(jnp.asarray(grid, estimated.nodes.dtype), width)
        mean, error = np.asarray(density.value), np.asarray(density.error)
        # One start gives no standard error: NaN, which would hide the band of others.
        error = np.where(np.isfinite(error), error, 0)
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


def eigenvalues(
    pairs: Eigenpairs | Mapping[str, Eigenpairs], *, ax: "Axes | None" = None
) -> "Axes":
    r"""Draw eigenvalues in ascending order, with their residuals as error bars.

    Each bar $\lambda \pm \|A v - \lambda v\|$ contains an exact eigenvalue. Markers of
    eigenvalues that did not converge are hollow.

    Args:
        pairs: The result of `H.eigh(k)`, or a dictionary of several by name.
        ax: The matplotlib axes to draw on; new ones if left out.

    Returns:
        The matplotlib axes.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If `pairs` is neither `Eigenpairs` nor a dictionary of them.

    Example:
        >>> H = hotk.HessianOperator(lambda x: jnp.sum(x**4), jnp.arange(1.0, 6.0))
        >>> ax = hotk.plot.eigenvalues(H.eigh(2))
        >>> ax.get_ylabel()
        'eigenvalue'
    """
    pairs_by_name = by_name("eigenvalues(pairs)", pairs, Eigenpairs, "`Eigenpairs`")
    ax = axes(ax)
    for name, computed in pairs_by_name.items():
        values, residuals = np.asarray(computed.values), np.asarray(computed.residuals)
        number = np.arange(len(values)) + 1
        bars = ax.errorbar(
            number, values, yerr=residuals, fmt="o", capsize=3, label=str(name) or None
        )
        unconverged = ~np.asarray(computed.converged)
        if unconverged.any():
            ax.plot(
                number[unconverged],
                values[unconverged],
                "o",
                color=bars.lines[0].get_color(),
                mfc="white",
            )
    ax.axhline(0, color="grey", linewidth=0.5)
    if any(map(str, pairs_by_name)):
        ax.legend()
    ax.set(xlabel="number, in ascending order", ylabel="eigenvalue")
    ax.locator_params(axis="x", integer=True)
    return ax
