"""Large problems with sparse second derivatives, as they are written by users.

Each is a function of one array and the size of that array. The random ones are drawn
with keys that are written here.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


def rosenbrock(n):
    """Make the chained Rosenbrock function."""
    return lambda x: jnp.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2), n


def broyden_tridiagonal(n):
    """Make Broyden's tridiagonal equations, as least squares."""

    def f(x):
        z = jnp.pad(x, 1)
        return jnp.sum(((3 - 2 * x) * x - z[:-2] - 2 * z[2:] + 1) ** 2)

    return f, n


def broyden_residuals(n):
    """Make the residuals of Broyden's tridiagonal equations."""

    def f(x):
        z = jnp.pad(x, 1)
        return (3 - 2 * x) * x - z[:-2] - 2 * z[2:] + 1

    return f, n


def broyden_banded(n):
    """Make Broyden's banded equations, as least squares."""

    def f(x):
        s, r = x * (1 + x), x * (2 + 5 * x**2) + 1
        for k in range(1, 6):
            r = r.at[k:].add(-s[:-k])
        return jnp.sum(r.at[:-1].add(-s[1:]) ** 2)

    return f, n


def arrow(n):
    """Make a function in which one variable meets all others."""
    return lambda x: x[0] ** 2 * jnp.sum(x[1:] ** 2) + jnp.sum(x**4), n


def minimal_surface(n):
    """Make the area of a surface over a grid."""
    side = int(np.sqrt(n))
    h = 1 / (side - 1)

    def f(x):
        u = x.reshape(side, side)
        a, b = u[:-1, :-1] - u[1:, 1:], u[1:, :-1] - u[:-1, 1:]
        return jnp.sum(jnp.sqrt(1 + (a * a + b * b) / (2 * h * h))) * h * h

    return f, side * side


def springs(n):
    """Make the energy of a lattice of springs whose nodes are in random order."""
    side = int(np.sqrt(n // 2))
    nodes = np.random.default_rng(0).permutation(side * side).reshape(side, side)
    pairs = [(nodes[1:], nodes[:-1]), (nodes[:, 1:], nodes[:, :-1])]
    pairs += [(nodes[1:, 1:], nodes[:-1, :-1])]
    s = jnp.asarray(np.concatenate([a.ravel() for a, _ in pairs]))
    t = jnp.asarray(np.concatenate([b.ravel() for _, b in pairs]))

    def f(x):
        p = x.reshape(-1, 2)
        d = p[s] - p[t]
        return jnp.sum((jnp.sqrt(jnp.sum(d * d, 1) + 0.01) - 1) ** 2) / 2

    return f, 2 * side * side


def elements(n):
    """Make the energy of neo-Hookean triangles, element by element."""
    side = int(np.sqrt(n // 2))
    node = np.arange(side * side).reshape(side, side)
    lower = [node[:-1, :-1], node[1:, :-1], node[:-1, 1:]]
    upper = [node[1:, 1:], node[:-1, 1:], node[1:, :-1]]
    corners = [np.stack([c.ravel() for c in three], 1) for three in (lower, upper)]
    triangles = jnp.asarray(np.concatenate(corners))

    def energy(p):
        F = jnp.stack([p[1] - p[0], p[2] - p[0]], 1) + jnp.eye(2)
        J = F[0, 0] * F[1, 1] - F[0, 1] * F[1, 0]
        return (jnp.sum(F * F) - 2) / 2 + (J - 1) ** 2 / 2

    return lambda x: jnp.sum(jax.vmap(energy)(x.reshape(-1, 2)[triangles])), 2 * side**2


def block_of_tetrahedra(n):
    """Return the nodes of a cube of tetrahedra, and the nodes of each of these."""
    side = round((n / 3) ** (1 / 3))
    node = np.arange(side**3).reshape(side, side, side)
    cut = lambda k: slice(k, side - 1 + k)
    corner = [
        node[cut(i), cut(j), cut(k)].ravel()
        for i, j, k in np.ndindex(2, 2, 2)  # 4 i + 2 j + k
    ]
    # Six to a cell, around its diagonal (Kuhn).
    paths = [(0, a, b, 7) for a, b in ((1, 3), (1, 5), (2, 3), (2, 6), (4, 5), (4, 6))]
    cells = [np.stack([corner[k] for k in path], 1) for path in paths]
    nodes = np.stack(np.unravel_index(node.ravel(), node.shape), 1) / (side - 1)
    return nodes, np.concatenate(cells)


def shapes(n):
    """Return the gradients of the shape functions of each tetrahedron, and volumes."""
    nodes, cells = block_of_tetrahedra(n)
    edges = nodes[cells[:, 1:]] - nodes[cells[:, :1]]
    volumes = np.abs(np.linalg.det(edges)) / 6
    others = np.swapaxes(np.linalg.inv(edges), 1, 2)
    first = -others.sum(1, keepdims=True)
    return jnp.asarray(np.concatenate([first, others], 1)), jnp.asarray(volumes)


def hyperelastic(u, shape, volume):
    """Return the energy of a Neo-Hookean tetrahedron, by its displacements."""
    F = u.T @ shape + jnp.eye(3)
    J = jnp.linalg.det(F)
    shear = (jnp.sum(F * F) - 3) / 2 - jnp.log(J)
    return volume * (shear + 5 * jnp.log(J) ** 2)


def linear_elastic(u, shape, volume):
    """Return the energy of a tetrahedron of a linear elastic solid."""
    G = u.T @ shape
    strain = (G + G.T) / 2
    return volume * (jnp.sum(strain**2) + 5 * jnp.trace(strain) ** 2)


def solid(material, n):
    """Make the energy of a block of tetrahedra with about n unknowns."""
    nodes, cells = block_of_tetrahedra(n)
    at, given = jnp.asarray(cells), shapes(n)
    energy = lambda x: jnp.sum(jax.vmap(material)(x.reshape(-1, 3)[at], *given))
    return energy, nodes.size


def windows(n, width=4):
    """Make a sum of log-sum-exp over sliding windows."""
    at = jnp.asarray(np.arange(n - width + 1)[:, None] + np.arange(width))
    return lambda x: jnp.sum(jax.nn.logsumexp(x[at], axis=1)), n


def separable(n):
    """Make a partially separable sum over random triples, by `vmap`."""
    rng = np.random.default_rng(3)
    at = jnp.asarray(np.stack([rng.permutation(n)[: n // 2] for _ in range(3)], 1))
    term = lambda y: jnp.sin(y[0] * y[1]) * y[2] ** 2
    return lambda x: jnp.sum(jax.vmap(term)(x[at])), n


def _dynamics(states):
    A = jnp.asarray(np.random.default_rng(2).normal(size=(states, states)) * 0.3)
    return lambda p: p + 0.1 * jnp.tanh(A @ p)


def shooting(n, states=4):
    """Make an optimal control problem, a `scan` over its steps."""
    step = _dynamics(states)

    def f(x):
        z = x.reshape(-1, states)
        cost = lambda p, q: (q, jnp.sum((q - step(p)) ** 2) / 2)
        return jnp.sum(jax.lax.scan(cost, z[0], z[1:])[1])

    return f, n // states * states


def transcription(n, states=4):
    """Make the same problem with all steps at once."""
    step = _dynamics(states)

    def f(x):
        z = x.reshape(-1, states)
        return jnp.sum((z[1:] - jax.vmap(step)(z[:-1])) ** 2) / 2

    return f, n // states * states


def network(n):
    """Make a dense network: nothing of its Hessian is zero."""
    hidden = n // 9
    data = jnp.asarray(np.random.default_rng(4).normal(size=(50, 8)))

    def f(x):
        w, v = x[: 8 * hidden].reshape(8, hidden), x[8 * hidden :]
        return jnp.mean((jnp.tanh(data @ w) @ v) ** 2)

    return f, 9 * hidden


def multiple_shooting(intervals, steps):
    """Make the Lagrangian of a pendulum on a cart, by Runge and Kutta's method."""

    def rates(s, u):
        return jnp.stack([s[1], u - jnp.sin(s[0]) - 0.1 * s[1], s[2] * jnp.cos(s[0])])

    def end(s, u):
        def step(s, _):
            k1 = rates(s, u)
            k2 = rates(s + 0.01 * k1, u)
            k3 = rates(s + 0.01 * k2, u)
            k4 = rates(s + 0.02 * k3, u)
            return s + 0.02 / 6 * (k1 + 2 * k2 + 2 * k3 + k4), None

        return jax.lax.scan(step, s, None, length=steps)[0]

    def f(x):
        z = x.reshape(intervals, 4)
        s, u = z[:, :3], z[:, 3]
        gaps = jax.vmap(end)(s, u)[:-1] - s[1:]
        return jnp.sum(gaps) + jnp.sum(u**2) / 2

    return f, 4 * intervals


class Bundle(NamedTuple):
    """Cameras that see points.

    Attributes:
        start: Where cameras and points begin. A camera has a rotation, a translation, a
            focal length and two coefficients of its distortion.
        camera: The camera of each observation.
        point: The point of each.
        seen: Where it was seen.
    """

    start: dict[str, jax.Array]
    camera: np.ndarray
    point: np.ndarray
    seen: jax.Array


def observed(cameras, points, seen_by=5):
    """Make points, each seen by some of the cameras near a random one."""
    rng = np.random.default_rng(0)
    turn, move = (
        0.1 * rng.normal(size=(cameras, 3)),
        0.2 * rng.normal(size=(cameras, 3)),
    )
    lens = np.stack([np.full(cameras, 500.0), *0.01 * rng.normal(size=(2, cameras))], 1)
    start = {
        "cameras": jnp.asarray(np.concatenate([turn, move - [0, 0, 8], lens], 1)),
        "points": jnp.asarray(rng.normal(size=(points, 3))),
    }
    near = [rng.permutation(3 * seen_by)[:seen_by] for _ in range(points)]
    camera = (rng.integers(0, cameras, (points, 1)) + np.stack(near)).ravel() % cameras
    point = np.repeat(np.arange(points), seen_by)
    return Bundle(start, camera, point, jnp.asarray(rng.normal(size=(camera.size, 2))))


def projected(c, p):
    """Return where cameras see points, one row for each pair."""
    w, t, f, k1, k2 = jnp.split(c, (3, 6, 7, 8), axis=1)
    square = jnp.sum(w * w, 1, keepdims=True)
    angle = jnp.sqrt(square)
    along = jnp.sum(w * p, 1, keepdims=True) * (1 - jnp.cos(angle)) / square
    turned = p * jnp.cos(angle) + jnp.cross(w, p) * jnp.sin(angle) / angle
    q = turned + w * along + t
    u = -q[:, :2] / q[:, 2:]
    r = jnp.sum(u * u, 1, keepdims=True)
    return f * (1 + k1 * r + k2 * r * r) * u


def bundle(cameras, points, seen_by=5):
    """Make the residuals of cameras that see points, and where they begin."""
    start, camera, point, seen = observed(cameras, points, seen_by)

    def residuals(x):
        return projected(x["cameras"][camera], x["points"][point]) - seen

    return residuals, start


def constrained(n):
    """Make a Lagrangian of a chain, with one constraint for three variables."""
    m = n // 4
    k = n - m

    def f(z):
        x, y = z[:k], z[k:]
        chain = jnp.sum(x**4) - jnp.sum(jnp.cos(x[1:] - x[:-1]))
        ends = x[: 3 * m].reshape(m, 3)
        return chain + jnp.vdot(y, ends[:, 0] - jnp.sin(ends[:, 1]) - ends[:, 2] ** 2)

    return f, n


def swung_up(intervals):
    """Make the swing-up of a pendulum on a cart: its effort, and the dynamics."""
    h = 2.0 / intervals
    line = jnp.linspace(0.0, 1.0, intervals + 1)
    x = {"s": jnp.outer(line, jnp.array([1.0, jnp.pi, 0.0, 0.0])), "u": 0.1 * line}

    def rate(s, u):
        _, angle, speed, turn = s.T
        sine, cosine = jnp.sin(angle), jnp.cos(angle)
        weight = 1 + 0.3 * sine**2
        push = (0.15 * sine * turn**2 + u + 2.943 * cosine * sine) / weight
        turning = -(0.15 * cosine * sine * turn**2 + u * cosine + 12.753 * sine)
        return jnp.stack([speed, turn, push, turning / (0.5 * weight)], axis=1)

    def f(x):
        s, u = x["s"], x["u"]
        rates = rate(s, u)
        dynamics = s[1:] - s[:-1] - h / 2 * (rates[1:] + rates[:-1])
        return h * jnp.sum(u**2), {"dynamics": dynamics, "ends": s[jnp.array([0, -1])]}

    return f, x
