"""Draw the picture of the first page, `figures/newton_light.svg` and `newton_dark.svg`.

    python docs/_picture.py

Rosenbrock's function, the steps of a trust-region method to its minimum, and at each
point an ellipse of the Hessian: long in directions of small curvature.
"""

from pathlib import Path

import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import optax

import hotk


FIGURES = Path(__file__).with_name("figures")
START = [-1.25, 1.05]
COLORS = {  # of the valley, the ellipses, the path, the text
    "light": ("#3a5bb8", "#22386b", "#d1690e", "#333333"),
    "dark": ("#8fadf5", "#c9d8ff", "#ffb454", "#e6e6e6"),
}


def rosenbrock(p):
    """Evaluate Rosenbrock's function, a narrow curved valley."""
    return (1 - p[0]) ** 2 + 4 * (p[1] - p[0] ** 2) ** 2


def steps():
    """Return the points that a trust-region method visits."""
    transform = hotk.optim.trust_region(subproblem="exact", radius=0.4)
    p = jnp.array(START)
    state = transform.init(p)
    points = [p]
    while jnp.linalg.norm(gradient := hotk.gradient(rosenbrock, p)) > 1e-3:
        step, state = transform.update(gradient, state, p, value_fn=rosenbrock)
        p = optax.apply_updates(p, step)
        points.append(p)
    return np.array(points)


def ellipse(p, size=0.25):
    """Return the points `p + v` with `v @ abs(H) @ v == size**2`."""
    values, vectors = np.linalg.eigh(np.asarray(hotk.hessian(rosenbrock, jnp.array(p))))
    angles = np.linspace(0, 2 * np.pi, 60)
    circle = np.stack([np.cos(angles), np.sin(angles)])
    return p[:, None] + vectors @ (size / np.sqrt(np.abs(values))[:, None] * circle)


def draw(points, valley, curves, path, text):
    """Draw the picture in these colors."""
    figure, ax = plt.subplots(figsize=(8, 3.4))
    x, y = np.meshgrid(np.linspace(-2.2, 2.2, 160), np.linspace(-0.42, 1.45, 80))
    heights = np.asarray(rosenbrock(np.stack([x, y])))
    for level in np.geomspace(0.03, 40, 12):  # darker where more of them overlap
        ax.contourf(x, y, heights, [0, level], colors=[valley], alpha=0.07)
    for p in points:
        ax.fill(*ellipse(p), facecolor="none", edgecolor=curves, lw=1.2)
    ax.plot(*points.T, "o-", color=path, lw=1.8, ms=4.5)
    for label, p in {"start": points[0], "minimum": points[-1]}.items():
        right = label == "minimum"
        ax.annotate(
            label,
            p,
            (14 if right else -14, 4),
            textcoords="offset points",
            color=text,
            ha="left" if right else "right",
        )
    ax.set(xlim=(-2.2, 2.2), ylim=(-0.42, 1.45))
    ax.set_aspect("equal")
    ax.axis("off")
    figure.subplots_adjust(0, 0, 1, 1)
    return figure


if __name__ == "__main__":
    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "hotk"  # the same file in every run
    visited = steps()
    for name, colors in COLORS.items():
        path = FIGURES / f"newton_{name}.svg"
        draw(visited, *colors).savefig(path, transparent=True, metadata={"Date": None})
