"""What nodes of arguments have beside arrays is part of an exported program.

A static field decides what was traced, as a string that is a leaf does: another one is
refused, and never the numbers of the first.
"""

import dataclasses
import functools
import subprocess
import sys
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import hotk
from hotk.curvature import SquaredError


pytest.importorskip("flatbuffers")
X = jnp.array([1.0, 10.0, 100.0])


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["kind"]
)
@dataclasses.dataclass
class Data:
    w: Any
    kind: Any


class Module(eqx.Module):
    w: Any
    kind: Any = eqx.field(static=True)


@jax.tree_util.register_pytree_node_class
class Node:
    def __init__(self, w, kind):
        self.w, self.kind = w, kind

    def tree_flatten(self):
        return [self.w], self.kind

    @classmethod
    def tree_unflatten(cls, kind, children):
        return cls(*children, kind)


class Choice:
    """Says the same of all of its kind."""

    def __init__(self, power):
        self.power = power

    def __repr__(self):
        return "Choice()"

    def __eq__(self, other):
        return isinstance(other, Choice) and other.power == self.power

    def __hash__(self):
        return hash(self.power)


def power_of(kind):
    power = getattr(kind, "power", kind)
    power = power[0] if isinstance(power, tuple) else power
    return {"square": 2, "cube": 3, True: 2, False: 3}.get(power, power)


def total(m):
    kind = m.kind
    if callable(kind):
        return jnp.sum(kind(m.w))
    return jnp.sum(m.w ** power_of(kind))


# fmt: off
SQUARE, CUBE = (lambda w: w**2), (lambda w: w**3)  # both in one line
# fmt: on
KINDS = [
    (2, 3),
    (2.0, 3.0),
    ("square", "cube"),
    ((2, "a"), (3, "a")),
    (True, False),
    (Choice(2), Choice(3)),
    (SQUARE, CUBE),
]


@pytest.mark.thinned(30)
@pytest.mark.parametrize("kinds", KINDS, ids=lambda kinds: type(kinds[0]).__name__)
@pytest.mark.parametrize("cls", [Data, Module, Node])
@pytest.mark.parametrize("how", ["point", "argument", "function"])
def test_another_static_field_is_refused(cls, kinds, how):
    first, second = (cls(X, kind) for kind in kinds)
    by_argument = lambda x, m: jnp.sum(x) * total(m)
    if how == "point":
        made, extra = hotk.gradient.prepare(total, first), ()
        right = 2 * X
    elif how == "argument":
        made, extra = hotk.gradient.prepare(by_argument, X, first), (X,)
        right = jnp.full(3, jnp.sum(X**2))
    else:
        made, extra = total, ()
        right = jnp.sum(X**2)
    arguments = (first,) if how == "function" else ()
    program = hotk.load(hotk.export(made, *arguments))
    for _ in range(2):  # the second time it is known
        assert jnp.allclose(jax.tree.leaves(program(*extra, first))[0], right)
        with pytest.raises(hotk.PreparationError, match="another than was exported"):
            program(*extra, second)
    again = cls(2 * X, kinds[0])
    wide = program(*extra, again)
    assert jnp.allclose(jax.tree.leaves(wide)[0] / right, 2 if how == "point" else 4)


def test_a_dict_stands_for_a_node():
    program = hotk.load(hotk.export(total, Module(X, "square")))
    assert program({"w": X}) == jnp.sum(X**2)


class Pair(NamedTuple):
    a: Any
    b: Any


class Other(NamedTuple):
    a: Any
    b: Any


def test_a_node_of_another_class_is_refused():
    program = hotk.load(hotk.export(lambda p: p.a - p.b, Pair(X, 2 * X)))
    assert jnp.allclose(program(Pair(X, 2 * X)), -X)
    with pytest.raises(hotk.PreparationError, match="another than was exported"):
        program(Other(X, X))


def matrices():
    coo, at = hotk.SparseMatrix.from_coo, [0, 1, 2]
    a, b = coo([1.0, 2.0, 3.0], at, at), coo([1.0, 2.0, 3.0], at, [2, 0, 1])
    return (lambda A, x: A @ x), a, b, jnp.array([1.0, 20.0, 300.0])


def operators():
    a, b = (hotk.HessianOperator(f, X) for f in (lambda x: x @ x, lambda x: x.sum()))
    return (lambda H, v: H @ v), a, b, 2 * X


def losses():
    a, b = (SquaredError(X, reduction=r) for r in ("sum", "mean"))
    return (lambda loss, x: loss(x)), a, b, jnp.array(0.0)


def layers():
    a, b = (eqx.nn.LayerNorm(3, eps=eps) for eps in (1e-5, 10.0))
    centred = X - jnp.mean(X)
    normal = centred / jnp.sqrt(jnp.mean(centred**2) + 1e-5)
    return (lambda layer, x: layer(x)), a, b, normal


@pytest.mark.parametrize("make", [matrices, operators, losses, layers])
def test_what_libraries_keep_beside_arrays_is_compared(make):
    f, first, second, right = make()
    program = hotk.load(hotk.export(f, first, X))
    assert jnp.allclose(program(first, X), right)
    with pytest.raises(hotk.PreparationError, match="another than was exported"):
        program(second, X)


IN_ANOTHER_PROCESS = """
import equinox as eqx, jax, jax.numpy as jnp, hotk
from tests.exported.test_node_statics import Data, Module, Node
net = eqx.nn.MLP(2, 1, 4, 2, key=jax.random.key(0))
kept = frozenset(["a", "b", "c", "d"])
at = [0, 1, 2]
matrix = hotk.SparseMatrix.from_coo([1.0, 2.0, 3.0], at, at)
given = (net, Data(jnp.ones(2), kept), Module(jnp.ones(2), jnp.tanh), Node(0.5, int))
def f(given, matrix):
    net, data, module, node = given
    sums = net(data.w * node.w)[0] + jnp.sum(module.kind(module.w)) + len(data.kind)
    return sums + jnp.sum(matrix.values)
"""


@pytest.mark.exhaustive
def test_the_same_objects_of_another_process_are_the_same(tmp_path):
    file = str(tmp_path / "program.bin")
    export = f"hotk.export(f, given, matrix, path={file!r}); print(f(given, matrix))"
    load = f"print(hotk.load({file!r})(given, matrix))"
    printed = [
        subprocess.run(
            [sys.executable, "-c", f"{IN_ANOTHER_PROCESS}\n{code}"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for code in (export, load)
    ]
    assert abs(float(printed[0]) - float(printed[1])) < 1e-5
