"""Physics: equations as residuals, energies of particles, filters, control."""

from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import grad, jacfwd, jit, vmap
from jax.experimental.ode import odeint
from jax.lax import scan
from jax.scipy.special import logsumexp

from tests.everyday.corpus import everyday
from tests.everyday.draws import normals


def network(params, x):
    for W, b in params[:-1]:
        x = jnp.tanh(W @ x + b)
    W, b = params[-1]
    return (W @ x + b)[0]


def layers(seed, sizes):
    shapes = [s for m, n in pairwise(sizes) for s in ((n, m), (n,))]
    arrays = normals(seed, *shapes)
    return list(zip(arrays[::2], arrays[1::2], strict=True))


@everyday("physics-informed network: Poisson's equation on an interval")
def poisson_equation(seed):
    (points,) = normals(seed, (9,))
    u = lambda p, t: t * (1 - t) * network(p, t[None])
    u_xx = grad(grad(u, argnums=1), argnums=1)
    force = lambda t: jnp.sin(jnp.pi * t)

    def residuals(p):
        return jnp.mean(vmap(lambda t: (u_xx(p, t) - force(t)) ** 2)(points))

    return residuals, layers(seed, (1, 4, 1)), ()


@everyday("physics-informed network: heat equation, weighted terms in a dict")
def heat_equation(seed):
    inside, initial, boundary = normals(seed, (6, 2), (4, 2), (4, 2))

    def equation(p, z):
        u = partial(network, p)
        return grad(u)(z)[1] - 0.1 * jnp.trace(jacfwd(grad(u))(z)[:1, :1])

    terms = {
        "equation": lambda p: vmap(equation, (None, 0))(p, inside),
        "initial": lambda p: vmap(network, (None, 0))(p, initial) - initial[:, 0],
        "boundary": lambda p: vmap(network, (None, 0))(p, boundary),
    }
    weights = {"equation": 1.0, "initial": 10.0, "boundary": 5.0}

    def total(p):
        return sum(w * jnp.mean(terms[name](p) ** 2) for name, w in weights.items())

    return total, layers(seed, (2, 3, 1)), ()


def displacement(a, b, box=6.0):
    d = a - b
    return d - box * jnp.round(d / box)


@everyday("Lennard-Jones by a displacement mapped over pairs", x64=True)
def lennard_jones(seed):
    (noise,) = normals(seed, (5, 3))
    lattice = jnp.array([[i, i // 2, (2 * i) % 3] for i in range(5)], noise.dtype)
    rows, columns = jnp.triu_indices(5, k=1)
    pairwise = vmap(displacement)

    def energy(R, sigma=1.0, epsilon=1.0):
        r2 = jnp.sum(pairwise(R[rows], R[columns]) ** 2, axis=-1)
        s6 = (sigma**2 / r2) ** 3
        return 4 * epsilon * jnp.sum(s6**2 - s6)

    return energy, 1.3 * lattice + 0.05 * noise, ()


@everyday("masses, springs and gravity: an energy with cutoff by where")
def springs(seed):
    R, lengths = normals(seed, (5, 2), (4,))
    bonds = jnp.array([[0, 1], [1, 2], [2, 3], [3, 4]])
    g = 9.81

    def potential(R):
        gaps = R[bonds[:, 0]] - R[bonds[:, 1]]
        r = jnp.sqrt(jnp.sum(gaps**2, -1) + 1e-6)
        stretched = jnp.where(r < 3.0, (r - jnp.abs(lengths)) ** 2, r)
        return 0.5 * jnp.sum(stretched) + g * R[:, 1].sum()

    return potential, R, ()


@everyday("Ising model: mean-field free energy")
def ising(seed):
    J, h, m = normals(seed, (6, 6), (6,), (6,))
    J = 0.5 * (J + J.T)

    @jit
    def free_energy(theta, beta=0.7):
        m = jnp.tanh(theta)
        p = 0.5 * (1 + m)
        entropy = -jnp.sum(p * jnp.log(p) + (1 - p) * jnp.log1p(-p))
        return -0.5 * m @ J @ m - h @ m - entropy / beta

    return free_energy, 0.3 * m, ()


@everyday("Boltzmann machine: log partition function over all states")
def boltzmann(seed):
    W, b, data = normals(seed, (4, 4), (4,), (6, 4))
    states = jnp.array([[(i >> k) & 1 for k in range(4)] for i in range(16)], float)
    data = (data > 0).astype(float)

    def energy(params, s):
        return -0.5 * s @ (params["W"] + params["W"].T) @ s - params["b"] @ s

    def nll(params):
        energies = vmap(partial(energy, params))
        return jnp.mean(energies(data)) + logsumexp(-energies(states))

    return nll, {"W": W, "b": b}, ()


@everyday("Kalman filter by scan: likelihood of a state space model", x64=True)
def kalman(seed):
    (ys,) = normals(seed, (7, 1))
    H = jnp.array([[1.0, 0.0]])

    def nll(theta):
        A = jnp.array([[1.0, 0.1], [0.0, 1.0]]) * jnp.exp(-theta["damping"])
        Q, R = jnp.exp(theta["q"]) * jnp.eye(2), jnp.exp(theta["r"]) * jnp.eye(1)

        def step(carry, y):
            m, P = carry
            m, P = A @ m, A @ P @ A.T + Q
            S, e = H @ P @ H.T + R, y - H @ m
            K = jnp.linalg.solve(S, H @ P).T
            cost = 0.5 * (e @ jnp.linalg.solve(S, e) + jnp.linalg.slogdet(S)[1])
            return (m + K @ e, P - K @ S @ K.T), cost

        _, costs = scan(step, (jnp.zeros(2), jnp.eye(2)), ys)
        return costs.sum()

    theta = {"damping": jnp.array(0.1), "q": jnp.array(-1.0), "r": jnp.array(0.2)}
    return nll, theta, ()


@everyday("hidden Markov model: forward algorithm in log space")
def hidden_markov(seed):
    transition, emission, start = normals(seed, (3, 3), (3, 4), (3,))
    observed = jnp.array([(seed + k * k) % 4 for k in range(8)])

    def nll(params):
        log_A = jax.nn.log_softmax(params["transition"], axis=1)
        log_B = jax.nn.log_softmax(params["emission"], axis=1)

        def forward(alpha, y):
            return logsumexp(alpha[:, None] + log_A, axis=0) + log_B[:, y], None

        alpha = jax.nn.log_softmax(params["start"]) + log_B[:, observed[0]]
        alpha, _ = scan(forward, alpha, observed[1:])
        return -logsumexp(alpha)

    names = ("transition", "emission", "start")
    return nll, dict(zip(names, (transition, emission, start), strict=True)), ()


@everyday("an ODE by Runge-Kutta in a scan, fitted to data")
def runge_kutta(seed):
    (data,) = normals(seed, (8, 2))
    dt = 0.1

    def field(y, theta):
        prey, predator = y
        a, b, c, d = theta
        return jnp.stack([a * prey - b * prey * predator, c * prey * predator - d])

    def rk4(y, theta):
        k1 = field(y, theta)
        k2 = field(y + dt / 2 * k1, theta)
        k3 = field(y + dt / 2 * k2, theta)
        k4 = field(y + dt * k3, theta)
        return y + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

    def loss(theta):
        step = lambda y, _: (rk4(y, theta),) * 2
        _, path = scan(step, jnp.array([1.0, 0.5]), length=len(data))
        return jnp.mean((path - data) ** 2)

    return loss, jnp.abs(normals(seed, (4,))[0]), ()


@everyday("odeint of jax.experimental, from the initial value", x64=True)
def adaptive_ode(seed):
    theta, y0 = normals(seed, (), (2,))
    times = jnp.linspace(0.0, 1.0, 4)

    def pendulum(y, t, damping):
        return jnp.stack([y[1], -damping * y[1] - jnp.sin(y[0])])

    def loss(y0):
        path = odeint(pendulum, y0, times, 0.1 * theta**2, rtol=1e-10, atol=1e-10)
        return jnp.sum(path**2)

    return loss, y0, ()


@everyday("optimal control by shooting: costs along a trajectory")
def shooting(seed):
    controls, start = normals(seed, (6, 1), (2,))
    target = jnp.array([1.0, 0.0])

    def dynamics(state, u):
        angle, speed = state
        return jnp.stack([angle + 0.1 * speed, speed + 0.1 * (jnp.sin(angle) + u[0])])

    def running(state, u):
        return 0.1 * jnp.sum((state - target) ** 2) + 0.01 * jnp.sum(u**2)

    def total(controls):
        def step(state, u):
            return dynamics(state, u), running(state, u)

        last, costs = scan(step, start, controls)
        return costs.sum() + 10 * jnp.sum((last - target) ** 2)

    return total, controls, ()


def rotate(w, p):
    """Rodrigues' formula, without its singularity."""
    angle = jnp.sqrt(w @ w + 1e-8)
    k = w / angle
    turned = p * jnp.cos(angle) + jnp.cross(k, p) * jnp.sin(angle)
    return turned + k * (k @ p) * (1 - jnp.cos(angle))


def project(camera, point):
    p = rotate(camera[:3], point) + camera[3:6]
    p = p[:2] / (p[2] + 5.0)
    r2 = jnp.sum(p**2)
    return camera[6] * (1 + 0.1 * r2) * p


@everyday("bundle adjustment: reprojection errors mapped over observations")
def bundle(seed):
    cameras, points, seen = normals(seed, (2, 7), (4, 3), (8, 2))
    which_camera, which_point = jnp.repeat(jnp.arange(2), 4), jnp.tile(jnp.arange(4), 2)

    def residual(camera, point, observed):
        return project(camera, point) - observed

    def cost(params):
        cameras, points = params
        r = vmap(residual)(cameras[which_camera], points[which_point], seen)
        return 0.5 * jnp.sum(jnp.log1p(r**2))

    return cost, (0.1 * cameras, points), ()


@everyday("finite elements: an energy assembled by segment_sum")
def finite_elements(seed):
    u, load = normals(seed, (6,), (6,))
    elements = jnp.stack([jnp.arange(5), jnp.arange(1, 6)], axis=1)
    h = 0.2

    def element_energy(ue):
        strain = (ue[1] - ue[0]) / h
        return h * (0.5 * strain**2 + 0.25 * strain**4)

    def energy(u):
        parts = vmap(element_energy)(u[elements])
        nodal = jax.ops.segment_sum(parts, elements[:, 0], num_segments=6)
        return nodal.sum() - load @ u

    return energy, 0.3 * u, ()


@everyday("Hamiltonian rollout by leapfrog, grad of the energy inside")
def leapfrog(seed):
    q, p, K = normals(seed, (3,), (3,), (3, 3))

    def hamiltonian(q, p):
        return 0.5 * p @ p + jnp.sum(jnp.cos(K @ q))

    def rollout(q0):
        def step(_, state):
            q, p = state
            p = p - 0.05 * grad(hamiltonian, 0)(q, p)
            q = q + 0.1 * grad(hamiltonian, 1)(q, p)
            return q, p - 0.05 * grad(hamiltonian, 0)(q, p)

        q, p_end = jax.lax.fori_loop(0, 4, step, (q0, p))
        return jnp.sum(q**2) + jnp.sum(p_end**2)

    return rollout, q, ()
