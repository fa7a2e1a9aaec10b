"""A random program: a few numbers that stand for a Python function and its state."""

import linecache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import prelude
from .operations import HEADS, OPERATIONS, TAILS, Capture, fill


class Operation(NamedTuple):
    """One line of a program; the seed decides the template and what it captures."""

    kind: str
    seed: int


class Program(NamedTuple):
    """A scalar function of a point, with captured values in two states."""

    head: str
    operations: tuple[Operation, ...]
    seed: int
    size: int = 3
    argument: str = ""

    @property
    def kinds(self) -> set[str]:
        return {operation.kind for operation in self.operations}


class Text(NamedTuple):
    """The source of a program and of its captured values."""

    body: str
    captures: list[Capture]


def random_program(rng, longest: int = 6) -> Program:
    """Draw a program; kinds that leave JAX no nesting at all stay apart."""
    kinds = [str(k) for k in rng.choice(list(OPERATIONS), rng.integers(1, longest + 1))]
    forbidden = "custom_vjp" if rng.random() < 0.5 else "while"
    kinds = [kind for kind in kinds if kind != forbidden] or ["elementwise"]
    seeds = rng.integers(0, 2**31, len(kinds) + 1).tolist()
    head = str(rng.choice(list(HEADS)))
    return Program(
        head=head,
        operations=tuple(map(Operation, kinds, seeds)),
        seed=seeds[-1],
        size=3 if head == "scalar" else int(rng.integers(2, 5)),
        argument=str(rng.choice(["", "", "array", "number"])),
    )


def text(program: Program) -> Text:
    """Write a program as Python source."""
    lines, captures = [HEADS[program.head], "start = h"], []
    if program.argument:
        lines.append("h = h + jnp.sin(t)")
    for position, (kind, seed) in enumerate(program.operations):
        rng = np.random.default_rng(seed)
        template = OPERATIONS[kind][rng.integers(len(OPERATIONS[kind]))]
        line, found = fill(template, str(position), rng, program.size)
        lines += line.split("\n")
        captures += found
    rng = np.random.default_rng(program.seed)
    tail, found = fill(TAILS[rng.integers(len(TAILS))], "_", rng, program.size)
    captures += found
    names = ", ".join(["D", *(capture.name for capture in captures)])
    signature = "x, t" if program.argument else "x"
    body = "\n".join(
        [
            f"def make({names}):",
            f"    def f({signature}):",
            *(f"        {line}" for line in lines),
            f"        return {tail}",
            "",
            "    return f",
        ]
    )
    return Text(body, captures)


def maker(program: Program):
    """Compile a program to the function `make(D, *captured)`; `D` has the operators."""
    body = text(program).body
    names = {**vars(prelude), "__name__": "program"}
    file = f"<program {hash(program)}>"
    linecache.cache[file] = (len(body), None, body.splitlines(True), file)
    exec(compile(body, file, "exec"), names)
    return names["make"]


def captured(program: Program, state: str) -> list[Any]:
    """Build the captured values of one state, `now` or `later`."""
    return [
        eval(getattr(capture, state), dict(vars(prelude)))
        for capture in text(program).captures
    ]


class Point(NamedTuple):
    """A point, a direction and further arguments, as text."""

    x: str
    v: str
    args: str


def point(program: Program, state: str) -> Point:
    """Draw a point and a direction."""
    rng = np.random.default_rng([program.seed, state == "later"])
    z, v = (np.round(rng.uniform(-1, 1, entries(program)), 3) for _ in range(2))
    argument = {"": "", "array": "jnp.array({}), ", "number": "{}, "}[program.argument]
    number = round(float(rng.uniform(-1, 1)), 3)
    return Point(_tree(program, z), _tree(program, v), argument.format(number))


def entries(program: Program) -> int:
    """Count the real numbers in a point."""
    n = program.size
    return {"matrix": n, "scalar": 1}.get(program.head, n)


def _tree(program: Program, z) -> str:
    """Write the vector `z` as a point of the program's head."""
    z, array = z.tolist(), "jnp.array({})".format
    match program.head:
        case "vector":
            return array(z)
        case "matrix":
            return f"{array(z)}.reshape(1, -1)"
        case "dict":
            return f"{{'a': {array(z[:-1])}, 'b': {array(z[-1])}}}"
        case "tuple":
            return f"({array(z[:1])}, [{array([z[1:]])}])"
        case "mixed":
            return f"{{'w': {z[-1]}, 'n': 3, 'a': {array(z[:-1])}}}"
        case "scalar":
            return array(z[0])
    raise ValueError(program.head)


def built(source: str):
    """Evaluate a source text under the prelude's names."""
    return eval(source, dict(vars(prelude)))


def flat(tree) -> np.ndarray:
    """Join the floating entries of a tree, in the order of its leaves."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    leaves = [leaf.ravel() for leaf in leaves if leaf.dtype.kind == "f"]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def flat_function(f, x, args):
    """Make `f` a function of one vector, the floating leaves of `x` joined."""
    leaves, treedef = jax.tree.flatten(x)

    def of_vector(z):
        at, new = 0, []
        for leaf in leaves:
            if np.asarray(leaf).dtype.kind == "f":
                shape = np.shape(leaf)
                size = int(np.prod(shape))
                new.append(jnp.asarray(z[at : at + size]).reshape(shape))
                at += size
            else:
                new.append(leaf)
        return f(jax.tree.unflatten(treedef, new), *args)

    return of_vector


def snippet(program: Program, calls: str) -> str:
    """Write a program that anyone can paste and run from the root of the repository."""
    source = text(program)
    states = {
        state: ", ".join(["hotk", *(getattr(c, state) for c in source.captures)])
        for state in ("now", "later")
    }
    now, later = point(program, "now"), point(program, "later")
    return "\n".join(
        [
            "from tests.fuzz.prelude import *",
            "import hotk",
            'jax.config.update("jax_enable_x64", True)',
            "",
            source.body,
            "",
            f"f = make({states['now']})",
            f"x, v, args = {now.x}, {now.v}, ({now.args})",
            f"f2 = make({states['later']})",
            f"x2, v2, args2 = {later.x}, {later.v}, ({later.args})",
            calls,
        ]
    )
