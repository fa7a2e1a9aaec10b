"""Optimal power flow of public networks: IPOPT with derivatives of hotk, and CasADi.

`python -m tests.benchmarks.power_flow`; needs cyipopt, casadi and the data of pypower.
The model is that of MATPOWER (Zimmerman, Murillo-Sánchez and Thomas, 2011) in polar
coordinates: voltages and generation of least cost, where at each bus what comes in goes
out. The least costs are known: 129 660.69 for 118 buses, 719 725.10 for 300.
"""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.benchmarks.ipopt_peers import (
    Contestant,
    Sides,
    compared,
    of_casadi,
    of_hotk,
)
from tests.benchmarks.table import Row, run


class Network(NamedTuple):
    """A network of buses, in units of its base power.

    Attributes:
        demand: Real and reactive power that leaves each bus.
        shunt: The conductance and susceptance to ground at each bus.
        at: The bus of each generator.
        cost: Coefficients of the cost of each generator, from the square on.
        ends: The two buses of each branch.
        admittance: The entries of its matrix: of both ends, and from one to the other.
        lower: Lower bounds of angles, voltages, real and reactive generation.
        upper: Upper bounds.
    """

    demand: np.ndarray
    shunt: np.ndarray
    at: np.ndarray
    cost: np.ndarray
    ends: np.ndarray
    admittance: np.ndarray
    lower: list[np.ndarray]
    upper: list[np.ndarray]


def network(buses: int) -> Network:
    """Return one of the networks of the IEEE."""
    module = importlib.import_module(f"pypower.case{buses}")
    case = getattr(module, f"case{buses}")()
    base, bus, gen = case["baseMVA"], case["bus"], case["gen"]
    branch = case["branch"][case["branch"][:, 10] > 0]
    number = {int(name): i for i, name in enumerate(bus[:, 0])}
    place = np.vectorize(number.__getitem__)
    ratio = np.where(branch[:, 8] == 0, 1.0, branch[:, 8])
    tap = ratio * np.exp(1j * np.pi / 180 * branch[:, 9])
    series = 1 / (branch[:, 2] + 1j * branch[:, 3])
    end = series + 0.5j * branch[:, 4]
    admittance = np.stack(
        [end / ratio**2, -series / tap.conj(), -series / tap, end]
    )  # fmt: skip
    reference = np.where(bus[:, 1] == 3, 0.0, np.inf)
    limits = [
        [-reference, bus[:, 12], gen[:, 9] / base, gen[:, 4] / base],
        [reference, bus[:, 11], gen[:, 8] / base, gen[:, 3] / base],
    ]
    scale = np.array([base**2, base, 1.0])
    return Network(
        bus[:, 2:4] / base,
        bus[:, 4:6] / base,
        place(gen[:, 0].astype(int)),
        case["gencost"][:, 4:7] * scale,
        place(branch[:, :2].astype(int)),
        admittance,
        *limits,
    )


def flows(at: Any, to: Any, own: Any, across: Any, m: Any) -> tuple[Any, Any]:
    """Return real and reactive power that enter branches at one of their ends.

    Args:
        at: Angles and voltages at this end.
        to: Those at the other.
        own: Real and imaginary part of the admittance of this end.
        across: Those from this end to the other.
        m: The functions of JAX or CasADi.
    """
    (angle, v), (other, w) = at, to
    sine, cosine = m.sin(angle - other), m.cos(angle - other)
    real = own[0] * v * v + v * w * (across[0] * cosine + across[1] * sine)
    reactive = -own[1] * v * v + v * w * (across[0] * sine - across[1] * cosine)
    return real, reactive


def balance(
    parts: Any,
    net: Network,
    add: Callable[[Any, np.ndarray], Any],
    m: Any,
    index: Callable[[np.ndarray], Any] = np.asarray,
) -> list[Any]:
    """Return what comes in and does not go out at each bus, real and reactive.

    Args:
        parts: Angles, voltages, real and reactive generation.
        net: The network.
        add: Adds numbers at the buses where they are.
        m: The functions of JAX or CasADi.
        index: Turns whole numbers into what an array is indexed by.
    """
    angle, v, *generated = parts
    f, t = index(net.ends[:, 0]), index(net.ends[:, 1])
    split = [(a.real, a.imag) for a in net.admittance]
    sides = (angle[f], v[f]), (angle[t], v[t])
    there = flows(*sides, split[0], split[1], m)
    back = flows(*sides[::-1], split[3], split[2], m)
    square = v * v
    rest = []
    for i, sign in enumerate((1.0, -1.0)):
        used = net.demand[:, i] + sign * net.shunt[:, i] * square
        rest.append(
            add(generated[i], net.at)
            - used
            - add(there[i], net.ends[:, 0])
            - add(back[i], net.ends[:, 1])
        )
    return rest


def start_of(net: Network) -> list[np.ndarray]:
    """Return a flat start: equal voltages, and the middle of what is allowed."""
    pairs = zip(net.lower, net.upper, strict=True)
    return [np.zeros_like(a) if np.isinf(a).any() else (a + b) / 2 for a, b in pairs]


def by_hotk(net: Network) -> Contestant:
    """Return the problem with derivatives of hotk."""
    add = lambda a, where: jax.ops.segment_sum(a, where, len(net.demand))

    def cost(parts: list[jax.Array]) -> jax.Array:
        a, b, c = net.cost.T
        return jnp.sum(a * parts[2] ** 2 + b * parts[2] + c)

    def constraints(parts: list[jax.Array]) -> list[jax.Array]:
        return balance(parts, net, add, jnp)

    return of_hotk(cost, start_of(net), constraints, Sides(net.lower, net.upper, 0, 0))


def by_casadi(net: Network, kind: str) -> Contestant:
    """Return the problem with derivatives of CasADi, in expressions of one kind."""
    import casadi

    count, start = len(net.demand), start_of(net)
    symbol = getattr(casadi, kind).sym
    parts = [symbol(f"x{i}", len(a)) for i, a in enumerate(start)]

    def add(a: Any, where: np.ndarray) -> Any:
        matrix = casadi.DM.triplet(
            where.tolist(), list(range(len(where))), casadi.DM.ones(len(where)),
            count, len(where),
        )  # fmt: skip
        return casadi.mtimes(matrix, a)

    a, b, c = map(casadi.DM, net.cost.T)
    cost = casadi.sum1(a * parts[2] ** 2 + b * parts[2] + c)
    rest = balance(parts, net, add, casadi, np.ndarray.tolist)
    nlp = {"x": casadi.veccat(*parts), "f": cost, "g": casadi.veccat(*rest)}
    zeros = np.zeros(2 * count)
    lower, upper = map(np.concatenate, (net.lower, net.upper))
    return of_casadi(nlp, np.concatenate(start), Sides(lower, upper, zeros, zeros))


def power_flow() -> Iterator[Row]:
    """Compare both networks with both kinds of expressions."""
    for buses in (118, 300):
        net = network(buses)
        theirs = {
            kind: functools.partial(by_casadi, net, kind) for kind in ("SX", "MX")
        }
        name = f"{buses} buses"
        yield from compared(name, functools.partial(by_hotk, net), theirs)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    run(__doc__, power_flow)
