"""hotk against raw JAX on one program; a disagreement is a failure or is explained."""

from typing import Any, NamedTuple

import jax
import numpy as np

from . import prelude
from .call import AFTERWARDS, Bound, Call, bind
from .calls import calls
from .program import Program, flat, flat_function
from .reference import Reference, agree, allowed, tolerance


class Failure(NamedTuple):
    """A disagreement: the call that shows it, and the two values."""

    program: Program
    call: str
    expected: Any
    got: Any


class Verdict(NamedTuple):
    """What came of one program."""

    failure: Failure | None
    compared: int
    explained: tuple[str, ...]


class _References:
    """Raw JAX on one program: a state and a nesting at a time, each at most once."""

    def __init__(self, program: Program, rng) -> None:
        self.program = program
        self.known: dict[tuple[str, str], Reference] = {}
        names = allowed(program)
        self.preferred = names[rng.integers(len(names))]

    def __call__(self, state: str, nesting: str | None = None, shift=None) -> Reference:
        nesting = nesting or self.preferred
        known = self.known.get((state, nesting))
        if known is not None and shift is None:
            return known
        f, x, v, args, _ = bind(self.program, prelude.raw, state)
        # what needs a captured array's value cannot be jitted by JAX
        jit = "python" not in self.program.kinds
        z = flat(x) if shift is None else flat(x) + shift
        made = Reference(flat_function(f, x, args), z, flat(v), nesting, jit)
        if shift is None:
            self.known[state, nesting] = made
        return made

    def compiled(self, call: Call, nesting: str):
        """Compile a program that asks for values of captured arrays, or return None.

        What is captured are NumPy's arrays: they have their values inside of `jax.jit`.
        """
        f, x, v, args, _ = bind(self.program, prelude.raw, call.state, _of_numpy)
        flattened = flat_function(f, x, args)
        try:
            made = Reference(flattened, flat(x), flat(v), nesting, True)
            return call.expect(made)
        except Exception:  # a method that NumPy's arrays do not have
            return None


def _of_numpy(tree):
    arrays = jax.Array
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, arrays) else x, tree)


def check(program: Program, hotk, *, seed: int = 0, extra: str = "one") -> Verdict:
    """Compare the calls of one program; stop at the first failure."""
    rng = np.random.default_rng([seed, program.seed])
    references = _References(program, rng)
    explained, compared = [], 0

    def done(failure: Failure | None = None) -> Verdict:
        return Verdict(failure, compared, tuple(explained))

    for call in calls(program, hotk, rng, extra):
        expected = call.expect(references(call.state))
        try:
            got = call.run()
        except Exception as error:
            if not isinstance(error, call.refusals):
                return done(Failure(program, call.source, expected, error))
        else:
            compared += 1
            if not agree(got, expected, tolerance(program)):
                reason = explanation(references, call, got, expected)
                if reason is None:
                    return done(Failure(program, call.source, expected, got))
                explained.append(reason)
        for state, bound in call.touches:
            failure = harmed(program, call, bound, references(state).value)
            if failure is not None:
                return done(failure)
    return done()


def harmed(program: Program, call: Call, bound: Bound, expected) -> Failure | None:
    """Say whether a function computes something else, or nothing, after a call."""
    try:
        got = np.asarray(bound.f(bound.x, *bound.args))
    except Exception as error:
        got = error
    else:
        if agree(got, expected, tolerance(program)):
            return None
    return Failure(program, call.source + AFTERWARDS, expected, got)


def explanation(references: _References, call: Call, got, expected) -> str | None:
    """Say why raw JAX itself has no one answer here, or None if it has."""
    program = references.program
    rtol = tolerance(program)
    others = [
        call.expect(references(call.state, nesting)) for nesting in allowed(program)
    ]
    one_answer = all(agree(other, expected, rtol) for other in others)
    if not one_answer and any(agree(got, other, rtol) for other in others):
        return "the nestings of raw JAX disagree"
    if "python" in program.kinds:  # the others are compiled already
        compiled = [references.compiled(call, nesting) for nesting in allowed(program)]
        if any(other is not None and agree(got, other, rtol) for other in compiled):
            return "compiled, raw JAX computes something else"
    rng = np.random.default_rng(0)
    scale = np.max(np.abs(expected), initial=1.0)
    count = references(call.state).z.size
    for size in (1e-9, 1e-7):
        for _ in range(3):
            shift = size * rng.choice([-1.0, 1.0], count)
            near = call.expect(references(call.state, shift=shift))
            if not np.max(np.abs(near - expected)) <= 1e4 * size * scale:
                return "the function is not smooth at the point"
    return None
